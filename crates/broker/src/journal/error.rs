//! Why a proposal was not taken, and what can become of one that was.

use std::sync::Arc;

use nexo_log::{AppendError, LogError};
use thiserror::Error;

/// A proposal that was not taken: nothing may be applied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum ProposeError {
    /// No room, now. Try again when space was freed.
    #[error("the disk is full: {reason}")]
    Full {
        /// What the disk said, and when it was asked.
        reason: Arc<str>,
    },
    /// It would have had to wait, and was told not to.
    #[error("the disk is behind")]
    Busy,
    /// The log takes nothing, or nothing of that size.
    #[error("{reason}")]
    Unavailable {
        /// Why, in the log's words.
        reason: String,
    },
    /// What was proposed before it is lost, so it was decided on what never was.
    #[error("changes that were not safe yet are lost, and the queues are being rebuilt without them")]
    Lost,
}

impl From<AppendError> for ProposeError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Full { reason } => Self::Full { reason },
            AppendError::Busy => Self::Busy,
            AppendError::Failed { .. } | AppendError::TooLarge { .. } | AppendError::Closed => {
                Self::Unavailable { reason: error.to_string() }
            }
        }
    }
}

/// What became of a proposal that will not be safe.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum TicketError {
    /// The log failed: whether it survives a restart is not known.
    #[error(transparent)]
    Log(#[from] LogError),
    /// It and everything that was proposed after it is discarded. The log of one node does not do that.
    #[error(
        "this node has lost leadership before a majority of the cluster had the change: what came of it is not known"
    )]
    Lost,
}
