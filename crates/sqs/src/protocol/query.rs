//! The Query protocol: every parameter in a form, lists and maps flattened. Where AWS's own clients have used two names for
//! the same list, both are understood.

use std::collections::BTreeMap;

use super::form::{Form, Part};
use crate::fault::{Fault, FaultCode};
use crate::request::*;
use crate::text::Text;

/// The request that a form makes.
pub(crate) fn parse<'a>(form: &Form<'a>) -> Result<(Action, Request<'a>), Fault> {
    let name = form.get("Action").ok_or_else(|| {
        Fault::new(FaultCode::MissingAction, "The request must contain the parameter Action.")
    })?;
    let action = Action::named(name).ok_or_else(|| {
        let name: String = name.chars().take(256).collect();
        let message = format!("The action {name} is not valid for this endpoint.");
        Fault::new(FaultCode::InvalidAction, message)
    })?;
    Ok((action, request(action, &form.whole())?))
}

fn request<'a>(action: Action, form: &Part<'_, 'a>) -> Result<Request<'a>, Fault> {
    let queue_url = form.text("QueueUrl");
    let attributes = || form.map("Attribute", "Name", "Value");
    let tags = || form.map("Tag", "Key", "Value").or_else(|| form.map("Tags", "Key", "Value"));
    Ok(match action {
        Action::AddPermission => Request::AddPermission(AddPermission {
            queue_url,
            label: form.text("Label"),
            aws_account_ids: form.list("AWSAccountId"),
            actions: form.list("ActionName"),
        }),
        Action::CancelMessageMoveTask => {
            Request::CancelMessageMoveTask(CancelMessageMoveTask { task_handle: form.text("TaskHandle") })
        }
        Action::ChangeMessageVisibility => Request::ChangeMessageVisibility(ChangeMessageVisibility {
            queue_url,
            receipt_handle: form.text("ReceiptHandle"),
            visibility_timeout: form.integer("VisibilityTimeout")?,
        }),
        Action::ChangeMessageVisibilityBatch => {
            Request::ChangeMessageVisibilityBatch(ChangeMessageVisibilityBatch {
                queue_url,
                entries: entries(form, action, |entry| {
                    Ok(ChangeVisibilityEntry {
                        id: entry.text("Id"),
                        receipt_handle: entry.text("ReceiptHandle"),
                        visibility_timeout: entry.integer("VisibilityTimeout")?,
                    })
                })?,
            })
        }
        Action::CreateQueue => Request::CreateQueue(CreateQueue {
            queue_name: form.text("QueueName"),
            attributes: attributes(),
            tags: tags(),
        }),
        Action::DeleteMessage => {
            Request::DeleteMessage(DeleteMessage { queue_url, receipt_handle: form.text("ReceiptHandle") })
        }
        Action::DeleteMessageBatch => Request::DeleteMessageBatch(DeleteMessageBatch {
            queue_url,
            entries: entries(form, action, |entry| {
                Ok(DeleteEntry { id: entry.text("Id"), receipt_handle: entry.text("ReceiptHandle") })
            })?,
        }),
        Action::DeleteQueue => Request::DeleteQueue(DeleteQueue { queue_url }),
        Action::GetQueueAttributes => Request::GetQueueAttributes(GetQueueAttributes {
            queue_url,
            attribute_names: form.list("AttributeName"),
        }),
        Action::GetQueueUrl => Request::GetQueueUrl(GetQueueUrl {
            queue_name: form.text("QueueName"),
            _queue_owner: form.text("QueueOwnerAWSAccountId"),
        }),
        Action::ListDeadLetterSourceQueues => {
            Request::ListDeadLetterSourceQueues(ListDeadLetterSourceQueues {
                queue_url,
                next_token: form.text("NextToken"),
                max_results: form.integer("MaxResults")?,
            })
        }
        Action::ListMessageMoveTasks => Request::ListMessageMoveTasks(ListMessageMoveTasks {
            source_arn: form.text("SourceArn"),
            max_results: form.integer("MaxResults")?,
        }),
        Action::ListQueueTags => Request::ListQueueTags(ListQueueTags { queue_url }),
        Action::ListQueues => Request::ListQueues(ListQueues {
            queue_name_prefix: form.text("QueueNamePrefix"),
            next_token: form.text("NextToken"),
            max_results: form.integer("MaxResults")?,
        }),
        Action::PurgeQueue => Request::PurgeQueue(PurgeQueue { queue_url }),
        Action::ReceiveMessage => Request::ReceiveMessage(ReceiveMessage {
            queue_url,
            attribute_names: form.list("AttributeName"),
            message_system_attribute_names: form.list("MessageSystemAttributeName"),
            message_attribute_names: form.list("MessageAttributeName"),
            max_number_of_messages: form.integer("MaxNumberOfMessages")?,
            visibility_timeout: form.integer("VisibilityTimeout")?,
            wait_time_seconds: form.integer("WaitTimeSeconds")?,
            receive_request_attempt_id: form.text("ReceiveRequestAttemptId"),
        }),
        Action::RemovePermission => {
            Request::RemovePermission(RemovePermission { queue_url, label: form.text("Label") })
        }
        Action::SendMessage => {
            let entry = send_entry(form)?;
            Request::SendMessage(SendMessage {
                queue_url,
                message_body: entry.message_body,
                delay_seconds: entry.delay_seconds,
                message_attributes: entry.message_attributes,
                message_system_attributes: entry.message_system_attributes,
                message_deduplication_id: entry.message_deduplication_id,
                message_group_id: entry.message_group_id,
            })
        }
        Action::SendMessageBatch => Request::SendMessageBatch(SendMessageBatch {
            queue_url,
            entries: entries(form, action, send_entry)?,
        }),
        Action::SetQueueAttributes => {
            Request::SetQueueAttributes(SetQueueAttributes { queue_url, attributes: attributes() })
        }
        Action::StartMessageMoveTask => Request::StartMessageMoveTask(StartMessageMoveTask {
            source_arn: form.text("SourceArn"),
            destination_arn: form.text("DestinationArn"),
            max_number_of_messages_per_second: form.integer("MaxNumberOfMessagesPerSecond")?,
        }),
        Action::TagQueue => Request::TagQueue(TagQueue { queue_url, tags: tags() }),
        Action::UntagQueue => {
            let tag_keys = form.list("TagKey").or_else(|| form.list("TagKeys"));
            Request::UntagQueue(UntagQueue { queue_url, tag_keys })
        }
    })
}

