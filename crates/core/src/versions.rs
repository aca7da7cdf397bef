//! Every encoding of this crate begins with a version, and a later one is refused by name.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{
    BudgetName, ExchangeName, JobQueueName, Millis, NodeName, Offset, QueueId, QueueName, Timestamp,
    VhostName,
};

use crate::access::{Access, AccessRecord};
use crate::batch::{MessageBatch, relocate};
use crate::config::QueueConfig;
use crate::draft::PackedBatch;
use crate::jobs::{BudgetConfig, JobBody, JobCommand, JobQueueConfig, JobRecord, Jobs, NewJob};
use crate::machine::{Machine, Step};
use crate::message::{Durability, NewMessage};
use crate::nodes::{JoinId, NodeAddress, NodeChange, Nodes};
use crate::policy::{Policies, PolicyRecord};
use crate::queue::{Admission, Queue, QueueCommand};
use crate::record::Record;
use crate::schedule::{ScheduleRecord, Schedules};
use crate::shared_messages::{SharedMemory, SharedMessages};
use crate::topology::{Topology, TopologyRecord};
use crate::wire::{Reader, WireError, Writer};

const NOW: Timestamp = Timestamp(1_000_000);

/// An encoding, with its version raised to the next one, and what reading it comes to.
struct Case {
    what: &'static str,
    outcome: Result<(), WireError>,
}

/// What begins with a tag.
fn tagged<T>(what: &'static str, bytes: &Bytes, read: impl Fn(Bytes) -> Result<T, WireError>) -> Case {
    let mut later = bytes.to_vec();
    // The version is in the upper three bits.
    later[0] += 1 << 5;
    case(what, bytes, later, read)
}

/// What begins with a version after `before` bytes.
fn versioned<T>(
    what: &'static str,
    bytes: &Bytes,
    before: usize,
    read: impl Fn(Bytes) -> Result<T, WireError>,
) -> Case {
    let mut later = bytes.to_vec();
    let mut at = Reader::new(&bytes[before..]);
    let version = at.version(what, u64::MAX).unwrap();
    let mut mark = Writer::default();
    mark.version(version);
    let mark = mark.into_vec();
    assert!(bytes[before..].starts_with(&mark), "{what} begins with its version");
    later[before + mark.len() - 1] += 1;
    case(what, bytes, later, read)
}

fn case<T>(
    what: &'static str,
    bytes: &Bytes,
    later: Vec<u8>,
    read: impl Fn(Bytes) -> Result<T, WireError>,
) -> Case {
    assert!(read(bytes.clone()).is_ok(), "{what} can be read as it is");
    Case { what, outcome: read(later.into()).map(drop) }
}

/// Where the first version behind the tag of a record is: that of the settings in it.
fn settings_in(record: &Bytes) -> usize {
    let mut mark = Writer::default();
    mark.version(1);
    let mark = mark.into_vec();
    record.windows(2).position(|bytes| *bytes == mark[..2]).expect("a record with settings")
}

/// A machine after these commands.
fn after<M: Machine>(mut machine: M, commands: &[M::Command]) -> M {
    for command in commands {
        for Step { record, durability } in machine.decide(NOW, command).steps {
            assert!(machine.apply(&record, durability).is_ok());
        }
    }
    machine
}

/// The head of a snapshot, and its chunks.
fn snapshot_of<M: Machine>(mut machine: M) -> (Bytes, Vec<Bytes>) {
    let head = machine.begin_snapshot(std::iter::empty(), &[]);
    let slice = machine.next_chunks(usize::MAX, usize::MAX).expect("nothing cancels it");
    (head, slice.chunks.into_iter().map(|(_, bytes)| bytes).collect())
}

/// A snapshot that is all in its head.
fn head<M: Machine>(what: &'static str, machine: M) -> Case {
    let (head, chunks) = snapshot_of(machine);
    assert!(chunks.is_empty(), "{what} has chunks");
    versioned(what, &head, 0, |bytes| M::restore(&bytes, std::iter::empty()))
}

fn record<M: Machine>(what: &'static str, record: &M::Record) -> Case {
    tagged(what, &M::encode(record), |bytes| M::decode(&bytes))
}

fn queues() -> Vec<Case> {
    let name = QueueName::new("mail").unwrap();
    let create = Record::Create { name: name.clone(), config: QueueConfig::default(), at: NOW };
    let delayed = NewMessage { delay: Millis(5), ..NewMessage::new("body") };
    let queue = Queue::new(QueueId(1), name, QueueConfig::default(), NOW);
    let (head, chunks) = snapshot_of(after(queue, &[QueueCommand::Push(vec![delayed], Admission::Checked)]));
    let with_chunk =
        |chunk: Bytes| Queue::restore(&head, std::iter::once(&chunk[..])).map_err(|error| error.0);
    vec![
        record::<Queue>("a record", &create),
        versioned("a queue's settings", &create.encode(), settings_in(&create.encode()), |bytes| {
            Record::decode(&bytes)
        }),
        versioned("the snapshot of a queue", &head, 0, |bytes| {
            <Queue as Machine>::restore(&bytes, std::iter::empty())
        }),
        versioned("a chunk of a queue's snapshot", &chunks[0], 0, with_chunk),
    ]
}

