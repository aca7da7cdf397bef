//! What can go wrong between a client and a broker.

use std::io;
use std::time::Duration;

use nexo_amqp::codec::method::{ChannelMethod, ConnectionMethod};
use nexo_amqp::codec::{CodecError, FrameError, HeaderError, Method, MethodError};

/// Why something did not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody took the connection.
    #[error("cannot connect to {address}; is the broker running?")]
    Connect {
        /// Where the broker should be.
        address: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The connection was taken, and the handshake failed.
    #[error("cannot log in to {address}")]
    LogIn {
        /// Where the broker is.
        address: String,
        /// What happened instead.
        #[source]
        source: Box<Error>,
    },
    /// What is to be sent does not go out.
    #[error("cannot send to the broker")]
    Send(#[source] io::Error),
    /// What should come does not.
    #[error("cannot read from the broker")]
    Receive(#[source] io::Error),
    /// It closed the socket without a word.
    #[error("the broker ended the connection")]
    Ended,
    /// It closed a channel or the connection, and said why.
    #[error("the broker closed the {what}: {code} {text}")]
    Closed {
        /// `channel` or `connection`.
        what: &'static str,
        /// The reply code, such as 404.
        code: u16,
        /// The reason in words.
        text: String,
    },
    /// It said nothing for too long.
    #[error("the broker has not answered for {0:?}")]
    Silent(Duration),
    /// It took nothing for too long.
    #[error("the broker has not read on for {0:?}")]
    NotReading(Duration),
    /// It said something else than it had to.
    #[error("{due} is due, not {found}")]
    Unexpected {
        /// What should have come.
        due: String,
        /// What came.
        found: String,
    },
    /// It sent something that is no AMQP.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// It allows less in a frame than the protocol does.
    #[error("the broker's largest frame is too small: {0} bytes")]
    FrameMax(u32),
    /// The protocol has no room for such a name.
    #[error("'{0}' is longer than 255 bytes")]
    NameTooLong(String),
}

impl Error {
    /// Something came that was not due.
    pub(crate) fn unexpected(due: &str, found: impl std::fmt::Debug) -> Self {
        Self::Unexpected { due: due.to_owned(), found: format!("{found:?}") }
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        CodecError::from(error).into()
    }
}

impl From<MethodError> for Error {
    fn from(error: MethodError) -> Self {
        CodecError::from(error).into()
    }
}

impl From<HeaderError> for Error {
    fn from(error: HeaderError) -> Self {
        CodecError::from(error).into()
    }
}

/// An error if this method ends the connection or a channel, with the reason that the broker gives.
///
/// # Errors
/// [`Error::Closed`], and nothing else.
pub fn refuse_close(method: &Method<'_>) -> Result<(), Error> {
    let (what, code, text) = match method {
        Method::Connection(ConnectionMethod::Close(close)) => {
            ("connection", close.reply_code, close.reply_text)
        }
        Method::Channel(ChannelMethod::Close(close)) => ("channel", close.reply_code, close.reply_text),
        _ => return Ok(()),
    };
    Err(Error::Closed { what, code, text: String::from_utf8_lossy(text.as_bytes()).into_owned() })
}
