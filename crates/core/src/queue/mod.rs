//! One queue: a small state machine.
//!
//! It *decides* what happens (`decide_…`: looks, changes nothing, and gives back [`Record`]s) and it *applies* records
//! ([`Queue::apply`]), which is the only way its durable state changes. Between the two, the broker writes the records to
//! the log. Time alone moves a message whose delay has ended ([`Queue::advance_time`]): the moment is in the message.
//! Consumers, turns and rates are not durable and change directly; so [`Queue::decide_dispatch`] uses up credit.
//!
//! Where a message can be:
//!
//! - in `lanes`: ready, never delivered, in order of arrival; most of a long backlog is not in memory;
//! - *loose*, each with an entry in memory: `returned` (ready, but not at the tail: it came back, its delay
//!   ended, or it is the head of its group), `delayed`, `leased`, behind the head of its group, or `dying`
//!   (it may not be delivered again, and waits to be dead-lettered or dropped).
//!
//! Read on in [`apply`], then in the file of each decision.

mod allowance;
mod apply;
mod blocks;
mod browse;
mod changes;
mod compact;
mod consumers;
mod cursor;
mod deadline_map;
mod dedup;
mod dispatch;
mod due;
mod entry;
mod fair;
mod groups;
mod invariants;
mod lane;
mod lane_snapshot;
mod lanes;
mod late;
mod lease;
mod machine;
mod manage;
mod meter;
#[cfg(test)]
mod model;
mod outline;
mod paging;
mod push;
mod returned;
mod run;
mod settle;
mod snapshot;
mod terms;
mod tokens;
mod unwritten;
mod usage;
mod whole_snapshot;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use nexo_types::{GroupId, Millis, Offset, Priority, QueueId, QueueName, Timestamp};

pub use allowance::{Allowance, Outgoing};
pub use apply::{Applied, Handed, NeedsPage, Removed};
pub use changes::ChunkId;
pub(crate) use changes::ChunkSet;
pub use consumers::SharedCredit;
pub use dispatch::{Dispatch, Turn};
pub use due::DuePlan;
pub use entry::MessageEntry;
pub use groups::GroupTake;
pub use lane::PageRequest;
pub use late::{PastDelivery, Standing};
pub use machine::{QueueAnswer, QueueCommand};
pub use outline::{MessageState, Outline, Stage};
pub use paging::{PeekPosition, Peeked};
pub use push::{Admission, PackedPlan, PushOutcome, PushPlan, RefusedMessages};
pub use settle::{Death, Dying, LeaseError, ReturnCause, ReturnPlan, Verdict};
pub use snapshot::{ChunkSlice, SnapshotError, StoredIn};
pub use terms::{Access, ConsumerRefusal, InFlightLimit, LeaseTerms, LimitReached, SettleMode, Terms};
pub use usage::{UsageChange, Way};
pub use whole_snapshot::QueueSnapshot;

use crate::config::QueueConfig;
use crate::message::DeathReason;
use crate::rare::{Empty, Rare};
use changes::Changes;
use compact::Delayed;
use consumers::Consumers;
use deadline_map::DeadlineMap;
use dedup::Dedup;
use entry::MESSAGE_OVERHEAD_BYTES;
use fair::Tenants;
use groups::Runs;
use lanes::Lanes;
use lease::Lease;
use meter::{Average, Meter};
use returned::Returned;
use tokens::Tokens;

/// Bytes of loose messages that are kept in memory for a queue although the log has them, with [`WARM_OVERHEAD_BYTES`].
const LOOSE_CACHE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// What it costs to keep the bytes of a loose message, besides them: its entry is kept whole, and the allocator adds to both.
const WARM_OVERHEAD_BYTES: u64 = size_of::<MessageEntry>() as u64 + 64;

/// What whoever holds a message remembers of it: a row in which there is room for up to twice as many.
const HOLDER_BYTES: u64 = 2 * 56;
/// What a message that waits behind another of its group, or is about to be moved, takes in memory besides its bytes: the
/// containers are at times half empty, and have it by its offset as well.
const OTHER_LOOSE_BYTES: u64 = 2 * size_of::<MessageEntry>() as u64 + 64;
/// What a queue with messages in memory takes for that, besides: containers that are made with the first message, a place in
/// the index of the log, and one with each connection that publishes to it.
const IN_USE_BYTES: u64 = 640;

