//! What is done to the broker, and when: all of it follows from the seed.

use std::time::Duration;

/// A fault and the pause before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) pause: Duration,
    pub(crate) fault: Fault,
}

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL, and then once more after each of these times since the start that follows, during recovery or not.
    Kill { moment: Moment, again_after: Vec<Duration> },
    /// SIGSTOP, and SIGCONT after this.
    Freeze(Duration),
    /// SIGTERM: an end as it should be.
    Stop,
    /// Connections of these clients are reset in the middle of a frame.
    Cut(Clients),
    /// These clients do not read for a while.
    Stall(Clients, Duration),
    /// The disk is full for a while; if asked for, the broker is killed meanwhile.
    FillDisk(Duration, Meanwhile),
    /// The disk is busy for a while; as above.
    SlowDisk(Duration, Meanwhile),
    /// Consumers stall until messages wait in sealed segments. Then the broker is ended, and bytes of one such segment
    /// change before it starts again; `chance` decides which.
    Damage { end: End, chance: u64 },
    /// No fault: a quiet in which everything is accounted for.
    TakeStock,
}

/// Kills between two stocks: each leaves some hundreds of messages of which nobody knows what became.
const KILLS_PER_STOCK: u32 = 25;

/// How the broker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Kill,
    Stop,
}

impl End {
    /// For how long consumers stall before damage: a few segments are filled meanwhile. After a kill the last ones are
    /// spared, so it takes more of them.
    pub(crate) const fn backlog_grows(self) -> Duration {
        match self {
            Self::Kill => Duration::from_secs(4),
            Self::Stop => Duration::from_secs(2),
        }
    }
}

/// When the broker is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// At any moment.
    Any,
    /// With a busy disk, as soon as a worker reads of jobs that it was handed.
    HandedOut,
    /// The same, as soon as somebody reads that the broker has done what it was asked to do with a job.
    Settled,
}

impl Moment {
    /// For how long the disk is busy before the moment is waited for.
    pub(crate) const DISK_BUSY: Duration = Duration::from_millis(300);
}

/// Whether the disk changes what it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskDamage {
    Never,
    Some,
}

/// Whether the broker is killed while something else is wrong as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    Nothing,
    Kill,
}

/// Some of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clients(u64);

impl Clients {
    /// These, by their numbers.
    pub(crate) fn of(numbers: impl IntoIterator<Item = usize>) -> Self {
        Self(numbers.into_iter().fold(0, |bits, number| bits | 1 << (number % 64)))
    }

    pub(crate) const fn contains(self, client: usize) -> bool {
        self.0 >> (client % 64) & 1 == 1
    }
}

/// Faults for about this long, with about this many kills among them.
pub(crate) fn plan(seed: u64, span: Duration, kills: u32, damage: DiskDamage) -> Vec<Step> {
    let mut steps = draw(seed, kills, damage);
    // The pauses so far are only in proportion to each other: they share what the faults leave of the time.
    let faults: Duration = steps.iter().map(|step| step.fault.lasts()).sum();
    let pauses: Duration = steps.iter().map(|step| step.pause).sum();
    let left = span.saturating_sub(faults).max(span / 10);
    for step in &mut steps {
        step.pause = step.pause.mul_f64(left.as_secs_f64() / pauses.as_secs_f64());
    }
    steps
}

fn draw(seed: u64, kills: u32, damage: DiskDamage) -> Vec<Step> {
    let mut rng = fastrand::Rng::with_seed(seed);
    // Of its own, so that the other faults are the same with it and without.
    let mut damage_rng = fastrand::Rng::with_seed(seed ^ 0xDA_3A6E);
    // The same.
    let mut moment_rng = fastrand::Rng::with_seed(seed ^ 0x30_3E27);
    let pause = Duration::from_secs(1);
    let mut steps = Vec::new();
    let (mut killed, mut counted) = (0, 0);
    // The rare faults come early in turn, so that a short run meets each kind as well.
    let mut turn = rng.u32(..);
    while killed < kills {
        let fault = kill(&mut rng, &mut moment_rng);
        killed += fault.kills();
        steps.push(Step { pause: pause.mul_f64(0.2 + 0.6 * rng.f64()), fault });
        turn = turn.wrapping_add(1);
        let fault = other(&mut rng, turn);
        killed += fault.kills();
        steps.push(Step { pause: pause.mul_f64(0.1 + 0.4 * rng.f64()), fault });
        if damage == DiskDamage::Some {
            let end = if damage_rng.bool() { End::Kill } else { End::Stop };
            let fault = Fault::Damage { end, chance: damage_rng.u64(..) };
            killed += fault.kills();
            steps.push(Step { pause: pause.mul_f64(0.1 + 0.4 * damage_rng.f64()), fault });
        }
        // The run ends with a stock of its own.
        if killed >= counted + KILLS_PER_STOCK && killed < kills {
            steps.push(Step { pause: Duration::ZERO, fault: Fault::TakeStock });
            counted = killed;
        }
    }
    steps
}

