//! Ways to break a node on purpose. Each must be caught; `docs/testing.md` has what was seen.

use std::str::FromStr;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A leader answers at once, and waits for no majority.
    CommitAlone,
    /// A message is delivered before its push is committed.
    DeliverUncommitted,
    /// A node that restarts has forgotten whom it voted for.
    ForgetVote,
    /// A node that restarts has forgotten its term, too.
    ForgetTerm,
    /// A follower applies one entry in twenty twice.
    ApplyTwice,
    /// A follower passes over one entry in fifty.
    SkipEntry,
    /// What promises something is sent before it is synced.
    SendBeforeSync,
    /// Entries of another leader do not take the place of those that are stored.
    IgnoreTruncation,
    /// A leader that is deposed keeps what it made of its own proposals.
    KeepSpeculation,
    /// A snapshot with what is not committed counts.
    CheckpointUncommitted,
    /// A leader goes by its own clock, though it is behind that of the one before.
    OwnClock,
    /// A node whose disk was wiped comes back under its name.
    ComeBackWiped,
    /// A restart loses the last entry that was synced.
    LoseSynced,
    /// A deposed leader says that what it had proposed is safe.
    ConfirmUnknown,
    /// A node whose log is damaged goes on with what lies before the damage.
    IgnoreDamage,
    /// Nothing that is read is verified.
    TrustDisk,
    /// A dead letter leaves its queue by one entry and comes into the other by a second, a little later.
    MoveInTwo,
    /// A worker gets a job before that is committed.
    HandOutEarly,
    /// A follower passes over what one entry in ten says of machines other than queues.
    ForgetMachines,
}

/// All of them, with their names.
pub const ALL: [(&str, Sabotage); 19] = [
    ("commit-alone", Sabotage::CommitAlone),
    ("deliver-uncommitted", Sabotage::DeliverUncommitted),
    ("forget-vote", Sabotage::ForgetVote),
    ("forget-term", Sabotage::ForgetTerm),
    ("apply-twice", Sabotage::ApplyTwice),
    ("skip-entry", Sabotage::SkipEntry),
    ("send-before-sync", Sabotage::SendBeforeSync),
    ("ignore-truncation", Sabotage::IgnoreTruncation),
    ("keep-speculation", Sabotage::KeepSpeculation),
    ("checkpoint-uncommitted", Sabotage::CheckpointUncommitted),
    ("own-clock", Sabotage::OwnClock),
    ("come-back-wiped", Sabotage::ComeBackWiped),
    ("lose-synced", Sabotage::LoseSynced),
    ("confirm-unknown", Sabotage::ConfirmUnknown),
    ("ignore-damage", Sabotage::IgnoreDamage),
    ("trust-disk", Sabotage::TrustDisk),
    ("move-in-two", Sabotage::MoveInTwo),
    ("hand-out-early", Sabotage::HandOutEarly),
    ("forget-machines", Sabotage::ForgetMachines),
];

impl FromStr for Sabotage {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let known = || ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let found = ALL.iter().find(|(name, _)| *name == text).map(|(_, sabotage)| *sabotage);
        found.ok_or_else(|| anyhow::anyhow!("'{text}' is no way to break a node; there are {}", known()))
    }
}
