//! One open channel: its mode, its consumers, what it holds, and the content it waits for.

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use nexo_access::{ChannelPresence, PublishRights};
use nexo_broker::{Access, Counted, ListedChannel, QueueHandle, Settle};
use nexo_types::QueueName;
use tokio::sync::Notify;

use super::content::Content;
use super::limit::Limit;
use super::routing::RouteCache;
use super::shared::ServerState;
use super::source::Source;
use super::transactions::Transaction;
use super::unacked::Unacked;

/// The state of a channel.
#[derive(Debug)]
pub(super) struct Channel {
    /// Unique within the connection, although numbers are used again.
    pub(super) serial: u64,
    pub(super) mode: Mode,
    /// The tag of the last delivery.
    pub(super) delivered: u64,
    pub(super) unacked: Unacked,
    pub(super) consumers: HashMap<u64, Consumer, foldhash::fast::FixedState>,
    pub(super) tags: HashMap<Bytes, u64, foldhash::fast::FixedState>,
    /// For consumers to come; 0 for none.
    pub(super) prefetch: u32,
    pub(super) limit: Option<Arc<Limit>>,
    /// The consumer that was offered the limit's room first, the last time there was some.
    pub(super) eased_first: u64,
    pub(super) last_queue: Option<QueueName>,
    pub(super) content: Content,
    pub(super) route: RouteCache,
    pub(super) replies: Option<ReplyConsumer>,
    /// What others see of it.
    pub(super) shown: ListedChannel,
    /// Where its user may publish.
    pub(super) rights: PublishRights,
    _counted: Counted,
    _presence: Option<ChannelPresence>,
}

/// What becomes of publishes and acknowledgements.
#[derive(Debug)]
pub(super) enum Mode {
    Plain,
    /// Publishes are confirmed; this was the last one's number.
    Confirm(u64),
    /// They wait for a commit.
    Transaction(Box<Transaction>),
}

/// A consumer.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) tag: Bytes,
    pub(super) source: Arc<Source>,
    pub(super) stop: Arc<Notify>,
    pub(super) acks: Acks,
    pub(super) priority: i32,
    pub(super) window: Window,
    /// Messages that it may have once there is memory to remember that it has them.
    pub(super) withheld: u32,
    pub(super) access: Access,
}

/// Whether a consumer acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acks {
    Wanted,
    None,
}

/// A consumer of direct replies.
#[derive(Debug)]
pub(super) struct ReplyConsumer {
    pub(super) tag: Bytes,
    /// The name that answers are sent to.
    pub(super) name: Bytes,
    shared: Arc<ServerState>,
}

impl ReplyConsumer {
    pub(super) const fn new(tag: Bytes, name: Bytes, shared: Arc<ServerState>) -> Self {
        Self { tag, name, shared }
    }
}

impl Drop for ReplyConsumer {
    fn drop(&mut self) {
        self.shared.replies.close(&self.name);
    }
}

/// How much a consumer without a limit of its own gets ahead of what is written: many small messages, few large ones.
///
/// Consumers of one queue take turns as long as each has room in its window. So it does not begin small: messages that
/// come at once would go to whoever is the first to widen its own.
#[derive(Debug)]
pub(super) struct Window {
    outstanding: u32,
    /// How wide it is meant to be.
    width: u32,
}

const WINDOW_MAX: u32 = 4_000;
const WINDOW_MIN: u32 = 2;
const WINDOW_BYTES: u64 = 4 << 20;
/// What messages are taken for before any is known: few are larger.
const MESSAGE_BYTES_EXPECTED: u64 = 16 << 10;

impl Window {
    /// A window for messages that take so many bytes on the average, if that is known.
    pub(super) fn new(average: Option<u64>) -> Self {
        let width = width_for(average.unwrap_or(MESSAGE_BYTES_EXPECTED));
        Self { outstanding: width, width }
    }

    /// How many messages may come before one is written.
    pub(super) const fn first(&self) -> u32 {
        self.width
    }

