//! Keeping publishers and consumers of a queue even.
//!
//! Whoever publishes as fast as it can takes the machine's time from those who consume. So publishers are slowed while
//! the *broker* is behind: while messages are ready for consumers that would take more. A consumer that is slow by
//! itself (it works, its credit is used up, its socket is full) slows nobody: to absorb peaks is what a queue is for.
//!
//! The two cannot be told apart by looking at one moment, because a busy machine makes every client look slow. So it is
//! tried out. When more is ready than [`SLACK_MESSAGES`], publishers that push much are stopped for a short
//! [`WATCH`]. If messages are handed out faster meanwhile, or lie in the mailboxes of consumers that could take
//! them, it was the publishers that held them up: then publishers go on only as fast as messages are handed out. If not,
//! publishers are left alone for a while, longer each time.
//!
//! Of one queue among hundreds too little is handed out in that time to tell. So all queues are watched at the same moments,
//! once the publishers of all have stopped, and what they hand out together is compared ([`Pool`]). If that is more without
//! publishers, each queue is paced on trial: it stays so if that helps its own consumers, and is left alone if not.
//!
//! Some publishers cannot be made to wait ([`Pacing::Unpaced`]): those that push a few messages in each call, and those
//! whose consumers wait for acknowledgements that come on the same connection. They must not use up what the others
//! wait for, so they count for at most half of what is handed out: others go as fast as the rest of it.

mod pool;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use nexo_core::rare::Empty;
use tokio::sync::Notify;

use crate::queue_cell::{CellState, QueueCell};
use crate::shared::Shared;

pub(crate) use pool::Pool;

/// Ready messages of a queue that are nobody's concern: they keep consumers busy while publishers are paused.
const SLACK_MESSAGES: u64 = 32_768;
/// As above, for large messages.
const SLACK_BYTES: u64 = 16 << 20;
/// For each quarter of the memory that they may take which messages of all queues do take, a queue's slack is one part in so
/// many: hundreds of queues with all of theirs would need more memory than there is.
const SLACK_PARTS: [u64; 4] = [1, 4, 16, 64];
/// For each quarter as above, what paced publishers may push of what is handed out, in eighths.
const REFILL_EIGHTHS: [u64; 4] = [7, 7, 5, 3];
/// How long publishers are stopped to see what consumers do then. Timers are late on a busy machine, and consumers come in
/// bursts: shorter would tell little.
pub(crate) const WATCH: Duration = Duration::from_millis(25);
/// How long it may take until all publishers have stopped: each finishes what it has read.
const STOPPING_MAX: Duration = Duration::from_millis(200);
/// How long publishers are left alone before that, at first: to see what consumers do otherwise …
const FREE_MIN: Duration = Duration::from_millis(100);
/// … and at most, if consumers turn out to be slow by themselves again and again. Then one part in 128 is lost.
const FREE_MAX: Duration = Duration::from_millis(3_200);
/// Publishers that were to be stopped this long ago had nothing to push then. One of hundreds has its turn a few times a
/// second.
const STALE: Duration = Duration::from_secs(1);
/// How long publishers are paced before it is tried out again.
const PACED: Duration = Duration::from_millis(3_200);
/// What paced consumers take is looked at again after this …
const PACED_WINDOW: Duration = Duration::from_millis(100);
/// … or this, where they take less than [`WORKING_PER_SECOND`]: one of hundreds has its turn a few times a second.
const PACED_WINDOW_OF_FEW: Duration = Duration::from_secs(1);
/// Consumers are held up if without publishers they get so many times as much, in eighths.
const HELD_UP_EIGHTHS: u64 = 10;
/// Consumers that take fewer messages a second than this have work to do, whatever else they wait for …
const WORKING_PER_SECOND: u64 = 20_000;
/// … unless they get so many times as much without publishers: theirs is one queue of hundreds …
const STARVED_TIMES: u64 = 4;
/// … and it is so much that it is not chance: some tens in the time for which they are watched.
const STARVED_PER_SECOND: u64 = 2_500;
/// How long it is tried whether pacing the publishers of one queue among many helps its consumers.
const TRIAL: Duration = Duration::from_secs(1);
/// It helps if they get more than before, by one part in so many.
const HELPED_PART: u64 = 16;
/// A queue whose consumers it did not help is not tried again for so long.
const TRIED: Duration = Duration::from_secs(30);
/// Consumers that take more messages a second than this do no more than pass them on: what limits them is the way there,
/// which they share with publishers.
const PASSING_ON_PER_SECOND: u64 = 200_000;
/// Consumers are held up if messages lay ready for one of them for one part in so many of the time.
const OWED_PART: u32 = 8;
/// Paced publishers are set free when consumers take less than one part in so many of what they took before.
const SLOWER_PART: u64 = 4;
/// What paced publishers may push beyond what was handed out before they pause, as a part of the slack: many short pauses
/// cost more than few long ones.
const DEBT_PART: u64 = 2;
/// Publishers that do not wait use up at most one part in so many of what is handed out.
const UNPACED_PART: u64 = 2;
/// Consumers that are asked how long messages lay ready for them; of more than these, some are.
const CONSUMERS_ASKED_MAX: usize = 64;

