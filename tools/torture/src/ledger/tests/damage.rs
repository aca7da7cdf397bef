//! What damage excuses, and what it does not.

use super::*;

/// Messages that were confirmed before the broker was ended.
fn waiting(messages: &[Stamp]) -> Story {
    let mut story = Story::new();
    for message in messages {
        story.confirmed(*message);
    }
    story.killed();
    story
}

#[test]
fn a_message_on_a_damaged_disk_may_be_lost_if_the_broker_says_so() {
    for (lost, reported, violations) in [(1, 1, 0), (2, 2, 0), (2, 1, 1), (1, 0, 1)] {
        let messages: Vec<Stamp> = (1..=lost).map(stamp).collect();
        let mut story = waiting(&messages);
        story.ledger.struck(&messages, None);
        story.ledger.close_books(reported);
        assert_eq!(story.ledger.violations().len(), violations, "{lost} lost, {reported} reported");
        assert_eq!(story.ledger.totals().lost_to_damage, lost.min(reported));
        // The next time it must be told again.
        story.confirmed(stamp(9));
        story.ledger.close_books(0);
        assert_eq!(story.ledger.violations().len(), violations + 1);
    }
}

#[test]
fn a_message_that_was_not_hit_may_not_be_lost_whatever_is_reported() {
    let mut story = waiting(&[stamp(1), stamp(2)]);
    story.ledger.struck(&[stamp(1)], Some(&stamp(1)));
    story.delivered(stamp(1), Place::WORK_A, 1);
    story.acked(stamp(1));
    story.ledger.close_books(1);
    assert_eq!(story.found(), [What::Lost], "the second is gone, and the first was hit");
    assert_eq!(story.ledger.totals().lost_to_damage, 0);
}

#[test]
fn no_more_may_be_lost_to_damage_than_was_hit() {
    for (reported, found) in [(2, vec![]), (3, vec![What::OverReported])] {
        let mut story = waiting(&[stamp(1), stamp(2)]);
        story.ledger.struck(&[], None);
        // The same twice, as where it was copied from and to.
        story.ledger.struck(&[stamp(1), stamp(2)], None);
        story.ledger.struck(&[stamp(2)], None);
        story.ledger.close_books(reported);
        assert_eq!(story.found(), found);
    }
    let mut story = waiting(&[stamp(1)]);
    story.ledger.struck(&[stamp(1)], None);
    story.ledger.close_books(1);
    story.ledger.close_books(1);
    assert_eq!(story.found(), [What::OverReported], "what was hit counts once");
}

#[test]
fn what_was_done_when_it_was_hit_cannot_be_lost() {
    let mut story = Story::new();
    let one = story.confirmed(stamp(1));
    story.delivered(one, Place::WORK_A, 1);
    story.acked(one);
    story.killed();
    story.ledger.struck(&[one], None);
    story.ledger.close_books(1);
    assert_eq!(story.found(), [What::OverReported]);
}

#[test]
fn others_do_not_wait_for_what_is_lost_to_damage() {
    let mut story = waiting(&[ordered(1), ordered(2)]);
    story.ledger.struck(&[ordered(1)], Some(&ordered(1)));
    story.delivered(ordered(2), Place::ORDERED, 1);
    story.acked(ordered(2));
    story.ledger.close_books(1);
    assert_eq!(story.found(), []);
    assert_eq!((story.ledger.totals().lost_to_damage, story.ledger.totals().excused), (1, 1));
}

#[test]
fn damage_does_not_excuse_that_others_change_places() {
    let mut story = waiting(&[ordered(1), ordered(2), ordered(3), stamp(4)]);
    story.ledger.struck(&[ordered(1), stamp(4)], Some(&stamp(4)));
    for message in [ordered(3), ordered(2)] {
        story.delivered(message, Place::ORDERED, 1);
        story.acked(message);
    }
    story.ledger.close_books(2);
    assert_eq!(story.found(), [What::OutOfOrder], "the second came after the third");
    assert!(story.ledger.violations().iter().all(|told| told.fact.contains("message 2 ")));
    assert_eq!(story.ledger.totals().excused, 1, "that the third did not wait for the first");
}

#[test]
fn what_was_hit_and_came_late_was_not_lost() {
    let mut story = waiting(&[ordered(1), ordered(2), stamp(3)]);
    story.ledger.struck(&[ordered(1), stamp(3)], None);
    for message in [ordered(2), ordered(1)] {
        story.delivered(message, Place::ORDERED, 1);
        story.acked(message);
    }
    story.ledger.close_books(1);
    assert_eq!(story.found(), [What::OutOfOrder]);
    assert_eq!((story.ledger.totals().lost_to_damage, story.ledger.totals().excused), (1, 0));
}

#[test]
fn priorities_and_places_are_kept_on_a_damaged_disk() {
    for what in [What::Priority, What::Misplaced] {
        let mut story = waiting(&[stamp(1), stamp(2)]);
        story.ledger.struck(&[stamp(1)], None);
        story.delivered(stamp(2), Place::WORK_A, 1);
        story.ledger.tell(what, "it stands wrong".to_owned(), stamp(2).copy_in(Family::WORK_A));
        story.acked(stamp(2));
        story.ledger.close_books(1);
        assert_eq!(story.found(), [what]);
    }
}

#[test]
fn damage_that_never_hits_a_message_makes_a_run_worthless() {
    let vain = || vec![What::NotExercised];
    for (aimed, others, reported, found) in
        [(0, 9, 0, vec![]), (0, 10, 0, vain()), (2, 7, 0, vec![]), (3, 0, 0, vain()), (3, 10, 1, vec![])]
    {
        let mut story = Story::new();
        let one = story.confirmed(stamp(1));
        story.killed();
        (0..aimed).for_each(|_| story.ledger.struck(&[one], Some(&one)));
        (0..others).for_each(|_| story.ledger.struck(&[], None));
        if reported == 0 {
            story.delivered(one, Place::WORK_A, 1);
            story.acked(one);
        }
        story.ledger.close_books(reported);
        story.ledger.end_run();
        assert_eq!(story.found(), found, "{aimed} aimed strikes, {others} others, {reported} reported");
    }
}
