//! Single requests that are much work: others must not wait until they are done.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nexo_amqp::codec::method::{basic, queue};
use nexo_amqp::codec::{PropertiesBuilder, ShortStr, Table, TableBuf, encode_method};
use nexo_amqp_client::{Filled, methods};

use super::Found;
use super::target::{DURABLE, Target, message, publish, shape};
use crate::amqp::{
    CHANNEL, Confirmed, Connection, Deliveries, InputSize, declare_exchange, declare_queue, queue_depth,
    short,
};
use crate::percentiles::Micros;
use crate::report::thousands;
use crate::work::Persistence;

/// Declarations that are sent at once.
const BATCH: usize = 500;
/// How long nothing may change before it counts as the end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Characters of the names of headers.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Nothing but the probe.
pub(super) fn idle(target: &Target) -> anyhow::Result<Found> {
    let mut found = Found::default();
    target.probed(&mut found, |_| {
        std::thread::sleep(target.time(Duration::from_secs(10)));
        Ok(())
    })?;
    Ok(found)
}

/// A large message to some queues.
pub(super) fn fanout_large(target: &Target) -> anyhow::Result<Found> {
    let body_bytes = usize::try_from(target.count(16 << 20))?;
    fanout(target, target.count(300), body_bytes, 3)
}

/// A small message to many queues.
pub(super) fn fanout_many(target: &Target) -> anyhow::Result<Found> {
    fanout(target, target.count(50_000), 100, 10)
}

fn fanout(target: &Target, queues: u64, body_bytes: usize, times: u32) -> anyhow::Result<Found> {
    const EXCHANGE: &str = "abuse-fanout";
    let mut found = Found::default();
    let mut publisher = Confirmed::open(&target.amqp)?;
    declare_exchange(&mut publisher.connection, EXCHANGE, "fanout", Table::EMPTY)?;
    let names: Vec<String> = (0..queues).map(|number| format!("abuse-fanout-{number}")).collect();
    for names in names.chunks(BATCH) {
        let mut out = Vec::new();
        for name in names {
            let name = short(name)?;
            encode_method(&mut out, CHANNEL, &durable(name));
            encode_method(&mut out, CHANNEL, &binding(name, short(EXCHANGE)?, Table::EMPTY));
        }
        (&publisher.connection.socket).write_all(&out).context("cannot declare queues")?;
    }
    if let Some(last) = names.last() {
        queue_depth(&mut publisher.connection, last)?;
    }
    let properties = PropertiesBuilder::new().delivery_mode(2).to_vec();
    let body = vec![b'x'; body_bytes];
    let frames = message(EXCHANGE, "", &properties, &body, publisher.connection.frame_max)?;
    drop(body);
    confirmed_times(target, &mut found, &mut publisher, &frames, times)?;
    let depth = names.last().map(|last| queue_depth(&mut publisher.connection, last)).transpose()?;
    ensure!(depth == Some(times), "the last queue has {depth:?} messages of {times}");
    found.add("queues", thousands(queues as f64));
    Ok(found)
}

/// Messages that are many headers, and bindings that ask for others.
pub(super) fn headers(target: &Target) -> anyhow::Result<Found> {
    const EXCHANGE: &str = "abuse-headers";
    const QUEUE: &str = "abuse-headers";
    let mut found = Found::default();
    let mut publisher = target.publisher(QUEUE)?;
    declare_exchange(&mut publisher.connection, EXCHANGE, "headers", Table::EMPTY)?;
    let bindings = target.count(3_000);
    for from in (0..bindings).step_by(BATCH) {
        let mut out = Vec::new();
        for number in from..bindings.min(from + BATCH as u64) {
            let name = format!("absent-{number}");
            let mut arguments = TableBuf::new();
            arguments.put(ShortStr::from_static("x-match"), "any");
            arguments.put(short(&name)?, true);
            let bind = binding(short(QUEUE)?, short(EXCHANGE)?, arguments.as_table());
            encode_method(&mut out, CHANNEL, &bind);
        }
        (&publisher.connection.socket).write_all(&out).context("cannot bind")?;
    }
    queue_depth(&mut publisher.connection, QUEUE)?;
    let mut table = TableBuf::new();
    let count = target.count(17_000);
    for number in 0..count {
        let name = header_name(number);
        table.put(short(&name)?, true);
    }
    let properties = PropertiesBuilder::new().headers(table.as_table()).delivery_mode(2).to_vec();
    let frames = message(EXCHANGE, "", &properties, b"x", publisher.connection.frame_max)?;
    confirmed_times(target, &mut found, &mut publisher, &frames, 20)?;
    found.add("headers", thousands(count as f64)).add("bindings", thousands(bindings as f64));
    Ok(found)
}

/// A name of three characters, so that many fit into the one frame that headers have.
fn header_name(number: u64) -> String {
    let digit = |place: u32| char::from(DIGITS[(number / 36_u64.pow(place) % 36) as usize]);
    [digit(2), digit(1), digit(0)].into_iter().collect()
}

