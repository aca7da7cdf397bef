//! Ways around permissions that somebody might try, on every way in: each of them is closed.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod world;

use std::time::Duration;

use nexo_access::UserName;
use nexo_broker::access::AccessRecord;
use nexo_broker::{NewMessage, PopRequest, QueueConfig};
use nexo_grpc::client::Client;
use nexo_grpc::proto;
use nexo_types::{Millis, QueueName};
use serde_json::json;
use tonic::Code;
use world::{World, ask_sqs, within};

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn user(text: &str) -> UserName {
    UserName::new(text).unwrap()
}

/// Waits until so many consumers wait at a queue.
async fn until_waiting(world: &World, queue: &str, count: u64) {
    within(async {
        while world.broker.queue_stats(&name(queue)).unwrap().consumers != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

fn waiting_pop(client: &Client, queue: &str) -> tokio::task::JoinHandle<Result<(), tonic::Status>> {
    let request = proto::PopRequest { queue: queue.into(), max: 1, wait_ms: 20_000, ..Default::default() };
    let mut messages = client.messages();
    tokio::spawn(async move { messages.pop(request).await.map(drop) })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pop_ends_with_the_right_to_it() {
    let world = World::start().await;
    world.broker.create_queue(&name("q"), QueueConfig::default()).await.unwrap();
    let ann = world.user("ann", ["", "", "q"]).await;

    let pop = waiting_pop(&ann, "q");
    until_waiting(&world, "q", 1).await;
    world.allow("ann", ["", "", "^other"]).await;
    assert_eq!(within(pop).await.unwrap().unwrap_err().code(), Code::PermissionDenied);

    world.allow("ann", ["", "", "q"]).await;
    let pop = waiting_pop(&ann, "q");
    until_waiting(&world, "q", 1).await;
    world.logins.delete_user(&user("ann")).await.unwrap();
    assert_eq!(within(pop).await.unwrap().unwrap_err().code(), Code::PermissionDenied);

    // Nothing was taken along.
    world.broker.push(&name("q"), vec![NewMessage::new("x")]).await.unwrap();
    until_waiting(&world, "q", 0).await;
    assert_eq!(world.broker.queue_stats(&name("q")).unwrap().ready, 1);
    world.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_receive_ends_with_the_right_to_it() {
    let world = World::start().await;
    world.broker.create_queue(&name("q"), QueueConfig::default()).await.unwrap();
    world.user("ann", ["", "", "q"]).await;
    let key = world.logins.add_key(&user("ann")).await.unwrap();
    let (address, id, secret) = (world.sqs, key.id, key.secret);
    let receive = move || {
        let (id, secret) = (id.clone(), secret.clone());
        let body = json!({ "QueueUrl": "q", "WaitTimeSeconds": 20 });
        tokio::spawn(async move { ask_sqs(address, &id, &secret, "ReceiveMessage", &body).await })
    };
    let denied = "com.amazon.coral.service#AccessDeniedException";

    let waiting = receive();
    until_waiting(&world, "q", 1).await;
    world.allow("ann", ["q", "q", ""]).await;
    let (status, answer) = within(waiting).await.unwrap();
    assert_eq!((status, answer["__type"].as_str()), (403, Some(denied)), "{answer}");

    world.allow("ann", ["", "", "q"]).await;
    let waiting = receive();
    until_waiting(&world, "q", 1).await;
    world.logins.delete_user(&user("ann")).await.unwrap();
    let (status, answer) = within(waiting).await.unwrap();
    assert_eq!((status, answer["__type"].as_str()), (403, Some(denied)), "{answer}");
    world.broker.shutdown().await;
}

/// RabbitMQ leaves a consumer alone whose user may no longer read; the native API does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_ends_with_the_right_to_it() {
    let world = World::start().await;
    world.broker.create_queue(&name("q"), QueueConfig::default()).await.unwrap();
    let ann = world.user("ann", ["", "", "q"]).await;
    let start = proto::SubscribeStart { queue: "q".into(), ..Default::default() };
    let first = proto::SubscribeRequest {
        credit: 10,
        action: Some(proto::subscribe_request::Action::Start(start)),
        ..Default::default()
    };
    let requests = futures_util::stream::iter([first]);
    let requests = futures_util::StreamExt::chain(requests, futures_util::stream::pending());
    let mut events = ann.messages().subscribe(requests).await.unwrap().into_inner();
    within(events.message()).await.unwrap();
    world.allow("ann", ["", "", ""]).await;
    assert_eq!(within(events.message()).await.unwrap_err().code(), Code::PermissionDenied);
    world.broker.shutdown().await;
}

/// So many messages die in a queue and wait in the queue for its dead letters.
async fn dead_letters(world: &World, queue: &str, dead: &str, count: u64) {
    use nexo_broker::DeadLetters;
    let config = QueueConfig {
        max_attempts: Some(1),
        dead_letters: DeadLetters::Queue(name(dead)),
        ..QueueConfig::default()
    };
    let _ = world.broker.create_queue(&name(dead), QueueConfig::for_dead_letters()).await;
    world.broker.create_queue(&name(queue), config).await.unwrap();
    let before = world.broker.queue_stats(&name(dead)).unwrap().ready;
    let messages = (0..count).map(|n| NewMessage::new(n.to_string())).collect();
    world.broker.push(&name(queue), messages).await.unwrap();
    let pop = PopRequest { max: 100, wait: Millis::ZERO, visibility: None, bytes_max: None };
    let mut left = count;
    while left > 0 {
        let taken = world.broker.pop(&name(queue), pop).await.unwrap();
        let receipts: Vec<_> = taken.iter().map(nexo_broker::Delivery::receipt).collect();
        left -= receipts.len() as u64;
        world.broker.nack(&receipts, None).await;
    }
    within(async {
        while world.broker.queue_stats(&name(dead)).unwrap().ready != before + count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// How a redrive ended: how many messages it said it moved, or what it was refused for.
async fn redrive(client: &Client, queue: &str, target: &str) -> Result<u64, tonic::Status> {
    let request = proto::RedriveRequest { queue: queue.into(), target: target.into(), ..Default::default() };
    let mut replies = client.queues().redrive(request).await?.into_inner();
    let mut moved = 0;
    while let Some(reply) = within(replies.message()).await? {
        moved = reply.moved;
    }
    Ok(moved)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_goes_back_only_where_its_caller_may_write() {
    let world = World::start().await;
    dead_letters(&world, "mine", "dead", 3).await;
    dead_letters(&world, "theirs", "dead", 2).await;
    let ready = |queue: &str| world.broker.queue_stats(&name(queue)).unwrap().ready;

    // To write to the queue of dead letters is of no use: nothing is written there.
    let ann = world.user("ann", ["", "^dead$", "^dead$"]).await;
    let refused = redrive(&ann, "dead", "").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    assert_eq!((ready("dead"), ready("mine"), ready("theirs")), (5, 0, 0));

    world.allow("ann", ["", "^mine$", "^dead$"]).await;
    let refused = redrive(&ann, "dead", "").await.unwrap_err();
    let words = "access to queue 'theirs' in vhost '/' refused for user 'ann'; messages that came from there stay (2), \
                 others were moved (3)";
    assert_eq!((refused.code(), refused.message()), (Code::PermissionDenied, words));
    assert_eq!((ready("dead"), ready("mine"), ready("theirs")), (2, 3, 0));

    assert_eq!(redrive(&ann, "dead", "theirs").await.unwrap_err().code(), Code::PermissionDenied);
    world.allow("ann", ["", "^theirs$", "^dead$"]).await;
    assert_eq!(redrive(&ann, "dead", "").await.unwrap(), 2, "only the queues that messages go to count");
    world.allow("ann", ["", ".*", "^mine$"]).await;
    assert_eq!(redrive(&ann, "dead", "").await.unwrap_err().code(), Code::PermissionDenied);
    world.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_task_goes_back_only_where_its_caller_may_write_and_ends_with_that_right() {
    let world = World::start().await;
    dead_letters(&world, "mine", "dead", 3).await;
    dead_letters(&world, "theirs", "dead", 2).await;
    world.user("ann", ["", "^mine$", "^dead$"]).await;
    let key = world.logins.add_key(&user("ann")).await.unwrap();
    let ask = async |action: &str, body| ask_sqs(world.sqs, &key.id, &key.secret, action, &body).await;
    let arn = "arn:aws:sqs:us-east-1:000000000000:dead";
    let task = async || {
        let listed = ask("ListMessageMoveTasks", json!({ "SourceArn": arn })).await.1;
        listed["Results"][0].clone()
    };
    let ended = async || {
        within(async {
            while task().await["Status"] == "RUNNING" {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            task().await
        })
        .await
    };

    assert_eq!(ask("StartMessageMoveTask", json!({ "SourceArn": arn })).await.0, 200);
    let task = ended().await;
    assert_eq!(
        (&task["Status"], &task["FailureReason"]),
        (&json!("FAILED"), &json!("AccessDenied")),
        "{task}"
    );
    let ready = |queue: &str| world.broker.queue_stats(&name(queue)).unwrap().ready;
    assert_eq!((ready("dead"), ready("mine"), ready("theirs")), (2, 3, 0));

    // One a second: it would take two, and loses the right before.
    dead_letters(&world, "more", "dead", 3).await;
    world.allow("ann", ["", ".*", "^dead$"]).await;
    let slow = json!({ "SourceArn": arn, "MaxNumberOfMessagesPerSecond": 1 });
    assert_eq!(ask("StartMessageMoveTask", slow).await.0, 200);
    world.allow("ann", ["dead", "", ""]).await;
    world.allow("ann", ["", "", "^dead$"]).await;
    let task = ended().await;
    assert_eq!(task["FailureReason"], "AccessDenied", "{task}");
    assert!(ready("dead") >= 3, "{}", ready("dead"));
    world.broker.shutdown().await;
}

/// The queue for dead letters that the broker makes is written to in the name of whoever made the queue.
#[tokio::test(flavor = "multi_thread")]
async fn the_dead_letter_queue_that_the_broker_makes_needs_permission_as_any_other() {
    let world = World::start().await;
    let create = async |client: &Client, queue: &str, config: proto::QueueConfig| {
        let config = Some(config);
        let request = proto::CreateQueueRequest { queue: queue.into(), config, ..Default::default() };
        client.queues().create_queue(request).await.map(drop).map_err(|status| status.code())
    };
    let update = async |client: &Client, queue: &str, config: proto::QueueConfig| {
        let config = Some(config);
        let request = proto::UpdateQueueRequest { queue: queue.into(), config, ..Default::default() };
        client.queues().update_queue(request).await.map(drop).map_err(|status| status.code())
    };
    let plain = proto::QueueConfig::default;
    let without = || proto::QueueConfig { max_attempts: Some(0), ..Default::default() };
    let denied = Err(Code::PermissionDenied);

    let ann = world.user("ann", ["^q$", "", "^q$"]).await;
    assert_eq!(create(&ann, "q", plain()).await, denied, "it would write to q_dlq");
    assert_eq!(create(&ann, "q", without()).await, Ok(()));
    let attempts = || proto::QueueConfig { max_attempts: Some(3), ..Default::default() };
    assert_eq!(update(&ann, "q", attempts()).await, denied, "it would from now on");
    let slower = || proto::QueueConfig { visibility_ms: Some(5_000), ..Default::default() };
    assert_eq!(update(&ann, "q", slower()).await, Ok(()), "where dead letters go stays as it is");

    world.allow("ann", ["^q$", "^q_dlq$", ""]).await;
    assert_eq!(update(&ann, "q", attempts()).await, denied, "dead letters are read from q");
    world.allow("ann", ["^q$", "^q_dlq$", "^q$"]).await;
    assert_eq!(update(&ann, "q", attempts()).await, Ok(()));
    world.allow("ann", ["^q$", "", ""]).await;
    assert_eq!(update(&ann, "q", slower()).await, Ok(()), "somebody else has allowed that");
    let elsewhere = proto::QueueConfig { dead_letter_queue: Some("theirs".into()), ..Default::default() };
    assert_eq!(update(&ann, "q", elsewhere).await, denied);
    let kept = world.broker.queue_details(&name("q")).unwrap();
    assert!(format!("{kept:?}").contains("OwnQueue"), "what is refused changes nothing: {kept:?}");
    world.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_queues_tells_nothing_of_those_that_one_may_not_see() {
    let world = World::start().await;
    for queue in ["a-secret", "b-mine", "c-secret", "d-mine", "e-secret", "f-mine", "g-secret"] {
        world.broker.create_queue(&name(queue), QueueConfig::default()).await.unwrap();
    }
    let ann = world.user("ann", ["", "", "-mine$"]).await;
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let request =
            proto::ListQueuesRequest { page_size: 1, page_token: token.clone(), ..Default::default() };
        let page = ann.queues().list_queues(request).await.unwrap().into_inner();
        assert_eq!(page.queues.len(), 1, "no page is empty");
        seen.push(page.queues[0].name.clone());
        assert!(!page.next_page_token.contains("secret"), "{}", page.next_page_token);
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ["b-mine", "d-mine", "f-mine"]);

    let key = world.logins.add_key(&user("ann")).await.unwrap();
    let mut body = json!({ "MaxResults": 1 });
    for (expected, is_last) in [("b-mine", false), ("d-mine", false), ("f-mine", true)] {
        let (_, page) = ask_sqs(world.sqs, &key.id, &key.secret, "ListQueues", &body).await;
        let urls = page["QueueUrls"].as_array().unwrap();
        assert!(urls.len() == 1 && urls[0].as_str().unwrap().ends_with(expected), "{page}");
        assert_eq!(page["NextToken"].is_null(), is_last, "{page}");
        body["NextToken"] = page["NextToken"].clone();
    }
    world.broker.shutdown().await;
}

/// A user's queues of SQS are where it says, and nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_opens_the_home_of_its_user_only() {
    let world = World::start().await;
    let put = proto::PutVhostRequest { vhost: "shop".into(), only_new: true, ..Default::default() };
    world.grpc.admin().put_vhost(put).await.unwrap();
    world.user("ann", [".*", ".*", ".*"]).await;
    let home = AccessRecord::SetDefaultVhost { user: user("ann"), vhost: Some("shop".into()) };
    world.logins.change(&[home]).await.unwrap();
    let key = world.logins.add_key(&user("ann")).await.unwrap();
    for (action, body) in [
        ("CreateQueue", json!({ "QueueName": "q" })),
        ("SendMessage", json!({ "QueueUrl": "q", "MessageBody": "x" })),
        ("GetQueueUrl", json!({ "QueueName": "q" })),
    ] {
        let (status, answer) = ask_sqs(world.sqs, &key.id, &key.secret, action, &body).await;
        assert_eq!(status, 403, "all that she may do is in /: {action} {answer}");
    }
    let (_, listed) = ask_sqs(world.sqs, &key.id, &key.secret, "ListQueues", &json!({})).await;
    assert!(listed["QueueUrls"].as_array().is_none_or(Vec::is_empty), "{listed}");
    world.broker.shutdown().await;
}
