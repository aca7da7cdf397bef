//! What time brings to a session: heartbeats, what is tried again, and clients that take too long. The time comes in with
//! every event; nothing here reads a clock.

use std::time::{Duration, Instant};

use super::error::Refusal;
use super::session::{ChannelState, ConnectionPhase, Peer, Session};

/// How long a client may take to agree to the end if it cannot be understood any more; otherwise `close_max`.
const DEAF_CLOSE_MAX: Duration = Duration::from_secs(1);
const BLOCKED_TICK: Duration = Duration::from_millis(200);
/// The same, where the disk is behind for a moment: a client may wait for what its acknowledgements make room for.
const BUSY_TICK: Duration = Duration::from_millis(5);
/// How often is looked for clients that hold messages too long: a tenth of that time, within these bounds.
const TIMEOUT_TICK_MIN: Duration = Duration::from_secs(1);
const TIMEOUT_TICK_MAX: Duration = Duration::from_secs(60);
pub(super) const IDLE_TICK: Duration = Duration::from_secs(3600);

/// When things happened last, and when the connection is over.
#[derive(Debug)]
pub(super) struct Timing {
    /// When the peer was last heard of.
    heard: Instant,
    /// When the peer last heard of us.
    told: Instant,
    closing_until: Option<Instant>,
    /// Whether the session was held back at the last tick: what the peer said meanwhile may have to be read first.
    was_held_back: bool,
    /// Whether the peer's bytes make no sense any more.
    pub(super) is_deaf: bool,
}

impl Timing {
    pub(super) const fn new(now: Instant) -> Self {
        Self { heard: now, told: now, closing_until: None, was_held_back: false, is_deaf: false }
    }
}

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    GoesOn,
    Over,
}

impl Session {
    /// Something has come from the peer.
    pub(super) const fn has_heard(&mut self, now: Instant) {
        self.now = now;
        self.timing.heard = now;
    }

    /// The socket has taken so many bytes.
    pub(super) fn has_written(&mut self, count: usize, now: Instant) {
        self.now = now;
        self.out.advance(count);
        self.timing.told = now;
    }

    /// Goes on to the end of the connection. For that, too, there is a time limit.
    pub(super) fn enter(&mut self, phase: ConnectionPhase) {
        self.phase = phase;
        let close_max = self.shared.options.close_max;
        self.end_within(if self.timing.is_deaf { DEAF_CLOSE_MAX.min(close_max) } else { close_max });
    }

    /// The connection ends after this time at the latest.
    pub(super) fn end_within(&mut self, wait: Duration) {
        let until = self.now + wait;
        self.timing.closing_until = Some(self.timing.closing_until.map_or(until, |before| before.min(until)));
    }

    /// After how long the next tick should come, at the latest.
    pub(super) fn tick_within(&self) -> Duration {
        let half_beat = Duration::from_millis(500) * u32::from(self.limits.heartbeat);
        let mut wait = if half_beat.is_zero() { IDLE_TICK } else { half_beat };
        if let Some(timeout) = self.shortest_timeout {
            wait = wait.min((timeout / 10).clamp(TIMEOUT_TICK_MIN, TIMEOUT_TICK_MAX));
        }
        if self.intake.held_bytes() > 0 {
            wait = wait.min(TIMEOUT_TICK_MIN);
        }
        if self.settles_late() || self.settles_left {
            wait = wait.min(BUSY_TICK);
        }
        if let Some(expires) = self.expires {
            wait = wait.min(expires.saturating_duration_since(self.now).max(BLOCKED_TICK));
        }
        if self.behind.is_some() {
            wait = wait.min(TIMEOUT_TICK_MIN);
        }
        let waits_for_disk = self.blocked || self.settle_refusal.is_some();
        if waits_for_disk || self.withholds || self.timing.closing_until.is_some() {
            wait = wait.min(BLOCKED_TICK);
        }
        wait
    }

    /// Looks after everything that time brings.
    pub(super) fn tick(&mut self, now: Instant) -> Life {
        self.now = now;
        if self.timing.closing_until.is_some_and(|until| now >= until) {
            return Life::Over;
        }
        if self.expires.is_some_and(|expires| now >= expires) && self.phase == ConnectionPhase::Running {
            self.credential_expired();
        }
        let is_held_back = self.is_held_back();
        let was_held_back = std::mem::replace(&mut self.timing.was_held_back, is_held_back) || is_held_back;
        self.settle_refused();
        self.tell_of_wait();
        self.unblock();
        if self.withholds {
            self.give_withheld();
        }
        self.end_standstill();
        self.out.release();
        if self.shortest_timeout.is_some() && !was_held_back {
            self.enforce_timeouts();
        }
        // Answers that steps wait for may have been given by this.
        self.run_steps();
        self.beat()
    }

    /// Tells the peer that we are here, and looks whether it is.
    fn beat(&mut self) -> Life {
        let (now, beat) = (self.now, Duration::from_secs(self.limits.heartbeat.into()));
        if beat.is_zero() {
            return Life::GoesOn;
        }
        // Ticks come every half beat; a little early is as good.
        if self.out.is_empty() && now.duration_since(self.timing.told) >= beat * 2 / 5 {
            self.out.heartbeat();
        }
        if !self.reads() {
            // It may well have been heard of.
            self.timing.heard = now;
        }
        if now.duration_since(self.timing.heard) > beat * 2 {
            tracing::info!(protocol = "amqp", peer = %Peer(self.peer), "connection lost: no heartbeat");
            return Life::Over;
        }
        Life::GoesOn
    }

    pub(super) fn note_timeout(&mut self, timeout: Option<Duration>) {
        self.shortest_timeout = self.shortest_timeout.into_iter().chain(timeout).min();
    }

    /// Closes channels whose client holds a message for longer than its queue allows.
    fn enforce_timeouts(&mut self) {
        if self.is_held_back() || self.unfinished.is_some() {
            // It may well have acknowledged. And what a commit publishes needs its channel.
            return;
        }
        let mut late = Vec::new();
        for (number, channel_state) in &self.channels {
            let ChannelState::Open(channel) = channel_state else { continue };
            let overdue = channel.unacked.iter().find_map(|held| {
                let timeout = held.source.timeout?;
                (self.now.saturating_duration_since(held.since) > timeout).then_some(timeout)
            });
            late.extend(overdue.map(|timeout| (*number, timeout)));
        }
        for (number, timeout) in late {
            let refusal = Refusal::precondition(format!(
                "delivery acknowledgement on channel {number} timed out. Timeout value used: {} ms. This timeout value \
                 can be configured, see consumers doc guide to learn more",
                timeout.as_millis()
            ));
            self.close_channel(number, &refusal);
        }
    }
}
