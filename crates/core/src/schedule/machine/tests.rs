//! Schedules over any changes and times: the same records give the same schedules, and each time of a table is fired once or
//! counted as missed.

use nexo_types::{ExchangeName, JobQueueName, Millis, Priority, QueueName, limits};
use proptest::prelude::*;

use super::*;
use crate::machine::check::{Checked, START, check};
use crate::schedule::{Action, CatchUp, Schedule, ScheduledJob, ScheduledMessage, TimeTable};

impl Checked for Schedules {
    fn read_back(_: &ScheduleRecord, bytes: Bytes) -> ScheduleRecord {
        <Self as Machine>::decode(&bytes).unwrap()
    }

    fn supply(&mut self, missing: Infallible, _: &[ScheduleRecord]) {
        match missing {}
    }

    fn due(&self, _: Timestamp) -> Option<ScheduleCommand> {
        let (_, (vhost, name)) = self.by_time().next()?;
        let (vhost, name) = (vhost.clone(), Arc::clone(name));
        Some(ScheduleCommand::Due { vhost, name, max: 5, outcome: Outcome::Done })
    }

    fn prepare(&mut self) {}
}

fn vhost(text: &str) -> VhostName {
    VhostName::new(text).unwrap()
}

fn message(body: &str) -> ScheduledMessage {
    ScheduledMessage { body: Bytes::copy_from_slice(body.as_bytes()), ..ScheduledMessage::default() }
}

fn push_to(vhost: &VhostName) -> Action {
    Action::Push { queue: QueueName::at(vhost, "q").unwrap(), message: message("x") }
}

fn schedule(table: TimeTable) -> Schedule {
    Schedule {
        name: "s".into(),
        table,
        action: push_to(&vhost("/")),
        catch_up: CatchUp::Once,
        until: None,
        runs_max: None,
        description: "".into(),
    }
}

fn every(ms: u64) -> TimeTable {
    TimeTable::every(Millis(ms), None).unwrap()
}

fn put(schedule: Schedule) -> ScheduleChange {
    let schedule = Arc::new(schedule);
    ScheduleChange::Put { vhost: vhost("/"), schedule, set_by: "ann".into(), is_paused: None }
}

/// A machine after some commands, each of which does something.
fn after(commands: impl IntoIterator<Item = (Timestamp, ScheduleCommand)>) -> Schedules {
    let mut schedules = Schedules::new();
    for (now, command) in commands {
        give(&mut schedules, now, &command).unwrap();
    }
    schedules
}

fn give(schedules: &mut Schedules, now: Timestamp, command: &ScheduleCommand) -> Result<(), ScheduleError> {
    let decision = schedules.decide(now, command);
    for step in decision.steps {
        schedules.apply_record(&step.record);
    }
    decision.answer
}

fn change(change: ScheduleChange) -> ScheduleCommand {
    ScheduleCommand::Change(vec![change])
}

fn due(max: usize) -> ScheduleCommand {
    ScheduleCommand::Due { vhost: vhost("/"), name: "s".into(), max, outcome: Outcome::Done }
}

fn status(schedules: &Schedules) -> crate::schedule::ScheduleStatus {
    schedules.get(&vhost("/"), "s").unwrap().status.clone()
}

fn a_vhost() -> impl Strategy<Value = VhostName> {
    prop::sample::select(vec!["/", "shop"]).prop_map(vhost)
}

fn a_name() -> impl Strategy<Value = Arc<str>> {
    prop::sample::select(vec!["one", "two", "three"]).prop_map(Arc::from)
}

fn a_table() -> impl Strategy<Value = TimeTable> {
    let cron = |expression: &str| TimeTable::cron(expression, "Europe/Berlin").unwrap();
    prop_oneof![
        (100..100_000u64).prop_map(every),
        (100..100_000u64, 0..3_000_000u64).prop_map(|(ms, start)| TimeTable::every(
            Millis(ms),
            Some(Timestamp(start))
        )
        .unwrap()),
        prop::sample::select(vec!["* * * * *", "*/5 * * * * *", "0 3 * * *"]).prop_map(cron),
    ]
}

fn a_catch_up() -> impl Strategy<Value = CatchUp> {
    prop_oneof![Just(CatchUp::Skip), Just(CatchUp::Once), (1..20u32).prop_map(|max| CatchUp::All { max })]
}

