//! A queue that is filled with messages of many priorities by both protocols, and then drained by a fresh consumer:
//! they come highest first, and in order within one.

use std::collections::HashMap;
use std::time::Duration;

use nexo_amqp::codec::method::{basic, confirm};
use tokio::time::{sleep, timeout};

use crate::amqp::{Event, Gone, Wire, judge, prove, publish_all};
use crate::clock;
use crate::ledger::{Reception, What};
use crate::native::Connection;
use crate::queues::{Family, PRIORITY_MAX, Place};
use crate::stamp::Stamp;
use crate::stats;
use crate::way::Way;
use crate::workload::{Message, Workload, check_body};
use crate::world::{Ear, RunPhase, World};

const PLACE: Place = Place::PRIORITIES;
/// With nothing coming for this long, the queue is taken for empty.
const QUIET: Duration = Duration::from_millis(700);

/// Whether the order of a drain says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Order,
    /// A publish of an ended connection may come in between.
    Nothing,
}

/// Fills and drains, again and again, until the run is over.
pub(crate) async fn fill_and_drain(world: &World, workload: &mut Workload, ear: &Ear) {
    while ear.phase() != RunPhase::Over {
        let check = match ear.phase() {
            RunPhase::Load => fill(world, workload).await,
            RunPhase::Drain | RunPhase::Over => Check::Nothing,
        };
        if !stats::wait_until_free(world, PLACE, ear).await {
            return;
        }
        let drained = match workload.chances.bool() {
            true => drain_by_amqp(world, workload, check, ear.phase()).await.ok(),
            false => drain_by_pop(world, check).await,
        };
        if drained.is_none() {
            sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn fill(world: &World, workload: &mut Workload) -> Check {
    workload.begin_session();
    let count = workload.chances.usize(10..120);
    let messages = |workload: &mut Workload| -> Vec<Message> {
        let mut one = || {
            let priority = workload.chances.u8(..=PRIORITY_MAX);
            workload.one(Family::PRIORITIES, priority)
        };
        (0..count).map(|_| one()).collect()
    };
    let first = messages(workload);
    let by_amqp = publish_all(world, PLACE, &first).await.is_ok();
    workload.begin_session();
    let second = messages(workload);
    let by_push = match Connection::open(world).await {
        Some(connection) => connection.push_all(&second).await.is_some(),
        None => false,
    };
    if !by_push {
        settle_unknown(world, &second);
    }
    if by_amqp && by_push { Check::Order } else { Check::Nothing }
}

fn settle_unknown(world: &World, messages: &[Message]) {
    for message in messages {
        world.ledger().uncertain(&message.stamp, clock::now());
    }
}

async fn drain_by_amqp(
    world: &World,
    workload: &mut Workload,
    check: Check,
    phase: RunPhase,
) -> Result<(), Gone> {
    let session = world.ledger().open_session(Way::Amqp);
    let mut acked = Vec::new();
    let drained = async {
        let mut wire = Wire::connect_as(world, session).await?;
        wire.call(&confirm::Select { nowait: false }, "confirm.select-ok").await?;
        let qos = basic::Qos { prefetch_size: 0, prefetch_count: 30, global: false };
        wire.call(&qos, "basic.qos-ok").await?;
        wire.consume(PLACE.name());
        let mut descent = Descent::new(check);
        while let Ok(event) = timeout(QUIET, wire.event()).await {
            let Event::Delivered(delivered) = event? else { continue };
            let Some(delivery) = judge(world, session, &delivered, PLACE) else { continue };
            let stamp = delivery.stamp;
            let Reception::Work(copy) = world.ledger().delivered(&delivery) else {
                return Err(Gone("the life is over".into()));
            };
            check_body(world, session, &stamp, PLACE, &delivered.body);
            descent.next(world, &stamp);
            world.ledger().ack_sent(copy, session, clock::now());
            acked.push(copy);
            wire.send(&basic::Ack { delivery_tag: delivered.tag, multiple: false });
        }
        if phase != RunPhase::Load {
            return Ok(());
        }
        workload.begin_session();
        let last = workload.one(Family::PRIORITIES, 0);
        prove(world, session, &mut wire, PLACE, &last, &mut acked).await
    };
    let drained = drained.await;
    let mut ledger = world.ledger();
    acked.iter().for_each(|_| ledger.ack_unsure());
    ledger.close_session(session);
    drained
}

async fn drain_by_pop(world: &World, check: Check) -> Option<()> {
    let connection = Connection::open(world).await?;
    let mut descent = Descent::new(check);
    loop {
        let stamps = connection.pop_and_ack(PLACE, 40, QUIET).await?;
        if stamps.is_empty() {
            return Some(());
        }
        for stamp in &stamps {
            descent.next(world, stamp);
        }
    }
}

/// A walk down the priorities.
struct Descent {
    check: Check,
    lowest: u8,
    /// The latest of each line of publishing, by priority.
    latest: HashMap<(u8, u16, u32), u64>,
}

impl Descent {
    fn new(check: Check) -> Self {
        Self { check, lowest: u8::MAX, latest: HashMap::new() }
    }

    fn next(&mut self, world: &World, stamp: &Stamp) {
        let copy = stamp.copy_in(Family::PRIORITIES);
        let Stamp { priority, publisher, session, seq, .. } = *stamp;
        let before = self.latest.insert((priority, publisher, session), seq);
        if self.check == Check::Order {
            if priority > self.lowest {
                let fact = format!("{copy} of priority {priority} came after one of {}", self.lowest);
                world.ledger().tell(What::Priority, fact, copy);
            }
            if let Some(before) = before.filter(|before| *before > seq) {
                let fact = format!("{copy} came after message {before} of the same priority");
                world.ledger().tell(What::OutOfOrder, fact, copy);
            }
        }
        self.lowest = self.lowest.min(priority);
    }
}
