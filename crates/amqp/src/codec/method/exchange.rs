//! Class `exchange`: exchanges, and the bindings between them that RabbitMQ added.

use super::class::class;
use crate::codec::constants::CLASS_EXCHANGE;
use crate::codec::short_str::ShortStr;
use crate::codec::table::Table;

class! {
    /// A method of class `exchange`.
    ExchangeMethod<'a> = CLASS_EXCHANGE;

    /// The client creates an exchange, or asks whether there is one.
    Declare<'a> = 10, "exchange.declare" {
        ticket: u16,
        exchange: ShortStr<'a>,
        /// The field `type`.
        kind: ShortStr<'a>,
        passive: bool,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        nowait: bool,
        arguments: Table<'a>,
    }
    /// There is such an exchange.
    DeclareOk = 11, "exchange.declare-ok" {}
    /// The client deletes an exchange.
    Delete<'a> = 20, "exchange.delete" {
        ticket: u16,
        exchange: ShortStr<'a>,
        if_unused: bool,
        nowait: bool,
    }
    /// There is no such exchange any more.
    DeleteOk = 21, "exchange.delete-ok" {}
    /// The client has messages of one exchange sent on to another.
    Bind<'a> = 30, "exchange.bind" {
        ticket: u16,
        destination: ShortStr<'a>,
        source: ShortStr<'a>,
        routing_key: ShortStr<'a>,
        nowait: bool,
        arguments: Table<'a>,
    }
    /// They are.
    BindOk = 31, "exchange.bind-ok" {}
    /// The client ends that.
    Unbind<'a> = 40, "exchange.unbind" {
        ticket: u16,
        destination: ShortStr<'a>,
        source: ShortStr<'a>,
        routing_key: ShortStr<'a>,
        nowait: bool,
        arguments: Table<'a>,
    }
    /// They are no longer sent on.
    UnbindOk = 51, "exchange.unbind-ok" {}
}
