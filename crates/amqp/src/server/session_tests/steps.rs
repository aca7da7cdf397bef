//! What a session still has to do when it is told to wait, to stop, or that its client has gone.

use super::super::settle::SETTLE_TURN;
use super::super::steps::{Step, frame_of};
use super::super::timing::Life;
use super::rig::{PERSISTENT, Rig, consume, declare, declare_transient, qos, short};
use crate::codec::method::{basic, channel};

#[test]
fn consumers_are_stopped_though_the_task_has_used_up_its_turn() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &declare_transient("q"));
    rig.say(1, &consume("q"));
    rig.say(1, &basic::Consume { consumer_tag: short("free"), no_ack: true, ..consume("q") });
    rig.told_within(3);
    let queue = rig.queue("q").unwrap();
    assert_eq!(queue.counts().1, 2);
    let close = channel::Close { reply_code: 200, reply_text: short("bye"), class_id: 0, method_id: 0 };
    rig.with_used_up_turn(|rig| rig.say(1, &close));
    assert_eq!(queue.counts().1, 0, "both are gone, without another turn");
    assert_eq!(rig.told(), ["1 channel.close-ok"]);
}

#[test]
fn a_tick_runs_the_steps_that_wait() {
    let mut rig = Rig::new().open(&[1]);
    // As if something had given the answer that it waited for.
    rig.session.steps.push_back(Step::GiveAnswers(1));
    let frame = frame_of(1, &basic::QosOk {});
    rig.session.steps.push_back(Step::Say { frame, phase: None });
    assert!(!rig.session.reads());
    let now = rig.now;
    assert_eq!(rig.session.tick(now), Life::GoesOn);
    assert_eq!(rig.told(), ["1 basic.qos-ok"]);
    assert!(rig.session.reads());
}

#[test]
fn a_client_that_dies_while_a_step_waits_for_the_disk_gives_back_what_it_holds() {
    let mut rig = Rig::new().open(&[1, 2]);
    rig.say(1, &declare("q"));
    rig.say(1, &declare_transient("memory"));
    rig.say(1, &consume("memory"));
    rig.push("memory", "held");
    rig.told_within(5);
    rig.fill_log();
    rig.publish(2, "q", PERSISTENT, "x");
    rig.shut_down();
    rig.run();
    assert!(rig.session.has_steps(), "what was published before waits");
    rig.end();
    rig.run_until(|rig| !rig.session.has_steps());
    assert_eq!(rig.queue("memory").unwrap().counts(), (1, 0), "though the disk hangs");
}

#[test]
fn a_client_that_dies_while_it_waits_for_room_gives_back_what_it_holds() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &declare_transient("memory"));
    rig.say(1, &consume("memory"));
    rig.push("memory", "held");
    rig.told_within(4);
    rig.fill_log();
    rig.say(1, &declare("late"));
    rig.run();
    assert!(rig.session.operation.is_some(), "the log has no room");
    rig.end();
    rig.run_until(|rig| !rig.session.has_steps());
    assert_eq!(rig.queue("memory").unwrap().counts(), (1, 0), "though the disk hangs");
    assert!(rig.queue("late").is_none());
}

#[test]
fn all_that_one_word_acknowledges_is_acknowledged_though_the_client_dies_meanwhile() {
    let mut rig = Rig::new().open(&[1]);
    let count = 2 * SETTLE_TURN + 5;
    rig.say(1, &declare_transient("q"));
    for _ in 0..count {
        rig.push("q", "x");
    }
    rig.say(1, &qos(0, false));
    rig.say(1, &consume("q"));
    rig.run_until(|rig| {
        rig.told();
        rig.queue("q").unwrap().in_flight() == count
            && rig.session.waiting.is_empty()
            && rig.session.out.is_empty()
    });
    rig.say(1, &basic::Ack { delivery_tag: count as u64, multiple: true });
    assert!(rig.session.has_steps(), "it is too much for one turn");
    assert!(rig.queue("q").unwrap().in_flight() > 0);
    rig.end();
    rig.run_until(|rig| !rig.session.has_steps());
    let queue = rig.queue("q").unwrap();
    assert_eq!((queue.counts().0, queue.in_flight()), (0, 0), "none comes back");
}
