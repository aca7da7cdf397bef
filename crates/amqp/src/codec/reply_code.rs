//! The reply codes of `connection.close`, `channel.close` and `basic.return`.

use std::fmt;

macro_rules! reply_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, $hard:literal;)*) => {
        /// Why something was refused or closed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ReplyCode { $($(#[$doc])* $name = $code),* }

        impl ReplyCode {
            /// Every code there is.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name with which RabbitMQ begins its reply texts, such as `NOT_FOUND`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// Whether the whole connection ends; otherwise only the channel does.
            #[must_use]
            pub const fn is_hard(self) -> bool {
                match self { $(Self::$name => $hard),* }
            }

            /// The code with this number, if there is one.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($code => Some(Self::$name),)* _ => None }
            }
        }
    };
}

reply_codes! {
    /// All is well: an orderly close.
    Success = 200, "REPLY_SUCCESS", false;
    /// The body is larger than the broker takes.
    ContentTooLarge = 311, "CONTENT_TOO_LARGE", false;
    /// A mandatory message found no queue.
    NoRoute = 312, "NO_ROUTE", false;
    /// An immediate message found no consumer.
    NoConsumers = 313, "NO_CONSUMERS", false;
    /// An operator or the broker itself ends the connection.
    ConnectionForced = 320, "CONNECTION_FORCED", true;
    /// The client asked for an unknown virtual host.
    InvalidPath = 402, "INVALID_PATH", true;
    /// The client may not do that.
    AccessRefused = 403, "ACCESS_REFUSED", false;
    /// There is no such queue or exchange.
    NotFound = 404, "NOT_FOUND", false;
    /// Another connection has it for itself.
    ResourceLocked = 405, "RESOURCE_LOCKED", false;
    /// What is asked does not fit what is there.
    PreconditionFailed = 406, "PRECONDITION_FAILED", false;
    /// A frame could not be decoded.
    FrameError = 501, "FRAME_ERROR", true;
    /// A field holds what it must not.
    SyntaxError = 502, "SYNTAX_ERROR", true;
    /// Methods came in an order that makes no sense.
    CommandInvalid = 503, "COMMAND_INVALID", true;
    /// The channel is not open, or already is.
    ChannelError = 504, "CHANNEL_ERROR", true;
    /// A frame came where another was due.
    UnexpectedFrame = 505, "UNEXPECTED_FRAME", true;
    /// The broker lacks the means.
    ResourceError = 506, "RESOURCE_ERROR", true;
    /// The broker's rules forbid it, whoever asks.
    NotAllowed = 530, "NOT_ALLOWED", true;
    /// The broker does not know how.
    NotImplemented = 540, "NOT_IMPLEMENTED", true;
    /// The broker failed.
    InternalError = 541, "INTERNAL_ERROR", true;
}

impl ReplyCode {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for ReplyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_number() {
        for &code in ReplyCode::ALL {
            assert_eq!(ReplyCode::from_number(code.number()), Some(code));
        }
        assert_eq!(ReplyCode::from_number(999), None);
    }

    #[test]
    fn the_five_hundreds_end_the_connection() {
        for &code in ReplyCode::ALL {
            let hard = code.number() >= 500 || matches!(code.number(), 320 | 402);
            assert_eq!(code.is_hard(), hard, "{code}");
        }
    }
}
