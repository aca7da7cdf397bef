//! A connection that does not wait for ever: for the rest of a request's head, or for a client that does not read its
//! answer. How long a client may be silent between requests, and within a body, is for others to say.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long the head of a request may take from its first byte on.
const HEAD_MAX: Duration = Duration::from_secs(30);
/// How long a client may take nothing of an answer.
const WRITE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Whether a request is being worked on, so that bytes that come belong to its body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Busy(Arc<AtomicBool>);

impl Busy {
    pub(crate) fn set(&self, busy: bool) {
        self.0.store(busy, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream that fails when a client takes too long.
#[derive(Debug)]
pub(crate) struct GuardedIo<S> {
    stream: S,
    busy: Busy,
    head: Timer,
    write: Timer,
}

/// A time that may be running out.
#[derive(Debug)]
struct Timer {
    span: Duration,
    running: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    const fn new(span: Duration) -> Self {
        Self { span, running: None }
    }

    fn start(&mut self) {
        if self.running.is_none() {
            self.running = Some(Box::pin(tokio::time::sleep(self.span)));
        }
    }

    fn stop(&mut self) {
        self.running = None;
    }

    fn has_ended(&mut self, cx: &mut Context<'_>) -> bool {
        self.running.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready())
    }
}

impl<S> GuardedIo<S> {
    pub(crate) fn new(stream: S, busy: Busy) -> Self {
        Self::with_limits(stream, busy, HEAD_MAX, WRITE_PAUSE_MAX)
    }

    fn with_limits(stream: S, busy: Busy, head: Duration, write: Duration) -> Self {
        Self { stream, busy, head: Timer::new(head), write: Timer::new(write) }
    }

    /// Whether a write made progress, or has waited for too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.write.stop();
            return done;
        }
        self.write.start();
        if self.write.has_ended(cx) {
            return Poll::Ready(Err(too_slow("its answer is not read")));
        }
        Poll::Pending
    }
}

fn too_slow(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the client is too slow: {what}"))
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if this.busy.get() {
            this.head.stop();
            return read;
        }
        if buf.filled().len() > before {
            this.head.start();
        }
        // Also while more comes: a byte now and then is no head.
        if this.head.has_ended(cx) {
            return Poll::Ready(Err(too_slow("the head of its request does not come")));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(cx, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.judge(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const SHORT: Duration = Duration::from_millis(40);

    #[tokio::test]
    async fn a_head_that_comes_in_drops_is_given_up_and_silence_before_it_is_not() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = GuardedIo::with_limits(server, Busy::default(), SHORT, SHORT);
        let sending = tokio::spawn(async move {
            tokio::time::sleep(SHORT * 3).await;
            while client.write_all(b"x").await.is_ok() {
                tokio::time::sleep(SHORT / 8).await;
            }
        });
        let mut read = 0;
        let error = loop {
            match server.read_u8().await {
                Ok(_) => read += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(read > 0, "it waited for the first byte");
        drop(server);
        sending.await.unwrap();
    }

    #[tokio::test]
    async fn a_body_may_take_its_time() {
        let (mut client, server) = tokio::io::duplex(64);
        let busy = Busy::default();
        busy.set(true);
        let mut server = GuardedIo::with_limits(server, busy, SHORT, SHORT);
        tokio::spawn(async move {
            for _ in 0..3 {
                client.write_all(b"x").await.unwrap();
                tokio::time::sleep(SHORT * 2).await;
            }
        });
        for _ in 0..3 {
            server.read_u8().await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_answer_that_nobody_reads_is_given_up() {
        let (_client, server) = tokio::io::duplex(64);
        let mut server = GuardedIo::with_limits(server, Busy::default(), SHORT, SHORT);
        let error = server.write_all(&[0; 1000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
