//! What a session does while it waits for the disk, and when that has caught up, fills up or fails.

use std::sync::Arc;
use std::time::Duration;

use nexo_broker::QueueError;
use nexo_log::disk::{FaultyDisk, GateDisk};

use super::super::options::Options;
use super::super::timing::Life;
use super::rig::{
    CONFIRMS, PERSISTENT, Rig, TRANSACTION, TRANSIENT, ack, consume, declare, declare_transient, qos, short,
};
use crate::codec::TableBuf;
use crate::codec::method::{basic, channel, queue, tx};

#[test]
fn answers_of_a_channel_keep_their_order_while_a_declare_is_not_safe() {
    let mut rig = Rig::new().open(&[1, 2]);
    rig.gate.hold_syncs();
    rig.say(1, &declare("a"));
    rig.say(1, &declare("b"));
    // Its answer needs no disk, and comes after those that do.
    rig.say(1, &queue::Declare { passive: true, ..declare("a") });
    rig.say(2, &qos(5, false));
    rig.run_until(|rig| rig.gate.syncs_held() > 0);
    assert_eq!(rig.told(), ["2 basic.qos-ok"], "another channel does not wait");
    assert!(rig.queue("a").is_some() && rig.queue("b").is_some(), "what was said is done");
    // Anything else of the channel waits for its answers.
    rig.say(1, &qos(1, false));
    rig.say(1, &declare("c"));
    rig.run();
    assert!(rig.told().is_empty() && rig.queue("c").is_none());
    rig.gate.open_gate();
    let told = rig.told_within(5);
    let declared = "1 queue.declare-ok";
    assert_eq!(told, [declared, declared, declared, "1 basic.qos-ok", declared]);
}

#[test]
fn a_refusal_comes_after_the_answers_before_it() {
    let mut rig = Rig::new().open(&[1]);
    rig.gate.hold_syncs();
    rig.say(1, &declare("a"));
    rig.say(1, &queue::Declare { passive: true, ..declare("missing") });
    rig.run_until(|rig| rig.gate.syncs_held() > 0);
    assert_eq!(rig.told(), [] as [&str; 0]);
    rig.gate.open_gate();
    assert_eq!(rig.told_within(2), ["1 queue.declare-ok", "1 channel.close"]);
}

#[test]
fn publishes_are_confirmed_when_a_slow_disk_has_them_and_everything_else_goes_on() {
    let mut rig = Rig::new().open(&[1, 2]);
    rig.say(1, &declare("q"));
    rig.say(1, &CONFIRMS);
    rig.say(2, &declare_transient("memory"));
    rig.say(2, &consume("memory"));
    rig.told_within(4);
    rig.gate.hold_syncs();
    for body in ["1", "2", "3"] {
        rig.publish(1, "q", PERSISTENT, body);
    }
    rig.run_until(|rig| rig.gate.syncs_held() > 0);
    assert_eq!(rig.told(), [] as [&str; 0]);
    rig.push("memory", "meanwhile");
    rig.run();
    assert_eq!(rig.told(), ["2 basic.deliver", "2 = meanwhile"]);
    assert_eq!(rig.pass(Duration::from_secs(5)), Life::GoesOn);
    assert_eq!(rig.told(), ["heartbeat"]);
    rig.gate.open_gate();
    rig.run_until(|rig| rig.session.confirms.is_empty());
    let told = rig.told();
    assert!(!told.is_empty() && told.iter().all(|one| one == "1 basic.ack"), "{told:?}");
    assert_eq!(rig.queue("q").unwrap().counts().0, 3);
}

