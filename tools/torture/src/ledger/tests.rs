//! The books are shown every kind of broken promise, and must find each; and kept ones, and must find none.

mod damage;
mod groups;

use super::*;
use crate::queues::{Families, Family, Place};
use crate::stamp::tests::stamp;
use crate::stamp::{Durability, Stamp};
use crate::way::Way;

/// A ledger with one session, and a clock that moves by a second with every event.
struct Story {
    ledger: Ledger,
    session: SessionId,
    now: u64,
}

impl Story {
    fn new() -> Self {
        let mut ledger = Ledger::default();
        for _ in 0..100 {
            ledger.next_seq(3);
        }
        let session = ledger.open_session(Way::Amqp);
        Self { ledger, session, now: 1_000_000 }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1_000_000;
        self.now
    }

    fn confirmed(&mut self, stamp: Stamp) -> Stamp {
        let sent_at = self.tick();
        self.ledger.sent(&stamp, 0, sent_at);
        let at = self.tick();
        self.ledger.confirmed(&stamp, self.session, sent_at, at);
        stamp
    }

    fn delivery(&mut self, stamp: Stamp, place: Place, attempt: u32) -> Delivery {
        let (session, at) = (self.session, self.tick());
        let attempt = Attempt::exact(attempt);
        Delivery { session, stamp, place, attempt, until: None, cause: None, at }
    }

    fn delivered(&mut self, stamp: Stamp, place: Place, attempt: u32) {
        let delivery = self.delivery(stamp, place, attempt);
        self.ledger.delivered(&delivery);
    }

    fn acked(&mut self, stamp: Stamp) {
        let at = self.tick();
        for copy in stamp.copies() {
            self.ledger.ack_sent(copy, self.session, at);
            self.ledger.acked(copy, at);
        }
    }

    /// The broker is killed, started again, and the client connects again.
    fn killed(&mut self) {
        self.ledger.end_life();
        self.ledger.close_session(self.session);
        self.session = self.ledger.open_session(Way::Amqp);
    }

    fn found(&self) -> Vec<What> {
        self.ledger.counts().keys().copied().collect()
    }
}

fn ordered(seq: u64) -> Stamp {
    Stamp { targets: Families::one(Family::ORDERED), ..stamp(seq) }
}

fn transient(seq: u64) -> Stamp {
    Stamp { durability: Durability::Transient, ..ordered(seq) }
}

#[test]
fn a_life_without_incidents_is_in_order() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    story.delivered(one, Place::WORK_A, 1);
    story.acked(one);
    story.ledger.close_books(0);
    assert_eq!(story.found(), []);
    assert_eq!(story.ledger.outstanding(), 0, "what is done is forgotten");
}

#[test]
fn a_message_waits_from_its_confirm_until_somebody_has_it() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    assert!(story.ledger.waits(&stamp(1)) && !story.ledger.waits(&stamp(2)));
    let transient = Stamp { durability: Durability::Transient, ..stamp(3) };
    story.confirmed(transient);
    assert!(!story.ledger.waits(&transient));
    story.delivered(one, Place::WORK_A, 1);
    assert!(!story.ledger.waits(&stamp(1)), "it may be acknowledged any moment");
}

#[test]
fn a_confirmed_message_that_never_comes_is_lost() {
    let mut story = Story::new();
    story.confirmed(stamp(1));
    story.killed();
    story.ledger.close_books(0);
    assert_eq!(story.found(), [What::Lost]);
    assert!(story.ledger.violations()[0].history.contains("confirmed"), "its history is told");
}

#[test]
fn a_message_that_was_delivered_and_not_acknowledged_is_lost_if_it_does_not_come_back() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    story.delivered(one, Place::WORK_A, 1);
    story.killed();
    story.ledger.close_books(0);
    assert_eq!(story.found(), [What::Lost]);
}

#[test]
fn an_unconfirmed_message_may_be_there_or_not() {
    let mut story = Story::new();
    for seq in [1, 2] {
        story.ledger.sent(&stamp(seq), 0, 1);
        story.ledger.uncertain(&stamp(seq), 2);
    }
    story.delivered(stamp(1), Place::WORK_A, 1);
    story.ledger.close_books(0);
    assert_eq!(story.found(), []);
}

