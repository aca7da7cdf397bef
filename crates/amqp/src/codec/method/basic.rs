//! Class `basic`: messages, in and out.

use super::class::class;
use crate::codec::constants::CLASS_BASIC;
use crate::codec::short_str::ShortStr;
use crate::codec::table::Table;

class! {
    /// A method of class `basic`.
    BasicMethod<'a> = CLASS_BASIC;

    /// The client limits what it holds unacknowledged.
    Qos = 10, "basic.qos" {
        prefetch_size: u32,
        prefetch_count: u16,
        /// RabbitMQ takes this for "per channel"; without it the limit is for each consumer to come.
        global: bool,
    }
    /// The limit holds.
    QosOk = 11, "basic.qos-ok" {}
    /// The client wants messages pushed.
    Consume<'a> = 20, "basic.consume" {
        ticket: u16,
        queue: ShortStr<'a>,
        consumer_tag: ShortStr<'a>,
        no_local: bool,
        no_ack: bool,
        exclusive: bool,
        nowait: bool,
        arguments: Table<'a>,
    }
    /// They will be, under this tag.
    ConsumeOk<'a> = 21, "basic.consume-ok" { consumer_tag: ShortStr<'a> }
    /// Either side ends a consumer.
    Cancel<'a> = 30, "basic.cancel" {
        consumer_tag: ShortStr<'a>,
        nowait: bool,
    }
    /// It has ended.
    CancelOk<'a> = 31, "basic.cancel-ok" { consumer_tag: ShortStr<'a> }
    /// The client sends a message.
    Publish<'a> = 40, "basic.publish" {
        ticket: u16,
        exchange: ShortStr<'a>,
        routing_key: ShortStr<'a>,
        mandatory: bool,
        immediate: bool,
    }
    /// The server gives a message back that it could not route.
    Return<'a> = 50, "basic.return" {
        reply_code: u16,
        reply_text: ShortStr<'a>,
        exchange: ShortStr<'a>,
        routing_key: ShortStr<'a>,
    }
    /// The server pushes a message.
    Deliver<'a> = 60, "basic.deliver" {
        consumer_tag: ShortStr<'a>,
        delivery_tag: u64,
        redelivered: bool,
        exchange: ShortStr<'a>,
        routing_key: ShortStr<'a>,
    }
    /// The client asks for one message.
    Get<'a> = 70, "basic.get" {
        ticket: u16,
        queue: ShortStr<'a>,
        no_ack: bool,
    }
    /// It gets one.
    GetOk<'a> = 71, "basic.get-ok" {
        delivery_tag: u64,
        redelivered: bool,
        exchange: ShortStr<'a>,
        routing_key: ShortStr<'a>,
        message_count: u32,
    }
    /// There is none.
    GetEmpty<'a> = 72, "basic.get-empty" {
        /// Unused since 0-9-1.
        cluster_id: ShortStr<'a>,
    }
    /// One side has taken care of a message, or of all up to it.
    Ack = 80, "basic.ack" {
        delivery_tag: u64,
        multiple: bool,
    }
    /// The client does not want a message.
    Reject = 90, "basic.reject" {
        delivery_tag: u64,
        requeue: bool,
    }
    /// The client wants its unacknowledged messages again, and no answer.
    RecoverAsync = 100, "basic.recover-async" { requeue: bool }
    /// The client wants its unacknowledged messages again.
    Recover = 110, "basic.recover" { requeue: bool }
    /// It will get them.
    RecoverOk = 111, "basic.recover-ok" {}
    /// One side could not take care of a message, or of all up to it.
    Nack = 120, "basic.nack" {
        delivery_tag: u64,
        multiple: bool,
        requeue: bool,
    }
}
