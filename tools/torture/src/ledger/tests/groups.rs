//! Stories of a FIFO queue.

use super::*;
use crate::stamp::Copy;

/// A message to the FIFO queue; those whose numbers are twelve apart are of one group.
fn grouped(seq: u64) -> Stamp {
    Stamp { targets: Families::one(Family::GROUPS), ..stamp(seq) }
}

fn copy(stamp: Stamp) -> Copy {
    stamp.copy_in(Family::GROUPS)
}

#[test]
fn groups_do_not_wait_for_each_other() {
    let mut story = Story::new();
    let (one, two) = (story.confirmed(grouped(1)), story.confirmed(grouped(2)));
    story.delivered(two, Place::GROUPS, 1);
    story.delivered(one, Place::GROUPS, 1);
    assert_eq!(story.found(), []);
}

#[test]
fn a_message_comes_when_the_one_before_it_is_done() {
    let mut story = Story::new();
    let (one, two) = (story.confirmed(grouped(1)), story.confirmed(grouped(13)));
    story.delivered(one, Place::GROUPS, 1);
    story.acked(one);
    story.delivered(two, Place::GROUPS, 1);
    story.acked(two);
    story.ledger.close_books(0);
    assert_eq!(story.found(), []);
}

#[test]
fn a_message_that_overtakes_one_of_its_group_is_seen() {
    let mut story = Story::new();
    story.confirmed(grouped(1));
    let two = story.confirmed(grouped(13));
    story.delivered(two, Place::GROUPS, 1);
    assert_eq!(story.found(), [What::OutOfOrder]);

    let mut story = Story::new();
    let (one, two) = (story.confirmed(grouped(1)), story.confirmed(grouped(13)));
    story.delivered(one, Place::GROUPS, 1);
    story.ledger.returned(copy(one), story.session, story.now);
    story.delivered(two, Place::GROUPS, 1);
    assert_eq!(story.found(), [What::OutOfOrder], "what was given back comes first");
}

#[test]
fn two_messages_of_a_group_at_once_are_seen_whoever_sent_them() {
    let mut story = Story::new();
    for _ in 0..100 {
        story.ledger.next_seq(4);
    }
    let (one, two) = (story.confirmed(grouped(1)), story.confirmed(Stamp { publisher: 4, ..grouped(13) }));
    story.delivered(one, Place::GROUPS, 1);
    story.delivered(two, Place::GROUPS, 1);
    assert_eq!(story.found(), [What::Doubled]);
}

#[test]
fn what_was_done_perhaps_may_come_again_after_a_kill_and_not_before() {
    for is_killed in [false, true] {
        let mut story = Story::new();
        let (one, two) = (story.confirmed(grouped(1)), story.confirmed(grouped(13)));
        story.delivered(one, Place::GROUPS, 1);
        let at = story.tick();
        story.ledger.ack_sent(copy(one), story.session, at);
        story.ledger.ack_unknown(copy(one), at);
        story.delivered(two, Place::GROUPS, 1);
        story.ledger.returned(copy(two), story.session, at);
        if is_killed {
            story.killed();
        }
        story.delivered(one, Place::GROUPS, 2);
        let expected: &[What] = if is_killed { &[] } else { &[What::OutOfOrder] };
        assert_eq!(story.found(), expected);
    }
}

#[test]
fn a_message_that_is_done_for_certain_proves_that_those_before_it_are() {
    let mut story = Story::new();
    let (one, two) = (story.confirmed(grouped(1)), story.confirmed(grouped(13)));
    story.delivered(one, Place::GROUPS, 1);
    let at = story.tick();
    story.ledger.ack_sent(copy(one), story.session, at);
    story.ledger.ack_unknown(copy(one), at);
    story.delivered(two, Place::GROUPS, 1);
    story.acked(two);
    story.killed();
    story.delivered(one, Place::GROUPS, 2);
    assert_eq!(story.found(), [What::Resurrected]);
}