fn a_schedule(vhost: &VhostName) -> impl Strategy<Value = Schedule> + use<> {
    let publish = Action::Publish {
        exchange: ExchangeName::at(vhost, "amq.topic").unwrap(),
        routing_key: "a.b".into(),
        message: ScheduledMessage {
            content_type: "text/plain".into(),
            headers: vec![("h".into(), "v".into()), ("".into(), "".into())],
            priority: Priority(7),
            ..message("y")
        },
    };
    let mut named = publish.clone();
    if let Action::Publish { message, .. } = &mut named {
        message.headers.truncate(1);
    }
    let ask = |cost: Option<u64>, background: bool| Action::Ask {
        queue: JobQueueName::at(vhost, "deals").unwrap(),
        job: ScheduledJob {
            kind: "search".into(),
            key: "books".into(),
            payload: Bytes::from_static(b"[1]"),
            cost,
            background,
        },
    };
    let actions = vec![push_to(vhost), named, publish, ask(None, true), ask(Some(5), false)];
    let actions = prop::sample::select(actions);
    let until = prop::option::of(900_000..5_000_000u64);
    let numbers = (until, prop::option::of(1..9u64));
    (a_name(), a_table(), actions, a_catch_up(), numbers).prop_map(
        |(name, table, action, catch_up, (until, runs_max))| Schedule {
            name,
            table,
            action,
            catch_up,
            until: until.map(Timestamp),
            runs_max,
            description: "why".into(),
        },
    )
}

fn a_change() -> impl Strategy<Value = ScheduleChange> {
    let put = a_vhost().prop_flat_map(|vhost| (a_schedule(&vhost), Just(vhost), any::<Option<bool>>()));
    prop_oneof![
        6 => put.prop_map(|(schedule, vhost, is_paused)| ScheduleChange::Put {
            vhost, schedule: Arc::new(schedule), set_by: "ann".into(), is_paused,
        }),
        1 => (a_vhost(), a_name()).prop_map(|(vhost, name)| ScheduleChange::Delete { vhost, name }),
        2 => (a_vhost(), a_name(), any::<bool>())
            .prop_map(|(vhost, name, is_paused)| ScheduleChange::Pause { vhost, name, is_paused }),
        1 => a_vhost().prop_map(|vhost| ScheduleChange::ForgetVhost { vhost }),
    ]
}

fn a_command() -> impl Strategy<Value = ScheduleCommand> {
    let outcome =
        prop_oneof![3 => Just(Outcome::Done), 1 => Just(Outcome::Failed { error: "no queue".into() })];
    prop_oneof![
        3 => prop::collection::vec(a_change(), 1..3).prop_map(ScheduleCommand::Change),
        5 => (a_vhost(), a_name(), 1..30usize, outcome)
            .prop_map(|(vhost, name, max, outcome)| ScheduleCommand::Due { vhost, name, max, outcome }),
        1 => (a_vhost(), a_name()).prop_map(|(vhost, name)| ScheduleCommand::Run { vhost, name }),
    ]
}

/// A table of which a child could say when it is due: whether a whole second after `START` is one of its times.
#[derive(Clone, Debug)]
struct Simple {
    table: TimeTable,
    is_time: fn(u64, u64) -> bool,
    number: u64,
}

