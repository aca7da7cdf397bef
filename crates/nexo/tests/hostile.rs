//! What clients say over the native API and over SQS forges no line of the log, no answer and no metrics.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]
#![allow(clippy::needless_update, reason = "some requests have no fields but those that are given")]

mod common;

use common::{PATIENCE, Server};
use nexo_grpc::client::Client;
use nexo_grpc::proto;
use nexo_harness::http;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tonic::{Code, Status};

/// A line of its own, a header, an escape sequence of a terminal, quotes, controls beyond ASCII, and the ends of a script and of a
/// label.
const HOSTILE: [&str; 7] = [
    "a\nFORGED line",
    "a\r\nx-forged: 1",
    "a\u{1b}[2J\u{1b}]0;FORGED\u{7}",
    "a\",\"forged\":\"1",
    "a\u{85}FORGED\u{9b}31m",
    "a</Message><Forged/></script><script>forged()</script>",
    "a\"} 1\nforged{x=\"\\",
];

fn quoted(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// What the native API is told, and what it refused.
struct Native<'a> {
    client: &'a Client,
    refusals: Vec<Status>,
}

macro_rules! say {
    ($native:ident, $service:ident: $($call:ident $request:ident { $($field:ident: $value:expr),* };)+) => {$(
        let request = proto::$request { $($field: $value),*, ..Default::default() };
        if let Err(status) = $native.client.$service().$call(request).await {
            $native.refusals.push(status);
        }
    )+};
}

