//! What a user of the broker relies on, one story each.

mod common;

use std::time::{Duration, Instant};

use common::*;
use nexo_broker::{
    Backoff, CreateError, DeadLetters, DeathReason, Durability, Fate, NewMessage, Overflow, PopRequest,
    PushError, QueueConfig, QueueError, Receipt, Redrive, SettleError,
};
use nexo_log::disk::MemoryDisk;
use nexo_types::{DedupId, GroupId, Millis, Offset, Priority, QueueId};

#[tokio::test]
async fn a_message_stays_until_it_is_acknowledged() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    push(&broker, &q, "work").await;
    let first = pop(&broker, &q, 10).await;
    assert_eq!(bodies(&first), ["work"]);
    assert!(pop(&broker, &q, 10).await.is_empty(), "nobody else sees it");
    ack(&broker, &first).await;
    assert_eq!(broker.queue_stats(&q).unwrap().leased, 0);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_waiting_consumer_gets_a_pushed_message_at_once() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    let waiting = tokio::spawn({
        let (broker, q) = (broker.clone(), q.clone());
        async move { pop_wait(&broker, &q).await }
    });
    eventually("the consumer waits", || broker.queue_stats(&q).unwrap().consumers == 1).await;
    push(&broker, &q, "hello").await;
    assert_eq!(bodies(&waiting.await.unwrap()), ["hello"]);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_pop_that_is_given_up_leaves_the_message() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    let waiting = tokio::spawn({
        let (broker, q) = (broker.clone(), q.clone());
        async move { pop_wait(&broker, &q).await }
    });
    eventually("the consumer waits", || broker.queue_stats(&q).unwrap().consumers == 1).await;
    waiting.abort();
    assert!(waiting.await.is_err());
    push(&broker, &q, "hello").await;
    let again = pop(&broker, &q, 1).await;
    assert_eq!((bodies(&again), again[0].attempt), (vec!["hello".to_owned()], 1));
    broker.shutdown().await;
}

#[tokio::test]
async fn a_lease_that_ends_brings_the_message_back_and_the_old_receipt_is_refused() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    push(&broker, &q, "work").await;
    // Only the first lease is short: the second must not end as well on a slow machine.
    let request = PopRequest { max: 1, wait: Millis::ZERO, visibility: Some(Millis(30)), bytes_max: None };
    let first = broker.pop(&q, request).await.unwrap();
    let second = pop_wait(&broker, &q).await;
    assert_eq!(second[0].attempt, 2);
    let answer = broker.ack(&receipts(&first)).await.remove(0);
    assert!(matches!(answer, Err(SettleError::Stale { attempt: 1, current: 2, .. })), "{answer:?}");
    broker.shutdown().await;
}

#[tokio::test]
async fn an_extended_lease_holds() {
    let config = QueueConfig { visibility: Millis::from_secs(600), ..QueueConfig::default() };
    let (broker, q) = with_queue(config).await;
    push(&broker, &q, "long").await;
    push(&broker, &q, "short").await;
    let held = pop(&broker, &q, 2).await;
    let until = broker.extend(&receipts(&held[..1]), Millis::from_secs(3600)).await.remove(0).unwrap();
    assert!(until > held[0].lease_until.unwrap());
    broker.extend(&receipts(&held[1..]), Millis(50)).await.remove(0).unwrap();
    assert_eq!(bodies(&pop_wait(&broker, &q).await), ["short"], "only the other one comes back");
    ack(&broker, &held[..1]).await;
    broker.shutdown().await;
}

