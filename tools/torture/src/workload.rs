//! What is published and what is done with it: chosen by chance, from the seed.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{self, Micros};
use crate::ledger::SessionId;
use crate::queues::{EXPIRY, FANOUT, Families, Family, Place};
use crate::stamp::{Durability, Form, Nature, Stamp};
use crate::way::Way;
use crate::world::World;

/// A publisher's chances and numbers.
#[derive(Debug)]
pub(crate) struct Workload {
    world: Arc<World>,
    publisher: u16,
    pub(crate) chances: fastrand::Rng,
    /// Counts its connections.
    session: u32,
}

/// A message to be sent; the ledger knows of it.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) stamp: Stamp,
    pub(crate) delay: Option<Duration>,
    pub(crate) sent_at: Micros,
}

/// What a consumer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Ack,
    /// Acknowledge it some time later.
    Hold,
    /// Give it back.
    Fail,
    /// Give it up: it becomes a dead letter.
    Reject,
}

impl Workload {
    pub(crate) fn new(world: &Arc<World>) -> Self {
        let (publisher, chances) = world.new_publisher();
        Self { world: Arc::clone(world), publisher, chances, session: 0 }
    }

    /// Who publishes.
    pub(crate) const fn publisher(&self) -> u16 {
        self.publisher
    }

    /// A new connection begins.
    pub(crate) const fn begin_session(&mut self) {
        self.session += 1;
    }

    /// A message like any other.
    pub(crate) fn any(&mut self, way: Way) -> Message {
        let targets = self.targets(way);
        let may_be_transient = [Family::WORK_B, Family::ORDERED].map(Families::one).contains(&targets);
        let durability = match self.chances.u8(..100) {
            ..15 if may_be_transient => Durability::Transient,
            _ => Durability::Durable,
        };
        self.to(targets, durability, form(way))
    }

    /// A message like any other that survives a restart.
    pub(crate) fn durable(&mut self, way: Way) -> Message {
        let targets = self.targets(way);
        self.to(targets, Durability::Durable, form(way))
    }

    /// A message to the same queues.
    pub(crate) fn like(&mut self, other: &Message) -> Message {
        self.to(other.stamp.targets, other.stamp.durability, other.stamp.form)
    }

    /// A message to the FIFO queue.
    pub(crate) fn grouped(&mut self) -> Message {
        self.to(Families::one(Family::GROUPS), Durability::Durable, Form::Text)
    }

    fn to(&mut self, targets: Families, durability: Durability, form: Form) -> Message {
        let only = |family| targets == Families::one(family);
        let may_be_poison = only(Family::LIMITED) || only(Family::REJECTS);
        let nature = match self.chances.u8(..100) {
            ..20 if may_be_poison => Nature::Poison,
            _ => Nature::Sound,
        };
        let may_wait = [Family::WORK_A, Family::WORK_B, Family::NATIVE, Family::TASKS].into_iter().any(only);
        let delay = match (self.chances.u8(..100), form) {
            (..8, Form::Bytes) if may_wait => Some(Duration::from_millis(self.chances.u64(1..800))),
            // SQS knows only whole seconds.
            (..8, Form::Text) if may_wait => Some(Duration::from_secs(self.chances.u64(1..=2))),
            _ => None,
        };
        self.send(targets, durability, nature, 0, form, delay)
    }

    /// A durable message to one queue.
    pub(crate) fn one(&mut self, family: Family, priority: u8) -> Message {
        let targets = Families::one(family);
        self.send(targets, Durability::Durable, Nature::Sound, priority, Form::Bytes, None)
    }

    fn send(
        &mut self,
        targets: Families,
        durability: Durability,
        nature: Nature,
        priority: u8,
        form: Form,
        delay: Option<Duration>,
    ) -> Message {
        // SQS has no empty bodies.
        let least = u32::from(form == Form::Text);
        let body_bytes = self.body_bytes().max(least);
        let sent_at = clock::now();
        let mut wait = delay.unwrap_or_default();
        if targets.contains(Family::EXPIRING) {
            // Nobody consumes it there, so it is seen as a dead letter, after its life.
            wait += EXPIRY;
        }
        let mut ledger = self.world.ledger();
        let seq = ledger.next_seq(self.publisher);
        let (publisher, session) = (self.publisher, self.session);
        let stamp =
            Stamp { publisher, session, seq, targets, durability, nature, priority, form, body_bytes };
        ledger.sent(&stamp, sent_at + clock::micros(wait), sent_at);
        Message { stamp, delay, sent_at }
    }

    fn targets(&mut self, way: Way) -> Families {
        let family = match self.chances.u8(..100) {
            0..20 => Family::WORK_A,
            20..38 => Family::WORK_B,
            38..45 => Family::NATIVE,
            45..52 => Family::TASKS,
            52..74 => Family::ORDERED,
            74..82 => Family::LIMITED,
            82..89 => Family::REJECTS,
            89..94 => Family::EXPIRING,
            _ => match way {
                Way::Amqp => return Families::FAN,
                Way::Native => Family::NATIVE,
                Way::Sqs => Family::TASKS,
            },
        };
        Families::one(family)
    }

    /// Mostly small; some empty, and a few that take several frames.
    fn body_bytes(&mut self) -> u32 {
        match self.chances.u16(..1000) {
            0..50 => 0,
            50..700 => self.chances.u32(1..256),
            700..970 => self.chances.u32(256..4_096),
            970..996 => self.chances.u32(4_096..40_000),
            _ => self.chances.u32(100_000..400_000),
        }
    }

    /// What to do with a message that came from `place`.
    pub(crate) fn decide(&mut self, stamp: &Stamp, place: Place) -> Decision {
        if place.is_dead() {
            return Decision::Ack;
        }
        let chance = self.chances.u8(..100);
        if stamp.nature == Nature::Poison {
            let may_be_rejected = place == Place::REJECTS && chance < 30;
            return if may_be_rejected { Decision::Reject } else { Decision::Fail };
        }
        match (place, chance) {
            (Place::ORDERED | Place::LIMITED | Place::REJECTS, ..2) | (_, ..4) => Decision::Fail,
            (_, 4..8) => Decision::Hold,
            _ => Decision::Ack,
        }
    }
}

impl Message {
    /// Where it goes over AMQP: the exchange and the routing key.
    pub(crate) fn address(&self) -> (&'static str, &'static str) {
        match self.stamp.targets.iter().next() {
            Some(family) if self.stamp.targets != Families::FAN => ("", family.name()),
            Some(_) | None => (FANOUT, ""),
        }
    }

    /// The queue it goes to by the native API.
    pub(crate) fn queue(&self) -> &'static str {
        self.address().1
    }
}

/// What bodies are made of that go this way.
const fn form(way: Way) -> Form {
    match way {
        Way::Amqp | Way::Native => Form::Bytes,
        Way::Sqs => Form::Text,
    }
}

/// Checks a delivered body byte for byte, and tells the ledger if it is another.
pub(crate) fn check_body(world: &World, session: SessionId, stamp: &Stamp, place: Place, body: &[u8]) {
    if stamp.body() != body {
        let fact = format!(
            "{} bytes came from '{}' to {session} for {stamp:?}, which are not its body",
            body.len(),
            place.name()
        );
        world.ledger().tell(crate::ledger::What::Altered, fact, stamp.copy_in(place.family()));
    }
}
