//! What is in the fixture of format 2, and in those of later formats too.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use nexo_broker::topology::{ExchangeKind, ExchangeSpec, Matching, NoHeaders};
use nexo_broker::{Broker, DeathReason, Health, ListRequest, PropertyFormat, QueueConfig, Receipt};
use nexo_core::queue::Stage;
use nexo_core::record::LeasePhase;
use nexo_types::{Millis, Offset, Priority, QueueName, Timestamp, VhostName, limits};

use crate::common::*;
use crate::story::{LARGE_BYTES, ROUNDS, all_bindings, all_exchanges, all_settings, exchange};

fn now() -> Timestamp {
    Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64)
}

/// Checks everything, and settles what clients hold. A later format has more queues in each round, and receipts of them.
pub(crate) async fn check(broker: &Broker, receipts: &[String], more: &[&str]) {
    assert_eq!(broker.health(), Health::Ok);
    check_topology(broker, more);
    let relocated = pop(broker, &name("relocated"), 2).await;
    assert_eq!(bodies(&relocated), ["copied"]);
    assert_eq!(bodies(&pop(broker, &name("last"), 2).await), ["syncs all before it"]);
    for round in ROUNDS {
        let queue = |text: &str| name(&format!("{round} {text}"));
        for (text, config) in all_settings() {
            assert_eq!(broker.queue_stats(&queue(text)).unwrap().config, config, "{round} {text}");
        }
        check_stages(broker, round, &queue("messages"));
        check_messages(broker, &queue("messages")).await;
        check_groups(broker, queue).await;
        check_deaths(broker, &queue("limited"), &queue("limited_dlq")).await;
        let left = |text: &str| broker.queue_stats(&queue(text)).unwrap();
        let purged = left("purged");
        assert_eq!((purged.ready, purged.pushed), (u64::from(is_over(purged.created_at)), 2));
        assert_eq!((left("cleared").ready, left("cleared").leased), (0, 0));
        assert!(left("changed").config.paused && left("changed").ready == 1);
        assert_eq!(bodies(&pop(broker, &queue("renewed"), 2).await), ["after"]);
        for text in ["deleted", "transient"] {
            assert!(broker.queue_stats(&queue(text)).is_err(), "{round} {text}");
        }
    }
    check_receipts(broker, receipts).await;
}

/// What is left after [`check`] and a restart.
pub(crate) async fn check_again(broker: &Broker, more: &[&str]) {
    assert_eq!(broker.health(), Health::Ok);
    check_topology(broker, more);
    for round in ROUNDS {
        for (text, config) in all_settings() {
            let stats = broker.queue_stats(&name(&format!("{round} {text}"))).unwrap();
            assert_eq!(stats.config, config, "{round} {text}");
        }
        let messages = broker.queue_stats(&name(&format!("{round} messages"))).unwrap();
        assert_eq!(messages.delayed, 2, "those that are far away");
    }
}

/// Whether leases of the fixture have ended: they are as long as can be, but not for ever.
pub(crate) fn is_over(began: Timestamp) -> bool {
    began.plus(limits::VISIBILITY_MAX) <= now()
}

/// Names of queues, settings and figures.
fn check_topology(broker: &Broker, more: &[&str]) {
    let vhost = Some(VhostName::DEFAULT);
    let listed = broker.list_queues(&ListRequest { vhost, limit: 1000, ..ListRequest::default() });
    let names: Vec<&str> = listed.iter().map(|one| one.name.as_str()).collect();
    let mut expected = vec!["last".to_owned(), "relocated".to_owned()];
    for round in ROUNDS {
        let texts = [
            "all",
            "others",
            "nothing",
            "plain",
            "messages",
            "groups",
            "fair",
            "receipts",
            "limited",
            "limited_dlq",
            "purged",
            "cleared",
            "changed",
            "renewed",
        ];
        expected.extend(texts.iter().chain(more).map(|text| format!("{round} {text}")));
    }
    expected.sort_unstable();
    assert_eq!(names, expected);
    for round in ROUNDS {
        let plain = broker.queue_details(&name(&format!("{round} plain"))).unwrap();
        let mut bindings: Vec<_> = plain
            .bindings
            .iter()
            .map(|one| (one.exchange.clone(), one.routing_key.clone(), one.arguments.0.len()))
            .collect();
        bindings.sort();
        let bound = |from: &str, key: &str, arguments| (format!("{round} {from}"), key.to_owned(), arguments);
        let all = [
            bound("delayed", "#", 0),
            bound("direct", "key \u{fffd}", 0),
            bound("fanout", "", 1),
            bound("hash", "3", 0),
            bound("headers", "", 8),
            bound("topic", "a.*.#", 0),
        ];
        assert_eq!(bindings, all);
        let (plain, nothing) =
            (plain.stats.id, broker.queue_stats(&name(&format!("{round} nothing"))).unwrap().id);
        let routes = broker.routes();
        let mut found = Vec::new();
        let mut route = |from: &str, key: &[u8]| {
            routes.route(&exchange(&format!("{round} {from}")), &[key], &NoHeaders, &mut found).unwrap();
            found.clone()
        };
        assert_eq!(route("direct", b"key \xff"), [plain]);
        assert_eq!(route("direct", b"gone"), []);
        assert_eq!(route("special", b"a.b"), [plain], "by way of another exchange");
        assert_eq!(route("special", b"x"), [plain], "by way of its alternate");
        assert_eq!(route("topic", b"b"), []);
        let hashed: Vec<_> = (0..50u8).map(|n| route("hash", &[n])).collect();
        assert!(hashed.contains(&vec![plain]) && hashed.contains(&vec![nothing]));
        assert!(routes.is_delayed(&exchange(&format!("{round} delayed"))));
        for text in ["deleted", "transient"] {
            assert!(broker.check_exchange(&exchange(&format!("{round} {text}"))).is_err());
        }
    }
}