#[test]
fn what_was_left_open_is_done_once_all_queues_were_empty() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    story.delivered(one, Place::WORK_A, 1);
    story.ledger.ack_sent(one.copy_in(Family::WORK_A), story.session, story.now);
    story.ledger.sent(&stamp(2), 0, story.now);
    story.ledger.uncertain(&stamp(2), story.now);
    story.killed();
    story.ledger.close_books(0);
    assert_eq!((story.found(), story.ledger.outstanding()), (vec![], 0));
    for stamp in [one, stamp(2)] {
        story.delivered(stamp, Place::WORK_A, 2);
        assert_eq!(story.found(), [What::Resurrected]);
    }
    assert_eq!(story.ledger.violations().len(), 2);
}

#[test]
fn one_missing_copy_of_a_fanout_is_lost() {
    let mut story = Story::new();
    let one = story.confirmed(Stamp { targets: Families::FAN, ..stamp(1) });
    for place in [Place::FAN_A, Place::FAN_C] {
        story.delivered(one, place, 1);
        story.ledger.acked(one.copy_in(place.family()), story.now);
    }
    story.ledger.close_books(0);
    assert_eq!(story.found(), [What::Lost]);
    assert!(story.ledger.violations()[0].fact.contains("fan.b"));
}

#[test]
fn a_message_that_nobody_sent_is_invented() {
    let mut story = Story::new();
    story.delivered(stamp(500), Place::WORK_A, 1);
    assert_eq!(story.found(), [What::Invented]);
}

#[test]
fn a_message_in_a_queue_that_it_was_not_sent_to_is_invented() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    story.delivered(one, Place::NATIVE, 1);
    assert_eq!(story.found(), [What::Invented]);
}

#[test]
fn a_changed_stamp_is_seen() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    story.delivered(Stamp { priority: 7, ..one }, Place::WORK_A, 1);
    assert_eq!(story.found(), [What::Altered]);
}

#[test]
fn a_message_that_comes_after_its_durable_acknowledgement_is_resurrected() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    story.delivered(one, Place::WORK_A, 1);
    story.acked(one);
    story.killed();
    story.delivered(one, Place::WORK_A, 2);
    assert_eq!(story.found(), [What::Resurrected]);
    assert!(story.ledger.violations()[0].history.contains("durable"), "its history is told");
}

#[test]
fn an_acknowledgement_without_an_answer_may_be_forgotten_by_a_kill_and_by_nothing_else() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    let copy = one.copy_in(Family::WORK_A);
    story.delivered(one, Place::WORK_A, 1);
    story.ledger.ack_sent(copy, story.session, story.now);
    story.killed();
    story.delivered(one, Place::WORK_A, 2);
    assert_eq!(story.found(), []);
    story.ledger.ack_sent(copy, story.session, story.now);
    story.delivered(one, Place::WORK_A, 3);
    assert_eq!(story.found(), [What::Doubled]);
}

#[test]
fn an_acknowledgement_may_come_too_late_for_its_lease() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    let copy = one.copy_in(Family::WORK_A);
    let leased = story.delivery(one, Place::WORK_A, 1);
    story.ledger.delivered(&Delivery { until: Some(leased.at + 500_000), ..leased });
    story.ledger.ack_sent(copy, story.session, leased.at + 499_000);
    story.delivered(one, Place::WORK_A, 2);
    assert_eq!(story.found(), []);

    let leased = story.delivery(one, Place::WORK_A, 3);
    story.ledger.returned(copy, story.session, leased.at);
    story.ledger.delivered(&Delivery { until: Some(leased.at + 5_000_000), ..leased });
    story.ledger.ack_sent(copy, story.session, leased.at);
    story.delivered(one, Place::WORK_A, 4);
    assert_eq!(story.found(), [What::Doubled], "the lease had not ended");
}

#[test]
fn a_leader_that_moved_by_itself_excuses_what_it_can_explain_since_it_was_known_last() {
    let mut story = Story::new();
    let [one, two] = [1, 2].map(|seq| story.confirmed(stamp(seq)));
    story.delivered(one, Place::WORK_A, 1);
    story.delivered(one, Place::WORK_A, 2);
    story.ledger.is_sure();
    story.delivered(two, Place::WORK_A, 1);
    story.acked(two);
    story.delivered(two, Place::WORK_A, 2);
    story.delivered(one, Place::WORK_A, 3);
    assert_eq!(story.ledger.counts()[&What::Doubled], 2);
    assert_eq!(story.ledger.was_unsure(), 1);
    assert_eq!(story.found(), [What::Resurrected, What::Doubled], "what is durable, and what was before");
    assert_eq!(story.ledger.counts()[&What::Doubled], 1);
    assert_eq!(story.ledger.violations().len(), 2);
    assert!(!story.ledger.is_current(story.session));
}

