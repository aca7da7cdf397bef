//! What goes wrong, in AWS's codes and words: one table for both protocols.

use std::borrow::Cow;

use nexo_broker::{Alarm, QueueError};
use nexo_net::Unserved;

/// An answer that says what went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: FaultCode,
    pub(crate) message: Cow<'static, str>,
}

macro_rules! codes {
    ($($name:ident: $namespace:ident $shape:literal, $query:literal, $status:literal;)+) => {
        /// Every code there is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum FaultCode {
            $(#[doc = concat!("`", $query, "`")] $name,)+
        }

        impl FaultCode {
            const fn row(self) -> Row {
                match self {
                    $(Self::$name => Row {
                        namespace: Namespace::$namespace, shape: $shape, query: $query, status: $status,
                    },)+
                }
            }
        }
    };
}

/// Who defines an error: SQS itself, or what all of AWS has in common.
#[derive(Clone, Copy, Debug)]
enum Namespace {
    Sqs,
    Common,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    namespace: Namespace,
    shape: &'static str,
    query: &'static str,
    status: u16,
}

codes! {
    // Name: who defines it, shape in JSON, code in the Query protocol, HTTP status.
    BatchEntryIdsNotDistinct: Sqs "BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", 400;
    BatchRequestTooLong: Sqs "BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", 400;
    EmptyBatchRequest: Sqs "EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400;
    InvalidAddress: Sqs "InvalidAddress", "InvalidAddress", 404;
    InvalidAttributeName: Sqs "InvalidAttributeName", "InvalidAttributeName", 400;
    InvalidAttributeValue: Sqs "InvalidAttributeValue", "InvalidAttributeValue", 400;
    InvalidBatchEntryId: Sqs "InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", 400;
    InvalidMessageContents: Sqs "InvalidMessageContents", "InvalidMessageContents", 400;
    OverLimit: Sqs "OverLimit", "OverLimit", 403;
    PurgeQueueInProgress: Sqs "PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403;
    QueueDeletedRecently: Sqs "QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently", 400;
    QueueDoesNotExist: Sqs "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400;
    QueueNameExists: Sqs "QueueNameExists", "QueueAlreadyExists", 400;
    ReceiptHandleIsInvalid: Sqs "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404;
    ResourceNotFound: Sqs "ResourceNotFoundException", "ResourceNotFoundException", 404;
    TooManyEntriesInBatchRequest: Sqs "TooManyEntriesInBatchRequest", "AWS.SimpleQueueService.TooManyEntriesInBatchRequest", 400;
    UnsupportedOperation: Sqs "UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", 400;

    AccessDenied: Common "AccessDeniedException", "AccessDenied", 403;
    IncompleteSignature: Common "IncompleteSignatureException", "IncompleteSignature", 400;
    InternalFailure: Common "InternalFailure", "InternalFailure", 500;
    InvalidAction: Common "UnknownOperationException", "InvalidAction", 400;
    InvalidClientTokenId: Common "UnrecognizedClientException", "InvalidClientTokenId", 403;
    InvalidParameterValue: Common "InvalidParameterValueException", "InvalidParameterValue", 400;
    MalformedQueryString: Common "MalformedQueryStringException", "MalformedQueryString", 400;
    MissingAction: Common "MissingActionException", "MissingAction", 400;
    MissingAuthenticationToken: Common "MissingAuthenticationTokenException", "MissingAuthenticationToken", 403;
    MissingParameter: Common "MissingRequiredParameterException", "MissingParameter", 400;
    NotPermitted: Common "AccessDeniedException", "AccessDenied", 403;
    RequestEntityTooLarge: Common "RequestEntityTooLargeException", "RequestEntityTooLarge", 413;
    RequestExpired: Common "RequestExpiredException", "RequestExpired", 400;
    RequestTimeout: Common "RequestTimeoutException", "RequestTimeout", 408;
    Serialization: Common "SerializationException", "SerializationException", 400;
    ServiceUnavailable: Common "ServiceUnavailableException", "ServiceUnavailable", 503;
    SignatureDoesNotMatch: Common "InvalidSignatureException", "SignatureDoesNotMatch", 403;
}

