//! One HTTP request on a connection of its own.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::Context;

/// Most bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The status line and the headers.
    pub head: String,
    /// The body.
    pub body: String,
}

/// `GET path`, answered within this time.
///
/// # Errors
/// If nobody answers in time, or not with HTTP.
pub fn get(address: impl ToSocketAddrs, path: &str, patience: Duration) -> anyhow::Result<Answer> {
    exchange(address, &request("GET", path, "Host: localhost\r\n", ""), patience)
}

/// The text of a request, after whose answer the connection is closed. `head` is whole header lines.
#[must_use]
pub fn request(method: &str, path: &str, head: &str, body: &str) -> String {
    let length = match (method, body.len()) {
        ("GET", 0) => String::new(),
        (_, length) => format!("Content-Length: {length}\r\n"),
    };
    format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{head}{length}\r\n{body}")
}

/// Sends these bytes and reads to the end; each step may take so long.
///
/// # Errors
/// As [`get`].
pub fn exchange(address: impl ToSocketAddrs, request: &str, patience: Duration) -> anyhow::Result<Answer> {
    let mut socket = TcpStream::connect(address).context("not reachable")?;
    socket.set_read_timeout(Some(patience))?;
    socket.set_write_timeout(Some(patience))?;
    socket.write_all(request.as_bytes()).context("cannot ask")?;
    let mut answer = Vec::new();
    socket.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).context("no answer")?;
    parse(&String::from_utf8_lossy(&answer))
}

/// The number in the first line of an answer.
#[must_use]
pub fn status(answer: &str) -> Option<u16> {
    answer.strip_prefix("HTTP/1.1 ")?.split_whitespace().next()?.parse().ok()
}

fn parse(answer: &str) -> anyhow::Result<Answer> {
    let status = status(answer).context("no status")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no end of its headers")?;
    Ok(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_status_its_head_and_its_body() {
        let answer = parse("HTTP/1.1 503 Service Unavailable\r\nx: y\r\n\r\nthe disk is full").unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (503, "the disk is full"));
        assert!(answer.head.ends_with("x: y"));
        for text in ["", "SSH-2.0", "HTTP/1.1 200 OK\r\n"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_request_tells_its_length() {
        assert_eq!(request("GET", "/", "", ""), "GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
        let post = request("POST", "/", "Host: x\r\n", "ab");
        assert_eq!(post, "POST / HTTP/1.1\r\nConnection: close\r\nHost: x\r\nContent-Length: 2\r\n\r\nab");
    }
}
