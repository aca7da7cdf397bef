//! For how long messages lay ready for a consumer that could take them: then the broker is behind, not the consumer.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::flow::WATCH;

/// Whether the one at the other end takes more. Shared by all consumers of a connection.
#[derive(Debug, Default)]
pub struct SocketState {
    state: Mutex<Stalls>,
}

#[derive(Debug, Default)]
struct Stalls {
    stalled: bool,
    /// How often it has stalled.
    stalls: u64,
}

impl SocketState {
    /// Notes whether its socket took what was written last.
    pub fn set_stalled(&self, stalled: bool) {
        let mut state = self.state.lock();
        if stalled && !state.stalled {
            state.stalls += 1;
        }
        state.stalled = stalled;
    }

    /// How often it has stalled, unless it does so now.
    fn stalls(&self) -> Option<u64> {
        let state = self.state.lock();
        (!state.stalled).then_some(state.stalls)
    }
}

/// How long a consumer has been owed messages that it could take.
#[derive(Debug, Default)]
pub(crate) struct OwedClock {
    /// Since when, and how often its peer had stalled by then.
    since: Option<(Instant, u64)>,
    /// Times that are over, and when the last of them ended. Kept for one window.
    sum: Duration,
    sum_since: Option<Instant>,
}

impl OwedClock {
    /// Messages have come for a consumer that had none.
    pub(crate) fn start(&mut self, socket: &SocketState) {
        self.since = socket.stalls().map(|stalls| (Instant::now(), stalls));
    }

    /// It has taken them.
    pub(crate) fn stop(&mut self, socket: &SocketState) {
        let Some((since, stalls)) = self.since.take() else { return };
        if socket.stalls() != Some(stalls) {
            return;
        }
        let now = Instant::now();
        if self.sum_since.is_none_or(|began| now.duration_since(began) > WATCH * 2) {
            (self.sum, self.sum_since) = (Duration::ZERO, Some(now));
        }
        self.sum += now.duration_since(since);
    }

    /// For how long it was owed messages since `then`, near enough.
    pub(crate) fn since(&self, then: Instant, socket: &SocketState) -> Duration {
        let ended = if self.sum_since.is_some_and(|began| began >= then) { self.sum } else { Duration::ZERO };
        match self.since {
            Some((since, stalls)) if socket.stalls() == Some(stalls) => ended + since.max(then).elapsed(),
            Some(_) | None => ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_takes_nothing_is_owed_nothing() {
        let socket = SocketState::default();
        let mut clock = OwedClock::default();
        let then = Instant::now();
        clock.start(&socket);
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.since(then, &socket) >= Duration::from_millis(2));
        socket.set_stalled(true);
        assert_eq!(clock.since(then, &socket), Duration::ZERO);
        socket.set_stalled(false);
        clock.stop(&socket);
        assert_eq!(clock.since(then, &socket), Duration::ZERO, "it had stalled meanwhile");
    }
}
