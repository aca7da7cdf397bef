//! What the broker tells of itself, as messages: events to `amq.rabbitmq.event`, and the firehose's copies to
//! `amq.rabbitmq.trace`. The broker collects both in bounded lines; here they get AMQP's form and go to the queues that are
//! bound there. Nobody who is told of waits for it.
//!
//! Nothing that is published here makes an event or is traced.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::join_all;
use nexo_broker::{
    Broker, Durability, EVENT_EXCHANGE, Event, EventValue, NewMessage, PriorityCap,
    Properties as StoredProperties, PropertyFormat, Telling, TracedMessage,
};
use nexo_types::{ExchangeName, QueueId, VhostName};

use crate::address::Address;
use crate::codec::{ArrayBuf, Properties, PropertiesBuilder, ShortStr, Table, TableBuf, Value};
use crate::headers::MessageHeaders;

/// What is told in one turn: it shares a sync, and then others have the thread.
const TOLD_AT_ONCE_MAX: usize = 256;
/// The same, counted for each queue that it goes to: what is told may go to thousands.
const PUSHED_AT_ONCE_MAX: usize = 1024;

/// A message that the broker sends by itself.
struct Told {
    exchange: ExchangeName,
    routing_key: Vec<u8>,
    properties: Vec<u8>,
    body: Bytes,
    durability: Durability,
}

/// Publishes events and traced messages, until it is dropped.
pub async fn publish_events(broker: Broker) {
    let (events, firehose) = (broker.events().clone(), broker.firehose().clone());
    let events = async {
        loop {
            publish_all(&broker, Telling::Event, events.next().await.iter().filter_map(event_message)).await;
        }
    };
    let copies = async {
        loop {
            publish_all(&broker, Telling::Trace, firehose.next().await.into_iter().map(traced_message)).await;
        }
    };
    tokio::join!(events, copies);
}

async fn publish_all(broker: &Broker, telling: Telling, messages: impl Iterator<Item = Told>) {
    let mut turn = Turn::new(telling);
    for told in messages {
        let Some((queues, message)) = addressed(broker, &told) else { continue };
        turn.told += 1;
        for queue in queues {
            turn.add(queue, &message);
            if turn.is_full() {
                turn.push(broker).await;
            }
        }
        if turn.is_full() {
            turn.push(broker).await;
        }
    }
    turn.push(broker).await;
}

/// What is pushed together. By queue, so that messages of one stay in their order.
struct Turn {
    telling: Telling,
    by_queue: BTreeMap<QueueId, Vec<NewMessage>>,
    told: usize,
    pushed: usize,
}

impl Turn {
    const fn new(telling: Telling) -> Self {
        Self { telling, by_queue: BTreeMap::new(), told: 0, pushed: 0 }
    }

    fn add(&mut self, queue: QueueId, message: &NewMessage) {
        self.by_queue.entry(queue).or_default().push(message.clone());
        self.pushed += 1;
    }

    const fn is_full(&self) -> bool {
        self.told >= TOLD_AT_ONCE_MAX || self.pushed >= PUSHED_AT_ONCE_MAX
    }

    /// Has all of it in its queues, and begins the next turn.
    async fn push(&mut self, broker: &Broker) {
        let Self { telling, by_queue, .. } = std::mem::replace(self, Self::new(self.telling));
        join_all(by_queue.into_iter().map(|(queue, messages)| async move {
            if let Some(queue) = broker.queue_by_id(queue) {
                broker.tell(telling, queue.name(), messages).await;
            }
        }))
        .await;
        tokio::task::yield_now().await;
    }
}