#[test]
fn a_rolled_back_message_must_not_come() {
    let mut story = Story::new();
    story.ledger.sent(&stamp(1), 0, 1);
    story.ledger.withdrawn(&stamp(1));
    story.delivered(stamp(1), Place::WORK_A, 1);
    assert_eq!(story.found(), [What::Resurrected]);
}

#[test]
fn two_consumers_do_not_hold_a_message_at_once() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    story.delivered(one, Place::WORK_A, 1);
    story.session = story.ledger.open_session(Way::Amqp);
    story.delivered(one, Place::WORK_A, 2);
    assert_eq!(story.found(), [What::Doubled]);
}

#[test]
fn a_message_comes_again_after_its_lease_its_connection_or_a_word_of_its_consumer() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    let leased = story.delivery(one, Place::WORK_A, 1);
    story.ledger.delivered(&Delivery { until: Some(leased.at + 100_000), ..leased });
    story.delivered(one, Place::WORK_A, 2);
    story.ledger.returned(one.copy_in(Family::WORK_A), story.session, story.now);
    story.delivered(one, Place::WORK_A, 3);
    story.ledger.close_session(story.session);
    story.session = story.ledger.open_session(Way::Amqp);
    story.delivered(one, Place::WORK_A, 4);
    assert_eq!(story.found(), []);
}

#[test]
fn what_an_ended_connection_still_brings_is_not_judged() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    let late = story.delivery(one, Place::WORK_A, 1);
    story.killed();
    story.delivered(one, Place::WORK_A, 1);
    assert_eq!(story.ledger.delivered(&late), Reception::Late);
    assert_eq!(story.found(), []);
}

#[test]
fn a_delivery_whose_lease_ended_before_it_was_read_is_not_judged() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    let late = story.delivery(one, Place::WORK_A, 1);
    story.delivered(one, Place::WORK_A, 2);
    story.acked(one);
    let late = Delivery { until: Some(late.at + 100_000), at: story.now, ..late };
    assert_eq!(story.ledger.delivered(&late), Reception::Late);
    assert_eq!(story.found(), []);
}

#[test]
fn attempts_count_up_within_a_life() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    story.delivered(one, Place::WORK_A, 2);
    story.ledger.returned(one.copy_in(Family::WORK_A), story.session, story.now);
    story.delivered(one, Place::WORK_A, 2);
    assert_eq!(story.found(), [What::AttemptReset]);
}

#[test]
fn a_count_that_went_on_in_the_dead_letter_queue_says_little_of_the_attempts_there() {
    let mut story = Story::new();
    let one = story.confirmed(Stamp { targets: Families::one(Family::LIMITED), ..stamp(1) });
    let copy = one.copy_in(Family::LIMITED);
    let place = Place::LIMITED_DEAD;
    let over_sqs = Delivery { attempt: Attempt::in_all(4), ..story.delivery(one, place, 1) };
    story.ledger.delivered(&over_sqs);
    story.ledger.returned(copy, story.session, story.now);
    story.delivered(one, place, 2);
    assert_eq!(story.found(), [], "the second delivery of this queue, the fifth in all");
    story.ledger.returned(copy, story.session, story.now);
    let over_sqs = Delivery { attempt: Attempt::in_all(2), ..story.delivery(one, place, 1) };
    story.ledger.delivered(&over_sqs);
    assert_eq!(story.found(), [What::AttemptReset]);
}

#[test]
fn a_kill_takes_back_an_attempt_only_if_nothing_after_it_was_confirmed() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    story.delivered(one, Place::WORK_A, 1);
    story.killed();
    story.delivered(one, Place::WORK_A, 1);
    assert_eq!(story.found(), [], "nobody waits for a lease to reach the disk");
    story.confirmed(stamp(2));
    story.killed();
    story.delivered(one, Place::WORK_A, 1);
    assert_eq!(
        story.found(),
        [What::AttemptReset],
        "what was confirmed later proves that the lease was written"
    );
}

#[test]
fn what_proves_an_attempt_may_come_after_the_next_one() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    let copy = one.copy_in(Family::WORK_A);
    story.delivered(one, Place::WORK_A, 1);
    story.ledger.returned(copy, story.session, story.now);
    let sent_at = story.tick();
    story.delivered(one, Place::WORK_A, 2);
    story.ledger.reached(story.session, sent_at);
    story.killed();
    story.delivered(one, Place::WORK_A, 2);
    assert_eq!(story.found(), [], "the second attempt was never proven");
    story.killed();
    story.delivered(one, Place::WORK_A, 1);
    assert_eq!(story.found(), [What::AttemptReset], "the first was");
}

