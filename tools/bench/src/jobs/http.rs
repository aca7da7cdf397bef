//! A connection to the HTTP API that stays open: one request after the other, or several written at once.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// How long an answer may take: far more than it does.
const PATIENCE: Duration = Duration::from_secs(60);
/// `guest:guest`.
const LOGIN: &str = "Basic Z3Vlc3Q6Z3Vlc3Q=";

/// The connection.
pub(super) struct Connection {
    socket: TcpStream,
    input: Vec<u8>,
    /// Bytes of the input that were worked on.
    done: usize,
}

impl Connection {
    pub(super) fn open(address: &str) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address).with_context(|| format!("cannot reach {address}"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket, input: Vec::with_capacity(64 << 10), done: 0 })
    }

    /// A request as bytes.
    pub(super) fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!(
            "{method} /api/jobs/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {LOGIN}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }

    /// Sends one, and gives back the body of its answer.
    pub(super) fn ask(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<String> {
        self.send(&Self::request(method, path, body))?;
        self.answer()
    }

    pub(super) fn send(&mut self, requests: &[u8]) -> anyhow::Result<()> {
        self.socket.write_all(requests).context("cannot ask")
    }

    /// The body of the next answer.
    pub(super) fn answer(&mut self) -> anyhow::Result<String> {
        loop {
            if let Some((status, body)) = self.parse()? {
                ensure!((200..300).contains(&status), "refused with {status}: {body}");
                return Ok(body);
            }
            if self.done == self.input.len() {
                self.input.clear();
                self.done = 0;
            }
            let mut read = [0; 16 << 10];
            let count = self.socket.read(&mut read).context("no answer")?;
            if count == 0 {
                bail!("the broker closed the connection");
            }
            self.input.extend_from_slice(&read[..count]);
        }
    }

    fn parse(&mut self) -> anyhow::Result<Option<(u16, String)>> {
        let input = &self.input[self.done..];
        let Some(head) = input.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
        let text = std::str::from_utf8(&input[..head]).context("an answer's head is text")?;
        let status = nexo_harness::http::status(text).context("an answer has a status")?;
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        let (start, length) = (head + 4, length.unwrap_or(0));
        let Some(body) = input.get(start..start + length) else { return Ok(None) };
        let body = String::from_utf8_lossy(body).into_owned();
        self.done += start + length;
        Ok(Some((status, body)))
    }
}
