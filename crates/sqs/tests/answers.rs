//! Answers that AWS gives and that no SDK shows: how requests may be written, and what comes back, byte by byte.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::*;
use nexo_log::disk::MemoryDisk;
use serde_json::{Value, json};

fn path(url: &str) -> String {
    format!("/{}", url.splitn(4, '/').last().unwrap())
}

#[tokio::test]
async fn a_queue_is_named_by_its_address_or_by_its_name() {
    let server = Server::start(&MemoryDisk::new()).await;
    server.create("q").await;
    for url in ["q", "/000000000000/q", "http://elsewhere:1/000000000000/q"] {
        server.json("SendMessage", &json!({ "QueueUrl": url, "MessageBody": "x" })).await;
    }
    for url in ["never", "http://whatever-incorrect-queue-address", "http://h/000000000000/never"] {
        let ask = json!({ "QueueUrl": url }).to_string();
        let (status, text) = server.ask(&json_head("ReceiveMessage"), &ask).await;
        assert!(status == 400 && text.contains("#QueueDoesNotExist"), "{url}: {text}");
    }
    let own = json!({ "QueueUrl": format!("http://{}", server.address) }).to_string();
    let (status, text) = server.ask(&json_head("ReceiveMessage"), &own).await;
    assert!(status == 404 && text.contains("#InvalidAddress"), "{text}");
    server.end().await;
}

#[tokio::test]
async fn lists_of_one_need_no_number() {
    let server = Server::start(&MemoryDisk::new()).await;
    let form = "Action=CreateQueue&QueueName=q&Attribute.Name=DelaySeconds&Attribute.Value=7";
    let (status, text) = server.ask("", form).await;
    assert_eq!(status, 200, "{text}");
    let (_, text) = server.ask("", "Action=GetQueueAttributes&QueueUrl=q&AttributeName=All").await;
    assert!(text.contains("<Name>DelaySeconds</Name><Value>7</Value>"), "{text}");
    let (_, text) = server.ask("", "Action=GetQueueAttributes&QueueUrl=q&AttributeName=DelaySeconds").await;
    assert!(text.contains("<Value>7</Value>") && !text.contains("VisibilityTimeout"), "{text}");
    server.end().await;
}

#[tokio::test]
async fn a_star_wants_all_attributes_whatever_letters_their_names_have() {
    let server = Server::start(&MemoryDisk::new()).await;
    server.create("q").await;
    let attribute = json!({ "DataType": "String", "StringValue": "v" });
    let send = json!({ "QueueUrl": "q", "MessageBody": "x", "MessageAttributes": { "größe": attribute } });
    server.json("SendMessage", &send).await;
    let got =
        server.json("ReceiveMessage", &json!({ "QueueUrl": "q", "MessageAttributeNames": ["*"] })).await;
    assert_eq!(got["Messages"][0]["MessageAttributes"]["größe"]["StringValue"], "v");
    server.end().await;
}

#[tokio::test]
async fn the_trace_of_a_request_is_that_of_its_messages_unless_they_say_otherwise() {
    let server = Server::start(&MemoryDisk::new()).await;
    server.create("q").await;
    let own = json!({ "AWSTraceHeader": { "DataType": "String", "StringValue": "Root=own" } });
    let entries = json!([
        { "Id": "a", "MessageBody": "a" },
        { "Id": "b", "MessageBody": "b", "MessageSystemAttributes": own },
    ]);
    let head = json_head("SendMessageBatch") + "X-Amzn-Trace-Id: Root=1-abc;Sampled=1\r\n";
    let (status, text) = server.ask(&head, &json!({ "QueueUrl": "q", "Entries": entries }).to_string()).await;
    assert_eq!(status, 200, "{text}");
    let ask = json!({ "QueueUrl": "q", "MaxNumberOfMessages": 10, "AttributeNames": ["AWSTraceHeader"] });
    let got = server.json("ReceiveMessage", &ask).await;
    let traces: Vec<&Value> = (0..2).map(|at| &got["Messages"][at]["Attributes"]["AWSTraceHeader"]).collect();
    assert_eq!(traces, ["Root=1-abc;Sampled=1", "Root=own"]);
    server.end().await;
}

#[tokio::test]
async fn the_query_protocol_answers_in_json_if_asked_to() {
    let server = Server::start(&MemoryDisk::new()).await;
    let url = server.create("q").await;
    let accept = "Accept: application/json\r\n";
    let form = "Action=SendMessage&QueueUrl=q&MessageBody=hi&MessageAttribute.Name=n\
        &MessageAttribute.Value.DataType=String&MessageAttribute.Value.StringValue=v";
    let (status, text) = server.ask(accept, form).await;
    let said: Value = serde_json::from_str(&text).unwrap();
    let sent = &said["SendMessageResponse"]["SendMessageResult"];
    assert!(status == 200 && sent["MD5OfMessageBody"] == "49f68a5c8493ec2c0bf489821c21fc3b", "{text}");
    let at = format!("{}?Action=ReceiveMessage&AttributeName=All&MessageAttributeName=All", path(&url));
    let (_, head, text) = server.get(&at, accept).await;
    assert!(head.contains("content-type: application/json\r\n"), "{head}");
    let said: Value = serde_json::from_str(&text).unwrap();
    let message = &said["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"][0];
    assert_eq!(message["Body"], "hi", "{text}");
    assert_eq!(
        message["MessageAttributes"],
        json!([{ "Name": "n", "Value": { "StringValue": "v", "DataType": "String" } }])
    );
    assert!(message["Attributes"].as_array().unwrap().iter().any(|one| one["Name"] == "SentTimestamp"));
    let (status, text) = server.ask(accept, "Action=GetQueueUrl&QueueName=never").await;
    let said: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status, 400);
    assert_eq!(said["Error"]["Code"], "AWS.SimpleQueueService.NonExistentQueue", "{text}");
    let (_, head, text) = server.get(&at, "Accept: text/html, application/xml\r\n").await;
    assert!(head.contains("content-type: text/xml") && text.starts_with("<?xml"), "{head}");
    server.end().await;
}

