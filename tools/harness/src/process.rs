//! A broker's process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use anyhow::{Context, bail};

use crate::PATIENCE;

/// A broker that has said that it is ready. Killed when dropped.
#[derive(Debug)]
pub struct BrokerProcess {
    child: Child,
    ready: String,
}

impl BrokerProcess {
    /// Starts `nexo serve`, or whatever prints a line that begins with `ready`, and waits for that line.
    ///
    /// # Errors
    /// If it cannot be started, says something else, or nothing in time.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut started =
            Self { child: child.with_context(|| format!("cannot start '{program}'"))?, ready: String::new() };
        let stdout = started.child.stdout.take().context("the broker has an output")?;
        let (said, lines) = mpsc::channel();
        // On a thread of its own, because a pipe knows no time limit. It ends with the process at the latest.
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line);
            // Whoever asked may have given up.
            let _ = said.send(read.map(|_| line));
        });
        let line = lines.recv_timeout(PATIENCE).context("the broker does not get ready")?;
        started.ready = line.context("the broker did not say that it is ready")?;
        if !started.ready.starts_with("ready") {
            bail!("the broker did not get ready; it said {:?}", started.ready);
        }
        Ok(started)
    }

    /// The number of its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it serves a protocol, such as `grpc`, if it does: the first of its addresses.
    #[must_use]
    pub fn address(&self, protocol: &str) -> Option<&str> {
        address_in(&self.ready, protocol)
    }

    /// Ends it at once, as a crash would: whatever it promised must be on disk already.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If the system does not know the process.
    pub fn wait(&mut self) -> anyhow::Result<std::process::ExitStatus> {
        self.child.wait().context("cannot wait for the broker")
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where a broker serves a protocol, as its ready line tells: `ready … grpc=127.0.0.1:7654,[::1]:7654 …`. The first of
/// its addresses.
#[must_use]
pub fn address_in<'a>(ready: &'a str, protocol: &str) -> Option<&'a str> {
    addresses_in(ready, protocol).next()
}

/// All addresses at which a broker serves a protocol, as its ready line tells.
pub fn addresses_in<'a>(ready: &'a str, protocol: &str) -> impl Iterator<Item = &'a str> {
    let found = ready.split_whitespace().find_map(|word| word.strip_prefix(protocol)?.strip_prefix('='));
    found.into_iter().flat_map(|addresses| addresses.split(','))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_line_tells_addresses_by_name() {
        let ready = "ready grpc=127.0.0.1:1 http=127.0.0.1:2,[::1]:2";
        assert_eq!(address_in(ready, "http"), Some("127.0.0.1:2"));
        assert_eq!(addresses_in(ready, "http").collect::<Vec<_>>(), ["127.0.0.1:2", "[::1]:2"]);
        assert_eq!(address_in(ready, "amqp"), None);
        assert_eq!(address_in(ready, "grp"), None);
    }

    #[test]
    fn only_a_ready_line_is_ready() {
        let mut started =
            BrokerProcess::start(Command::new("sh").args(["-c", "echo ready x=1; exec sleep 9"])).unwrap();
        assert_eq!(started.address("x"), Some("1"));
        started.kill();
        let error = BrokerProcess::start(Command::new("sh").args(["-c", "echo no"])).unwrap_err();
        assert_eq!(error.to_string(), "the broker did not get ready; it said \"no\\n\"");
        let error = BrokerProcess::start(&mut Command::new("/nowhere/nexo")).unwrap_err();
        assert_eq!(error.to_string(), "cannot start '/nowhere/nexo'");
    }
}
