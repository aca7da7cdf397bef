//! Many queues, declared, used and deleted, again and again: what the first round took for good, later ones do not take
//! again.

use std::time::Instant;

use anyhow::ensure;
use nexo_amqp_client::PERSISTENT;
use tokio::task::JoinSet;

use crate::Size;
use crate::broker::{Broker, CHANNEL};
use crate::report::{Report, mib, rate};

/// Connections that share the work, so that the broker can write many changes at once.
const CLIENTS: usize = 8;
/// What may stay after the last round, beyond what stayed after the first.
const LEAK_MAX: u64 = 32 << 20;

pub(crate) async fn run(broker: &Broker, size: Size, report: &mut Report) -> anyhow::Result<()> {
    let (count, rounds) = size.of((10_000, 6), (400, 2));
    let mut resident = vec![broker.resident_bytes()?];
    let mut most = 0;
    let mut seconds = [0.0; 2];
    for _ in 0..rounds {
        let began = Instant::now();
        each(broker, count, Task::Declare).await?;
        seconds[0] += began.elapsed().as_secs_f64();
        most = most.max(broker.resident_bytes()?);
        let began = Instant::now();
        each(broker, count, Task::Delete).await?;
        seconds[1] += began.elapsed().as_secs_f64();
        resident.push(broker.resident_bytes()?);
    }
    let [declared, deleted] = seconds.map(|seconds| rate(count * rounds, seconds));
    report.row(
        format!("{count} durable queues declared, with a message each, and deleted, {rounds} times"),
        format!("{declared} declared, {deleted} deleted"),
    );
    let after: Vec<String> = resident.iter().map(|bytes| mib(*bytes)).collect();
    report.row(
        "memory with them at most; before, and after each round",
        format!("{}; {}", mib(most), after.join(", ")),
    );
    let grown = resident[rounds].saturating_sub(resident[1]);
    ensure!(grown <= LEAK_MAX, "the rounds after the first left {}", mib(grown));
    Ok(())
}

#[derive(Clone, Copy)]
enum Task {
    Declare,
    Delete,
}

/// Does something with all queues, by several connections.
async fn each(broker: &Broker, count: usize, task: Task) -> anyhow::Result<()> {
    let mut clients = JoinSet::<anyhow::Result<()>>::new();
    for client in 0..CLIENTS {
        let numbers = (client..count).step_by(CLIENTS);
        let names: Vec<String> = numbers.map(|number| format!("scale.queue.{number}")).collect();
        let broker = *broker;
        clients.spawn(async move {
            let mut client = broker.client().await?;
            match task {
                Task::Declare => {
                    client.declare_queues(CHANNEL, &names).await?;
                    client.select_confirms(CHANNEL).await?;
                    for name in &names {
                        client.add_publish(CHANNEL, "", name, PERSISTENT, b"one")?;
                    }
                    client.flush().await?;
                    Ok(client.confirmed(names.len() as u64).await?)
                }
                Task::Delete => Ok(client.delete_queues(CHANNEL, &names).await?),
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    Ok(())
}