/// Queues are watched at the same moments, counted from here: stopping the publishers of one tells nothing while those
/// of others go on.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// What paused publishers of one queue wait for. All else is behind the queue's lock.
#[derive(Debug, Default)]
pub(crate) struct FlowGate {
    wake: Notify,
}

/// What is known about one queue's publishers and consumers.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Until when it is not tried again whether pacing helps.
    tried_until: Option<Instant>,
    phase: Option<FlowPhase>,
    /// Messages handed out, ever.
    delivered: u64,
    /// Messages that paced publishers may push; below zero, what was pushed beyond it.
    allowance: i64,
    /// How much of it others may use up.
    unpaced_room: u64,
    /// How long publishers were last left alone.
    free_for: Duration,
    /// What consumers took while publishers were left alone.
    free: Rates,
}

#[derive(Clone, Copy, Debug)]
enum FlowPhase {
    /// Publishers are left alone.
    Free { from: Mark, until: Instant },
    /// Publishers are stopped, and consumers are watched from when the last of them has.
    Watch { from: Mark, until: Instant },
    /// Publishers go as fast as consumers do. `rate` is what those took when they were watched.
    Paced { from: Mark, until: Instant, rate: u64 },
    /// The same, for as long as it takes to see whether that helps consumers, which took `before` a second without.
    Trial { from: Mark, before: u64 },
}

/// The next moment that all queues share, half an interval away at least.
fn common_moment(now: Instant, every: Duration) -> Instant {
    let elapsed = now.saturating_duration_since(*EPOCH) + every / 2;
    let passed = elapsed.as_nanos() / every.as_nanos().max(1);
    *EPOCH + every * u32::try_from(passed + 1).unwrap_or(u32::MAX)
}

/// What all queues have to do with the flow of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'a> {
    /// Messages that all of them have handed out, ever.
    delivered: u64,
    pool: &'a Pool,
    slack: Slack,
}

/// What may be ready in a queue before its publishers are looked at.
#[derive(Clone, Copy, Debug)]
struct Slack {
    messages: u64,
    bytes: u64,
    /// How much paced publishers may push of what is handed out.
    refill_eighths: u64,
}

impl Slack {
    /// Where messages of all queues take so much of the memory that they may.
    fn at(used_bytes: u64, max_bytes: u64) -> Self {
        let quarters = used_bytes.saturating_mul(4) / max_bytes.max(1);
        let level = usize::try_from(quarters).unwrap_or(usize::MAX).min(SLACK_PARTS.len() - 1);
        let (parts, refill_eighths) = (SLACK_PARTS[level], REFILL_EIGHTHS[level]);
        Self { messages: SLACK_MESSAGES / parts, bytes: SLACK_BYTES / parts, refill_eighths }
    }

    /// What paced publishers may push beyond what was handed out.
    const fn debt(self) -> i64 {
        (self.messages / DEBT_PART) as i64
    }
}

/// A moment, and how many messages had been handed out by then.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    delivered: u64,
    /// Of all queues.
    delivered_by_all: u64,
}

/// Messages a second.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    own: u64,
    /// Of all queues.
    all: u64,
}

