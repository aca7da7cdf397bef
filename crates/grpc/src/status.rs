//! The one table from what went wrong to a gRPC status. Call sites only write `?`.

use nexo_broker::job_rules::JobError;
use nexo_broker::topology::VhostError;
use nexo_broker::{
    ConfigError, CreateError, ExchangeError, JobCallError, PopError, PushError, QueueError, SettleError,
    SubscribeError,
};
use nexo_net::Unserved;
use tonic::{Code, Status};

use crate::proto;

/// Something that went wrong, with the code that clients are told. It becomes the status of a call, or the
/// error of one item of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    /// A field of the request that cannot be; `message` begins with its name.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { code: Code::InvalidArgument, message: message.into() }
    }

    /// The broker is going down, so what was asked will not happen here.
    pub(crate) fn stopping() -> Self {
        Self { code: Code::Unavailable, message: "the broker is shutting down".into() }
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        Self::new(failure.code, in_one_line(failure.message))
    }
}

impl From<Failure> for proto::Error {
    fn from(failure: Failure) -> Self {
        Self { code: failure.code.into(), message: in_one_line(failure.message) }
    }
}

/// A message that may repeat what a client gave, in a form that forges nothing where it is logged or shown.
fn in_one_line(message: String) -> String {
    if !message.contains(char::is_control) {
        return message;
    }
    let mut shown = String::with_capacity(message.len() + 16);
    for c in message.chars() {
        if c.is_control() {
            shown.extend(c.escape_debug());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// An error of the broker and the code it has here.
trait Coded: std::fmt::Display {
    fn code(&self) -> Code;
}

impl Coded for QueueError {
    fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::NotFound,
            // Of the codes, clients try again on this one by themselves.
            Self::Alarm(_) | Self::Busy { .. } | Self::Unavailable { .. } => Code::Unavailable,
        }
    }
}

impl Coded for ConfigError {
    fn code(&self) -> Code {
        match self {
            Self::OutOfRange { .. }
            | Self::OwnDeadLetterQueue { .. }
            | Self::DeadLettersElsewhere { .. }
            | Self::DeadLetterNameTooLong { .. } => Code::InvalidArgument,
        }
    }
}

impl Coded for CreateError {
    fn code(&self) -> Code {
        match self {
            Self::Config(error) => error.code(),
            Self::Differs { .. } => Code::AlreadyExists,
            Self::TooMany { .. } => Code::ResourceExhausted,
            Self::Vhost(error) => error.code(),
            Self::Queue(error) => error.code(),
        }
    }
}

impl Coded for VhostError {
    fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::NotFound,
            Self::Exists { .. } => Code::AlreadyExists,
            Self::Deleting { .. } => Code::Unavailable,
            Self::TooMany { .. } | Self::QueueLimit { .. } => Code::ResourceExhausted,
            Self::TooLong { .. } | Self::Control { .. } => Code::InvalidArgument,
        }
    }
}

impl Coded for ExchangeError<VhostError> {
    fn code(&self) -> Code {
        match self {
            Self::Refused(error) => error.code(),
            Self::Queue(error) => error.code(),
        }
    }
}

impl Coded for PushError {
    fn code(&self) -> Code {
        match self {
            Self::Full { .. } => Code::ResourceExhausted,
            Self::BodyTooLarge { .. } | Self::TimeTooLong { .. } => Code::InvalidArgument,
            Self::Unavailable { .. } => Code::Unavailable,
        }
    }
}

impl Coded for PopError {
    fn code(&self) -> Code {
        match self {
            Self::OutOfRange { .. } => Code::InvalidArgument,
            Self::TooManyInFlight { .. } => Code::ResourceExhausted,
            Self::Queue(error) => error.code(),
        }
    }
}

impl Coded for SubscribeError {
    fn code(&self) -> Code {
        match self {
            Self::InExclusiveUse { .. } => Code::FailedPrecondition,
            Self::Pop(error) => error.code(),
        }
    }
}

impl Coded for SettleError {
    fn code(&self) -> Code {
        match self {
            Self::QueueGone { .. } | Self::Unknown { .. } => Code::NotFound,
            Self::NotLeased { .. } | Self::Stale { .. } | Self::AlreadyReceived { .. } => {
                Code::FailedPrecondition
            }
            Self::TimeTooLong { .. } => Code::InvalidArgument,
            Self::Unavailable { .. } => Code::Unavailable,
        }
    }
}

