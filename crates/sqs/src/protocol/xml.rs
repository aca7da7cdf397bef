//! Answers of the Query protocol.

use bytes::Bytes;

use crate::fault::Fault;
use crate::request::Action;
use crate::response::*;

const NAMESPACE: &str = "http://queue.amazonaws.com/doc/2012-11-05/";

/// An answer as XML.
pub(crate) fn response(action: Action, response: &Response, request_id: &str) -> Bytes {
    let mut xml = Xml(String::from("<?xml version=\"1.0\"?>"));
    let name = action.name();
    xml.0.push_str(&format!("<{name}Response xmlns=\"{NAMESPACE}\">"));
    if !matches!(response, Response::Done) {
        let before = xml.0.len();
        xml.0.push_str(&format!("<{name}Result>"));
        let empty = xml.0.len();
        write_result(&mut xml, action, response);
        if xml.0.len() == empty {
            xml.0.truncate(before);
            xml.0.push_str(&format!("<{name}Result/>"));
        } else {
            xml.0.push_str(&format!("</{name}Result>"));
        }
    }
    xml.inside("ResponseMetadata", |xml| xml.text("RequestId", request_id));
    xml.0.push_str(&format!("</{name}Response>"));
    xml.0.into()
}

/// An error as XML.
pub(crate) fn fault(fault: &Fault, request_id: &str) -> Bytes {
    let mut xml = Xml(String::from("<?xml version=\"1.0\"?>"));
    xml.0.push_str(&format!("<ErrorResponse xmlns=\"{NAMESPACE}\">"));
    xml.inside("Error", |xml| {
        xml.text("Type", fault.code.side());
        xml.text("Code", fault.code.query());
        xml.text("Message", fault.query_message());
        xml.0.push_str("<Detail/>");
    });
    xml.text("RequestId", request_id);
    xml.0.push_str("</ErrorResponse>");
    xml.0.into()
}

fn write_result(xml: &mut Xml, action: Action, response: &Response) {
    match response {
        Response::Done => {}
        Response::QueueUrl(queue) => xml.text("QueueUrl", &queue.queue_url),
        Response::Queues(Queues { queue_urls, next_token })
        | Response::DeadLetterSources(DeadLetterSources { queue_urls, next_token }) => {
            for url in queue_urls {
                xml.text("QueueUrl", url);
            }
            xml.optional("NextToken", next_token.as_deref());
        }
        Response::QueueAttributes(queue) => {
            for (name, value) in &queue.attributes {
                xml.pair("Attribute", ("Name", name), ("Value", value));
            }
        }
        Response::QueueTags(queue) => {
            for (key, value) in &queue.tags {
                xml.pair("Tag", ("Key", key), ("Value", value));
            }
        }
        Response::Sent(sent) => write_sent(xml, sent),
        Response::SentBatch(SentBatch { successful, failed }) => {
            write_batch(xml, action, successful, failed, |xml, entry| {
                xml.text("Id", &entry.id);
                write_sent(xml, &entry.sent);
            });
        }
        Response::SettledBatch(BatchReply { successful, failed }) => {
            write_batch(xml, action, successful, failed, |xml, entry| xml.text("Id", &entry.id));
        }
        Response::Messages(received) => {
            for message in &received.messages {
                xml.inside("Message", |xml| write_message(xml, message));
            }
        }
        Response::MoveTaskStarted(task) => xml.text("TaskHandle", &task.task_handle),
        Response::MoveTaskCancelled(task) => {
            let moved = task.approximate_number_of_messages_moved;
            xml.text("ApproximateNumberOfMessagesMoved", &moved.to_string());
        }
        Response::MoveTasks(tasks) => {
            for task in &tasks.results {
                xml.inside("ListMessageMoveTasksResultEntry", |xml| write_task(xml, task));
            }
        }
    }
}

fn write_sent(xml: &mut Xml, sent: &Sent) {
    xml.text("MessageId", &sent.message_id);
    xml.text("MD5OfMessageBody", &sent.md5_of_body);
    xml.optional("MD5OfMessageAttributes", sent.md5_of_attributes.as_deref());
    xml.optional("MD5OfMessageSystemAttributes", sent.md5_of_system_attributes.as_deref());
    xml.optional("SequenceNumber", sent.sequence_number.as_deref());
}

fn write_batch<T>(
    xml: &mut Xml,
    action: Action,
    successful: &[T],
    failed: &[FailedEntry],
    write: impl Fn(&mut Xml, &T),
) {
    let name = format!("{}ResultEntry", action.name());
    for entry in successful {
        xml.inside(&name, |xml| write(xml, entry));
    }
    for entry in failed {
        xml.inside("BatchResultErrorEntry", |xml| {
            xml.text("Id", &entry.id);
            xml.text("SenderFault", if entry.sender_fault { "true" } else { "false" });
            xml.text("Code", entry.code);
            xml.text("Message", &entry.message);
        });
    }
}

