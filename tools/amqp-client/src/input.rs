//! The bytes that a socket brought and nobody has looked at yet, in one buffer that never grows.

use std::io::{self, Read};
use std::net::TcpStream;

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// More bytes than before.
    More,
    /// None within the time that the socket waits.
    Nothing,
}

/// A buffer between a socket and whoever scans its bytes.
#[derive(Debug)]
pub struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// A buffer of this size, which must hold the largest frame. Pages that are not written to cost nothing.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self { buffer: vec![0; bytes], start: 0, end: 0 }
    }

    /// What has not been consumed.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether nothing more can come before something is consumed.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.end - self.start == self.buffer.len()
    }

    /// Steps over bytes that were looked at.
    #[inline]
    pub fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end, "more was consumed than had come");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// One read into whatever space is left, for as long as the socket waits.
    ///
    /// # Errors
    /// If the read fails, or the connection has ended.
    pub fn fill(&mut self, mut socket: &TcpStream) -> io::Result<Filled> {
        if self.start > 0 {
            // What is left is less than one frame, so this moves little, and the read has all the space.
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        loop {
            return match socket.read(&mut self.buffer[self.end..]) {
                Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the broker ended the connection")),
                Ok(count) => {
                    self.end += count;
                    Ok(Filled::More)
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(Filled::Nothing),
                    _ => Err(error),
                },
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn what_was_not_consumed_stays_at_the_head() {
        let (mut from, to) = pair();
        let mut input = Input::new(8);
        from.write_all(b"abcdefgh").unwrap();
        while input.bytes().len() < 8 {
            input.fill(&to).unwrap();
        }
        input.consume(6);
        from.write_all(b"ijklmn").unwrap();
        while input.bytes().len() < 8 {
            input.fill(&to).unwrap();
        }
        assert_eq!(input.bytes(), b"ghijklmn");
        assert!(input.is_full());
    }

    #[test]
    fn silence_is_told_from_the_end() {
        let (from, to) = pair();
        to.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut input = Input::new(8);
        assert_eq!(input.fill(&to).unwrap(), Filled::Nothing);
        drop(from);
        assert_eq!(input.fill(&to).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
