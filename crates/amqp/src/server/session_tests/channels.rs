//! What one channel's errors and limits mean for others.

use std::collections::BTreeMap;

use super::rig::{Rig, TRANSIENT, ack, consume, declare, declare_transient, qos};
use crate::codec::method::{basic, channel, queue};
use crate::codec::{FrameKind, Frames, Method};

/// To which consumers messages were delivered, with their tags.
fn delivered(rig: &mut Rig) -> Vec<(String, u64)> {
    rig.run();
    let bytes = rig.session.out.bytes.clone();
    rig.told();
    let frames = Frames::new(&bytes, super::rig::FRAME_MAX).map(Result::unwrap);
    let methods = frames.filter(|frame| frame.kind == FrameKind::Method);
    let deliver = |frame: crate::codec::Frame<'_>| match Method::decode(frame.payload).unwrap() {
        Method::Basic(crate::codec::method::BasicMethod::Deliver(deliver)) => {
            Some((deliver.consumer_tag.to_string(), deliver.delivery_tag))
        }
        _ => None,
    };
    methods.filter_map(deliver).collect()
}

#[test]
fn an_error_of_a_channel_touches_no_other() {
    let mut rig = Rig::new().open(&[1, 2]);
    rig.say(1, &declare_transient("q"));
    rig.say(1, &consume("q"));
    rig.publish(1, "q", TRANSIENT, "before");
    rig.run();
    rig.told();
    rig.say(2, &queue::Declare { passive: true, ..declare("missing") });
    assert_eq!(rig.told_within(1), ["2 channel.close"]);
    // What it says before it knows is passed over.
    rig.say(2, &declare("late"));
    rig.publish(2, "q", TRANSIENT, "late");
    rig.say(1, &ack(1));
    rig.publish(1, "q", TRANSIENT, "after");
    rig.run();
    assert_eq!(rig.told(), ["1 basic.deliver", "1 = after"]);
    assert_eq!((rig.queue("q").unwrap().in_flight(), rig.queue("late").is_none()), (1, true));
    rig.say(2, &channel::CloseOk {});
    rig.say(2, &channel::Open { out_of_band: crate::codec::ShortStr::EMPTY });
    rig.say(2, &declare_transient("next"));
    assert_eq!(rig.told(), ["2 channel.open-ok", "2 queue.declare-ok"]);
}

#[test]
fn an_unknown_delivery_tag_ends_the_channel_and_its_messages_come_back() {
    let mut rig = Rig::new().open(&[1, 2]);
    rig.say(1, &declare_transient("q"));
    rig.say(1, &consume("q"));
    rig.say(2, &declare_transient("other"));
    rig.say(2, &consume("other"));
    rig.push("q", "x");
    rig.push("other", "x");
    rig.run();
    rig.told();
    rig.say(1, &ack(7));
    assert_eq!(rig.told_within(1), ["1 channel.close"]);
    assert_eq!(rig.queue("q").unwrap().counts(), (1, 0));
    assert_eq!(rig.queue("other").unwrap().in_flight(), 1);
}

#[test]
fn a_shared_limit_goes_round_among_the_queues_of_a_channel() {
    let mut rig = Rig::new().open(&[1]);
    let queues = ["one", "two", "three"];
    rig.say(1, &qos(1, true));
    for queue in queues {
        rig.say(1, &declare_transient(queue));
        rig.say(1, &consume(queue));
    }
    for queue in queues {
        for _ in 0..100 {
            rig.push(queue, "x");
        }
    }
    let mut served_to: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..90 {
        let [(consumer, tag)] = &delivered(&mut rig)[..] else { panic!("one at a time") };
        *served_to.entry(consumer.clone()).or_default() += 1;
        rig.say(1, &ack(*tag));
    }
    assert!(served_to.len() == 3 && served_to.values().all(|got| (29..=31).contains(got)), "{served_to:?}");
}

#[test]
fn a_consumer_without_acknowledgements_waits_while_the_limit_is_used_up() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &declare_transient("acks"));
    rig.say(1, &declare_transient("none"));
    rig.say(1, &qos(1, true));
    rig.say(1, &consume("acks"));
    rig.push("acks", "1");
    assert_eq!(delivered(&mut rig), [("acks".to_owned(), 1)]);
    rig.say(1, &basic::Consume { no_ack: true, ..consume("none") });
    for body in ["1", "2", "3"] {
        rig.push("none", body);
    }
    assert_eq!(delivered(&mut rig), []);
    assert_eq!(rig.queue("none").unwrap().counts().0, 3);
    rig.say(1, &ack(1));
    assert_eq!(delivered(&mut rig).len(), 3);
    assert_eq!(rig.queue("none").unwrap().counts().0, 0, "what it does not acknowledge takes no room");
}

#[test]
fn a_limit_that_comes_later_binds_consumers_without_acknowledgements_too() {
    let mut rig = Rig::new().open(&[1]);
    rig.say(1, &declare_transient("acks"));
    rig.say(1, &declare_transient("none"));
    rig.say(1, &consume("acks"));
    rig.say(1, &basic::Consume { no_ack: true, ..consume("none") });
    rig.say(1, &qos(1, true));
    rig.push("none", "1");
    rig.push("none", "2");
    assert_eq!(delivered(&mut rig).len(), 2, "the limit has room");
    rig.push("acks", "1");
    let [(consumer, tag)] = &delivered(&mut rig)[..] else { panic!("one") };
    assert_eq!(consumer, "acks");
    rig.push("none", "3");
    assert_eq!(delivered(&mut rig), []);
    rig.say(1, &ack(*tag));
    assert_eq!(delivered(&mut rig)[0].0, "none");
}

#[test]
fn an_exclusive_consumer_stays_alone_when_its_channel_gets_a_limit() {
    let mut rig = Rig::new().open(&[1, 2, 3]);
    rig.say(1, &declare_transient("q"));
    rig.say(1, &basic::Consume { exclusive: true, ..consume("q") });
    rig.say(1, &qos(2, true));
    assert_eq!(rig.told_within(3), ["1 queue.declare-ok", "1 basic.consume-ok", "1 basic.qos-ok"]);
    for (channel, exclusive) in [(2, false), (3, true)] {
        rig.say(channel, &basic::Consume { exclusive, ..consume("q") });
        assert_eq!(rig.told_within(1), [format!("{channel} channel.close")]);
    }
    rig.say(2, &channel::CloseOk {});
    rig.say(2, &channel::Open { out_of_band: crate::codec::ShortStr::EMPTY });
    for body in ["a", "b", "c"] {
        rig.push("q", body);
    }
    assert_eq!(delivered(&mut rig), [("q".to_owned(), 1), ("q".to_owned(), 2)]);
    rig.say(1, &basic::Cancel { consumer_tag: super::rig::short("q"), nowait: false });
    rig.say(2, &consume("q"));
    assert_eq!(rig.told_within(4), ["1 basic.cancel-ok", "2 basic.consume-ok", "2 basic.deliver", "2 = c"]);
}
