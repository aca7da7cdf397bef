//! Virtual hosts of this node: created, changed, deleted with all that is in them, and entered by connections. The rules are
//! `nexo_core::topology`'s.
//!
//! A deletion is written down first, with the exchanges and bindings, and again when the last queue has gone. In between
//! nobody finds the virtual host, and what a crash cuts off is finished by the next start.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nexo_core::topology::{DefaultQueueType, Topology, Vhost, VhostError, VhostSpec, VhostStage};
use nexo_log::Urgency;
use nexo_types::{QueueName, VhostName};
use parking_lot::Mutex;
use thiserror::Error;

use crate::broker::Broker;
use crate::error::{ExchangeError, QueueError};
use crate::events::OnBehalf;
use crate::journal::{ProposeError, Written};
use crate::shared::Shared;
use crate::workers::Work;

/// A virtual host and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostInfo {
    /// What it is called.
    pub name: VhostName,
    /// What is said about it, and its limits.
    pub spec: VhostSpec,
    /// How many queues it has.
    pub queues: u64,
    /// How many connections are open in it.
    pub connections: u64,
}

/// What went with a virtual host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VhostDeleted {
    /// How many queues.
    pub queues: u64,
    /// How many messages.
    pub messages: u64,
}

/// A connection that may not enter a virtual host.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnterError {
    /// There is none of that name.
    #[error("virtual host '{name}' does not exist")]
    NotFound {
        /// The name.
        name: VhostName,
    },
    /// It has as many connections as it may have.
    #[error("virtual host '{name}' has {max} connections, and no more are allowed")]
    ConnectionLimit {
        /// The name.
        name: VhostName,
        /// The limit.
        max: u64,
    },
}

/// What is done for a connection whose virtual host is deleted.
type OnDeleted = Box<dyn FnOnce() + Send>;

/// Which connections are in which virtual host. Its lock comes before that of the exchanges.
#[derive(Default)]
pub(crate) struct VhostConnections(Mutex<Entered>);

#[derive(Default)]
struct Entered {
    next: u64,
    by_vhost: BTreeMap<VhostName, BTreeMap<u64, OnDeleted>>,
}

impl std::fmt::Debug for VhostConnections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entered = self.0.lock();
        f.debug_map().entries(entered.by_vhost.iter().map(|(name, all)| (name, all.len()))).finish()
    }
}

impl VhostConnections {
    fn count(&self, name: &VhostName) -> u64 {
        self.0.lock().count(name)
    }

    /// Tells all connections in a virtual host that it was deleted.
    fn close(&self, name: &VhostName) {
        let all = self.0.lock().by_vhost.remove(name).unwrap_or_default();
        for on_deleted in all.into_values() {
            on_deleted();
        }
    }
}

impl Entered {
    fn count(&self, name: &VhostName) -> u64 {
        self.by_vhost.get(name).map_or(0, |all| all.len() as u64)
    }
}

/// The stay of a connection in a virtual host, which counts it as long as it is kept.
#[derive(Debug)]
pub struct VhostStay {
    shared: Arc<Shared>,
    name: VhostName,
    number: u64,
}

impl VhostStay {
    /// The virtual host.
    #[must_use]
    pub const fn vhost(&self) -> &VhostName {
        &self.name
    }
}

impl Drop for VhostStay {
    fn drop(&mut self) {
        let mut entered = self.shared.vhost_connections.0.lock();
        if let Some(all) = entered.by_vhost.get_mut(&self.name) {
            let own = all.remove(&self.number);
            if all.is_empty() {
                entered.by_vhost.remove(&self.name);
            }
            drop(entered);
            drop(own);
        }
    }
}

impl Broker {
    /// Makes a virtual host, or changes what is said about one. `true` if it is new.
    ///
    /// # Errors
    /// If it is being deleted, there are too many, or the log takes no more.
    pub async fn put_vhost(
        &self,
        name: &VhostName,
        spec: VhostSpec,
    ) -> Result<bool, ExchangeError<VhostError>> {
        self.change_vhost(name, |_| Ok(spec.clone())).await
    }

    /// As [`Self::put_vhost`]: `decide` says what it shall be from what it is, if there is one.
    ///
    /// # Errors
    /// As there, or if `decide` refuses.
    pub async fn change_vhost(
        &self,
        name: &VhostName,
        decide: impl Fn(Option<&VhostSpec>) -> Result<VhostSpec, VhostError>,
    ) -> Result<bool, ExchangeError<VhostError>> {
        let is_new = AtomicBool::new(false);
        let attempt = || {
            self.change(|topology| {
                let found = topology.open_vhost(name).ok();
                is_new.store(found.is_none(), Ordering::Relaxed);
                let spec = decide(found.map(|vhost| &vhost.spec))?;
                topology.decide_put_vhost(name, spec)
            })
        };
        let begun = self.when_room(attempt).await;
        self.finish(begun).await?;
        let is_new = is_new.load(Ordering::Relaxed);
        let by = OnBehalf::now();
        tracing::info!(vhost = %name, %by, "{}", if is_new { "vhost created" } else { "vhost changed" });
        Ok(is_new)
    }

