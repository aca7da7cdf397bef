//! The firehose: while it is on in a connection's virtual host, what is published and delivered there is copied for
//! `amq.rabbitmq.trace` as RabbitMQ does it: the body as it is, everything else in the headers. `observe.rs` publishes the copies.
//!
//! A session looks once for each read and each write whether it is on ([`Session::look_for_traces`]).

use bytes::Bytes;
use nexo_broker::{OpenConnection, TRACE_EXCHANGE, TracedMessage};
use nexo_types::{ExchangeName, VhostName};

use super::deliver::Head;
use super::publish::Incoming;
use super::routing::Target;
use super::session::Session;
use crate::codec::{ArrayBuf, Properties, PropertiesBuilder, ShortStr, TableBuf, Value};

/// What copies tell of the connection that they come from.
#[derive(Debug)]
pub(super) struct Tracer<'a> {
    pub(super) broker: &'a nexo_broker::Broker,
    pub(super) vhost: &'a VhostName,
    pub(super) shown: &'a OpenConnection,
}

impl Session {
    /// Looks whether messages are copied now. One load as long as nobody wants that.
    pub(super) fn look_for_traces(&mut self) {
        self.traces = self.shared.broker.firehose().is_on(&self.vhost);
    }
}

impl Tracer<'_> {
    /// Copies a message that was published, and names the queues that it goes to.
    pub(super) fn published(
        &self,
        channel: u16,
        incoming: &Incoming<'_>,
        targets: &[std::sync::Arc<Target>],
    ) {
        let mut headers = self.headers(channel, incoming.exchange, incoming.routing_key, incoming.properties);
        let mut queues = ArrayBuf::new();
        for target in targets {
            queues.push(target.queue.name().as_str());
        }
        headers.put(ShortStr::from_static("routed_queues"), queues.as_array());
        let body = Bytes::copy_from_slice(incoming.body.as_slice());
        self.copy(&[b"publish.", incoming.exchange].concat(), &headers, body);
    }

    /// Copies a message that is delivered. Copies themselves are not copied.
    pub(super) fn delivered(
        &self,
        channel: u16,
        queue: &str,
        redelivered: bool,
        head: &Head<'_>,
        body: &[u8],
    ) {
        if head.exchange == TRACE_EXCHANGE.as_bytes() {
            return;
        }
        let mut headers = self.headers(channel, head.exchange, head.routing_key, &head.properties);
        headers.put(ShortStr::from_static("redelivered"), Value::I8(redelivered.into()));
        self.copy(&[b"deliver.", queue.as_bytes()].concat(), &headers, Bytes::copy_from_slice(body));
    }

    fn headers(&self, channel: u16, exchange: &[u8], routing_key: &[u8], properties: &[u8]) -> TableBuf {
        let text = |bytes| Value::LongStr(bytes);
        let mut keys = ArrayBuf::new();
        keys.push(text(routing_key));
        let facts = self.shown.facts();
        let mut headers = TableBuf::new();
        headers
            .put(ShortStr::from_static("exchange_name"), text(exchange))
            .put(ShortStr::from_static("routing_keys"), keys.as_array())
            .put(ShortStr::from_static("properties"), properties_table(properties).as_table())
            .put(ShortStr::from_static("node"), nexo_broker::node_name())
            .put(ShortStr::from_static("vhost"), self.vhost.as_str())
            .put(ShortStr::from_static("connection"), self.shown.name())
            .put(ShortStr::from_static("channel"), Value::I32(channel.into()))
            .put(ShortStr::from_static("user"), facts.user.as_str());
        headers
    }

    fn copy(&self, routing_key: &[u8], headers: &TableBuf, body: Bytes) {
        let Ok(exchange) = ExchangeName::at(self.vhost, TRACE_EXCHANGE) else { return };
        let routing_key = ShortStr::clipped(routing_key).as_bytes().to_vec();
        let properties = PropertiesBuilder::new().headers(headers.as_table()).to_vec();
        self.broker.firehose().add(TracedMessage { exchange, routing_key, properties, body });
    }
}

/// The properties of a message as a table, by their names.
fn properties_table(raw: &[u8]) -> TableBuf {
    let mut table = TableBuf::new();
    let Ok(read) = Properties::parse(raw) else { return table };
    let texts = [
        ("content_type", read.content_type()),
        ("content_encoding", read.content_encoding()),
        ("correlation_id", read.correlation_id()),
        ("reply_to", read.reply_to()),
        ("expiration", read.expiration()),
        ("message_id", read.message_id()),
        ("type", read.kind()),
        ("user_id", read.user_id()),
        ("app_id", read.app_id()),
        ("cluster_id", read.cluster_id()),
    ];
    for (name, text) in &texts {
        if let Some(text) = text {
            table.put(ShortStr::clipped(name.as_bytes()), Value::LongStr(text.as_bytes()));
        }
    }
    if let Some(headers) = read.headers() {
        table.put(ShortStr::from_static("headers"), headers);
    }
    if let Some(mode) = read.delivery_mode() {
        table.put(ShortStr::from_static("delivery_mode"), Value::I32(mode.into()));
    }
    if let Some(priority) = read.priority() {
        table.put(ShortStr::from_static("priority"), Value::I32(priority.into()));
    }
    if let Some(seconds) = read.timestamp() {
        table.put(ShortStr::from_static("timestamp"), Value::Timestamp(seconds));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_told_by_their_names() {
        let mut headers = TableBuf::new();
        headers.put(ShortStr::from_static("h"), 1_i64);
        let raw = PropertiesBuilder::new().headers(headers.as_table()).delivery_mode(2).priority(3).to_vec();
        let table = properties_table(&raw);
        let table = table.as_table();
        assert_eq!(table.get("delivery_mode").unwrap().as_integer(), Some(2));
        assert_eq!(table.get("priority").unwrap().as_integer(), Some(3));
        assert_eq!(table.get("headers").unwrap().as_table().unwrap().get("h").unwrap().as_integer(), Some(1));
        assert!(table.get("timestamp").is_none() && properties_table(b"x").as_table().is_empty());
    }
}
