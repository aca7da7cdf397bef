//! The state machines that are not queues: exchanges with their bindings, users, policies, schedules, job queues, and the nodes of a cluster. Each is written under an id that no queue
//! has; here a start, a rebuild and a checkpoint find all of them.

use bytes::Bytes;
use nexo_core::access::Access;
use nexo_core::jobs::Jobs;
use nexo_core::nodes::Nodes;
use nexo_core::policy::Policies;
use nexo_core::queue::ChunkId;
use nexo_core::schedule::Schedules;
use nexo_core::topology::Topology;
use nexo_types::{Position, QueueId, Timestamp};

use crate::access_cell::ACCESS;
use crate::exchanges::TOPOLOGY;
use crate::jobs::JOBS;
use crate::journal::ProposeError;
use crate::machine_cell::{Replayed, WholeMachine};
use crate::manifest::{Demand, Manifest, Snapshot};
use crate::nodes::NODES;
use crate::policies::{POLICIES, set_all_alternates};
use crate::schedules::SCHEDULES;
use crate::shared::Shared;

/// Whether this is the id of a machine that is not a queue.
pub(crate) const fn is_machine(id: QueueId) -> bool {
    id.0 == TOPOLOGY.0
        || id.0 == ACCESS.0
        || id.0 == POLICIES.0
        || id.0 == JOBS.0
        || id.0 == SCHEDULES.0
        || id.0 == NODES.0
}

/// What an id stands for, for whoever reads of it.
pub(crate) fn shown(id: QueueId) -> String {
    match id {
        TOPOLOGY => "the exchanges".to_owned(),
        ACCESS => "the users".to_owned(),
        POLICIES => "the policies".to_owned(),
        JOBS => "the job queues".to_owned(),
        SCHEDULES => "the schedules".to_owned(),
        NODES => "the nodes".to_owned(),
        id => format!("queue {id}"),
    }
}

/// All of them, while they are rebuilt.
#[derive(Debug)]
pub(crate) struct ReplayedMachines {
    pub(crate) topology: Replayed<Topology>,
    pub(crate) access: Replayed<Access>,
    pub(crate) policies: Replayed<Policies>,
    pub(crate) jobs: Replayed<Jobs>,
    pub(crate) schedules: Replayed<Schedules>,
    pub(crate) nodes: Replayed<Nodes>,
}

impl ReplayedMachines {
    /// Nothing has happened to them.
    pub(crate) fn new() -> Self {
        Self {
            topology: Replayed::new(Topology::new()),
            access: Replayed::new(Access::new()),
            policies: Replayed::new(Policies::new()),
            jobs: Replayed::new(Jobs::new()),
            schedules: Replayed::new(Schedules::new()),
            nodes: Replayed::new(Nodes::new()),
        }
    }

    /// Takes the state of a snapshot of the machine with this id.
    ///
    /// # Errors
    /// If the head is not one.
    pub(crate) fn load(
        &mut self,
        id: QueueId,
        head: &[u8],
        chunks: &[Bytes],
        snapshot: Snapshot,
    ) -> Result<(), String> {
        match id {
            TOPOLOGY => self.topology.load(head, chunks, snapshot),
            ACCESS => self.access.load(head, chunks, snapshot),
            POLICIES => self.policies.load(head, chunks, snapshot),
            JOBS => self.jobs.load(head, chunks, snapshot),
            SCHEDULES => self.schedules.load(head, chunks, snapshot),
            NODES => self.nodes.load(head, chunks, snapshot),
            id => Err(format!("there is no machine {id}")),
        }
    }

    /// Takes the whole state of the machine with this id, from another node.
    ///
    /// # Errors
    /// If head and chunks are none.
    pub(crate) fn load_whole(
        &mut self,
        id: QueueId,
        head: &[u8],
        chunks: &[Bytes],
        ids: &[ChunkId],
    ) -> Result<(), String> {
        match id {
            TOPOLOGY => self.topology.load_whole(head, chunks, ids),
            ACCESS => self.access.load_whole(head, chunks, ids),
            POLICIES => self.policies.load_whole(head, chunks, ids),
            JOBS => self.jobs.load_whole(head, chunks, ids),
            SCHEDULES => self.schedules.load_whole(head, chunks, ids),
            NODES => self.nodes.load_whole(head, chunks, ids),
            id => Err(format!("there is no machine {id}")),
        }
    }

    /// Applies a record of the machine with this id. Gives back the time that it carries.
    ///
    /// # Errors
    /// If the bytes are not a record.
    pub(crate) fn replay(
        &mut self,
        id: QueueId,
        at: Position,
        payload: &Bytes,
    ) -> Result<Option<Timestamp>, String> {
        match id {
            TOPOLOGY => self.topology.replay(at, payload),
            ACCESS => self.access.replay(at, payload),
            POLICIES => self.policies.replay(at, payload),
            JOBS => self.jobs.replay(at, payload),
            SCHEDULES => self.schedules.replay(at, payload),
            NODES => self.nodes.replay(at, payload),
            id => Err(format!("there is no machine {id}")),
        }
    }
}

impl Shared {
    /// Has a checkpoint name the latest snapshots of all machines.
    pub(crate) fn snapshot_machines(
        &self,
        manifest: &mut Manifest,
        demand: Demand<'_>,
    ) -> Result<(), ProposeError> {
        manifest.queues.push((TOPOLOGY, self.snapshot_machine(self.catalog.exchanges.cell(), demand)?));
        manifest.queues.push((ACCESS, self.snapshot_machine(self.access.cell(), demand)?));
        manifest.queues.push((POLICIES, self.snapshot_machine(self.policies.cell(), demand)?));
        manifest.queues.push((JOBS, self.snapshot_machine(self.jobs.cell(), demand)?));
        manifest.queues.push((SCHEDULES, self.snapshot_machine(self.schedules.cell(), demand)?));
        if self.nodes.is_used() {
            manifest.queues.push((NODES, self.snapshot_machine(self.nodes.cell(), demand)?));
        }
        Ok(())
    }

    /// The latest snapshots of all of them.
    pub(crate) fn machine_snapshots(&self) -> [Snapshot; 6] {
        [
            self.catalog.exchanges.cell().snapshot(),
            self.access.cell().snapshot(),
            self.policies.cell().snapshot(),
            self.schedules.cell().snapshot(),
            self.jobs.cell().snapshot(),
            self.nodes.cell().snapshot(),
        ]
    }

    /// All of them as they are now: the id, the head and the chunks of each.
    ///
    /// # Errors
    /// If one is purged meanwhile.
    pub(crate) fn whole_machines(&self) -> Result<Vec<WholeMachine>, String> {
        Ok(vec![
            self.catalog.exchanges.cell().whole()?,
            self.access.cell().whole()?,
            self.policies.cell().whole()?,
            self.jobs.cell().whole()?,
            self.schedules.cell().whole()?,
            self.nodes.cell().whole()?,
        ])
    }

    /// Has other machines instead of those there were.
    pub(crate) fn replace_machines(&self, mut machines: ReplayedMachines) {
        // Before anybody publishes to them: a message without a binding would be lost.
        set_all_alternates(&machines.policies.machine, &mut machines.topology.machine);
        self.access.replace(machines.access);
        self.policies.replace(machines.policies);
        self.schedules.replace(machines.schedules);
        self.jobs.replace(machines.jobs);
        self.nodes.replace(machines.nodes);
        self.catalog.exchanges.replace(machines.topology);
    }
}