/// The queues that something told goes to, and the message that they get.
fn addressed(broker: &Broker, told: &Told) -> Option<(Vec<QueueId>, NewMessage)> {
    let read = Properties::parse(&told.properties).ok()?;
    let mut queues = Vec::new();
    let keys: [&[u8]; 1] = [&told.routing_key];
    broker.routes().route(&told.exchange, &keys, &MessageHeaders::new(read), &mut queues).ok()?;
    let exchange = told.exchange.as_str().as_bytes();
    let message = NewMessage {
        body: told.body.clone(),
        properties: StoredProperties {
            format: PropertyFormat::Amqp,
            bytes: Bytes::copy_from_slice(&told.properties),
        },
        address: Address { exchange, routing_key: &told.routing_key }.encode(),
        priority_cap: PriorityCap::Queue,
        durability: told.durability,
        ..NewMessage::default()
    };
    Some((queues, message))
}

/// An event as RabbitMQ's plugin publishes it: the fields are headers, and there is no body.
fn event_message(event: &Event) -> Option<Told> {
    let mut headers = TableBuf::new();
    for (name, value) in &event.fields {
        put(&mut headers, name, value);
    }
    headers.put(ShortStr::from_static("timestamp_in_ms"), i64::try_from(event.at.0).unwrap_or(i64::MAX));
    let properties = PropertiesBuilder::new()
        .headers(headers.as_table())
        .delivery_mode(2)
        .timestamp(event.at.0 / 1000)
        .to_vec();
    Some(Told {
        exchange: ExchangeName::at(&VhostName::DEFAULT, EVENT_EXCHANGE).ok()?,
        routing_key: event.name.as_bytes().to_vec(),
        properties,
        body: Bytes::new(),
        durability: Durability::Durable,
    })
}

fn put(table: &mut TableBuf, name: &str, value: &EventValue) {
    let name = ShortStr::clipped(name.as_bytes());
    with_value(value, &mut |value| {
        table.put(name, value);
    });
}

