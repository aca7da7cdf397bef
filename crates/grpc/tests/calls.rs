//! The native API call by call: what each answers, and how it refuses.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Served, message, within};
use nexo_broker::{Broker, BrokerOptions, MemoryHigh};
use nexo_grpc::proto;
use tonic::Code;

#[tokio::test]
async fn a_message_carries_everything_it_was_pushed_with() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let sent = proto::NewMessage {
        body: vec![0, 255].into(),
        priority: 255,
        ttl_ms: Some(3_600_000),
        dedup_id: "d".into(),
        group_id: "g".into(),
        headers: vec![
            proto::Header {
                name: "t".into(),
                value: Some(proto::header::Value::Text("text".into())),
                ..Default::default()
            },
            proto::Header {
                name: "b".into(),
                value: Some(proto::header::Value::Bytes(vec![1, 2].into())),
                ..Default::default()
            },
        ],
        transient: true,
        ..Default::default()
    };
    let request =
        proto::PushRequest { queue: "q".into(), messages: vec![sent.clone()], ..Default::default() };
    served.client.messages().push(request).await.unwrap();
    let got = served.pop("q", 1).await.remove(0);
    assert_eq!((got.id, got.attempt, got.priority), (0, 1, 255));
    assert_eq!((&got.body, &got.headers), (&sent.body, &sent.headers));
    assert_eq!((got.dedup_id.as_str(), got.group_id.as_str(), got.transient), ("d", "g", true));
    assert_eq!(got.expires_at_ms, Some(got.enqueued_at_ms + 3_600_000));
    assert!(got.lease_until_ms.unwrap() > got.enqueued_at_ms);
    assert!(!got.receipt.is_empty());
    assert!(got.dead_letter.is_none());
}

#[tokio::test]
async fn a_batch_has_a_result_for_each_message_and_a_single_push_a_status() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig { max_messages: Some(2), ..Default::default() }).await;
    let request = proto::PushRequest {
        queue: "q".into(),
        messages: ["a", "b", "c"].map(message).to_vec(),
        ..Default::default()
    };
    let results = served.client.messages().push(request).await.unwrap().into_inner().results;
    let codes: Vec<_> = results
        .iter()
        .map(|result| match result.outcome.as_ref().unwrap() {
            proto::push_result::Outcome::Pushed(_) => Code::Ok,
            proto::push_result::Outcome::Error(error) => error.code.into(),
        })
        .collect();
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::ResourceExhausted]);

    let request =
        proto::PushRequest { queue: "q".into(), messages: vec![message("d")], ..Default::default() };
    let status = served.client.messages().push(request).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().starts_with("queue 'q' is full"), "{status:?}");
}

#[tokio::test]
async fn every_refusal_has_its_code_and_names_the_field() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let push = async |queue: &str, message: proto::NewMessage| {
        let request =
            proto::PushRequest { queue: queue.into(), messages: vec![message], ..Default::default() };
        served.client.messages().push(request).await.unwrap_err()
    };
    let status = push("nowhere", message("x")).await;
    assert_eq!((status.code(), status.message()), (Code::NotFound, "queue 'nowhere' does not exist"));
    let status = push("q", proto::NewMessage { priority: 256, ..message("x") }).await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "messages[0].priority must be between 0 and 255; it is 256");
    let status = push("q", proto::NewMessage { delay_ms: (-1i64).cast_unsigned(), ..message("x") }).await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("messages[0].delay_ms must be between 0 and"), "{status:?}");
    let status = push(&"n".repeat(256), message("x")).await;
    assert_eq!(status.message(), "queue: a queue name has at most 255 bytes; this one has 256");

    let config = Some(proto::QueueConfig { visibility_ms: Some(0), ..Default::default() });
    let request = proto::CreateQueueRequest { queue: "bad".into(), config, ..Default::default() };
    let status = served.client.queues().create_queue(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("visibility_ms must be between 1 and"), "{status:?}");
    let config = Some(proto::QueueConfig { max_attempts: Some(9), ..Default::default() });
    let request = proto::CreateQueueRequest { queue: "q".into(), config, ..Default::default() };
    let status = served.client.queues().create_queue(request).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    let request = proto::DeleteQueueRequest { queue: "bad".into(), ..Default::default() };
    assert_eq!(served.client.queues().delete_queue(request).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(served.stats("q").await.pushed, 0);
}

