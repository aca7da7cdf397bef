//! The simulator itself: runs repeat, what is sound passes, and what is broken is noticed.

use nexo_sim::sabotage::ALL;
use nexo_sim::{Options, Outcome, Violation, run};

fn play(seed: u64, millis: u64) -> Outcome {
    run(Options { seed, millis, sabotage: None, keeps_trace: false })
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 7, 2_681] {
        let (first, second) = (play(seed, 6_000), play(seed, 6_000));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_ne!(first.trace, play(seed + 1, 6_000).trace);
    }
}

/// Seeds that showed something once: 7, 12, 19 and 22 that snapshots of a queue had their parts in another order; 81, 133 and
/// 283 that a new member was sent a snapshot from before it came; 99 that an answer to a leader's earlier life was taken
/// for a lie; 164 that a snapshot was not counted as applied; 2681 that one was taken while another was being written;
/// 1007363 that a leader waited with a snapshot for a commit that needed its receiver; 158 and 165 that a leader which is no
/// voter any more led on, and no member could come or go. They gave those runs then: whatever is added changes them.
#[test]
fn seeds_that_showed_something_pass() {
    for seed in [7, 12, 19, 22, 81, 99, 133, 158, 164, 165, 283, 2_681, 1_007_363] {
        let outcome = play(seed, 12_000);
        assert_eq!(outcome.violations, [], "seed {seed}");
    }
}

/// With `cargo xtask sim --break NAME` other seeds are found, should these come to show nothing after a change.
#[test]
fn what_is_broken_on_purpose_is_noticed() {
    for (name, sabotage) in ALL {
        let broken =
            |seed| run(Options { seed, millis: 12_000, sabotage: Some(sabotage), keeps_trace: false });
        // A vote must be forgotten between two candidates of one term: that takes luck.
        let noticed =
            (1..=20).chain([71, 91, 1_353, 1_833]).map(broken).find(|outcome| !outcome.violations.is_empty());
        let noticed = noticed.unwrap_or_else(|| panic!("'{name}' was not noticed"));
        assert!(!noticed.violations.iter().any(|it| matches!(it, Violation::NotExercised(_))), "{name}");
    }
}