#[test]
fn a_declare_that_finds_the_log_full_waits_for_it_and_everything_else_goes_on() {
    let mut rig = Rig::new().open(&[1, 2]);
    rig.say(2, &declare_transient("memory"));
    rig.say(2, &consume("memory"));
    rig.told_within(2);
    rig.fill_log();
    rig.say(1, &declare("late"));
    rig.say(1, &qos(1, false));
    rig.run();
    assert!(rig.told().is_empty() && rig.queue("late").is_none());
    assert!(!rig.session.reads(), "what comes behind it waits");
    rig.push("memory", "meanwhile");
    rig.run();
    assert_eq!(rig.told(), ["2 basic.deliver", "2 = meanwhile"]);
    assert_eq!(rig.pass(Duration::from_secs(5)), Life::GoesOn);
    assert_eq!(rig.told(), ["heartbeat"]);
    rig.gate.open_gate();
    assert_eq!(rig.told_within(2), ["1 queue.declare-ok", "1 basic.qos-ok"]);
    assert!(rig.queue("late").is_some());
}

#[test]
fn changes_of_exchanges_that_find_the_log_full_are_made_when_it_is_not() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &declare("q"));
    rig.told_within(1);
    rig.fill_log();
    let (exchange, arguments) = (short("amq.direct"), crate::codec::Table::EMPTY);
    let bind = queue::Bind {
        ticket: 0,
        queue: short("q"),
        exchange,
        routing_key: short("k"),
        nowait: false,
        arguments,
    };
    rig.say(1, &bind);
    rig.say(
        1,
        &queue::Delete { ticket: 0, queue: short("q"), if_unused: false, if_empty: false, nowait: false },
    );
    rig.run();
    assert!(rig.told().is_empty() && rig.queue("q").is_some());
    rig.gate.open_gate();
    assert_eq!(rig.told_within(2), ["1 queue.bind-ok", "1 queue.delete-ok"]);
    assert!(rig.queue("q").is_none());
}

#[test]
fn an_acknowledgement_does_not_overtake_what_was_published_before_it() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &declare("q"));
    rig.say(1, &declare_transient("memory"));
    rig.say(1, &consume("memory"));
    rig.push("memory", "held");
    rig.run();
    rig.told_within(5);
    rig.fill_log();
    let mut bytes = Vec::new();
    let publish = basic::Publish {
        ticket: 0,
        exchange: crate::codec::ShortStr::EMPTY,
        routing_key: short("q"),
        mandatory: false,
        immediate: false,
    };
    let persistent = crate::codec::PropertiesBuilder::new().delivery_mode(PERSISTENT).to_vec();
    crate::codec::encode_message(&mut bytes, 1, &publish, &persistent, b"x", super::rig::FRAME_MAX);
    crate::codec::encode_method(&mut bytes, 1, &ack(1));
    rig.send(&bytes);
    rig.run();
    assert_eq!(rig.queue("memory").unwrap().in_flight(), 1);
    rig.gate.open_gate();
    rig.run_until(|rig| rig.queue("memory").unwrap().in_flight() == 0);
    assert_eq!(rig.queue("q").unwrap().counts().0, 1);
}

#[test]
fn a_channel_that_closes_behind_publishes_that_wait_is_closed_when_they_are_pushed() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &declare("q"));
    rig.told_within(1);
    rig.fill_log();
    rig.publish(1, "q", PERSISTENT, "x");
    let reply_text = short("bye");
    rig.say(1, &channel::Close { reply_code: 200, reply_text, class_id: 0, method_id: 0 });
    rig.run();
    assert_eq!(rig.told(), [] as [&str; 0]);
    rig.gate.open_gate();
    assert_eq!(rig.told_within(1), ["1 channel.close-ok"]);
    assert_eq!(rig.queue("q").unwrap().counts().0, 1);
}

