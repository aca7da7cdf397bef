//! What ends a channel or a connection, with the code and the text that RabbitMQ would use.

use std::borrow::Cow;

use nexo_broker::topology::{
    BindError, DeclareError, DeleteError, KindError, PassiveError, RouteError, UnbindError, VhostError,
};
use nexo_broker::{Alarm, CreateError, ExchangeError, PopError, QueueError, SubscribeError};
use nexo_types::{ExchangeName, NameError, QueueName, VhostName};

use super::erlang;
use crate::codec::{
    CodecError, FrameError, MethodError, MethodId, PropertiesError, ReplyCode, SHORT_STR_BYTES_MAX, Table,
};

/// A refusal. Whether it ends the channel or the connection is in the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: ReplyCode,
    /// What follows the code's name in the reply text.
    pub(super) text: String,
    /// The method that was refused, if it was a method.
    pub(super) method: MethodId,
}

const DOTS: &str = "...";

pub(super) const NO_METHOD: MethodId = MethodId { class_id: 0, method_id: 0 };

impl Refusal {
    pub(super) fn new(code: ReplyCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), method: NO_METHOD }
    }

    pub(super) fn not_found(text: impl Into<String>) -> Self {
        Self::new(ReplyCode::NotFound, text)
    }

    pub(super) fn precondition(text: impl Into<String>) -> Self {
        Self::new(ReplyCode::PreconditionFailed, text)
    }

    pub(super) fn no_queue(name: &QueueName) -> Self {
        Self::not_found(format!("no queue '{name}' in vhost '{}'", name.vhost_str()))
    }

    pub(super) fn no_exchange(name: &str, vhost: &str) -> Self {
        Self::not_found(format!("no exchange '{name}' in vhost '{vhost}'"))
    }

    /// Whether it may be due to which queues, exchanges and bindings there are: then nobody is told before that is safe.
    pub(super) fn rests_on_declares(&self) -> bool {
        use ReplyCode::{NotFound, PreconditionFailed, ResourceLocked};
        matches!(self.code, NotFound | PreconditionFailed | ResourceLocked)
    }

    /// The whole reply text. One that is too long ends with dots, as RabbitMQ's do.
    pub(super) fn reply_text(&self) -> String {
        let mut text = format!("{} - {}", self.code.name(), self.text);
        if text.len() > SHORT_STR_BYTES_MAX {
            let room = SHORT_STR_BYTES_MAX - DOTS.len();
            let whole = (0..=room).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(whole);
            text.push_str(DOTS);
        }
        text
    }

    pub(super) fn of(mut self, method: MethodId) -> Self {
        self.method = method;
        self
    }
}

impl From<CodecError> for Refusal {
    fn from(error: CodecError) -> Self {
        Self::new(error.reply_code(), error.to_string())
    }
}

impl From<PropertiesError> for Refusal {
    fn from(error: PropertiesError) -> Self {
        CodecError::from(error).into()
    }
}

/// Bytes that are no frame. The texts hold the words that RabbitMQ uses.
pub(super) fn frame_refusal(error: FrameError) -> Refusal {
    let text = match error {
        FrameError::TooLarge { payload_bytes, frame_bytes_max } => {
            format!("type method, all octets: {{frame_too_large,{payload_bytes},{frame_bytes_max}}}")
        }
        FrameError::End { found } => format!("{{invalid_frame_end_marker,{found}}}"),
        FrameError::UnknownKind { .. } | FrameError::HeartbeatPayload { .. } => error.to_string(),
    };
    Refusal::new(ReplyCode::FrameError, text)
}

/// The payload of a method frame that is no method.
pub(super) fn method_refusal(error: MethodError, payload: &[u8]) -> Refusal {
    let fields = payload.get(4..).unwrap_or_default();
    match error {
        MethodError::Short { .. } | MethodError::Trailing { .. } | MethodError::Unnamed { .. } => {
            Refusal::new(ReplyCode::FrameError, format!("cannot decode {}", erlang::numbers(fields)))
        }
        MethodError::Unknown { id } => Refusal::from(CodecError::from(error)).of(id),
        MethodError::Table { .. } => CodecError::from(error).into(),
    }
}

/// A method that no client may send, or not here.
pub(super) fn unimplemented() -> Refusal {
    Refusal::new(ReplyCode::CommandInvalid, "unimplemented method")
}