impl Coded for JobError {
    fn code(&self) -> Code {
        match self {
            Self::NoSuchQueue { .. }
            | Self::QueueDeleted { .. }
            | Self::NoSuchBudget { .. }
            | Self::NoSuchJob { .. }
            | Self::NoSuchWaiter { .. } => Code::NotFound,
            // What was asked is sound, and something else must change first.
            Self::BudgetInUse { .. }
            | Self::QueueGoing { .. }
            | Self::NotHeld { .. }
            | Self::Finished { .. }
            | Self::NeverPaid { .. } => Code::FailedPrecondition,
            Self::OtherKey { .. } => Code::AlreadyExists,
            Self::UnknownClass { .. }
            | Self::BadCost { .. }
            | Self::BadSetting { .. }
            | Self::BadName(_)
            | Self::BadExpression { .. } => Code::InvalidArgument,
            Self::TooMany { .. } | Self::OutOfMemory { .. } => Code::ResourceExhausted,
        }
    }
}

impl Coded for JobCallError {
    fn code(&self) -> Code {
        match self {
            Self::Refused(error) => error.code(),
            Self::Queue(error) => error.code(),
        }
    }
}

impl Coded for Unserved {
    fn code(&self) -> Code {
        match self {
            Self::NobodyLeads | Self::LeaderUnreachable | Self::AnotherLeads | Self::Deposed => {
                Code::Unavailable
            }
        }
    }
}

macro_rules! failure_from {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self { code: error.code(), message: error.to_string() }
            }
        }
    )*};
}

failure_from!(
    QueueError,
    CreateError,
    PushError,
    PopError,
    SubscribeError,
    SettleError,
    VhostError,
    ExchangeError<VhostError>,
    JobError,
    JobCallError,
    Unserved
);

#[cfg(test)]
mod tests {
    use nexo_types::{Offset, QueueName};

    use super::*;

    fn mail() -> QueueName {
        QueueName::new("mail").unwrap()
    }

    fn code(failure: impl Into<Failure>) -> Code {
        Status::from(failure.into()).code()
    }

    #[test]
    fn each_kind_of_failure_has_the_code_that_clients_act_on() {
        assert_eq!(code(QueueError::NotFound { name: mail() }), Code::NotFound);
        assert_eq!(code(QueueError::Unavailable { reason: "disk full".into() }), Code::Unavailable);
        assert_eq!(code(PushError::Full { name: mail(), fact: "5 of 5".into() }), Code::ResourceExhausted);
        let differs = CreateError::Differs {
            name: mail(),
            existing: "paused=false".into(),
            asked: "paused=true".into(),
        };
        assert_eq!(code(differs), Code::AlreadyExists);
        assert_eq!(
            code(SettleError::NotLeased { queue: mail(), offset: Offset(1) }),
            Code::FailedPrecondition
        );
        let stale = SettleError::Stale { queue: mail(), offset: Offset(1), attempt: 1, current: 2 };
        assert_eq!(code(stale), Code::FailedPrecondition);
        assert_eq!(code(SettleError::Unknown { queue: mail(), offset: Offset(1) }), Code::NotFound);
    }

    #[test]
    fn failures_of_jobs_have_codes_too() {
        let (job, queue) = (nexo_types::JobId(7), nexo_types::JobQueueName::new("deals").unwrap());
        assert_eq!(code(JobError::NoSuchJob { job }), Code::NotFound);
        let name = nexo_types::BudgetName::new("api").unwrap();
        let (waiter, key, asked) = ("w".into(), "k".into(), "other".into());
        let other = JobError::OtherKey { queue: queue.clone(), waiter, key, asked };
        assert_eq!(code(other), Code::AlreadyExists);
        assert_eq!(code(JobError::BudgetInUse { name, queue }), Code::FailedPrecondition);
        let receipt = nexo_broker::job_rules::JobReceipt { job, hold: 1 };
        assert_eq!(code(JobError::NotHeld { receipt, state: "" }), Code::FailedPrecondition);
        assert_eq!(code(JobError::BadSetting { reason: String::new() }), Code::InvalidArgument);
        assert_eq!(code(JobError::OutOfMemory { used: 2, max: 1 }), Code::ResourceExhausted);
        let away = QueueError::Unavailable { reason: "disk full".into() };
        assert_eq!(code(JobCallError::Queue(away)), Code::Unavailable);
        let missing = QueueError::NotFound { name: mail() };
        assert_eq!(code(JobCallError::Queue(missing)), Code::NotFound, "a queue for answers");
    }

    #[test]
    fn a_message_shows_control_characters_and_has_none() {
        let failure = Failure::invalid("'a\n\u{1b}[2J\u{9b}\"ü' is not one");
        let shown = r#"'a\n\u{1b}[2J\u{9b}"ü' is not one"#;
        assert_eq!(proto::Error::from(failure.clone()).message, shown);
        assert_eq!(Status::from(failure).message(), shown);
    }

    #[test]
    fn the_words_of_the_broker_reach_the_client() {
        let status = Status::from(Failure::from(QueueError::NotFound { name: mail() }));
        assert_eq!(status.message(), "queue 'mail' does not exist");
        let error = proto::Error::from(Failure::from(QueueError::NotFound { name: mail() }));
        assert_eq!(error.code, 5);
    }
}
