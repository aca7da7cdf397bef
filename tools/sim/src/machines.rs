//! The machines of a group beside its queues: exchanges, job queues, schedules, users, nodes, policies.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use nexo_core::access::{Access, AccessRecord};
use nexo_core::config::Backoff;
use nexo_core::jobs::{BudgetConfig, JobAnswer, JobCommand, JobQueueConfig, Jobs, Refill};
use nexo_core::machine::Machine;
use nexo_core::message::Durability;
use nexo_core::nodes::{NodeChange, Nodes};
use nexo_core::policy::{Policies, PolicyRecord};
use nexo_core::queue::ChunkId;
use nexo_core::schedule::{Outcome, ScheduleCommand, Schedules};
use nexo_core::topology::{Topology, TopologyCommand};
use nexo_types::{BudgetName, JobQueueName, Millis, QueueId, Timestamp, varint};

use crate::state::{number, put, take};

const TOPOLOGY: QueueId = QueueId(100);
const JOBS: QueueId = QueueId(102);
const SCHEDULES: QueueId = QueueId(103);
const ACCESS: QueueId = QueueId(104);
const NODES: QueueId = QueueId(105);
const POLICIES: QueueId = QueueId(106);

/// What a client wants of one of them.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Topology(TopologyCommand),
    Jobs(JobCommand),
    Schedules(ScheduleCommand),
    Access(Vec<AccessRecord>),
    Nodes(NodeChange),
    Policies(Vec<PolicyRecord>),
}

/// The job queue that there is.
pub(crate) fn job_queue() -> JobQueueName {
    JobQueueName::new("deals").expect("a name")
}

fn budget() -> BudgetName {
    BudgetName::new("api").expect("a name")
}

pub(crate) fn put_budget(capacity: u64) -> JobCommand {
    let refill = Some(Refill { tokens: 5, every: Millis(500) });
    let config = BudgetConfig { initial: 20, capacity: Some(capacity), refill };
    JobCommand::PutBudget { name: budget(), config }
}

pub(crate) fn put_job_queue(is_paid: bool) -> JobCommand {
    let config = JobQueueConfig {
        budget: is_paid.then(budget),
        lease: Millis(1_500),
        max_attempts: 3,
        retry: Backoff::Fixed { delay: Millis(200) },
        result_ttl: Millis(3_000),
        remember: Millis(2_000),
        ..JobQueueConfig::default()
    };
    JobCommand::PutQueue { name: job_queue(), config: Arc::new(config) }
}

/// A record of one of them, in bytes.
pub(crate) type MachineRecord = (QueueId, Bytes);

/// A machine, and the chunks of its snapshot that have not changed since.
#[derive(Debug)]
struct Kept<M> {
    machine: M,
    chunks: BTreeMap<ChunkId, Bytes>,
}

impl<M: Machine<Missing = Infallible>> Kept<M> {
    const fn new(machine: M) -> Self {
        Self { machine, chunks: BTreeMap::new() }
    }

    fn decide(&self, id: QueueId, now: Timestamp, command: &M::Command) -> (Vec<MachineRecord>, M::Answer) {
        let decision = self.machine.decide(now, command);
        let records = decision.steps.iter().map(|step| (id, M::encode(&step.record)));
        (records.collect(), decision.answer)
    }

    fn apply(&mut self, bytes: &[u8]) {
        let record = M::decode(bytes).expect("a record");
        let Ok(_) = self.machine.apply(&record, Durability::Durable);
    }

    /// As a checkpoint does: what has not changed since the last one is not encoded again.
    fn snapshot(&mut self, out: &mut Vec<u8>) {
        let known: Vec<ChunkId> = self.chunks.keys().copied().collect();
        put(out, &self.machine.begin_snapshot(known.into_iter(), &[]));
        loop {
            let slice = self.machine.next_chunks(usize::MAX, usize::MAX).expect("nothing cancels it");
            for (chunk, bytes) in slice.chunks {
                if bytes.is_empty() {
                    self.chunks.remove(&chunk);
                } else {
                    self.chunks.insert(chunk, bytes);
                }
            }
            if !slice.more {
                break;
            }
        }
        varint::put(out, self.chunks.len() as u64);
        for (chunk, bytes) in &self.chunks {
            varint::put(out, chunk.0);
            put(out, bytes);
        }
    }

    fn restore(rest: &mut &[u8]) -> Self {
        let head = take(rest);
        let mut chunks = BTreeMap::new();
        for _ in 0..number(rest) {
            chunks.insert(ChunkId(number(rest)), Bytes::copy_from_slice(take(rest)));
        }
        let machine = M::restore(head, chunks.values().map(|bytes| &bytes[..])).expect("a snapshot");
        Self { machine, chunks }
    }

    fn differs(&self, other: &Self, now: Timestamp) -> bool {
        self.machine.outline(now) != other.machine.outline(now)
    }
}