#[tokio::test]
async fn a_receipt_counts_once() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    served.push("q", "x").await;
    let receipt = served.pop("q", 1).await.remove(0).receipt;
    let ack = async |receipts: &[&str]| {
        let receipts = receipts.iter().map(|receipt| (*receipt).to_owned()).collect();
        served.client.messages().ack(proto::AckRequest { receipts }).await
    };
    ack(&[&receipt]).await.unwrap();
    assert_eq!(ack(&[&receipt]).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(ack(&["nonsense"]).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(ack(&["ffffff-0-1-0"]).await.unwrap_err().code(), Code::NotFound);
    let results = ack(&[&receipt, "nonsense"]).await.unwrap().into_inner().results;
    let codes: Vec<Code> = results.iter().map(|result| result.error.as_ref().unwrap().code.into()).collect();
    assert_eq!(codes, [Code::FailedPrecondition, Code::InvalidArgument]);
    assert_eq!(results[0].receipt, receipt);
}

#[tokio::test]
async fn a_pop_waits_for_a_push() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let mut messages = served.client.messages();
    let request = proto::PopRequest { queue: "q".into(), wait_ms: 60_000, ..Default::default() };
    let pop = tokio::spawn(async move { messages.pop(request).await.unwrap().into_inner().messages });
    let mut waiting = 0;
    while waiting == 0 {
        waiting = served.stats("q").await.consumers;
    }
    served.push("q", "at last").await;
    let got = within(pop).await.unwrap();
    assert_eq!(got[0].body, "at last");
}

#[tokio::test]
async fn queues_come_page_by_page() {
    let served = Served::start().await;
    for name in ["a", "b1", "b2", "b3", "c"] {
        served.create(name, proto::QueueConfig::default()).await;
    }
    let list = async |prefix: &str, page_size: u32, page_token: &str| {
        let request = proto::ListQueuesRequest {
            prefix: prefix.into(),
            page_size,
            page_token: page_token.into(),
            ..Default::default()
        };
        let page = served.client.queues().list_queues(request).await.unwrap().into_inner();
        (page.queues.into_iter().map(|queue| queue.name).collect::<Vec<_>>(), page.next_page_token)
    };
    assert_eq!(
        list("", 0, "").await,
        (["a", "b1", "b2", "b3", "c"].map(String::from).to_vec(), String::new())
    );
    assert_eq!(list("b", 2, "").await, (["b1", "b2"].map(String::from).to_vec(), "b2".into()));
    assert_eq!(list("b", 2, "b2").await, (["b3"].map(String::from).to_vec(), String::new()));
}

#[tokio::test]
async fn an_update_changes_what_it_gives_and_leaves_the_rest() {
    let served = Served::start().await;
    let config = proto::QueueConfig { visibility_ms: Some(5), max_messages: Some(9), ..Default::default() };
    served.create("q", config).await;
    let change = proto::QueueConfig { max_messages: Some(0), ttl_ms: Some(7), ..Default::default() };
    let request = proto::UpdateQueueRequest { queue: "q".into(), config: Some(change), ..Default::default() };
    let queue = served.client.queues().update_queue(request).await.unwrap().into_inner().queue.unwrap();
    let config = queue.config.unwrap();
    assert_eq!((config.visibility_ms, config.max_messages, config.ttl_ms), (Some(5), Some(0), Some(7)));
}