fn a_simple_table() -> impl Strategy<Value = Simple> {
    let every = (1..900u64).prop_map(|seconds| Simple {
        table: every(seconds * 1000),
        is_time: |at, number| at > START.0 / 1000 && (at - START.0 / 1000).is_multiple_of(number),
        number: seconds,
    });
    let seconds = prop::sample::select(vec![5u64, 10, 15, 30]).prop_map(|number| Simple {
        table: TimeTable::cron(&format!("*/{number} * * * * *"), "UTC").unwrap(),
        is_time: |at, number| (at % 60).is_multiple_of(number),
        number,
    });
    let hourly = (0..60u64).prop_map(|number| Simple {
        table: TimeTable::cron(&format!("{number} * * * *"), "UTC").unwrap(),
        is_time: |at, number| at % 60 == 0 && at / 60 % 60 == number,
        number,
    });
    prop_oneof![every, seconds, hourly]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn schedules_are_a_machine(commands in prop::collection::vec((0..200_000u64, a_command()), 1..40)) {
        let (mut schedules, mut now) = (Schedules::new(), START);
        for (wait, command) in &commands {
            now = now.plus(Millis(*wait));
            for Step { record, .. } in schedules.decide(now, command).steps {
                let bytes = record.encode();
                for cut in 0..bytes.len() {
                    assert!(ScheduleRecord::decode(&bytes[..cut]).is_err(), "a cut record was taken");
                }
                schedules.apply_record(&record);
            }
            let mut times: Vec<_> =
                schedules.all().filter_map(|(_, entry)| entry.status.next).collect();
            times.sort_unstable();
            assert_eq!(schedules.by_time().map(|(at, _)| at).collect::<Vec<_>>(), times);
            assert_eq!(schedules.next_deadline(now), times.first().copied());
            assert_eq!(schedules.bytes(), schedules.all().map(|(_, entry)| entry.schedule.bytes()).sum::<usize>());
            for (_, ScheduleEntry { schedule, status }) in schedules.all().map(|(vhost, entry)| (vhost, &**entry)) {
                // A new bound may be lower than what was fired under the one before: then it has ended.
                assert!(schedule.runs_max.is_none_or(|max| status.runs <= max || status.next.is_none()));
                assert!(!status.is_paused || status.next.is_none());
                let ends = schedule.until.zip(status.last_scheduled.max(status.next));
                // A new end may come before what was fired under the one before.
                assert!(ends.is_none_or(|(until, last)| last <= until || status.last_scheduled == Some(last)));
            }
        }
        let commands = commands.into_iter().map(|(wait, command)| (Millis(wait), command)).collect();
        check(Schedules::new, commands);
    }

    #[test]
    fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        _ = ScheduleRecord::decode(&bytes);
        _ = Schedules::from_snapshot(&bytes);
    }

    /// Whatever the gaps in which nobody looks, and however few are fired at once.
    #[test]
    fn each_time_is_fired_once_or_missed(
        simple in a_simple_table(),
        catch_up in a_catch_up(),
        gaps in prop::collection::vec(prop_oneof![1..2_000u64, 1..40_000u64, 1..4_000_000u64], 1..12),
        batch in 1..8usize,
    ) {
        let schedule = Schedule { catch_up, ..schedule(simple.table.clone()) };
        let mut schedules = after([(START, change(put(schedule)))]);
        let (mut seen, mut now, mut fired) = (START.0 / 1000, START, Vec::new());
        for gap in gaps {
            now = now.plus(Millis(gap));
            // Every second since then, looked at one by one.
            let naive: Vec<u64> =
                (seen + 1..=now.0 / 1000).filter(|at| (simple.is_time)(*at, simple.number)).collect();
            seen = now.0 / 1000;
            let kept = match (catch_up, naive.last()) {
                (_, None) => 0,
                (CatchUp::Skip, Some(last)) if now.0 - last * 1000 > limits::SKIPPED_LATE.0 => 0,
                (CatchUp::Skip | CatchUp::Once, Some(_)) => 1,
                (CatchUp::All { max }, Some(_)) => naive.len().min(max as usize),
            };
            let expected: Vec<Timestamp> =
                naive[naive.len() - kept..].iter().map(|at| Timestamp(at * 1000)).collect();
            let (missed_before, mut come) = (status(&schedules).missed, Vec::new());
            while status(&schedules).next.is_some_and(|next| next <= now) {
                let decision = schedules.decide(now, &due(batch));
                for Step { record, .. } in decision.steps {
                    let ScheduleRecord::Fired { scheduled, .. } = &record else { panic!("{record:?}") };
                    assert!(scheduled.len() <= batch);
                    come.extend(scheduled.iter().copied());
                    schedules.apply_record(&record);
                }
            }
            assert_eq!(come, expected, "at {now}");
            let missed = (naive.len() - kept) as u64;
            let status = status(&schedules);
            assert_eq!(status.missed - missed_before, missed.min(limits::MISSED_COUNTED_MAX), "at {now}");
            fired.extend(come);
            assert_eq!((status.runs, status.last_scheduled), (fired.len() as u64, fired.last().copied()));
        }
    }
}

use crate::machine::Step;

#[test]
fn one_that_ends_before_it_begins_is_refused() {
    let ended = Schedule { until: Some(Timestamp(START.0 + 500)), ..schedule(every(1000)) };
    let refused = Schedules::new().decide_changes(START, &[put(ended)]).unwrap_err();
    let text = "the schedule ends at 1970-01-01T00:16:40.5Z, before it would be fired for the first time";
    assert_eq!(refused.to_string(), text);
}

#[test]
fn it_ends_with_its_runs_and_with_its_end() {
    let limited = Schedule { runs_max: Some(2), catch_up: CatchUp::All { max: 9 }, ..schedule(every(1000)) };
    let schedules = after([(START, change(put(limited))), (START.plus(Millis(10_000)), due(100))]);
    assert_eq!((status(&schedules).runs, status(&schedules).next), (2, None));
    let until = Schedule { until: Some(START.plus(Millis(2_000))), ..schedule(every(1000)) };
    let schedules = after([(START, change(put(until))), (START.plus(Millis(10_000)), due(100))]);
    let status = status(&schedules);
    assert_eq!((status.last_scheduled, status.missed), (Some(START.plus(Millis(2_000))), 1));
    assert_eq!(status.next, None);
}

