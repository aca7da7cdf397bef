//! Schedules, as format 8 has them, in the story that a fixture tells: one that has fired, one that failed, one that somebody had run.
//! What the fixture was written without, one that asks for a job, is in what this build writes.

use std::sync::Arc;

use nexo_broker::schedule::{
    Action, CatchUp, Schedule, ScheduleChange, ScheduledJob, ScheduledMessage, TimeTable,
};
use nexo_broker::{Broker, QueueConfig, ScheduleInfo};
use nexo_types::{ExchangeName, JobQueueName, Millis, Priority, QueueName, Timestamp, VhostName};

use crate::common::*;
use crate::story::{ROUNDS, in_round};

/// The end of the year 9999.
const FAR: Timestamp = Timestamp(253_402_300_799_000);

fn queue(round: &str) -> QueueName {
    in_round(round, "scheduled")
}

fn message() -> ScheduledMessage {
    ScheduledMessage {
        body: "\u{ff} body".into(),
        content_type: "text/plain".into(),
        headers: vec![("a".into(), "b".into())],
        priority: Priority(3),
    }
}

fn plain(name: &str, table: TimeTable, action: Action) -> Schedule {
    let (catch_up, description) = (CatchUp::default(), "".into());
    Schedule { name: name.into(), table, action, catch_up, until: None, runs_max: None, description }
}

/// Once a year, with everything that can be said.
fn yearly(round: &str) -> Schedule {
    let action = Action::Publish {
        exchange: ExchangeName::new("amq.topic").unwrap(),
        routing_key: "a.b".into(),
        message: message(),
    };
    let table = TimeTable::cron("0 30 2 29 2 *", "Europe/Berlin").unwrap();
    Schedule {
        catch_up: CatchUp::All { max: 7 },
        until: Some(FAR),
        runs_max: Some(5),
        description: "why".into(),
        ..plain(&format!("{round} yearly"), table, action)
    }
}

fn often(name: &str, round: &str, target: &QueueName) -> Schedule {
    let table = TimeTable::every(Millis(100), None).unwrap();
    plain(&format!("{round} {name}"), table, Action::Push { queue: target.clone(), message: message() })
}

/// Once a year, for a job.
fn asking(round: &str, queue: &JobQueueName) -> Schedule {
    let job = ScheduledJob {
        kind: "search".into(),
        key: "warmed".into(),
        payload: "{\"words\":[1]}".into(),
        cost: Some(3),
        background: false,
    };
    let table = TimeTable::cron("0 6 1 1 *", "UTC").unwrap();
    plain(&format!("{round} asking"), table, Action::Ask { queue: queue.clone(), job })
}

/// A schedule that asks for a job of this queue has done so once.
pub(crate) async fn tell_of_jobs(broker: &Broker, round: &str, queue: &JobQueueName) {
    let schedule = asking(round, queue);
    let name = Arc::clone(&schedule.name);
    broker.change_schedules(&[put(schedule, true)]).await.unwrap();
    broker.run_schedule(&VhostName::DEFAULT, &name).await.unwrap();
}

/// Whether it has, and nobody has written over it.
pub(crate) fn check_jobs(broker: &Broker, round: &str, queue: &JobQueueName) {
    let found = found(broker, &format!("{round} asking"));
    assert_eq!((&*found.entry.schedule, found.entry.status.manual_runs), (&asking(round, queue), 1));
    broker.look_at_jobs(|jobs, _| {
        let (_, job) = jobs.queue(queue).unwrap().of_key("warmed").next().unwrap();
        assert_eq!((job.cost(), job.is_background()), (3, false));
    });
}

fn put(schedule: Schedule, is_paused: bool) -> ScheduleChange {
    let (vhost, schedule) = (VhostName::DEFAULT, Arc::new(schedule));
    ScheduleChange::Put { vhost, schedule, set_by: "ann".into(), is_paused: Some(is_paused) }
}

fn found(broker: &Broker, name: &str) -> ScheduleInfo {
    broker.schedule(&VhostName::DEFAULT, name).unwrap()
}

pub(crate) async fn tell(broker: &Broker, round: &str) {
    let (own, lost) = (queue(round), in_round(round, "lost"));
    for queue in [&own, &lost] {
        broker.create_queue(queue, QueueConfig::default()).await.unwrap();
    }
    let name = |text: &str| format!("{round} {text}");
    let ended =
        Schedule { runs_max: Some(2), catch_up: CatchUp::All { max: 9 }, ..often("ended", round, &own) };
    let mut changes =
        vec![put(yearly(round), true), put(ended, false), put(often("failed", round, &lost), false)];
    changes.push(put(often("gone", round, &own), true));
    broker.change_schedules(&changes).await.unwrap();
    broker.delete_queue(&lost).await.unwrap();
    eventually("one fails", || found(broker, &name("failed")).entry.status.failures > 0).await;
    eventually("one ends", || found(broker, &name("ended")).entry.status.next.is_none()).await;
    broker.run_schedule(&VhostName::DEFAULT, &name("ended")).await.unwrap();
    let (vhost, default) = (VhostName::new(&format!("of schedules {round}")).unwrap(), VhostName::DEFAULT);
    let changes = [
        ScheduleChange::Pause { vhost: default.clone(), name: name("failed").into(), is_paused: true },
        ScheduleChange::Delete { vhost: default, name: name("gone").into() },
    ];
    broker.change_schedules(&changes).await.unwrap();
    broker.put_vhost(&vhost, nexo_broker::topology::VhostSpec::default()).await.unwrap();
    let target = QueueName::at(&vhost, "q").unwrap();
    broker.create_queue(&target, QueueConfig::default()).await.unwrap();
    let schedule = Arc::new(often("there", round, &target));
    let change =
        ScheduleChange::Put { vhost: vhost.clone(), schedule, set_by: "".into(), is_paused: Some(true) };
    broker.change_schedules(&[change]).await.unwrap();
    broker.delete_vhost(&vhost).await.unwrap();
}

/// Checks everything; there are so many of each round. The queue that only this story has is gone afterwards, if it was there.
pub(crate) async fn check(broker: &Broker, of_a_round: usize) {
    assert_eq!(broker.schedules().len(), of_a_round * ROUNDS.len());
    for round in ROUNDS {
        let name = |text: &str| format!("{round} {text}");
        let kept = found(broker, &name("yearly"));
        assert_eq!(*kept.entry.schedule, yearly(round));
        assert_eq!((kept.entry.status.is_paused, &*kept.entry.status.set_by), (true, "ann"));
        let ended = found(broker, &name("ended")).entry.status.clone();
        assert_eq!((ended.runs, ended.manual_runs, ended.missed, ended.next), (2, 1, 0, None));
        let failed = found(broker, &name("failed")).entry.status.clone();
        let (_, error) = failed.last_error.unwrap();
        assert_eq!(*error, *format!("queue '{}' does not exist", in_round(round, "lost")));
        assert!(failed.is_paused && failed.failures > 0 && failed.next.is_none());
        if let Ok(stats) = broker.queue_stats(&queue(round)) {
            assert_eq!(stats.ready, 3, "what it sent is there");
            broker.delete_queue(&queue(round)).await.unwrap();
        }
    }
}
