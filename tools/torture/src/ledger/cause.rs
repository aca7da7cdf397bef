//! Why a message died, by its own word.

use crate::queues::{ATTEMPTS_MAX, Family};

/// What made a message a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A consumer gave it up.
    Rejected,
    /// It was delivered as often as may be; how often, if it says so.
    Failed { attempts: Option<u32> },
    /// Its life was over.
    Expired,
}

impl Cause {
    /// Whether a message of this family can have died of it. Nobody can say how often one that failed was delivered:
    /// some deliveries are lost on their way.
    pub(super) fn can_be(self, family: Family, was_rejected: bool) -> bool {
        match self {
            Self::Rejected => was_rejected,
            Self::Failed { attempts } => {
                [Family::LIMITED, Family::REJECTS].contains(&family)
                    && attempts.is_none_or(|attempts| attempts >= ATTEMPTS_MAX)
            }
            Self::Expired => family == Family::EXPIRING,
        }
    }
}
