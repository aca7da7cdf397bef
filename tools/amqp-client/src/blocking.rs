//! A blocking connection with one channel or several: logging in, asking and being answered, ending in order. The
//! hot loops of publishers and consumers take its socket and its input and do without the rest.

use std::io::{self, Write};
use std::net::{TcpStream, ToSocketAddrs};

use nexo_amqp::codec::method::{channel, connection};
use nexo_amqp::codec::{
    AmqpMethod, Frame, FrameKind, FrameMax, Method, ShortStr, encode_heartbeat, encode_method,
};

use crate::error::{Error, refuse_close};
use crate::input::{Filled, Input};
use crate::login::{Handshake, Login};
use crate::url::AmqpUrl;
use crate::{FRAME_BYTES_MAX, PATIENCE};

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    /// The socket; reads and writes on it wait for [`PATIENCE`] at most unless somebody says otherwise.
    pub socket: TcpStream,
    /// What it brought.
    pub input: Input,
    /// The largest frame that both sides agreed on.
    pub frame_max: FrameMax,
    /// Seconds between signs of life that both sides agreed on; 0 for none.
    pub heartbeat: u16,
}

/// Size of the input buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputSize {
    /// For a connection that mostly waits: just the largest frame.
    Small,
    /// For one whose reads should bring as much as there is.
    Large,
}

impl InputSize {
    const fn bytes(self) -> usize {
        match self {
            Self::Small => FRAME_BYTES_MAX as usize,
            // Measured against 64 KiB and 1 MiB: the best of the three while broker and load share a cache.
            Self::Large => 2 * FRAME_BYTES_MAX as usize,
        }
    }
}

impl Connection {
    /// Connects, logs in and opens the virtual host, without heartbeats.
    ///
    /// # Errors
    /// If nobody answers, or the broker does not want this client.
    pub fn open(url: &AmqpUrl, size: InputSize) -> Result<Self, Error> {
        Self::open_with_heartbeat(url, size, 0)
    }