/// Publishes one message again and again with the probe beside it, each confirmed before the next.
fn confirmed_times(
    target: &Target,
    found: &mut Found,
    publisher: &mut Confirmed,
    frames: &[u8],
    times: u32,
) -> anyhow::Result<()> {
    target.probed(found, |found| {
        let mut longest = Duration::ZERO;
        for _ in 0..times {
            longest = longest.max(publisher.publish(frames)?);
        }
        found.add(&format!("confirmed, the slowest of {times}"), Micros(longest.as_secs_f64() * 1e6));
        Ok(())
    })
}

/// A consumer that holds everything and goes away.
pub(super) fn requeue(target: &Target) -> anyhow::Result<Found> {
    const QUEUE: &str = "abuse-requeue";
    let mut found = Found::default();
    let count = target.count(5_000_000);
    target.fill(QUEUE, count, 16)?;
    let (connection, held) = hold(target, QUEUE, count)?;
    let mut looker = target.connect(InputSize::Small)?;
    let before = queue_depth(&mut looker, QUEUE)?;
    target.probed(&mut found, |found| {
        let began = Instant::now();
        // Without a word, as when a process is killed.
        drop(connection);
        let (mut depth, mut changed) = (queue_depth(&mut looker, QUEUE)?, Instant::now());
        while u64::from(depth) < count && changed.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(50));
            let now = queue_depth(&mut looker, QUEUE)?;
            if now != depth {
                (depth, changed) = (now, Instant::now());
            }
        }
        found.add("held", thousands(held as f64)).add(
            "back in the queue",
            format!("{} in {:.1} s", thousands(depth.into()), began.elapsed().as_secs_f64()),
        );
        found.number("held", held as f64).number("back_part", back_part(before, depth, held));
        Ok(())
    })?;
    Ok(found)
}

/// What part of the messages that were held has come back. If none was held, none has.
fn back_part(before: u32, after: u32, held: u64) -> f64 {
    if held == 0 { 0.0 } else { (f64::from(after) - f64::from(before)) / held as f64 }
}

/// Consumes without acknowledging until everything is here, or nothing more comes.
fn hold(target: &Target, name: &str, count: u64) -> anyhow::Result<(Connection, u64)> {
    let mut connection = target.connect(InputSize::Large)?;
    connection.socket.set_read_timeout(Some(PATIENCE))?;
    let consume = methods::consume(short(name)?, ShortStr::from_static("c"));
    let consume = basic::Consume { nowait: true, ..consume };
    connection.send(CHANNEL, &consume)?;
    let mut deliveries = Deliveries::new(connection.frame_max);
    while deliveries.count < count {
        if connection.input.fill(&connection.socket).context("cannot read deliveries")? == Filled::Nothing {
            break;
        }
        let done = deliveries.scan(connection.input.bytes(), |_| ())?;
        connection.input.consume(done);
    }
    Ok((connection, deliveries.count))
}

/// Transient messages without confirms, to queues that nobody reads.
pub(super) fn flood(target: &Target) -> anyhow::Result<Found> {
    const BODY_BYTES: usize = 10_000;
    let mut found = Found::default();
    let names: Vec<String> = (0..4).map(|number| format!("abuse-flood-{number}")).collect();
    let mut connection = target.connect(InputSize::Small)?;
    for name in &names {
        declare_queue(&mut connection, name, &DURABLE)?;
    }
    let shapes: Vec<_> = names.iter().map(|name| shape(name, BODY_BYTES, Persistence::Transient)).collect();
    let count = target.count(200_000);
    target.probed(&mut found, |found| {
        let began = Instant::now();
        publish(&target.amqp, &shapes, 0, count)?;
        let (sum, seconds) = (count as f64 * shapes.len() as f64, began.elapsed().as_secs_f64());
        found.add(
            "published",
            format!("{} in {seconds:.1} s, {} MB/s", thousands(sum), thousands(sum * 0.01 / seconds)),
        );
        Ok(())
    })?;
    Ok(found)
}

fn durable(name: ShortStr<'_>) -> queue::Declare<'_> {
    queue::Declare { durable: true, nowait: true, ..methods::declare_queue(name) }
}

fn binding<'a>(name: ShortStr<'a>, exchange: ShortStr<'a>, arguments: Table<'a>) -> queue::Bind<'a> {
    queue::Bind { nowait: true, arguments, ..methods::bind(name, exchange, ShortStr::EMPTY) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn only_what_was_held_can_come_back() {
        assert_eq!(back_part(5_000, 5_000, 0), 0.0, "nothing was held");
        assert_eq!(back_part(4_000, 5_000, 1_000), 1.0);
        assert_eq!(back_part(4_000, 4_500, 1_000), 0.5);
        assert!(back_part(4_000, 3_000, 1_000) < 0.0, "even less is there");
    }

    #[test]
    fn the_headers_of_a_message_have_different_names_and_fit_into_a_frame() {
        let names: BTreeSet<String> = (0..17_000).map(header_name).collect();
        assert_eq!(names.len(), 17_000);
        let mut table = TableBuf::new();
        for name in &names {
            table.put(short(name).unwrap(), true);
        }
        let properties = PropertiesBuilder::new().headers(table.as_table()).to_vec();
        assert!(properties.len() < 131_000, "{} bytes", properties.len());
    }
}
