//! Flow control with a simulated clock.

use std::collections::VecDeque;

use super::*;

mod many;

const DEBT: i64 = (SLACK_MESSAGES / DEBT_PART) as i64;

/// A queue with too much in it, and the time.
struct Rig {
    flow: Flow,
    now: Instant,
    pool: &'static Pool,
}

impl Rig {
    fn new() -> Self {
        LazyLock::force(&EPOCH);
        Self { flow: Flow::default(), now: Instant::now(), pool: Box::leak(Box::default()) }
    }

    /// As if this were the only queue.
    fn around(&self) -> Surroundings<'static> {
        Surroundings { delivered: self.flow.delivered, pool: self.pool, slack: Slack::at(0, 1) }
    }

    fn pushes(&mut self, count: u64) -> bool {
        self.flow.pushed(self.now, self.around(), count, Pacing::Paced)
    }

    fn pushes_unpaced(&mut self, count: u64) -> bool {
        self.flow.pushed(self.now, self.around(), count, Pacing::Unpaced)
    }

    /// Gets publishers paced, by consumers that take so many a second.
    fn until_paced(&mut self, per_second: u64) {
        self.until_watched(per_second / 2);
        self.takes(per_second, WATCH);
        assert!(matches!(self.steps(Duration::ZERO), Step::WaitUntil(_)));
        assert!(matches!(self.flow.phase, Some(FlowPhase::Paced { .. })));
    }

    /// For a second, consumers take so many, and as many come from publishers that do not wait as is said; others
    /// push what they may. Answers how many these were, and how many were taken.
    fn second(&mut self, per_second: u64, unpaced: u64) -> (u64, u64) {
        let begins = self.flow.delivered;
        let (mut paced, mut waits) = (0, false);
        for _ in 0..500 {
            self.takes(per_second, Duration::from_millis(2));
            self.pushes_unpaced(unpaced / 500);
            waits = waits && matches!(self.steps(Duration::ZERO), Step::WaitUntil(_));
            while !waits && paced < per_second * 10 {
                paced += 500;
                waits = self.pushes(500);
            }
            assert!(matches!(self.flow.phase, Some(FlowPhase::Paced { .. })));
        }
        (paced, self.flow.delivered - begins)
    }

    fn steps(&mut self, owed: Duration) -> Step {
        self.flow.step(self.now, self.around(), |_| owed)
    }

    /// Consumers take so many a second, for so long.
    fn takes(&mut self, per_second: u64, time: Duration) {
        self.now += time;
        self.flow.delivered(Slack::at(0, 1), per_second * time.as_millis() as u64 / 1000);
    }

    /// Pushes until publishers are stopped, with consumers that take so many meanwhile.
    fn until_watched(&mut self, per_second: u64) {
        for _ in 0..1000 {
            if self.pushes(1000) {
                assert!(matches!(self.steps(Duration::ZERO), Step::WaitUntil(_)));
                return;
            }
            self.takes(per_second, Duration::from_millis(10));
        }
        panic!("nobody is watched");
    }
}

#[test]
fn a_consumer_that_is_slow_by_itself_slows_nobody() {
    let mut rig = Rig::new();
    let mut waited = Duration::ZERO;
    let began = rig.now;
    for _ in 0..20 {
        rig.until_watched(1_000);
        let stopped = rig.now;
        while let Step::WaitUntil(until) = rig.steps(Duration::from_micros(100)) {
            rig.takes(1_000, until - rig.now);
        }
        waited += rig.now - stopped;
    }
    let all = rig.now - began;
    assert!(waited * 50 < all, "publishers waited for {waited:?} of {all:?}");
}

#[test]
fn consumers_that_get_more_without_publishers_are_held_up_by_them() {
    let mut rig = Rig::new();
    rig.until_watched(30_000);
    rig.takes(60_000, WATCH);
    assert!(matches!(rig.steps(Duration::ZERO), Step::WaitUntil(_)), "publishers are paced from now on");
    let begins = rig.flow.delivered;
    let mut pushed = 0;
    for _ in 0..200 {
        pushed += 500;
        let pauses = rig.pushes(500);
        while pauses && matches!(rig.steps(Duration::ZERO), Step::WaitUntil(_)) {
            rig.takes(60_000, Duration::from_millis(5));
        }
        assert!(matches!(rig.flow.phase, Some(FlowPhase::Paced { .. })));
    }
    let taken = rig.flow.delivered - begins;
    let beyond = DEBT as u64 + 1000;
    assert!(pushed <= taken + beyond, "{pushed} pushed, {taken} taken");
    assert!(pushed >= taken / 2, "{pushed} pushed, {taken} taken");
}

#[test]
fn consumers_of_one_queue_among_hundreds_are_held_up_too() {
    let mut rig = Rig::new();
    // They would count as slow by themselves if they got as much with publishers as without.
    rig.until_watched(WORKING_PER_SECOND / 40);
    rig.takes(WORKING_PER_SECOND / 2, WATCH);
    assert!(matches!(rig.steps(Duration::ZERO), Step::WaitUntil(_)));
    assert!(matches!(rig.flow.phase, Some(FlowPhase::Paced { .. })));
}