/// The state of one queue and the rules that change it.
#[derive(Debug)]
pub struct Queue {
    id: QueueId,
    name: QueueName,
    /// Shared with other queues that are told to be the same.
    config: Arc<QueueConfig>,
    created_at: Timestamp,
    next_offset: Offset,
    /// Offsets below this may have been given to transient messages, of which the log knows nothing.
    reserved: Offset,
    lanes: Lanes,
    returned: Returned,
    delayed: Rare<DeadlineMap<Delayed>>,
    leased: Rare<DeadlineMap<Lease>>,
    /// Those that the log knows nothing of.
    unwritten_leases: BTreeSet<Offset>,
    /// For each group with a message in the queue: those behind its head.
    groups: BTreeMap<GroupId, VecDeque<MessageEntry>>,
    /// Which messages these are, and their groups.
    behind: Rare<HashMap<Offset, GroupId, FixedState>>,
    grouped: u64,
    /// Groups of which several messages are out at once.
    runs: Rare<Runs>,
    /// Where groups share the queue fairly: what each has in it.
    tenants: Tenants,
    /// Those that were ready when they died.
    dying: Rare<HashMap<Offset, (MessageEntry, DeathReason), FixedState>>,
    /// Stored bytes of these.
    dying_bytes: u64,
    /// Messages of the next record that were refused, and die as they come.
    refused: Rare<Refused>,
    /// Ends of life of ready messages in memory. May name some that have left.
    expiries: BinaryHeap<Reverse<(Timestamp, Priority, Offset)>>,
    /// Those that have ended, as far as [`Queue::advance_time`] has come. May name some that have left.
    expired: Vec<(Priority, Offset)>,
    /// Ready messages in memory whose life is nothing. May name some that have left.
    ttl_zero: Vec<(Priority, Offset)>,
    dedup: Rare<Dedup>,
    consumers: Rare<Consumers>,
    tokens: Tokens,
    /// Stored bytes of everything that is not in a lane.
    loose_bytes: u64,
    /// Those of them that are with consumers.
    leased_bytes: u64,
    /// Bytes of loose messages that are in memory.
    loose_cached_bytes: u64,
    /// How many of these are in the log as well, so that their bytes need not stay in memory.
    loose_warm: u64,
    totals: Totals,
    rates: Rates,
    /// What has joined and left since this was last asked.
    usage: Vec<UsageChange>,
    /// What the next snapshot has to write.
    changes: Changes,
}

impl Empty for HashMap<Offset, GroupId, FixedState> {
    const EMPTY: &'static Self = &Self::with_hasher(FixedState::with_seed(0));
}

impl Empty for HashMap<Offset, (MessageEntry, DeathReason), FixedState> {
    const EMPTY: &'static Self = &Self::with_hasher(FixedState::with_seed(0));
}

/// Messages that are to come and are dead.
#[derive(Debug, Default)]
struct Refused(Vec<(Offset, DeathReason)>);

impl Empty for Refused {
    const EMPTY: &'static Self = &Self(Vec::new());
}

impl Empty for DeadlineMap<Lease> {
    const EMPTY: &'static Self = &Self::new();
}

impl Empty for DeadlineMap<Delayed> {
    const EMPTY: &'static Self = &Self::new();
}

/// What has happened to the queue in all its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages pushed.
    pub pushed: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Deliveries of messages that had been delivered before.
    pub redelivered: u64,
    /// Messages acknowledged.
    pub acked: u64,
    /// Messages moved to the dead-letter queue.
    pub dead_lettered: u64,
    /// Messages dropped at the end of their time to live.
    pub expired: u64,
    /// Messages dropped because the queue was full.
    pub overflowed: u64,
    /// Messages purged.
    pub purged: u64,
    /// Messages lost because the disk did not give their bytes back.
    pub damaged: u64,
}

#[derive(Debug, Default)]
struct Rates {
    pushed: Meter,
    served: Rare<Served>,
    duplicates: u64,
}

/// Of messages that were handed out.
#[derive(Debug, Default)]
struct Served {
    delivered: Meter,
    redelivered: Meter,
    acked: Meter,
    wait: Average,
}