/// Declaring all exchanges and bindings again changes nothing, and other ones are refused.
async fn check_exchanges(broker: &Broker, round: &str) {
    let generation = broker.routes_generation();
    for (name, spec) in all_exchanges(round) {
        broker.declare_exchange(&name, spec.clone()).await.unwrap();
        let other = ExchangeSpec { internal: !spec.internal, ..spec };
        assert!(broker.declare_exchange(&name, other).await.is_err());
    }
    for binding in all_bindings(round) {
        broker.bind(binding).await.unwrap();
    }
    assert_eq!(broker.routes_generation(), generation, "everything was there already");
    let other = ExchangeSpec::durable(ExchangeKind::Plain(Matching::Fanout));
    assert!(broker.declare_exchange(&exchange(&format!("{round} direct")), other).await.is_err());
}

/// The stage of every message, while leases are not over.
fn check_stages(broker: &Broker, round: &str, queue: &QueueName) {
    let created = broker.queue(queue).unwrap().created_at();
    let outline = broker.outline(queue).unwrap();
    let near = |at: Timestamp, span: Millis| {
        let begins = created.plus(span);
        begins <= at && at <= begins.plus(Millis::from_secs(600))
    };
    let stages: BTreeMap<u64, (u8, u32, String)> = outline
        .messages
        .iter()
        .map(|(offset, state)| {
            let stage = match state.stage {
                Stage::Ready => "ready",
                Stage::Delayed(at) if near(at, crate::story::AGES) => "far away",
                Stage::Leased { until: Some(until), phase: LeasePhase::Done, dying: None }
                    if near(until, limits::VISIBILITY_MAX) =>
                {
                    "leased"
                }
                other => panic!("{other:?}"),
            };
            (offset.0, (state.priority.0, state.attempts, stage.to_owned()))
        })
        .collect();
    let leased = if is_over(created) { "ready" } else { "leased" };
    let message = |priority, attempts, stage: &str| (priority, attempts, stage.to_owned());
    let mut expected: BTreeMap<u64, (u8, u32, String)> = [
        (1, message(9, 1, leased)),
        (2, message(9, 1, leased)),
        (3, message(9, 2, "ready")),
        (4, message(9, 1, "far away")),
        (5, message(9, 1, "ready")),
        (6, message(255, 0, "ready")),
        (7, message(0, 0, "far away")),
        (8, message(0, 0, "ready")),
        (9, message(0, 0, "ready")),
        (11, message(0, 0, "ready")),
        (12, message(0, 0, "ready")),
        (13, message(0, 0, "ready")),
        (14, message(0, 0, "ready")),
        (16, message(0, 0, "ready")),
        (17, message(0, 0, "ready")),
    ]
    .into();
    if round == ROUNDS[1] {
        expected.insert(15, message(0, 0, "ready"));
    }
    assert_eq!(stages, expected, "{round}");
    assert_eq!(outline.totals.pushed, 18);
    assert_eq!((outline.totals.acked, outline.totals.expired), (1, 1));
    assert!(outline.next_offset >= Offset(18));
    let remembered = created.plus(limits::DEDUP_WINDOW_MAX) > now();
    assert_eq!(outline.dedup.len(), usize::from(remembered));
    assert!(
        outline.dedup.values().all(|(until, first)| near(*until, limits::DEDUP_WINDOW_MAX) && first.0 == 11)
    );
}

