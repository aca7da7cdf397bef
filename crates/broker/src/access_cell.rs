//! Users and permissions of this node: the rules are `nexo_core::access`'s; `machine_cell.rs` gives them a lock and the
//! journal; here they get a copy that is read without a lock.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use nexo_core::access::{Access, AccessError, AccessRecord};
use nexo_core::machine::Step;
use nexo_core::message::Durability;
use nexo_log::{Claim, Urgency};
use nexo_types::{QueueId, VhostName};
use tokio::sync::watch;

use crate::broker::Broker;
use crate::error::{AccessChangeError, QueueError};
use crate::event_kinds::log_users;
use crate::journal::{ProposeError, Written};
use crate::machine_cell::{MachineCell, Replayed};
use crate::ordered_mutex::Rank;
use crate::shared::Shared;

/// Records of users are written under this id, which no queue has: ids of queues count up from one.
pub(crate) const ACCESS: QueueId = QueueId(u64::MAX);

/// All users.
#[derive(Debug)]
pub(crate) struct AccessCell {
    cell: MachineCell<Access>,
    latest: ArcSwap<Access>,
    /// Rises with every change, for whoever only asks whether there was one.
    generation: AtomicU64,
    /// Wakes whoever waits for a change.
    changed: watch::Sender<()>,
}

impl AccessCell {
    /// What was in the log, with its latest snapshot.
    pub(crate) fn new(restored: Replayed<Access>) -> Self {
        let latest = ArcSwap::from_pointee(restored.machine.clone());
        let (changed, _) = watch::channel(());
        Self {
            cell: MachineCell::new(ACCESS, Rank::Access, restored),
            latest,
            generation: AtomicU64::new(1),
            changed,
        }
    }

    /// Their state, for checkpoints.
    pub(crate) const fn cell(&self) -> &MachineCell<Access> {
        &self.cell
    }

    /// Has these users instead of those there were.
    pub(crate) fn replace(&self, restored: Replayed<Access>) {
        self.cell.replace(restored, |_, access| self.publish(access));
    }

    /// Applies a record that another node has written down.
    ///
    /// # Errors
    /// If the bytes are not a record.
    pub(crate) fn follow(&self, payload: &[u8]) -> Result<(), String> {
        self.cell.follow(payload, |access| self.publish(access))
    }

    /// To be called under the cell's lock, so that the latest copy is the last.
    fn publish(&self, access: &Access) {
        self.latest.store(Arc::new(access.clone()));
        self.generation.fetch_add(1, Ordering::Release);
        self.changed.send_replace(());
    }
}

/// Tells when users or permissions have changed.
#[derive(Clone, Debug)]
pub struct AccessChanges(watch::Receiver<()>);

impl AccessChanges {
    /// Waits for the next change, or for one since the last call.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // The broker is gone, and with it everybody who could change something.
            std::future::pending::<()>().await;
        }
    }
}

impl Shared {
    /// Drops what anybody might do in a virtual host.
    pub(crate) fn forget_permissions_in(&self, vhost: &VhostName) -> Result<Written, QueueError> {
        let forget = [AccessRecord::ForgetVhost { vhost: vhost.as_str().into() }];
        match self.change_access(&forget) {
            Ok(Ok(written)) => Ok(written),
            // Nothing can be wrong with that.
            Ok(Err(refused)) => Err(QueueError::Unavailable { reason: refused.to_string() }),
            Err(error) => Err(self.refused(&error)),
        }
    }

    /// Whether all virtual hosts are there that these changes speak of.
    fn check_vhosts_of(&self, changes: &[AccessRecord]) -> Result<(), AccessError> {
        let mut needed: Vec<&str> = changes.iter().filter_map(AccessRecord::needed_vhost).collect();
        needed.sort_unstable();
        needed.dedup();
        self.catalog.exchanges.look(|topology| {
            let is_there =
                |text: &str| VhostName::new(text).is_ok_and(|name| topology.open_vhost(&name).is_ok());
            match needed.into_iter().find(|text| !is_there(text)) {
                Some(missing) => Err(AccessError::NoSuchVhost { name: missing.to_owned() }),
                None => Ok(()),
            }
        })
    }

    fn change_access(&self, changes: &[AccessRecord]) -> Result<Result<Written, AccessError>, ProposeError> {
        let access = &self.access;
        let decide = |users: &Access| -> Result<Vec<Step<AccessRecord>>, AccessError> {
            let records = users.decide_changes(self.clock.now(), changes)?;
            // Asked under the lock: who deletes a virtual host takes the permissions in it away afterwards.
            self.check_vhosts_of(changes)?;
            let durable = |record| Step { record, durability: Durability::Durable };
            Ok(records.into_iter().map(durable).collect())
        };
        let is_told = Cell::new(false);
        let tell = || {
            if !is_told.replace(true) {
                self.events.users_changed(changes);
            }
        };
        // Told under the lock: events come in the order of changes.
        let applied = |users: &Access| {
            access.publish(users);
            tell();
        };
        let changed =
            self.change_machine(&access.cell, &[], decide, Urgency::Synced, Claim::Reserved, applied)?;
        if changed.is_ok() {
            // Also what was so already: somebody has set it.
            tell();
            log_users(changes);
        }
        Ok(changed.map(|changed| changed.written))
    }
}

impl Broker {
    /// All users, as of now. Taking it costs nothing, and it does not change.
    #[must_use]
    pub fn access(&self) -> arc_swap::Guard<Arc<Access>> {
        self.shared.access.latest.load()
    }

    /// Of [`Self::access`]: as long as it is the same, nobody may do more or less than before. To be asked before it, by
    /// whoever remembers what came of it.
    #[must_use]
    pub fn access_generation(&self) -> u64 {
        self.shared.access.generation.load(Ordering::Acquire)
    }

    /// Changes of [`Self::access`] from now on. Whoever waits while he may do something asks again after each.
    #[must_use]
    pub fn access_changes(&self) -> AccessChanges {
        AccessChanges(self.shared.access.changed.subscribe())
    }

    /// Whether changes of users may be lost, because a part of what was written down cannot be read and the start went on
    /// without it. Then nobody can say that this broker never had a user, or that one was not deleted.
    #[must_use]
    pub fn has_lost_users(&self) -> bool {
        self.shared.users_lost
    }

    /// Makes changes of users and permissions, all of them or none, and returns when they are safe.
    ///
    /// # Errors
    /// If one of them cannot be made, or the log takes no more.
    pub async fn change_access(&self, changes: &[AccessRecord]) -> Result<(), AccessChangeError> {
        let begun = loop {
            match self.try_change_access(changes) {
                Err(AccessChangeError::Queue(QueueError::Busy { .. })) => self.shared.until_room().await,
                begun => break begun,
            }
        };
        let (written, outcome) = match begun {
            Ok(written) => (written, Ok(())),
            // What it is refused for may not be safe yet.
            Err(refused @ AccessChangeError::Refused(_)) => {
                (self.shared.access.cell.last_change(), Err(refused))
            }
            Err(error) => return Err(error),
        };
        self.shared.wait_for(written).await?;
        outcome
    }

    fn try_change_access(&self, changes: &[AccessRecord]) -> Result<Written, AccessChangeError> {
        self.shared.refuse_if_stopping()?;
        match self.shared.change_access(changes) {
            Ok(decided) => decided.map_err(AccessChangeError::Refused),
            Err(error) => Err(self.shared.refused(&error).into()),
        }
    }
}