    /// The same with a heartbeat every so many seconds, if the broker agrees.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with_heartbeat(url: &AmqpUrl, size: InputSize, heartbeat: u16) -> Result<Self, Error> {
        let socket = connect(url).map_err(|source| Error::Connect { address: url.to_string(), source })?;
        let input = Input::new(size.bytes());
        let mut opened = Self { socket, input, frame_max: FrameMax::BEFORE_TUNE, heartbeat };
        let login = Login { heartbeat, ..url.login() };
        let logged_in = opened.log_in(&login);
        logged_in.map_err(|error| Error::LogIn { address: url.to_string(), source: Box::new(error) })?;
        Ok(opened)
    }

    fn log_in(&mut self, login: &Login) -> Result<(), Error> {
        let mut out = Vec::new();
        let mut handshake = Handshake::begin(login, &mut out);
        loop {
            self.write(&std::mem::take(&mut out))?;
            let agreed = self.scan_for(|_, method| handshake.take(method, &mut out).map(Some))?;
            if let Some(frame_max) = agreed {
                self.frame_max = frame_max;
                return Ok(());
            }
        }
    }

    /// Opens a channel.
    ///
    /// # Errors
    /// If the broker refuses or does not answer.
    pub fn open_channel(&mut self, number: u16) -> Result<(), Error> {
        self.call(number, &channel::Open { out_of_band: ShortStr::EMPTY }, "channel.open-ok")
    }

    /// Closes a channel. A broker does things in order: once this is answered, it has seen all that was published.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub fn close_channel(&mut self, number: u16) -> Result<(), Error> {
        let (reply_code, reply_text) = (200, ShortStr::EMPTY);
        let close = channel::Close { reply_code, reply_text, class_id: 0, method_id: 0 };
        self.call(number, &close, "channel.close-ok")
    }

    /// Says good-bye and waits for the answer.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub fn close(mut self) -> Result<(), Error> {
        let (reply_code, reply_text) = (200, ShortStr::EMPTY);
        let close = connection::Close { reply_code, reply_text, class_id: 0, method_id: 0 };
        self.call(0, &close, "connection.close-ok")
    }

    /// Sends a method and waits for its answer. What else comes on the way is passed over, except a close.
    ///
    /// # Errors
    /// If the broker refuses or does not answer.
    pub fn call<M: AmqpMethod>(&mut self, number: u16, method: &M, answer: &str) -> Result<(), Error> {
        self.send(number, method)?;
        self.wait_for(number, |method| (method.name() == answer).then_some(()))
    }

    /// Sends one method.
    ///
    /// # Errors
    /// If the broker does not take it.
    pub fn send<M: AmqpMethod>(&mut self, number: u16, method: &M) -> Result<(), Error> {
        let mut out = Vec::new();
        encode_method(&mut out, number, method);
        self.write(&out)
    }

    /// Sends a sign of life.
    ///
    /// # Errors
    /// If the broker does not take it.
    pub fn send_heartbeat(&mut self) -> Result<(), Error> {
        let mut out = Vec::new();
        encode_heartbeat(&mut out);
        self.write(&out)
    }

    /// How many signs of life have come since the last call, without waiting for any; the socket must not block.
    ///
    /// # Errors
    /// If the broker closes something, or the connection fails.
    pub fn take_heartbeats(&mut self) -> Result<u64, Error> {
        let mut count = 0;
        while self.input.fill(&self.socket).map_err(Error::Receive)? == Filled::More {
            while let Some(frame) = Frame::parse(self.input.bytes(), self.frame_max)? {
                match frame.kind {
                    FrameKind::Heartbeat => count += 1,
                    FrameKind::Method => refuse_close(&Method::decode(frame.payload)?)?,
                    FrameKind::Header | FrameKind::Body => {}
                }
                let bytes = frame.bytes();
                self.input.consume(bytes);
            }
        }
        Ok(count)
    }

    /// Sends what was encoded.
    ///
    /// # Errors
    /// If the broker does not take it.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.socket.write_all(bytes).map_err(Error::Send)
    }

    /// Whether a whole frame has come that was not looked at.
    ///
    /// # Errors
    /// If what came is no frame.
    pub fn has_frame(&self) -> Result<bool, Error> {
        Ok(Frame::parse(self.input.bytes(), self.frame_max)?.is_some())
    }

    /// Waits for a method on a channel that `pick` knows. What else comes on the way is passed over, except a close.
    ///
    /// # Errors
    /// If the broker closes something, or says nothing for too long.
    pub fn wait_for<T>(&mut self, number: u16, pick: impl Fn(&Method<'_>) -> Option<T>) -> Result<T, Error> {
        self.scan_for(|channel, method| {
            refuse_close(method)?;
            Ok(if channel == number { pick(method) } else { None })
        })
    }

    /// Shows every method that comes to `look`, until it finds something.
    fn scan_for<T>(
        &mut self,
        mut look: impl FnMut(u16, &Method<'_>) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        loop {
            while let Some(frame) = Frame::parse(self.input.bytes(), self.frame_max)? {
                let bytes = frame.bytes();
                let found = match frame.kind {
                    FrameKind::Method => look(frame.channel, &Method::decode(frame.payload)?)?,
                    FrameKind::Header | FrameKind::Body | FrameKind::Heartbeat => None,
                };
                self.input.consume(bytes);
                if let Some(found) = found {
                    return Ok(found);
                }
            }
            if self.input.fill(&self.socket).map_err(Error::Receive)? == Filled::Nothing {
                return Err(Error::Silent(PATIENCE));
            }
        }
    }
}

/// A socket on which nothing is waited for longer than [`PATIENCE`].
fn connect(url: &AmqpUrl) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "this host has no address");
    for address in (url.host.as_str(), url.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                socket.set_read_timeout(Some(PATIENCE))?;
                socket.set_write_timeout(Some(PATIENCE))?;
                return Ok(socket);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
