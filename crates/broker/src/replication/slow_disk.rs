//! Whether the disk of a leader holds all others up. A leader is told of commits only up to what it has synced itself, so its own
//! slow disk slows the whole cluster, while a slow one on a follower slows nobody. Then another node should lead.
//!
//! One write at a time is *watched*: how long its own sync takes, and how long until so many others have it that they could go on
//! without this node. Only the comparison counts. Where all nodes share a slow disk or a busy machine the others take as long, and a
//! process that was stopped for a while sees both at the same moment.
//!
//! Two things count against a disk. It *hangs*: a write waits for it for seconds. It *lags*: most of its syncs are slow for a
//! while. To move leadership closes all connections, so each is done again only after a rest, also by the node that has taken over:
//! what slows the disk may be the work of a leader, which has come along.

use std::time::{Duration, Instant};

use nexo_types::{LogIndex, NodeId, Position};

use super::state::{Replica, State};

/// A disk hangs if a write has waited for it for so many ticks: 2 s.
const HANGS_TICKS: u32 = 40;
/// Whether it lags is judged by what was written in so many ticks: 10 s.
const WINDOW_TICKS: u32 = 200;
/// Fewer writes than this say nothing.
const WINDOW_WRITES: u32 = 5;
/// A sync that takes no longer is none that anybody would complain of.
const SLOW_MIN: Duration = Duration::from_millis(50);
/// A sync is slow if it takes so many times as long as the others took.
const SLOW_FACTOR: u32 = 4;
/// So long nothing is handed over again because a disk hangs: 30 s. Meanwhile hardly anything is confirmed, so it is short.
const HANGS_REST_TICKS: u32 = 600;
/// And because it lags: 5 min.
const LAGS_REST_TICKS: u32 = 6_000;

/// What is known of the disk of this node in comparison with those of the others.
#[derive(Debug, Default)]
pub(super) struct DiskWatch {
    watched: Option<Watched>,
    window: Window,
    /// Ticks since leadership was handed to this node, or it lost it.
    rested_ticks: Option<u32>,
    handovers: usize,
}

/// A write, from when it was given to the disk and to the others.
#[derive(Debug)]
struct Watched {
    last: LogIndex,
    end: Position,
    since: Instant,
    /// How long it took until enough others had it. If they had it before it was watched, a little more than that.
    others: Option<Duration>,
    own: Option<Duration>,
    /// Since the others have had it.
    ticks: u32,
}

/// The writes that were watched lately.
#[derive(Debug, Default)]
struct Window {
    /// Since the first of them.
    ticks: u32,
    writes: u32,
    slow: u32,
    /// The sum over those that were slow.
    own: Duration,
    others: Duration,
}

/// Why another node should lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slow {
    /// How long a sync takes here.
    own: Duration,
    /// How long it takes until enough others have the same.
    others: Duration,
    /// How often it was said before: somebody else is to be tried.
    handovers: usize,
}

fn is_slow(own: Duration, others: Duration) -> bool {
    own > SLOW_MIN && own > others * SLOW_FACTOR
}

impl DiskWatch {
    fn watch(&mut self, last: LogIndex, end: Position, since: Instant) {
        self.watched = Some(Watched { last, end, since, others: None, own: None, ticks: 0 });
    }

    /// So many others have the watched write that they could go on without this node.
    fn others_have(&mut self, now: Instant) {
        if let Some(watched) = &mut self.watched {
            watched.others.get_or_insert(now.saturating_duration_since(watched.since));
        }
        self.count();
    }

    /// The watched write is synced here.
    fn synced(&mut self, now: Instant) {
        if let Some(watched) = &mut self.watched {
            watched.own.get_or_insert(now.saturating_duration_since(watched.since));
        }
        self.count();
    }

    fn count(&mut self) {
        let Some(Watched { own: Some(own), others: Some(others), .. }) = self.watched else { return };
        self.watched = None;
        self.window.writes += 1;
        if is_slow(own, others) {
            self.window.slow += 1;
            self.window.own += own;
            self.window.others += others;
        }
    }

    /// This node has lost leadership, or is asked to take it over.
    pub(super) fn note_handover(&mut self) {
        (self.watched, self.window) = (None, Window::default());
        self.rested_ticks = Some(0);
    }

    fn has_rested(&self, ticks: u32) -> bool {
        self.rested_ticks.is_none_or(|rested| rested >= ticks)
    }