    /// Notes that messages were written, and says how many more may come.
    pub(super) fn written(&mut self, count: u32, bytes: usize) -> u32 {
        self.outstanding = self.outstanding.saturating_sub(count);
        // Nobody gets far ahead of others at once.
        let target = width_for(bytes as u64 / u64::from(count.max(1))).min(self.width.saturating_mul(2));
        self.width = target;
        // Asking takes the queue's lock, so it is done for many at once.
        if self.outstanding > target / 2 {
            return 0;
        }
        let more = target - self.outstanding;
        self.outstanding = target;
        more
    }
}

fn width_for(average: u64) -> u32 {
    u32::try_from(WINDOW_BYTES / average.max(1)).unwrap_or(u32::MAX).clamp(WINDOW_MIN, WINDOW_MAX)
}

impl Channel {
    pub(super) fn new(
        serial: u64,
        counted: Counted,
        shown: ListedChannel,
        presence: Option<ChannelPresence>,
    ) -> Self {
        Self {
            _counted: counted,
            _presence: presence,
            rights: PublishRights::default(),
            shown,
            serial,
            mode: Mode::Plain,
            delivered: 0,
            unacked: Unacked::default(),
            consumers: HashMap::default(),
            tags: HashMap::default(),
            prefetch: 0,
            limit: None,
            eased_first: 0,
            last_queue: None,
            content: Content::default(),
            route: RouteCache::default(),
            replies: None,
        }
    }

    /// Messages that come back if the channel ends.
    pub(super) const fn unsettled(&self) -> usize {
        let in_transaction = match &self.mode {
            Mode::Transaction(transaction) => transaction.held(),
            Mode::Plain | Mode::Confirm(_) => 0,
        };
        self.unacked.len() + in_transaction
    }

    /// Has others see what was delivered and what the client holds.
    pub(super) fn show_deliveries(&self) {
        self.shown.delivered.set(self.delivered);
        self.shown.unacked.set(self.unacked.len() as u64);
    }

    /// Has others see that the client said something of so many messages.
    pub(super) fn show_settled(&self, messages: usize, what: Settle) {
        if what == Settle::Ack {
            self.shown.acked.add(messages as u64);
        }
        self.shown.unacked.set(self.unacked.len() as u64);
    }

    /// The queues that its consumers consume from.
    pub(super) fn consumed_queues(&self) -> Vec<QueueHandle> {
        self.consumers.values().map(|consumer| consumer.source.queue.clone()).collect()
    }

    /// Whether a consumer may soon be handed no more until some of what it holds is acknowledged.
    pub(super) fn awaits_acks(&self) -> bool {
        let bound = self.consumers.values().filter(|consumer| consumer.acks == Acks::Wanted);
        let own = bound.map(|consumer| consumer.source.prefetch).filter(|prefetch| *prefetch > 0);
        let shared = self.limit.as_ref().map(|limit| limit.max());
        let fewest = own.chain(shared).min();
        fewest.is_some_and(|fewest| self.unacked.len() >= (fewest as usize).div_ceil(2))
            || self.consumers.values().any(|consumer| consumer.withheld > 0)
    }

    pub(super) const fn next_tag(&mut self) -> u64 {
        self.delivered += 1;
        self.delivered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_wide_for_small_messages_and_narrow_for_large_ones() {
        let mut window = Window::new(Some(16));
        assert_eq!(window.first(), WINDOW_MAX);
        assert_eq!(window.written(10, 160), 0, "nothing is asked for until half is used");
        assert_eq!(window.written(2_000, 32_000), 2_010);
        let mut window = Window::new(Some(1 << 20));
        assert_eq!(window.first(), 4);
        assert_eq!(window.written(4, 4 << 27), WINDOW_MIN);
    }

    #[test]
    fn a_window_widens_step_by_step() {
        let mut window = Window::new(None);
        let first = window.first();
        assert_eq!(first, 256);
        assert_eq!(window.written(first, first as usize * 16), first * 2);
        assert_eq!(window.written(first * 2, first as usize * 32), first * 4);
    }
}
