//! Users and nodes, which a node of a cluster keeps current while another one leads: they are asked for there as well.
//!
//! What is committed is told with its place in the group's log, a little later than it is committed. Meanwhile the state in memory may
//! have been loaded anew, with that in it, and changed since: so what is in it already is passed over.

use nexo_log::{Entry, EntryKind};
use nexo_types::{LogIndex, QueueId};
use parking_lot::Mutex;

use crate::access_cell::ACCESS;
use crate::machines::ReplayedMachines;
use crate::nodes::NODES;
use crate::shared::Shared;

/// Whether a follower keeps this machine current.
pub(crate) const fn is_followed(id: QueueId) -> bool {
    id.0 == ACCESS.0 || id.0 == NODES.0
}

/// How far the machines in memory are. Its lock is taken before theirs.
#[derive(Debug)]
pub(crate) struct Followed(Mutex<Progress>);

#[derive(Debug)]
struct Progress {
    /// The last entry of the group in the state that was loaded last.
    loaded: LogIndex,
    /// What was told since the next state began to be loaded, while one is.
    meanwhile: Option<Vec<(LogIndex, Entry)>>,
}

impl Followed {
    /// The state in memory has all up to this entry.
    pub(crate) const fn new(loaded: LogIndex) -> Self {
        Self(Mutex::new(Progress { loaded, meanwhile: None }))
    }

    /// From now on what is told is kept, for a state that is loaded meanwhile and may not have it.
    pub(crate) fn keep(&self) {
        self.0.lock().meanwhile = Some(Vec::new());
    }

    /// No other state has come of it.
    pub(crate) fn forget_kept(&self) {
        self.0.lock().meanwhile = None;
    }
}

impl Shared {
    /// What another leader has proposed is committed.
    pub(crate) fn follow_records(&self, index: LogIndex, entries: &[Entry]) {
        let mut progress = self.followed.0.lock();
        let wanted = |entry: &&Entry| entry.kind == EntryKind::Record && is_followed(entry.queue);
        for entry in entries.iter().filter(wanted) {
            if let Some(kept) = &mut progress.meanwhile {
                kept.push((index, entry.clone()));
            }
            if index > progress.loaded {
                self.follow(entry);
            }
        }
    }

    /// Has other machines instead of those there were, which have all up to this entry, with what was told since [`Followed::keep`].
    pub(crate) fn replace_followed(&self, machines: ReplayedMachines, loaded: LogIndex) {
        let mut progress = self.followed.0.lock();
        progress.loaded = loaded;
        let kept = progress.meanwhile.take().unwrap_or_default();
        self.replace_machines(machines);
        kept.iter().filter(|(index, _)| *index > loaded).for_each(|(_, entry)| self.follow(entry));
    }

    fn follow(&self, entry: &Entry) {
        let followed = match entry.queue {
            ACCESS => self.access.follow(&entry.payload),
            NODES => self.nodes.cell().follow(&entry.payload, |_| ()),
            _ => Ok(()),
        };
        if let Err(error) = followed {
            tracing::error!(%error, "a record of another node cannot be read");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nexo_core::nodes::{ClusterNode, JoinId, NodeAddress, NodeRecord};
    use nexo_log::disk::MemoryDisk;
    use nexo_types::{NodeId, NodeName, Timestamp};

    use super::*;
    use crate::broker::Broker;
    use crate::options::BrokerOptions;

    fn entry(record: &NodeRecord) -> Entry {
        Entry { queue: NODES, kind: EntryKind::Record, spans: Vec::new(), payload: record.encode() }
    }

    fn moved_to(port: u16) -> Entry {
        let address = NodeAddress::new(&format!("mq:{port}")).unwrap();
        entry(&NodeRecord::Changed { id: NodeId(1), address })
    }

    fn address(broker: &Broker) -> String {
        broker.nodes().by_id(NodeId(1)).map(|node| node.address.to_string()).unwrap_or_default()
    }

    fn machines(broker: &Broker) -> ReplayedMachines {
        let mut machines = ReplayedMachines::new();
        machines.nodes.machine = broker.nodes();
        machines
    }

    #[tokio::test]
    async fn what_a_loaded_state_has_is_not_done_again_and_what_it_has_not_is_not_forgotten() {
        let options = BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("memory") };
        let broker = Broker::open_on(Arc::new(MemoryDisk::new()), options).unwrap();
        let shared = &broker.shared;
        let node = ClusterNode {
            id: NodeId(1),
            name: NodeName::new("one").unwrap(),
            address: NodeAddress::new("mq:1").unwrap(),
            join: JoinId(1),
            added_at: Timestamp(1),
        };
        shared.follow_records(LogIndex(1), &[entry(&NodeRecord::Added(node))]);
        shared.follow_records(LogIndex(2), &[moved_to(2)]);
        assert_eq!(address(&broker), "mq:2");

        // The state that is loaded ends at the second. The third comes meanwhile.
        let loaded = machines(&broker);
        shared.followed.keep();
        shared.follow_records(LogIndex(3), &[moved_to(3)]);
        shared.replace_followed(loaded, LogIndex(2));
        assert_eq!(address(&broker), "mq:3");

        // One that has the fourth in it is loaded, before that one is told.
        shared.followed.keep();
        let mut loaded = machines(&broker);
        let at_four = NodeAddress::new("mq:4").unwrap();
        let record = NodeRecord::Changed { id: NodeId(1), address: at_four };
        let Ok(_) = nexo_core::machine::Machine::apply(
            &mut loaded.nodes.machine,
            &record,
            nexo_core::message::Durability::Durable,
        );
        shared.replace_followed(loaded, LogIndex(5));
        shared.follow_records(LogIndex(3), &[moved_to(3)]);
        assert_eq!(address(&broker), "mq:4");
        broker.shutdown().await;
    }
}
