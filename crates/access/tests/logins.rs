//! Who comes in, and what the broker makes of users while they are connected.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nexo_access::{
    FirstUser, Identity, LimitReached, LoginError, Logins, NewPassword, Permission, PermissionTexts,
    PublishRights, Resource, Tag, UserLimits, UserName, rabbitmq_hash,
};
use nexo_broker::access::AccessRecord;
use nexo_broker::{Broker, BrokerOptions};
use nexo_log::disk::MemoryDisk;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn elsewhere() -> IpAddr {
    "10.0.0.1".parse().unwrap()
}

fn open(disk: &MemoryDisk) -> Broker {
    Broker::open_on(Arc::new(disk.clone()), BrokerOptions::new("memory")).unwrap()
}

async fn logins() -> Logins {
    Logins::open(&open(&MemoryDisk::new()), &FirstUser::default()).await.unwrap()
}

fn user(text: &str) -> UserName {
    UserName::new(text).unwrap()
}

fn plain(text: &str) -> NewPassword {
    NewPassword::Plain(text.as_bytes().to_vec())
}

async fn add(logins: &Logins, name: &str, password: &str) -> Identity {
    logins.add_user(&user(name), plain(password), BTreeSet::new()).await.unwrap();
    logins.password(name.as_bytes(), password.as_bytes(), HERE).await.unwrap()
}

async fn allow(logins: &Logins, name: &str, configure: &str, write: &str, read: &str) {
    let permissions = PermissionTexts { configure: configure.into(), write: write.into(), read: read.into() };
    let change = AccessRecord::SetPermissions { user: user(name), vhost: "/".into(), permissions };
    logins.change(&[change]).await.unwrap();
}

#[tokio::test]
async fn a_new_broker_has_guest_who_may_do_everything_from_here() {
    let logins = logins().await;
    let guest = logins.password(b"guest", b"guest", HERE).await.unwrap();
    assert!(guest.is(Tag::ADMINISTRATOR) && logins.has_only_guest());
    guest.may("/", Permission::Configure, Resource::queue("q")).unwrap();
    assert!(guest.may_enter("other").is_err());
    let refused = logins.password(b"guest", b"guest", elsewhere()).await;
    assert_eq!(refused.unwrap_err(), LoginError::LoopbackOnly);
    let mapped = "::ffff:127.0.0.1".parse().unwrap();
    assert!(logins.password(b"guest", b"guest", mapped).await.is_ok());
}

#[tokio::test]
async fn the_first_user_is_the_one_that_is_configured_and_is_made_once() {
    let disk = MemoryDisk::new();
    let first = FirstUser { name: "ann".into(), password: "pw".into(), vhost: "shop".into() };
    let broker = open(&disk);
    let logins = Logins::open(&broker, &first).await.unwrap();
    let ann = logins.password(b"ann", b"pw", elsewhere()).await.unwrap();
    ann.may("shop", Permission::Write, Resource::exchange("")).unwrap();
    assert_eq!(logins.password(b"guest", b"guest", HERE).await.unwrap_err(), LoginError::Invalid);
    assert!(!logins.has_only_guest());
    add(&logins, "bob", "pw").await;
    logins.delete_user(&user("ann")).await.unwrap();
    broker.shutdown().await;
    let broker = open(&disk);
    let logins = Logins::open(&broker, &first).await.unwrap();
    assert_eq!(
        logins.password(b"ann", b"pw", HERE).await.unwrap_err(),
        LoginError::Invalid,
        "it stays deleted"
    );
    broker.shutdown().await;
}

/// Who has deleted everybody would have no way in.
#[tokio::test]
async fn a_configured_user_is_made_where_there_is_nobody_and_guest_is_not() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
    logins.delete_user(&user("guest")).await.unwrap();
    broker.shutdown().await;

    let broker = open(&disk);
    let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
    assert_eq!(broker.access().users().len(), 0, "guest stays deleted");
    assert!(logins.password(b"guest", b"guest", HERE).await.is_err());
    broker.shutdown().await;

    let broker = open(&disk);
    let first = FirstUser { name: "ann".into(), password: "pw".into(), vhost: "/".into() };
    let logins = Logins::open(&broker, &first).await.unwrap();
    assert!(logins.password(b"ann", b"pw", HERE).await.unwrap().is(Tag::ADMINISTRATOR));
    broker.shutdown().await;
}