#[test]
fn a_transaction_waits_for_room() {
    let disk = FaultyDisk::new();
    let mut rig = Rig::on(Arc::new(disk.clone()), GateDisk::default(), Options::default()).open(&[1, 2]);
    rig.say(1, &declare("q"));
    rig.say(1, &TRANSACTION);
    rig.say(2, &declare_transient("memory"));
    rig.say(2, &consume("memory"));
    rig.told_within(4);
    rig.publish(1, "q", PERSISTENT, "committed");
    disk.set_bytes_max(Some(disk.used_bytes()));
    rig.block_on(|broker| async move {
        let name = nexo_types::QueueName::new("q").unwrap();
        let mut bytes = 100_000;
        while bytes > 0 {
            if broker.push(&name, vec![nexo_broker::NewMessage::new(vec![0; bytes])]).await.is_err() {
                bytes /= 2;
            }
        }
    });
    let before = rig.queue("q").unwrap().counts().0;
    rig.say(1, &tx::Commit {});
    rig.run();
    assert_eq!(rig.told(), ["0 connection.blocked"]);
    rig.push("memory", "meanwhile");
    rig.run();
    assert_eq!(rig.told(), ["2 basic.deliver", "2 = meanwhile"]);
    for _ in 0..3 {
        assert_eq!(rig.pass(Duration::from_millis(200)), Life::GoesOn);
        rig.run();
        assert_eq!(rig.told(), [] as [&str; 0]);
    }
    assert_eq!(rig.queue("q").unwrap().counts().0, before);
    disk.set_bytes_max(None);
    rig.run_until(|rig| {
        rig.pass(Duration::from_millis(200));
        !rig.session.blocked && rig.session.unfinished.is_none()
    });
    let mut told = rig.told();
    told.retain(|one| one != "heartbeat");
    told.sort();
    assert_eq!(told, ["0 connection.unblocked", "1 tx.commit-ok"]);
    assert_eq!(rig.queue("q").unwrap().counts().0, before + 1);
}

#[test]
fn a_commit_is_not_answered_if_one_of_its_publishes_was_refused() {
    let mut rig = Rig::new().open(&[1, 2]);
    let mut arguments = TableBuf::new();
    arguments.set(short("x-max-length"), 1);
    arguments.set(short("x-overflow"), "reject-publish");
    rig.say(1, &queue::Declare { arguments: arguments.as_table(), ..declare("full") });
    rig.say(1, &declare("other"));
    rig.say(1, &TRANSACTION);
    rig.say(2, &CONFIRMS);
    rig.told_within(4);
    for body in ["1", "2"] {
        rig.publish(1, "full", PERSISTENT, body);
    }
    rig.publish(1, "other", PERSISTENT, "3");
    rig.say(1, &tx::Commit {});
    assert_eq!(rig.told_within(1), ["1 channel.close"]);
    let waiting = |rig: &Rig, name| rig.queue(name).unwrap().counts().0;
    assert_eq!(
        (waiting(&rig, "full"), waiting(&rig, "other")),
        (1, 1),
        "as in RabbitMQ, the others are there"
    );
    rig.publish(2, "other", PERSISTENT, "4");
    assert_eq!(rig.told_within(1), ["2 basic.ack"], "another channel goes on");
}

#[test]
fn a_commit_is_not_answered_if_the_log_takes_nothing() {
    let disk = FaultyDisk::new();
    let mut rig = Rig::on(Arc::new(disk.clone()), GateDisk::default(), Options::default()).open(&[1]);
    rig.say(1, &declare("q"));
    rig.say(1, &TRANSACTION);
    rig.told_within(2);
    disk.cut_power();
    let told = rig.block_on(|broker| async move {
        let name = nexo_types::QueueName::new("q").unwrap();
        broker.push(&name, vec![nexo_broker::NewMessage::new("x")]).await.is_ok()
    });
    assert!(!told, "the log has failed");
    rig.publish(1, "q", PERSISTENT, "x");
    rig.say(1, &tx::Commit {});
    let told = rig.told_within(1);
    assert!(!told.iter().any(|one| one == "1 tx.commit-ok"), "{told:?}");
}

#[test]
fn a_commit_is_finished_though_its_client_has_gone() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &declare("q"));
    rig.say(1, &TRANSACTION);
    rig.told_within(2);
    rig.publish(1, "q", PERSISTENT, "x");
    rig.fill_log();
    rig.say(1, &tx::Commit {});
    assert!(rig.session.must_finish());
    rig.gate.open_gate();
    rig.run_until(|rig| !rig.session.must_finish());
    assert_eq!(rig.queue("q").unwrap().counts().0, 1);
}

