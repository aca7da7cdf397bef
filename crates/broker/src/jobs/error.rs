//! Why a call about jobs comes to nothing.

use nexo_core::jobs::JobError;
use thiserror::Error;

use crate::error::QueueError;

/// Why not.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum JobCallError {
    /// The rules forbid it.
    #[error(transparent)]
    Refused(#[from] JobError),
    /// The log takes no more, the broker stops, or a queue for answers is not there.
    #[error(transparent)]
    Queue(#[from] QueueError),
}