/// Gives a value in AMQP's form to somebody who writes it down.
fn with_value(value: &EventValue, write: &mut dyn FnMut(Value<'_>)) {
    match value {
        EventValue::Text(text) => write(text.as_str().into()),
        EventValue::Whole(number) => write((*number).into()),
        EventValue::Fraction(number) => write(Value::F64(*number)),
        EventValue::Truth(truth) => write((*truth).into()),
        EventValue::List(items) => {
            let mut list = ArrayBuf::new();
            for item in items {
                with_value(item, &mut |item| {
                    list.push(item);
                });
            }
            write(list.as_array().into());
        }
        EventValue::Table(fields) => {
            let mut table = TableBuf::new();
            for (name, value) in fields {
                put(&mut table, name, value);
            }
            write(table.as_table().into());
        }
        EventValue::Json(text) => match serde_json::from_str(text) {
            Ok(json) => with_value(&from_json(json), write),
            Err(_) => write(text.as_str().into()),
        },
        // What a client gave was read when it came; what another protocol gave is no table.
        EventValue::Raw(raw) => write(Table::parse(raw).unwrap_or(Table::EMPTY).into()),
    }
}

fn from_json(json: serde_json::Value) -> EventValue {
    use serde_json::Value as Json;
    match json {
        Json::Null => "".into(),
        Json::Bool(truth) => truth.into(),
        Json::Number(number) => match number.as_i64() {
            Some(whole) => EventValue::Whole(whole),
            None => EventValue::Fraction(number.as_f64().unwrap_or(0.0)),
        },
        Json::String(text) => text.into(),
        Json::Array(items) => EventValue::List(items.into_iter().map(from_json).collect()),
        Json::Object(fields) => {
            EventValue::Table(fields.into_iter().map(|(name, value)| (name, from_json(value))).collect())
        }
    }
}

fn traced_message(copy: TracedMessage) -> Told {
    let TracedMessage { exchange, routing_key, properties, body } = copy;
    Told { exchange, routing_key, properties, body, durability: Durability::Transient }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nexo_broker::topology::{Binding, Destination};
    use nexo_broker::{BrokerOptions, Codecs, QueueConfig};
    use nexo_log::disk::MemoryDisk;
    use nexo_types::{QueueName, Timestamp};

    use super::*;

    #[tokio::test]
    async fn more_than_a_turn_holds_comes_to_every_queue_in_its_order() {
        let options =
            BrokerOptions { codecs: crate::register(Codecs::default()), ..BrokerOptions::new("memory") };
        let broker = Broker::open_on(Arc::new(MemoryDisk::new()), options).unwrap();
        broker.ensure_event_exchange().await.unwrap();
        let exchange = ExchangeName::at(&VhostName::DEFAULT, EVENT_EXCHANGE).unwrap();
        let queues: Vec<QueueName> = (0..200).map(|n| QueueName::new(&format!("q{n}")).unwrap()).collect();
        for queue in &queues {
            broker.create_queue(queue, QueueConfig::default()).await.unwrap();
            let to = Destination::Queue(queue.clone());
            let binding = Binding::new(exchange.clone(), to, Bytes::from_static(b"#"), Vec::new());
            broker.bind(binding).await.unwrap();
        }
        let event = |n: i64| {
            let fields = vec![("n".to_owned(), EventValue::Whole(n))];
            event_message(&Event { name: "queue.created", at: Timestamp(0), fields }).unwrap()
        };
        publish_all(&broker, Telling::Event, (0..17).map(event)).await;
        for queue in [&queues[0], &queues[99], &queues[199]] {
            let seen = broker.peek(queue, 100).await.unwrap();
            let numbers = seen.iter().map(|delivery| {
                let (_, properties) = Address::split(&delivery.message.properties.bytes).unwrap();
                let read = Properties::parse(properties).unwrap();
                read.headers().unwrap().get("n").unwrap().as_integer().unwrap()
            });
            assert_eq!(numbers.collect::<Vec<_>>(), (0..17).collect::<Vec<_>>(), "{queue}");
        }
    }

    #[test]
    fn a_turn_is_bounded_by_what_is_told_and_by_where_it_goes() {
        let mut turn = Turn::new(Telling::Event);
        for queue in 1..PUSHED_AT_ONCE_MAX as u64 {
            turn.add(QueueId(queue), &NewMessage::default());
        }
        assert!(!turn.is_full());
        turn.add(QueueId(1), &NewMessage::default());
        assert!(turn.is_full() && turn.by_queue[&QueueId(1)].len() == 2);
        assert!(Turn { told: TOLD_AT_ONCE_MAX, ..Turn::new(Telling::Trace) }.is_full());
    }

    #[test]
    fn an_event_is_headers_without_a_body() {
        let table = EventValue::Table(vec![("max-length".to_owned(), EventValue::Whole(10))]);
        let list = EventValue::List(vec!["administrator".into(), "monitoring".into()]);
        let mut raw = TableBuf::new();
        raw.put(ShortStr::from_static("x-max-length"), 5_i64);
        let raw = EventValue::Raw(Bytes::copy_from_slice(raw.as_raw()));
        let fields = [("name", "q".into()), ("definition", table), ("tags", list), ("arguments", raw)];
        let fields = fields.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let told = event_message(&Event { name: "queue.created", at: Timestamp(5_432), fields }).unwrap();
        assert_eq!((&told.routing_key[..], told.body.len()), (&b"queue.created"[..], 0));
        let read = Properties::parse(&told.properties).unwrap();
        assert_eq!((read.timestamp(), read.delivery_mode()), (Some(5), Some(2)));
        let headers = read.headers().unwrap();
        assert_eq!(headers.get("name").unwrap().as_bytes(), Some(&b"q"[..]));
        assert_eq!(headers.get("timestamp_in_ms").unwrap().as_integer(), Some(5_432));
        let inner = |name: &str, of: &str| {
            headers.get(name).unwrap().as_table().unwrap().get(of).unwrap().as_integer()
        };
        assert_eq!(
            (inner("definition", "max-length"), inner("arguments", "x-max-length")),
            (Some(10), Some(5))
        );
        assert_eq!(headers.get("tags").unwrap().as_array().unwrap().iter().count(), 2);
    }
}
