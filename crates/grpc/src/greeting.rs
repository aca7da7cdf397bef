//! Listening to the first bytes that a server says, to tell another protocol's port from a native one. A client that
//! was pointed at the wrong port would otherwise hear of a lost connection, and search for the wrong fault.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tonic::transport::Uri;
use tower_service::Service;

/// How long to wait for the first bytes. A server that is only slow is given the benefit of the doubt.
const PATIENCE: Duration = Duration::from_secs(5);
/// Enough bytes to tell protocols apart: HTTP/2 begins with the head of a frame, whose fourth byte is its type.
const ENOUGH: usize = 5;
/// The type of the frame that an HTTP/2 server says first.
const SETTINGS: u8 = 4;

/// What has been heard so far.
#[derive(Clone, Debug, Default)]
struct Heard {
    bytes: Vec<u8>,
    closed: bool,
}

/// The first words of a server.
pub(crate) struct Greeting(watch::Receiver<Heard>);

impl Greeting {
    /// What the server speaks, if it is not HTTP/2.
    pub(crate) async fn speaks(mut self) -> Option<&'static str> {
        let told = |heard: &Heard| heard.closed || heard.bytes.len() >= ENOUGH;
        match tokio::time::timeout(PATIENCE, self.0.wait_for(told)).await {
            Ok(Ok(heard)) => other_protocol(&heard.bytes),
            // Nothing in time, or nobody left to listen: the first call will say what is wrong.
            Ok(Err(_)) | Err(_) => None,
        }
    }
}

fn other_protocol(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [b'A', b'M', b'Q', b'P', ..] => Some("AMQP"),
        [b'H', b'T', b'T', b'P', ..] => Some("HTTP/1.1 (is it the SQS API, or the management port?)"),
        [_, _, _, SETTINGS, ..] => None,
        [] => Some("no HTTP/2 (is it the SQS API, the management port, or another program?)"),
        _ => Some("another protocol"),
    }
}

/// Opens connections whose first bytes are listened to.
#[derive(Clone)]
pub(crate) struct Connector(Arc<watch::Sender<Heard>>);

impl Connector {
    pub(crate) fn new() -> (Self, Greeting) {
        let (heard, greeting) = watch::channel(Heard::default());
        (Self(Arc::new(heard)), Greeting(greeting))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Listened>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let heard = Arc::clone(&self.0);
        Box::pin(async move {
            let host =
                uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
            let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(Listened { stream, heard: Some(heard) }))
        })
    }
}

/// A connection whose first bytes are listened to.
pub(crate) struct Listened {
    stream: TcpStream,
    /// Gone once enough has been heard.
    heard: Option<Arc<watch::Sender<Heard>>>,
}

impl Listened {
    fn note(&mut self, read: &Poll<io::Result<()>>, new: &[u8]) {
        let closed = match read {
            Poll::Pending => return,
            Poll::Ready(Ok(())) => new.is_empty(),
            Poll::Ready(Err(_)) => true,
        };
        let Some(heard) = &self.heard else { return };
        let mut enough = false;
        heard.send_modify(|heard| {
            heard.bytes.extend_from_slice(&new[..new.len().min(ENOUGH)]);
            heard.closed |= closed;
            enough = heard.closed || heard.bytes.len() >= ENOUGH;
        });
        if enough {
            self.heard = None;
        }
    }
}

impl AsyncRead for Listened {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.heard.is_some() {
            self.note(&read, &buf.filled()[before..]);
        }
        read
    }
}

impl AsyncWrite for Listened {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_told_apart_by_their_first_bytes() {
        assert_eq!(other_protocol(&[0, 0, 18, SETTINGS, 0]), None);
        assert_eq!(other_protocol(b"AMQP\0"), Some("AMQP"));
        assert!(other_protocol(b"HTTP/").unwrap().starts_with("HTTP/1.1"));
        assert!(other_protocol(b"").unwrap().starts_with("no HTTP/2"));
        assert_eq!(other_protocol(b"+OK R"), Some("another protocol"));
    }
}
