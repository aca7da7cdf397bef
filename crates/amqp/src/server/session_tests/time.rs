//! Heartbeats, time limits and the end of a connection, by a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use nexo_log::disk::{FaultyDisk, GateDisk};

use super::super::options::Options;
use super::super::session::ConnectionPhase;
use super::super::timing::Life;
use super::rig::{
    FRAME_MAX, HEARTBEAT, PERSISTENT, Rig, TRANSIENT, ack, consume, declare, declare_transient, short,
};
use crate::codec::method::{ChannelMethod, basic, channel, connection, queue};
use crate::codec::{Frames, Method, ShortStr, encode_message};

const BEAT: Duration = Duration::from_secs(HEARTBEAT as u64);

#[test]
fn a_heartbeat_is_sent_when_nothing_else_was() {
    let mut rig = Rig::new().open(&[1]);
    assert!(rig.session.tick_within() <= BEAT / 2);
    for _ in 0..5 {
        assert_eq!(rig.pass(BEAT / 2), Life::GoesOn);
        assert_eq!(rig.told(), ["heartbeat"]);
        rig.beat();
    }
    // An answer is as good.
    rig.pass(BEAT / 4);
    rig.say(1, &declare_transient("q"));
    assert_eq!(rig.told(), ["1 queue.declare-ok"]);
    assert_eq!(rig.pass(BEAT / 4), Life::GoesOn);
    assert_eq!(rig.told(), [] as [&str; 0]);
}

#[test]
fn a_peer_that_is_silent_for_two_beats_is_gone() {
    let mut rig = Rig::new();
    assert_eq!(rig.pass(BEAT), Life::GoesOn);
    rig.beat();
    assert_eq!(rig.pass(BEAT * 2), Life::GoesOn);
    assert_eq!(rig.pass(Duration::from_millis(1)), Life::Over);
}

#[test]
fn a_peer_that_is_not_read_from_is_not_taken_for_gone() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &declare("q"));
    rig.told_within(1);
    rig.fill_log();
    rig.publish(1, "q", PERSISTENT, "waits");
    assert!(rig.session.held_up.is_some(), "the disk is behind");
    for _ in 0..10 {
        assert_eq!(rig.pass(BEAT), Life::GoesOn);
        assert_eq!(rig.told(), ["heartbeat"]);
    }
    rig.gate.open_gate();
    rig.run_until(|rig| rig.session.reads());
    assert_eq!(rig.pass(BEAT * 2), Life::GoesOn, "its silence begins now");
    assert_eq!(rig.pass(Duration::from_millis(1)), Life::Over);
}

#[test]
fn a_client_that_holds_a_message_for_too_long_loses_that_channel() {
    let timeout = Duration::from_secs(30 * 60);
    let mut rig = Rig::with(Options { consumer_timeout: timeout, ..Options::default() }).open(&[1, 2]);
    rig.say(1, &declare_transient("q"));
    rig.publish(1, "q", TRANSIENT, "held");
    rig.say(1, &consume("q"));
    rig.run();
    let told = rig.told();
    assert_eq!(told, ["1 queue.declare-ok", "1 basic.consume-ok", "1 basic.deliver", "1 = held"]);
    assert!(rig.session.tick_within() <= Duration::from_secs(60));
    rig.session.limits.heartbeat = 0;
    assert_eq!(rig.pass(timeout), Life::GoesOn);
    assert_eq!(rig.told(), [] as [&str; 0]);
    assert_eq!(rig.pass(Duration::from_millis(1)), Life::GoesOn);
    let close = rig.session.out.bytes.clone();
    assert_eq!(rig.told(), ["1 channel.close"]);
    let close = Frames::new(&close, FRAME_MAX).next().unwrap().unwrap();
    let Method::Channel(ChannelMethod::Close(close)) = Method::decode(close.payload).unwrap() else {
        panic!("{close:?}")
    };
    assert_eq!(close.reply_code, 406);
    assert_eq!(
        close.reply_text.to_string(),
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms. This \
         timeout value can be configured, see consumers doc guide to learn more"
    );
    assert_eq!(rig.queue("q").unwrap().counts(), (1, 0), "it is there for others");
    // One that is acknowledged in time, and one without acknowledgements.
    rig.say(2, &consume("q"));
    rig.run();
    assert_eq!(rig.told(), ["2 basic.consume-ok", "2 basic.deliver", "2 = held"]);
    rig.pass(timeout);
    rig.say(2, &ack(1));
    rig.say(2, &basic::Consume { no_ack: true, consumer_tag: short("free"), ..consume("q") });
    rig.say(2, &basic::Cancel { consumer_tag: short("q"), nowait: true });
    rig.push("q", "unheld");
    rig.run();
    assert_eq!(rig.told(), ["2 basic.consume-ok", "2 basic.deliver", "2 = unheld"]);
    rig.pass(timeout * 3);
    assert_eq!(rig.told(), [] as [&str; 0], "the channel is open");
}

