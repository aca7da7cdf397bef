//! Class `confirm`: RabbitMQ's publisher confirms.

use super::class::class;
use crate::codec::constants::CLASS_CONFIRM;

class! {
    /// A method of class `confirm`.
    ConfirmMethod = CLASS_CONFIRM;

    /// The client wants every message on this channel confirmed.
    Select = 10, "confirm.select" { nowait: bool }
    /// They will be.
    SelectOk = 11, "confirm.select-ok" {}
}