fn header(name: &str, text: &str, kind: proto::HeaderType) -> proto::Header {
    let value = Some(proto::header::Value::Text(text.to_owned()));
    proto::Header { name: name.to_owned(), value, r#type: kind.into() }
}

impl Native<'_> {
    async fn of_queues(&mut self, text: &str) {
        let text = || text.to_owned();
        let dead = proto::QueueConfig { dead_letter_queue: Some(text()), ..Default::default() };
        say! { self, queues:
            create_queue CreateQueueRequest { queue: text() };
            create_queue CreateQueueRequest { queue: "in".into(), vhost: text() };
            create_queue CreateQueueRequest { queue: "plain".into(), config: Some(dead) };
            update_queue UpdateQueueRequest { queue: format!("none{}", text()) };
            get_queue GetQueueRequest { queue: format!("none{}", text()) };
            delete_queue DeleteQueueRequest { queue: format!("none{}", text()) };
            pause_queue PauseQueueRequest { queue: format!("none{}", text()) };
            purge_queue PurgeQueueRequest { queue: format!("none{}", text()) };
            list_queues ListQueuesRequest { prefix: text(), page_token: text() };
            list_queues ListQueuesRequest { vhost: text() };
            redrive RedriveRequest { queue: "plain".into(), target: text() };
        }
    }

    async fn of_messages(&mut self, text: &str) {
        let kinds = [proto::HeaderType::Unspecified, proto::HeaderType::Number, proto::HeaderType::Json];
        for kind in kinds {
            let headers = vec![header(text, text, kind)];
            let message = proto::NewMessage {
                body: text.to_owned().into(),
                headers,
                dedup_id: text.to_owned(),
                group_id: text.to_owned(),
                ..Default::default()
            };
            let messages = vec![message.clone(), message];
            let request = proto::PushRequest { queue: "plain".into(), messages, ..Default::default() };
            match self.client.messages().push(request).await {
                Ok(reply) => {
                    for result in reply.into_inner().results {
                        if let Some(proto::push_result::Outcome::Error(error)) = result.outcome {
                            self.refusals.push(Status::new(Code::from(error.code), error.message));
                        }
                    }
                }
                Err(status) => self.refusals.push(status),
            }
        }
        let text = || text.to_owned();
        say! { self, messages:
            push PushRequest { queue: format!("none{}", text()), messages: vec![proto::NewMessage::default()] };
            pop PopRequest { queue: format!("none{}", text()) };
            peek PeekRequest { queue: "plain".into(), page_token: text() };
            peek PeekRequest { queue: format!("none{}", text()) };
            ack AckRequest { receipts: vec![text()] };
            nack NackRequest { receipts: vec![text()] };
            extend ExtendRequest { receipts: vec![text()], visibility_ms: 1_000 };
        }
    }

    async fn of_admin(&mut self, text: &str) {
        let text = || text.to_owned();
        let config = proto::VhostConfig {
            description: Some(text()),
            tags: Some(proto::VhostTags { tags: vec![text()] }),
            default_queue_type: Some(text()),
            ..Default::default()
        };
        let policy = |name: String, pattern: String, definition: String| proto::Policy {
            name,
            pattern,
            definition,
            apply_to: "queues".into(),
            ..Default::default()
        };
        let applied = proto::Policy { apply_to: text(), ..policy("p".into(), ".*".into(), "{}".into()) };
        let odd = format!("{{{}:1}}", Value::from(text()));
        let schedule = |name: &str| proto::Schedule {
            name: name.to_owned(),
            queue: "plain".into(),
            cron: "0 0 1 1 *".into(),
            ..Default::default()
        };
        let schedules = [
            proto::Schedule { description: text(), content_type: text(), ..schedule(&text()) },
            proto::Schedule { cron: text(), ..schedule("s") },
            proto::Schedule { time_zone: text(), ..schedule("s") },
            proto::Schedule { queue: format!("none{}", text()), ..schedule("s") },
            proto::Schedule { queue: String::new(), exchange: format!("none{}", text()), ..schedule("s") },
            proto::Schedule { catch_up: text(), ..schedule("s") },
            proto::Schedule { vhost: text(), ..schedule("s") },
            proto::Schedule {
                headers: vec![proto::ScheduleHeader { name: text(), value: text() }],
                body: text().into(),
                content_type: text(),
                description: text(),
                ..schedule("said")
            },
            proto::Schedule {
                queue: String::new(),
                exchange: "amq.topic".into(),
                routing_key: text(),
                ..schedule("routed")
            },
        ];
        say! { self, admin:
            put_vhost PutVhostRequest { vhost: text() };
            put_vhost PutVhostRequest { vhost: "told".into(), config: Some(config) };
            get_vhost GetVhostRequest { vhost: text() };
            delete_vhost DeleteVhostRequest { vhost: format!("none{}", text()) };
            put_policy PutPolicyRequest { policy: Some(policy(text(), ".*".into(), "{\"max-length\":9}".into())) };
            put_policy PutPolicyRequest { policy: Some(policy("p".into(), format!("({}", text()), "{}".into())) };
            put_policy PutPolicyRequest { policy: Some(policy("p".into(), ".*".into(), text())) };
            put_policy PutPolicyRequest { policy: Some(policy("p".into(), ".*".into(), odd)) };
            put_policy PutPolicyRequest { policy: Some(applied) };
            delete_policy DeletePolicyRequest { name: format!("none{}", text()) };
            get_schedule GetScheduleRequest { name: format!("none{}", text()) };
        }
        for schedule in schedules {
            say! { self, admin: put_schedule PutScheduleRequest { schedule: Some(schedule) }; }
        }
        // The one fails, the other is pushed: both are told of.
        for name in [text(), "said".to_owned(), "routed".to_owned(), format!("none{}", text())] {
            say! { self, admin: run_schedule RunScheduleRequest { name: name }; }
        }
    }

    async fn of_jobs(&mut self, text: &str) {
        let text = || text.to_owned();
        let config =
            |score: &str| proto::JobQueueConfig { score: Some(score.to_owned()), ..Default::default() };
        let cost = proto::JobCost { r#type: text(), cost: text() };
        let costs = proto::JobQueueConfig {
            costs: Some(proto::JobCosts { costs: vec![cost] }),
            ..Default::default()
        };
        let class = proto::JobClass { name: text(), value: 1 };
        let classes = proto::JobQueueConfig {
            classes: Some(proto::JobClasses { classes: vec![class] }),
            ..Default::default()
        };
        let paid = proto::JobQueueConfig { budget: Some(format!("none{}", text())), ..Default::default() };
        let waiter = proto::JobWaiter { id: text(), user: text(), class: text(), ..Default::default() };
        let filtered = proto::JobWaiter { id: "w".into(), filter: text(), ..Default::default() };
        let told =
            proto::JobWaiter { id: "w".into(), reply_to: format!("none{}", text()), ..Default::default() };
        say! { self, jobs:
            put_queue PutJobQueueRequest { queue: text() };
            put_queue PutJobQueueRequest { queue: "jobs".into() };
            put_queue PutJobQueueRequest { queue: "odd".into(), config: Some(config(&text())) };
            put_queue PutJobQueueRequest { queue: "odd".into(), config: Some(costs) };
            put_queue PutJobQueueRequest { queue: "odd".into(), config: Some(classes) };
            put_queue PutJobQueueRequest { queue: "odd".into(), config: Some(paid) };
            put_budget PutBudgetRequest { budget: text() };
            get_budget GetBudgetRequest { budget: format!("none{}", text()) };
            delete_queue DeleteJobQueueRequest { queue: format!("none{}", text()) };
            ask AskJobRequest { queue: "jobs".into(), r#type: text(), key: text(), payload: text().into(), waiter: Some(waiter) };
            ask AskJobRequest { queue: "jobs".into(), r#type: "t".into(), key: "k".into(), waiter: Some(filtered) };
            ask AskJobRequest { queue: "jobs".into(), r#type: "t".into(), key: "k".into(), waiter: Some(told) };
            ask AskJobRequest { queue: format!("none{}", text()), r#type: "t".into(), key: "k".into() };
            complete CompleteJobRequest { receipt: text() };
            give_back GiveBackJobRequest { receipt: text() };
            leave LeaveJobRequest { queue: "jobs".into(), waiter: format!("none{}", text()) };
            answer JobAnswerRequest { queue: "jobs".into(), waiter: format!("none{}", text()) };
            result JobResultRequest { queue: "jobs".into(), key: format!("none{}", text()) };
            token_log TokenLogRequest { budget: format!("none{}", text()) };
        }
        let take =
            proto::TakeJobsRequest { queue: "jobs".into(), worker: text(), max: 1, ..Default::default() };
        match self.client.jobs().take(take).await {
            Ok(taken) => {
                for job in taken.into_inner().jobs {
                    say! { self, jobs: fail FailJobRequest { receipt: job.receipt, error: text(), no_retry: true }; }
                }
            }
            Err(status) => self.refusals.push(status),
        }
    }

    async fn of_users(&mut self, text: &str) {
        let text = || text.to_owned();
        let permissions = |pattern: String| proto::Permissions {
            vhost: "/".into(),
            configure: pattern.clone(),
            write: pattern.clone(),
            read: pattern,
        };
        say! { self, users:
            add_user AddUserRequest { user: text(), password: Some(text()), tags: vec![text()] };
            add_user AddUserRequest { user: text() };
            add_user AddUserRequest { user: "ann".into() };
            set_user_tags SetUserTagsRequest { user: "ann".into(), tags: vec![text()] };
            set_user_default_vhost SetUserDefaultVhostRequest { user: "ann".into(), vhost: text() };
            set_permissions SetPermissionsRequest { user: "ann".into(), permissions: Some(permissions(format!("({}", text()))) };
            set_permissions SetPermissionsRequest { user: format!("none{}", text()), permissions: Some(permissions(text())) };
            clear_permissions ClearPermissionsRequest { user: "ann".into(), vhost: text() };
            add_token AddTokenRequest { user: "ann".into(), description: text() };
            remove_token RemoveTokenRequest { user: "ann".into(), id: text() };
            remove_access_key RemoveAccessKeyRequest { user: "ann".into(), id: text() };
            delete_user DeleteUserRequest { user: format!("none{}", text()) };
        }
    }
}

/// Says it in every field that the native API has, and looks at what it refuses.
async fn say_over_grpc(url: &str, text: &str) {
    let client = Client::connect(url).await.unwrap();
    let mut native = Native { client: &client, refusals: Vec::new() };
    native.of_queues(text).await;
    native.of_messages(text).await;
    native.of_admin(text).await;
    native.of_jobs(text).await;
    native.of_users(text).await;
    assert!(native.refusals.len() > 10, "{text:?}: {:?}", native.refusals);
    for status in native.refusals {
        assert!(!status.message().chars().any(char::is_control), "{text:?}: {status:?}");
    }
}

/// The answer to a request of SQS, whose head must be that of one answer.
fn ask_sqs(address: &str, head: &str, path: &str, body: &str) -> String {
    let request = http::request("POST", path, &format!("Host: localhost\r\n{head}"), body);
    let answer = http::exchange(address, &request, PATIENCE).unwrap();
    assert!(answer.head.chars().all(|c| !c.is_control() || c == '\r' || c == '\n'), "{answer:?}");
    assert!(!answer.head.to_lowercase().contains("\nx-forged"), "{answer:?}");
    answer.body
}

fn check_json(what: &str, body: &str) {
    if body.is_empty() {
        return;
    }
    assert!(!body.chars().any(|c| c.is_ascii_control()), "{what}: {body:?}");
    let shown: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{what}: {body:?}"));
    assert!(shown.get("forged").is_none(), "{what}: {body:?}");
}

fn check_xml(what: &str, body: &str) {
    assert!(!body.contains("<script>") && !body.contains("<Forged"), "{what}: {body:?}");
    let is_text = |c: char| !c.is_ascii_control() || c == '\n';
    assert!(body.chars().all(is_text), "{what}: {body:?}");
}

/// Says it in every parameter of SQS, in both protocols.
fn say_over_sqs(address: &str, text: &str) {
    let attributes = json!({ text: { "DataType": text, "StringValue": text } });
    let calls = [
        ("CreateQueue", json!({ "QueueName": text })),
        ("CreateQueue", json!({ "QueueName": "q", "Attributes": { text: text } })),
        ("CreateQueue", json!({ "QueueName": "q", "tags": { text: text } })),
        ("CreateQueue", json!({ "QueueName": "r", "Attributes": { "RedrivePolicy": text } })),
        ("CreateQueue", json!({ "QueueName": "r", "Attributes": { "Policy": text } })),
        ("CreateQueue", json!({ "QueueName": "r", "Attributes": { "DelaySeconds": text } })),
        ("SetQueueAttributes", json!({ "QueueUrl": "q", "Attributes": { "KmsMasterKeyId": text } })),
        ("GetQueueAttributes", json!({ "QueueUrl": "q", "AttributeNames": ["All"] })),
        ("GetQueueAttributes", json!({ "QueueUrl": "q", "AttributeNames": [text] })),
        ("ListQueueTags", json!({ "QueueUrl": "q" })),
        ("GetQueueUrl", json!({ "QueueName": text })),
        ("GetQueueUrl", json!({ "QueueName": "q" })),
        ("ListQueues", json!({ "QueueNamePrefix": text, "NextToken": text })),
        ("ListQueues", json!({})),
        ("SendMessage", json!({ "QueueUrl": text, "MessageBody": text })),
        ("SendMessage", json!({ "QueueUrl": "q", "MessageBody": text, "MessageAttributes": attributes })),
        ("SendMessage", json!({ "QueueUrl": "q", "MessageBody": text, "MessageGroupId": text })),
        ("SendMessage", json!({ "QueueUrl": "q", "MessageBody": text })),
        ("SendMessageBatch", json!({ "QueueUrl": "q", "Entries": [{ "Id": text, "MessageBody": "x" }] })),
        (
            "ReceiveMessage",
            json!({ "QueueUrl": "q", "AttributeNames": ["All"], "MessageAttributeNames": ["All"] }),
        ),
        (
            "ReceiveMessage",
            json!({ "QueueUrl": "q", "AttributeNames": [text], "ReceiveRequestAttemptId": text }),
        ),
        ("DeleteMessage", json!({ "QueueUrl": "q", "ReceiptHandle": text })),
        (
            "AddPermission",
            json!({ "QueueUrl": "q", "Label": text, "AWSAccountIds": [text], "Actions": [text] }),
        ),
        (
            "AddPermission",
            json!({ "QueueUrl": "q", "Label": "l", "AWSAccountIds": [text], "Actions": ["*"] }),
        ),
        ("RemovePermission", json!({ "QueueUrl": "q", "Label": text })),
        ("StartMessageMoveTask", json!({ "SourceArn": text, "DestinationArn": text })),
        ("CancelMessageMoveTask", json!({ "TaskHandle": text })),
        ("DeleteQueue", json!({ "QueueUrl": "q" })),
    ];
    for (action, body) in &calls {
        let head =
            format!("Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.{action}\r\n");
        check_json(&format!("{action} {body}"), &ask_sqs(address, &head, "/", &body.to_string()));
    }
    let name = quoted(text);
    for (path, form) in [
        ("/", format!("Action={name}")),
        ("/", format!("Action=CreateQueue&QueueName={name}")),
        ("/", "Action=CreateQueue&QueueName=q".to_owned()),
        ("/", format!("Action=CreateQueue&QueueName=q&Attribute.1.Name={name}&Attribute.1.Value={name}")),
        ("/", format!("Action=GetQueueUrl&QueueName={name}")),
        ("/", format!("Action=GetQueueAttributes&QueueUrl=q&AttributeName.1={name}")),
        ("/", format!("Action=SendMessage&QueueUrl=q&MessageBody={name}")),
        (
            "/",
            format!(
                "Action=SendMessageBatch&QueueUrl=q&SendMessageBatchRequestEntry.1.Id={name}&SendMessageBatchRequestEntry.1.MessageBody=x"
            ),
        ),
        ("/", "Action=ReceiveMessage&QueueUrl=q".to_owned()),
        ("/", format!("Action=ListQueues&{name}={name}")),
        (&format!("/0/{name}"), "Action=ReceiveMessage".to_owned()),
        ("/", "Action=DeleteQueue&QueueUrl=q".to_owned()),
    ] {
        let head = "Content-Type: application/x-www-form-urlencoded\r\n";
        check_xml(&form, &ask_sqs(address, head, path, &form));
        let head = format!("{head}Accept: application/json\r\n");
        check_json(&form, &ask_sqs(address, &head, path, &form));
    }
    // What no header can hold is no header.
    let shown: String = text.chars().map(|c| if c.is_control() { '\t' } else { c }).collect();
    let credential = format!("{shown}/20260101/{shown}/sqs/aws4_request");
    for head in [
        format!("X-Amz-Target: AmazonSQS.{shown}\r\n"),
        format!("X-Amz-Target: AmazonSQS.ListQueues\r\nX-Amzn-Trace-Id: {shown}\r\n"),
        format!(
            "X-Amz-Target: AmazonSQS.ListQueues\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature=x\r\n"
        ),
    ] {
        let head = format!("Content-Type: application/x-amz-json-1.0\r\n{head}");
        check_json(&head, &ask_sqs(address, &head, "/", "{}"));
    }
}

fn check_metrics(server: &Server) {
    let (status, page) = server.get("/metrics");
    assert_eq!(status, 200);
    assert!(!page.chars().any(|c| c.is_control() && c != '\n'), "{page:?}");
    for line in page.lines() {
        let is_own = line.starts_with('#') || line.starts_with("nexo_") || line.starts_with("process_");
        assert!(is_own, "a line that the broker did not begin: {line:?}");
    }
}

/// What a broker has logged to which all of it was said.
fn log_of(format: &str, limits: &str) -> String {
    let any = "127.0.0.1:0";
    let args = ["--log", "debug", "--log-format", format, "--sqs", any, "--sqs-limits", limits];
    let mut server = Server::start_with(&args);
    let sqs = server.ready.split_whitespace().find_map(|word| word.strip_prefix("sqs=")).unwrap().to_owned();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for text in HOSTILE {
        runtime.block_on(say_over_grpc(&server.url(), text));
        say_over_sqs(&sqs, text);
    }
    check_metrics(&server);
    let log = server.stop_and_collect().stderr;
    assert!(log.contains("FORGED") || log.contains("forged"), "what was said is there, escaped: {log}");
    log
}

#[test]
fn each_line_of_the_log_is_one_that_the_broker_began() {
    for line in log_of("text", "strict").lines() {
        let is_own = line.len() > 20 && line.as_bytes()[4] == b'-' && line.as_bytes()[10] == b'T';
        assert!(is_own, "a line that the broker did not begin: {line:?}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
}

#[test]
fn each_line_of_the_log_is_one_object() {
    for line in log_of("json", "relaxed").lines() {
        let shown: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?}"));
        assert!(shown["level"].is_string() && shown.get("forged").is_none(), "{line:?}");
        assert!(!line.chars().any(|c| c.is_ascii_control()), "{line:?}");
    }
}