impl Empty for Served {
    const EMPTY: &'static Self = &Self {
        delivered: Meter::EMPTY,
        redelivered: Meter::EMPTY,
        acked: Meter::EMPTY,
        wait: Average::EMPTY,
    };
}

/// Figures of a queue at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Messages that could be delivered now.
    pub ready: u64,
    /// Messages with a consumer.
    pub leased: u64,
    /// Messages whose time has not come.
    pub delayed: u64,
    /// Messages behind another of their group.
    pub grouped: u64,
    /// Bytes of the bodies of all of these.
    pub bytes: u64,
    /// Memory taken, near enough.
    pub memory_bytes: u64,
    /// Consumers, waiting or not.
    pub consumers: u64,
    /// Since the queue was created.
    pub totals: Totals,
    /// Repetitions recognised, since the process started.
    pub duplicates: u64,
    /// A second, lately.
    pub push_rate: f64,
    /// A second, lately.
    pub deliver_rate: f64,
    /// A second, lately.
    pub redeliver_rate: f64,
    /// A second, lately.
    pub ack_rate: f64,
    /// Age of the oldest ready message.
    pub oldest_age: Millis,
    /// Between ready and delivered, lately.
    pub average_wait_ms: f64,
}

impl Queue {
    /// An empty queue.
    #[must_use]
    pub fn new(
        id: QueueId,
        name: QueueName,
        config: impl Into<Arc<QueueConfig>>,
        created_at: Timestamp,
    ) -> Self {
        let config = config.into();
        let mut consumers = Rare::<Consumers>::default();
        if config.single_active_consumer {
            consumers.set_single_active(true);
        }
        Self {
            id,
            name,
            config,
            created_at,
            next_offset: Offset(0),
            reserved: Offset(0),
            lanes: Lanes::default(),
            returned: Returned::default(),
            delayed: Rare::default(),
            leased: Rare::default(),
            unwritten_leases: BTreeSet::new(),
            groups: BTreeMap::new(),
            behind: Rare::default(),
            grouped: 0,
            runs: Rare::default(),
            tenants: Tenants::default(),
            dying: Rare::default(),
            dying_bytes: 0,
            refused: Rare::default(),
            expiries: BinaryHeap::new(),
            expired: Vec::new(),
            ttl_zero: Vec::new(),
            dedup: Rare::default(),
            consumers,
            tokens: Tokens::default(),
            loose_bytes: 0,
            leased_bytes: 0,
            loose_cached_bytes: 0,
            loose_warm: 0,
            totals: Totals::default(),
            rates: Rates::default(),
            usage: Vec::new(),
            changes: Changes::default(),
        }
    }

    /// Has it share its settings with another queue that is told to be the same. `false` if they differ.
    pub fn share_config(&mut self, known: &Arc<QueueConfig>) -> bool {
        let is_same = Arc::ptr_eq(&self.config, known) || self.config == *known;
        if is_same {
            self.config = Arc::clone(known);
        }
        is_same
    }

    /// Completes settings that were written before all their fields were there: `read` reads what is missing from the
    /// arguments of a protocol. That needs no record, because it gives the same every time.
    pub fn read_arguments(&mut self, read: impl FnOnce(&mut QueueConfig)) {
        if self.config.has_unread_arguments {
            let config = Arc::make_mut(&mut self.config);
            read(config);
            config.has_unread_arguments = false;
        }
    }

    /// Adds a consumer that will take `credit` messages on these terms, perhaps within a limit that it shares with
    /// others.
    ///
    /// # Errors
    /// If it or another wants the queue for itself, or more messages are in flight than it bears.
    pub fn add_consumer(
        &mut self,
        id: nexo_types::ConsumerId,
        terms: Terms,
        credit: u32,
        shared: Option<Arc<SharedCredit>>,
    ) -> Result<(), ConsumerRefusal> {
        self.consumers.check_access(terms.access, None)?;
        terms.check_in_flight(self.in_flight())?;
        self.consumers.add(id, terms, credit, shared);
        Ok(())
    }

    /// The same for one that takes the place of another, which leaves right after: nobody comes between them.
    ///
    /// # Errors
    /// As there.
    pub fn replace_consumer(
        &mut self,
        replaced: nexo_types::ConsumerId,
        id: nexo_types::ConsumerId,
        terms: Terms,
        shared: Option<Arc<SharedCredit>>,
    ) -> Result<(), ConsumerRefusal> {
        self.consumers.check_access(terms.access, Some(replaced))?;
        self.consumers.add(id, terms, 0, shared);
        Ok(())
    }