#[test]
fn a_clean_stop_takes_back_no_attempt() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    story.delivered(one, Place::WORK_A, 1);
    story.killed();
    story.ledger.ended_cleanly();
    story.delivered(one, Place::WORK_A, 1);
    assert_eq!(story.found(), [What::AttemptReset]);
}

#[test]
fn a_delay_that_ends_too_soon_is_seen() {
    let mut story = Story::new();
    let not_before = story.now + 60_000_000;
    story.ledger.sent(&stamp(1), not_before, story.now);
    story.delivered(stamp(1), Place::WORK_A, 1);
    assert_eq!(story.found(), [What::Early]);
}

#[test]
fn a_back_off_that_ends_too_soon_is_seen() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    let copy = one.copy_in(Family::WORK_A);
    story.delivered(one, Place::WORK_A, 1);
    let deliveries = story.ledger.returned(copy, story.session, story.now);
    story.ledger.return_confirmed(copy, deliveries, story.now + 60_000_000);
    story.delivered(one, Place::WORK_A, 2);
    assert_eq!(story.found(), [What::Early]);
}

#[test]
fn messages_of_one_publisher_that_change_places_are_seen() {
    let mut story = Story::new();
    let (one, two) = (story.confirmed(ordered(1)), story.confirmed(ordered(2)));
    story.delivered(two, Place::ORDERED, 1);
    story.delivered(one, Place::ORDERED, 1);
    assert_eq!(story.found(), [What::OutOfOrder]);
    assert!(story.ledger.violations()[0].fact.contains("did not come before"), "the gap shows at once");
}

#[test]
fn a_consumer_that_does_not_read_for_longer_than_its_leases_may_miss_some() {
    for (seconds, expected) in [(1, &[What::OutOfOrder][..]), (4, &[])] {
        let mut story = Story::new();
        story.confirmed(ordered(1));
        let two = story.confirmed(ordered(2));
        let delivery = story.delivery(two, Place::ORDERED, 1);
        let at = 2_000_000 + seconds * 1_000_000;
        story.ledger.delivered(&Delivery { at, until: Some(at + 1_000_000), ..delivery });
        assert_eq!(story.found(), expected, "{seconds} s after the first was sent");
    }
}

#[test]
fn a_message_that_comes_again_may_stand_anywhere() {
    let mut story = Story::new();
    let (one, two) = (story.confirmed(ordered(1)), story.confirmed(ordered(2)));
    story.delivered(one, Place::ORDERED, 1);
    story.delivered(two, Place::ORDERED, 1);
    story.ledger.returned(one.copy_in(Family::ORDERED), story.session, story.now);
    story.delivered(one, Place::ORDERED, 2);
    assert_eq!(story.found(), []);
}

#[test]
fn a_transient_message_vanishes_with_a_kill_and_never_otherwise() {
    let mut story = Story::new();
    story.confirmed(transient(1));
    story.killed();
    let two = story.confirmed(ordered(2));
    story.delivered(two, Place::ORDERED, 1);
    assert_eq!(story.found(), []);

    let mut story = Story::new();
    story.confirmed(transient(1));
    let two = story.confirmed(ordered(2));
    story.delivered(two, Place::ORDERED, 1);
    assert_eq!(story.found(), [What::OutOfOrder]);

    let mut story = Story::new();
    story.confirmed(transient(1));
    story.ledger.close_books(0);
    assert_eq!(story.found(), [What::Lost]);
}

#[test]
fn a_dead_letter_does_not_come_back_to_life() {
    let mut story = Story::new();
    let one = story.confirmed(Stamp { targets: Families::one(Family::LIMITED), ..stamp(1) });
    let copy = one.copy_in(Family::LIMITED);
    story.delivered(one, Place::LIMITED, 3);
    story.ledger.returned(copy, story.session, story.now);
    story.delivered(one, Place::LIMITED_DEAD, 1);
    story.ledger.returned(copy, story.session, story.now);
    story.delivered(one, Place::LIMITED, 4);
    assert_eq!(story.found(), [What::DeadLetter]);
}

#[test]
fn a_message_that_dies_before_its_last_attempt_is_seen() {
    let mut story = Story::new();
    let one = story.confirmed(Stamp { targets: Families::one(Family::LIMITED), ..stamp(1) });
    let delivery = story.delivery(one, Place::LIMITED_DEAD, 1);
    story.ledger.delivered(&Delivery { cause: Some(Cause::Failed { attempts: Some(2) }), ..delivery });
    assert_eq!(story.found(), [What::DeadLetter]);
}