/// What it said may be in the socket, or in what was read and not taken.
#[test]
fn a_client_that_is_held_back_does_not_lose_its_channel_for_what_it_holds() {
    let timeout = Duration::from_secs(30 * 60);
    let mut rig = Rig::with(Options { consumer_timeout: timeout, ..Options::default() }).open(&[1, 2]);
    rig.session.limits.heartbeat = 0;
    rig.say(1, &declare_transient("q"));
    rig.say(1, &declare_transient("other"));
    rig.publish(1, "q", TRANSIENT, "held");
    rig.say(1, &consume("q"));
    rig.told_within(5);
    let intake = rig.broker.intake().clone();
    let others = intake.try_hold(intake.bytes_max() as usize).unwrap();
    rig.publish(2, "other", TRANSIENT, &"x".repeat(200_000));
    assert!(rig.session.intake.is_waiting() && !rig.session.reads());
    rig.say(1, &ack(1));
    for _ in 0..3 {
        assert_eq!(rig.pass(timeout), Life::GoesOn);
        assert_eq!(rig.told(), [] as [&str; 0], "it may well have acknowledged");
    }
    drop(others);
    rig.run_until(|rig| rig.session.reads());
    rig.pass(Duration::from_millis(1));
    rig.pass(Duration::from_millis(1));
    rig.run();
    let told = rig.told();
    assert!(!told.iter().any(|one| one.contains("close")), "{told:?}");
    assert_eq!(rig.queue("q").unwrap().in_flight(), 0, "it was acknowledged");
    assert_eq!(rig.queue("other").unwrap().counts().0, 1);
}

/// Others wait for the memory of a body that has not come whole, but its rest is not read.
#[test]
fn a_client_that_is_held_back_does_not_stand_still() {
    let disk = FaultyDisk::new();
    let max = Duration::from_secs(30);
    let options = Options { standstill_max: max, ..Options::default() };
    let mut rig = Rig::on(Arc::new(disk.clone()), GateDisk::default(), options).open(&[1, 2]);
    rig.session.limits.heartbeat = 0;
    rig.say(1, &declare("q"));
    rig.told_within(1);
    let publish = basic::Publish {
        ticket: 0,
        exchange: ShortStr::EMPTY,
        routing_key: short("q"),
        mandatory: false,
        immediate: false,
    };
    let mut bytes = Vec::new();
    encode_message(&mut bytes, 1, &publish, &[0, 0], &[7; 200_000], FRAME_MAX);
    // All but the last frame.
    let whole = bytes.len() - (200_000 - 131_064) - 8;
    rig.send(&bytes[..whole]);
    assert!(rig.session.intake.held_bytes() > 0);
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
    rig.publish(2, "q", PERSISTENT, "waits");
    rig.run();
    assert_eq!(rig.told(), ["0 connection.blocked"]);
    let intake = rig.broker.intake().clone();
    let rest = (intake.bytes_max() - intake.held_bytes()) as usize;
    let others = intake.try_hold(rest).unwrap();
    assert!(intake.is_contended());
    for _ in 0..3 {
        assert_eq!(rig.pass(max * 2), Life::GoesOn);
        assert_eq!(rig.told(), [] as [&str; 0]);
    }
    disk.set_bytes_max(None);
    rig.run_until(|rig| {
        rig.pass(Duration::from_millis(200));
        rig.session.reads()
    });
    rig.told();
    assert_eq!(rig.pass(max / 2), Life::GoesOn);
    assert_eq!(rig.told(), [] as [&str; 0], "its time begins when it is read again");
    rig.pass(max);
    assert_eq!(rig.told(), ["1 channel.close"], "now it stands still");
    drop(others);
}

/// A client is told that the broker stops when what it published is pushed. If that never happens, it is not waited for.
#[test]
fn a_stop_does_not_wait_for_a_disk_that_hangs() {
    let close_max = Duration::from_secs(5);
    let mut rig = Rig::with(Options { close_max, ..Options::default() }).open(&[1]);
    rig.say(1, &declare("q"));
    rig.told_within(1);
    rig.fill_log();
    rig.publish(1, "q", PERSISTENT, "waits");
    rig.shut_down();
    rig.run();
    assert_eq!(rig.told(), [] as [&str; 0]);
    assert!(rig.session.tick_within() < close_max);
    assert_eq!(rig.pass(2 * close_max - Duration::from_millis(1)), Life::GoesOn);
    assert_eq!(rig.pass(Duration::from_millis(1)), Life::Over);
}

