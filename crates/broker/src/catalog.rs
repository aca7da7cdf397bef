//! Which queues, exchanges and bindings there are. Looking one up takes no lock; creating and deleting are one at a time, but wait neither for the
//! disk nor for a queue under their lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use nexo_core::queue::Queue;
use nexo_types::{QueueId, QueueName};
use papaya::HashMap;
use parking_lot::Mutex;

use crate::exchanges::Exchanges;
use crate::journal::Written;
use crate::ordered_mutex::{OrderedGuard, OrderedMutex, Rank};
use crate::queue_cell::QueueCell;
use crate::request::SessionId;
use crate::shared_configs::SharedConfigs;

/// All queues, by name and by id, and the exchanges.
#[derive(Debug)]
pub(crate) struct Catalog {
    pub(crate) exchanges: Exchanges,
    by_name: HashMap<QueueName, Arc<QueueCell>>,
    by_id: HashMap<QueueId, Arc<QueueCell>>,
    /// Queues that belong to a connection, so that its end need not look at all there are.
    by_owner: Mutex<BTreeMap<SessionId, Vec<Arc<QueueCell>>>>,
    configs: Mutex<SharedConfigs>,
    /// How many queues there are; asked for with every push.
    count: AtomicUsize,
    latest: Mutex<Latest>,
    /// The id of the next queue. None is given twice.
    next_queue: AtomicU64,
    change: OrderedMutex<()>,
    /// The queues are being rebuilt; see `rebuild.rs`. Changes under the lock for changes.
    rebuilding: AtomicBool,
    /// Names of queues that come from another broker; see `transplant.rs`. Changes under the lock for changes.
    installing: Mutex<BTreeSet<QueueName>>,
}

/// The latest changes that were written down.
#[derive(Debug)]
struct Latest {
    delete: Written,
    create: Written,
}

impl Default for Latest {
    fn default() -> Self {
        Self { delete: Written::NOTHING, create: Written::NOTHING }
    }
}

/// The right to change which queues there are. A queue's lock is taken before it, never after it, but for a queue that
/// nobody else can have.
pub(crate) type CatalogGuard<'a> = OrderedGuard<'a, ()>;

impl Catalog {
    /// No queues yet.
    pub(crate) fn new(exchanges: Exchanges, next_queue: u64) -> Self {
        Self {
            exchanges,
            by_name: HashMap::default(),
            by_id: HashMap::default(),
            by_owner: Mutex::default(),
            configs: Mutex::default(),
            count: AtomicUsize::new(0),
            latest: Mutex::default(),
            next_queue: AtomicU64::new(next_queue),
            change: OrderedMutex::new(Rank::Catalog, ()),
            rebuilding: AtomicBool::new(false),
            installing: Mutex::default(),
        }
    }