#[test]
fn what_passes_while_it_is_paused_is_not_caught_up_with() {
    let all = Schedule { catch_up: CatchUp::All { max: 9 }, ..schedule(every(1000)) };
    let pause = |is_paused| ScheduleChange::Pause { vhost: vhost("/"), name: "s".into(), is_paused };
    let at = |ms| START.plus(Millis(ms));
    let schedules = after([
        (START, change(put(all))),
        (at(500), change(pause(true))),
        (at(5_500), change(pause(false))),
        (at(6_200), due(100)),
    ]);
    let status = status(&schedules);
    assert_eq!((status.runs, status.missed, status.next), (1, 0, Some(at(7_000))));
}

#[test]
fn one_that_is_set_again_goes_on_and_keeps_its_figures() {
    let at = |ms| START.plus(Millis(ms));
    let mut schedules =
        after([(START, change(put(schedule(every(1000))))), (at(1_000), due(1)), (at(1_000), due(1))]);
    assert_eq!(schedules.decide_changes(at(1_100), &[put(schedule(every(1000)))]), Ok(vec![]));
    // A time has come and is not fired yet: it is not lost.
    let told = Schedule { description: "new".into(), ..schedule(every(1000)) };
    give(&mut schedules, at(2_300), &change(put(told.clone()))).unwrap();
    assert_eq!((status(&schedules).runs, status(&schedules).next), (1, Some(at(2_000))));
    let faster = Schedule { table: every(100), ..told };
    give(&mut schedules, at(2_300), &change(put(faster))).unwrap();
    assert_eq!((status(&schedules).runs, status(&schedules).next), (1, Some(at(2_400))));
}

#[test]
fn a_failure_is_told_and_the_next_time_comes_all_the_same() {
    let failed = ScheduleCommand::Due {
        vhost: vhost("/"),
        name: "s".into(),
        max: 1,
        outcome: Outcome::Failed { error: "there is no queue".into() },
    };
    let at = |ms| START.plus(Millis(ms));
    let schedules = after([
        (START, change(put(schedule(every(1000))))),
        (at(1_001), failed),
        (at(1_500), ScheduleCommand::Run { vhost: vhost("/"), name: "s".into() }),
    ]);
    let status = status(&schedules);
    assert_eq!((status.runs, status.failures, status.manual_runs), (0, 1, 1));
    assert_eq!(status.last_error, Some((at(1_001), "there is no queue".into())));
    assert_eq!((status.next, status.last_run), (Some(at(2_000)), Some(at(1_500))));
}

#[test]
fn everything_has_a_bound() {
    let refused = |schedule: Schedule| Schedules::new().decide_changes(START, &[put(schedule)]).unwrap_err();
    let pushed = |message: ScheduledMessage| {
        let queue = QueueName::new("q").unwrap();
        Schedule { action: Action::Push { queue, message }, ..schedule(every(1000)) }
    };
    let large = message(&"x".repeat(limits::SCHEDULE_BODY_BYTES_MAX + 1));
    let text = "the body of a scheduled message has at most 262144 bytes; this one has 262145";
    assert_eq!(refused(pushed(large)).to_string(), text);
    let headers = vec![("h".into(), "v".into()); limits::SCHEDULE_HEADERS_MAX + 1];
    let many = ScheduledMessage { headers, ..message("") };
    assert!(matches!(refused(pushed(many)), ScheduleError::TooMany { .. }));
    let greedy = CatchUp::All { max: limits::CATCH_UP_MAX + 1 };
    let greedy = refused(Schedule { catch_up: greedy, ..schedule(every(1000)) });
    assert_eq!(greedy.to_string(), "catch_up_max must be between 1 and 10000; it is 10001");
    let elsewhere = Schedule { action: push_to(&vhost("shop")), ..schedule(every(1000)) };
    assert!(matches!(refused(elsewhere), ScheduleError::Target { .. }));
    let mut schedules = Schedules::new();
    let numbered = |number: usize| Schedule { name: number.to_string().into(), ..schedule(every(1000)) };
    for number in 0..limits::VHOST_SCHEDULES_MAX {
        give(&mut schedules, START, &change(put(numbered(number)))).unwrap();
    }
    let refused = schedules.decide_changes(START, &[put(numbered(limits::VHOST_SCHEDULES_MAX))]).unwrap_err();
    assert_eq!(refused.to_string(), "there are at most 1000 schedules in a virtual host");
    assert_eq!(schedules.decide_changes(START, &[put(numbered(0))]), Ok(vec![]));
}
