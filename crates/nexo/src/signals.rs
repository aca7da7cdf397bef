//! The two signals that ask a process to end, of which the first is a request and the second is not; and the one that
//! asks a broker to read its settings again.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Waits for SIGTERM and SIGINT.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next one: its name, and the exit code of a process that dies of it.
    pub(crate) async fn next(&mut self) -> (&'static str, i32) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 143),
            _ = self.interrupt.recv() => ("SIGINT", 130),
        }
    }

    /// From now on the next signal ends the process at once.
    pub(crate) fn force_next(mut self) {
        tokio::spawn(async move {
            let (_, code) = self.next().await;
            std::process::exit(code);
        });
    }
}

/// Waits for SIGHUP.
pub(crate) struct Hangups(Signal);

impl Hangups {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::hangup())?))
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        self.0.recv().await;
    }
}
