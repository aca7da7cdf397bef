//! Declares, deletes and bindings that wait for the disk at the same time: none holds up another, nobody is told of what
//! could still be lost, and the log has them in their order wherever the power goes.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::*;
use nexo_broker::topology::{Binding, DeleteIf as ExchangeDeleteIf, Destination};
use nexo_broker::topology::{ExchangeKind, ExchangeSpec, Matching, NoHeaders};
use nexo_broker::{
    Broker, BrokerOptions, CreateError, Declaration, DeleteIf, Durability, Health, ListRequest, NewMessage,
    QueueConfig, QueueError, SessionId, Written,
};
use nexo_log::disk::{CutMode, FaultyDisk, GateDisk};
use nexo_types::{ExchangeName, QueueName};
use tokio::task::JoinHandle;

fn exchange(text: &str) -> ExchangeName {
    ExchangeName::new(text).unwrap()
}

fn direct() -> ExchangeSpec {
    ExchangeSpec::durable(ExchangeKind::Plain(Matching::Direct))
}

fn binding(from: &str, to: &str) -> Binding {
    Binding::new(exchange(from), Destination::Queue(name(to)), Bytes::from_static(b"key"), Vec::new())
}

fn transient() -> Declaration {
    Declaration { config: QueueConfig::default(), durability: Durability::Transient, owner: None }
}

fn gated() -> (Broker, GateDisk) {
    let gate = GateDisk::default();
    (Broker::open_on(Arc::new(gate.clone()), options()).unwrap(), gate)
}

/// Begins a call that is to wait for the disk.
macro_rules! begin {
    ($broker:ident, $call:expr) => {{
        let $broker = $broker.clone();
        tokio::spawn(async move { $call.await.map(|_| ()).map_err(|error| error.to_string()) })
    }};
}

/// Everything that was begun waits, and goes on waiting.
async fn all_wait(begun: &[(&str, JoinHandle<Result<(), String>>)]) {
    tokio::time::sleep(Duration::from_millis(50)).await;
    for (what, call) in begun {
        assert!(!call.is_finished(), "{what} was answered before it was safe");
    }
}