    /// A tick has passed. Says whether another node should lead.
    fn tick(&mut self, now: Instant) -> Option<Slow> {
        self.rested_ticks = self.rested_ticks.map(|rested| rested.saturating_add(1));
        let slow = self.hangs(now).or_else(|| self.lags());
        slow.map(|(own, others)| {
            self.handovers += 1;
            Slow { own, others, handovers: self.handovers - 1 }
        })
    }

    fn hangs(&mut self, now: Instant) -> Option<(Duration, Duration)> {
        let may_hand_over = self.has_rested(HANGS_REST_TICKS);
        let watched = self.watched.as_mut()?;
        let (None, Some(others)) = (watched.own, watched.others) else { return None };
        // Ticks, not time: a process that was stopped is told nothing of its disk.
        watched.ticks = watched.ticks.saturating_add(1);
        let own = now.saturating_duration_since(watched.since);
        if !may_hand_over || watched.ticks < HANGS_TICKS || !is_slow(own, others) {
            return None;
        }
        // If nobody takes over, the next one is asked.
        watched.ticks = 0;
        Some((own, others))
    }

    fn lags(&mut self) -> Option<(Duration, Duration)> {
        if self.window.writes == 0 {
            return None;
        }
        self.window.ticks += 1;
        if self.window.ticks < WINDOW_TICKS {
            return None;
        }
        let Window { writes, slow, own, others, .. } = std::mem::take(&mut self.window);
        let is_most = writes >= WINDOW_WRITES && slow * 4 >= writes * 3;
        (is_most && self.has_rested(LAGS_REST_TICKS)).then(|| (own / slow, others / slow))
    }
}

impl State {
    /// So many voters are a majority.
    fn majority(&self) -> usize {
        self.group.members().voters.len() / 2 + 1
    }

    /// Whether a majority has an entry without this node.
    fn others_have(&self, last: LogIndex) -> bool {
        let voters = &self.group.members().voters;
        let have = self.group.progress().filter(|(node, matched)| voters.contains(node) && *matched >= last);
        have.count() >= self.majority()
    }

    /// The other voters who have most of the log, as many as could go on without this node. Nobody if there are too few.
    fn quick_successors(&self) -> Vec<NodeId> {
        let mut successors = self.successors();
        let wanted = if successors.len() < self.majority() { 0 } else { self.majority() };
        successors.truncate(wanted);
        successors
    }
}

impl Replica {
    /// Looks what has become of the write that is watched, and watches the last one if there is none. Only for a leader
    /// without which the others could go on.
    pub(super) fn watch_disk(&self, state: &mut State) {
        if !state.leads() {
            return;
        }
        if state.disk_watch.watched.is_none() {
            let Some((last, end, since)) = state.last_unsynced() else { return };
            let voters = state.group.members().voters.len();
            if voters.saturating_sub(1) < state.majority() {
                return;
            }
            state.disk_watch.watch(last, end, since);
        }
        let Some(Watched { last, end, others, own, .. }) = &state.disk_watch.watched else { return };
        let (last, waits_for_others) = (*last, others.is_none());
        let is_synced = own.is_none() && *end <= self.log.synced_position();
        if waits_for_others && state.others_have(last) {
            state.disk_watch.others_have(Instant::now());
        }
        if is_synced {
            state.disk_watch.synced(Instant::now());
        }
    }

    /// Hands leadership over if the others wait for the disk of this node.
    pub(super) fn hand_over_if_slow(&self, state: &mut State) {
        self.watch_disk(state);
        let slow = state.disk_watch.tick(Instant::now());
        let Some(slow) = slow.filter(|_| state.leads()) else { return };
        let successors = state.quick_successors();
        let Some(next) = slow.handovers.checked_rem(successors.len()).map(|turn| successors[turn]) else {
            return;
        };
        tracing::warn!(
            to = %next,
            own_ms = slow.own.as_millis(),
            others_ms = slow.others.as_millis(),
            "syncs of this node's disk take much longer than those of the others: leadership is handed over"
        );
        let _ = state.group.hand_over(next);
        self.settle(state);
    }
}

#[cfg(test)]
mod tests {
    use nexo_types::SegmentId;

    use super::*;

    /// What becomes of writes: after so many milliseconds others have them, and the own disk.
    struct Times {
        watch: DiskWatch,
        now: Instant,
    }

    impl Times {
        fn new() -> Self {
            Self { watch: DiskWatch::default(), now: Instant::now() }
        }