impl FaultCode {
    /// The code in the Query protocol, in the header of JSON answers and in entries of batches.
    pub(crate) const fn query(self) -> &'static str {
        self.row().query
    }

    /// The `__type` in JSON.
    pub(crate) fn json_type(self) -> String {
        let row = self.row();
        let namespace = match row.namespace {
            Namespace::Sqs => "com.amazonaws.sqs",
            Namespace::Common => "com.amazon.coral.service",
        };
        format!("{namespace}#{}", row.shape)
    }

    /// The HTTP status.
    pub(crate) const fn status(self) -> u16 {
        self.row().status
    }

    /// Whose fault it is, as AWS says it.
    pub(crate) const fn side(self) -> &'static str {
        if self.is_senders() { "Sender" } else { "Receiver" }
    }

    /// Whether somebody was not let in.
    pub(crate) const fn is_refused_login(self) -> bool {
        matches!(
            self,
            Self::AccessDenied
                | Self::IncompleteSignature
                | Self::InvalidClientTokenId
                | Self::MissingAuthenticationToken
                | Self::SignatureDoesNotMatch
        )
    }

    /// Whether whoever asked can do something about it.
    pub(crate) const fn is_senders(self) -> bool {
        self.row().status < 500
    }
}

impl Fault {
    pub(crate) fn new(code: FaultCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// A parameter that makes no sense, and why.
    pub(crate) fn value(parameter: &str, value: &str, reason: &str) -> Self {
        // Whatever was given may be of any length.
        let value: String = value.chars().take(256).collect();
        Self::invalid(format!("Value {value} for parameter {parameter} is invalid. Reason: {reason}"))
    }

    /// A request that makes no sense.
    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FaultCode::InvalidParameterValue, message)
    }

    /// A parameter that is not there.
    pub(crate) fn missing(parameter: &str) -> Self {
        Self::new(FaultCode::MissingParameter, format!("The request must contain the parameter {parameter}."))
    }

    pub(crate) fn no_such_queue() -> Self {
        Self::new(FaultCode::QueueDoesNotExist, "The specified queue does not exist.")
    }

    /// What the Query protocol says. AWS has the same words for both but here.
    pub(crate) fn query_message(&self) -> &str {
        match self.code {
            FaultCode::QueueDoesNotExist => "The specified queue does not exist for this wsdl version.",
            _ => &self.message,
        }
    }

    /// A parameter that queues of this type do not have.
    pub(crate) fn wrong_queue_type(parameter: &str, value: &str) -> Self {
        let reason = "The request include parameter that is not valid for this queue type.";
        Self::value(parameter, value, reason)
    }

    /// An attribute that does not exist, or not on this kind of queue.
    pub(crate) fn unknown_attribute(name: &str) -> Self {
        let name: String = name.chars().take(256).collect();
        Self::new(FaultCode::InvalidAttributeName, format!("Unknown Attribute {name}."))
    }

    /// An attribute that cannot have this value.
    pub(crate) fn attribute_value(name: &str) -> Self {
        let message = format!("Invalid value for the parameter {name}.");
        Self::new(FaultCode::InvalidAttributeValue, message)
    }
}

impl From<Unserved> for Fault {
    fn from(why: Unserved) -> Self {
        Self::new(FaultCode::ServiceUnavailable, why.to_string())
    }
}

impl From<QueueError> for Fault {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::NotFound { .. } => Self::no_such_queue(),
            // 503 and not a throttling error: every retry mode of the SDKs tries it again, and none of them takes it for a rate
            // that this client alone has passed.
            QueueError::Alarm(Alarm { reason, .. })
            | QueueError::Busy { reason }
            | QueueError::Unavailable { reason } => Self::new(FaultCode::ServiceUnavailable, reason),
        }
    }
}