#[test]
fn a_message_that_nobody_rejected_did_not_die_of_that() {
    let mut story = Story::new();
    for seq in [1, 2] {
        let one = story.confirmed(Stamp { targets: Families::one(Family::REJECTS), ..stamp(seq) });
        story.delivered(one, Place::REJECTS, 1);
        if seq == 1 {
            story.ledger.rejected(one.copy_in(Family::REJECTS), story.session, story.now);
        } else {
            story.ledger.returned(one.copy_in(Family::REJECTS), story.session, story.now);
        }
        let delivery = story.delivery(one, Place::REJECTS_DEAD, 1);
        story.ledger.delivered(&Delivery { cause: Some(Cause::Rejected), ..delivery });
        let expected: &[What] = if seq == 1 { &[] } else { &[What::DeadLetter] };
        assert_eq!(story.found(), expected);
    }
}

#[test]
fn nothing_dies_of_age_where_nothing_ages() {
    let mut story = Story::new();
    let one = story.confirmed(Stamp { targets: Families::one(Family::REJECTS), ..stamp(1) });
    let delivery = story.delivery(one, Place::REJECTS_DEAD, 1);
    story.ledger.delivered(&Delivery { cause: Some(Cause::Expired), ..delivery });
    assert_eq!(story.found(), [What::DeadLetter]);
}

#[test]
fn who_was_late_with_sqs_may_have_deleted_what_another_holds() {
    for is_late in [false, true] {
        let mut story = Story::new();
        let message = story.confirmed(ordered(1));
        let copy = message.copy_in(Family::ORDERED);
        let early = story.ledger.open_session(Way::Sqs);
        let delivery = Delivery { session: early, ..story.delivery(message, Place::ORDERED, 1) };
        story.ledger.delivered(&delivery);
        let at = story.tick();
        story.ledger.returned(copy, early, at);
        if !is_late {
            story.ledger.answered_in_time(copy);
        }
        story.delivered(message, Place::ORDERED, 2);
        let at = story.tick();
        story.ledger.returned(copy, story.session, at);
        story.ledger.close_books(0);
        assert_eq!(story.found(), if is_late { vec![] } else { vec![What::Lost] });
    }
}

#[test]
fn who_was_late_with_sqs_may_have_taken_it_from_one_who_has_not_read_of_it_yet() {
    for (is_late, is_done) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut story = Story::new();
        let message = story.confirmed(stamp(1));
        let copy = message.copy_in(Family::WORK_A);
        let early = story.ledger.open_session(Way::Sqs);
        let delivery = Delivery { session: early, ..story.delivery(message, Place::WORK_A, 1) };
        story.ledger.delivered(&delivery);
        let at = story.tick();
        story.ledger.returned(copy, early, at);
        if !is_late {
            story.ledger.answered_in_time(copy);
        }
        story.delivered(message, Place::WORK_A, 3);
        let at = story.tick();
        story.ledger.returned(copy, story.session, at);
        if is_done {
            story.acked(message);
        }
        story.delivered(message, Place::WORK_A, 2);
        let wrong = if is_done { What::Resurrected } else { What::AttemptReset };
        assert_eq!(story.found(), if is_late { vec![] } else { vec![wrong] });
        if is_done && is_late {
            story.killed();
            story.delivered(message, Place::WORK_A, 2);
            assert_eq!(story.found(), [What::Resurrected], "whoever had not read of it is gone");
        }
    }
}

#[test]
fn who_was_late_with_sqs_may_have_made_it_a_dead_letter_before_another_has_read_of_it() {
    for is_late in [false, true] {
        let mut story = Story::new();
        let message = story.confirmed(Stamp { targets: Families::one(Family::REJECTS), ..stamp(1) });
        let copy = message.copy_in(Family::REJECTS);
        let early = story.ledger.open_session(Way::Sqs);
        let delivery = Delivery { session: early, ..story.delivery(message, Place::REJECTS, 2) };
        story.ledger.delivered(&delivery);
        let at = story.tick();
        story.ledger.returned(copy, early, at);
        if !is_late {
            story.ledger.answered_in_time(copy);
        }
        story.delivered(message, Place::REJECTS_DEAD, 1);
        let at = story.tick();
        story.ledger.returned(copy, story.session, at);
        story.delivered(message, Place::REJECTS, 3);
        assert_eq!(story.found(), if is_late { vec![] } else { vec![What::DeadLetter] });
    }
}