#[tokio::test]
async fn urgent_messages_go_first_and_equals_in_order() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    for (body, priority) in [("a", 1), ("b", 255), ("c", 1), ("d", 0), ("e", 255)] {
        let message = NewMessage { priority: Priority(priority), ..NewMessage::new(body) };
        push_message(&broker, &q, message).await;
    }
    assert_eq!(bodies(&pop(&broker, &q, 10).await), ["b", "e", "a", "c", "d"]);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_rejected_message_comes_back_to_its_own_place() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    for body in ["1", "2", "3"] {
        push(&broker, &q, body).await;
    }
    let first = pop(&broker, &q, 1).await;
    broker.nack(&receipts(&first), None).await.remove(0).unwrap();
    assert_eq!(bodies(&pop(&broker, &q, 3).await), ["1", "2", "3"]);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_delayed_message_is_seen_when_its_time_has_come() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    push_message(&broker, &q, NewMessage { delay: Millis::from_secs(3600), ..NewMessage::new("much later") })
        .await;
    assert!(pop(&broker, &q, 1).await.is_empty());
    assert_eq!(broker.queue_stats(&q).unwrap().delayed, 1);
    let pushed = Instant::now();
    push_message(&broker, &q, NewMessage { delay: Millis(60), ..NewMessage::new("later") }).await;
    let late = pop_wait(&broker, &q).await;
    // The broker counts whole milliseconds, and may have pushed it at the end of one.
    assert!(pushed.elapsed() > Duration::from_millis(59), "its time has not come");
    assert_eq!(bodies(&late), ["later"]);
    broker.shutdown().await;
}

#[tokio::test]
async fn consumers_are_served_in_turn() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    let mut one = subscribe(&broker, &q, 100);
    let mut two = subscribe(&broker, &q, 100);
    let messages = (0..10).map(|i| NewMessage::new(i.to_string())).collect();
    broker.push(&q, messages).await.unwrap();
    assert_eq!(bodies(&next(&mut one).await), ["0", "2", "4", "6", "8"]);
    assert_eq!(bodies(&next(&mut two).await), ["1", "3", "5", "7", "9"]);
    drop((one, two));
    broker.shutdown().await;
}

#[tokio::test]
async fn a_subscription_takes_no_more_than_its_credit() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    let mut subscription = subscribe(&broker, &q, 2);
    let messages = (0..5).map(|i| NewMessage::new(i.to_string())).collect();
    broker.push(&q, messages).await.unwrap();
    assert_eq!(bodies(&next(&mut subscription).await), ["0", "1"]);
    assert_eq!(broker.queue_stats(&q).unwrap().ready, 3);
    subscription.add_credit(1);
    assert_eq!(bodies(&next(&mut subscription).await), ["2"]);
    drop(subscription);
    broker.shutdown().await;
}

#[tokio::test]
async fn what_a_consumer_holds_comes_back_when_it_leaves() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    for body in ["taken", "in the mailbox"] {
        push(&broker, &q, body).await;
    }
    let mut subscription = subscribe(&broker, &q, 1);
    assert_eq!(bodies(&next(&mut subscription).await), ["taken"]);
    subscription.add_credit(1);
    drop(subscription);
    let again = pop(&broker, &q, 2).await;
    assert_eq!(bodies(&again), ["taken", "in the mailbox"]);
    assert_eq!(
        again.iter().map(|d| d.attempt).collect::<Vec<_>>(),
        [2, 1],
        "what was never seen does not count"
    );
    broker.shutdown().await;
}