impl Rates {
    /// Whether consumers get more than they did before, so that it is not chance.
    fn exceed(self, before: Self) -> bool {
        // Of one queue among many, too few messages come in a short time to tell; all of them together do.
        is_more(self.own, before.own) || (self.all_exceed(before) && self.own >= before.own / 2)
    }

    fn all_exceed(self, before: Self) -> bool {
        self.all > WORKING_PER_SECOND && is_more(self.all, before.all)
    }
}

const fn is_more(now: u64, before: u64) -> bool {
    now / HELD_UP_EIGHTHS > before / 8
}

impl Mark {
    fn rates(self, now: Mark) -> Rates {
        let nanos = now.at.saturating_duration_since(self.at).as_nanos().max(1);
        let rate = |now: u64, then: u64| {
            let count = u128::from(now.saturating_sub(then));
            u64::try_from(count * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
        };
        Rates {
            own: rate(now.delivered, self.delivered),
            all: rate(now.delivered_by_all, self.delivered_by_all),
        }
    }

    fn age(self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }
}

/// What a publisher does when it should pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// It waits for as long as it should.
    Paced,
    /// It does not, or only for a moment.
    Unpaced,
}

/// How a queue stands after a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evenness {
    /// Its consumers get what comes.
    Even,
    /// More is ready than its consumers take: others should have their turn.
    Uneven,
    /// The publisher should wait before it pushes much more.
    Pause,
}

/// What a publisher does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Go on, and so may others.
    Push,
    /// Go on; others may when more has been handed out.
    PushAlone,
    /// Wait until woken, at most until then.
    WaitUntil(Instant),
}

impl Empty for Flow {
    const EMPTY: &'static Self = &Self {
        tried_until: None,
        phase: None,
        delivered: 0,
        allowance: 0,
        unpaced_room: 0,
        free_for: Duration::ZERO,
        free: Rates { own: 0, all: 0 },
    };
}

impl Flow {
    /// Notes a push to a queue that has too much, and says whether its publisher should pause.
    fn pushed(&mut self, now: Instant, around: Surroundings<'_>, count: u64, pacing: Pacing) -> bool {
        let delivered_by_all = around.delivered;
        self.charge(count, pacing);
        match self.phase {
            None => {
                self.leave_alone(self.mark(now, delivered_by_all));
                false
            }
            Some(FlowPhase::Free { until, .. }) if now >= until + STALE => {
                // It had too much long ago. What consumers took since then tells nothing.
                let from = self.mark(now, delivered_by_all);
                self.phase = Some(FlowPhase::Free { from, until: common_moment(now, self.free_for) });
                false
            }
            Some(FlowPhase::Free { until, .. }) => {
                if now >= until && pacing == Pacing::Paced {
                    around.pool.note_push(now);
                }
                now >= until
            }
            Some(FlowPhase::Watch { until, .. }) => {
                // One that does not stop would have the others stopped in vain.
                if now < until && pacing == Pacing::Paced {
                    around.pool.note_push(now);
                    self.phase = Some(FlowPhase::Watch { from: self.mark(now, delivered_by_all), until });
                }
                true
            }
            Some(FlowPhase::Paced { .. } | FlowPhase::Trial { .. }) => self.allowance <= -around.slack.debt(),
        }
    }

    /// What was pushed beyond what publishers might.
    #[cfg(test)]
    pub(crate) const fn charged(&self) -> i64 {
        -self.allowance
    }

    fn charge(&mut self, count: u64, pacing: Pacing) {
        let charged = match pacing {
            Pacing::Paced => count,
            Pacing::Unpaced => count.min(self.unpaced_room),
        };
        if pacing == Pacing::Unpaced {
            self.unpaced_room -= charged;
        }
        self.allowance = self.allowance.saturating_sub_unsigned(charged);
    }

    /// Notes that messages were handed out. Publishers may push a little less than that, so that what is too much goes; the
    /// less, the fuller memory is.
    fn delivered(&mut self, slack: Slack, count: u64) {
        self.delivered += count;
        let more = count * slack.refill_eighths / 8;
        self.allowance = self.allowance.saturating_add_unsigned(more).min(SLACK_MESSAGES as i64);
        self.unpaced_room = self.unpaced_room.saturating_add(more / UNPACED_PART).min(SLACK_MESSAGES);
    }

