//! A blocking connection with one channel or several: logging in, asking and being answered, ending in order. The
//! hot loops of publishers and consumers take its socket and its input and do without the rest.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nexo_amqp::codec::method::{ChannelMethod, ConnectionMethod, channel, connection};
use nexo_amqp::codec::{
    AmqpMethod, Frame, FrameKind, FrameMax, Method, PROTOCOL_HEADER, ShortStr, TableBuf, encode_heartbeat,
    encode_method,
};

use super::url::AmqpUrl;
use crate::input::{Filled, Input};

/// The largest frame we ask for: what RabbitMQ offers by default.
pub(crate) const FRAME_BYTES_MAX: u32 = 131_072;
/// How long a broker may take to answer or to read on before we say that it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: TcpStream,
    pub(crate) input: Input,
    pub(crate) frame_max: FrameMax,
    /// Seconds between signs of life that both sides agreed on; 0 for none.
    pub(crate) heartbeat: u16,
}

/// Size of the input buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputSize {
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
    pub(crate) fn open(url: &AmqpUrl, size: InputSize) -> anyhow::Result<Self> {
        Self::open_with_heartbeat(url, size, 0)
    }

    /// The same with a heartbeat every so many seconds, if the broker agrees.
    pub(crate) fn open_with_heartbeat(
        url: &AmqpUrl,
        size: InputSize,
        heartbeat: u16,
    ) -> anyhow::Result<Self> {
        let socket = TcpStream::connect((url.host.as_str(), url.port))
            .with_context(|| format!("cannot connect to {url}; is the broker running?"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let input = Input::new(size.bytes());
        let mut opened = Self { socket, input, frame_max: FrameMax::BEFORE_TUNE, heartbeat };
        opened.log_in(url).with_context(|| format!("cannot log in to {url}"))?;
        Ok(opened)
    }

    fn log_in(&mut self, url: &AmqpUrl) -> anyhow::Result<()> {
        self.write(&PROTOCOL_HEADER)?;
        self.wait_for(0, |method| match method {
            Method::Connection(ConnectionMethod::Start(_)) => Some(()),
            _ => None,
        })?;
        let mut abilities = TableBuf::new();
        abilities.put(ShortStr::from_static("connection.blocked"), true);
        abilities.put(ShortStr::from_static("publisher_confirms"), true);
        abilities.put(ShortStr::from_static("basic.nack"), true);
        let mut properties = TableBuf::new();
        properties.put(ShortStr::from_static("product"), "nexo bench");
        properties.put(ShortStr::from_static("capabilities"), abilities.as_table());
        let response = format!("\0{}\0{}", url.user, url.password);
        self.send(
            0,
            &connection::StartOk {
                client_properties: properties.as_table(),
                mechanism: ShortStr::from_static("PLAIN"),
                response: response.as_bytes(),
                locale: ShortStr::from_static("en_US"),
            },
        )?;
        let offered = self.wait_for(0, |method| match method {
            Method::Connection(ConnectionMethod::Tune(tune)) => Some(*tune),
            _ => None,
        })?;
        // 0 in an offer means that there is no limit.
        let frame_max = if offered.frame_max == 0 { FRAME_BYTES_MAX } else { offered.frame_max };
        let frame_max = frame_max.min(FRAME_BYTES_MAX);
        self.frame_max = FrameMax::new(frame_max).context("the broker's largest frame is too small")?;
        self.send(
            0,
            &connection::TuneOk { channel_max: offered.channel_max, frame_max, heartbeat: self.heartbeat },
        )?;
        let virtual_host = short(&url.virtual_host)?;
        self.send(0, &connection::Open { virtual_host, capabilities: ShortStr::EMPTY, insist: false })?;
        self.wait_for(0, |method| match method {
            Method::Connection(ConnectionMethod::OpenOk(_)) => Some(()),
            _ => None,
        })
    }

    /// Opens a channel.
    pub(crate) fn open_channel(&mut self, number: u16) -> anyhow::Result<()> {
        self.send(number, &channel::Open { out_of_band: ShortStr::EMPTY })?;
        self.wait_for(number, |method| match method {
            Method::Channel(ChannelMethod::OpenOk(_)) => Some(()),
            _ => None,
        })
    }

    /// Closes a channel. A broker does things in order: once this is answered, it has seen all that was published.
    pub(crate) fn close_channel(&mut self, number: u16) -> anyhow::Result<()> {
        let (reply_code, reply_text) = (200, ShortStr::EMPTY);
        self.send(number, &channel::Close { reply_code, reply_text, class_id: 0, method_id: 0 })?;
        self.wait_for(number, |method| match method {
            Method::Channel(ChannelMethod::CloseOk(_)) => Some(()),
            _ => None,
        })
    }

    /// Says good-bye and waits for the answer.
    pub(crate) fn close(mut self) -> anyhow::Result<()> {
        let (reply_code, reply_text) = (200, ShortStr::EMPTY);
        self.send(0, &connection::Close { reply_code, reply_text, class_id: 0, method_id: 0 })?;
        self.wait_for(0, |method| match method {
            Method::Connection(ConnectionMethod::CloseOk(_)) => Some(()),
            _ => None,
        })
    }

    /// Sends one method.
    pub(crate) fn send<M: AmqpMethod>(&mut self, number: u16, method: &M) -> anyhow::Result<()> {
        let mut out = Vec::new();
        encode_method(&mut out, number, method);
        self.write(&out)
    }

    /// Sends a sign of life.
    pub(crate) fn send_heartbeat(&mut self) -> anyhow::Result<()> {
        let mut out = Vec::new();
        encode_heartbeat(&mut out);
        self.write(&out)
    }

    /// How many signs of life have come since the last call, without waiting for any; the socket must not block.
    pub(crate) fn take_heartbeats(&mut self) -> anyhow::Result<u64> {
        let mut count = 0;
        while self.input.fill(&self.socket)? == Filled::More {
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
    pub(crate) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.socket.write_all(bytes).context("cannot send to the broker")
    }

    /// Whether a whole frame has come that was not looked at.
    pub(crate) fn has_frame(&self) -> anyhow::Result<bool> {
        Ok(Frame::parse(self.input.bytes(), self.frame_max)?.is_some())
    }

    /// Waits for a method on a channel that `pick` knows. What else comes on the way is passed over, except a close.
    pub(crate) fn wait_for<T>(
        &mut self,
        number: u16,
        pick: impl Fn(&Method<'_>) -> Option<T>,
    ) -> anyhow::Result<T> {
        loop {
            while let Some(frame) = Frame::parse(self.input.bytes(), self.frame_max)? {
                let bytes = frame.bytes();
                let mut found = None;
                if frame.kind == FrameKind::Method {
                    let method = Method::decode(frame.payload)?;
                    refuse_close(&method)?;
                    if frame.channel == number {
                        found = pick(&method);
                    }
                }
                self.input.consume(bytes);
                if let Some(found) = found {
                    return Ok(found);
                }
            }
            let filled = self.input.fill(&self.socket).context("cannot read from the broker")?;
            ensure!(filled == Filled::More, "the broker has not answered for {PATIENCE:?}");
        }
    }
}

/// An error if the broker ends the connection or the channel, with the reason that it gives.
pub(crate) fn refuse_close(method: &Method<'_>) -> anyhow::Result<()> {
    let (what, code, text) = match method {
        Method::Connection(ConnectionMethod::Close(close)) => {
            ("connection", close.reply_code, close.reply_text)
        }
        Method::Channel(ChannelMethod::Close(close)) => ("channel", close.reply_code, close.reply_text),
        _ => return Ok(()),
    };
    bail!("the broker closed the {what}: {code} {}", String::from_utf8_lossy(text.as_bytes()))
}

/// A name as the protocol carries it.
pub(crate) fn short(text: &str) -> anyhow::Result<ShortStr<'_>> {
    ShortStr::new(text.as_bytes()).map_err(|_| anyhow::anyhow!("'{text}' is longer than 255 bytes"))
}
