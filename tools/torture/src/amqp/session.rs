//! A client that publishes with confirms and consumes on the same channel, until its connection ends.

use std::collections::BTreeMap;
use std::time::Duration;

use nexo_amqp::codec::ShortStr;
use nexo_amqp::codec::method::{basic, confirm};
use nexo_amqp_client::methods;
use tokio::time::{Instant, interval, sleep};

use super::judge::judge;
use super::unconfirmed::Unconfirmed;
use super::wire::{Delivered, Event, Gone, Wire, properties};
use crate::clock;
use crate::ledger::{Reception, SessionId, Violation, What};
use crate::queues::Place;
use crate::stamp::Copy;
use crate::way::Way;
use crate::workload::{Decision, Message, Workload, check_body};
use crate::world::{Ear, RunPhase, Told, World};

/// Publishes that may wait for their confirms.
const WINDOW: usize = 400;
/// Bytes that may wait to be sent.
const UNSENT_MAX: usize = 4 << 20;
const TICK: Duration = Duration::from_millis(20);

/// What a client does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Role {
    /// Messages a second.
    pub(crate) publishes: u32,
    pub(crate) consumes: &'static [Place],
    /// 0 for no limit.
    pub(crate) prefetch: u16,
}

/// One connection.
struct Session<'a> {
    world: &'a World,
    role: Role,
    workload: &'a mut Workload,
    wire: Wire,
    id: SessionId,
    unconfirmed: Unconfirmed,
    /// Messages to be acknowledged later, by tag.
    held: BTreeMap<u64, Copy>,
    /// What it does no more once its time is over.
    stage: Stage,
}