/// The entries of a batch. One without any is a batch all the same.
fn entries<'a, T>(
    form: &Part<'_, 'a>,
    action: Action,
    read: impl Fn(&Part<'_, 'a>) -> Result<T, Fault>,
) -> Result<Option<Vec<T>>, Fault> {
    let items = form.items(&format!("{}RequestEntry", action.name()));
    items.iter().map(read).collect::<Result<Vec<T>, Fault>>().map(Some)
}

fn send_entry<'a>(form: &Part<'_, 'a>) -> Result<SendEntry<'a>, Fault> {
    Ok(SendEntry {
        id: form.text("Id"),
        message_body: form.text("MessageBody"),
        delay_seconds: form.integer("DelaySeconds")?,
        message_attributes: message_attributes(form, "MessageAttribute"),
        message_system_attributes: message_attributes(form, "MessageSystemAttribute"),
        message_deduplication_id: form.text("MessageDeduplicationId"),
        message_group_id: form.text("MessageGroupId"),
    })
}

fn message_attributes<'a>(form: &Part<'_, 'a>, name: &str) -> Option<BTreeMap<Text<'a>, AttributeValue<'a>>> {
    let items = form.items(name);
    let attributes: BTreeMap<_, _> = items
        .iter()
        .map(|item| {
            let value = item.part("Value");
            let value = AttributeValue {
                data_type: value.text("DataType"),
                string_value: value.text("StringValue"),
                binary_value: value.text("BinaryValue"),
                string_list_values: value.list("StringListValue"),
                binary_list_values: value.list("BinaryListValue"),
            };
            (item.text("Name").unwrap_or_default(), value)
        })
        .collect();
    (!attributes.is_empty()).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_read_with_its_attributes() {
        let body = b"Action=SendMessageBatch&SendMessageBatchRequestEntry.1.Id=a\
            &SendMessageBatchRequestEntry.1.MessageBody=hi\
            &SendMessageBatchRequestEntry.1.MessageAttribute.1.Name=n\
            &SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType=Number\
            &SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue=5";
        let form = Form::parse("", body).unwrap();
        let (_, request) = parse(&form).unwrap();
        let Request::SendMessageBatch(batch) = request else { panic!("{request:?}") };
        let entries = batch.entries.unwrap();
        assert_eq!(entries[0].id.as_deref(), Some("a"));
        let attributes = entries[0].message_attributes.as_ref().unwrap();
        let value = &attributes[&Text::from("n")];
        assert_eq!(value.data_type.as_deref(), Some("Number"));
        assert_eq!(value.string_value.as_deref(), Some("5"));
    }

    #[test]
    fn a_form_without_an_action_or_with_a_strange_one_is_refused() {
        let code = |body| parse(&Form::parse("", body).unwrap()).unwrap_err().code;
        assert_eq!(code(b""), FaultCode::MissingAction);
        assert_eq!(code(b"Action=Dance"), FaultCode::InvalidAction);
        assert_eq!(code(b"Action=SendMessage&DelaySeconds=x"), FaultCode::InvalidParameterValue);
    }
}