#[tokio::test]
async fn a_message_that_keeps_failing_becomes_a_dead_letter_and_can_be_sent_back() {
    let config = QueueConfig { max_attempts: Some(2), ..QueueConfig::default() };
    let (broker, q) = with_queue(config).await;
    let headers = nexo_broker::Headers(vec![("k".into(), nexo_broker::HeaderValue::Text("v".into()))]);
    let poison = NewMessage {
        priority: Priority(7),
        properties: headers.to_properties().unwrap(),
        ..NewMessage::new("poison")
    };
    let pushed = push_message(&broker, &q, poison).await;
    for _ in 0..2 {
        let held = pop(&broker, &q, 1).await;
        broker.nack(&receipts(&held), None).await.remove(0).unwrap();
    }
    let dlq = name("q_dlq");
    eventually("the message moves", || broker.queue_stats(&dlq).is_ok_and(|stats| stats.ready == 1)).await;
    assert_eq!(broker.queue_stats(&q).unwrap().dead_lettered, 1);
    let dead = broker.peek(&dlq, 1).await.unwrap().remove(0);
    let origin = dead.message.origin.expect("a dead letter knows where it comes from");
    assert_eq!((origin.reason, &origin.queue, origin.attempts), (DeathReason::MaxAttempts, &q, 2));
    assert_eq!(origin.offset, pushed.offset);
    assert!(origin.at >= dead.enqueued_at);
    assert_eq!(dead.message.priority, Priority(7));
    assert_eq!(nexo_broker::Headers::from_properties(&dead.message.properties).unwrap(), headers);

    let done = broker.redrive(&dlq, Redrive::default(), &|_| {}).await.unwrap();
    assert_eq!((done.moved, done.skipped), (1, 0));
    let back = pop(&broker, &q, 1).await;
    assert_eq!((bodies(&back), back[0].attempt), (vec!["poison".to_owned()], 1));
    assert_eq!(broker.queue_stats(&dlq).unwrap().ready, 0);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_redrive_can_be_partial_and_passes_over_what_has_nowhere_to_go() {
    let config = QueueConfig { max_attempts: Some(1), ..QueueConfig::default() };
    let (broker, q) = with_queue(config).await;
    let dlq = name("q_dlq");
    for i in 0..6 {
        push(&broker, &q, &i.to_string()).await;
    }
    let held = pop(&broker, &q, 6).await;
    broker.nack(&receipts(&held), None).await;
    eventually("the messages move", || broker.queue_stats(&dlq).is_ok_and(|stats| stats.ready == 6)).await;
    push(&broker, &dlq, "never was elsewhere").await;

    let one = Redrive { offsets: vec![Offset(2)], ..Redrive::default() };
    assert_eq!(broker.redrive(&dlq, one, &|_| {}).await.unwrap().moved, 1);
    assert_eq!(bodies(&pop(&broker, &q, 9).await), ["2"]);
    let two = Redrive { max: Some(2), ..Redrive::default() };
    assert_eq!(broker.redrive(&dlq, two, &|_| {}).await.unwrap().moved, 2);
    assert_eq!(bodies(&pop(&broker, &q, 9).await), ["0", "1"]);
    let done = broker.redrive(&dlq, Redrive::default(), &|_| {}).await.unwrap();
    assert_eq!((done.moved, done.skipped), (3, 1));
    let left = broker.peek(&dlq, 9).await.unwrap();
    assert_eq!(bodies(&left), ["never was elsewhere"]);
    assert_eq!(left[0].attempt, 0, "being passed over is no attempt");
    let missing = Redrive { target: Some(name("nowhere")), ..Redrive::default() };
    let error = broker.redrive(&dlq, missing, &|_| {}).await.unwrap_err();
    assert_eq!(error, QueueError::NotFound { name: name("nowhere") });
    broker.shutdown().await;
}

#[tokio::test]
async fn a_dead_letter_queue_never_moves_messages_into_itself() {
    let (broker, q) = with_queue(QueueConfig { max_attempts: Some(1), ..QueueConfig::default() }).await;
    let own = QueueConfig { dead_letters: DeadLetters::Queue(q.clone()), ..QueueConfig::default() };
    let error = broker.create_queue(&name("q"), own.clone()).await.unwrap_err();
    assert!(matches!(error, CreateError::Config(_)), "{error}");
    push(&broker, &q, "x").await;
    let held = pop(&broker, &q, 1).await;
    broker.nack(&receipts(&held), None).await;
    let dlq = name("q_dlq");
    eventually("the message moves", || broker.queue_stats(&dlq).is_ok_and(|stats| stats.ready == 1)).await;
    for attempt in 1..10 {
        let held = pop(&broker, &dlq, 1).await;
        assert_eq!(held[0].attempt, attempt);
        broker.nack(&receipts(&held), None).await.remove(0).unwrap();
    }
    assert!(broker.queue_stats(&name("q_dlq_dlq")).is_err());
    broker.shutdown().await;
}

#[tokio::test]
async fn a_rejected_message_is_a_dead_letter_when_the_answer_comes() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    push(&broker, &q, "hopeless").await;
    let held = pop(&broker, &q, 1).await;
    broker.reject(&receipts(&held)).await.remove(0).unwrap();
    let dead = broker.peek(&name("q_dlq"), 1).await.unwrap().remove(0);
    assert_eq!(dead.message.origin.map(|origin| origin.reason), Some(DeathReason::Rejected));
    broker.shutdown().await;
}

