//! The power is cut at every operation of the disk while users and permissions change: what was answered is there, what was
//! asked for and not answered is there as a whole or not at all, and nothing else is.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::*;
use nexo_broker::access::{
    Access, AccessKey, AccessRecord, ApiToken, HashAlgorithm, PasswordHash, PermissionTexts, Tag, User,
    UserLimits, UserName,
};
use nexo_broker::topology::VhostSpec;
use nexo_broker::{Broker, BrokerOptions, NewMessage, QueueConfig};
use nexo_log::disk::{CutMode, FaultyDisk};
use nexo_types::{Timestamp, VhostName};

fn options() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("faulty") }
}

fn user(text: &str) -> UserName {
    UserName::new(text).unwrap()
}

fn hash(text: &str) -> Option<PasswordHash> {
    Some(PasswordHash { algorithm: HashAlgorithm::SaltedSha256, hash: text.as_bytes().into() })
}

fn add(name: &str) -> Vec<AccessRecord> {
    let tags = [Tag::new(Tag::MANAGEMENT).unwrap()].into();
    vec![
        AccessRecord::Add { user: user(name), password: hash(name), tags },
        AccessRecord::SetPermissions {
            user: user(name),
            vhost: "/".into(),
            permissions: PermissionTexts { configure: format!("^{name}-"), ..PermissionTexts::all() },
        },
    ]
}

/// One change of each kind.
fn changes(name: &str) -> Vec<Vec<AccessRecord>> {
    let who = || user(name);
    let topics = |exchange: &str| AccessRecord::SetTopics {
        user: who(),
        vhost: "/".into(),
        exchange: exchange.into(),
        write: "^{username}".into(),
        read: ".*".into(),
    };
    let in_shop = PermissionTexts::all();
    let key = AccessKey { secret: "secret".into(), created: Timestamp(5) };
    let token = ApiToken { hash: [7; 32], description: "builds".into(), created: Timestamp(6) };
    let limits = UserLimits { max_connections: Some(3), max_channels: None };
    let (id, next): (Arc<str>, Arc<str>) = (format!("K{name}").into(), format!("L{name}").into());
    vec![
        vec![AccessRecord::SetPassword { user: who(), password: hash("another") }],
        vec![AccessRecord::SetTags { user: who(), tags: [Tag::new("mine").unwrap()].into() }],
        vec![topics("amq.topic"), topics("other")],
        vec![AccessRecord::ClearTopics { user: who(), vhost: "/".into(), exchange: Some("other".into()) }],
        vec![AccessRecord::SetLimits { user: who(), limits }],
        vec![
            AccessRecord::SetPermissions { user: who(), vhost: "shop".into(), permissions: in_shop },
            AccessRecord::SetDefaultVhost { user: who(), vhost: Some("shop".into()) },
        ],
        vec![AccessRecord::AddKey { user: who(), id: id.clone(), key: key.clone() }],
        vec![
            AccessRecord::AddKey { user: who(), id: next, key },
            AccessRecord::RemoveKey { user: who(), id: id.clone() },
        ],
        vec![AccessRecord::AddToken { user: who(), id: id.clone(), token }],
        vec![AccessRecord::RemoveToken { user: who(), id }],
        vec![AccessRecord::ForgetVhost { vhost: "shop".into() }],
        vec![AccessRecord::ClearPermissions { user: who(), vhost: "/".into() }],
    ]
}

type Users = BTreeMap<UserName, Arc<User>>;

fn users(access: &Access) -> Users {
    access.users().map(|user| (user.name.clone(), Arc::new(undated(user)))).collect()
}

/// Whatever the time was.
fn undated(user: &User) -> User {
    let mut user = user.clone();
    user.keys.values_mut().for_each(|key| key.created = Timestamp(0));
    user.tokens.values_mut().for_each(|token| token.created = Timestamp(0));
    user
}

/// What a run was told: the users as answered, and as they are if what was asked for last has come to be.
#[derive(Default)]
struct Told {
    answered: Users,
    asked: Users,
    changes: usize,
}

async fn run(disk: &FaultyDisk) -> Told {
    let mut told = Told::default();
    let Ok(broker) = Broker::open_on(Arc::new(disk.clone()), options()) else { return told };
    // The script ends where the power goes.
    let _ = script(&broker, &mut told).await;
    broker.shutdown().await;
    told
}

async fn script(broker: &Broker, told: &mut Told) -> Result<(), ()> {
    let mut mirror = Access::new();
    let mut all = vec![add("guest"), add("ann"), add("bob")];
    all.extend(changes("ann"));
    all.push(vec![AccessRecord::Delete { user: user("guest") }]);
    all.extend(changes("bob"));
    all.push(add("guest"));
    broker.create_queue(&name("q"), QueueConfig::default()).await.map_err(|_| ())?;
    let shop = VhostName::new("shop").unwrap();
    broker.put_vhost(&shop, VhostSpec::default()).await.map_err(|_| ())?;
    for (number, change) in all.iter().enumerate() {
        mirror = after(&mirror, change);
        told.asked = users(&mirror);
        broker.change_access(change).await.map_err(|_| ())?;
        told.answered = users(&mirror);
        told.changes += 1;
        assert_eq!(users(&broker.access()), told.answered);
        // Enough to fill segments, so that there are checkpoints in between.
        if number % 2 == 0 {
            let message = NewMessage::new("x".repeat(3000));
            broker.push(&name("q"), vec![message]).await.map_err(|_| ())?;
        }
    }
    Ok(())
}

/// By the rules alone.
fn after(access: &Access, change: &[AccessRecord]) -> Access {
    use nexo_broker::access::AccessError;
    let records = access.decide_changes(Timestamp(5), change);
    let records = records.unwrap_or_else(|error: AccessError| panic!("{change:?}: {error}"));
    let mut access = access.clone();
    for record in &records {
        access.replay(record);
    }
    access
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker = Broker::open_on(Arc::new(disk), options()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = users(&broker.access());
    assert!(found == told.answered || found == told.asked, "{what}: {found:#?} after {:#?}", told.answered);
    assert!(broker.access().had_users() || told.answered.is_empty(), "{what}: it forgot that it had users");
    broker.shutdown().await;
}

fn on_runtime<R>(future: impl Future<Output = R>) -> R {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn what_was_answered_is_there_wherever_the_power_goes() {
    let expect = |told: &Told| {
        assert_eq!(told.changes, 3 + 12 + 1 + 12 + 1, "the script does what it should");
        assert_eq!(told.answered.len(), 3);
    };
    cut_power_everywhere(&run, expect, &check);
}

#[test]
fn users_come_back_from_a_checkpoint_and_from_the_log_after_it() {
    on_runtime(async {
        let disk = FaultyDisk::new();
        let broker = Broker::open_on(Arc::new(disk.clone()), options()).unwrap();
        assert!(!broker.access().had_users(), "a new broker has none, and somebody must make the first");
        broker.change_access(&add("ann")).await.unwrap();
        broker.shutdown().await;
        let broker = Broker::open_on(Arc::new(disk.clone()), options()).unwrap();
        let before = broker.access_generation();
        broker.change_access(&add("bob")).await.unwrap();
        assert!(broker.access_generation() > before);
        drop(broker);
        let broker = Broker::open_on(Arc::new(disk.restart(CutMode::Drop, 1)), options()).unwrap();
        assert_eq!(users(&broker.access()).len(), 2);
        let refused = broker.change_access(&add("bob")).await.unwrap_err();
        assert_eq!(refused.to_string(), "user 'bob' exists already");
        broker.shutdown().await;
    });
}
