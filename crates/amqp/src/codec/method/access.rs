//! Class `access`: tickets of the protocol before 0-9-1. RabbitMQ hands out the same one to everybody.

use super::class::class;
use crate::codec::constants::CLASS_ACCESS;
use crate::codec::short_str::ShortStr;

class! {
    /// A method of class `access`.
    AccessMethod<'a> = CLASS_ACCESS;

    /// The client asks for a ticket.
    Request<'a> = 10, "access.request" {
        realm: ShortStr<'a>,
        exclusive: bool,
        passive: bool,
        active: bool,
        write: bool,
        read: bool,
    }
    /// The client gets a ticket.
    RequestOk = 11, "access.request-ok" { ticket: u16 }
}
