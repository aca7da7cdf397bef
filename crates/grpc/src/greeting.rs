//! Listening to the first bytes that a server says, to tell another protocol's port from a native one. A client that
//! was pointed at the wrong port would otherwise hear of a lost connection, and search for the wrong fault.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::Uri;
use tower_service::Service;

/// How long to wait for the first bytes. A server that is only slow is given the benefit of the doubt.
const PATIENCE: Duration = Duration::from_secs(5);
/// Enough bytes to tell protocols apart: HTTP/2 begins with the head of a frame, whose fourth byte is its type.
const ENOUGH: usize = 5;
/// The type of the frame that an HTTP/2 server says first.
const SETTINGS: u8 = 4;
/// How TLS begins to say that it does not understand.
const TLS_ALERT: [u8; 2] = [21, 3];

/// What has been heard so far.
#[derive(Clone, Debug, Default)]
struct Heard {
    bytes: Vec<u8>,
    closed: bool,
    /// Why TLS came to its end. A server that wants a certificate says so only after the handshake.
    refused: Option<String>,
}

/// What the first words of a server mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may well be a native API.
    Native,
    /// It speaks something else.
    Other(&'static str),
    /// It speaks TLS, and not with us.
    Refused(String),
}

/// The first words of a server.
pub(crate) struct Greeting(watch::Receiver<Heard>);

impl Greeting {
    /// What becomes clear before long.
    pub(crate) async fn verdict(mut self) -> Verdict {
        let told = |heard: &Heard| heard.closed || heard.bytes.len() >= ENOUGH;
        match tokio::time::timeout(PATIENCE, self.0.wait_for(told)).await {
            Ok(Ok(heard)) => match &heard.refused {
                Some(reason) => Verdict::Refused(reason.clone()),
                None => other_protocol(&heard.bytes).map_or(Verdict::Native, Verdict::Other),
            },
            // Nothing in time, or nobody left to listen: the first call will say what is wrong.
            Ok(Err(_)) | Err(_) => Verdict::Native,
        }
    }
}

fn other_protocol(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [b'A', b'M', b'Q', b'P', ..] => Some("AMQP"),
        [b'H', b'T', b'T', b'P', ..] => Some("HTTP/1.1 (is it the SQS API, or the management port?)"),
        [first, second, ..] if [*first, *second] == TLS_ALERT => Some("TLS (ask for it with https://)"),
        [_, _, _, SETTINGS, ..] => None,
        [] => Some(
            "no HTTP/2 (is it the SQS API, the management port, another program, or a node of a cluster without a leader?)",
        ),
        _ => Some("another protocol"),
    }
}

/// A server with which keys cannot be agreed on.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct TlsFailed(String);

impl TlsFailed {
    /// Whether it is the cause of an error.
    pub(crate) fn find<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            if let Some(found) = wrapped.and_then(|wrapped| wrapped.downcast_ref()) {
                return Some(found);
            }
            cause = error.source();
        }
        None
    }
}

/// Opens connections whose first bytes are listened to.
#[derive(Clone)]
pub(crate) struct Connector {
    heard: Arc<watch::Sender<Heard>>,
    tls: Option<Arc<ClientConfig>>,
}

impl Connector {
    pub(crate) fn new(tls: Option<Arc<ClientConfig>>) -> (Self, Greeting) {
        let (heard, greeting) = watch::channel(Heard::default());
        (Self { heard: Arc::new(heard), tls }, Greeting(greeting))
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
        let (heard, tls) = (Arc::clone(&self.heard), self.tls.clone());
        Box::pin(async move {
            let host =
                uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
            let socket = TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(80))).await?;
            socket.set_nodelay(true)?;
            let stream = match tls {
                None => Stream::Plain(socket),
                Some(tls) => Stream::Tls(Box::new(secure(tls, host, socket).await?)),
            };
            Ok(TokioIo::new(Listened { stream, heard: Some(heard) }))
        })
    }
}

/// Agrees on keys with a server, which must have a certificate for this name.
async fn secure(tls: Arc<ClientConfig>, host: String, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let failed = |error: &dyn Error| io::Error::other(TlsFailed(error.to_string()));
    let name = ServerName::try_from(host).map_err(|error| failed(&error))?;
    TlsConnector::from(tls).connect(name, socket).await.map_err(|error| failed(&error))
}

/// Plain TCP, or TLS over it.
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection whose first bytes are listened to.
pub(crate) struct Listened {
    stream: Stream,
    /// Gone once enough has been heard.
    heard: Option<Arc<watch::Sender<Heard>>>,
}

impl Listened {
    fn note(&mut self, read: &Poll<io::Result<()>>, new: &[u8]) {
        let (closed, failure) = match read {
            Poll::Pending => return,
            Poll::Ready(Ok(())) => (new.is_empty(), None),
            Poll::Ready(Err(error)) => (true, Some(error)),
        };
        let is_tls = matches!(self.stream, Stream::Tls(_));
        let Some(heard) = &self.heard else { return };
        let mut enough = false;
        heard.send_modify(|heard| {
            heard.bytes.extend_from_slice(&new[..new.len().min(ENOUGH)]);
            heard.closed |= closed;
            heard.refused = failure.filter(|_| is_tls).map(ToString::to_string);
            enough = heard.closed || heard.bytes.len() >= ENOUGH;
        });
        if enough {
            self.heard = None;
        }
    }

    /// A server that wants a certificate may be gone before its reason was read: then nothing can be sent to it.
    fn note_unsent<T>(&mut self, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &sent
            && matches!(self.stream, Stream::Tls(_))
            && let Some(heard) = self.heard.take()
        {
            heard.send_modify(|heard| {
                heard.closed = true;
                heard.refused = Some(format!("the server ended the connection ({error})"));
            });
        }
        sent
    }
}

impl AsyncRead for Listened {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        if self.heard.is_some() {
            self.note(&read, &buf.filled()[before..]);
        }
        read
    }
}

impl AsyncWrite for Listened {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let sent = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        };
        self.note_unsent(sent)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        };
        self.note_unsent(sent)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        };
        self.note_unsent(sent)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
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
        assert!(other_protocol(&[21, 3, 3, 0, 2]).unwrap().starts_with("TLS"));
    }
}