impl From<KindError> for Refusal {
    fn from(error: KindError) -> Self {
        match error {
            KindError::Unknown { name } => {
                Self::new(ReplyCode::CommandInvalid, format!("unknown exchange type '{name}'"))
            }
            KindError::NoDelayedType => {
                Self::precondition("Invalid argument, 'x-delayed-type' must be an existing exchange type")
            }
            KindError::Property { name } => Self::precondition(format!("Unsupported property: {name}")),
            KindError::TwoHashes => {
                Self::precondition("hash-header and hash-property are mutually exclusive")
            }
            KindError::HashIsNoText => Self::precondition(error.to_string()),
        }
    }
}

/// A queue that was not made.
pub(super) fn create_refusal(name: &QueueName, error: CreateError) -> Refusal {
    match error {
        CreateError::Config(error) => Refusal::precondition(format!(
            "invalid arg for queue '{name}' in vhost '{}': {error}",
            name.vhost_str()
        )),
        CreateError::Vhost(VhostError::QueueLimit { name: vhost, max }) => Refusal::precondition(format!(
            "cannot declare queue '{name}': queue limit in vhost '{vhost}' ({max}) is reached"
        )),
        // It is being deleted, and so is whoever is in it.
        CreateError::Vhost(error) => Refusal::new(ReplyCode::NotAllowed, error.to_string()),
        // RabbitMQ has this limit since 4.1, for the cluster.
        CreateError::TooMany { max } => Refusal::precondition(format!(
            "cannot declare queue '{name}': queue limit in cluster ({max}) is reached"
        )),
        error @ CreateError::Differs { .. } => Refusal::precondition(error.to_string()),
        CreateError::Queue(error) => error.into(),
    }
}

impl From<nexo_broker::DeleteError> for Refusal {
    fn from(error: nexo_broker::DeleteError) -> Self {
        match error {
            nexo_broker::DeleteError::InUse { name } => {
                Self::precondition(format!("queue '{name}' in vhost '{}' in use", name.vhost_str()))
            }
            nexo_broker::DeleteError::NotEmpty { name } => {
                Self::precondition(format!("queue '{name}' in vhost '{}' not empty", name.vhost_str()))
            }
            nexo_broker::DeleteError::Queue(error) => error.into(),
        }
    }
}

impl From<NameError> for Refusal {
    fn from(error: NameError) -> Self {
        Self::precondition(error.to_string())
    }
}

impl From<QueueError> for Refusal {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::NotFound { name } => Self::no_queue(&name),
            QueueError::Alarm(Alarm { reason, .. })
            | QueueError::Busy { reason }
            | QueueError::Unavailable { reason } => Self::new(ReplyCode::InternalError, reason),
        }
    }
}

impl From<SubscribeError> for Refusal {
    fn from(error: SubscribeError) -> Self {
        match error {
            SubscribeError::InExclusiveUse { name } => {
                let text = format!("queue '{name}' in vhost '{}' in exclusive use", name.vhost_str());
                Self::new(ReplyCode::AccessRefused, text)
            }
            SubscribeError::Pop(PopError::Queue(error)) => error.into(),
            SubscribeError::Pop(error @ (PopError::OutOfRange { .. } | PopError::TooManyInFlight { .. })) => {
                Self::precondition(error.to_string())
            }
        }
    }
}

pub(super) fn default_exchange() -> Refusal {
    Refusal::new(ReplyCode::AccessRefused, "operation not permitted on the default exchange")
}

fn reserved(what: &str, name: &str) -> Refusal {
    Refusal::new(ReplyCode::AccessRefused, format!("{what} name '{name}' contains reserved prefix 'amq.*'"))
}

impl From<ExchangeError<DeclareError>> for Refusal {
    fn from(error: ExchangeError<DeclareError>) -> Self {
        match error {
            ExchangeError::Queue(error) => error.into(),
            ExchangeError::Refused(DeclareError::DefaultExchange) => default_exchange(),
            ExchangeError::Refused(DeclareError::Reserved { name }) => reserved("exchange", name.as_str()),
            ExchangeError::Refused(DeclareError::Differs { name, difference }) => {
                Self::precondition(format!(
                    "inequivalent arg '{}' for exchange '{name}' in vhost '{}': received {} but current is {}",
                    difference.property,
                    name.vhost_str(),
                    difference.received,
                    difference.current
                ))
            }
            ExchangeError::Refused(
                error @ (DeclareError::TooMany { .. }
                | DeclareError::AlternateElsewhere { .. }
                | DeclareError::Vhost(_)),
            ) => Self::precondition(error.to_string()),
        }
    }
}

