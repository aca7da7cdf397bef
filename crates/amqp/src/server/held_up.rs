//! A connection that waits with what it publishes, for the disk or until an alarm is over. Meanwhile it takes no frames, so nothing overtakes what
//! waits; everything else goes on: it delivers, sends heartbeats, and notices that its peer is gone.

use std::time::{Duration, Instant};

use nexo_broker::{Alarm, QueueError, Settling};
use nexo_types::QueueName;

use super::operations::{self, Wait};
use super::session::{Peer, Session};
use crate::codec::method::{connection, tx};
use crate::codec::{AmqpMethod, ShortStr};

/// A publisher that has waited this long for the disk is worth a line in the log.
const BEHIND_TOLD_AFTER: Duration = Duration::from_secs(5);

/// What a session was held up by.
#[derive(Debug)]
pub(super) enum Waited {
    /// Others had their turn, or the disk has caught up.
    Turn,
    /// It is certain that some of what a commit publishes goes nowhere, or not.
    Certain(Result<(), QueueError>),
    /// What a commit settles is safe, or not: what is left to wait for, and why.
    Settled { left: Vec<Settling>, outcome: Result<(), QueueError> },
}

/// A disk that is behind, as a publisher sees it.
#[derive(Debug)]
pub(super) struct Behind {
    since: Instant,
    /// Where the next of its messages goes; `None` if several queues share it.
    queue: Option<QueueName>,
    /// Whether the operator has been told.
    is_told: bool,
}

impl Session {
    /// Takes no more from the client until there is room.
    pub(super) fn block(&mut self, alarm: &Alarm) {
        if self.blocked {
            return;
        }
        // That there is an alarm the log is told once, and there may be thousands of publishers.
        tracing::info!(protocol = "amqp", peer = %Peer(self.peer), user = self.user.as_str(), reason = alarm.reason, "a publisher waits");
        self.blocked = true;
        self.shown.set_blocked(true);
        if self.abilities.blocked {
            let mut all = self.shared.broker.alarms();
            if !all.iter().any(|other| other.resource == alarm.resource) {
                all.push(alarm.clone());
            }
            let reason = low_on(&all);
            self.out.method(0, &connection::Blocked { reason: ShortStr::clipped(reason.as_bytes()) });
        }
    }

    /// Goes on if there is room again.
    pub(super) fn unblock(&mut self) {
        if self.blocked && self.shared.broker.alarms().is_empty() {
            self.go_on();
        }
    }

    /// Does what waited for room, as far as there is by now.
    pub(super) fn go_on(&mut self) {
        let Some(published) = self.flush_publishes() else { return };
        if let Some(mut commit) = self.unfinished.take() {
            commit.published = commit.published.and(published);
            let channel = commit.channel;
            let finished = self.finish_commit(commit);
            self.conclude(channel, finished.map_err(|refusal| refusal.of(tx::Commit::ID)));
        }
        if self.unfinished.is_some() || !self.outbox.is_empty() {
            // There was not enough of it.
            return;
        }
        self.flush_acks();
        if self.blocked && self.shared.broker.alarms().is_empty() {
            self.blocked = false;
            self.shown.set_blocked(false);
            if self.abilities.blocked {
                self.out.method(0, &connection::Unblocked {});
            }
        }
    }

    /// Has what is published, and every frame, wait for something.
    pub(super) fn hold_up(&mut self, until: Wait) {
        self.held_up = Some(operations::wait(&self.shared.broker, until));
    }

    /// Goes on after it was held up.
    pub(super) fn has_waited(&mut self, waited: Waited, now: Instant) {
        self.now = now;
        self.held_up = None;
        match (waited, &mut self.unfinished) {
            (Waited::Settled { left, outcome }, Some(commit)) => commit.note_settled(left, outcome),
            (Waited::Certain(outcome), Some(commit)) => commit.note_certain(outcome),
            (Waited::Turn | Waited::Settled { .. } | Waited::Certain(_), _) => {}
        }
        self.go_on();
        self.run_steps();
    }

    /// Notes that the disk is behind, and for which queue something could not be pushed.
    pub(super) fn note_behind(&mut self, queue: Option<&QueueName>) {
        let since = self.now;
        let behind = self.behind.get_or_insert(Behind { since, queue: None, is_told: false });
        behind.queue = queue.cloned();
    }

    /// Tells the operator of a publisher that has waited for long.
    pub(super) fn tell_of_wait(&mut self) {
        let ((messages, bytes), now) = (self.outbox.waiting(), self.now);
        let Some(behind) = &mut self.behind else { return };
        let waited = now.saturating_duration_since(behind.since);
        let seconds = waited.as_secs();
        if behind.is_told || waited < BEHIND_TOLD_AFTER {
            return;
        }
        behind.is_told = true;
        let queue =
            behind.queue.as_ref().map_or_else(|| "several".into(), |queue| queue.in_full().to_string());
        let unwritten_bytes = self.shared.broker.unwritten_bytes();
        tracing::warn!(
            protocol = "amqp", peer = %Peer(self.peer), user = self.user.as_str(), queue, seconds, messages, bytes, unwritten_bytes,
            "a publisher waits: the disk is behind"
        );
    }

    /// Notes that everything is pushed.
    pub(super) fn note_caught_up(&mut self) {
        let Some(behind) = self.behind.take().filter(|behind| behind.is_told) else { return };
        let seconds = self.now.saturating_duration_since(behind.since).as_secs();
        tracing::info!(protocol = "amqp", peer = %Peer(self.peer), seconds, "a publisher goes on: the disk has caught up");
    }
}

/// What a client is told: RabbitMQ's words, which some look at.
fn low_on(alarms: &[Alarm]) -> String {
    let resources: Vec<&str> = alarms.iter().map(|alarm| alarm.resource.name()).collect();
    format!("low on {}", resources.join(" & "))
}

#[cfg(test)]
mod tests {
    use nexo_broker::Resource;

    use super::*;

    #[test]
    fn a_client_is_told_what_runs_short() {
        let alarm = |resource| Alarm { resource, reason: "in many words".to_owned() };
        assert_eq!(low_on(&[alarm(Resource::Memory)]), "low on memory");
        assert_eq!(low_on(&[alarm(Resource::Memory), alarm(Resource::Disk)]), "low on memory & disk");
    }
}