#[tokio::test]
async fn a_pop_keeps_to_its_bytes_and_leaves_the_rest_as_it_was() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    for body in ["aaaa", "bbbb", "cccc"] {
        push(&broker, &q, body).await;
    }
    let request = PopRequest { max: 9, wait: Millis::ZERO, visibility: None, bytes_max: Some(8) };
    assert_eq!(bodies(&broker.pop(&q, request).await.unwrap()), ["aaaa", "bbbb"]);
    let request = PopRequest { bytes_max: Some(1), ..request };
    let last = broker.pop(&q, request).await.unwrap();
    assert_eq!((bodies(&last), last[0].attempt), (vec!["cccc".to_owned()], 1), "one message always fits");
    broker.shutdown().await;
}

#[tokio::test]
async fn an_expired_message_is_dropped_or_moved_as_the_queue_says() {
    let config = QueueConfig { ttl: Some(Millis(30)), on_expiry: Fate::DeadLetter, ..QueueConfig::default() };
    let (broker, q) = with_queue(config).await;
    push(&broker, &q, "old").await;
    let dlq = name("q_dlq");
    eventually("the message moves", || broker.queue_stats(&dlq).is_ok_and(|stats| stats.ready == 1)).await;
    let dead = broker.peek(&dlq, 1).await.unwrap().remove(0);
    assert_eq!(dead.message.origin.map(|origin| origin.reason), Some(DeathReason::Expired));
    let dropping = name("dropping");
    broker.create_queue(&dropping, QueueConfig::default()).await.unwrap();
    push_message(&broker, &dropping, NewMessage { ttl: Some(Millis(20)), ..NewMessage::new("old") }).await;
    eventually("the message expires", || broker.queue_stats(&dropping).unwrap().expired == 1).await;
    assert_eq!(broker.queue_stats(&dropping).unwrap().ready, 0);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_life_of_nothing_is_for_those_who_wait() {
    let (broker, q) = with_queue(QueueConfig { ttl: Some(Millis(0)), ..QueueConfig::default() }).await;
    for _ in 0..50 {
        push(&broker, &q, "nobody waits").await;
        assert!(pop(&broker, &q, 1).await.is_empty());
    }
    let mut waiting = subscribe(&broker, &q, 1);
    push(&broker, &q, "taken").await;
    assert_eq!(bodies(&next(&mut waiting).await), ["taken"]);
    drop(waiting);
    broker.shutdown().await;
}

#[tokio::test]
async fn two_phase_acknowledgement_sends_again_until_received() {
    let config = QueueConfig {
        receipt_timeout: Some(Millis(40)),
        visibility: Millis::from_secs(7200),
        ..QueueConfig::default()
    };
    let (broker, q) = with_queue(config).await;
    push(&broker, &q, "work").await;
    assert_eq!(pop(&broker, &q, 1).await[0].attempt, 1);
    // The next one has time to be received, also on a slow machine.
    let patient = |config: &QueueConfig| QueueConfig {
        receipt_timeout: Some(Millis::from_secs(3600)),
        ..config.clone()
    };
    broker.update_queue(&q, patient).await.unwrap();
    let again = pop_wait(&broker, &q).await;
    assert_eq!(again[0].attempt, 2, "it was not received, so it is sent again");
    let until = broker.received(&receipts(&again)).await.remove(0).unwrap();
    assert!(until.0 > again[0].lease_until.unwrap().0 + 1_800_000, "now the work has its own time");
    let twice = broker.received(&receipts(&again)).await.remove(0);
    assert!(matches!(twice, Err(SettleError::AlreadyReceived { .. })), "{twice:?}");
    ack(&broker, &again).await;
    broker.shutdown().await;
}

#[tokio::test]
async fn a_repeated_push_is_recognised_also_after_a_restart() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    let message = NewMessage { dedup: Some(DedupId::new("order-7").unwrap()), ..NewMessage::new("pay") };
    let first = push_message(&broker, &q, message.clone()).await;
    let second = push_message(&broker, &q, message.clone()).await;
    assert_eq!((first.duplicate, second.duplicate, second.offset), (false, true, first.offset));
    broker.shutdown().await;
    let broker = open(&disk);
    assert!(push_message(&broker, &q, message).await.duplicate);
    assert_eq!(pop(&broker, &q, 9).await.len(), 1);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_group_is_worked_on_one_at_a_time_and_in_order() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    for (body, group) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")] {
        let message = NewMessage { group: Some(GroupId::new(group).unwrap()), ..NewMessage::new(body) };
        push_message(&broker, &q, message).await;
    }
    let first = pop(&broker, &q, 10).await;
    assert_eq!(bodies(&first), ["a1", "b1"]);
    broker.nack(&receipts(&first[..1]), None).await.remove(0).unwrap();
    let again = pop(&broker, &q, 10).await;
    assert_eq!(bodies(&again), ["a1"], "the next of the group waits until this one is done");
    ack(&broker, &again).await;
    assert_eq!(bodies(&pop(&broker, &q, 10).await), ["a2"]);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_full_queue_refuses_or_drops_the_oldest() {
    let reject = QueueConfig { max_messages: Some(2), ..QueueConfig::default() };
    let (broker, q) = with_queue(reject).await;
    let messages = ["1", "2", "3"].map(NewMessage::new).to_vec();
    let answers = broker.push(&q, messages.clone()).await.unwrap();
    assert!(answers[0].is_ok() && answers[1].is_ok());
    assert!(matches!(&answers[2], Err(PushError::Full { .. })));
    let dropping = name("dropping");
    let drop =
        QueueConfig { max_messages: Some(2), overflow: Overflow::DropOldest, ..QueueConfig::default() };
    broker.create_queue(&dropping, drop).await.unwrap();
    assert!(broker.push(&dropping, messages).await.unwrap().iter().all(Result::is_ok));
    assert_eq!(bodies(&pop(&broker, &dropping, 9).await), ["2", "3"]);
    broker.shutdown().await;
}

