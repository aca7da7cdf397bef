//! Keeping pace: a connection that publishes faster than the log can write is not read from until the log has caught
//! up, or its appends would wait on a thread that others need. The same holds for one that publishes so much that the
//! consumers of its queues are not served in time.
//!
//! A connection that consumes as well is not read from while it is paused, so its acknowledgements are not either. When
//! its consumers may hold no more until some come ([`Awaits::Acks`]), a long pause would wait for itself: nothing is
//! handed out, so nobody may publish. Such a connection pauses for a moment only ([`PAUSE_AWAITING_ACKS`]) and publishes
//! a few messages at a time in between ([`RATION_MESSAGES`]), which is more than clients publish that do anything else.
//! What it publishes goes to its queues and is not set aside until others have caught up: a queue has a bound in memory
//! and the disk behind it, and an acknowledgement overtakes what was published before it only on a full disk, where it may be
//! what makes room.
//!
//! What a client has written before an acknowledgement is read before it. One that publishes faster than the broker
//! reads keeps its own acknowledgements waiting in the sockets' buffers, and no pause makes that better.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use nexo_broker::{Broker, Pacing, QueueHandle};

use super::operations;

/// Messages that a connection may publish without being paused: whoever publishes little keeps nobody from anything.
const UNPAUSED_MESSAGES: usize = 256;
/// As above, for large messages.
const UNPAUSED_BYTES: usize = 64 << 10;

/// The longest pause. Much shorter ones are usual: this is for a connection that waits in vain, on which a client may
/// have asked for something. With a hundred publishers one in turn waits longer than a second, and whoever gives up pushes all
/// that it has read.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// As above, for a connection whose consumers wait for acknowledgements.
const PAUSE_AWAITING_ACKS: Duration = Duration::from_millis(1);
/// What is published between pauses that did not last until consumers were served: so many messages …
pub(super) const RATION_MESSAGES: usize = 2 * UNPAUSED_MESSAGES;
/// … or so many bytes.
pub(super) const RATION_BYTES: usize = 2 * UNPAUSED_BYTES;

/// A connection that always has more to read works so long before others have their turn: changing tasks costs …
const TURN: Duration = Duration::from_millis(10);
/// … but consumers that do not get what comes should get theirs.
const TURN_UNEVEN: Duration = Duration::from_micros(500);

/// What a connection that publishes waits for.
#[derive(Default)]
pub(super) struct Pace {
    /// The disk is behind.
    disk: Option<BoxFuture<'static, ()>>,
    pause: Option<Pause>,
    messages: usize,
    bytes: usize,
    uneven: bool,
    /// Whether the last pause ended before consumers were served.
    rationed: bool,
}

/// Consumers of its queues are behind.
struct Pause {
    /// When it was first waited for.
    began: Option<Instant>,
    served: BoxFuture<'static, ()>,
}

/// What a connection's own consumers wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaits {
    /// Acknowledgements, which come on the same connection.
    Acks,
    /// Messages, or nothing.
    NoAcks,
}

/// What was pushed.
#[derive(Debug, Default)]
pub(super) struct Pushed {
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// Whether consumers of one of the queues do not get what comes.
    pub(super) uneven: bool,
    /// Queues that ask for a pause.
    pub(super) pauses: Vec<QueueHandle>,
}

impl Pace {
    /// Looks how far the disk has come, after something was pushed, and whether consumers are served.
    pub(super) fn check(&mut self, broker: &Broker, pushed: Pushed) {
        self.messages += pushed.messages;
        self.bytes += pushed.bytes;
        let much = self.messages > UNPAUSED_MESSAGES || self.bytes > UNPAUSED_BYTES;
        self.uneven = pushed.uneven;
        self.rationed &= pushed.uneven;
        let pauses = if much { pushed.pauses } else { Vec::new() };
        let disk = broker.disk_behind();
        if disk.is_none() && pauses.is_empty() {
            return;
        }
        (self.messages, self.bytes) = (0, 0);
        if let Some(written) = disk {
            self.disk = Some(operations::written(broker, written));
        }
        if !pauses.is_empty() {
            self.pause_until(operations::even(pauses));
        }
    }

    pub(super) fn pause_until(&mut self, served: BoxFuture<'static, ()>) {
        self.pause = Some(Pause { began: None, served });
    }

    /// How long the connection may read on before others have their turn.
    pub(super) const fn turn(&self) -> Duration {
        if self.uneven { TURN_UNEVEN } else { TURN }
    }

    pub(super) const fn is_behind(&self) -> bool {
        self.disk.is_some() || self.pause.is_some()
    }

    /// Whether little may be published before the next pause.
    pub(super) const fn is_rationed(&self) -> bool {
        self.rationed
    }

    pub(super) const fn pacing(&self) -> Pacing {
        if self.rationed { Pacing::Unpaced } else { Pacing::Paced }
    }

    /// The disk, if it is behind.
    pub(super) const fn disk(&mut self) -> Option<&mut BoxFuture<'static, ()>> {
        self.disk.as_mut()
    }

    pub(super) fn disk_has_caught_up(&mut self) {
        self.disk = None;
    }

    /// What a pause waits for, if there is one, and when it ends though that has not come.
    pub(super) fn pause(
        &mut self,
        awaits: Awaits,
        now: Instant,
    ) -> Option<(&mut BoxFuture<'static, ()>, Instant)> {
        let most = match awaits {
            Awaits::Acks => PAUSE_AWAITING_ACKS,
            Awaits::NoAcks => PAUSE_MAX,
        };
        let pause = self.pause.as_mut()?;
        let began = *pause.began.get_or_insert(now);
        Some((&mut pause.served, began + most))
    }

    /// A pause is over: `in_time` if consumers have been served.
    pub(super) fn end_pause(&mut self, in_time: bool) {
        self.rationed = !in_time;
        self.pause = None;
    }
}
