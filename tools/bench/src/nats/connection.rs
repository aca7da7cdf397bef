//! A blocking connection to NATS, and the lines that come over it.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use memchr::memchr;
use nexo_amqp_client::{Filled, Input};

use super::NatsUrl;

/// How long a server may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Room for what one read brings.
const INPUT_BYTES: usize = 256 * 1024;
/// Where answers to requests go.
const INBOX: &str = "_INBOX.b";

/// An open connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: TcpStream,
    pub(super) input: Input,
}

/// Something that the server sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// A message: where answers to it go, if anywhere, and what it says.
    Message { reply: Option<&'a [u8]>, payload: &'a [u8] },
    /// The server wants a sign of life.
    Ping,
    /// Nothing that matters here.
    Other,
}

impl<'a> Line<'a> {
    /// What stands at the head of `buf` and how many bytes it takes; `None` until all of it has arrived.
    pub(super) fn parse(buf: &'a [u8]) -> anyhow::Result<Option<(Self, usize)>> {
        let Some(end) = memchr(b'\n', buf) else { return Ok(None) };
        let line = buf[..end].strip_suffix(b"\r").context("a line of NATS ends with CR LF")?;
        let head = end + 1;
        if let Some(fields) = line.strip_prefix(b"MSG ") {
            let mut fields = fields.rsplit(|byte| *byte == b' ');
            let size = fields.next().and_then(|size| std::str::from_utf8(size).ok()?.parse::<usize>().ok());
            let size = size.context("a message of NATS has a size")?;
            // From the end: size, then the reply if there are four fields, then the subscription and the subject.
            let third = fields.next();
            let reply = if fields.count() == 2 { third } else { None };
            let bytes = head + size + 2;
            return Ok((buf.len() >= bytes)
                .then(|| (Self::Message { reply, payload: &buf[head..head + size] }, bytes)));
        }
        if line.starts_with(b"-ERR") {
            bail!("NATS says {}", String::from_utf8_lossy(line));
        }
        Ok(Some((if line == b"PING" { Self::Ping } else { Self::Other }, head)))
    }
}

impl Connection {
    pub(super) fn open(url: &NatsUrl) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(&url.address)
            .with_context(|| format!("cannot connect to {url}; is the server running?"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut connection = Self { socket, input: Input::new(INPUT_BYTES) };
        connection.write(b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\n")?;
        connection.write(format!("SUB {INBOX}.*.{} 1\r\n", connection.number()?).as_bytes())?;
        Ok(connection)
    }

    /// Where answers to this connection alone go.
    pub(super) fn inbox(&self, what: &str) -> anyhow::Result<String> {
        Ok(format!("{INBOX}.{what}.{}", self.number()?))
    }

    /// The local port tells connections of one machine apart.
    fn number(&self) -> anyhow::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.socket.write_all(bytes).context("cannot send to NATS")
    }

    /// Sends a request and gives back the answer; an error if it is one.
    pub(super) fn ask(&mut self, subject: &str, request: &str) -> anyhow::Result<String> {
        let inbox = self.inbox("ask")?;
        self.write(format!("PUB {subject} {inbox} {}\r\n{request}\r\n", request.len()).as_bytes())?;
        loop {
            while let Some((line, bytes)) = Line::parse(self.input.bytes())? {
                let answer = match line {
                    Line::Message { payload, .. } => Some(String::from_utf8_lossy(payload).into_owned()),
                    Line::Ping | Line::Other => None,
                };
                self.input.consume(bytes);
                if let Some(answer) = answer {
                    ensure!(!answer.contains("\"error\""), "NATS refuses {subject}: {answer}");
                    return Ok(answer);
                }
            }
            let filled = self.input.fill(&self.socket).context("cannot read from NATS")?;
            ensure!(filled == Filled::More, "NATS has not answered for {PATIENCE:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_once_they_are_whole() {
        let bytes = b"MSG a.b 1 reply.to 5\r\nhello\r\nPING\r\n";
        for len in 0..29 {
            assert_eq!(Line::parse(&bytes[..len]).unwrap(), None, "{len}");
        }
        let message = Line::Message { reply: Some(b"reply.to"), payload: b"hello" };
        assert_eq!(Line::parse(bytes).unwrap(), Some((message, 29)));
        assert_eq!(Line::parse(&bytes[29..]).unwrap(), Some((Line::Ping, 6)));
    }

    #[test]
    fn a_message_may_want_no_answer() {
        let message = Line::Message { reply: None, payload: b"" };
        assert_eq!(Line::parse(b"MSG a.b 1 0\r\n\r\n").unwrap(), Some((message, 15)));
    }

    #[test]
    fn an_error_is_told() {
        let error = Line::parse(b"-ERR 'Authorization Violation'\r\n").unwrap_err();
        assert_eq!(error.to_string(), "NATS says -ERR 'Authorization Violation'");
    }
}
