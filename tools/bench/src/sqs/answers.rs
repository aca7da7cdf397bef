//! What answers say, as far as a load must know to be honest: which messages came, whether all were taken, and why not.

use std::borrow::Cow;
use std::fmt::Write;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::SqsUrl;

/// Most of a text that is no JSON that is shown.
const TEXT_MAX: usize = 300;

/// The answer to `ReceiveMessage`.
#[derive(Debug, Deserialize)]
pub(crate) struct Received<'a> {
    /// Missing or null if there are none, depending on the endpoint.
    #[serde(borrow, default, rename = "Messages")]
    messages: Option<Vec<Message<'a>>>,
}

/// A message that was received.
#[derive(Debug, Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow, rename = "ReceiptHandle")]
    pub(crate) receipt: Cow<'a, str>,
    #[serde(borrow, rename = "Body")]
    pub(crate) body: Cow<'a, str>,
    #[serde(borrow, default, rename = "Attributes")]
    attributes: Attributes<'a>,
}

#[derive(Debug, Default, Deserialize)]
struct Attributes<'a> {
    #[serde(borrow, default, rename = "ApproximateReceiveCount")]
    receive_count: Option<Cow<'a, str>>,
}

impl<'a> Received<'a> {
    pub(crate) fn parse(body: &'a [u8]) -> anyhow::Result<Vec<Message<'a>>> {
        // Some endpoints answer with nothing at all where there is nothing to say.
        if body.is_empty() {
            return Ok(Vec::new());
        }
        let received: Self =
            serde_json::from_slice(body).context("the answer to ReceiveMessage is not clear")?;
        Ok(received.messages.unwrap_or_default())
    }
}

impl Message<'_> {
    /// Whether the endpoint had handed it out before.
    pub(crate) fn is_redelivered(&self) -> bool {
        self.attributes.receive_count.as_deref().is_some_and(|count| count != "1")
    }
}

/// The answer to a batch.
#[derive(Debug, Deserialize)]
struct Outcome {
    #[serde(default, rename = "Successful")]
    successful: Option<Vec<serde::de::IgnoredAny>>,
    #[serde(default, rename = "Failed")]
    failed: Option<Vec<Failure>>,
}

#[derive(Debug, Default, Deserialize)]
struct Failure {
    #[serde(default, rename = "Code")]
    code: String,
    #[serde(default, rename = "Message")]
    message: Option<String>,
}

/// Makes sure that a batch was taken as a whole.
pub(crate) fn all_taken(action: &str, count: u64, body: &[u8]) -> anyhow::Result<()> {
    let outcome: Outcome = parse(action, body)?;
    let taken = outcome.successful.unwrap_or_default().len() as u64;
    if let Some(failure) = outcome.failed.unwrap_or_default().first() {
        let Failure { code, message } = failure;
        bail!(
            "{action} took {taken} of {count} messages; the first other failed with {code}: {}",
            message.as_deref().unwrap_or_default()
        );
    }
    ensure!(taken == count, "{action} answers for {taken} of {count} messages");
    Ok(())
}

/// The answer to whatever gives a queue.
#[derive(Debug, Deserialize)]
pub(super) struct Queue {
    #[serde(rename = "QueueUrl")]
    pub(super) url: String,
}

pub(super) fn parse<T: DeserializeOwned>(action: &str, body: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(body).with_context(|| format!("the answer to {action} is not clear"))
}

/// An error of AWS JSON. Endpoints do not agree on how `message` is spelt.
#[derive(Debug, Default, Deserialize)]
struct Fault {
    #[serde(default, rename = "__type")]
    kind: String,
    #[serde(default, alias = "Message")]
    message: Option<String>,
}

/// Why a request was refused, in the endpoint's own words.
pub(super) fn refusal(url: &SqsUrl, action: &str, status: u16, body: &[u8]) -> String {
    let mut text = format!("{url} refuses {action} with status {status}");
    match serde_json::from_slice::<Fault>(body) {
        Ok(Fault { kind, message }) if !kind.is_empty() => {
            // What stands before the # is the name of a service.
            let kind = kind.rsplit('#').next().unwrap_or_default();
            let _ = write!(text, ", {kind}: {}", message.unwrap_or_default());
        }
        _ => {
            let shown: String = String::from_utf8_lossy(body).chars().take(TEXT_MAX).collect();
            let _ = write!(text, ": {}", shown.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_with_what_is_escaped_in_them() {
        let body = br#"{"Messages":[{"MessageId":"1","ReceiptHandle":"a\/b\"","MD5OfBody":"x","Body":"tab\t",
            "Attributes":{"ApproximateReceiveCount":"1"}},{"ReceiptHandle":"c","Body":"","MessageAttributes":{"a":{}},
            "Attributes":{"ApproximateReceiveCount":"2"}}]}"#;
        let messages = Received::parse(body).unwrap();
        assert_eq!((&*messages[0].receipt, &*messages[0].body), ("a/b\"", "tab\t"));
        let redelivered: Vec<bool> = messages.iter().map(Message::is_redelivered).collect();
        assert_eq!(redelivered, [false, true]);
        // What has no escapes is not copied.
        assert!(matches!(messages[1].receipt, Cow::Borrowed("c")));
    }

    #[test]
    fn nothing_received_is_said_in_several_ways() {
        for body in [&b""[..], b"{}", br#"{"Messages":[]}"#, br#"{"Messages":null}"#] {
            assert!(Received::parse(body).unwrap().is_empty());
        }
        assert!(Received::parse(b"<xml/>").is_err());
    }

    #[test]
    fn a_batch_that_was_not_taken_as_a_whole_is_an_error() {
        let taken = |body: &[u8]| all_taken("SendMessageBatch", 2, body).map_err(|error| error.to_string());
        assert_eq!(taken(br#"{"Successful":[{"Id":"0"},{"Id":"1"}],"Failed":[]}"#), Ok(()));
        assert_eq!(taken(br#"{"Successful":[{"Id":"0"},{"Id":"1"}]}"#), Ok(()));
        assert_eq!(
            taken(br#"{"Successful":[{"Id":"0"}]}"#).unwrap_err(),
            "SendMessageBatch answers for 1 of 2 messages"
        );
        assert_eq!(
            taken(br#"{"Successful":[{"Id":"0"}],"Failed":[{"Id":"1","Code":"Over","SenderFault":true,"Message":"Full."}]}"#)
                .unwrap_err(),
            "SendMessageBatch took 1 of 2 messages; the first other failed with Over: Full."
        );
    }

    #[test]
    fn a_refusal_is_told_in_the_words_of_the_endpoint() {
        let url: SqsUrl = "sqs://h:1".parse().unwrap();
        let told = |body: &[u8]| refusal(&url, "DeleteQueue", 400, body);
        assert_eq!(
            told(br#"{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"No such queue."}"#),
            "sqs://h:1 refuses DeleteQueue with status 400, QueueDoesNotExist: No such queue."
        );
        assert_eq!(
            told(b"<html>\n  no</html>"),
            "sqs://h:1 refuses DeleteQueue with status 400: <html> no</html>"
        );
    }
}
