//! AWS JSON 1.0: the action in a header, one object in the body.

use bytes::Bytes;
use serde::Serialize;

use crate::fault::{Fault, FaultCode};
use crate::limits::VALUES_MAX;
use crate::request::{Action, Request};
use crate::response::Response;

/// What stands before the action in `X-Amz-Target`.
pub(crate) const TARGET_PREFIX: &str = "AmazonSQS.";

/// The request that a target and a body make.
pub(crate) fn parse<'a>(target: &str, body: &'a [u8]) -> Result<(Action, Request<'a>), Fault> {
    let name = target.strip_prefix(TARGET_PREFIX).unwrap_or_default();
    let action = Action::named(name).ok_or_else(|| {
        let target: String = target.chars().take(256).collect();
        Fault::new(FaultCode::InvalidAction, format!("The action {target} is not valid for this endpoint."))
    })?;
    // A client that has nothing to say may say it with no body at all.
    let body = if body.is_empty() { b"{}" } else { body };
    let unreadable = |reason: String| {
        Fault::new(FaultCode::Serialization, format!("The request body cannot be read: {reason}"))
    };
    if has_too_many_values(body) {
        return Err(unreadable(format!("it has more than {VALUES_MAX} values")));
    }
    let request = action.parse_json(body).map_err(|error| unreadable(error.to_string()))?;
    Ok((action, request))
}

/// Whether a body has more values than are read. It need not be JSON.
fn has_too_many_values(body: &[u8]) -> bool {
    // A value takes at least one byte and another to part it from the next.
    if body.len() / 2 < VALUES_MAX {
        return false;
    }
    let (mut commas, mut in_text, mut escaped) = (0, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b',' if !in_text => commas += 1,
            _ => {}
        }
    }
    commas >= VALUES_MAX
}

/// An answer as JSON; nothing where there is nothing to say.
pub(crate) fn response(response: &Response) -> Bytes {
    if matches!(response, Response::Done) {
        return Bytes::new();
    }
    to_bytes(response, response.bytes_about())
}

/// An error as JSON.
pub(crate) fn fault(fault: &Fault) -> Bytes {
    #[derive(Serialize)]
    struct Error<'a> {
        #[serde(rename = "__type")]
        kind: String,
        message: &'a str,
    }
    to_bytes(&Error { kind: fault.code.json_type(), message: &fault.message }, fault.message.len())
}

fn to_bytes(value: &impl Serialize, bytes_about: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(bytes_about);
    serde_json::to_writer(&mut bytes, value)
        .expect("answers have text for keys, and nothing that JSON cannot say");
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_by_its_target() {
        let body = br#"{"QueueUrl":"http://h/0/q","MessageBody":"hi","DelaySeconds":3,"Unknown":[1]}"#;
        let (action, request) = parse("AmazonSQS.SendMessage", body).unwrap();
        assert_eq!(action, Action::SendMessage);
        let Request::SendMessage(send) = request else { panic!("{request:?}") };
        assert_eq!(send.message_body.as_deref(), Some("hi"));
        assert_eq!(send.delay_seconds, Some(3));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let code = |target, body: &'static [u8]| parse(target, body).unwrap_err().code;
        assert_eq!(code("AmazonSQS.Dance", b"{}"), FaultCode::InvalidAction);
        assert_eq!(code("", b"{}"), FaultCode::InvalidAction);
        for body in [
            &b"{"[..],
            b"[]",
            b"1",
            b"\xff",
            b"{\"QueueUrl\":5}",
            b"{\"DelaySeconds\":\"5\"}",
            b"{\"DelaySeconds\":1e99}",
            b"{\"MessageAttributes\":[]}",
            b"{\"MessageAttributes\":{\"a\":\"b\"}}",
            b"{\"MessageAttributes\":{\"a\":[\"String\",\"b\"]}}",
        ] {
            assert_eq!(code("AmazonSQS.SendMessage", body), FaultCode::Serialization, "{body:?}");
        }
    }

    #[test]
    fn more_values_than_anybody_needs_are_refused_but_not_in_texts() {
        let list = |count| format!("{{\"AttributeNames\":[{}\"\"]}}", "\"\",".repeat(count - 1));
        assert!(parse("AmazonSQS.ReceiveMessage", list(VALUES_MAX).as_bytes()).is_ok());
        let fault = parse("AmazonSQS.ReceiveMessage", list(VALUES_MAX + 1).as_bytes()).unwrap_err();
        assert_eq!(fault.code, FaultCode::Serialization);
        let text = format!("{{\"MessageBody\":\"{}\"}}", ",\\\"\\\\".repeat(VALUES_MAX));
        let (_, request) = parse("AmazonSQS.SendMessage", text.as_bytes()).unwrap();
        assert!(matches!(request, Request::SendMessage(send) if send.message_body.is_some()));
    }

    #[test]
    fn null_is_nothing_and_no_body_is_an_empty_one() {
        let (_, request) = parse("AmazonSQS.ListQueues", b"{\"MaxResults\":null}").unwrap();
        assert!(matches!(request, Request::ListQueues(list) if list.max_results.is_none()));
        assert!(parse("AmazonSQS.ListQueues", b"").is_ok());
    }
}