fn kill(rng: &mut fastrand::Rng, moment_rng: &mut fastrand::Rng) -> Fault {
    let moment = match moment_rng.u8(..4) {
        0 => Moment::HandedOut,
        1 => Moment::Settled,
        _ => Moment::Any,
    };
    let again = if rng.u8(..100) < 25 { rng.usize(1..=3) } else { 0 };
    // Recovery of a few megabytes takes some tens of milliseconds.
    Fault::Kill { moment, again_after: (0..again).map(|_| millis(rng, 1, 120)).collect() }
}

fn other(rng: &mut fastrand::Rng, turn: u32) -> Fault {
    let meanwhile = if rng.u8(..100) < 30 { Meanwhile::Kill } else { Meanwhile::Nothing };
    match turn % 8 {
        0 => Fault::Freeze(millis(rng, 50, 2_500)),
        1 => Fault::FillDisk(millis(rng, 500, 4_000), meanwhile),
        2 => Fault::Stop,
        3 | 6 => Fault::Cut(some_clients(rng)),
        4 => Fault::SlowDisk(millis(rng, 500, 4_000), meanwhile),
        _ => Fault::Stall(some_clients(rng), millis(rng, 200, 3_000)),
    }
}

fn millis(rng: &mut fastrand::Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(rng.u64(least..=most))
}

fn some_clients(rng: &mut fastrand::Rng) -> Clients {
    // Each with one chance in two, or all.
    Clients(if rng.u8(..5) == 0 { u64::MAX } else { rng.u64(..) })
}

impl Fault {
    /// About how long it takes, until the broker is ready again.
    fn lasts(&self) -> Duration {
        let start = Duration::from_millis(200);
        start * self.kills()
            + match self {
                Self::Kill { moment: Moment::Any, again_after } => again_after.iter().sum(),
                Self::Kill { again_after, .. } => Moment::DISK_BUSY + again_after.iter().sum::<Duration>(),
                Self::Freeze(span) | Self::FillDisk(span, _) | Self::SlowDisk(span, _) => *span,
                Self::Stop => start,
                Self::Damage { end: End::Stop, .. } => End::Stop.backlog_grows() + start,
                Self::Damage { end: End::Kill, .. } => End::Kill.backlog_grows(),
                Self::Cut(_) | Self::Stall(..) => Duration::ZERO,
                Self::TakeStock => Duration::from_secs(5),
            }
    }

    /// How often the broker is killed by it.
    pub(crate) fn kills(&self) -> u32 {
        match self {
            Self::Kill { again_after, .. } => 1 + again_after.len() as u32,
            Self::FillDisk(_, Meanwhile::Kill)
            | Self::SlowDisk(_, Meanwhile::Kill)
            | Self::Damage { end: End::Kill, .. } => 1,
            Self::Freeze(_)
            | Self::Stop
            | Self::Damage { end: End::Stop, .. }
            | Self::Cut(_)
            | Self::Stall(..)
            | Self::FillDisk(_, Meanwhile::Nothing)
            | Self::SlowDisk(_, Meanwhile::Nothing)
            // It has one, which is not in the plan.
            | Self::TakeStock => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_takes_stock_now_and_then_and_a_short_one_only_in_the_end() {
        let stocks = |kills| {
            let steps = plan(7, Duration::from_secs(60), kills, DiskDamage::Never);
            steps.iter().filter(|step| step.fault == Fault::TakeStock).count()
        };
        assert_eq!(stocks(20), 0);
        assert!((8..=10).contains(&stocks(260)), "{}", stocks(260));
    }

    #[test]
    fn the_same_seed_gives_the_same_plan() {
        let span = Duration::from_secs(3600);
        let plan = |seed| plan(seed, span, 250, DiskDamage::Some);
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }

    #[test]
    fn a_run_of_a_minute_kills_at_every_moment() {
        for seed in 0..50 {
            let steps = plan(seed, Duration::from_secs(60), 30, DiskDamage::Never);
            let is_at =
                |at| move |step: &Step| matches!(step.fault, Fault::Kill { moment, .. } if moment == at);
            for moment in [Moment::Any, Moment::HandedOut, Moment::Settled] {
                assert!(steps.iter().any(is_at(moment)), "{moment:?} with seed {seed}");
            }
        }
    }

    #[test]
    fn there_are_as_many_kills_as_were_asked_for_and_they_take_the_whole_time() {
        for seed in 0..50 {
            let span = Duration::from_secs(300);
            let damage = if seed % 2 == 0 { DiskDamage::Never } else { DiskDamage::Some };
            let steps = plan(seed, span, 25, damage);
            let damaged = steps.iter().any(|step| matches!(step.fault, Fault::Damage { .. }));
            assert_eq!(damaged, damage == DiskDamage::Some);
            let kills: u32 = steps.iter().map(|step| step.fault.kills()).sum();
            assert!((25..31).contains(&kills), "{kills}");
            let planned: Duration = steps.iter().map(|step| step.pause + step.fault.lasts()).sum();
            assert!(planned.abs_diff(span) < Duration::from_secs(1), "{planned:?}");
        }
    }
}
