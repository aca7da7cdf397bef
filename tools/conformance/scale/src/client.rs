//! A connection that does what it is told and nothing else. Every wait has an end.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::{Bytes, BytesMut};
use nexo_amqp::codec::method::{BasicMethod, basic, channel, confirm, connection, exchange, queue};
use nexo_amqp::codec::{
    AmqpMethod, ContentHeader, FRAME_HEAD_BYTES, Frame, FrameKind, FrameMax, Method, PROTOCOL_HEADER,
    ShortStr, Table, TableBuf, encode_heartbeat, encode_message, encode_method,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for anything. Far more than it takes; a trial that reaches it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
const MAX: FrameMax = FrameMax::new(131_072).expect("more than the smallest frame");
/// Properties of a persistent message.
const PERSISTENT: &[u8] = &[0x10, 0, 2];

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    input: BytesMut,
    out: Vec<u8>,
    /// The last delivery that is done with, if the broker does not know yet.
    done: Option<u64>,
}

/// A frame, out of its buffer.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) kind: FrameKind,
    payload: Bytes,
}

impl Got {
    pub(crate) fn method(&self) -> anyhow::Result<Method<'_>> {
        ensure!(self.kind == FrameKind::Method, "a method is due, not {:?}", self.kind);
        Ok(Method::decode(&self.payload)?)
    }

    fn is(&self, name: &str) -> anyhow::Result<()> {
        let method = self.method()?;
        ensure!(method.name() == name, "{name} is due, not {method:?}");
        Ok(())
    }
}

impl Client {
    /// Connects and gets as far as `connection.open-ok`; `heartbeat` is in seconds.
    pub(crate) async fn connect(address: SocketAddr, heartbeat: u16) -> anyhow::Result<Self> {
        let stream = within(TcpStream::connect(address)).await?.context("cannot connect")?;
        stream.set_nodelay(true)?;
        let mut client = Self { stream, input: BytesMut::new(), out: PROTOCOL_HEADER.to_vec(), done: None };
        client.expect("connection.start").await?;
        let mut abilities = TableBuf::new();
        abilities.put(ShortStr::from_static("connection.blocked"), true);
        let mut properties = TableBuf::new();
        properties.put(ShortStr::from_static("capabilities"), abilities.as_table());
        let start_ok = connection::StartOk {
            client_properties: properties.as_table(),
            mechanism: ShortStr::from_static("PLAIN"),
            response: b"\0guest\0guest",
            locale: ShortStr::from_static("en_US"),
        };
        client.add(0, &start_ok);
        client.expect("connection.tune").await?;
        client.add(0, &connection::TuneOk { channel_max: 2047, frame_max: MAX.bytes(), heartbeat });
        let virtual_host = ShortStr::from_static("/");
        client.add(0, &connection::Open { virtual_host, capabilities: ShortStr::EMPTY, insist: false });
        client.expect("connection.open-ok").await?;
        Ok(client)
    }

    /// Adds a method to what is sent next.
    pub(crate) fn add<M: AmqpMethod>(&mut self, number: u16, method: &M) {
        encode_method(&mut self.out, number, method);
    }

    pub(crate) fn add_heartbeat(&mut self) {
        encode_heartbeat(&mut self.out);
    }

    /// Adds a persistent message on channel 1.
    pub(crate) fn add_publish(&mut self, exchange: &str, routing_key: &str, body: &[u8]) {
        let publish = basic::Publish {
            ticket: 0,
            exchange: ShortStr::clipped(exchange.as_bytes()),
            routing_key: ShortStr::clipped(routing_key.as_bytes()),
            mandatory: false,
            immediate: false,
        };
        encode_message(&mut self.out, 1, &publish, PERSISTENT, body, MAX);
    }

    /// Sends what was added, and acknowledges what is done.
    pub(crate) async fn flush(&mut self) -> anyhow::Result<()> {
        if let Some(delivery_tag) = self.done.take() {
            self.add(1, &basic::Ack { delivery_tag, multiple: true });
        }
        if self.out.is_empty() {
            return Ok(());
        }
        within(self.stream.write_all(&self.out)).await?.context("the broker does not read")?;
        self.out.clear();
        Ok(())
    }