        fn begin(&mut self) {
            self.watch.watch(LogIndex(1), Position { segment: SegmentId(1), byte: 1 }, self.now);
        }

        fn pass(&mut self, ms: u64) {
            self.now += Duration::from_millis(ms);
        }

        /// A write. Time passes, but no tick.
        fn write(&mut self, own_ms: u64, others_ms: u64) {
            self.begin();
            let start = self.now;
            if others_ms <= own_ms {
                self.watch.others_have(start + Duration::from_millis(others_ms));
            }
            self.watch.synced(start + Duration::from_millis(own_ms));
            self.watch.others_have(start + Duration::from_millis(others_ms));
            self.pass(own_ms.max(others_ms));
        }

        /// So many ticks. When leadership was handed over first.
        fn ticks(&mut self, count: u32) -> Option<u32> {
            let mut first = None;
            for tick in 1..=count {
                self.pass(50);
                let slow = self.watch.tick(self.now);
                first = first.or(slow.map(|_| tick));
            }
            first
        }

        /// For so many seconds, with a write in each tick.
        fn load(&mut self, seconds: u32, times: impl Fn(u32) -> (u64, u64)) -> bool {
            let mut is_handed_over = false;
            for tick in 0..seconds * 20 {
                let (own_ms, others_ms) = times(tick);
                self.write(own_ms, others_ms);
                is_handed_over |= self.ticks(1).is_some();
            }
            is_handed_over
        }
    }

    #[test]
    fn a_disk_that_hangs_is_noticed_when_the_others_have_what_waits_for_it() {
        let mut times = Times::new();
        times.begin();
        assert_eq!(times.ticks(1_000), None, "the others wait as well");
        let mut times = Times::new();
        times.begin();
        times.pass(5);
        times.watch.others_have(times.now);
        assert_eq!(times.ticks(1_000), Some(HANGS_TICKS));
        assert_eq!(times.watch.handovers, 25, "nobody took over, so others are asked");
    }

    #[test]
    fn a_disk_hangs_only_if_the_others_were_much_quicker() {
        let mut times = Times::new();
        times.begin();
        times.pass(1_500);
        times.watch.others_have(times.now);
        // 4 times 1.5 s, from the beginning on.
        assert_eq!(times.ticks(1_000), Some(91));
    }

    #[test]
    fn a_process_that_was_stopped_knows_nothing_of_its_disk() {
        let mut times = Times::new();
        times.begin();
        times.watch.others_have(times.now);
        times.pass(60_000);
        assert_eq!(times.ticks(1), None);
        times.watch.synced(times.now);
        assert_eq!(times.ticks(1_000), None);
    }

    #[test]
    fn a_disk_lags_if_most_of_its_syncs_take_much_longer_than_those_of_others() {
        assert!(Times::new().load(10, |_| (80, 10)));
        assert!(!Times::new().load(9, |_| (80, 10)), "that is not for long");
        assert!(!Times::new().load(60, |_| (45, 1)), "nobody would notice");
        assert!(!Times::new().load(60, |_| (300, 100)), "the others are slow too");
        assert!(!Times::new().load(60, |_| (10, 300)), "it is the quicker one");
        assert!(
            !Times::new().load(60, |tick| if tick % 2 == 0 { (900, 10) } else { (5, 5) }),
            "now and then"
        );
    }

    #[test]
    fn a_few_writes_say_nothing_of_a_disk() {
        let mut times = Times::new();
        for _ in 0..100 {
            times.write(300, 5);
            assert_eq!(times.ticks(WINDOW_TICKS / (WINDOW_WRITES - 1)), None);
        }
        let mut times = Times::new();
        assert_eq!(times.ticks(1_000), None);
        for _ in 0..100 {
            times.write(300, 5);
        }
        assert_eq!(
            times.ticks(1_000),
            Some(WINDOW_TICKS),
            "many at once say nothing before some time is over"
        );
    }

    #[test]
    fn leadership_does_not_move_again_for_a_while() {
        let mut times = Times::new();
        assert!(times.load(10, |_| (80, 10)));
        times.watch.note_handover();
        times.begin();
        times.watch.others_have(times.now);
        assert_eq!(times.ticks(1_000), Some(HANGS_REST_TICKS));
        times.watch.note_handover();
        assert!(!times.load(290, |_| (80, 10)));
        assert!(times.load(30, |_| (80, 10)));
    }
}
