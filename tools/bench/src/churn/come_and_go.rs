//! How fast things come and go: one after the other on one connection, and durable queues at once.

use std::time::{Duration, Instant};

use super::declare::{self, Declares};
use super::{AmqpUrl, Rates};
use crate::amqp::{CHANNEL, Connection, InputSize, bind, declare_queue, delete_queue, unbind};
use crate::work::{Durability, Settings};

/// Every client finds this exchange.
const EXCHANGE: &str = "amq.direct";

/// Each kind for so long.
pub(super) fn run(url: &AmqpUrl, time: Duration) -> anyhow::Result<Rates> {
    let run = std::process::id();
    let mut connection = Connection::open(url, InputSize::Small)?;
    let connections = a_second(time, |_| {
        let mut connection = Connection::open(url, InputSize::Small)?;
        connection.open_channel(CHANNEL)?;
        Ok(connection.close()?)
    })?;
    let channels = a_second(time, |_| {
        connection.open_channel(CHANNEL)?;
        Ok(connection.close_channel(CHANNEL)?)
    })?;
    connection.open_channel(CHANNEL)?;
    let mut queues = |durability| {
        let settings = Settings { durability, ..Settings::default() };
        a_second(time, |n| {
            let name = format!("b{run}-churn-{n}");
            declare_queue(&mut connection, &name, &settings)?;
            delete_queue(&mut connection, &name)
        })
    };
    let durable_queues = queues(Durability::Durable)?;
    let transient_queues = queues(Durability::Transient)?;
    let queue = format!("b{run}-churn");
    declare_queue(&mut connection, &queue, &Settings::default())?;
    let bindings = a_second(time, |n| {
        let key = format!("key-{n}");
        bind(&mut connection, &queue, EXCHANGE, &key)?;
        unbind(&mut connection, &queue, EXCHANGE, &key)
    })?;
    delete_queue(&mut connection, &queue)?;
    connection.close()?;
    let Declares { pipelined, pipelined_deletes, by_many } = declare::run(url, time)?;
    Ok(Rates {
        connections,
        channels,
        durable_queues,
        transient_queues,
        bindings,
        pipelined_declares: pipelined,
        pipelined_deletes,
        concurrent_declares: by_many,
    })
}

/// How often in a second something can be done, tried for so long and at least once.
fn a_second(time: Duration, mut once: impl FnMut(u64) -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut count = 0;
    while count == 0 || began.elapsed() < time {
        once(count)?;
        count += 1;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_tried_at_least_once() {
        let mut tried = 0;
        a_second(Duration::ZERO, |_| {
            tried += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(tried, 1);
    }
}