    /// Held while it changes which queues there are, and while a checkpoint notes where it begins and which there are: a
    /// queue must be in the records after it, or among those it knows. Who holds it does not wait: not for the disk, nor
    /// for a queue.
    pub(crate) fn change(&self) -> CatalogGuard<'_> {
        self.change.lock()
    }

    pub(crate) fn new_queue_id(&self) -> QueueId {
        QueueId(self.next_queue.fetch_add(1, Ordering::Relaxed))
    }

    /// Ids below this have been given out.
    pub(crate) fn next_queue(&self) -> u64 {
        self.next_queue.load(Ordering::Relaxed)
    }

    pub(crate) fn get(&self, name: &QueueName) -> Option<Arc<QueueCell>> {
        self.by_name.pin().get(name).cloned()
    }

    pub(crate) fn get_id(&self, id: QueueId) -> Option<Arc<QueueCell>> {
        self.by_id.pin().get(&id).cloned()
    }

    pub(crate) fn insert(&self, cell: &Arc<QueueCell>) {
        {
            let mut latest = self.latest.lock();
            latest.create = latest.create.and(cell.created);
        }
        self.share_config(&mut cell.state.lock_new().queue);
        if let Some(owner) = cell.owner {
            self.by_owner.lock().entry(owner).or_default().push(Arc::clone(cell));
        }
        if self.by_id.pin().insert(cell.id, Arc::clone(cell)).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        let names = self.by_name.pin();
        let before = names.insert(cell.name.clone(), Arc::clone(cell));
        debug_assert!(before.is_none(), "there is one queue of a name, not two of '{}'", cell.name);
    }

    /// Has a queue whose settings are new share them with others. Under the queue's lock.
    pub(crate) fn share_config(&self, queue: &mut Queue) {
        self.configs.lock().share(queue);
    }

    /// The queues that belong to a connection.
    pub(crate) fn owned_by(&self, session: SessionId) -> Vec<Arc<QueueCell>> {
        self.by_owner.lock().get(&session).cloned().unwrap_or_default()
    }

    /// Takes out a queue whose deletion is written down. Whoever then does not find it finds that in [`Self::last_delete`].
    pub(crate) fn remove(&self, cell: &QueueCell, written: Written) {
        {
            let mut latest = self.latest.lock();
            latest.delete = latest.delete.and(written);
        }
        if let Some(owner) = cell.owner {
            let mut owners = self.by_owner.lock();
            if let Some(owned) = owners.get_mut(&owner) {
                owned.retain(|one| one.id != cell.id);
                if owned.is_empty() {
                    owners.remove(&owner);
                }
            }
        }
        self.by_name.pin().remove(&cell.name);
        if self.by_id.pin().remove(&cell.id).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// From now on no queue comes or goes, until [`Self::replace`].
    pub(crate) fn begin_rebuild(&self) {
        let _changing = self.change();
        self.rebuilding.store(true, Ordering::Relaxed);
    }

    /// Whether no queue may come or go now. To be asked with the lock for changes.
    pub(crate) fn is_rebuilding(&self) -> bool {
        self.rebuilding.load(Ordering::Relaxed)
    }

    /// Keeps a name for a queue that is being installed. `false` if it is kept already. With the lock for changes.
    pub(crate) fn keep_name(&self, name: &QueueName) -> bool {
        self.installing.lock().insert(name.clone())
    }

    /// The queue is there, or will not be.
    pub(crate) fn release_name(&self, name: &QueueName) {
        self.installing.lock().remove(name);
    }

    /// Whether a name is kept.
    pub(crate) fn is_kept(&self, name: &QueueName) -> bool {
        self.installing.lock().contains(name)
    }

    /// Has these queues instead of all there were, which have been emptied. Whoever looks for a queue meanwhile finds the
    /// old one or the new one.
    pub(crate) fn replace(&self, cells: &[Arc<QueueCell>], next_queue: u64) {
        let _changing = self.change();
        let before = self.all();
        *self.latest.lock() = Latest::default();
        self.by_owner.lock().clear();
        for cell in cells {
            self.share_config(&mut cell.state.lock_new().queue);
            self.by_id.pin().insert(cell.id, Arc::clone(cell));
            self.by_name.pin().insert(cell.name.clone(), Arc::clone(cell));
        }
        for old in before {
            let is_old = |found: Option<&Arc<QueueCell>>| found.is_some_and(|cell| Arc::ptr_eq(cell, &old));
            let (ids, names) = (self.by_id.pin(), self.by_name.pin());
            if is_old(ids.get(&old.id)) {
                ids.remove(&old.id);
            }
            if is_old(names.get(&old.name)) {
                names.remove(&old.name);
            }
        }
        self.count.store(cells.len(), Ordering::Relaxed);
        // An id that was given to a queue that is lost is not given again.
        self.next_queue.fetch_max(next_queue, Ordering::Relaxed);
        self.rebuilding.store(false, Ordering::Relaxed);
    }

    /// What to wait for before anybody is told that a queue is not there. To be asked after it was not found.
    pub(crate) fn last_delete(&self) -> Written {
        self.latest.lock().delete
    }

    /// What to wait for before anybody is told something that rests on which queues there are. To be asked after looking.
    pub(crate) fn last_change(&self) -> Written {
        let latest = self.latest.lock();
        latest.delete.and(latest.create)
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Every queue there is at some moment during the call.
    pub(crate) fn all(&self) -> Vec<Arc<QueueCell>> {
        self.by_id.pin().values().cloned().collect()
    }
}