#[tokio::test]
async fn back_off_delays_what_fails() {
    let retry = Backoff::Fixed { delay: Millis::from_secs(3600) };
    let (broker, q) = with_queue(QueueConfig { retry, ..QueueConfig::default() }).await;
    push(&broker, &q, "flaky").await;
    let held = pop(&broker, &q, 1).await;
    broker.nack(&receipts(&held), None).await.remove(0).unwrap();
    assert_eq!(broker.queue_stats(&q).unwrap().delayed, 1);
    push(&broker, &q, "other").await;
    let held = pop(&broker, &q, 9).await;
    assert_eq!(bodies(&held), ["other"]);
    broker.nack(&receipts(&held), Some(Millis::ZERO)).await.remove(0).unwrap();
    assert_eq!(bodies(&pop(&broker, &q, 9).await), ["other"], "an explicit delay goes before the queue's");
    broker.shutdown().await;
}

#[tokio::test]
async fn a_paused_queue_takes_messages_and_hands_none_out() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    broker.pause_queue(&q, true).await.unwrap();
    push(&broker, &q, "wait").await;
    assert!(pop(&broker, &q, 1).await.is_empty());
    let mut subscription = subscribe(&broker, &q, 1);
    broker.pause_queue(&q, false).await.unwrap();
    assert_eq!(bodies(&next(&mut subscription).await), ["wait"]);
    drop(subscription);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_purge_leaves_only_what_is_being_worked_on() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    for i in 0..5 {
        push(&broker, &q, &i.to_string()).await;
    }
    push_message(&broker, &q, NewMessage { delay: Millis::from_secs(60), ..NewMessage::new("later") }).await;
    let held = pop(&broker, &q, 2).await;
    assert_eq!(broker.purge(&q).await.unwrap(), 4);
    let stats = broker.queue_stats(&q).unwrap();
    assert_eq!((stats.ready, stats.delayed, stats.leased), (0, 0, 2));
    ack(&broker, &held).await;
    broker.shutdown().await;
}

#[tokio::test]
async fn a_deleted_queue_is_gone_and_its_receipts_with_it() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    push(&broker, &q, "x").await;
    push(&broker, &q, "y").await;
    let held = pop(&broker, &q, 1).await;
    let mut subscription = subscribe(&broker, &q, 0);
    assert_eq!(broker.delete_queue(&q).await.unwrap(), 2);
    assert!(subscription.next().await.is_none(), "its consumers are told");
    let error = broker.push(&q, vec![NewMessage::new("z")]).await.unwrap_err();
    assert_eq!(error, QueueError::NotFound { name: q.clone() });
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    let answer = broker.ack(&receipts(&held)).await.remove(0);
    assert!(
        matches!(answer, Err(SettleError::QueueGone { .. })),
        "a new queue of that name is another queue"
    );
    drop(subscription);
    broker.shutdown().await;
}