    /// A frame that is here already.
    fn parsed(&mut self) -> anyhow::Result<Option<Got>> {
        let Some((kind, bytes)) = Frame::parse(&self.input, MAX)?.map(|frame| (frame.kind, frame.bytes()))
        else {
            return Ok(None);
        };
        let frame = self.input.split_to(bytes).freeze();
        Ok(Some(Got { kind, payload: frame.slice(FRAME_HEAD_BYTES..bytes - 1) }))
    }

    /// The next frame of any kind; `None` at the end of the connection. What was added is sent before this waits. It may
    /// be given up and asked again.
    pub(crate) async fn next_raw(&mut self) -> anyhow::Result<Option<Got>> {
        loop {
            if let Some(got) = self.parsed()? {
                return Ok(Some(got));
            }
            self.flush().await?;
            self.input.reserve(65_536);
            if self.stream.read_buf(&mut self.input).await.unwrap_or(0) == 0 {
                return Ok(None);
            }
        }
    }

    /// The next frame that is no heartbeat.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Got> {
        loop {
            let got = within(self.next_raw()).await??.context("the broker ended the connection")?;
            if got.kind != FrameKind::Heartbeat {
                return Ok(got);
            }
        }
    }

    /// The next frame, which must be this method.
    pub(crate) async fn expect(&mut self, name: &str) -> anyhow::Result<Got> {
        let got = self.next().await?;
        got.is(name)?;
        Ok(got)
    }

    pub(crate) async fn open_channel(&mut self, number: u16) -> anyhow::Result<()> {
        self.add(number, &channel::Open { out_of_band: ShortStr::EMPTY });
        self.expect("channel.open-ok").await?;
        Ok(())
    }

    /// Says something that the broker must answer.
    pub(crate) async fn round_trip(&mut self, number: u16) -> anyhow::Result<()> {
        let declare = exchange::Declare { passive: true, ..exchange_declare("amq.direct", "direct") };
        self.add(number, &declare);
        self.expect("exchange.declare-ok").await?;
        Ok(())
    }

    pub(crate) async fn declare_exchange(&mut self, name: &str, kind: &'static str) -> anyhow::Result<()> {
        self.add(1, &exchange_declare(name, kind));
        self.expect("exchange.declare-ok").await?;
        Ok(())
    }

    pub(crate) async fn delete_exchange(&mut self, name: &str) -> anyhow::Result<()> {
        let exchange = ShortStr::clipped(name.as_bytes());
        self.add(1, &exchange::Delete { ticket: 0, exchange, if_unused: false, nowait: false });
        self.expect("exchange.delete-ok").await?;
        Ok(())
    }

    /// Declares durable queues, all at once.
    pub(crate) async fn declare_queues(&mut self, names: &[String]) -> anyhow::Result<()> {
        for name in names {
            let declare = queue::Declare {
                ticket: 0,
                queue: ShortStr::clipped(name.as_bytes()),
                passive: false,
                durable: true,
                exclusive: false,
                auto_delete: false,
                nowait: false,
                arguments: Table::EMPTY,
            };
            self.add(1, &declare);
        }
        self.expect_all(names.len(), "queue.declare-ok").await
    }

    /// Deletes queues, all at once.
    pub(crate) async fn delete_queues(&mut self, names: &[String]) -> anyhow::Result<()> {
        for name in names {
            let queue = ShortStr::clipped(name.as_bytes());
            self.add(
                1,
                &queue::Delete { ticket: 0, queue, if_unused: false, if_empty: false, nowait: false },
            );
        }
        self.expect_all(names.len(), "queue.delete-ok").await
    }

    /// Binds queues to an exchange, all at once.
    pub(crate) async fn bind<'a>(
        &mut self,
        exchange: &str,
        bindings: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
    ) -> anyhow::Result<()> {
        let count = bindings.len();
        for (queue, key) in bindings {
            let bind = queue::Bind {
                ticket: 0,
                queue: ShortStr::clipped(queue.as_bytes()),
                exchange: ShortStr::clipped(exchange.as_bytes()),
                routing_key: ShortStr::clipped(key.as_bytes()),
                nowait: false,
                arguments: Table::EMPTY,
            };
            self.add(1, &bind);
        }
        self.expect_all(count, "queue.bind-ok").await
    }

    async fn expect_all(&mut self, count: usize, name: &str) -> anyhow::Result<()> {
        for _ in 0..count {
            self.expect(name).await?;
        }
        Ok(())
    }

    pub(crate) async fn select_confirms(&mut self) -> anyhow::Result<()> {
        self.add(1, &confirm::Select { nowait: false });
        self.expect("confirm.select-ok").await?;
        Ok(())
    }

    /// Reads confirms until this one has come. Publishes may be refused by nobody here.
    pub(crate) async fn confirmed(&mut self, tag: u64) -> anyhow::Result<()> {
        loop {
            let got = self.next().await?;
            match got.method()? {
                Method::Basic(BasicMethod::Ack(ack)) if ack.delivery_tag >= tag => return Ok(()),
                Method::Basic(BasicMethod::Ack(_)) => {}
                other => bail!("a confirm is due, not {other:?}"),
            }
        }
    }

    pub(crate) async fn consume(&mut self, name: &str) -> anyhow::Result<()> {
        let consume = basic::Consume {
            ticket: 0,
            queue: ShortStr::clipped(name.as_bytes()),
            consumer_tag: ShortStr::from_static("tag"),
            no_local: false,
            no_ack: false,
            exclusive: false,
            nowait: false,
            arguments: Table::EMPTY,
        };
        self.add(1, &consume);
        self.expect("basic.consume-ok").await?;
        Ok(())
    }

    /// The body of the next delivery, if one begins to come within this time. It is acknowledged with what is sent next.
    pub(crate) async fn delivery(&mut self, wait: Duration) -> anyhow::Result<Option<Bytes>> {
        let Ok(got) = tokio::time::timeout(wait, self.next_raw()).await else { return Ok(None) };
        let got = got?.context("the broker ended the connection")?;
        let tag = match got.method()? {
            Method::Basic(BasicMethod::Deliver(deliver)) => deliver.delivery_tag,
            other => bail!("a delivery is due, not {other:?}"),
        };
        let body = self.body().await?;
        self.done = Some(tag);
        Ok(Some(body))
    }

    /// Takes one message, which is settled by that.
    pub(crate) async fn get(&mut self, name: &str) -> anyhow::Result<Option<Bytes>> {
        let queue = ShortStr::clipped(name.as_bytes());
        self.add(1, &basic::Get { ticket: 0, queue, no_ack: true });
        let got = self.next().await?;
        match got.method()? {
            Method::Basic(BasicMethod::GetEmpty(_)) => Ok(None),
            Method::Basic(BasicMethod::GetOk(_)) => Ok(Some(self.body().await?)),
            other => bail!("an answer to basic.get is due, not {other:?}"),
        }
    }

    /// The content that follows a method.
    async fn body(&mut self) -> anyhow::Result<Bytes> {
        let header = self.next().await?;
        ensure!(header.kind == FrameKind::Header, "a content header is due, not {:?}", header.kind);
        let bytes = usize::try_from(ContentHeader::decode(&header.payload)?.body_bytes)?;
        let mut body = BytesMut::new();
        while body.len() < bytes {
            let part = self.next().await?;
            if part.payload.len() == bytes {
                return Ok(part.payload);
            }
            body.extend_from_slice(&part.payload);
        }
        Ok(body.freeze())
    }
}

fn exchange_declare<'a>(name: &'a str, kind: &'static str) -> exchange::Declare<'a> {
    exchange::Declare {
        ticket: 0,
        exchange: ShortStr::clipped(name.as_bytes()),
        kind: ShortStr::from_static(kind),
        passive: false,
        durable: false,
        auto_delete: false,
        internal: false,
        nowait: false,
        arguments: Table::EMPTY,
    }
}

/// What comes of it, if that is soon enough.
pub(crate) async fn within<T>(what: impl Future<Output = T>) -> anyhow::Result<T> {
    tokio::time::timeout(PATIENCE, what).await.with_context(|| format!("no answer within {PATIENCE:?}"))
}