#[tokio::test]
async fn a_redrive_reports_what_it_moved() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig { max_attempts: Some(1), ..Default::default() }).await;
    for body in ["a", "b"] {
        served.push("q", body).await;
    }
    let receipts = served.pop("q", 2).await.into_iter().map(|message| message.receipt).collect();
    served.client.messages().nack(proto::NackRequest { receipts, ..Default::default() }).await.unwrap();
    served.until_ready("q_dlq", 2).await;
    let request = proto::PeekRequest { queue: "q_dlq".into(), max: 10, ..Default::default() };
    let dead = served.client.messages().peek(request).await.unwrap().into_inner().messages;
    assert_eq!(dead.len(), 2);
    assert_eq!(dead[0].receipt, "");
    let letter = dead[0].dead_letter.as_ref().unwrap();
    assert_eq!((letter.reason(), letter.attempts), (proto::DeathReason::MaxAttempts, 1));
    assert_eq!((letter.source_queue.as_str(), letter.source_id), ("q", 0));

    let request = proto::RedriveRequest { queue: "q_dlq".into(), ..Default::default() };
    let mut replies = served.client.queues().redrive(request).await.unwrap().into_inner();
    let mut last = None;
    while let Some(reply) = within(replies.message()).await.unwrap() {
        last = Some(reply);
    }
    assert_eq!(last, Some(proto::RedriveResponse { moved: 2, skipped: 0, done: true }));
    assert_eq!(served.pop("q", 10).await.len(), 2);
    let request = proto::RedriveRequest { queue: "nowhere".into(), ..Default::default() };
    assert_eq!(served.client.queues().redrive(request).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_large_body_passes_and_one_too_large_does_not() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let body = vec![7u8; 20 * 1024 * 1024];
    let large = proto::NewMessage { body: body.clone().into(), ..Default::default() };
    let request = proto::PushRequest { queue: "q".into(), messages: vec![large], ..Default::default() };
    served.client.messages().push(request).await.unwrap();
    assert_eq!(served.pop("q", 1).await[0].body, body);
    let max = served.broker.body_bytes_max();
    let too_large = proto::NewMessage { body: vec![0; max + 1].into(), ..Default::default() };
    let request = proto::PushRequest { queue: "q".into(), messages: vec![too_large], ..Default::default() };
    let status = served.client.messages().push(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let expected = format!("messages[0].body has at most {max} bytes; it has {}", max + 1);
    assert_eq!(status.message(), expected);
}

#[tokio::test]
async fn health_answers_for_each_service() {
    use tonic_health::pb::health_client::HealthClient;
    use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
    let served = Served::start().await;
    assert!(served.client.is_serving().await.unwrap());
    let channel =
        tonic::transport::Endpoint::from_shared(served.url.clone()).unwrap().connect().await.unwrap();
    let mut health = HealthClient::new(channel);
    for service in ["", "nexo.v1.QueueService", "nexo.v1.MessageService", "nexo.v1.StatsService"] {
        let reply = health.check(HealthCheckRequest { service: service.into() }).await.unwrap();
        assert_eq!(reply.get_ref().status(), ServingStatus::Serving, "{service}");
    }
    let unknown = health.check(HealthCheckRequest { service: "x".into() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    let first = within(watch.message()).await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
}

#[tokio::test]
async fn reflection_lists_the_services() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let served = Served::start().await;
    let channel =
        tonic::transport::Endpoint::from_shared(served.url.clone()).unwrap().connect().await.unwrap();
    let request = tonic_reflection::pb::v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut replies = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::iter([request]))
        .await
        .unwrap()
        .into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) =
        within(replies.message()).await.unwrap().unwrap().message_response
    else {
        panic!("no list of services");
    };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    for name in
        ["nexo.v1.QueueService", "nexo.v1.MessageService", "nexo.v1.StatsService", "grpc.health.v1.Health"]
    {
        assert!(names.iter().any(|known| known == name), "no {name} in {names:?}");
    }
}

#[tokio::test]
async fn stats_tell_of_the_log() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    served.push("q", "x").await;
    let stats = served.client.stats().get_stats(proto::GetStatsRequest {}).await.unwrap().into_inner();
    assert!(stats.healthy && stats.queues == 1, "{stats:?}");
    assert!(stats.log.unwrap().syncs > 0);
}