impl From<PassiveError> for Refusal {
    fn from(error: PassiveError) -> Self {
        match error {
            PassiveError::DefaultExchange => default_exchange(),
            PassiveError::NoSuchExchange { name } => Self::no_exchange(name.as_str(), name.vhost_str()),
        }
    }
}

impl From<ExchangeError<DeleteError>> for Refusal {
    fn from(error: ExchangeError<DeleteError>) -> Self {
        match error {
            ExchangeError::Queue(error) => error.into(),
            ExchangeError::Refused(DeleteError::DefaultExchange) => default_exchange(),
            ExchangeError::Refused(DeleteError::Reserved { name }) => Self::new(
                ReplyCode::AccessRefused,
                format!("deletion of system exchange '{name}' in vhost '{}' not allowed", name.vhost_str()),
            ),
            ExchangeError::Refused(DeleteError::InUse { name }) => {
                Self::precondition(format!("exchange '{name}' in vhost '{}' in use", name.vhost_str()))
            }
        }
    }
}

/// A binding that was not made; its arguments are told of as the client wrote them.
pub(super) fn bind_refusal(error: ExchangeError<BindError>, arguments: Table<'_>) -> Refusal {
    let refused = match error {
        ExchangeError::Queue(error) => return error.into(),
        ExchangeError::Refused(refused) => refused,
    };
    match refused {
        BindError::DefaultExchange => default_exchange(),
        BindError::NoSuchExchange { name } => Refusal::no_exchange(name.as_str(), name.vhost_str()),
        BindError::NoSuchQueue { name } => Refusal::no_queue(&name),
        BindError::UnknownMatch { value } => Refusal::precondition(format!(
            "Invalid x-match field value {}; expected all, any, all-with-x, or any-with-x",
            erlang::binary(value.as_bytes())
        )),
        BindError::MatchIsNoText => {
            let (kind, value) = match arguments.get("x-match") {
                Some(value) => (value.type_name(), erlang::value(value)),
                None => ("void", String::new()),
            };
            Refusal::precondition(format!(
                "Invalid x-match field type {kind} (value {value}); expected longstr"
            ))
        }
        BindError::WeightIsNoNumber { key } => Refusal::precondition(format!(
            "The binding key must be an integer: {}",
            erlang::binary(key.as_bytes())
        )),
        BindError::WeightTooSmall { .. } => Refusal::precondition("The binding key must be greater than 0"),
        BindError::TooMany { .. } | BindError::AcrossVhosts => Refusal::precondition(refused.to_string()),
    }
}

impl From<ExchangeError<UnbindError>> for Refusal {
    fn from(error: ExchangeError<UnbindError>) -> Self {
        match error {
            ExchangeError::Queue(error) => error.into(),
            ExchangeError::Refused(UnbindError::DefaultExchange) => default_exchange(),
        }
    }
}

/// A publish that cannot be routed at all.
pub(super) fn route_refusal(error: &RouteError, exchange: &str, vhost: &VhostName) -> Refusal {
    match error {
        RouteError::NoSuchExchange => Refusal::no_exchange(exchange, vhost.as_str()),
        RouteError::Internal => Refusal::new(
            ReplyCode::AccessRefused,
            format!("cannot publish to internal exchange '{exchange}' in vhost '{vhost}'"),
        ),
    }
}

pub(super) fn queue_name(vhost: &VhostName, bytes: &[u8]) -> Result<QueueName, Refusal> {
    Ok(QueueName::at(vhost, &in_one_line(text(bytes)?))?)
}

pub(super) fn exchange_name(vhost: &VhostName, bytes: &[u8]) -> Result<ExchangeName, Refusal> {
    Ok(ExchangeName::at(vhost, &in_one_line(text(bytes)?))?)
}

/// RabbitMQ takes line ends out of names without a word.
fn in_one_line(name: &str) -> Cow<'_, str> {
    if name.contains(['\r', '\n']) { name.replace(['\r', '\n'], "").into() } else { name.into() }
}

pub(super) fn text(bytes: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(bytes).map_err(|_| Refusal::new(ReplyCode::FrameError, "Malformed UTF-8 in shortstr"))
}

/// Names that only the broker may give.
pub(super) fn refuse_reserved_queue(name: &QueueName) -> Result<(), Refusal> {
    if name.as_str().starts_with("amq.") { Err(reserved("queue", name.as_str())) } else { Ok(()) }
}