#[tokio::test]
async fn what_is_not_about_a_queue_cannot_be_asked_at_its_address() {
    let server = Server::start(&MemoryDisk::new()).await;
    let url = server.create("q").await;
    for action in ["CreateQueue&QueueName=other", "ListQueues"] {
        let (status, _, text) = server.get(&format!("{}?Action={action}", path(&url)), "").await;
        assert!(status == 400 && text.contains("<Code>InvalidAction</Code>"), "{action}: {text}");
        let (status, _, text) = server.get(&format!("/?Action={action}"), "").await;
        assert_eq!(status, 200, "{action}: {text}");
    }
    server.end().await;
}

#[tokio::test]
async fn a_get_without_an_action_is_an_unknown_operation() {
    let server = Server::start(&MemoryDisk::new()).await;
    let url = server.create("q").await;
    for path in ["/", "/?QueueName=q", &path(&url)] {
        for head in ["", "Accept: application/json\r\n"] {
            let (status, head, text) = server.get(path, head).await;
            assert_eq!((status, &*text), (404, "<UnknownOperationException/>\n"), "{path}");
            assert!(head.contains("content-type: text/xml"), "{head}");
        }
    }
    let (status, text) = server.ask("", "QueueName=q").await;
    assert!(status == 400 && text.contains("MissingAction"), "{text}");
    server.end().await;
}

#[tokio::test]
async fn nothing_is_said_in_the_words_of_each_protocol() {
    let server = Server::start(&MemoryDisk::new()).await;
    server.create("q").await;
    let entry = json!([{ "Id": "a", "MessageBody": "x" }]);
    let (_, text) = server
        .ask(&json_head("SendMessageBatch"), &json!({ "QueueUrl": "q", "Entries": entry }).to_string())
        .await;
    let said: Value = serde_json::from_str(&text).unwrap();
    assert!(said["Successful"][0]["Id"] == "a" && said.get("Failed").is_none(), "{text}");
    let wrong = json!([{ "Id": "a", "MessageBody": "x", "DelaySeconds": -1 }]);
    let said = server.json("SendMessageBatch", &json!({ "QueueUrl": "q", "Entries": wrong })).await;
    assert_eq!(said["Failed"][0]["Id"], "a");
    server.json("PurgeQueue", &json!({ "QueueUrl": "q" })).await;
    let (_, text) = server.ask("", "Action=ReceiveMessage&QueueUrl=q").await;
    assert!(text.contains("<ReceiveMessageResult/>"), "{text}");
    server.end().await;
}

#[tokio::test]
async fn attributes_have_the_defaults_and_the_company_that_aws_gives_them() {
    let server = Server::start(&MemoryDisk::new()).await;
    server.create("q").await;
    let all = json!({ "QueueUrl": "q", "AttributeNames": ["All"] });
    let said = server.json("GetQueueAttributes", &all).await["Attributes"].clone();
    assert_eq!(
        (&said["MaximumMessageSize"], &said["SqsManagedSseEnabled"]),
        (&json!("1048576"), &json!("false"))
    );
    assert!(said.get("KmsDataKeyReusePeriodSeconds").is_none());
    let set = |key: &str| json!({ "QueueUrl": "q", "Attributes": { "KmsMasterKeyId": key } });
    server.json("SetQueueAttributes", &set("alias/aws/sqs")).await;
    let said = server.json("GetQueueAttributes", &all).await["Attributes"].clone();
    assert_eq!(said["KmsDataKeyReusePeriodSeconds"], "300");
    server.json("SetQueueAttributes", &set("")).await;
    let said = server.json("GetQueueAttributes", &all).await["Attributes"].clone();
    assert!(said.get("KmsDataKeyReusePeriodSeconds").is_none() && said.get("KmsMasterKeyId").is_none());
    let limit = json!({ "QueueName": "r", "Attributes": { "FifoThroughputLimit": "perQueue" } }).to_string();
    let (status, text) = server.ask(&json_head("CreateQueue"), &limit).await;
    assert!(status == 400 && text.contains("#InvalidAttributeName"), "{text}");
    assert!(
        text.contains("You can specify the FifoThroughputLimit only when FifoQueue is set to true."),
        "{text}"
    );
    server.end().await;
}

#[tokio::test]
async fn a_message_may_be_larger_than_the_attribute_says_until_it_is_set() {
    let server = Server::start(&MemoryDisk::new()).await;
    server.create("q").await;
    let body = "x".repeat(2 * 1024 * 1024);
    let send = json!({ "QueueUrl": "q", "MessageBody": body });
    server.json("SendMessage", &send).await;
    let set = json!({ "QueueUrl": "q", "Attributes": { "MaximumMessageSize": "1048576" } });
    server.json("SetQueueAttributes", &set).await;
    let (status, text) = server.ask(&json_head("SendMessage"), &send.to_string()).await;
    assert!(status == 400 && text.contains("Message must be shorter than 1048576 bytes"), "{text}");
    server.end().await;
}