#[tokio::test]
async fn calls_that_wait_end_with_the_server() {
    let mut served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let mut messages = served.client.messages();
    let request = proto::PopRequest { queue: "q".into(), wait_ms: 3_600_000, ..Default::default() };
    let pop = tokio::spawn(async move { messages.pop(request).await });
    let mut waiting = 0;
    while waiting == 0 {
        waiting = served.stats("q").await.consumers;
    }
    served.begin_stop();
    assert_eq!(within(pop).await.unwrap().unwrap_err().code(), Code::Unavailable);
    served.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_has_failed_makes_calls_unavailable() {
    let disk = nexo_log::disk::FaultyDisk::new();
    let options = nexo_broker::BrokerOptions::new("faulty");
    let options = nexo_broker::BrokerOptions { segment_bytes: 64 * 1024, ..options };
    let broker = nexo_broker::Broker::open_on(std::sync::Arc::new(disk.clone()), options).unwrap();
    let served = Served::serve(broker, None).await;
    served.create("q", proto::QueueConfig::default()).await;
    disk.fail_next_sync();
    let push = async || {
        let message = proto::NewMessage { body: "x".into(), ..Default::default() };
        let request = proto::PushRequest { queue: "q".into(), messages: vec![message], ..Default::default() };
        served.client.messages().push(request).await
    };
    assert_eq!(push().await.unwrap_err().code(), Code::Unavailable);
    let error = push().await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains("failed"), "{}", error.message());
    assert!(!served.client.is_serving().await.unwrap(), "the health service says so too");
}

#[tokio::test]
async fn a_long_queue_is_looked_through_page_by_page() {
    let served = Served::start().await;
    served.create("q", proto::QueueConfig::default()).await;
    let mut expected: Vec<(u32, u64)> = Vec::new();
    for chunk in 0..30u64 {
        let messages = (0..100u64)
            .map(|n| proto::NewMessage {
                priority: (n % 3) as u32,
                ..message(&(chunk * 100 + n).to_string())
            })
            .collect();
        let request = proto::PushRequest { queue: "q".into(), messages, ..Default::default() };
        served.client.messages().push(request).await.unwrap();
        expected.extend((0..100u64).map(|n| ((n % 3) as u32, chunk * 100 + n)));
    }
    expected.sort_by_key(|(priority, id)| (std::cmp::Reverse(*priority), *id));
    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = proto::PeekRequest { queue: "q".into(), max: 700, page_token, ..Default::default() };
        let page = served.client.messages().peek(request).await.unwrap().into_inner();
        seen.extend(page.messages.iter().map(|message| (message.priority, message.id)));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, expected);
    let request = proto::PeekRequest { queue: "q".into(), page_token: "x".into(), ..Default::default() };
    let refused = served.client.messages().peek(request).await.unwrap_err();
    assert_eq!(refused.message(), "page_token: 'x' is not one");
}