#[test]
fn the_fuller_memory_is_the_less_may_be_ready() {
    let all = Slack::at(24, 100);
    assert_eq!((all.messages, all.bytes), (SLACK_MESSAGES, SLACK_BYTES));
    assert_eq!(Slack::at(25, 100).messages, SLACK_MESSAGES / 4);
    assert_eq!(Slack::at(50, 100).bytes, SLACK_BYTES / 16);
    assert_eq!(Slack::at(u64::MAX, 0).messages, SLACK_MESSAGES / 64);
}

#[test]
fn messages_that_lie_ready_for_a_consumer_are_the_brokers_fault() {
    let mut rig = Rig::new();
    rig.until_watched(1_000);
    rig.takes(1_000, WATCH);
    assert!(matches!(rig.steps(WATCH / 2), Step::WaitUntil(_)));
    assert!(matches!(rig.flow.phase, Some(FlowPhase::Paced { .. })));
}

#[test]
fn consumers_that_stop_set_publishers_free() {
    let mut rig = Rig::new();
    rig.until_watched(1_000_000);
    rig.takes(1_000_000, WATCH);
    assert!(matches!(rig.steps(Duration::ZERO), Step::WaitUntil(_)));
    while rig.flow.allowance > -DEBT {
        rig.pushes(1000);
    }
    let mut waited = Duration::ZERO;
    while let Step::WaitUntil(until) = rig.steps(Duration::ZERO) {
        waited += until - rig.now;
        rig.now = until;
    }
    assert!(waited <= PACED_WINDOW * 2, "{waited:?}");
    assert!(!rig.pushes(1000));
}

#[test]
fn publishers_that_do_not_wait_leave_half_to_those_that_do() {
    let mut rig = Rig::new();
    rig.until_paced(100_000);
    // Three times as much as consumers take comes from those that do not wait.
    let (paced, taken) = rig.second(100_000, 300_000);
    assert!(paced > taken * 3 / 8, "{paced} pushed, {taken} taken");
    assert!(paced < taken / 2 + 2 * DEBT as u64, "{paced} pushed, {taken} taken");
}

#[test]
fn publishers_that_do_not_wait_count() {
    let mut rig = Rig::new();
    rig.until_paced(100_000);
    let (paced, taken) = rig.second(100_000, 20_000);
    assert!(paced + 20_000 < taken + DEBT as u64 + 1_000, "{paced} pushed, {taken} taken");
    assert!(paced + 20_000 > taken * 3 / 4, "{paced} pushed, {taken} taken");
}

#[test]
fn publishers_that_do_not_wait_do_not_have_others_stopped_for_longer() {
    let mut rig = Rig::new();
    rig.until_watched(1_000);
    for _ in 0..5 {
        rig.takes(1_000, WATCH / 5);
        rig.pushes_unpaced(10);
    }
    assert_eq!(rig.steps(Duration::ZERO), Step::Push, "the watch is over");
}

#[test]
fn a_hundred_paced_publishers_share_what_is_handed_out() {
    const PER_SECOND: u64 = 2_000_000;
    let mut rig = Rig::new();
    rig.until_paced(PER_SECOND);
    let (begins, mut pushed) = (rig.flow.delivered, [0; 100]);
    // The gate wakes them in the order in which they came.
    let mut waiting: VecDeque<usize> = (0..pushed.len()).collect();
    loop {
        rig.takes(PER_SECOND, Duration::from_millis(1));
        match rig.steps(Duration::ZERO) {
            Step::WaitUntil(_) => {}
            Step::PushAlone => {
                let publisher = waiting.pop_front().unwrap();
                waiting.push_back(publisher);
                pushed[publisher] += 500;
                while !rig.pushes(500) {
                    pushed[publisher] += 500;
                }
            }
            // It is tried out again.
            Step::Push => break,
        }
    }
    let (taken, all) = (rig.flow.delivered - begins, pushed.iter().sum::<u64>());
    assert!(all <= taken && all > taken * 3 / 4, "{all} pushed, {taken} taken");
    let (least, most) = (*pushed.iter().min().unwrap(), *pushed.iter().max().unwrap());
    let turn = DEBT as u64 + 4_000;
    assert!(least > 0 && most - least <= turn, "one pushed {least}, another {most}");
}

#[test]
fn watching_begins_when_the_last_publisher_has_stopped() {
    let mut rig = Rig::new();
    rig.until_watched(1_000);
    rig.takes(1_000, WATCH / 2);
    assert!(rig.pushes(1000), "it had read that before");
    rig.takes(1_000, WATCH / 2);
    assert!(matches!(rig.steps(Duration::ZERO), Step::WaitUntil(_)), "half of the watch is left");
}
