//! The lock of the group's state. Whoever panics while he holds it has left the group in the middle of something: it would
//! confirm what was never written. So the state is *broken* from then on, and this node takes no part until it is started again.

use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

use super::state::State;

#[derive(Debug)]
pub(crate) struct StateLock(Mutex<State>);

impl StateLock {
    pub(super) const fn new(state: State) -> Self {
        Self(Mutex::new(state))
    }

    pub(super) fn lock(&self) -> StateGuard<'_> {
        StateGuard::new(self.0.lock())
    }

    pub(super) fn try_lock(&self) -> Option<StateGuard<'_>> {
        self.0.try_lock().map(StateGuard::new)
    }
}

/// The state, for whoever has the lock.
pub(super) struct StateGuard<'a> {
    state: MutexGuard<'a, State>,
    /// A task that ends by a panic may give something back: that panic is no concern of the group.
    was_panicking: bool,
}

impl<'a> StateGuard<'a> {
    fn new(state: MutexGuard<'a, State>) -> Self {
        Self { state, was_panicking: std::thread::panicking() }
    }
}

impl Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        if !self.was_panicking && std::thread::panicking() {
            self.state.note_broken();
        }
    }
}