#[tokio::test]
async fn receipts_that_do_not_hold_get_a_clear_answer() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    push(&broker, &q, "x").await;
    let held = pop(&broker, &q, 1).await;
    ack(&broker, &held).await;
    let done = broker.ack(&receipts(&held)).await.remove(0);
    assert!(matches!(done, Err(SettleError::NotLeased { .. })), "{done:?}");
    let never = Receipt { offset: Offset(99), ..held[0].receipt() };
    assert!(matches!(broker.ack(&[never]).await.remove(0), Err(SettleError::Unknown { .. })));
    let nowhere = Receipt { queue: QueueId(12345), ..never };
    assert!(matches!(broker.ack(&[nowhere]).await.remove(0), Err(SettleError::QueueGone { .. })));
    broker.shutdown().await;
}

#[tokio::test]
async fn creating_again_with_other_settings_says_which_one_differs() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    assert!(!broker.create_queue(&q, QueueConfig::default()).await.unwrap());
    let other = QueueConfig { visibility: Millis(5000), ..QueueConfig::default() };
    let error = broker.create_queue(&q, other).await.unwrap_err().to_string();
    assert_eq!(error, "queue 'q' exists with visibility=30000 ms; this create asks for visibility=5000 ms");
    broker.shutdown().await;
}

#[tokio::test]
async fn times_and_sizes_beyond_their_limits_are_refused_by_name() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    let endless = NewMessage { delay: Millis(u64::MAX), ..NewMessage::new("x") };
    let huge = NewMessage::new(vec![0u8; broker.body_bytes_max() + 1]);
    let answers = broker.push(&q, vec![endless, NewMessage::new("fine"), huge]).await.unwrap();
    assert!(matches!(&answers[0], Err(PushError::TimeTooLong { field: "delay_ms", .. })));
    assert!(answers[1].is_ok());
    assert!(matches!(&answers[2], Err(PushError::BodyTooLarge { .. })));
    let request = PopRequest { max: 0, wait: Millis::ZERO, visibility: None, bytes_max: None };
    let error = broker.pop(&q, request).await.unwrap_err().to_string();
    assert_eq!(error, "max must be between 1 and 10000; it is 0");
    assert_eq!(broker.queue_stats(&q).unwrap().ready, 1, "what was refused changed nothing");
    broker.shutdown().await;
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let q = name("q");
    let config = QueueConfig { visibility: Millis::from_secs(3600), ..QueueConfig::default() };
    broker.create_queue(&q, config.clone()).await.unwrap();
    for i in 0..5 {
        push(&broker, &q, &i.to_string()).await;
    }
    push_message(&broker, &q, NewMessage { durability: Durability::Transient, ..NewMessage::new("gone") })
        .await;
    push_message(&broker, &q, NewMessage { delay: Millis::from_secs(3600), ..NewMessage::new("later") })
        .await;
    let held = pop(&broker, &q, 3).await;
    ack(&broker, &held[..1]).await;
    broker.nack(&receipts(&held[1..2]), None).await.remove(0).unwrap();
    broker.shutdown().await;

    let broker = open(&disk);
    let stats = broker.queue_stats(&q).unwrap();
    assert_eq!((stats.ready, stats.leased, stats.delayed), (3, 1, 1));
    assert_eq!(stats.config, config);
    let again = pop(&broker, &q, 9).await;
    assert_eq!(bodies(&again), ["1", "3", "4"]);
    assert_eq!(again[0].attempt, 2, "attempts are kept");
    ack(&broker, &held[2..3]).await; // A receipt from before the restart still holds.
    let pushed = push(&broker, &q, "new").await;
    assert!(pushed.offset > Offset(6), "offsets of transient messages are not given out again");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_pop_gets_everything_that_is_there() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    // More than is handed out under one hold of the queue's lock.
    for _ in 0..5 {
        broker.push(&q, vec![NewMessage::new("x"); 9_900]).await.unwrap();
        let all = pop(&broker, &q, 10_000).await;
        assert_eq!(all.len(), 9_900);
        ack(&broker, &all).await;
    }
    broker.shutdown().await;
}