    /// Deletes a virtual host with all that is in it, and has its connections closed. It goes on whether or not anybody waits
    /// for it.
    ///
    /// # Errors
    /// If there is none, or the log takes no more; then it is finished by another call, or by the next start.
    pub async fn delete_vhost(&self, name: &VhostName) -> Result<VhostDeleted, ExchangeError<VhostError>> {
        let begun = self.when_room(|| self.begin_delete_vhost(name)).await;
        let done = match begun {
            Ok(_) => {
                let (shared, own) = (Arc::clone(&self.shared), name.clone());
                self.shared.begin_on_worker(Work::Chore, move || shared.empty_vhost(&own))
            }
            Err(refused) => return self.finish(Err(refused)).await.map(|()| VhostDeleted::default()),
        };
        let stopping = || QueueError::Unavailable { reason: "the broker is stopping".into() };
        let (deleted, written) = done.await.map_err(|_| stopping())??;
        self.shared.wait_for(written).await?;
        Ok(deleted)
    }

    fn begin_delete_vhost(&self, name: &VhostName) -> Result<Written, ExchangeError<VhostError>> {
        // Who adds a queue has looked for the virtual host under this lock.
        let changing = self.shared.catalog.change();
        self.shared.refuse_if_rebuilding()?;
        let begun = self.change(|topology| topology.decide_delete_vhost(name))?;
        drop(changing);
        self.shared.vhost_connections.close(name);
        // Whoever makes one of that name again has not asked for it.
        self.set_tracing(name, false);
        Ok(begun)
    }

    /// A virtual host; `None` if it is not there, or on its way out.
    #[must_use]
    pub fn vhost(&self, name: &VhostName) -> Option<VhostInfo> {
        let found = self.shared.catalog.exchanges.look(|topology| topology.open_vhost(name).cloned().ok());
        found.map(|vhost| self.vhost_info(name.clone(), vhost))
    }

    /// All virtual hosts by name.
    #[must_use]
    pub fn vhosts(&self) -> Vec<VhostInfo> {
        let open: Vec<(VhostName, Vhost)> = self.shared.catalog.exchanges.look(|topology| {
            let open = topology.vhosts().filter(|(_, vhost)| vhost.stage == VhostStage::Open);
            open.map(|(name, vhost)| (name.clone(), vhost.clone())).collect()
        });
        let mut all: Vec<VhostInfo> =
            open.into_iter().map(|(name, vhost)| self.vhost_info(name, vhost)).collect();
        all.sort_unstable_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        all
    }

    fn vhost_info(&self, name: VhostName, vhost: Vhost) -> VhostInfo {
        let connections = self.shared.vhost_connections.count(&name);
        VhostInfo { name, spec: vhost.spec, queues: vhost.queues, connections }
    }

    /// The type of queues in a virtual host whose declaration names none.
    #[must_use]
    pub fn default_queue_type(&self, vhost: &VhostName) -> Option<DefaultQueueType> {
        let exchanges = &self.shared.catalog.exchanges;
        exchanges
            .look(|topology| topology.open_vhost(vhost).ok().and_then(|vhost| vhost.spec.default_queue_type))
    }

    /// Counts a connection in a virtual host, for as long as it keeps the stay. `on_deleted` is called if the virtual host is
    /// deleted meanwhile; it must not wait.
    ///
    /// # Errors
    /// If there is no such virtual host, or it has as many as it may have.
    pub fn enter_vhost(
        &self,
        name: &VhostName,
        on_deleted: impl FnOnce() + Send + 'static,
    ) -> Result<VhostStay, EnterError> {
        // Who deletes it closes what is in here after it has gone from the exchanges.
        let mut entered = self.shared.vhost_connections.0.lock();
        let max = self
            .shared
            .catalog
            .exchanges
            .look(|topology| topology.open_vhost(name).map(|vhost| vhost.spec.max_connections).ok());
        let max = max.ok_or_else(|| EnterError::NotFound { name: name.clone() })?;
        if let Some(max) = max.filter(|max| entered.count(name) >= *max) {
            return Err(EnterError::ConnectionLimit { name: name.clone(), max });
        }
        entered.next += 1;
        let number = entered.next;
        entered.by_vhost.entry(name.clone()).or_default().insert(number, Box::new(on_deleted));
        Ok(VhostStay { shared: Arc::clone(&self.shared), name: name.clone(), number })
    }
}

