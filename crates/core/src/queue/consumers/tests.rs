//! Who is served, and who is let in.

use super::*;
use crate::queue::allowance::Outgoing;
use crate::queue::{InFlightLimit, LimitReached};

impl Consumers {
    fn next(&mut self) -> Option<(ConsumerId, Terms)> {
        self.next_for(0, 0)
    }
}

#[test]
fn a_consumer_without_room_is_passed_over_until_it_has_passed_on_what_it_holds() {
    let mut consumers = Consumers::default();
    let allowance = Arc::new(Allowance::new(100, Arc::new(Outgoing::new(1000))));
    for id in [1, 2] {
        consumers.add(ConsumerId(id), Terms::default(), 1000, None);
    }
    consumers.set_allowance(ConsumerId(1), Arc::clone(&allowance));
    let mut order = || consumers.next_for(60, 0).map(|(id, _)| id.0);
    assert_eq!([order(), order(), order(), order(), order()], [Some(1), Some(2), Some(1), Some(2), Some(2)]);
    assert!(allowance.passed_on(120), "it was passed over");
    consumers.add_credit(ConsumerId(1), 0);
    assert_eq!(consumers.next_for(60, 0).map(|(id, _)| id.0), Some(2));
    assert_eq!(consumers.next_for(60, 0).map(|(id, _)| id.0), Some(1));
}

#[test]
fn consumers_with_credit_are_served_in_turn() {
    let mut consumers = Consumers::default();
    for (id, credit) in [(1, 2), (2, 0), (3, 3)] {
        consumers.add(ConsumerId(id), Terms::default(), credit, None);
    }
    let order: Vec<u64> = std::iter::from_fn(|| consumers.next()).map(|(id, _)| id.0).collect();
    assert_eq!(order, [1, 3, 1, 3, 3]);
    assert!(!consumers.anyone_waiting());
    consumers.add_credit(ConsumerId(2), 1);
    assert_eq!(consumers.next().map(|(id, _)| id), Some(ConsumerId(2)));
}

#[test]
fn a_consumer_that_left_is_passed_over() {
    let mut consumers = Consumers::default();
    consumers.add(ConsumerId(1), Terms::default(), 5, None);
    consumers.add(ConsumerId(2), Terms::default(), 1, None);
    consumers.remove(ConsumerId(1));
    assert!(consumers.anyone_waiting());
    assert_eq!(consumers.next().map(|(id, _)| id), Some(ConsumerId(2)));
    assert_eq!(consumers.next(), None);
    assert!(!consumers.anyone_waiting());
}

#[test]
fn credit_can_be_taken_back() {
    let mut consumers = Consumers::default();
    consumers.add(ConsumerId(1), Terms::default(), 5, None);
    consumers.set_credit(ConsumerId(1), 0);
    assert!(!consumers.anyone_waiting());
    assert_eq!(consumers.next(), None);
    consumers.set_credit(ConsumerId(1), 1);
    assert_eq!(consumers.next().map(|(id, _)| id), Some(ConsumerId(1)));
    assert_eq!(consumers.next(), None);
}

#[test]
fn consumers_of_higher_priority_go_first_while_they_have_credit() {
    let mut consumers = Consumers::default();
    for (id, priority, credit) in [(1, 0, 2), (2, 9, 2), (3, -5, 1)] {
        consumers.add(ConsumerId(id), Terms { priority, ..Terms::default() }, credit, None);
    }
    let order: Vec<u64> = std::iter::from_fn(|| consumers.next()).map(|(id, _)| id.0).collect();
    assert_eq!(order, [2, 2, 1, 1, 3]);
}

#[test]
fn a_single_active_consumer_gets_everything_until_it_leaves() {
    let mut consumers = Consumers::default();
    consumers.set_single_active(true);
    for id in [1, 2, 3] {
        consumers.add(ConsumerId(id), Terms::default(), 2, None);
    }
    assert_eq!(consumers.next().map(|(id, _)| id.0), Some(1));
    assert_eq!(consumers.next().map(|(id, _)| id.0), Some(1));
    assert_eq!(consumers.next(), None);
    assert!(!consumers.anyone_waiting());
    consumers.remove(ConsumerId(1));
    assert!(consumers.anyone_waiting());
    assert_eq!(consumers.next().map(|(id, _)| id.0), Some(2));
}

