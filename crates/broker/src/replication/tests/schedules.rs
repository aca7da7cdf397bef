//! A schedule fires on, whoever leads: each of its times once, and none is left out.

use bytes::Bytes;
use nexo_core::schedule::{
    Action, CatchUp, Schedule, ScheduleChange, ScheduleStatus, ScheduledMessage, TimeTable, as_text,
};
use nexo_types::{VhostName, limits};

use super::*;
use crate::error::ScheduleRunError;
use crate::headers::HeaderValue;
use crate::journal::Written;

const NAME: &str = "beat";
const INTERVAL: Millis = limits::SCHEDULE_INTERVAL_MIN;
/// Times that a leader fires before the next one takes over.
const RUNS: u64 = 3;

fn beat() -> Schedule {
    Schedule {
        name: NAME.into(),
        table: TimeTable::every(INTERVAL, None).unwrap(),
        action: Action::Push {
            queue: queue(),
            message: ScheduledMessage { body: Bytes::from_static(b"tick"), ..ScheduledMessage::default() },
        },
        // However long an election takes here.
        catch_up: CatchUp::All { max: limits::CATCH_UP_MAX },
        until: None,
        runs_max: None,
        description: "".into(),
    }
}

fn put(schedule: Schedule) -> ScheduleChange {
    let (vhost, schedule) = (VhostName::DEFAULT, Arc::new(schedule));
    ScheduleChange::Put { vhost, schedule, set_by: "ann".into(), is_paused: None }
}

/// What has come of it, as this node knows.
fn status(broker: &Broker) -> Option<ScheduleStatus> {
    broker.schedule(&VhostName::DEFAULT, NAME).map(|info| info.entry.status.clone())
}

impl Cluster {
    /// Waits until whoever leads has fired some times more than now.
    async fn fires_on(&self) -> Broker {
        let end = Instant::now() + PATIENCE;
        let mut first = None;
        loop {
            let leader = self.leader().await;
            // What is in the memory of one that does not serve yet is of the past.
            if leader.is_serving()
                && let Some(status) = status(&leader)
            {
                let (node, before) = *first.get_or_insert((node_of(&leader), status.runs));
                if node != node_of(&leader) || status.runs < before {
                    first = None;
                } else if status.runs >= before + RUNS {
                    return leader;
                }
            }
            assert!(Instant::now() < end, "it is not fired: {:?}", status(&leader));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Has a node lead and serve.
    async fn serve(&self, node: NodeId) -> Broker {
        let end = Instant::now() + PATIENCE;
        loop {
            let leader = self.lead(node).await;
            if leader.is_serving() {
                return leader;
            }
            assert!(Instant::now() < end, "node {node} does not serve");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Stops it. Gives back what has come of it.
    async fn pause(&self) -> (Broker, ScheduleStatus) {
        let change = ScheduleChange::Pause { vhost: VhostName::DEFAULT, name: NAME.into(), is_paused: true };
        let end = Instant::now() + PATIENCE;
        loop {
            let leader = self.leader().await;
            if leader.change_schedules(std::slice::from_ref(&change)).await.is_ok() {
                let status = status(&leader).unwrap();
                return (leader, status);
            }
            assert!(Instant::now() < end, "nobody stops it");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The times that the messages in the queue are for, in their order there.
async fn times(broker: &Broker) -> Vec<String> {
    let (mut times, mut after) = (Vec::new(), None);
    loop {
        let (seen, next) = broker.peek_after(&queue(), after, limits::PEEK_MAX).await.unwrap();
        for delivery in seen {
            let headers = delivery.headers().unwrap().0;
            let time = headers.into_iter().find(|(name, _)| name == "x-scheduled-at");
            let Some((_, HeaderValue::Text(time))) = time else { panic!("{time:?}") };
            times.push(time);
        }
        match next {
            Some(_) => after = next,
            None => return times,
        }
    }
}

/// Each time from the first to the last, by the table.
fn by_the_table(status: &ScheduleStatus) -> Vec<String> {
    let last = status.last_scheduled.unwrap();
    let table = TimeTable::every(INTERVAL, None).unwrap();
    let next = |at: &nexo_types::Timestamp| table.next_after(*at, status.anchor);
    let times = std::iter::successors(next(&status.anchor), next).take_while(|at| *at <= last);
    times.map(as_text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_time_of_a_schedule_is_fired_once_whoever_leads() {
    let mut cluster = Cluster::of(3, 128 * 1024).await;
    let leader = cluster.leader().await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    leader.change_schedules(&[put(beat())]).await.unwrap();
    drop(leader);
    for _ in 0..3 {
        // It is handed over.
        let leader = node_of(&cluster.fires_on().await);
        let next = NodeId(leader.0 % 3 + 1);
        drop(cluster.lead(next).await);
        // The leader is cut off: what it fires from then on counts nowhere.
        let old = cluster.fires_on().await;
        cluster.network.isolate(node_of(&old));
        let new = cluster.fires_on().await;
        assert_ne!(node_of(&new), node_of(&old));
        drop((old, new));
        cluster.network.heal();
        cluster.in_step().await;
        // Its process ends, with what it has not synced.
        let leader = node_of(&cluster.fires_on().await);
        cluster.crash(leader).await;
        assert_ne!(node_of(&cluster.fires_on().await), leader);
        cluster.start(leader, ClusterStart::Known).await;
        cluster.in_step().await;
    }
    let (leader, status) = cluster.pause().await;
    let fired = times(&leader).await;
    assert_eq!(fired, by_the_table(&status), "none twice, none left out, and in their order");
    assert_eq!((status.runs, status.missed, status.failures), (fired.len() as u64, 0, 0));
    assert!(status.runs >= 12 * RUNS, "{status:?}");
    // The others say the same.
    for node in (1..=3).map(NodeId).filter(|node| *node != node_of(&leader)) {
        let other = cluster.serve(node).await;
        let found = self::status(&other).unwrap();
        assert_eq!((found.runs, found.last_scheduled), (status.runs, status.last_scheduled), "node {node}");
        assert_eq!(times(&other).await, fired, "node {node}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_whose_queue_is_not_loaded_yet_waits_and_does_not_fail() {
    let cluster = Cluster::of(1, 128 * 1024).await;
    let leader = cluster.leader().await;
    leader.create_queue(&queue(), QueueConfig::default()).await.unwrap();
    leader.change_schedules(&[put(beat())]).await.unwrap();
    drop(cluster.fires_on().await);
    // As in the middle of a rebuild: the schedules are there, and the queue is not.
    let firing = leader.shared.schedules.firing.lock();
    leader.shared.catalog.begin_rebuild();
    let cell = leader.shared.catalog.get(&queue()).unwrap();
    leader.shared.catalog.remove(&cell, Written::NOTHING);
    drop(firing);
    let before = status(&leader).unwrap();
    let is_due = |broker: &Broker| {
        let next = status(broker).unwrap().next.unwrap();
        next <= broker.shared.clock.calendar()
    };
    let end = Instant::now() + PATIENCE;
    while !is_due(&leader) {
        assert!(Instant::now() < end, "its time does not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    leader.shared.fire_due();
    assert_eq!(status(&leader).unwrap(), before);
    let run = leader.run_schedule(&VhostName::DEFAULT, NAME).await;
    assert!(matches!(run, Err(ScheduleRunError::Queue(QueueError::Unavailable { .. }))), "{run:?}");
    // The queue comes, and the schedule goes on.
    leader.shared.catalog.replace(&[cell], 0);
    leader.shared.arm_schedules();
    let status = status(&cluster.fires_on().await).unwrap();
    assert_eq!((status.missed, status.failures), (0, 0));
}