fn batches() -> Vec<Case> {
    let message = NewMessage::new("body");
    let mut packed = PackedBatch::new(Durability::Durable, 100, 1);
    packed.push(&message.as_draft());
    let shared = SharedMessages::new(packed, &Arc::new(SharedMemory::default()));
    let batch = shared.batch(0, Offset(7), NOW);
    let store = shared.store().clone();
    let stored = shared.stored().next().map(Bytes::copy_from_slice).unwrap();
    let relocated = &relocate(&[(Offset(7), NOW, stored)])[0];
    let mut pushed = PackedBatch::new(Durability::Durable, 100, 1);
    pushed.push(&message.as_draft());
    let pushed = pushed.seal(Offset(7), NOW);
    vec![
        tagged("a batch of messages", pushed.bytes(), MessageBatch::decode),
        tagged("a batch of messages", relocated.bytes(), MessageBatch::decode),
        tagged("a batch of messages", batch.bytes(), |bytes| {
            MessageBatch::decode_in(bytes, |_| Some(store.clone()))
        }),
        tagged("a batch of messages", &store, |store| {
            MessageBatch::decode_in(batch.bytes().clone(), |_| Some(store))
        }),
    ]
}

fn jobs() -> Vec<Case> {
    let name = JobQueueName::new("deals").unwrap();
    let budget = BudgetName::new("api").unwrap();
    let config = Arc::new(JobQueueConfig::default());
    let put = JobRecord::PutQueue {
        queue: nexo_types::JobQueueId(0),
        name: name.clone(),
        config: Arc::clone(&config),
        at: NOW,
    };
    let body = JobBody { kind: "search".into(), key: "phones".into(), payload: Bytes::from_static(b"{}") };
    let job = NewJob { body: Arc::new(body), cost: 0, deadline: None, background: true };
    let put_budget = JobCommand::PutBudget { name: budget, config: BudgetConfig::default() };
    let (budgets, _) = snapshot_of(after(Jobs::new(), std::slice::from_ref(&put_budget)));
    let commands = [
        JobCommand::PutQueue { name: name.clone(), config },
        JobCommand::Ask { queue: name, job, waiter: None },
    ];
    let (head, chunks) = snapshot_of(after(Jobs::new(), &commands));
    let no_chunks = |bytes: Bytes| Jobs::restore(&bytes, std::iter::empty());
    // Behind the version of the head itself.
    let budget_at = 3 + settings_in(&budgets.slice(3..));
    vec![
        record::<Jobs>("a record of job queues", &put),
        versioned("the settings of a job queue", &put.encode(), settings_in(&put.encode()), |bytes| {
            JobRecord::decode(&bytes)
        }),
        versioned("the snapshot of job queues", &head, 0, no_chunks),
        versioned("a budget", &budgets, budget_at, no_chunks),
        versioned("a part of the snapshot of job queues", &chunks[0], 0, |chunk| {
            Jobs::restore(&head, std::iter::once(&chunk[..]))
        }),
    ]
}

fn others() -> Vec<Case> {
    let vhost = VhostName::DEFAULT;
    let topology = TopologyRecord::Delete { name: ExchangeName::new("x").unwrap() };
    let node = NodeChange::Add {
        name: NodeName::new("one").unwrap(),
        address: NodeAddress::new("localhost:5680").unwrap(),
        join: JoinId(1),
    };
    let added = Nodes::default().decide(NOW, &node).steps.remove(0).record;
    vec![
        record::<Topology>("a record of an exchange", &topology),
        head("the snapshot of exchanges and bindings", Topology::new()),
        record::<Access>("a record of users", &AccessRecord::ForgetVhost { vhost: "v".into() }),
        head("the snapshot of users", Access::new()),
        record::<Policies>("a record of policies", &PolicyRecord::ForgetVhost { vhost: vhost.clone() }),
        head("the snapshot of policies", Policies::new()),
        record::<Schedules>("a record of schedules", &ScheduleRecord::ForgetVhost { vhost }),
        head("the snapshot of schedules", Schedules::new()),
        record::<Nodes>("a record of nodes", &added),
        head("the snapshot of nodes", Nodes::default()),
    ]
}

#[test]
fn each_encoding_of_a_later_version_is_refused_by_name() {
    let cases = [queues(), batches(), jobs(), others()].into_iter().flatten();
    for Case { what, outcome } in cases {
        match outcome {
            Err(WireError::LaterVersion { what: named, version, known }) => {
                assert_eq!(named, what);
                assert_eq!(version, known + 1, "{what}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}
