//! Users over any changes: the same records give the same users, and what is told of them is what was written.

use std::collections::BTreeSet;

use nexo_types::{Millis, limits};
use proptest::prelude::*;

use super::*;
use crate::access::{
    AccessKey, ApiToken, HashAlgorithm, PasswordHash, Permission, PermissionTexts, Resource, Tag, UserLimits,
};
use crate::machine::check::{Checked, START, check};

impl Checked for Access {
    fn read_back(_: &AccessRecord, bytes: Bytes) -> AccessRecord {
        <Self as Machine>::decode(&bytes).unwrap()
    }

    fn supply(&mut self, missing: Infallible, _: &[AccessRecord]) {
        match missing {}
    }

    fn prepare(&mut self) {}
}

fn user(text: &str) -> UserName {
    UserName::new(text).unwrap()
}

fn add(name: &str) -> AccessRecord {
    AccessRecord::Add { user: user(name), password: None, tags: BTreeSet::new() }
}

fn allow(name: &str, vhost: &str, configure: &str, write: &str, read: &str) -> AccessRecord {
    let permissions = PermissionTexts { configure: configure.into(), write: write.into(), read: read.into() };
    AccessRecord::SetPermissions { user: user(name), vhost: vhost.into(), permissions }
}

/// The changes are made, all of them.
fn after(changes: impl IntoIterator<Item = AccessRecord>) -> Access {
    let mut access = Access::new();
    for change in changes {
        let decided = access.decide_changes(START, &[change]).unwrap();
        decided.iter().for_each(|record| access.apply_record(record));
    }
    access
}

fn a_user() -> impl Strategy<Value = UserName> {
    prop::sample::select(vec!["ann", "bob", "eve"]).prop_map(user)
}

fn a_vhost() -> impl Strategy<Value = Arc<str>> {
    prop::sample::select(vec!["/", "shop"]).prop_map(Arc::from)
}

fn a_pattern() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", ".*", "^a", "b$", "{username}", "(", "^a.{2,3}$"]).prop_map(str::to_owned)
}

fn a_password() -> impl Strategy<Value = Option<PasswordHash>> {
    let algorithm = prop::sample::select(vec![
        HashAlgorithm::Argon2id,
        HashAlgorithm::SaltedSha256,
        HashAlgorithm::SaltedSha512,
    ]);
    let hash = prop::collection::vec(any::<u8>(), 0..6);
    prop::option::of(
        (algorithm, hash).prop_map(|(algorithm, hash)| PasswordHash { algorithm, hash: hash.into() }),
    )
}

fn some_tags() -> impl Strategy<Value = BTreeSet<Tag>> {
    let tag = prop::sample::select(vec!["administrator", "monitoring", "mine"]);
    prop::collection::btree_set(tag.prop_map(|text| Tag::new(text).unwrap()), 0..3)
}

fn an_id() -> impl Strategy<Value = Arc<str>> {
    prop::sample::select(vec!["K1", "K2"]).prop_map(Arc::from)
}

