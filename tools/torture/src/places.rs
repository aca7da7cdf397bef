//! A queue whose messages are taken one by one with `basic.get` and given back in any order: each returns to its place, so
//! what comes next is always the oldest of those that wait.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use nexo_amqp::codec::method::{basic, confirm};
use tokio::time::sleep;

use crate::amqp::{Gone, Settles, Wire, judge, prove, publish_all};
use crate::clock;
use crate::ledger::{Reception, SessionId, What};
use crate::queues::{Family, Place};
use crate::stamp::{Copy, Stamp};
use crate::stats;
use crate::way::Way;
use crate::workload::{Message, Workload, check_body};
use crate::world::{Ear, RunPhase, World};

const PLACE: Place = Place::PLACES;
const FAMILY: Family = Family::PLACES;
/// Messages that are held at once.
const HELD_MAX: usize = 8;

/// Fills and empties, again and again, until the run is over.
pub(crate) async fn take_and_return(world: &World, workload: &mut Workload, ear: &Ear) {
    while ear.phase() != RunPhase::Over {
        if !stats::wait_until_free(world, PLACE, ear).await {
            return;
        }
        let done = match ear.phase() {
            RunPhase::Load => round(world, workload).await,
            RunPhase::Drain | RunPhase::Over => empty(world).await,
        };
        if done.is_err() || ear.phase() != RunPhase::Load {
            sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Takes what earlier rounds left, and begins with an empty queue.
async fn round(world: &World, workload: &mut Workload) -> Result<(), Gone> {
    let mut taker = Taker::connect(world).await?;
    taker.empty().await?;
    workload.begin_session();
    let count = workload.chances.usize(5..60);
    let messages: Vec<Message> = (0..count).map(|_| workload.one(FAMILY, 0)).collect();
    publish_all(world, PLACE, &messages).await?;
    let ready = messages.iter().map(|message| message.stamp.seq).collect();
    taker.walk(workload, ready).await
}

async fn empty(world: &World) -> Result<(), Gone> {
    Taker::connect(world).await?.empty().await
}

/// A connection that gets messages. Its session ends when it is dropped.
struct Taker<'a> {
    world: &'a World,
    session: SessionId,
    wire: Wire,
    /// What was acknowledged, and is not yet known to be durable.
    acked: Vec<Copy>,
}

/// A message that was got.
#[derive(Clone, Copy, Debug)]
struct Got {
    stamp: Stamp,
    copy: Copy,
    tag: u64,
}

impl<'a> Taker<'a> {
    async fn connect(world: &'a World) -> Result<Self, Gone> {
        let session = world.ledger().open_session(Way::Amqp);
        let connected = async {
            let mut wire = Wire::connect_as(world, session).await?;
            wire.call(&confirm::Select { nowait: false }, "confirm.select-ok").await?;
            Ok(wire)
        };
        match connected.await {
            Ok(wire) => Ok(Self { world, session, wire, acked: Vec::new() }),
            Err(gone) => {
                world.ledger().close_session(session);
                Err(gone)
            }
        }
    }

    /// Takes all there is. It was published by several, and a kill may have lost some: but none overtakes another of the
    /// same connection.
    async fn empty(&mut self) -> Result<(), Gone> {
        let mut latest: HashMap<(u16, u32), u64> = HashMap::new();
        while let Some(got) = self.get(Settles::Later).await? {
            let Stamp { publisher, session, seq, .. } = got.stamp;
            if let Some(before) = latest.insert((publisher, session), seq).filter(|before| *before > seq) {
                self.misplaced(got.copy, &format!("came after message {before}, which stands behind it"));
            }
            self.ack(got);
        }
        Ok(())
    }

    /// Takes these messages, which are all there are, and gives some of them back now and then.
    async fn walk(&mut self, workload: &mut Workload, mut ready: BTreeSet<u64>) -> Result<(), Gone> {
        let publisher = workload.publisher();
        let mut held: BTreeMap<u64, Got> = BTreeMap::new();
        while let Some(first) = ready.first().copied().or_else(|| held.keys().next().copied()) {
            let chance = workload.chances.u8(..100);
            if !ready.is_empty() && held.len() < HELD_MAX && chance < 80 {
                let copy = Copy { publisher, seq: first, family: FAMILY };
                let settles = if chance < 8 { Settles::AtOnce } else { Settles::Later };
                let got = self.get(settles).await;
                if settles == Settles::AtOnce && got.is_err() {
                    // It was settled when it was handed out, and may be lost on its way.
                    self.world.ledger().ack_sent(copy, self.session, clock::now());
                }
                let got = got?;
                if let Some(got) = got.filter(|_| settles == Settles::AtOnce) {
                    self.note_ack(got.copy);
                }
                let Some(got) = got.filter(|got| got.copy == copy) else {
                    self.misplaced(copy, "is the first of those that wait, and did not come");
                    return Err(Gone("the queue is not as it should be".into()));
                };
                ready.remove(&first);
                match (settles, chance) {
                    (Settles::AtOnce, _) => {}
                    (Settles::Later, ..45) => self.ack(got),
                    (Settles::Later, _) => drop(held.insert(first, got)),
                }
            } else if chance < 90 {
                self.give_back(workload, &mut held, &mut ready);
            } else if let Some((_, got)) = held.pop_last() {
                self.ack(got);
            }
        }
        let last = workload.one(FAMILY, 0);
        prove(self.world, self.session, &mut self.wire, PLACE, &last, &mut self.acked).await
    }

    /// Gives back one of those that are held, or all.
    fn give_back(
        &mut self,
        workload: &mut Workload,
        held: &mut BTreeMap<u64, Got>,
        ready: &mut BTreeSet<u64>,
    ) {
        let Some(last) = held.values().map(|got| got.tag).max() else { return };
        let now = clock::now();
        if workload.chances.bool() {
            for (seq, got) in std::mem::take(held) {
                self.world.ledger().returned(got.copy, self.session, now);
                ready.insert(seq);
            }
            self.wire.send(&basic::Nack { delivery_tag: last, multiple: true, requeue: true });
            return;
        }
        let at = workload.chances.usize(..held.len());
        if let Some((seq, got)) = held.keys().nth(at).copied().and_then(|seq| held.remove_entry(&seq)) {
            self.world.ledger().returned(got.copy, self.session, now);
            self.wire.send(&basic::Reject { delivery_tag: got.tag, requeue: true });
            ready.insert(seq);
        }
    }

    async fn get(&mut self, settles: Settles) -> Result<Option<Got>, Gone> {
        let Some(delivered) = self.wire.get(PLACE, settles).await? else { return Ok(None) };
        let delivery = judge(self.world, self.session, &delivered, PLACE);
        let delivery = delivery.ok_or_else(|| Gone("a message without a stamp came".into()))?;
        let Reception::Work(copy) = self.world.ledger().delivered(&delivery) else {
            return Err(Gone("the life is over".into()));
        };
        check_body(self.world, self.session, &delivery.stamp, PLACE, &delivered.body);
        Ok(Some(Got { stamp: delivery.stamp, copy, tag: delivered.tag }))
    }

    fn ack(&mut self, got: Got) {
        self.note_ack(got.copy);
        self.wire.send(&basic::Ack { delivery_tag: got.tag, multiple: false });
    }

    fn note_ack(&mut self, copy: Copy) {
        self.world.ledger().ack_sent(copy, self.session, clock::now());
        self.acked.push(copy);
    }

    fn misplaced(&self, copy: Copy, fact: &str) {
        // What a broker that has ended meanwhile did not bring is not judged.
        let mut ledger = self.world.ledger();
        if ledger.is_current(self.session) {
            ledger.tell(What::Misplaced, format!("{copy} {fact}"), copy);
        }
    }
}

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        let mut ledger = self.world.ledger();
        self.acked.iter().for_each(|_| ledger.ack_unsure());
        ledger.close_session(self.session);
    }
}
