//! Requests of AWS JSON 1.0, laid out as bytes. Those that are sent again and again are made once.

use std::io::Write;

use super::SqsUrl;

/// Who signs. Nexo, moto, ElasticMQ and LocalStack do not check signatures unless told to, but some want to see one, and
/// take the region from it.
const AUTHORIZATION: &str = "AWS4-HMAC-SHA256 Credential=bench/20260101/us-east-1/sqs/aws4_request, \
                             SignedHeaders=host;x-amz-date, Signature=0";
/// When it was signed.
const DATE: &str = "20260101T000000Z";
/// Digits of a mark: a number in a body, which must be text.
pub(super) const MARK_BYTES: usize = 16;
/// Most messages in one request.
pub(crate) const BATCH_MAX: u16 = 10;

/// A request as it goes over the wire.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    action: &'static str,
    bytes: Vec<u8>,
    /// Where the marks of messages are.
    marks: Vec<usize>,
}

impl Request {
    pub(super) fn new(url: &SqsUrl, action: &'static str, body: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(512 + body.len());
        // Writing to a vector cannot fail.
        let _ = write!(
            bytes,
            "POST / HTTP/1.1\r\nHost: {}\r\nContent-Type: application/x-amz-json-1.0\r\n\
             X-Amz-Target: AmazonSQS.{action}\r\nX-Amz-Date: {DATE}\r\nAuthorization: {AUTHORIZATION}\r\n\
             Content-Length: {}\r\n\r\n",
            url.address,
            body.len()
        );
        bytes.extend_from_slice(body);
        Self { action, bytes, marks: Vec::new() }
    }

    /// What it asks for.
    pub(crate) fn action(&self) -> &'static str {
        self.action
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// `count` messages of so many bytes each. They begin with a mark if there is room for one.
    pub(super) fn send_batch(url: &SqsUrl, queue_url: &str, count: u16, body_bytes: usize) -> Self {
        let mut body = format!(r#"{{"QueueUrl":{},"Entries":["#, quoted(queue_url)).into_bytes();
        let mut marks = Vec::new();
        for id in 0..count {
            let comma = if id > 0 { "," } else { "" };
            let _ = write!(body, r#"{comma}{{"Id":"{id}","MessageBody":""#);
            if body_bytes >= MARK_BYTES {
                marks.push(body.len());
            }
            body.extend(std::iter::repeat_n(b'x', body_bytes));
            body.extend_from_slice(br#""}"#);
        }
        body.extend_from_slice(b"]}");
        let mut request = Self::new(url, "SendMessageBatch", &body);
        let head = request.bytes.len() - body.len();
        request.marks = marks.into_iter().map(|mark| head + mark).collect();
        request
    }

    /// One message.
    pub(crate) fn send(url: &SqsUrl, queue_url: &str, text: &str) -> Self {
        let body = format!(r#"{{"QueueUrl":{},"MessageBody":{}}}"#, quoted(queue_url), quoted(text));
        Self::new(url, "SendMessage", body.as_bytes())
    }

    /// Waits for up to `count` messages.
    pub(crate) fn receive(url: &SqsUrl, queue_url: &str, count: u16, wait_seconds: u16) -> Self {
        let body = format!(
            r#"{{"QueueUrl":{},"MaxNumberOfMessages":{count},"WaitTimeSeconds":{wait_seconds},"MessageSystemAttributeNames":["ApproximateReceiveCount"]}}"#,
            quoted(queue_url)
        );
        Self::new(url, "ReceiveMessage", body.as_bytes())
    }

    /// Deletes what was received.
    pub(crate) fn delete_batch<'a>(
        url: &SqsUrl,
        queue_url: &str,
        receipts: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut body = format!(r#"{{"QueueUrl":{},"Entries":["#, quoted(queue_url));
        for (id, receipt) in receipts.into_iter().enumerate() {
            let comma = if id > 0 { "," } else { "" };
            body += &format!(r#"{comma}{{"Id":"{id}","ReceiptHandle":{}}}"#, quoted(receipt));
        }
        body += "]}";
        Self::new(url, "DeleteMessageBatch", body.as_bytes())
    }

    /// Writes a mark into every message.
    pub(super) fn mark(&mut self, mark: u64) {
        for at in &self.marks {
            // The room was laid out.
            let _ = write!(&mut self.bytes[*at..*at + MARK_BYTES], "{mark:016x}");
        }
    }
}

/// Actions on a queue by its name.
pub(super) fn by_name(url: &SqsUrl, action: &'static str, name: &str) -> Request {
    Request::new(url, action, format!(r#"{{"QueueName":{}}}"#, quoted(name)).as_bytes())
}

/// Actions on a queue by its address.
pub(super) fn by_url(url: &SqsUrl, action: &'static str, queue_url: &str) -> Request {
    Request::new(url, action, format!(r#"{{"QueueUrl":{}}}"#, quoted(queue_url)).as_bytes())
}

/// The mark at the head of a message, if there is one.
pub(super) fn mark_of(body: &str) -> Option<u64> {
    u64::from_str_radix(body.get(..MARK_BYTES)?, 16).ok()
}

/// A text as JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn url() -> SqsUrl {
        "sqs://h:1".parse().unwrap()
    }

    /// The head and the body of a request, whose length must be the one that its head tells.
    #[track_caller]
    fn parts(request: &Request) -> (String, Value) {
        let text = String::from_utf8(request.bytes().to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("\r\nContent-Length: {}", body.len())), "{head}");
        (head.to_owned(), serde_json::from_str(body).unwrap())
    }

    #[test]
    fn a_batch_has_messages_of_the_size_and_a_mark_in_each() {
        let mut request = Request::send_batch(&url(), "http://h/q", 3, 20);
        request.mark(0xAB);
        let (head, body) = parts(&request);
        assert!(head.starts_with("POST / HTTP/1.1\r\nHost: h:1\r\n"), "{head}");
        assert!(head.contains("\r\nX-Amz-Target: AmazonSQS.SendMessageBatch\r\n"), "{head}");
        let ids: Vec<&Value> = body["Entries"].as_array().unwrap().iter().map(|entry| &entry["Id"]).collect();
        assert_eq!(ids, ["0", "1", "2"]);
        for entry in body["Entries"].as_array().unwrap() {
            assert_eq!(entry["MessageBody"], "00000000000000abxxxx");
            assert_eq!(mark_of(entry["MessageBody"].as_str().unwrap()), Some(0xAB));
        }
    }

    #[test]
    fn a_message_that_is_too_short_has_no_mark() {
        let mut request = Request::send_batch(&url(), "http://h/q", 1, 3);
        request.mark(1);
        assert_eq!(parts(&request).1["Entries"], json!([{"Id": "0", "MessageBody": "xxx"}]));
        assert_eq!(mark_of("xxx"), None);
    }

    #[test]
    fn receipts_are_quoted_as_json_wants_it() {
        let request = Request::delete_batch(&url(), "http://h/q", ["a+b/=", "say \"x\"\\"]);
        let expected =
            json!([{"Id": "0", "ReceiptHandle": "a+b/="}, {"Id": "1", "ReceiptHandle": "say \"x\"\\"}]);
        assert_eq!(parts(&request).1["Entries"], expected);
    }
}