fn a_change() -> impl Strategy<Value = AccessRecord> {
    let texts = (a_pattern(), a_pattern(), a_pattern())
        .prop_map(|(configure, write, read)| PermissionTexts { configure, write, read });
    let limits = (any::<Option<u16>>(), any::<Option<u16>>()).prop_map(|(connections, channels)| {
        UserLimits { max_connections: connections.map(Into::into), max_channels: channels.map(Into::into) }
    });
    let exchange = || prop::sample::select(vec!["amq.topic", "t"]).prop_map(Arc::from);
    prop_oneof![
        4 => (a_user(), a_password(), some_tags())
            .prop_map(|(user, password, tags)| AccessRecord::Add { user, password, tags }),
        1 => a_user().prop_map(|user| AccessRecord::Delete { user }),
        1 => (a_user(), a_password()).prop_map(|(user, password)| AccessRecord::SetPassword { user, password }),
        1 => (a_user(), some_tags()).prop_map(|(user, tags)| AccessRecord::SetTags { user, tags }),
        4 => (a_user(), a_vhost(), texts)
            .prop_map(|(user, vhost, permissions)| AccessRecord::SetPermissions { user, vhost, permissions }),
        1 => (a_user(), a_vhost()).prop_map(|(user, vhost)| AccessRecord::ClearPermissions { user, vhost }),
        3 => (a_user(), a_vhost(), exchange(), a_pattern(), a_pattern()).prop_map(
            |(user, vhost, exchange, write, read)| AccessRecord::SetTopics { user, vhost, exchange, write, read }
        ),
        1 => (a_user(), a_vhost(), prop::option::of(exchange()))
            .prop_map(|(user, vhost, exchange)| AccessRecord::ClearTopics { user, vhost, exchange }),
        1 => (a_user(), limits).prop_map(|(user, limits)| AccessRecord::SetLimits { user, limits }),
        1 => (a_user(), prop::option::of(a_vhost()))
            .prop_map(|(user, vhost)| AccessRecord::SetDefaultVhost { user, vhost }),
        2 => (a_user(), an_id(), 0..9u64).prop_map(|(user, id, at)| {
            AccessRecord::AddKey { user, id, key: AccessKey { secret: "s".into(), created: Timestamp(at) } }
        }),
        1 => (a_user(), an_id()).prop_map(|(user, id)| AccessRecord::RemoveKey { user, id }),
        2 => (a_user(), an_id(), any::<u8>()).prop_map(|(user, id, byte)| {
            let token = ApiToken { hash: [byte; 32], description: "ci".into(), created: Timestamp(7) };
            AccessRecord::AddToken { user, id, token }
        }),
        1 => (a_user(), an_id()).prop_map(|(user, id)| AccessRecord::RemoveToken { user, id }),
        1 => a_vhost().prop_map(|vhost| AccessRecord::ForgetVhost { vhost }),
    ]
}

/// What is looked up by key and by token is what users have.
fn check_indexes(access: &Access) {
    let of = |ids: Vec<(&Arc<str>, &UserName)>| -> BTreeMap<Arc<str>, UserName> {
        ids.into_iter().map(|(id, name)| (id.clone(), name.clone())).collect()
    };
    let keys = access.users().flat_map(|user| user.keys.keys().map(|id| (id, &user.name))).collect();
    let tokens = access.users().flat_map(|user| user.tokens.keys().map(|id| (id, &user.name))).collect();
    assert_eq!((&of(keys), &of(tokens)), (&*access.keys, &*access.tokens));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn users_are_a_machine(commands in prop::collection::vec(prop::collection::vec(a_change(), 1..4), 1..40)) {
        let mut access = Access::new();
        for command in &commands {
            if let Ok(records) = access.decide_changes(START, command) {
                for record in records {
                    let before = access.clone().snapshot();
                    let copy = access.clone();
                    access.apply_record(&record);
                    assert_eq!(copy.snapshot(), before, "a copy does not change");
                    let bytes = record.encode();
                    for cut in 0..bytes.len() {
                        assert!(AccessRecord::decode(&bytes[..cut]).is_err(), "a cut record was taken");
                    }
                }
                check_indexes(&access);
            }
        }
        check(Access::new, commands.into_iter().map(|command| (Millis(1), command)).collect());
    }

    #[test]
    fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        _ = AccessRecord::decode(&bytes);
        _ = Access::from_snapshot(&bytes);
    }
}

#[test]
fn a_user_may_what_its_permissions_in_the_vhost_say() {
    let access = after([add("ann"), allow("ann", "/", "^ann-", ".*", "")]);
    let ann = access.user("ann").unwrap();
    assert!(ann.may_enter("/") && !ann.may_enter("shop"));
    assert!(ann.may("/", Permission::Configure, Resource::queue("ann-1")));
    assert!(!ann.may("/", Permission::Configure, Resource::queue("bob-1")));
    assert!(ann.may("/", Permission::Write, Resource::exchange("")));
    assert!(!ann.may("/", Permission::Read, Resource::queue("ann-1")), "an empty pattern allows nothing");
    assert!(!ann.may("/", Permission::Read, Resource::exchange("")), "nor the default exchange");
    assert!(!ann.may("shop", Permission::Write, Resource::queue("ann-1")));
}