#[tokio::test]
async fn a_first_user_that_cannot_be_is_refused() {
    for first in [
        FirstUser { name: String::new(), ..FirstUser::default() },
        FirstUser { password: String::new(), ..FirstUser::default() },
        FirstUser { vhost: "a\nb".into(), ..FirstUser::default() },
    ] {
        assert!(Logins::open(&open(&MemoryDisk::new()), &first).await.is_err(), "{first:?}");
    }
}

#[tokio::test]
async fn only_the_right_password_of_a_user_who_has_one_comes_in() {
    let logins = logins().await;
    add(&logins, "ann", "secret").await;
    logins.add_user(&user("bob"), NewPassword::None, BTreeSet::new()).await.unwrap();
    for (name, password) in [
        (&b"ann"[..], &b"wrong"[..]),
        (b"ann", b""),
        (b"ann", &[b'x'; 2000]),
        (b"bob", b""),
        (b"bob", b"x"),
        (b"eve", b"secret"),
        (b"\xff", b"secret"),
        (b"", b""),
    ] {
        let refused = logins.password(name, password, "10.0.0.7".parse().unwrap()).await.unwrap_err();
        assert_eq!(refused, LoginError::Invalid, "{name:?}");
    }
    assert!(logins.add_user(&user("zoe"), plain(""), BTreeSet::new()).await.is_err());
}

#[tokio::test]
async fn a_password_that_was_changed_no_longer_comes_in() {
    let logins = logins().await;
    add(&logins, "ann", "old").await;
    logins.set_password(&user("ann"), plain("new")).await.unwrap();
    assert_eq!(logins.password(b"ann", b"old", HERE).await.unwrap_err(), LoginError::Invalid);
    assert!(logins.password(b"ann", b"new", HERE).await.is_ok());
}