/// Connects and works until the connection ends, `until` has come or the run is over.
pub(crate) async fn run(
    world: &World,
    role: Role,
    workload: &mut Workload,
    ear: &mut Ear,
    until: Option<Instant>,
) -> Result<(), Gone> {
    workload.begin_session();
    // The session must be of the life that the connection is of: if the life has ended meanwhile, nobody can say.
    let id = world.ledger().open_session(Way::Amqp);
    let connected = begin(world, role, id).await;
    let wire = match connected {
        Ok(wire) => wire,
        Err(gone) => {
            world.ledger().close_session(id);
            return Err(gone);
        }
    };
    let unconfirmed = Unconfirmed::default();
    let mut session = Session {
        world,
        role,
        workload,
        wire,
        id,
        unconfirmed,
        held: BTreeMap::new(),
        stage: Stage::Working,
    };
    let ended = session.serve(ear, until).await;
    world.ledger().close_session(id);
    session.unconfirmed.give_up(world);
    match ended {
        Ok(Leave::Gently) => Ok(()),
        Ok(Leave::Cut) => {
            session.wire.cut(&mut session.workload.chances).await;
            Ok(())
        }
        Err(gone) => Err(gone),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Working,
    /// It has published its last message, whose confirm proves all acknowledgements; what still comes is left alone.
    Leaving,
}

enum Leave {
    Gently,
    Cut,
}

async fn begin(world: &World, role: Role, session: SessionId) -> Result<Wire, Gone> {
    let mut wire = Wire::connect_as(world, session).await?;
    wire.call(&confirm::Select { nowait: false }, "confirm.select-ok").await?;
    if role.prefetch > 0 {
        let qos = basic::Qos { prefetch_size: 0, prefetch_count: role.prefetch, global: false };
        wire.call(&qos, "basic.qos-ok").await?;
    }
    for place in role.consumes {
        wire.consume(place.name());
    }
    Ok(wire)
}

impl Session<'_> {
    async fn serve(&mut self, ear: &mut Ear, until: Option<Instant>) -> Result<Leave, Gone> {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut credit = 0.0;
        loop {
            tokio::select! {
                event = self.wire.event() => self.take(event?, ear.phase()),
                _ = tick.tick() => {
                    let is_over = until.is_some_and(|until| Instant::now() >= until);
                    let is_idle = self.unconfirmed.len() == 0;
                    match ear.phase() {
                        RunPhase::Over => return Ok(Leave::Gently),
                        RunPhase::Load if is_over && self.stage == Stage::Working => self.publish_last(),
                        RunPhase::Load | RunPhase::Drain if is_over && is_idle => return Ok(Leave::Gently),
                        RunPhase::Load | RunPhase::Drain => {}
                    }
                    if ear.phase() == RunPhase::Load && !is_over {
                        let rate = f64::from(self.role.publishes) * self.world.pace;
                        credit = (credit + rate * TICK.as_secs_f64()).min(100.0);
                        self.publish(&mut credit);
                    }
                    if self.stage == Stage::Working {
                        self.ack_held();
                    }
                }
                told = ear.told() => match told {
                    Told::Cut => {
                        // Something to be in the middle of.
                        self.publish(&mut 5.0);
                        return Ok(Leave::Cut);
                    }
                    Told::Stall(span) => sleep(span).await,
                },
            }
        }
    }

    fn publish(&mut self, credit: &mut f64) {
        if self.role.publishes == 0 || self.world.is_behind() {
            return;
        }
        while *credit >= 1.0 && self.unconfirmed.len() < WINDOW && self.wire.unsent() < UNSENT_MAX {
            *credit -= 1.0;
            if self.workload.chances.u8(..) == 0 {
                self.publish_stray();
            }
            let message = self.workload.any(Way::Amqp);
            self.publish_message(&message);
        }
    }

    fn publish_message(&mut self, message: &Message) {
        let (exchange, routing_key) = message.address();
        let publish = methods::publish(ShortStr::from_static(exchange), ShortStr::from_static(routing_key));
        let publish = basic::Publish { mandatory: self.workload.chances.bool(), ..publish };
        let properties = properties(&message.stamp, message.delay, None);
        self.wire.publish(&publish, &properties, &message.stamp.body());
        self.unconfirmed.published(message.stamp, message.sent_at);
    }

    fn publish_last(&mut self) {
        if let Some((last, _)) = self.held.last_key_value() {
            self.ack_up_to(*last);
        }
        self.stage = Stage::Leaving;
        let message = self.workload.durable(Way::Amqp);
        self.publish_message(&message);
    }

    /// A message for a queue that there is not.
    fn publish_stray(&mut self) {
        let publish = methods::publish(ShortStr::EMPTY, ShortStr::from_static("nowhere"));
        let publish = basic::Publish { mandatory: true, ..publish };
        self.wire.publish(&publish, &[], b"stray");
        self.unconfirmed.published_stray();
    }

    fn take(&mut self, event: Event, phase: RunPhase) {
        match event {
            Event::Delivered(delivered) if self.stage == Stage::Working => self.receive(&delivered, phase),
            Event::Delivered(_) => {}
            Event::Returned(None) => self.unconfirmed.returned(),
            Event::Returned(Some(stamp)) => {
                let fact = format!("{stamp:?} came back although its queue is there");
                self.world.ledger().report(Violation::new(What::NotReturned, fact));
            }
            Event::Confirmed { tag, multiple } => {
                self.unconfirmed.confirmed(self.world, self.id, tag, multiple)
            }
            Event::Refused { tag, multiple } => self.unconfirmed.refused(self.world, tag, multiple),
            // `connection.blocked` and its like: the broker does not read, and so the window closes.
            Event::Other(_) => {}
        }
    }

    fn receive(&mut self, delivered: &Delivered, phase: RunPhase) {
        let place = self.role.consumes.iter().copied().find(|place| place.name() == delivered.consumer);
        let delivery = place.and_then(|place| judge(self.world, self.id, delivered, place));
        let Some(delivery) = delivery else { return };
        let place = delivery.place;
        let copy = match self.world.ledger().delivered(&delivery) {
            Reception::Work(copy) => copy,
            Reception::Late => return,
        };
        check_body(self.world, self.id, &delivery.stamp, place, &delivered.body);
        let (tag, now) = (delivered.tag, clock::now());
        match self.workload.decide(&delivery.stamp, place) {
            Decision::Fail if phase == RunPhase::Load || place != Place::ORDERED => {
                self.world.ledger().returned(copy, self.id, now);
                self.wire.send(&basic::Nack { delivery_tag: tag, multiple: false, requeue: true });
            }
            Decision::Reject => {
                self.world.ledger().rejected(copy, self.id, now);
                self.wire.send(&basic::Reject { delivery_tag: tag, requeue: false });
            }
            Decision::Hold => {
                self.held.insert(tag, copy);
            }
            // "All up to this one" takes those along that were held.
            Decision::Ack | Decision::Fail if self.workload.chances.u8(..10) == 0 => {
                self.held.insert(tag, copy);
                self.ack_up_to(tag);
            }
            Decision::Ack | Decision::Fail => {
                self.note_ack(copy);
                self.wire.send(&basic::Ack { delivery_tag: tag, multiple: false });
            }
        }
    }

    fn ack_up_to(&mut self, tag: u64) {
        let later = self.held.split_off(&(tag + 1));
        for copy in std::mem::replace(&mut self.held, later).into_values() {
            self.note_ack(copy);
        }
        self.wire.send(&basic::Ack { delivery_tag: tag, multiple: true });
    }

    fn ack_held(&mut self) {
        if self.workload.chances.u8(..10) == 0
            && let Some((last, _)) = self.held.last_key_value()
        {
            self.ack_up_to(*last);
        }
    }

    fn note_ack(&mut self, copy: Copy) {
        self.world.ledger().ack_sent(copy, self.id, clock::now());
        self.unconfirmed.acked(copy);
    }
}