#[tokio::test]
async fn requests_name_the_virtual_host_of_their_queue() {
    let served = Served::start().await;
    let mut admin = served.client.admin();
    let put = |vhost: &str, config| proto::PutVhostRequest { vhost: vhost.into(), config, only_new: true };
    assert!(admin.put_vhost(put("acme", None)).await.unwrap().into_inner().created);
    assert_eq!(admin.put_vhost(put("acme", None)).await.unwrap_err().code(), Code::AlreadyExists);
    let nonsense = proto::VhostConfig { default_queue_type: Some("heap".into()), ..Default::default() };
    assert_eq!(admin.put_vhost(put("x", Some(nonsense))).await.unwrap_err().code(), Code::InvalidArgument);
    for vhost in ["", "acme"] {
        let request =
            proto::CreateQueueRequest { queue: "q".into(), vhost: vhost.into(), ..Default::default() };
        assert!(served.client.queues().create_queue(request).await.unwrap().into_inner().created);
        let messages = vec![message(if vhost.is_empty() { "ours" } else { "theirs" })];
        let request = proto::PushRequest { queue: "q".into(), messages, vhost: vhost.into() };
        served.client.messages().push(request).await.unwrap();
    }
    let request = proto::CreateQueueRequest { queue: "q".into(), vhost: "none".into(), ..Default::default() };
    assert_eq!(served.client.queues().create_queue(request).await.unwrap_err().code(), Code::NotFound);
    for (vhost, body) in [("/", "ours"), ("acme", "theirs")] {
        let request =
            proto::PopRequest { queue: "q".into(), max: 9, vhost: vhost.into(), ..Default::default() };
        let popped = served.client.messages().pop(request).await.unwrap().into_inner().messages;
        assert_eq!(popped.iter().map(|one| &one.body[..]).collect::<Vec<_>>(), [body.as_bytes()]);
    }
    // Pages go over all virtual hosts.
    let (mut found, mut page_token) = (Vec::new(), String::new());
    loop {
        let request =
            proto::ListQueuesRequest { page_size: 1, all_vhosts: true, page_token, ..Default::default() };
        let page = served.client.queues().list_queues(request).await.unwrap().into_inner();
        found.extend(page.queues.into_iter().map(|queue| (queue.vhost, queue.name)));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(found, [("/".into(), "q".into()), ("acme".into(), "q".into())] as [(String, String); 2]);
    let deleted = admin.delete_vhost(proto::DeleteVhostRequest { vhost: "acme".into() }).await.unwrap();
    assert_eq!(deleted.into_inner(), proto::DeleteVhostResponse { queues: 1, messages: 1 });
    let request = proto::GetQueueRequest { queue: "q".into(), vhost: "acme".into() };
    assert_eq!(served.client.queues().get_queue(request).await.unwrap_err().code(), Code::NotFound);
    let left = admin.list_vhosts(proto::ListVhostsRequest {}).await.unwrap().into_inner().vhosts;
    assert_eq!(left.iter().map(|vhost| (&*vhost.name, vhost.queues)).collect::<Vec<_>>(), [("/", 1)]);
    assert_eq!(
        admin.get_vhost(proto::GetVhostRequest { vhost: "acme".into() }).await.unwrap_err().code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn while_memory_is_short_pushes_may_be_tried_again_and_pops_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let plenty = MemoryHigh::Bytes(1 << 40);
    let options = BrokerOptions { owns_process: true, memory_high: plenty, ..BrokerOptions::new(dir.path()) };
    let served = Served::serve(Broker::open(options).unwrap(), Some(dir)).await;
    served.create("q", proto::QueueConfig::default()).await;
    served.push("q", "before").await;
    served.broker.set_memory_high(MemoryHigh::Bytes(0));
    let push =
        || proto::PushRequest { queue: "q".into(), messages: vec![message("more")], ..Default::default() };
    let status = served.client.messages().push(push()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("(memory_high)"), "{status}");
    let streamed = proto::PushStreamRequest {
        sequence: 7,
        queue: "q".into(),
        messages: vec![message("more")],
        ..Default::default()
    };
    let replies = served.client.messages().push_stream(tokio_stream::once(streamed)).await.unwrap();
    let confirms = within(replies.into_inner().message()).await.unwrap().unwrap().confirms;
    let error = confirms[0].error.as_ref().expect("it is refused as a whole");
    assert_eq!((confirms[0].sequence, error.code), (7, Code::Unavailable as i32));
    assert!(served.client.is_serving().await.unwrap(), "who takes messages is served");
    let popped = served.pop("q", 10).await;
    assert_eq!(popped.len(), 1);
    served.broker.set_memory_high(plenty);
    served.push("q", "after").await;
}

#[tokio::test]
async fn limits_that_an_operator_sets_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let limits =
        BrokerOptions { queues_max: 1, body_bytes_max: 10, clients_max: 1, ..BrokerOptions::new(dir.path()) };
    let served = Served::serve(Broker::open(limits).unwrap(), Some(dir)).await;
    served.create("q", proto::QueueConfig::default()).await;
    let request = proto::CreateQueueRequest { queue: "r".into(), ..Default::default() };
    let status = served.client.queues().create_queue(request).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::ResourceExhausted, "there are 1 queues, and no more are allowed")
    );
    let messages = vec![message("eleven byte")];
    let request = proto::PushRequest { queue: "q".into(), messages, ..Default::default() };
    let status = served.client.messages().push(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "messages[0].body has at most 10 bytes; it has 11");
    let second = nexo_grpc::client::Client::connect(&served.url).await.unwrap();
    let status = second.queues().list_queues(proto::ListQueuesRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "there are 1 connections, and no more are allowed; try again later");
}