    /// So few messages are ready that nobody need be paused.
    fn settle_up(&mut self) {
        self.clear_allowance();
        if matches!(self.phase, Some(FlowPhase::Watch { .. })) {
            self.phase = None;
        }
    }

    fn lets_push(&self) -> bool {
        matches!(self.phase, Some(FlowPhase::Paced { .. } | FlowPhase::Trial { .. })) && self.allowance > 0
    }

    /// What a paused publisher does next. `owed` tells for how long, since a moment, messages lay ready for the
    /// consumer for which they did so longest.
    fn step(
        &mut self,
        now: Instant,
        around: Surroundings<'_>,
        owed: impl FnOnce(Instant) -> Duration,
    ) -> Step {
        let (here, pool) = (self.mark(now, around.delivered), around.pool);
        match self.phase {
            None => {
                self.leave_alone(here);
                Step::Push
            }
            Some(FlowPhase::Free { until, .. }) if now < until => Step::Push,
            Some(FlowPhase::Free { from, .. }) => {
                self.free = from.rates(here);
                self.phase = Some(FlowPhase::Watch { from: here, until: now + STOPPING_MAX });
                Step::WaitUntil(now + WATCH)
            }
            Some(FlowPhase::Watch { from, .. }) if from.age(now) < WATCH => Step::WaitUntil(from.at + WATCH),
            Some(FlowPhase::Watch { from, until }) if now < until && pool.has_pushed_since(from.at) => {
                // Publishers of another queue have stopped only now.
                self.phase = Some(FlowPhase::Watch { from: here, until });
                Step::WaitUntil(now + WATCH)
            }
            Some(FlowPhase::Watch { from, .. }) => {
                let rates = from.rates(here);
                if rates.all_exceed(self.free) {
                    pool.note_held_up(common_moment(now, PACED));
                }
                let quicker = rates.own > WORKING_PER_SECOND && rates.exceed(self.free);
                let quicker = quicker || rates.own > PASSING_ON_PER_SECOND;
                let starved = rates.own > STARVED_PER_SECOND && rates.own / STARVED_TIMES > self.free.own;
                let quicker = quicker || starved;
                if quicker || owed(from.at) >= from.age(now) / OWED_PART {
                    self.free_for = Duration::ZERO;
                    self.clear_allowance();
                    let until = common_moment(now, PACED);
                    self.phase = Some(FlowPhase::Paced { from: here, until, rate: rates.own });
                    return Step::WaitUntil(now + WATCH);
                }
                // In so short a time, one of hundreds may have had no turn.
                let moves = rates.own > 0 || self.free.own > 0;
                let may_try = moves && self.tried_until.is_none_or(|until| now >= until);
                if may_try && let Some(until) = pool.held_up_until(now) {
                    self.clear_allowance();
                    if !rates.all_exceed(self.free) {
                        // Others are paced already, so there is nothing to compare with until all of them are free. If its
                        // consumers are slow by themselves that is in vain, so not for long.
                        let until = until.min(now + TRIAL);
                        self.phase = Some(FlowPhase::Paced { from: here, until, rate: rates.own });
                        return Step::WaitUntil(now + WATCH);
                    }
                    self.phase = Some(FlowPhase::Trial { from: here, before: self.free.own });
                    return Step::WaitUntil(now + WATCH);
                }
                self.leave_alone(here);
                Step::Push
            }
            Some(FlowPhase::Trial { from, .. }) if from.age(now) < TRIAL => self.paced_step(now),
            Some(FlowPhase::Trial { from, before }) => {
                let own = from.rates(here).own;
                if own <= before + before / HELPED_PART {
                    self.tried_until = Some(now + TRIED);
                    self.leave_alone(here);
                    return Step::Push;
                }
                self.free_for = Duration::ZERO;
                self.phase =
                    Some(FlowPhase::Paced { from: here, until: common_moment(now, PACED), rate: own });
                self.paced_step(now)
            }
            Some(FlowPhase::Paced { from, until, rate }) => {
                let window = if rate > WORKING_PER_SECOND { PACED_WINDOW } else { PACED_WINDOW_OF_FEW };
                let looks = from.age(now) >= window;
                let own = from.rates(here).own;
                if now >= until || (looks && (own == 0 || own < rate / SLOWER_PART)) {
                    self.leave_alone(here);
                    return Step::Push;
                }
                if looks {
                    self.phase = Some(FlowPhase::Paced { from: here, until, rate });
                }
                self.paced_step(now)
            }
        }
    }

