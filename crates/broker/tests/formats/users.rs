//! Users of every kind, as format 6 has them, in the story that a fixture tells.

use nexo_broker::Broker;
use nexo_broker::access::{
    AccessKey, AccessRecord, ApiToken, HashAlgorithm, PasswordHash, Permission, PermissionTexts, Resource,
    Tag, UserLimits, UserName,
};
use nexo_broker::topology::VhostSpec;
use nexo_types::{Timestamp, VhostName};

use crate::story::ROUNDS;

fn user(round: &str, text: &str) -> UserName {
    UserName::new(&format!("{round} {text}")).unwrap()
}

pub(crate) async fn tell(broker: &Broker, round: &str) {
    let all = || user(round, "all");
    let hash = |algorithm, hash: &str| Some(PasswordHash { algorithm, hash: hash.as_bytes().into() });
    let permissions = PermissionTexts { configure: "^a".into(), write: ".*".into(), read: String::new() };
    let key = AccessKey { secret: "secret".into(), created: Timestamp(5) };
    let token = ApiToken { hash: [7; 32], description: "builds".into(), created: Timestamp(6) };
    let limits = UserLimits { max_connections: Some(3), max_channels: Some(0) };
    let tags = [Tag::new("administrator").unwrap(), Tag::new("mine").unwrap()].into();
    let changes = [
        AccessRecord::Add { user: all(), password: hash(HashAlgorithm::SaltedSha512, "\u{1}\0"), tags },
        AccessRecord::SetPermissions { user: all(), vhost: "/".into(), permissions: permissions.clone() },
        AccessRecord::SetPermissions { user: all(), vhost: "gone".into(), permissions },
        AccessRecord::SetTopics {
            user: all(),
            vhost: "/".into(),
            exchange: "t".into(),
            write: "^{username}".into(),
            read: String::new(),
        },
        AccessRecord::SetLimits { user: all(), limits },
        AccessRecord::SetDefaultVhost { user: all(), vhost: Some("/".into()) },
        AccessRecord::AddKey { user: all(), id: format!("K{round}").into(), key: key.clone() },
        AccessRecord::AddKey { user: all(), id: format!("gone{round}").into(), key },
        AccessRecord::RemoveKey { user: all(), id: format!("gone{round}").into() },
        AccessRecord::AddToken { user: all(), id: format!("T{round}").into(), token: token.clone() },
        AccessRecord::AddToken { user: all(), id: format!("gone{round}").into(), token },
        AccessRecord::RemoveToken { user: all(), id: format!("gone{round}").into() },
        AccessRecord::ForgetVhost { vhost: "gone".into() },
        AccessRecord::Add { user: user(round, "plain"), password: None, tags: [].into() },
        AccessRecord::SetPassword {
            user: user(round, "plain"),
            password: hash(HashAlgorithm::Argon2id, "$argon2id$"),
        },
        AccessRecord::Add { user: user(round, "gone"), password: None, tags: [].into() },
        AccessRecord::Delete { user: user(round, "gone") },
    ];
    let gone = VhostName::new("gone").unwrap();
    broker.put_vhost(&gone, VhostSpec::default()).await.unwrap();
    broker.change_access(&changes).await.unwrap();
    broker.delete_vhost(&gone).await.unwrap();
}

pub(crate) fn check(broker: &Broker) {
    let access = broker.access();
    assert_eq!(access.users().len(), 2 * ROUNDS.len());
    for round in ROUNDS {
        let all = access.user(user(round, "all").as_str()).unwrap();
        let hash = all.password.as_ref().unwrap();
        assert_eq!((hash.algorithm, &*hash.hash), (HashAlgorithm::SaltedSha512, &b"\x01\0"[..]));
        assert!(all.is(Tag::ADMINISTRATOR) && all.is("mine") && all.tags.len() == 2);
        assert!(all.may("/", Permission::Configure, Resource::queue("a1")) && !all.may_enter("gone"));
        assert!(!all.may("/", Permission::Read, Resource::queue("a1")));
        assert!(!all.may_topic("/", Permission::Write, "t", b"x"));
        assert!(all.may_topic("/", Permission::Write, "t", format!("{round} all.x").as_bytes()));
        assert_eq!(all.limits, UserLimits { max_connections: Some(3), max_channels: Some(0) });
        assert_eq!(all.default_vhost.as_deref(), Some("/"));
        assert_eq!(access.owner_of_key(&format!("K{round}")).unwrap().name, all.name);
        assert_eq!(&*all.keys[&*format!("K{round}")].secret, "secret");
        assert_eq!(access.owner_of_token(&format!("T{round}")).unwrap().name, all.name);
        assert_eq!(all.tokens[&*format!("T{round}")].hash, [7; 32]);
        assert!(access.owner_of_key(&format!("gone{round}")).is_none());
        let plain = access.user(user(round, "plain").as_str()).unwrap();
        assert_eq!(plain.password.as_ref().unwrap().algorithm, HashAlgorithm::Argon2id);
        assert!(plain.tags.is_empty() && plain.permissions.is_empty());
    }
}
