//! Class `queue`: queues and what binds them to exchanges.

use super::class::class;
use crate::codec::constants::CLASS_QUEUE;
use crate::codec::short_str::ShortStr;
use crate::codec::table::Table;

class! {
    /// A method of class `queue`.
    QueueMethod<'a> = CLASS_QUEUE;

    /// The client creates a queue, or asks whether there is one.
    Declare<'a> = 10, "queue.declare" {
        ticket: u16,
        queue: ShortStr<'a>,
        passive: bool,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        nowait: bool,
        arguments: Table<'a>,
    }
    /// There is such a queue.
    DeclareOk<'a> = 11, "queue.declare-ok" {
        queue: ShortStr<'a>,
        message_count: u32,
        consumer_count: u32,
    }
    /// The client has messages of an exchange put into a queue.
    Bind<'a> = 20, "queue.bind" {
        ticket: u16,
        queue: ShortStr<'a>,
        exchange: ShortStr<'a>,
        routing_key: ShortStr<'a>,
        nowait: bool,
        arguments: Table<'a>,
    }
    /// They are.
    BindOk = 21, "queue.bind-ok" {}
    /// The client drops what waits in a queue.
    Purge<'a> = 30, "queue.purge" {
        ticket: u16,
        queue: ShortStr<'a>,
        nowait: bool,
    }
    /// It is dropped.
    PurgeOk = 31, "queue.purge-ok" { message_count: u32 }
    /// The client deletes a queue.
    Delete<'a> = 40, "queue.delete" {
        ticket: u16,
        queue: ShortStr<'a>,
        if_unused: bool,
        if_empty: bool,
        nowait: bool,
    }
    /// There is no such queue any more.
    DeleteOk = 41, "queue.delete-ok" { message_count: u32 }
    /// The client ends a binding.
    Unbind<'a> = 50, "queue.unbind" {
        ticket: u16,
        queue: ShortStr<'a>,
        exchange: ShortStr<'a>,
        routing_key: ShortStr<'a>,
        arguments: Table<'a>,
    }
    /// There is no such binding any more.
    UnbindOk = 51, "queue.unbind-ok" {}
}