#[test]
fn the_default_exchange_has_a_name_for_patterns() {
    let access = after([add("ann"), allow("ann", "/", "", "^amq\\.default$", "")]);
    let ann = access.user("ann").unwrap();
    assert!(ann.may("/", Permission::Write, Resource::exchange("")));
    assert!(!ann.may("/", Permission::Write, Resource::queue("")));
    assert_eq!(Resource::exchange("").to_string(), "exchange 'amq.default'");
}

#[test]
fn topics_are_asked_for_only_where_something_is_said_of_their_exchange() {
    let topics = AccessRecord::SetTopics {
        user: user("ann"),
        vhost: "/".into(),
        exchange: "t".into(),
        write: "^{username}\\.".into(),
        read: "".into(),
    };
    let access = after([add("ann"), topics]);
    let ann = access.user("ann").unwrap();
    assert!(ann.may_topic("/", Permission::Write, "t", b"ann.x"));
    assert!(!ann.may_topic("/", Permission::Write, "t", b"bob.x"));
    assert!(!ann.may_topic("/", Permission::Read, "t", b"ann.x"));
    assert!(ann.may_topic("/", Permission::Write, "other", b"bob.x"));
    assert!(ann.may_topic("shop", Permission::Write, "t", b"bob.x"));
}

#[test]
fn changes_are_made_together_or_not_at_all() {
    let access = Access::new();
    assert_eq!(access.decide_changes(START, &[add("ann"), allow("ann", "/", "", "", "")]).unwrap().len(), 2);
    let refused = access.decide_changes(START, &[add("ann"), allow("ann", "/", "(", "", "")]).unwrap_err();
    assert!(matches!(refused, AccessError::Pattern(_)));
    assert_eq!(
        access.decide_changes(START, &[allow("bob", "/", "", "", "")]),
        Err(AccessError::NoSuchUser { name: user("bob") })
    );
    let access = after([add("ann")]);
    assert_eq!(access.decide_changes(START, &[add("ann")]), Err(AccessError::Exists { name: user("ann") }));
}

#[test]
fn what_changes_nothing_is_not_written() {
    let access = after([add("ann"), allow("ann", "/", "a", "b", "c")]);
    assert_eq!(access.decide_changes(START, &[allow("ann", "/", "a", "b", "c")]), Ok(Vec::new()));
    let gone = AccessRecord::ForgetVhost { vhost: "shop".into() };
    assert_eq!(access.decide_changes(START, &[gone]), Ok(Vec::new()));
}

#[test]
fn a_broker_that_had_users_remembers_that() {
    let access = after([add("ann"), AccessRecord::Delete { user: user("ann") }]);
    assert!(access.had_users() && access.users().len() == 0 && !Access::new().had_users());
}

#[test]
fn everything_has_a_bound() {
    let key = |number: usize| AccessRecord::AddKey {
        user: user("ann"),
        id: format!("K{number}").into(),
        key: AccessKey { secret: "s".into(), created: Timestamp(0) },
    };
    let access = after(std::iter::once(add("ann")).chain((0..limits::USER_KEYS_MAX).map(key)));
    let refused = access.decide_changes(START, &[key(limits::USER_KEYS_MAX)]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("there are at most {} access keys of a user", limits::USER_KEYS_MAX)
    );
}

#[test]
fn secrets_are_not_shown() {
    let hash = PasswordHash { algorithm: HashAlgorithm::Argon2id, hash: b"hidden".as_slice().into() };
    let key = AccessKey { secret: "hidden".into(), created: Timestamp(0) };
    assert!(!format!("{hash:?} {key:?}").contains("hidden"));
}