    /// Bounds the bytes that a consumer is handed before it has passed them on.
    pub fn set_allowance(&mut self, id: nexo_types::ConsumerId, allowance: std::sync::Arc<Allowance>) {
        self.consumers.set_allowance(id, allowance);
    }

    /// Has a consumer that does not acknowledge wait while a limit that others share is used up.
    pub fn heed_limit(&mut self, id: nexo_types::ConsumerId, shared: std::sync::Arc<SharedCredit>) {
        self.consumers.heed(id, shared);
    }

    /// Lets a consumer take this many more.
    pub fn add_credit(&mut self, id: nexo_types::ConsumerId, credit: u32) {
        self.consumers.add_credit(id, credit);
    }

    /// Lets a consumer take just this many from now on.
    pub fn set_credit(&mut self, id: nexo_types::ConsumerId, credit: u32) {
        self.consumers.set_credit(id, credit);
    }

    /// Gives back the credit of messages that were handed to a consumer and never reached it.
    pub fn give_back_credit(&mut self, id: nexo_types::ConsumerId, count: u32) {
        self.consumers.give_back(id, count);
    }

    /// Forgets a consumer. What it holds stays leased.
    pub fn remove_consumer(&mut self, id: nexo_types::ConsumerId) {
        self.consumers.remove(id);
    }

    /// What a consumer holds, with the attempt of each.
    #[must_use]
    pub fn held_by(&self, id: nexo_types::ConsumerId) -> Vec<(Offset, u32)> {
        let held = self.leased.iter().filter(|lease| lease.consumer() == Some(id));
        held.map(|lease| (lease.entry.offset, lease.entry.attempts)).collect()
    }

    /// Takes note of a push that was recognised as a repetition.
    pub const fn note_duplicates(&mut self, count: u64) {
        self.rates.duplicates += count;
    }

    /// The queue's id.
    #[must_use]
    pub const fn id(&self) -> QueueId {
        self.id
    }

    /// The queue's name.
    #[must_use]
    pub const fn name(&self) -> &QueueName {
        &self.name
    }

