//! Class `tx`: messages and acknowledgements that take effect together.

use super::class::class;
use crate::codec::constants::CLASS_TX;

class! {
    /// A method of class `tx`.
    TxMethod = CLASS_TX;

    /// The client makes the channel transactional.
    Select = 10, "tx.select" {}
    /// It is.
    SelectOk = 11, "tx.select-ok" {}
    /// The client wants what it did to take effect.
    Commit = 20, "tx.commit" {}
    /// It has.
    CommitOk = 21, "tx.commit-ok" {}
    /// The client wants what it did forgotten.
    Rollback = 30, "tx.rollback" {}
    /// It is.
    RollbackOk = 31, "tx.rollback-ok" {}
}