#[test]
fn an_exclusive_consumer_is_alone_but_for_pulls() {
    let mut consumers = Consumers::default();
    let join = |consumers: &mut Consumers, id, access| {
        consumers.check_access(access, None)?;
        consumers.add(ConsumerId(id), Terms { access, ..Terms::default() }, 1, None);
        Ok::<_, ConsumerRefusal>(())
    };
    join(&mut consumers, 1, Access::Pull).unwrap();
    join(&mut consumers, 2, Access::Exclusive).unwrap();
    join(&mut consumers, 3, Access::Pull).unwrap();
    for access in [Access::Shared, Access::Exclusive] {
        assert_eq!(join(&mut consumers, 4, access), Err(ConsumerRefusal::InExclusiveUse));
    }
    consumers.remove(ConsumerId(1));
    assert_eq!(join(&mut consumers, 4, Access::Shared), Err(ConsumerRefusal::InExclusiveUse));
    consumers.remove(ConsumerId(2));
    join(&mut consumers, 5, Access::Shared).unwrap();
    join(&mut consumers, 6, Access::Shared).unwrap();
    assert_eq!(join(&mut consumers, 7, Access::Exclusive), Err(ConsumerRefusal::InExclusiveUse));
    consumers.remove(ConsumerId(5));
    consumers.remove(ConsumerId(6));
    join(&mut consumers, 8, Access::Exclusive).unwrap();
}

#[test]
fn an_exclusive_consumer_may_be_replaced_by_its_successor_alone() {
    let mut consumers = Consumers::default();
    let exclusive = Terms { access: Access::Exclusive, ..Terms::default() };
    consumers.add(ConsumerId(1), exclusive, 1, None);
    assert_eq!(
        consumers.check_access(Access::Exclusive, Some(ConsumerId(9))),
        Err(ConsumerRefusal::InExclusiveUse)
    );
    assert_eq!(consumers.check_access(Access::Exclusive, Some(ConsumerId(1))), Ok(()));
    consumers.add(ConsumerId(2), exclusive, 1, None);
    assert_eq!(consumers.check_access(Access::Shared, None), Err(ConsumerRefusal::InExclusiveUse));
    consumers.remove(ConsumerId(1));
    assert_eq!(
        consumers.check_access(Access::Shared, None),
        Err(ConsumerRefusal::InExclusiveUse),
        "the second is there"
    );
    consumers.remove(ConsumerId(2));
    assert_eq!(consumers.check_access(Access::Shared, None), Ok(()));
}

#[test]
fn none_is_exclusive_where_one_of_several_is_active() {
    let mut consumers = Consumers::default();
    consumers.set_single_active(true);
    assert_eq!(consumers.check_access(Access::Exclusive, None), Err(ConsumerRefusal::InExclusiveUse));
    assert_eq!(consumers.check_access(Access::Shared, None), Ok(()));
}

#[test]
fn a_consumer_gets_nothing_beyond_its_limit_of_messages_in_flight() {
    let limit = InFlightLimit { max: 100, when_reached: LimitReached::Wait };
    let bound = Terms { in_flight: Some(limit), ..Terms::default() };
    let mut consumers = Consumers::default();
    consumers.add(ConsumerId(1), bound, 1000, None);
    let turn = |consumers: &mut Consumers, in_flight| {
        consumers.next_turn(1000, 0, 10_000, in_flight).map(|turn| (turn.consumer.0, turn.count))
    };
    assert_eq!(turn(&mut consumers, 100), None);
    assert_eq!(turn(&mut consumers, 97), Some((1, 3)), "alone, it takes all it may");
    assert!(!consumers.take_one_more(ConsumerId(1), 0, 100) && consumers.take_one_more(ConsumerId(1), 0, 99));
    consumers.add(ConsumerId(2), Terms::default(), 1000, None);
    assert_eq!(turn(&mut consumers, 98), Some((1, 2)));
    assert_eq!(turn(&mut consumers, 100), Some((2, TURN_MAX)), "the other is not bound");
    assert_eq!(turn(&mut consumers, 100), Some((2, TURN_MAX)), "and is served again and again");
    assert_eq!(turn(&mut consumers, 99), Some((1, 1)), "the first one has kept its turn");
}