async fn all_succeed(begun: Vec<(&str, JoinHandle<Result<(), String>>)>) {
    for (what, call) in begun {
        let done = tokio::time::timeout(Duration::from_secs(20), call).await;
        assert_eq!(done.expect("nobody waits for ever").unwrap(), Ok(()), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_wait_for_one_sync_and_nobody_is_told_before_it() {
    let (broker, gate) = gated();
    broker.create_queue(&name("there"), QueueConfig::default()).await.unwrap();
    gate.hold_syncs();
    let mut begun = vec![
        ("a declare", begin!(broker, broker.create_queue(&name("one"), QueueConfig::default()))),
        ("another declare", begin!(broker, broker.create_queue(&name("two"), QueueConfig::default()))),
        ("an exchange", begin!(broker, broker.declare_exchange(&exchange("x"), direct()))),
        ("a delete", begin!(broker, broker.delete_queue(&name("there")))),
    ];
    eventually("all are done, though not safe", || {
        let there = |text| broker.queue(&name(text)).is_some();
        there("one") && there("two") && !there("there") && broker.check_exchange(&exchange("x")).is_ok()
    })
    .await;
    // Others find what is not safe yet.
    begun.extend([
        ("a repeated declare", begin!(broker, broker.create_queue(&name("one"), QueueConfig::default()))),
        ("a repeated exchange", begin!(broker, broker.declare_exchange(&exchange("x"), direct()))),
        ("a binding", begin!(broker, broker.bind(binding("x", "one")))),
        ("a push", begin!(broker, broker.push(&name("two"), vec![NewMessage::new("x")]))),
    ]);
    eventually("the binding leads to the queue", || leads_to(&broker, "x", "one")).await;
    begun.extend([
        ("a repeated binding", begin!(broker, broker.bind(binding("x", "one")))),
        ("an unbind of nothing", begin!(broker, broker.unbind(&binding("x", "two")))),
    ]);
    all_wait(&begun).await;
    assert!(!broker.last_delete().is_nothing(), "who finds nothing to delete waits for this");
    let waits = broker.wait_for(broker.last_delete());
    assert!(tokio::time::timeout(Duration::from_millis(50), waits).await.is_err());
    // What needs no disk does not wait for it.
    broker.declare_queue(&name("passing"), transient()).await.unwrap();
    broker.delete_queue(&name("passing")).await.unwrap();
    let found = gate.after_power_cut(CutMode::Drop, 0);
    gate.open_gate();
    all_succeed(begun).await;
    broker.shutdown().await;
    // Of what nobody was told nothing is left, and of what was there before, everything.
    let broker = open(&found);
    assert_eq!(state(&broker).queues.into_keys().collect::<Vec<_>>(), ["there"]);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_that_is_not_written_waits_for_the_queue_it_leads_to() {
    let (broker, gate) = gated();
    broker
        .declare_exchange(&exchange("x"), ExchangeSpec { durability: Durability::Transient, ..direct() })
        .await
        .unwrap();
    gate.hold_syncs();
    let mut begun =
        vec![("a declare", begin!(broker, broker.create_queue(&name("q"), QueueConfig::default())))];
    eventually("the queue is there", || broker.queue(&name("q")).is_some()).await;
    begun.push(("a binding", begin!(broker, broker.bind(binding("x", "q")))));
    eventually("the binding leads to the queue", || leads_to(&broker, "x", "q")).await;
    all_wait(&begun).await;
    gate.open_gate();
    all_succeed(begun).await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_told_of_what_a_failed_log_may_have_lost() {
    let disk = FaultyDisk::new();
    let broker = Broker::open_on(Arc::new(disk.clone()), options()).unwrap();
    let before = name("before");
    broker.create_queue(&before, QueueConfig::default()).await.unwrap();
    disk.fail_next_sync();
    let declared = broker.begin_declare(&name("lost"), durable(1)).await.unwrap();
    assert!(matches!(broker.wait_for(declared.written).await, Err(QueueError::Unavailable { .. })));
    // It is there, but whoever finds it is not told so.
    assert!(matches!(
        broker.declare_queue(&name("lost"), durable(1)).await,
        Err(CreateError::Queue(QueueError::Unavailable { .. }))
    ));
    // What was safe is, and nothing more is taken.
    assert!(!broker.declare_queue(&before, durable(1)).await.unwrap().1);
    assert!(broker.begin_declare(&name("next"), durable(1)).await.is_err());
    assert!(broker.begin_delete(&before, DeleteIf::default()).await.is_err());
    assert!(broker.queue(&name("next")).is_none() && broker.queue(&before).is_some());
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_told_of_an_exchange_that_a_failed_log_may_have_lost() {
    let disk = FaultyDisk::new();
    let broker = Broker::open_on(Arc::new(disk.clone()), options()).unwrap();
    disk.fail_next_sync();
    let lost = broker.begin_declare_exchange(&exchange("x"), direct()).await.unwrap();
    assert!(broker.wait_for(lost).await.is_err());
    assert!(broker.declare_exchange(&exchange("x"), direct()).await.is_err());
    assert!(broker.wait_for(broker.check_exchange(&exchange("x")).unwrap()).await.is_err());
    assert!(broker.begin_declare_exchange(&exchange("next"), direct()).await.is_err());
    assert!(broker.check_exchange(&exchange("next")).is_err());
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_who_declare_the_same_creates_it() {
    let (broker, _) = gated();
    for round in 0..50 {
        let queue = name(&format!("q {round}"));
        let calls: Vec<_> = (0..8)
            .map(|owner| {
                let (broker, queue) = (broker.clone(), queue.clone());
                let owner = (round % 2 == 0).then_some(SessionId(owner));
                let asked = Declaration { owner, ..durable(1) };
                tokio::spawn(async move { broker.declare_queue(&queue, asked).await.unwrap() })
            })
            .collect();
        let mut new = 0;
        let mut ids = BTreeSet::new();
        for call in calls {
            let (handle, is_new) = call.await.unwrap();
            new += usize::from(is_new);
            ids.insert(handle.id());
        }
        assert_eq!((new, ids.len()), (1, 1));
        // Who deletes it while others do: one of them does.
        let deletes: Vec<_> = (0..4)
            .map(|_| {
                let (broker, queue) = (broker.clone(), queue.clone());
                tokio::spawn(async move { broker.delete_queue(&queue).await.is_ok() })
            })
            .collect();
        let mut deleted = 0;
        for call in deletes {
            deleted += usize::from(call.await.unwrap());
        }
        assert_eq!(deleted, 1);
    }
    broker.shutdown().await;
}

/// The log takes no more because the disk stands still. Whoever declares, binds or deletes waits for it without a thread and
/// without a lock that others need, and goes on when the disk does.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn whoever_waits_for_room_in_the_log_keeps_no_thread_and_no_lock() {
    const MANY: usize = 1000;
    let gate = GateDisk::default();
    let small = BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("memory") };
    let broker = Broker::open_on(Arc::new(gate.clone()), small).unwrap();
    for queue in ["filling", "other", "q0"] {
        broker.declare_queue(&name(queue), durable(1_000_000)).await.unwrap();
    }
    for from in EXCHANGES {
        broker.declare_exchange(&exchange(from), direct()).await.unwrap();
    }
    broker.bind(binding("x0", "q0")).await.unwrap();
    let going: Vec<QueueName> = (0..10).map(|number| name(&format!("going {number}"))).collect();
    for queue in &going {
        broker.declare_queue(queue, durable(1)).await.unwrap();
    }
    gate.hold_writes();
    // Pushes take what there is but for a reserve, changes of exchanges take that, and deletes the very last of it.
    let mut begun: Vec<_> = (0..40)
        .map(|_| {
            let body = vec![0; 4000];
            ("a push", begin!(broker, broker.push(&name("filling"), vec![NewMessage::new(body)])))
        })
        .collect();
    begun.extend((0..MANY).map(|number| {
        let from = exchange(&format!("many {number}"));
        ("an exchange", begin!(broker, broker.declare_exchange(&from, direct())))
    }));
    let done = || {
        let there = |number: &usize| broker.check_exchange(&exchange(&format!("many {number}"))).is_ok();
        (0..MANY).filter(there).count()
    };
    let mut before = usize::MAX;
    while std::mem::replace(&mut before, done()) != done() || before == 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(before < MANY, "the log is full");
    begun.extend(
        going.iter().cloned().map(|queue| ("a small delete", begin!(broker, broker.delete_queue(&queue)))),
    );
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(going.iter().any(|queue| broker.queue(queue).is_some()), "the log is full");
    begun.extend([
        ("a delete", begin!(broker, broker.delete_queue(&name("q0")))),
        ("a declare", begin!(broker, broker.declare_queue(&name("q1"), durable(1)))),
        ("a binding", begin!(broker, broker.bind(binding("x1", "other")))),
        (
            "an exchange that goes",
            begin!(broker, broker.delete_exchange(&exchange("x0"), ExchangeDeleteIf::Always)),
        ),
    ]);
    // One after another: what waits keeps its order.
    begun.push(("a client", {
        let broker = broker.clone();
        tokio::spawn(async move {
            let told = |error: &dyn std::fmt::Display| error.to_string();
            let queue = name("q2");
            broker.declare_queue(&queue, durable(1)).await.map_err(|error| told(&error))?;
            broker.bind(binding("x1", "q2")).await.map_err(|error| told(&error))?;
            broker.delete_queue(&queue).await.map_err(|error| told(&error))?;
            broker.declare_queue(&queue, durable(2)).await.map_err(|error| told(&error))?;
            Ok(())
        })
    }));
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        // On the runtime's only thread.
        let others = tokio::spawn({
            let broker = broker.clone();
            async move {
                broker.declare_queue(&name("passing"), transient()).await.unwrap();
                broker.delete_queue(&name("passing")).await.unwrap();
                let _ = broker.last_delete();
                assert!(!matches!(broker.health(), Health::Unhealthy { .. }));
                broker.queue_stats(&name("other")).unwrap().ready
            }
        });
        let answered = tokio::time::timeout(Duration::from_secs(20), others).await;
        assert_eq!(answered.expect("nothing else waits").unwrap(), 0);
    }
    assert!(broker.queue(&name("q0")).is_some() && broker.queue(&name("q1")).is_none());
    assert!(leads_to(&broker, "x0", "q0"), "a queue that is not deleted keeps its bindings");
    all_wait(&begun).await;
    gate.open_gate();
    all_succeed(begun).await;
    assert_eq!(done(), MANY);
    let seen = state(&broker);
    let queues: Vec<_> = seen.queues.iter().map(|(name, mark)| (name.as_str(), *mark)).collect();
    assert_eq!(queues, [("filling", 1_000_000), ("other", 1_000_000), ("q1", 1), ("q2", 2)]);
    assert_eq!(seen.bindings, BTreeSet::from([("x1".to_owned(), "other".to_owned())]));
    assert!(!seen.exchanges.contains("x0"));
    let found = gate.after_power_cut(CutMode::Drop, 0);
    broker.shutdown().await;
    let broker = open(&found);
    assert_eq!(state(&broker), seen);
    broker.shutdown().await;
}

fn leads_to(broker: &Broker, from: &str, to: &str) -> bool {
    let mut found = Vec::new();
    let routes = broker.routes();
    let routed = routes.route(&exchange(from), &[b"key"], &NoHeaders, &mut found);
    routed.is_ok() && broker.queue(&name(to)).is_some_and(|queue| found == [queue.id()])
}

/// A durable queue that can be told from others of its name.
fn durable(mark: u64) -> Declaration {
    let config = QueueConfig { max_messages: Some(mark), ..QueueConfig::default() };
    Declaration { config, durability: Durability::Durable, owner: None }
}

/// Which queues there are and how they are marked, which exchanges, and which bindings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    queues: BTreeMap<String, u64>,
    exchanges: BTreeSet<String>,
    bindings: BTreeSet<(String, String)>,
}

const QUEUES: [&str; 4] = ["q0", "q1", "q2", "q3"];
const EXCHANGES: [&str; 2] = ["x0", "x1"];

fn state(broker: &Broker) -> State {
    let all = broker.list_queues(&ListRequest { limit: 1000, ..ListRequest::default() });
    let mark = |config: &QueueConfig| config.max_messages.unwrap_or(0);
    let mut state = State {
        queues: all.iter().map(|one| (one.name.to_string(), mark(&one.config))).collect(),
        ..State::default()
    };
    for from in EXCHANGES {
        if broker.check_exchange(&exchange(from)).is_ok() {
            state.exchanges.insert(from.to_owned());
        }
    }
    for one in &all {
        let details = broker.queue_details(&one.name).unwrap();
        let bindings =
            details.bindings.iter().map(|binding| (binding.exchange.clone(), one.name.to_string()));
        state.bindings.extend(bindings);
    }
    state
}

/// Something that is declared, bound or deleted.
#[derive(Clone, Debug)]
enum Act {
    Declare(&'static str, u64),
    Delete(&'static str),
    DeclareExchange(&'static str),
    DeleteExchange(&'static str),
    Bind(&'static str, &'static str),
    Unbind(&'static str, &'static str),
}

impl Act {
    fn random(rng: &mut fastrand::Rng, mark: u64) -> Self {
        let (queue, from) = (QUEUES[rng.usize(..4)], EXCHANGES[rng.usize(..2)]);
        match rng.u8(..10) {
            0..=3 => Self::Declare(queue, mark),
            4..=5 => Self::Delete(queue),
            6 => Self::DeclareExchange(from),
            7 => Self::DeleteExchange(from),
            8 => Self::Bind(from, queue),
            _ => Self::Unbind(from, queue),
        }
    }

    /// Does it without waiting; `None` if it is refused.
    async fn begin(&self, broker: &Broker) -> Option<Written> {
        match *self {
            Self::Declare(queue, mark) => {
                broker.begin_declare(&name(queue), durable(mark)).await.ok().map(|declared| declared.written)
            }
            Self::Delete(queue) => Some(broker.begin_delete(&name(queue), DeleteIf::default()).await.ok()?.1),
            Self::DeclareExchange(from) => {
                broker.begin_declare_exchange(&exchange(from), direct()).await.ok()
            }
            Self::DeleteExchange(from) => {
                broker.begin_delete_exchange(&exchange(from), ExchangeDeleteIf::Always).await.ok()
            }
            Self::Bind(from, to) => broker.begin_bind(binding(from, to)).await.ok(),
            Self::Unbind(from, to) => broker.begin_unbind(&binding(from, to)).await.ok(),
        }
    }
}

/// What a run has done and been told.
#[derive(Default)]
struct Told {
    /// The state after each change.
    states: Vec<State>,
    /// The last change that is safe for certain.
    safe: usize,
    /// The change that made each queue.
    created: BTreeMap<&'static str, usize>,
    /// The last change of exchanges or bindings.
    topology: usize,
}

impl Told {
    /// Notes what has come of an act; says which change must be safe when it is answered.
    fn note(&mut self, act: &Act, state: State) -> usize {
        let last = self.states.last().unwrap();
        let latest = self.states.len();
        if *last == state {
            return match act {
                Act::Declare(queue, _) => self.created[queue],
                Act::Delete(_) => unreachable!("what is not there is not deleted"),
                Act::Bind(_, queue) => self.topology.max(self.created[queue]),
                Act::DeclareExchange(_) | Act::DeleteExchange(_) | Act::Unbind(..) => self.topology,
            };
        }
        if let Act::Declare(queue, _) = act {
            self.created.insert(queue, latest);
        }
        if (&last.exchanges, &last.bindings) != (&state.exchanges, &state.bindings) {
            self.topology = latest;
        }
        self.states.push(state);
        latest
    }
}

/// Does things in bunches, each of which waits for the disk once.
async fn script(broker: &Broker, seed: u64, told: &mut Told) {
    let mut rng = fastrand::Rng::with_seed(seed);
    told.states.push(state(broker));
    for bunch in 0..6 {
        let mut waits = Vec::new();
        for number in 0..12 {
            let act = Act::random(&mut rng, bunch * 100 + number + 1);
            let begun = act.begin(broker).await;
            // From then on nobody's answer rests on what is seen here.
            let has_failed = matches!(broker.health(), Health::Unhealthy { .. });
            if let Some(written) = begun {
                let change = told.note(&act, state(broker));
                waits.extend((!has_failed).then_some((change, written)));
            }
            if has_failed {
                break;
            }
        }
        for (change, written) in waits {
            if broker.wait_for(written).await.is_ok() {
                told.safe = told.safe.max(change);
            }
        }
    }
}

fn tiny() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

fn on_runtime<R>(future: impl Future<Output = R>) -> R {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn run(disk: &FaultyDisk, seed: u64) -> Told {
    on_runtime(async {
        let mut told = Told::default();
        if let Ok(broker) = Broker::open_on(Arc::new(disk.clone()), tiny()) {
            script(&broker, seed, &mut told).await;
            broker.shutdown().await;
        }
        told
    })
}

/// What is found must be the state after one of the changes, and none before the last that was answered.
fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker = Broker::open_on(Arc::new(disk), tiny()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = state(&broker);
    let possible = if told.states.is_empty() { &[State::default()][..] } else { &told.states[told.safe..] };
    assert!(possible.contains(&found), "{what}: {found:?} is not among {possible:#?}");
    on_runtime(broker.shutdown());
}

#[test]
fn the_log_has_all_changes_in_order_wherever_the_power_goes() {
    for seed in 0..4 {
        let calm = FaultyDisk::new();
        let told = run(&calm, seed);
        assert_eq!(told.safe, told.states.len() - 1, "everything is safe at the end");
        check(&told, calm.restart(CutMode::Drop, 1), "after a clean end");
        for operation in 1..=calm.operations() {
            let disk = FaultyDisk::new();
            disk.cut_power_at(operation);
            let told = run(&disk, seed);
            let mode =
                [CutMode::Keep, CutMode::Drop, CutMode::Tear, CutMode::Reorder][operation as usize % 4];
            let found = disk.restart(mode, operation);
            check(&told, found, &format!("seed {seed}, cut at operation {operation}, {mode:?}"));
        }
    }
}

/// A name that is deleted and declared again at once is the new queue, without what was in the old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_deleted_and_declared_at_once_is_the_new_queue() {
    let (broker, gate) = gated();
    let queue: QueueName = name("q");
    broker.declare_queue(&queue, durable(1)).await.unwrap();
    push(&broker, &queue, "old").await;
    gate.hold_syncs();
    let (count, _) = broker.begin_delete(&queue, DeleteIf::default()).await.unwrap();
    assert_eq!(count, 1);
    let renewed = broker.begin_declare(&queue, durable(2)).await.unwrap();
    assert!(renewed.is_new);
    renewed.queue.push(&NewMessage::new("new")).unwrap();
    let before = gate.after_power_cut(CutMode::Drop, 0);
    gate.open_gate();
    broker.wait_for(renewed.written).await.unwrap();
    push(&broker, &queue, "last").await;
    let after = gate.after_power_cut(CutMode::Drop, 0);
    broker.shutdown().await;
    for (disk, mark, left) in [(before, 1, vec!["old"]), (after, 2, vec!["new", "last"])] {
        let broker = open(&disk);
        assert_eq!(state(&broker).queues, BTreeMap::from([("q".to_owned(), mark)]));
        assert_eq!(bodies(&pop(&broker, &queue, 10).await), left);
        broker.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_publishes_finds_what_was_declared_before_and_nothing_that_was_deleted() {
    let broker = Broker::open_on(Arc::new(FaultyDisk::new()), options()).unwrap();
    let rounds = (0..3).map(|task| {
        let broker = broker.clone();
        tokio::spawn(async move {
            for round in 0..200 {
                let queue = name(&format!("q-{task}-{round}"));
                broker.try_declare(&queue, &transient()).unwrap();
                assert!(is_reached(&broker, &queue), "it was declared");
                // Others change the routes at the same time, and take them out.
                tokio::task::yield_now().await;
                assert!(is_reached(&broker, &queue), "it is still there");
                broker.try_delete(&queue, DeleteIf::default()).unwrap();
                assert!(!is_reached(&broker, &queue), "it was deleted");
            }
        })
    });
    for round in rounds.collect::<Vec<_>>() {
        round.await.unwrap();
    }
}

/// Whether the default exchange leads to a queue.
fn is_reached(broker: &Broker, queue: &QueueName) -> bool {
    let mut found = Vec::new();
    let key = queue.as_str().as_bytes();
    broker.routes().publish(&queue.vhost(), "", &[key], &NoHeaders, &mut found).unwrap();
    !found.is_empty()
}