impl Shared {
    /// Finishes deletions of virtual hosts that were begun and not finished. One that cannot be finished now is so by the
    /// next start.
    pub(crate) fn finish_deleted_vhosts(self: &Arc<Self>) {
        let begun: Vec<VhostName> = self.catalog.exchanges.look(|topology| {
            let begun = topology.vhosts().filter(|(_, vhost)| vhost.stage == VhostStage::Deleting);
            begun.map(|(name, _)| name.clone()).collect()
        });
        for name in begun {
            if let Err(error) = self.empty_vhost(&name) {
                tracing::error!(vhost = %name, %error, "a vhost that is being deleted cannot be emptied now");
            }
        }
    }

    /// Whether the virtual host of a new queue is there. To be asked with the catalog's lock for changes.
    pub(crate) fn check_vhost_of(&self, name: &QueueName) -> Result<(), QueueError> {
        let found = self.catalog.exchanges.look(|topology| topology.open_vhost(&name.vhost()).map(|_| ()));
        found.map_err(|error| QueueError::Unavailable { reason: error.to_string() })
    }

    /// Deletes all queues of a virtual host that is on its way out, and then itself. Waits for room in the log.
    fn empty_vhost(self: &Arc<Self>, name: &VhostName) -> Result<(VhostDeleted, Written), QueueError> {
        let (mut deleted, mut written) = (VhostDeleted::default(), Written::NOTHING);
        let own = |cell: &Arc<crate::queue_cell::QueueCell>| cell.name.vhost_str() == name.as_str();
        let cells: Vec<Arc<crate::queue_cell::QueueCell>> =
            self.catalog.all().into_iter().filter(own).collect();
        // Asked after they were listed: one who deleted it twice may come when another of that name is there.
        let is_going = self.catalog.exchanges.look(|topology| {
            let mut all = topology.vhosts();
            all.any(|(found, vhost)| found == name && vhost.stage == VhostStage::Deleting)
        });
        if !is_going {
            return Ok((deleted, self.catalog.exchanges.last_change()));
        }
        for cell in cells {
            let removed = self.when_room_blocking(|| {
                let Ok(removed) = self.remove_queue(&cell, |_, _| Ok::<_, Infallible>(()))?;
                Ok(removed)
            });
            match removed {
                Ok((one, messages)) => {
                    written = written.and(one);
                    deleted.queues += 1;
                    deleted.messages += messages;
                }
                // Its connection has ended, or somebody else deletes the same virtual host.
                Err(QueueError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // Before it is gone for good: whoever makes one of that name again finds nobody in it.
        written = written.and(self.when_room_blocking(|| self.forget_permissions_in(name))?);
        written = written.and(self.when_room_blocking(|| self.forget_policies_in(name))?);
        written = written.and(self.when_room_blocking(|| self.forget_jobs_in(name))?);
        written = written.and(self.when_room_blocking(|| self.forget_schedules_in(name))?);
        let gone = self.when_room_blocking(|| {
            let decide = |topology: &Topology| Ok::<_, Infallible>(topology.decide_vhost_gone(name));
            let changed = self.change_topology(&[], decide, Urgency::Synced);
            let Ok(changed) = changed.map_err(|error: ProposeError| self.refused(&error))?;
            Ok(changed.written)
        })?;
        let VhostDeleted { queues, messages } = deleted;
        tracing::info!(vhost = %name, queues, messages, by = %OnBehalf::now(), "vhost deleted");
        Ok((deleted, written.and(gone)))
    }

    /// Tries again when the log has room, without any lock.
    pub(crate) fn when_room_blocking<R>(
        &self,
        attempt: impl Fn() -> Result<R, QueueError>,
    ) -> Result<R, QueueError> {
        loop {
            match attempt() {
                Err(QueueError::Busy { .. }) if !self.stopping.load(Ordering::Relaxed) => {
                    self.journal.wait_for_room();
                }
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nexo_core::config::QueueConfig;
    use nexo_log::disk::MemoryDisk;

    use super::*;
    use crate::options::BrokerOptions;

    #[tokio::test]
    async fn a_deletion_that_comes_too_late_leaves_the_next_of_that_name_alone() {
        let broker = Broker::open_on(Arc::new(MemoryDisk::new()), BrokerOptions::new("memory")).unwrap();
        let vhost = VhostName::new("x").unwrap();
        let queue = QueueName::at(&vhost, "q").unwrap();
        broker.put_vhost(&vhost, VhostSpec::default()).await.unwrap();
        broker.delete_vhost(&vhost).await.unwrap();
        broker.put_vhost(&vhost, VhostSpec::default()).await.unwrap();
        broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
        let (deleted, _) = broker.shared.empty_vhost(&vhost).unwrap();
        assert_eq!(deleted, VhostDeleted::default());
        assert!(broker.queue(&queue).is_some() && broker.vhost(&vhost).is_some());
    }
}