#[test]
fn a_consumer_is_refused_at_its_limit_if_it_says_so() {
    let terms =
        |when_reached| Terms { in_flight: Some(InFlightLimit { max: 3, when_reached }), ..Terms::default() };
    let refused = Err(ConsumerRefusal::TooManyInFlight { max: 3 });
    assert_eq!(terms(LimitReached::Refuse).check_in_flight(3), refused);
    assert_eq!(terms(LimitReached::Refuse).check_in_flight(2), Ok(()));
    assert_eq!(terms(LimitReached::Wait).check_in_flight(3), Ok(()));
    assert_eq!(Terms::default().check_in_flight(3), Ok(()));
}

#[test]
fn shared_credit_bounds_consumers_together() {
    let mut consumers = Consumers::default();
    let shared = Arc::new(SharedCredit::new(3));
    for id in [1, 2] {
        consumers.add(ConsumerId(id), Terms::default(), 100, Some(Arc::clone(&shared)));
    }
    let order: Vec<u64> = std::iter::from_fn(|| consumers.next()).map(|(id, _)| id.0).collect();
    assert_eq!(order, [1, 2, 1]);
    shared.add(1);
    consumers.add_credit(ConsumerId(2), 0);
    assert_eq!(consumers.next().map(|(id, _)| id.0), Some(2));
    assert_eq!(consumers.next(), None);
}

#[test]
fn a_consumer_without_acknowledgements_waits_for_shared_credit_and_uses_none() {
    let mut consumers = Consumers::default();
    let shared = Arc::new(SharedCredit::new(1));
    let automatic = Terms { settle: SettleMode::Automatic, ..Terms::default() };
    consumers.add(ConsumerId(1), automatic, 100, None);
    consumers.heed(ConsumerId(1), Arc::clone(&shared));
    assert_eq!(consumers.next_turn(10, 0, 0, 0).map(|turn| (turn.consumer.0, turn.count)), Some((1, 10)));
    consumers.add(ConsumerId(2), Terms::default(), 100, Some(Arc::clone(&shared)));
    let order: Vec<u64> = std::iter::from_fn(|| consumers.next()).take(4).map(|(id, _)| id.0).collect();
    assert_eq!(order, [1, 2], "the second took all there was");
    consumers.give_back(ConsumerId(1), 1);
    assert_eq!(consumers.next(), None, "what it never took it does not give back");
    shared.add(1);
    consumers.add_credit(ConsumerId(1), 0);
    assert_eq!(consumers.next().map(|(id, _)| id.0), Some(1));
}

#[test]
fn shared_credit_that_is_in_use_can_be_taken_away() {
    let mut consumers = Consumers::default();
    let shared = Arc::new(SharedCredit::new(3));
    consumers.add(ConsumerId(1), Terms::default(), 100, Some(Arc::clone(&shared)));
    assert!(consumers.next().is_some() && consumers.next().is_some());
    shared.remove(2);
    assert_eq!(consumers.next(), None, "two are held, and one is allowed");
    for (returned, more) in [(1, false), (1, true)] {
        shared.add(returned);
        consumers.add_credit(ConsumerId(1), 0);
        assert_eq!(consumers.next().is_some(), more);
    }
}

#[test]
fn turns_are_long_where_much_waits_and_short_where_little_does() {
    let mut consumers = Consumers::default();
    for id in [1, 2] {
        consumers.add(ConsumerId(id), Terms::default(), 1000, None);
    }
    let turn = |consumers: &mut Consumers, waiting| {
        consumers.next_turn(1000, 0, waiting, 0).map(|turn| (turn.consumer.0, turn.count))
    };
    assert_eq!(turn(&mut consumers, 10_000), Some((1, TURN_MAX)));
    assert_eq!(turn(&mut consumers, 10_000), Some((2, TURN_MAX)));
    assert_eq!(turn(&mut consumers, 255), Some((1, 1)));
    assert_eq!(turn(&mut consumers, 3), Some((2, 1)));
    let mut left = 0;
    while let Some((_, count)) = turn(&mut consumers, 10_000) {
        left += count;
    }
    assert_eq!(left, 2000 - 2 * TURN_MAX - 2, "credit is used up, and no more than that");
}
