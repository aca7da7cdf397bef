//! Durable queues declared and deleted by clients that do not wait for each answer, or of which there are many: how well a
//! broker shares its syncs among them.

use std::time::{Duration, Instant};

use nexo_amqp::codec::method::{QueueMethod, queue};
use nexo_amqp::codec::{AmqpMethod, Method, encode_method};
use nexo_amqp_client::methods;

use super::AmqpUrl;
use crate::amqp::{CHANNEL, Connection, InputSize, declare_queue, short};
use crate::work::Settings;

/// Methods whose answers one client waits for.
const WINDOW: usize = 500;
/// Clients that wait for each answer.
const CLIENTS: usize = 10;

/// How many in a second.
pub(super) struct Declares {
    /// Declared by one client that does not wait.
    pub(super) pipelined: f64,
    /// Deleted by it.
    pub(super) pipelined_deletes: f64,
    /// Declared by several that wait.
    pub(super) by_many: f64,
}

/// Each kind for so long.
pub(super) fn run(url: &AmqpUrl, time: Duration) -> anyhow::Result<Declares> {
    let run = std::process::id();
    let mut connection = Connection::open(url, InputSize::Small)?;
    connection.open_channel(CHANNEL)?;
    let name = |number: usize| format!("b{run}-declare-{number}");
    let began = Instant::now();
    let declared = in_a_row(&mut connection, |number, out| {
        let may_go_on = number == 0 || began.elapsed() < time;
        if may_go_on {
            put(out, &declaration(&name(number))?);
        }
        Ok(may_go_on)
    })?;
    let pipelined = a_second(declared, began);
    let began = Instant::now();
    delete_all(&mut connection, declared, name)?;
    let pipelined_deletes = a_second(declared, began);
    let by_many = by_many(url, time, run)?;
    connection.close()?;
    Ok(Declares { pipelined, pipelined_deletes, by_many })
}

/// Clients that wait for each answer, all at once.
fn by_many(url: &AmqpUrl, time: Duration, run: u32) -> anyhow::Result<f64> {
    let name = |client: usize, number: usize| format!("b{run}-declare-{client}-{number}");
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        let mut connection = Connection::open(url, InputSize::Small)?;
        connection.open_channel(CHANNEL)?;
        connections.push((connection, 0));
    }
    let began = Instant::now();
    std::thread::scope(|scope| {
        let clients = connections.iter_mut().enumerate().map(|(client, (connection, count))| {
            scope.spawn(move || -> anyhow::Result<()> {
                while *count == 0 || began.elapsed() < time {
                    declare_queue(connection, &name(client, *count), &Settings::default())?;
                    *count += 1;
                }
                Ok(())
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client does not panic"))
    })?;
    let rate = a_second(connections.iter().map(|(_, count)| count).sum(), began);
    for (client, (mut connection, count)) in connections.into_iter().enumerate() {
        delete_all(&mut connection, count, |number| name(client, number))?;
        connection.close()?;
    }
    Ok(rate)
}

fn delete_all(
    connection: &mut Connection,
    count: usize,
    name: impl Fn(usize) -> String,
) -> anyhow::Result<()> {
    in_a_row(connection, |number, out| {
        if number < count {
            let queue = name(number);
            let delete = methods::delete_queue(short(&queue)?);
            put(out, &delete);
        }
        Ok(number < count)
    })?;
    Ok(())
}

/// Sends methods as long as `next` puts some, without waiting for more than a window of answers. Gives back how many were
/// answered.
fn in_a_row(
    connection: &mut Connection,
    mut next: impl FnMut(usize, &mut Vec<u8>) -> anyhow::Result<bool>,
) -> anyhow::Result<usize> {
    let (mut sent, mut answered, mut more) = (0, 0, true);
    while more || answered < sent {
        let mut out = Vec::new();
        while more && sent < answered + WINDOW {
            more = next(sent, &mut out)?;
            sent += usize::from(more);
        }
        connection.write(&out)?;
        // Answers come many at a time: all that are here make room for as many methods.
        while answered < sent {
            connection.wait_for(CHANNEL, |method| match method {
                Method::Queue(QueueMethod::DeclareOk(_) | QueueMethod::DeleteOk(_)) => Some(()),
                _ => None,
            })?;
            answered += 1;
            if !connection.has_frame()? {
                break;
            }
        }
    }
    Ok(answered)
}

fn declaration(name: &str) -> anyhow::Result<queue::Declare<'_>> {
    Ok(queue::Declare { durable: true, ..methods::declare_queue(short(name)?) })
}

fn put<M: AmqpMethod>(out: &mut Vec<u8>, method: &M) {
    encode_method(out, CHANNEL, method);
}

fn a_second(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}
