//! Messages for several queues on their way there. They are packed once for all their queues, which share them
//! ([`Broker::push_shared`]), if they are large enough for that.
//!
//! What comes after such a message waits behind it, so that nothing overtakes it.

use std::collections::VecDeque;
use std::sync::Arc;

use nexo_broker::{Broker, Draft, PackedBatch, SHARE_BYTES_MIN, SharedMessages};

use super::outbox::{Publisher, copy_bytes};
use super::publish::{is_alike, shared_form};
use super::routing::Target;

/// A message that takes more than this in all its queues is not copied for them before their turn comes.
const COPIES_BYTES_MAX: usize = 1 << 20;
/// Fan-outs that may wait before they are pushed: each is a push by itself.
const FANOUTS_MAX: usize = 256;

/// Fan-outs that wait, and what waits behind them.
#[derive(Debug, Default)]
pub(super) struct Fanouts {
    waiting: VecDeque<Fanout>,
    messages: usize,
    bytes: usize,
    /// One of them is copied for so many queues that it is time to begin.
    has_large: bool,
}

/// Messages that go to the same queues, all of them in the same form.
#[derive(Debug)]
pub(super) struct Fanout {
    packed: Packed,
    /// Queues that share them and do not have them yet.
    pub(super) sharing: VecDeque<Arc<Target>>,
    /// Queues that get a copy by themselves.
    pub(super) alone: VecDeque<Arc<Target>>,
    /// Of each message.
    pub(super) publishers: Vec<Publisher>,
}

#[derive(Debug)]
enum Packed {
    /// More may join.
    Open(Option<PackedBatch>),
    ServerState(SharedMessages),
}

impl Fanouts {
    /// Whether a message must go this way.
    pub(super) fn takes(&self, targets: &[Arc<Target>], message: &Draft<'_>) -> bool {
        !self.is_empty() || is_shared(targets, message) || is_large(targets, message)
    }

    /// Adds a message.
    pub(super) fn add(&mut self, targets: &[Arc<Target>], message: &Draft<'_>, publisher: Publisher) {
        if !is_alike(message, targets) {
            return self.add_by_form(targets, message, publisher);
        }
        let Some(first) = targets.first() else { return };
        let shares = is_shared(targets, message);
        self.has_large |= !shares && is_large(targets, message);
        self.messages += targets.len();
        self.bytes += copy_bytes(message);
        let message = shared_form(*message, first);
        if let Some(last) = self.waiting.back_mut()
            && last.goes_to(targets)
            && last.takes(&message)
        {
            last.push(&message, publisher);
            return;
        }
        let mut packed = PackedBatch::new(message.durability, copy_bytes(&message), 1);
        packed.push(&message);
        self.waiting.push_back(Fanout::new(targets, packed, shares, publisher));
    }

    /// Adds a message that is packed already, and that all its queues share.
    pub(super) fn add_packed(&mut self, targets: &[Arc<Target>], packed: PackedBatch, publisher: Publisher) {
        self.messages += targets.len();
        self.bytes += packed.bytes();
        self.waiting.push_back(Fanout::new(targets, packed, true, publisher));
    }

    /// Those queues share a message that take it in the same form.
    fn add_by_form(&mut self, targets: &[Arc<Target>], message: &Draft<'_>, publisher: Publisher) {
        let mut rest: Vec<Arc<Target>> = targets.to_vec();
        while let Some(first) = rest.first().cloned() {
            let pair = |target: &Arc<Target>| [Arc::clone(&first), Arc::clone(target)];
            let (alike, others) = rest.into_iter().partition(|target| is_alike(message, &pair(target)));
            let alike: Vec<Arc<Target>> = alike;
            self.add(&alike, message, publisher);
            rest = others;
        }
    }

    /// The one to be pushed next.
    pub(super) fn pop(&mut self) -> Option<Fanout> {
        let next = self.waiting.pop_front();
        if next.is_none() {
            *self = Self { waiting: std::mem::take(&mut self.waiting), ..Self::default() };
        }
        next
    }

    /// Puts one back that is not pushed yet.
    pub(super) fn put_back(&mut self, fanout: Fanout) {
        self.waiting.push_front(fanout);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether they should be pushed before more comes in.
    pub(super) fn is_full(&self) -> bool {
        self.has_large || self.waiting.len() >= FANOUTS_MAX
    }

    /// How many messages queues get from those that were added since there were none.
    pub(super) const fn messages(&self) -> usize {
        self.messages
    }

    /// The bytes of those messages. What queues share counts once.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Fanout {
    fn new(targets: &[Arc<Target>], packed: PackedBatch, shares: bool, publisher: Publisher) -> Self {
        let targets: VecDeque<Arc<Target>> = targets.iter().cloned().collect();
        let (sharing, alone) = if shares { (targets, VecDeque::new()) } else { (VecDeque::new(), targets) };
        Self { packed: Packed::Open(Some(packed)), sharing, alone, publishers: vec![publisher] }
    }

    /// The messages as its queues share them. Nothing joins them from now on.
    pub(super) fn messages(&mut self, broker: &Broker) -> SharedMessages {
        let messages = match &mut self.packed {
            Packed::ServerState(messages) => return messages.clone(),
            Packed::Open(packed) => broker.share(packed.take().expect("it is taken once, here")),
        };
        self.packed = Packed::ServerState(messages.clone());
        messages
    }

    fn goes_to(&self, targets: &[Arc<Target>]) -> bool {
        let own = if self.alone.is_empty() { &self.sharing } else { &self.alone };
        own.len() == targets.len() && own.iter().zip(targets).all(|(own, other)| Arc::ptr_eq(own, other))
    }

    fn takes(&self, message: &Draft<'_>) -> bool {
        matches!(&self.packed, Packed::Open(Some(packed)) if packed.has_room(message))
    }

    fn push(&mut self, message: &Draft<'_>, publisher: Publisher) {
        if let Packed::Open(Some(packed)) = &mut self.packed {
            packed.push(message);
            self.publishers.push(publisher);
        }
    }
}

/// Whether its queues share a message.
fn is_shared(targets: &[Arc<Target>], message: &Draft<'_>) -> bool {
    targets.len() > 1 && copy_bytes(message) >= SHARE_BYTES_MIN
}

fn is_large(targets: &[Arc<Target>], message: &Draft<'_>) -> bool {
    targets.len() > 1 && copy_bytes(message) * targets.len() > COPIES_BYTES_MAX
}