    /// Messages that could be delivered now, and consumers.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.lanes.len() + self.returned.len() as u64, self.consumers.len() as u64)
    }

    /// Messages that are with a consumer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.leased.len()
    }

    /// When a leased message was handed out.
    #[must_use]
    pub fn granted_at(&self, offset: Offset) -> Option<Timestamp> {
        self.leased.get(offset).map(|lease| lease.granted_at)
    }

    /// How many consumers it has, and which of them alone gets messages, if the queue is set so.
    #[must_use]
    pub fn consumers(&self) -> (usize, Option<nexo_types::ConsumerId>) {
        (self.consumers.len(), self.consumers.active())
    }

    /// What it is told to be.
    #[must_use]
    pub fn config(&self) -> &QueueConfig {
        &self.config
    }

    /// The same, for other queues to share.
    #[must_use]
    pub const fn shared_config(&self) -> &Arc<QueueConfig> {
        &self.config
    }

    /// When it was created.
    #[must_use]
    pub const fn created_at(&self) -> Timestamp {
        self.created_at
    }

    /// The offset that the next message gets.
    #[must_use]
    pub const fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// All messages, whatever their state.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.waiting() + self.leased.len() as u64 + self.dying.len() as u64
    }

    /// Whether it has no message at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all bodies.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        let overhead = self.len() * u64::from(MESSAGE_OVERHEAD_BYTES);
        (self.lanes.bytes() + self.loose_bytes).saturating_sub(overhead)
    }

    /// Stored bytes of the messages that wait in order for a consumer.
    #[must_use]
    pub const fn ready_bytes(&self) -> u64 {
        self.lanes.bytes()
    }

    /// What limits are about: messages that wait, and the bytes of their bodies. What is with a consumer, or about to be
    /// moved, does not count.
    fn load(&self) -> (u64, u64) {
        let waiting = self.waiting();
        let bytes = self.lanes.bytes() + self.loose_bytes - self.leased_bytes - self.dying_bytes;
        (waiting, bytes.saturating_sub(waiting * u64::from(MESSAGE_OVERHEAD_BYTES)))
    }

    /// Memory taken, near enough: entries, the bytes of messages that are kept, and room that is kept for later ones.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let waiting = self.returned.memory_bytes() + self.delayed.memory_bytes();
        let leased = self.leased.memory_bytes() + self.leased.len() as u64 * HOLDER_BYTES;
        let others = (self.grouped + self.dying.len() as u64) * OTHER_LOOSE_BYTES;
        let loose = waiting + leased + others + self.loose_cached_bytes;
        let resident = self.lanes.memory_bytes() + loose;
        let paged = self.lanes.len() - self.lanes.resident_len();
        if self.len() == paged { resident } else { resident + IN_USE_BYTES }
    }

    /// Everything that is neither with a consumer nor about to be moved.
    fn waiting(&self) -> u64 {
        self.lanes.len() + self.returned.len() as u64 + self.delayed.len() as u64 + self.grouped
    }

    /// Figures for people and metrics.
    #[must_use]
    pub fn figures(&self, now: Timestamp) -> Figures {
        let oldest_returned = self.returned.iter().take(256).map(|entry| entry.enqueued_at()).min();
        let oldest = self.lanes.oldest().into_iter().chain(oldest_returned).min();
        Figures {
            ready: self.lanes.len() + self.returned.len() as u64 + self.dying.len() as u64,
            leased: self.leased.len() as u64,
            delayed: self.delayed.len() as u64,
            grouped: self.grouped,
            bytes: self.body_bytes(),
            memory_bytes: self.memory_bytes(),
            consumers: self.consumers.len() as u64,
            totals: self.totals,
            duplicates: self.rates.duplicates,
            push_rate: self.rates.pushed.rate(now),
            deliver_rate: self.rates.served.delivered.rate(now),
            redeliver_rate: self.rates.served.redelivered.rate(now),
            ack_rate: self.rates.served.acked.rate(now),
            oldest_age: oldest.map_or(Millis::ZERO, |then| now.since(then)),
            average_wait_ms: self.rates.served.wait.value_ms(),
        }
    }

    /// The first offset that is not set aside for transient messages.
    #[must_use]
    pub const fn reserved(&self) -> Offset {
        self.reserved
    }

    /// Puts a message that is not at the tail where it belongs at this moment.
    fn place(&mut self, mut entry: MessageEntry, at: Timestamp) {
        self.warm(&mut entry);
        if entry.ready_at.min(entry.expires_at) > at {
            self.delayed.insert(Delayed(entry.into()));
        } else {
            self.return_to_lane(entry);
        }
    }

    fn return_to_lane(&mut self, entry: MessageEntry) {
        self.watch_expiry(&entry);
        self.returned.insert(entry);
    }

    /// Keeps the bytes of a loose message in memory while there is room for them, so that they need not be
    /// read back; copied, so that they do not keep the batch they came in.
    fn warm(&mut self, entry: &mut MessageEntry) {
        let Some(payload) = &entry.payload else { return };
        let overhead = (self.loose_warm + 1) * WARM_OVERHEAD_BYTES;
        if self.loose_cached_bytes + payload.len() as u64 + overhead <= LOOSE_CACHE_BYTES_MAX {
            entry.copy_payload();
        } else {
            entry.cool();
        }
        self.count(entry);
    }

    /// The entry comes to where bytes in memory count.
    fn count(&mut self, entry: &MessageEntry) {
        self.loose_cached_bytes += entry.cached_bytes();
        self.loose_warm += u64::from(entry.is_warm());
    }

    /// The opposite.
    fn uncount(&mut self, entry: &MessageEntry) {
        self.loose_cached_bytes -= entry.cached_bytes();
        self.loose_warm -= u64::from(entry.is_warm());
    }

    /// A loose message leaves the queue for good.
    fn free(&mut self, entry: &MessageEntry) {
        self.loose_bytes -= u64::from(entry.stored_bytes);
        if entry.is_durable() {
            self.note_usage(entry.offset, entry.stored_bytes, Way::Out);
        }
    }

    /// Whether a message is leased or about to be moved.
    #[must_use]
    pub fn is_held(&self, offset: Offset) -> bool {
        self.leased.contains(offset) || self.dying.contains_key(&offset)
    }
}