#[test]
fn a_client_has_its_time_to_agree_to_the_end_however_long_it_was_idle() {
    let options = Options { close_max: Duration::from_secs(5), ..Options::default() };
    for agrees in [true, false] {
        let mut rig = Rig::with(options).open(&[1]);
        rig.session.limits.heartbeat = 0;
        rig.pass(Duration::from_secs(3_000));
        rig.now += Duration::from_secs(500);
        rig.shut_down();
        assert_eq!(rig.told(), ["0 connection.close"]);
        assert_eq!(rig.session.phase, ConnectionPhase::Closing);
        // Nothing else counts any more.
        rig.say(1, &declare("late"));
        rig.publish(1, "late", TRANSIENT, "x");
        assert!(rig.told().is_empty() && rig.queue("late").is_none());
        assert_eq!(rig.pass(Duration::from_millis(4_999)), Life::GoesOn);
        if agrees {
            rig.say(0, &connection::CloseOk {});
            assert_eq!(rig.session.phase, ConnectionPhase::Closed);
            assert!(!rig.session.takes_frames());
        } else {
            assert_eq!(rig.pass(Duration::from_millis(1)), Life::Over);
        }
    }
}

#[test]
fn a_client_that_cannot_be_understood_any_more_has_little_time() {
    let mut rig = Rig::new().open(&[1]);
    // A frame of four bytes, without its end.
    rig.send(&[1, 0, 1, 0, 0, 0, 4, 1, 2, 3, 4, 5]);
    assert_eq!(rig.told(), ["0 connection.close"]);
    rig.say(0, &connection::CloseOk {});
    assert_eq!(rig.session.phase, ConnectionPhase::Closing, "it is not listened to");
    assert_eq!(rig.pass(Duration::from_millis(999)), Life::GoesOn);
    assert_eq!(rig.pass(Duration::from_millis(1)), Life::Over);
}

#[test]
fn what_follows_a_frame_of_an_unknown_kind_is_understood() {
    let mut rig = Rig::new().open(&[1]);
    rig.send(&[9, 0, 1, 0, 0, 0, 2, 1, 2]);
    assert_eq!(rig.told(), [] as [&str; 0], "it is not whole yet");
    rig.send(&[0xce]);
    assert_eq!(rig.told(), ["0 connection.close"]);
    rig.say(0, &connection::CloseOk {});
    assert_eq!(rig.session.phase, ConnectionPhase::Closed);
}

#[test]
fn a_client_that_closes_gets_its_answers_first_and_its_own_queues_go() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &queue::Declare { exclusive: true, ..declare("mine") });
    rig.told_within(1);
    rig.gate.hold_syncs();
    rig.say(1, &declare("q"));
    let reply_text = short("bye");
    rig.say(0, &connection::Close { reply_code: 200, reply_text, class_id: 0, method_id: 0 });
    rig.run_until(|rig| rig.gate.syncs_held() > 0);
    assert!(rig.told().is_empty() && rig.queue("mine").is_some());
    rig.gate.open_gate();
    assert_eq!(rig.told_within(2), ["1 queue.declare-ok", "0 connection.close-ok"]);
    assert_eq!(rig.session.phase, ConnectionPhase::Closed);
    assert!(rig.queue("mine").is_none() && rig.queue("q").is_some());
}

#[test]
fn a_channel_that_closes_gives_back_what_it_holds() {
    let mut rig = Rig::new().open(&[1, 2]);
    rig.say(1, &declare_transient("q"));
    rig.publish(1, "q", TRANSIENT, "x");
    rig.say(1, &consume("q"));
    rig.run();
    assert_eq!(rig.queue("q").unwrap().in_flight(), 1);
    rig.told();
    let reply_text = short("bye");
    rig.say(1, &channel::Close { reply_code: 200, reply_text, class_id: 0, method_id: 0 });
    assert_eq!(rig.told(), ["1 channel.close-ok"]);
    assert_eq!((rig.queue("q").unwrap().in_flight(), rig.queue("q").unwrap().counts()), (0, (1, 0)));
    rig.say(2, &consume("q"));
    rig.run();
    assert_eq!(rig.told(), ["2 basic.consume-ok", "2 basic.deliver", "2 = x"]);
}