/// See the file.
#[derive(Debug)]
pub(crate) struct Machines {
    topology: Kept<Topology>,
    jobs: Kept<Jobs>,
    schedules: Kept<Schedules>,
    access: Kept<Access>,
    nodes: Kept<Nodes>,
    policies: Kept<Policies>,
}

impl Machines {
    /// As they are in the beginning: with a job queue and a budget.
    pub(crate) fn new() -> Self {
        let mut machines = Self {
            topology: Kept::new(Topology::new()),
            jobs: Kept::new(Jobs::new()),
            schedules: Kept::new(Schedules::default()),
            access: Kept::new(Access::default()),
            nodes: Kept::new(Nodes::default()),
            policies: Kept::new(Policies::default()),
        };
        for command in [put_budget(40), put_job_queue(true)] {
            let (records, _) = machines.decide(Timestamp(0), &Command::Jobs(command));
            records.iter().for_each(|(id, bytes)| {
                machines.apply(*id, bytes);
            });
        }
        machines
    }

    /// Whether records with this id are of one of them.
    pub(crate) const fn owns(id: QueueId) -> bool {
        id.0 >= TOPOLOGY.0 && id.0 != crate::state::TIME.0
    }

    pub(crate) const fn jobs(&self) -> &Jobs {
        &self.jobs.machine
    }

    /// What a command comes to, and what whoever asked for jobs is told.
    pub(crate) fn decide(
        &mut self,
        now: Timestamp,
        command: &Command,
    ) -> (Vec<MachineRecord>, Option<JobAnswer>) {
        match command {
            Command::Topology(command) => (self.topology.decide(TOPOLOGY, now, command).0, None),
            Command::Jobs(command) => {
                while self.jobs.machine.advance_time(now, 1_000) {}
                let (records, answer) = self.jobs.decide(JOBS, now, command);
                (records, answer.ok())
            }
            Command::Schedules(command) => (self.schedules.decide(SCHEDULES, now, command).0, None),
            Command::Access(command) => (self.access.decide(ACCESS, now, command).0, None),
            Command::Nodes(command) => (self.nodes.decide(NODES, now, command).0, None),
            Command::Policies(command) => (self.policies.decide(POLICIES, now, command).0, None),
        }
    }

    /// What time has brought: the ends of leases of jobs, and times of schedules.
    pub(crate) fn due(&self, now: Timestamp) -> Vec<Command> {
        let mut due = Vec::new();
        if self.jobs.machine.next_due().is_some_and(|at| at <= now) {
            due.push(Command::Jobs(JobCommand::Due { max: 20 }));
        }
        let times = self.schedules.machine.by_time().take_while(|(at, _)| *at <= now);
        due.extend(times.take(3).map(|(at, (vhost, name))| {
            let outcome = match at.0 % 5 {
                0 => Outcome::Failed { error: "nobody is there".into() },
                _ => Outcome::Done,
            };
            let (vhost, name) = (vhost.clone(), name.clone());
            Command::Schedules(ScheduleCommand::Due { vhost, name, max: 3, outcome })
        }));
        due
    }

    /// Applies a record. `false` if it is of none of these.
    pub(crate) fn apply(&mut self, id: QueueId, bytes: &[u8]) -> bool {
        match id {
            TOPOLOGY => self.topology.apply(bytes),
            JOBS => self.jobs.apply(bytes),
            SCHEDULES => self.schedules.apply(bytes),
            ACCESS => self.access.apply(bytes),
            NODES => self.nodes.apply(bytes),
            POLICIES => self.policies.apply(bytes),
            _ => return false,
        }
        true
    }

    pub(crate) fn snapshot(&mut self, out: &mut Vec<u8>) {
        self.topology.snapshot(out);
        self.jobs.snapshot(out);
        self.schedules.snapshot(out);
        self.access.snapshot(out);
        self.nodes.snapshot(out);
        self.policies.snapshot(out);
    }

    pub(crate) fn restore(rest: &mut &[u8]) -> Self {
        Self {
            topology: Kept::restore(rest),
            jobs: Kept::restore(rest),
            schedules: Kept::restore(rest),
            access: Kept::restore(rest),
            nodes: Kept::restore(rest),
            policies: Kept::restore(rest),
        }
    }

    /// Which of them differ.
    pub(crate) fn difference(&self, other: &Self, now: Timestamp) -> Vec<&'static str> {
        let differ = [
            ("exchanges", self.topology.differs(&other.topology, now)),
            ("job queues", self.jobs.differs(&other.jobs, now)),
            ("schedules", self.schedules.differs(&other.schedules, now)),
            ("users", self.access.differs(&other.access, now)),
            ("nodes", self.nodes.differs(&other.nodes, now)),
            ("policies", self.policies.differs(&other.policies, now)),
        ];
        differ.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}