fn write_message(xml: &mut Xml, message: &Message) {
    xml.text("MessageId", &message.message_id);
    xml.text("ReceiptHandle", &message.receipt_handle);
    xml.text("MD5OfBody", &message.md5_of_body);
    xml.text("Body", message.body.as_str());
    for (name, value) in &message.attributes {
        xml.pair("Attribute", ("Name", name), ("Value", value));
    }
    xml.optional("MD5OfMessageAttributes", message.md5_of_attributes.as_deref());
    for (name, value) in &message.message_attributes {
        xml.inside("MessageAttribute", |xml| {
            xml.text("Name", name);
            xml.inside("Value", |xml| {
                xml.optional("StringValue", value.string_value.as_deref());
                xml.optional("BinaryValue", value.binary_value.as_deref());
                xml.text("DataType", &value.data_type);
            });
        });
    }
}

fn write_task(xml: &mut Xml, task: &MoveTask) {
    xml.optional("TaskHandle", task.task_handle.as_deref());
    xml.text("Status", task.status);
    xml.text("SourceArn", &task.source_arn);
    xml.optional("DestinationArn", task.destination_arn.as_deref());
    let number = |number: u64| number.to_string();
    xml.optional(
        "MaxNumberOfMessagesPerSecond",
        task.max_number_of_messages_per_second.map(number).as_deref(),
    );
    xml.text("ApproximateNumberOfMessagesMoved", &number(task.approximate_number_of_messages_moved));
    xml.text("ApproximateNumberOfMessagesToMove", &number(task.approximate_number_of_messages_to_move));
    xml.optional("FailureReason", task.failure_reason.as_deref());
    xml.text("StartedTimestamp", &number(task.started_timestamp));
}

/// XML as it grows.
struct Xml(String);

impl Xml {
    fn inside(&mut self, name: &str, write: impl FnOnce(&mut Self)) {
        self.0.push('<');
        self.0.push_str(name);
        self.0.push('>');
        write(self);
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
    }

    fn text(&mut self, name: &str, text: &str) {
        self.inside(name, |xml| xml.escaped(text));
    }

    fn optional(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    fn pair(&mut self, name: &str, one: (&str, &str), other: (&str, &str)) {
        self.inside(name, |xml| {
            xml.text(one.0, one.1);
            xml.text(other.0, other.1);
        });
    }

    fn escaped(&mut self, text: &str) {
        let mut rest = text;
        while let Some(at) = rest.find(|c: char| matches!(c, '&' | '<' | '>' | '"' | '\r') || is_forbidden(c))
        {
            let (plain, special) = rest.split_at(at);
            self.0.push_str(plain);
            let mut chars = special.chars();
            self.0.push_str(match chars.next() {
                Some('&') => "&amp;",
                Some('<') => "&lt;",
                Some('>') => "&gt;",
                Some('"') => "&quot;",
                // A reader of XML would take it for a part of a line's end.
                Some('\r') => "&#xD;",
                // XML has no way to say it; only texts that are no bodies can have it.
                _ => "\u{fffd}",
            });
            rest = chars.as_str();
        }
        self.0.push_str(rest);
    }
}

/// Whether a text has any character that cannot be in XML. Looked at for every body, so most of it is done by bytes.
pub(crate) fn has_forbidden(text: &str) -> bool {
    let bytes = text.as_bytes();
    // Without a way out in the middle the loop takes many bytes at once.
    let control = |byte: u8| byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r');
    let any_control = |chunk: &[u8]| chunk.iter().fold(false, |found, byte| found | control(*byte));
    // The two that are no control characters begin with this byte.
    bytes.chunks(256).any(any_control) || (bytes.contains(&0xef) && text.chars().any(is_forbidden))
}

/// Characters that cannot be in XML, nor in a body of SQS.
const fn is_forbidden(c: char) -> bool {
    matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultCode;

    #[test]
    fn an_error_names_its_side_code_and_text() {
        let xml = fault(&Fault::new(FaultCode::EmptyBatchRequest, "a < b & \"c\"\r\n\u{1}"), "id");
        let text = std::str::from_utf8(&xml).unwrap();
        assert!(
            text.contains("<Type>Sender</Type><Code>AWS.SimpleQueueService.EmptyBatchRequest</Code>"),
            "{text}"
        );
        assert!(text.contains("<Message>a &lt; b &amp; &quot;c&quot;&#xD;\n\u{fffd}</Message>"), "{text}");
        assert!(text.ends_with("<RequestId>id</RequestId></ErrorResponse>"), "{text}");
    }

    #[test]
    fn forbidden_characters_are_found_wherever_they_are() {
        for code in 0..=0x11_0000 {
            let Some(c) = char::from_u32(code) else { continue };
            assert_eq!(has_forbidden(c.encode_utf8(&mut [0; 4])), is_forbidden(c), "{code:x}");
        }
        let long = "x".repeat(1000);
        assert!(!has_forbidden(&long));
        assert!(has_forbidden(&format!("{long}\u{1}")) && has_forbidden(&format!("{long}\u{ffff}{long}")));
    }

    #[test]
    fn an_answer_with_nothing_to_say_has_its_request_id() {
        let xml = response(Action::DeleteQueue, &Response::Done, "id");
        assert!(!std::str::from_utf8(&xml).unwrap().contains("DeleteQueueResult"));
        assert!(std::str::from_utf8(&xml).unwrap().contains("<RequestId>id</RequestId>"));
    }
}