/// The bytes of every message that can be delivered.
async fn check_messages(broker: &Broker, queue: &QueueName) {
    let created = broker.queue(queue).unwrap().created_at();
    let is_spilled = queue.as_str().starts_with(ROUNDS[1]);
    let all = pop(broker, queue, 100).await;
    let all: BTreeMap<u64, _> = all.iter().map(|one| (one.offset.0, one)).collect();
    let large = "l".repeat(LARGE_BYTES);
    let mut expected: BTreeMap<u64, &str> = [
        (3, "given back"),
        (5, "held by a connection"),
        (6, "urgent"),
        (8, "due"),
        (9, "mortal"),
        (11, "unique"),
        (12, "amqp"),
        (13, "native"),
        (14, "addressed"),
        (16, &large),
        (17, ""),
    ]
    .into();
    if is_spilled {
        expected.insert(15, "transient");
    }
    if is_over(created) {
        expected.extend([(1, "leased"), (2, "extended")]);
    }
    let found: BTreeMap<u64, &str> =
        all.iter().map(|(offset, one)| (*offset, std::str::from_utf8(&one.message.body).unwrap())).collect();
    assert_eq!(found, expected);
    let properties = |offset: u64| &all[&offset].message.properties;
    assert_eq!(
        (properties(12).format, &properties(12).bytes[..]),
        (PropertyFormat::Amqp, &b"as \xff it came"[..])
    );
    assert_eq!((properties(13).format, &properties(13).bytes[..]), (PropertyFormat::Native, &b"raw"[..]));
    assert_eq!(&properties(14).bytes[..], b"to ");
    assert_eq!(all[&9].message.lifetime, Some(crate::story::AGES));
    assert_eq!(all[&11].message.dedup.as_ref().unwrap().as_str(), "once");
    assert_eq!(all[&6].message.priority, Priority(255));
    assert_eq!((all[&3].attempt, all[&5].attempt, all[&6].attempt), (3, 2, 1));
    assert!(
        all.values()
            .all(|one| one.enqueued_at >= created && one.enqueued_at <= created.plus(Millis::from_secs(600)))
    );
}

async fn check_groups(broker: &Broker, queue: impl Fn(&str) -> QueueName) {
    let ordered = queue("groups");
    let stats = broker.queue_stats(&ordered).unwrap();
    if !is_over(stats.created_at) {
        assert_eq!((stats.ready, stats.leased, stats.grouped), (1, 1, 4));
        let next = pop(broker, &ordered, 10).await;
        assert_eq!(bodies(&next), ["two 0"]);
        assert_eq!(next[0].message.group.as_ref().unwrap().as_str(), "two");
        ack(broker, &next).await;
        assert_eq!(bodies(&pop(broker, &ordered, 10).await), ["two 1"]);
        let told = broker.outline(&queue("receipts")).unwrap();
        let phase = |offset| match told.messages[&Offset(offset)].stage {
            Stage::Leased { phase, .. } => phase,
            other => panic!("{other:?}"),
        };
        assert_eq!((phase(0), phase(1)), (LeasePhase::Receipt, LeasePhase::Done));
    }
    let fair = bodies(&pop(broker, &queue("fair"), 100).await);
    assert_eq!(fair.len(), 41);
    assert_ne!(fair.last().unwrap(), "few", "who has little does not wait for all of the others");
}

async fn check_deaths(broker: &Broker, queue: &QueueName, letters: &QueueName) {
    assert_eq!(broker.queue_stats(letters).unwrap().config, QueueConfig::for_dead_letters());
    let dead = pop(broker, letters, 10).await;
    assert_eq!(bodies(&dead), ["failed", "rejected"]);
    for (number, (one, reason)) in
        dead.iter().zip([DeathReason::MaxAttempts, DeathReason::Rejected]).enumerate()
    {
        let origin = one.message.origin.as_ref().unwrap();
        assert_eq!(
            (origin.reason, &origin.queue, origin.offset.0, origin.attempts),
            (reason, queue, number as u64, 1)
        );
    }
    assert_eq!(broker.queue_stats(queue).unwrap().dead_lettered, 2);
    assert_eq!(bodies(&pop(broker, queue, 10).await), ["alive"]);
}

/// Receipts that clients were given by the build of then.
async fn check_receipts(broker: &Broker, receipts: &[String]) {
    for round in ROUNDS {
        check_exchanges(broker, round).await;
    }
    let created = broker.queue(&name("b messages")).unwrap().created_at();
    for text in receipts {
        let receipt: Receipt = text.parse().unwrap();
        let answer = broker.ack(&[receipt]).await.remove(0);
        assert!(answer.is_ok() || is_over(created), "{text}: {answer:?}");
    }
}
