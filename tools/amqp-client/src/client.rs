//! An asynchronous connection. What is to be sent is collected, and goes out while the client waits for what comes: a
//! broker that does not read is still read from. [`Client::flush`] sends without reading.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use nexo_amqp::codec::method::{basic, channel};
use nexo_amqp::codec::{
    AmqpMethod, ContentMethod, FrameKind, FrameMax, ShortStr, encode_heartbeat, encode_message, encode_method,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::assembly::{Assembly, Content};
use crate::error::Error;
use crate::frame::OwnedFrame;
use crate::login::{Handshake, Login};
use crate::messages::Incoming;

/// Room for one read.
const READ_BYTES: usize = 65_536;
/// So much that has been sent already may stand before what has not.
const SENT_BYTES_MAX: usize = 1 << 20;
/// How long a part of what is unsent may take before a connection is cut.
const CUT: Duration = Duration::from_millis(20);

/// A connection.
#[derive(Debug)]
pub struct Client {
    /// The socket, for whoever wants to say what is no AMQP.
    pub stream: TcpStream,
    /// The longest wait for anything.
    pub patience: Duration,
    frame_max: FrameMax,
    input: BytesMut,
    out: Vec<u8>,
    /// How much of `out` has been sent.
    sent: usize,
    /// A delivery to acknowledge, with all before it on its channel, when something is sent next.
    done: Option<(u16, u64)>,
    pub(crate) incoming: Incoming,
}

impl Client {
    /// Connects and says nothing.
    ///
    /// # Errors
    /// If nobody takes the connection in time.
    pub async fn begin(address: SocketAddr, patience: Duration) -> Result<Self, Error> {
        let connected = async {
            let stream = TcpStream::connect(address).await?;
            // Clients send what they have; a write that waits for the last one to be acknowledged takes 40 ms.
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let connected = timeout(patience, connected).await.map_err(|_| Error::Silent(patience))?;
        let stream = connected.map_err(|source| Error::Connect { address: address.to_string(), source })?;
        Ok(Self {
            stream,
            patience,
            frame_max: crate::FRAME_MAX,
            input: BytesMut::new(),
            out: Vec::new(),
            sent: 0,
            done: None,
            incoming: Incoming::default(),
        })
    }

    /// Connects and gets as far as `connection.open-ok`.
    ///
    /// # Errors
    /// If that does not work in time.
    pub async fn connect(address: SocketAddr, login: &Login, patience: Duration) -> Result<Self, Error> {
        let mut client = Self::begin(address, patience).await?;
        let logged_in = timeout(patience, client.log_in(login)).await;
        let logged_in = logged_in.unwrap_or(Err(Error::Silent(patience)));
        logged_in.map_err(|error| Error::LogIn { address: address.to_string(), source: Box::new(error) })?;
        Ok(client)
    }

    async fn log_in(&mut self, login: &Login) -> Result<(), Error> {
        let mut handshake = Handshake::begin(login, &mut self.out);
        loop {
            let frame = self.next().await?;
            if let Some(frame_max) = handshake.take(&frame.method()?, &mut self.out)? {
                self.frame_max = frame_max;
                return Ok(());
            }
        }
    }

    /// Adds a method to what is sent next.
    pub fn add<M: AmqpMethod>(&mut self, channel: u16, method: &M) {
        encode_method(&mut self.out, channel, method);
    }

    /// Adds a message to what is sent next.
    pub fn add_message<M: ContentMethod>(
        &mut self,
        channel: u16,
        method: &M,
        properties: &[u8],
        body: &[u8],
    ) {
        encode_message(&mut self.out, channel, method, properties, body, self.frame_max);
    }

    /// Adds a sign of life to what is sent next.
    pub fn add_heartbeat(&mut self) {
        encode_heartbeat(&mut self.out);
    }

    /// Adds bytes to what is sent next, be they AMQP or not.
    pub fn add_raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Acknowledges a delivery and all before it, together with what is sent next. Of several only the last one is said.
    pub fn acknowledge_through(&mut self, channel: u16, delivery_tag: u64) {
        match &self.done {
            Some((other, tag)) if *other != channel => {
                let (other, delivery_tag) = (*other, *tag);
                self.add(other, &basic::Ack { delivery_tag, multiple: true });
            }
            Some(_) | None => {}
        }
        self.done = Some((channel, delivery_tag));
    }

    /// How many bytes the broker has not taken yet.
    #[must_use]
    pub const fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends what was added, and reads nothing meanwhile.
    ///
    /// # Errors
    /// If the broker does not take it in time.
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.say_what_is_done();
        while self.unsent() > 0 {
            let written = timeout(self.patience, self.stream.write(&self.out[self.sent..])).await;
            let written = written.map_err(|_| Error::NotReading(self.patience))?.map_err(Error::Send)?;
            self.drop_sent(written);
        }
        Ok(())
    }

    /// The next frame of any kind, or `None` at the end of the connection. What was added is sent meanwhile. This waits as
    /// long as it takes; it may be dropped and called again.
    ///
    /// # Errors
    /// If the connection fails, or what comes is no frame.
    pub async fn next_frame(&mut self) -> Result<Option<OwnedFrame>, Error> {
        loop {
            if let Some(frame) = OwnedFrame::take(&mut self.input, self.frame_max)? {
                return Ok(Some(frame));
            }
            self.say_what_is_done();
            self.input.reserve(READ_BYTES);
            let (mut reader, mut writer) = self.stream.split();
            tokio::select! {
                read = reader.read_buf(&mut self.input) => if read.map_err(Error::Receive)? == 0 {
                    return Ok(None);
                },
                written = writer.write(&self.out[self.sent..]), if self.sent < self.out.len() => {
                    self.drop_sent(written.map_err(Error::Send)?);
                }
            }
        }
    }

    /// The next frame that is no heartbeat.
    ///
    /// # Errors
    /// If none comes in time, or the connection ends.
    pub async fn next(&mut self) -> Result<OwnedFrame, Error> {
        loop {
            let frame = timeout(self.patience, self.next_frame()).await;
            let frame = frame.map_err(|_| Error::Silent(self.patience))??.ok_or(Error::Ended)?;
            if frame.kind != FrameKind::Heartbeat {
                return Ok(frame);
            }
        }
    }

    /// The next frame, which must be this method.
    ///
    /// # Errors
    /// As [`Self::next`], or if something else comes.
    pub async fn expect(&mut self, name: &str) -> Result<OwnedFrame, Error> {
        let frame = self.next().await?;
        frame.expect(name)?;
        Ok(frame)
    }

    /// The same method so many times.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub async fn expect_all(&mut self, count: usize, name: &str) -> Result<(), Error> {
        for _ in 0..count {
            self.expect(name).await?;
        }
        Ok(())
    }

    /// Sends a method and waits for its answer, which must come before anything else.
    ///
    /// # Errors
    /// As [`Self::expect`].
    pub async fn call<M: AmqpMethod>(
        &mut self,
        channel: u16,
        method: &M,
        answer: &str,
    ) -> Result<OwnedFrame, Error> {
        self.add(channel, method);
        self.expect(answer).await
    }

    /// The content that follows a method which was read as a frame.
    ///
    /// # Errors
    /// As [`Self::next`], or if something else comes.
    pub async fn content(&mut self) -> Result<Content, Error> {
        let mut content = Assembly::begin(&self.next().await?)?;
        while !content.is_complete() {
            content.add(&self.next().await?)?;
        }
        Ok(content.finish())
    }

    /// Opens a channel.
    ///
    /// # Errors
    /// If the broker refuses or does not answer.
    pub async fn open_channel(&mut self, number: u16) -> Result<(), Error> {
        let open = channel::Open { out_of_band: ShortStr::EMPTY };
        self.call(number, &open, "channel.open-ok").await?;
        Ok(())
    }

    /// Closes a channel.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub async fn close_channel(&mut self, number: u16) -> Result<(), Error> {
        let (reply_code, reply_text) = (200, ShortStr::EMPTY);
        let close = channel::Close { reply_code, reply_text, class_id: 0, method_id: 0 };
        self.call(number, &close, "channel.close-ok").await?;
        Ok(())
    }

    /// Ends the connection with a reset, after so many bytes of what was still to be sent: most likely within a frame.
    pub async fn cut(mut self, bytes: usize) {
        let end = (self.sent + bytes).min(self.out.len());
        // Whatever goes out before the reset is well; the broker may not listen.
        let _ = timeout(CUT, self.stream.write(&self.out[self.sent..end])).await;
        let _ = self.stream.set_zero_linger();
    }

    fn say_what_is_done(&mut self) {
        if let Some((channel, delivery_tag)) = self.done.take() {
            self.add(channel, &basic::Ack { delivery_tag, multiple: true });
        }
    }

    fn drop_sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        } else if self.sent >= SENT_BYTES_MAX {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }
}
