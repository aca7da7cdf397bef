//! Hundreds of queues on a simulated machine with a simulated clock: its time goes to publishers and consumers in turn,
//! and a publisher's turn moves six times as much as a consumer's.

use super::*;

/// Work that the machine does in a millisecond.
const WORK: u64 = 2_000;
/// What a publisher pushes in its turn, one unit of work each.
const PUSH: u64 = 600;
/// What a consumer takes in its turn, two units of work each.
const TAKE: u64 = 100;
/// Memory of a message, and of all that there may be.
const MESSAGE_BYTES: u64 = 100;
const MEMORY_BYTES: u64 = 192 << 20;
const TICK: Duration = Duration::from_millis(1);

/// What limits the consumer of a queue.
#[derive(Clone, Copy, PartialEq)]
enum Limit {
    /// Its turns.
    Machine,
    /// It takes one message in so many milliseconds, whatever the machine does.
    Itself(u64),
}

struct Sim {
    flow: Flow,
    limit: Limit,
    ready: u64,
    /// Until when its publisher waits.
    waits: Option<Instant>,
    pushed: u64,
    taken: u64,
    /// For how long its publisher has waited.
    waited: Duration,
}

struct World {
    queues: Vec<Sim>,
    pool: &'static Pool,
    now: Instant,
    delivered: u64,
    turn: usize,
    most_bytes: u64,
}

impl World {
    fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        let sim = |limit| Sim {
            flow: Flow::default(),
            limit,
            ready: 0,
            waits: None,
            pushed: 0,
            taken: 0,
            waited: Duration::ZERO,
        };
        LazyLock::force(&EPOCH);
        Self {
            queues: limits.into_iter().map(sim).collect(),
            pool: Box::leak(Box::default()),
            now: Instant::now(),
            delivered: 0,
            turn: 0,
            most_bytes: 0,
        }
    }

    fn around(&self) -> Surroundings<'static> {
        let bytes = self.queues.iter().map(|sim| sim.ready).sum::<u64>() * MESSAGE_BYTES;
        Surroundings { delivered: self.delivered, pool: self.pool, slack: Slack::at(bytes, MEMORY_BYTES) }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let began = self.now;
        while self.now < end {
            self.now += TICK;
            let bytes = self.queues.iter().map(|sim| sim.ready).sum::<u64>() * MESSAGE_BYTES;
            self.most_bytes = self.most_bytes.max(bytes);
            let millis = (self.now - began).as_millis() as u64;
            for at in 0..self.queues.len() {
                if matches!(self.queues[at].limit, Limit::Itself(every) if millis.is_multiple_of(every)) {
                    self.take(at, 1);
                }
                if self.queues[at].waits.is_some() {
                    self.queues[at].waited += TICK;
                }
            }
            let (mut work, mut idle) = (0, 0);
            while work < WORK && idle < 2 * self.queues.len() {
                let done = self.take_turn();
                idle = if done == 0 { idle + 1 } else { 0 };
                work += done;
            }
        }
    }

    /// The next of all publishers and consumers has its turn.
    fn take_turn(&mut self) -> u64 {
        self.turn = (self.turn + 1) % (2 * self.queues.len());
        let at = self.turn / 2;
        if self.turn.is_multiple_of(2) { self.publish(at) } else { self.consume(at) }
    }

    fn publish(&mut self, at: usize) -> u64 {
        let (now, around) = (self.now, self.around());
        let sim = &mut self.queues[at];
        if let Some(until) = sim.waits {
            if now < until && !sim.flow.lets_push() && sim.ready > around.slack.messages {
                return 0;
            }
            if sim.ready <= around.slack.messages {
                sim.flow.settle_up();
            } else if let Step::WaitUntil(until) = sim.flow.step(now, around, |_| Duration::ZERO) {
                sim.waits = Some(until);
                return 0;
            }
            sim.waits = None;
        }
        if sim.ready > around.slack.messages && sim.flow.pushed(now, around, PUSH, Pacing::Paced) {
            sim.waits = Some(now);
        }
        sim.ready += PUSH;
        sim.pushed += PUSH;
        PUSH
    }

    fn consume(&mut self, at: usize) -> u64 {
        if self.queues[at].limit != Limit::Machine {
            return 0;
        }
        self.take(at, TAKE) * 2
    }

    fn take(&mut self, at: usize, most: u64) -> u64 {
        let around = self.around();
        let sim = &mut self.queues[at];
        let count = sim.ready.min(most);
        sim.ready -= count;
        sim.taken += count;
        sim.flow.delivered(around.slack, count);
        self.delivered += count;
        count
    }

    /// What is pushed to queues with consumers that keep up if they can, and taken from them, in so much time.
    fn moved(&mut self, time: Duration) -> (u64, u64) {
        let sums = |world: &Self| {
            let machine = world.queues.iter().filter(|sim| sim.limit == Limit::Machine);
            machine.fold((0, 0), |(pushed, taken), sim| (pushed + sim.pushed, taken + sim.taken))
        };
        let before = sums(self);
        self.run(time);
        let after = sums(self);
        (after.0 - before.0, after.1 - before.1)
    }
}

const WARM_UP: Duration = Duration::from_secs(4);
const MEASURED: Duration = Duration::from_secs(8);

#[test]
fn consumers_keep_up_however_many_queues_there_are() {
    for queues in [1, 20, 200] {
        let mut world = World::new((0..queues).map(|_| Limit::Machine));
        world.run(WARM_UP);
        let (pushed, taken) = world.moved(MEASURED);
        assert!(taken * 10 >= pushed * 8, "{queues} queues: {pushed} pushed, {taken} taken");
        let possible = WORK * MEASURED.as_millis() as u64 / 3;
        assert!(taken * 2 >= possible, "{queues} queues: {taken} of {possible} taken");
        assert!(world.most_bytes <= MEMORY_BYTES, "{queues} queues: {} bytes", world.most_bytes);
    }
}

#[test]
fn a_consumer_that_is_slow_by_itself_slows_nobody_among_hundreds() {
    let slow = [Limit::Itself(10)];
    let mut world = World::new((0..200).map(|_| Limit::Machine).chain(slow));
    world.run(WARM_UP);
    let began = world.queues[200].waited;
    let time = Duration::from_secs(20);
    let (pushed, taken) = world.moved(time);
    let waited = world.queues[200].waited - began;
    assert!(waited * 5 <= time, "its publisher waited for {waited:?} of {time:?}");
    assert!(taken * 10 >= pushed * 7, "{pushed} pushed, {taken} taken");
}