#[test]
fn nothing_overtakes_what_was_said_about_messages_while_the_disk_is_behind() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &declare("q"));
    rig.told_within(1);
    rig.push("q", "x");
    // As if the log had no room for an acknowledgement.
    rig.session.settle_refusal = Some(QueueError::Busy { reason: "the disk is behind".to_owned() });
    rig.say(1, &basic::Get { ticket: 0, queue: short("q"), no_ack: true });
    rig.run();
    assert_eq!(rig.told(), [] as [&str; 0]);
    assert!(!rig.session.reads() && rig.session.tick_within() < Duration::from_millis(10));
    rig.pass(Duration::from_millis(5));
    assert_eq!(rig.told_within(2), ["1 basic.get-ok", "1 = x"]);
}

#[test]
fn one_message_is_got_when_it_has_been_read() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &declare_transient("q"));
    let get = |no_ack| basic::Get { ticket: 0, queue: short("q"), no_ack };
    rig.say(1, &get(false));
    rig.publish(1, "q", TRANSIENT, "x");
    rig.say(1, &get(false));
    rig.say(1, &get(true));
    rig.run();
    let told = rig.told();
    let expected =
        ["1 queue.declare-ok", "1 basic.get-empty", "1 basic.get-ok", "1 = x", "1 basic.get-empty"];
    assert_eq!(told, expected);
    assert_eq!(rig.queue("q").unwrap().in_flight(), 1);
    rig.say(1, &queue::Purge { ticket: 0, queue: short("q"), nowait: false });
    assert_eq!(rig.told_within(1), ["1 queue.purge-ok"]);
}

#[test]
fn what_a_client_that_has_gone_held_comes_back_though_its_publishes_wait() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &declare("q"));
    rig.say(1, &declare_transient("memory"));
    rig.say(1, &consume("memory"));
    rig.push("memory", "held");
    rig.told_within(5);
    rig.fill_log();
    rig.publish(1, "q", PERSISTENT, "x");
    rig.end();
    rig.run_until(|rig| !rig.session.has_steps());
    assert_eq!(rig.queue("memory").unwrap().counts(), (1, 0));
    assert_eq!(rig.queue("q").unwrap().counts().0, 0, "the disk is behind");
    rig.session.flush_whole();
    assert!(rig.session.must_finish());
    rig.gate.open_gate();
    rig.run_until(|rig| !rig.session.must_finish());
    assert_eq!(rig.queue("q").unwrap().counts().0, 1, "what was read counts");
}

#[test]
fn a_purge_is_answered_when_it_is_safe_and_everything_else_goes_on() {
    let mut rig = Rig::new().open(&[1, 2]);
    rig.say(1, &declare("q"));
    rig.publish(1, "q", PERSISTENT, "x");
    rig.say(2, &declare_transient("memory"));
    rig.say(2, &consume("memory"));
    rig.told_within(3);
    rig.gate.hold_syncs();
    rig.say(1, &queue::Purge { ticket: 0, queue: short("q"), nowait: false });
    rig.say(1, &qos(1, false));
    rig.run_until(|rig| rig.gate.syncs_held() > 0);
    rig.push("memory", "meanwhile");
    rig.run();
    assert_eq!(rig.told(), ["2 basic.deliver", "2 = meanwhile"]);
    rig.gate.open_gate();
    assert_eq!(rig.told_within(2), ["1 queue.purge-ok", "1 basic.qos-ok"]);
}

#[test]
fn who_cancels_is_told_when_the_queue_that_goes_with_it_is_gone() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &queue::Declare { auto_delete: true, ..declare("q") });
    rig.say(1, &basic::Consume { no_ack: true, ..consume("q") });
    rig.told_within(2);
    rig.push("q", "unread");
    rig.fill_log();
    rig.say(1, &basic::Cancel { consumer_tag: short("q"), nowait: false });
    rig.run();
    assert_eq!(rig.told(), ["1 basic.deliver", "1 = unread"], "what it was handed is not lost");
    rig.gate.open_gate();
    assert_eq!(rig.told_within(1), ["1 basic.cancel-ok"]);
    assert!(rig.queue("q").is_none());
}