#[tokio::test]
async fn a_user_of_rabbitmq_keeps_its_password() {
    let logins = logins().await;
    // The example of RabbitMQ's documentation.
    let hash =
        rabbitmq_hash("rabbit_password_hashing_sha256", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR");
    logins.add_user(&user("ann"), NewPassword::Hashed(hash.unwrap()), BTreeSet::new()).await.unwrap();
    assert!(logins.password(b"ann", b"test12", HERE).await.is_ok());
    assert_eq!(logins.password(b"ann", b"test13", HERE).await.unwrap_err(), LoginError::Invalid);
}

/// A hash takes some twenty milliseconds of a processor; a password that is known takes none of it.
#[tokio::test]
async fn a_password_that_was_right_is_not_hashed_again() {
    let logins = logins().await;
    add(&logins, "ann", "secret").await;
    let once = std::time::Instant::now();
    assert!(logins.password(b"ann", b"wrong", elsewhere()).await.is_err());
    let once = once.elapsed();
    let begin = std::time::Instant::now();
    for _ in 0..1_000 {
        logins.password(b"ann", b"secret", HERE).await.unwrap();
    }
    assert!(begin.elapsed() < once * 100, "{:?} for a thousand, {once:?} for one hash", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn wrong_logins_slow_down_their_address_on_every_way_in() {
    let logins = logins().await;
    for _ in 0..10 {
        assert!(logins.token("nexo_A_b", elsewhere()).await.is_err());
    }
    let before = tokio::time::Instant::now();
    assert!(logins.password(b"guest", b"wrong", elsewhere()).await.is_err());
    assert!(before.elapsed() >= Duration::from_secs(1), "{:?}", before.elapsed());
    let before = tokio::time::Instant::now();
    logins.password(b"guest", b"guest", HERE).await.unwrap();
    assert!(before.elapsed() < Duration::from_millis(250), "others do not wait");
}

/// A program with a wrong password must not hold up all others of its machine, at every call.
#[tokio::test(start_paused = true)]
async fn who_has_come_in_before_does_not_wait_for_the_wrong_ones_of_its_address() {
    let logins = logins().await;
    add(&logins, "ann", "secret").await;
    for _ in 0..40 {
        logins.refused(HERE);
    }
    let before = tokio::time::Instant::now();
    for _ in 0..100 {
        logins.password(b"ann", b"secret", HERE).await.unwrap();
    }
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert!(logins.password(b"ann", b"wrong", HERE).await.is_err());
    assert!(before.elapsed() >= Duration::from_secs(2), "{:?}", before.elapsed());
}

/// Otherwise a right guess could be told from a wrong one without waiting.
#[tokio::test(start_paused = true)]
async fn guesses_are_not_answered_faster_because_the_right_one_is_known() {
    let logins = logins().await;
    add(&logins, "ann", "secret").await;
    for _ in 0..40 {
        logins.refused(HERE);
    }
    let guesses: Vec<_> = (0..200)
        .map(|number| {
            let logins = logins.clone();
            tokio::spawn(async move { logins.password(b"ann", format!("{number}").as_bytes(), HERE).await })
        })
        .collect();
    tokio::task::yield_now().await;
    let refused = logins.password(b"ann", b"secret", HERE).await.map(drop);
    assert_eq!(
        refused,
        Err(LoginError::TooMany),
        "it is not looked at: too many guesses came in this second"
    );
    for guess in guesses {
        assert!(guess.await.unwrap().is_err());
    }
    let before = tokio::time::Instant::now();
    logins.password(b"ann", b"secret", HERE).await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO, "and a second later it is");
}

/// Every call without a login asks for it.
#[tokio::test]
async fn that_guest_has_another_password_is_found_out_once() {
    let logins = logins().await;
    logins.anonymous(HERE).await.unwrap();
    logins.set_password(&user("guest"), plain("other")).await.unwrap();
    let once = std::time::Instant::now();
    assert_eq!(logins.anonymous(HERE).await.unwrap_err(), LoginError::Missing);
    let once = once.elapsed();
    let begin = std::time::Instant::now();
    for _ in 0..1_000 {
        assert_eq!(logins.anonymous(HERE).await.unwrap_err(), LoginError::Missing);
    }
    assert!(begin.elapsed() < once * 100, "{:?} for a thousand, {once:?} for one hash", begin.elapsed());
    logins.set_password(&user("guest"), plain("guest")).await.unwrap();
    logins.anonymous(HERE).await.unwrap();
}

#[tokio::test]
async fn a_token_comes_in_until_it_is_taken_away() {
    let logins = logins().await;
    add(&logins, "ann", "pw").await;
    let made = logins.add_token(&user("ann"), "builds").await.unwrap();
    assert_eq!(logins.token(&made.token, elsewhere()).await.unwrap().name(), &user("ann"));
    let mut wrong = made.token.clone();
    wrong.pop();
    for token in [&*wrong, "", "nexo_", &made.id, &format!("nexo_{}_x", made.id)] {
        assert_eq!(logins.token(token, "10.0.0.9".parse().unwrap()).await.unwrap_err(), LoginError::Invalid);
    }
    let id = Arc::from(&*made.id);
    logins.change(&[AccessRecord::RemoveToken { user: user("ann"), id }]).await.unwrap();
    assert_eq!(logins.token(&made.token, HERE).await.unwrap_err(), LoginError::Invalid);
}

#[tokio::test]
async fn a_key_belongs_to_its_user_and_goes_with_it() {
    let logins = logins().await;
    add(&logins, "ann", "pw").await;
    let key = logins.add_key(&user("ann")).await.unwrap();
    let (owner, secret) = logins.access_key(&key.id).unwrap();
    assert_eq!((owner, &*secret), (user("ann"), &*key.secret));
    assert!(logins.signed(&user("ann"), elsewhere()).is_ok());
    logins.delete_user(&user("ann")).await.unwrap();
    assert!(logins.access_key(&key.id).is_none() && logins.signed(&user("ann"), HERE).is_err());
}

#[tokio::test]
async fn headers_say_who_sends_a_request() {
    use http::HeaderMap;
    let logins = logins().await;
    let ann = add(&logins, "ann", "a:b").await;
    let token = logins.add_token(ann.name(), "").await.unwrap().token;
    let with = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", value.parse().unwrap());
        headers
    };
    // ann:a:b
    for value in ["Basic YW5uOmE6Yg==", "basic YW5uOmE6Yg==", &format!("Bearer {token}")] {
        assert_eq!(logins.authenticate(&with(value), elsewhere()).await.unwrap().name(), ann.name());
    }
    for value in ["Basic", "Basic !", "Basic YW5u", "Digest x", "Basic YW5uOmE6Yw=="] {
        let refused = logins.authenticate(&with(value), "10.0.0.8".parse().unwrap()).await.unwrap_err();
        assert_eq!(refused, LoginError::Invalid, "{value}");
    }
    assert_eq!(logins.authenticate(&HeaderMap::new(), HERE).await.unwrap_err(), LoginError::Missing);
    let guest = logins.authorize_or_guest(None, HERE).await.unwrap();
    assert_eq!(guest.name(), &user("guest"));
    assert!(logins.authorize_or_guest(None, elsewhere()).await.is_err());
}

#[tokio::test]
async fn permissions_hold_for_those_who_are_in_already() {
    let logins = logins().await;
    let ann = add(&logins, "ann", "pw").await;
    let refused = ann.may("/", Permission::Read, Resource::queue("mail")).unwrap_err();
    assert_eq!(refused.to_string(), "access to queue 'mail' in vhost '/' refused for user 'ann'");
    assert_eq!(ann.may_enter("/").unwrap_err().to_string(), "access to vhost '/' refused for user 'ann'");
    allow(&logins, "ann", "", "", "^mail$").await;
    ann.may("/", Permission::Read, Resource::queue("mail")).unwrap();
    ann.may_see("/", Resource::queue("mail")).unwrap();
    assert!(ann.may_see("/", Resource::queue("other")).is_err());
    let clear = AccessRecord::ClearPermissions { user: user("ann"), vhost: "/".into() };
    logins.change(&[clear]).await.unwrap();
    assert!(ann.may("/", Permission::Read, Resource::queue("mail")).is_err());
}

#[tokio::test]
async fn the_right_to_publish_is_remembered_until_something_changes() {
    let logins = logins().await;
    let ann = add(&logins, "ann", "pw").await;
    allow(&logins, "ann", "", "^amq", "").await;
    let mut rights = PublishRights::default();
    assert!(!rights.knows(&ann, b"amq.topic"));
    rights.check(&ann, "/", "amq.topic").unwrap();
    assert!(rights.knows(&ann, b"amq.topic") && !rights.knows(&ann, b"amq.direct"));
    assert!(rights.check(&ann, "/", "other").is_err());
    assert!(!rights.knows(&ann, b"other"));
    rights.check(&ann, "/", "amq.topic").unwrap();
    allow(&logins, "ann", "", "^other", "").await;
    assert!(!rights.knows(&ann, b"amq.topic") && rights.check(&ann, "/", "amq.topic").is_err());
    // Where something is said of topics, each message is looked at.
    allow(&logins, "ann", "", "^amq", "").await;
    let topics = AccessRecord::SetTopics {
        user: user("ann"),
        vhost: "/".into(),
        exchange: "amq.topic".into(),
        write: "^ann".into(),
        read: String::new(),
    };
    logins.change(&[topics]).await.unwrap();
    rights.check(&ann, "/", "amq.topic").unwrap();
    assert!(rights.is_by_topic() && !rights.knows(&ann, b"amq.topic"));
    let refused = ann.may_topic("/", Permission::Write, "amq.topic", b"bob.x").unwrap_err();
    let words = "access to topic 'bob.x' in exchange 'amq.topic' in vhost '/' refused for user 'ann'";
    assert_eq!(refused.to_string(), words);
}

#[tokio::test]
async fn a_user_has_no_more_connections_and_channels_than_it_may_have() {
    let logins = logins().await;
    let ann = add(&logins, "ann", "pw").await;
    let limits = UserLimits { max_connections: Some(2), max_channels: Some(3) };
    logins.change(&[AccessRecord::SetLimits { user: user("ann"), limits }]).await.unwrap();
    let (one, two) = (Arc::new(logins.connect(&ann).unwrap()), Arc::new(logins.connect(&ann).unwrap()));
    let refused = logins.connect(&ann).unwrap_err();
    assert_eq!(refused, LimitReached::Connections { user: user("ann"), max: 2 });
    assert_eq!(
        refused.to_string(),
        "connection refused for user 'ann': user connection limit (2) is reached"
    );
    logins.attend(&ann).unwrap();
    let channels = [one.open_channel().unwrap(), one.open_channel().unwrap(), two.open_channel().unwrap()];
    let refused = two.open_channel().unwrap_err().to_string();
    assert_eq!(
        refused,
        "number of channels opened for user 'ann' has reached the maximum allowed user limit of (3)"
    );
    drop(channels);
    let _again = two.open_channel().unwrap();
    drop(one);
    logins.connect(&ann).unwrap();
}

#[tokio::test]
async fn whoever_is_deleted_is_told_to_go() {
    let logins = logins().await;
    let (ann, bob) = (add(&logins, "ann", "pw").await, add(&logins, "bob", "pw").await);
    let (of_ann, stream, of_bob) =
        (logins.connect(&ann).unwrap(), logins.attend(&ann).unwrap(), logins.connect(&bob).unwrap());
    logins.delete_user(&user("ann")).await.unwrap();
    assert!(of_ann.ended().is_ended() && stream.ended().is_ended() && !of_bob.ended().is_ended());
    of_ann.ended().wait().await;
    assert!(!ann.is_known() && ann.may("/", Permission::Read, Resource::queue("q")).is_err());
    assert!(logins.connect(&ann).unwrap().ended().is_ended(), "who comes late goes at once");
}
