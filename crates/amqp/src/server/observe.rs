//! What the broker tells of itself, as messages: events to `amq.rabbitmq.event`, and the firehose's copies to
//! `amq.rabbitmq.trace`. The broker collects both in bounded lines; here they get AMQP's form and go to the queues that are
//! bound there. Nobody who is told of waits for it.
//!
//! Nothing that is published here makes an event or is traced.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::future::join_all;
use nexo_broker::{
    Broker, Durability, EVENT_EXCHANGE, Event, EventValue, NewMessage, PriorityCap,
    Properties as StoredProperties, PropertyFormat, TracedMessage,
};
use nexo_types::{ExchangeName, QueueName, VhostName};

use crate::address::Address;
use crate::codec::{ArrayBuf, Properties, PropertiesBuilder, ShortStr, Table, TableBuf, Value};
use crate::headers::MessageHeaders;

/// Events that are written at the same time: they share a sync.
const TOGETHER_MAX: usize = 256;

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
            publish_all(&broker, events.next().await.iter().filter_map(event_message).collect()).await;
        }
    };
    let copies = async {
        loop {
            publish_all(&broker, firehose.next().await.into_iter().map(traced_message).collect()).await;
        }
    };
    tokio::join!(events, copies);
}

async fn publish_all(broker: &Broker, mut messages: VecDeque<Told>) {
    while !messages.is_empty() {
        let some: Vec<Told> = messages.drain(..messages.len().min(TOGETHER_MAX)).collect();
        // By queue, so that those of one queue stay in their order.
        let mut by_queue: Vec<(QueueName, Vec<NewMessage>)> = Vec::new();
        for told in &some {
            for (queue, message) in addressed(broker, told) {
                match by_queue.iter_mut().find(|(name, _)| *name == queue) {
                    Some((_, messages)) => messages.push(message),
                    None => by_queue.push((queue, vec![message])),
                }
            }
        }
        // A queue that is full, gone or refused by the disk goes without: what is told here is not worth waiting for.
        join_all(by_queue.into_iter().map(|(queue, messages)| async move {
            if let Err(error) = broker.push(&queue, messages).await {
                tracing::debug!(queue = %queue.in_full(), %error, "not told to a queue");
            }
        }))
        .await;
    }
}

/// The message as each queue takes it that it goes to.
fn addressed(broker: &Broker, told: &Told) -> Vec<(QueueName, NewMessage)> {
    let Ok(read) = Properties::parse(&told.properties) else { return Vec::new() };
    let mut ids = Vec::new();
    let keys: [&[u8]; 1] = [&told.routing_key];
    if broker.routes().route(&told.exchange, &keys, &MessageHeaders::new(read), &mut ids).is_err() {
        return Vec::new();
    }
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
    let queues = ids.into_iter().filter_map(|id| broker.queue_by_id(id));
    queues.map(|queue| (queue.name().clone(), message.clone())).collect()
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
    use nexo_types::Timestamp;

    use super::*;

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
