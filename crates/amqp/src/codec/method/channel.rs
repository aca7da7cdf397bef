//! Class `channel`: opening, pausing and closing one channel.

use super::class::class;
use crate::codec::constants::CLASS_CHANNEL;
use crate::codec::short_str::ShortStr;

class! {
    /// A method of class `channel`.
    ChannelMethod<'a> = CLASS_CHANNEL;

    /// The client opens a channel.
    Open<'a> = 10, "channel.open" {
        /// Unused since 0-9-1.
        out_of_band: ShortStr<'a>,
    }
    /// The channel can be used.
    OpenOk<'a> = 11, "channel.open-ok" {
        /// Unused since 0-9-1.
        channel_id: &'a [u8],
    }
    /// One side asks the other to pause or resume sending content.
    Flow = 20, "channel.flow" { active: bool }
    /// The other side does so.
    FlowOk = 21, "channel.flow-ok" { active: bool }
    /// Either side ends the channel; the ids name the method that was at fault, if one was.
    Close<'a> = 40, "channel.close" {
        reply_code: u16,
        reply_text: ShortStr<'a>,
        class_id: u16,
        method_id: u16,
    }
    /// The other side agrees.
    CloseOk = 41, "channel.close-ok" {}
}
