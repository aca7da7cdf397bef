//! What a channel or a connection that ends leaves to the broker.

use nexo_broker::Settle;

use super::session::ChannelState;
use super::settle::BySource;
use super::transactions::Unfinished;

/// With more unsettled messages than this a connection that ends gives them back on a thread of its own.
pub(super) const RETURNED_HERE_MAX: usize = 10_000;

/// What is left, given back when it is dropped. The fields are dropped in this order: what was said counts before the rest
/// goes back.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) refused: Vec<(Settle, BySource)>,
    pub(super) unfinished: Option<Unfinished>,
    pub(super) channel_states: Vec<ChannelState>,
}

impl Leaving {
    /// Whether giving it back would keep a thread from others.
    pub(super) fn is_large(&self) -> bool {
        self.messages() > RETURNED_HERE_MAX
    }

    fn messages(&self) -> usize {
        let unsettled = |channel_state: &ChannelState| match channel_state {
            ChannelState::Open(channel) => channel.unsettled(),
            ChannelState::Closing => 0,
        };
        let refused: usize = self.refused.iter().map(|(_, groups)| groups.len()).sum();
        let unfinished = self.unfinished.as_ref().map_or(0, |commit| commit.transaction.held());
        refused + unfinished + self.channel_states.iter().map(unsettled).sum::<usize>()
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        for (what, mut groups) in std::mem::take(&mut self.refused) {
            groups.settle_eventually(what);
        }
    }
}