    fn paced_step(&self, now: Instant) -> Step {
        if self.allowance > 0 { Step::PushAlone } else { Step::WaitUntil(now + WATCH) }
    }

    fn leave_alone(&mut self, here: Mark) {
        self.free_for = (self.free_for * 2).clamp(FREE_MIN, FREE_MAX);
        self.phase = Some(FlowPhase::Free { from: here, until: common_moment(here.at, self.free_for) });
        self.clear_allowance();
    }

    const fn clear_allowance(&mut self) {
        (self.allowance, self.unpaced_room) = (0, 0);
    }

    const fn mark(&self, at: Instant, delivered_by_all: u64) -> Mark {
        Mark { at, delivered: self.delivered, delivered_by_all }
    }
}

impl CellState {
    /// Whether more is ready for consumers than keeps them busy, before a push.
    pub(crate) fn is_ahead(&self, around: Surroundings<'_>) -> bool {
        self.has_too_much(around.slack)
    }

    /// Notes a push that was taken, and says whether its publisher should pause. `was_ahead` is what
    /// [`Self::is_ahead`] said before it.
    pub(crate) fn pushed(
        &mut self,
        was_ahead: bool,
        around: Surroundings<'_>,
        count: u64,
        pacing: Pacing,
    ) -> Evenness {
        if !was_ahead {
            return Evenness::Even;
        }
        let pauses = self.flow.pushed(Instant::now(), around, count, pacing);
        if pauses { Evenness::Pause } else { Evenness::Uneven }
    }

    /// Notes that messages were handed out, and lets publishers go on if they may.
    pub(crate) fn delivered(&mut self, around: Surroundings<'_>, gate: &FlowGate, count: u64) {
        self.flow.delivered(around.slack, count);
        if self.flow.phase.is_none() {
            return;
        }
        if !self.has_too_much(around.slack) {
            self.flow.settle_up();
            gate.wake.notify_one();
        } else if self.flow.lets_push() {
            gate.wake.notify_one();
        }
    }

    /// Whether more is ready for consumers than keeps them busy.
    fn has_too_much(&self, slack: Slack) -> bool {
        let (ready, consumers) = self.queue.counts();
        consumers > 0 && (ready > slack.messages || self.queue.ready_bytes() > slack.bytes)
    }

    fn flow_step(&mut self, now: Instant, around: Surroundings<'_>) -> Step {
        if self.deleted || !self.has_too_much(around.slack) {
            self.flow.settle_up();
            return Step::Push;
        }
        let mailboxes = &self.mailboxes;
        self.flow.step(now, around, |since| {
            let owed =
                mailboxes.0.values().take(CONSUMERS_ASKED_MAX).map(|mailbox| mailbox.owed_since(since));
            owed.max().unwrap_or_default()
        })
    }
}

impl Shared {
    /// What all queues have to do with the flow of one, now.
    pub(crate) fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            delivered: self.dispatch.delivered(),
            pool: &self.dispatch.pool,
            slack: Slack::at(self.message_memory_bytes(), self.message_bytes_max()),
        }
    }

    /// Waits while consumers of a queue wait for the broker.
    pub(crate) async fn until_even(&self, cell: &QueueCell) {
        loop {
            let woken = cell.gate.wake.notified();
            let around = self.surroundings();
            let step = cell.state.lock().flow_step(Instant::now(), around);
            match step {
                Step::Push => break,
                Step::PushAlone => return,
                Step::WaitUntil(until) => {
                    let _ = tokio::time::timeout_at(until.into(), woken).await;
                }
            }
        }
        // One wakes the next: all of them at once would only queue for the lock.
        cell.gate.wake.notify_one();
    }
}

#[cfg(test)]
mod tests;
