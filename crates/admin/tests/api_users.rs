//! Users over the management API: who is let in, and what is shown of them.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeSet;

use common::api::Managed;
use nexo_access::{NewPassword, PermissionTexts, Tag, UserName};
use nexo_broker::access::AccessRecord;
use serde_json::json;

/// `ann:secret`
const ANN: &str = "authorization: Basic YW5uOnNlY3JldA==\r\n";

async fn add_ann(managed: &Managed, tags: &[&str]) -> UserName {
    let ann = UserName::new("ann").unwrap();
    let tags: BTreeSet<Tag> = tags.iter().map(|tag| Tag::new(tag).unwrap()).collect();
    managed.logins.add_user(&ann, NewPassword::Plain(b"secret".to_vec()), tags).await.unwrap();
    ann
}

#[tokio::test]
async fn administrators_are_let_in_and_nobody_else() {
    for (tags, status) in [(&[][..], 401), (&["management", "monitoring"], 401), (&["administrator"], 200)] {
        let managed = Managed::start().await;
        let ann = add_ann(&managed, tags).await;
        let reply = managed.send("GET", "/api/queues", ANN, b"").await;
        assert_eq!(reply.status, status, "{tags:?}");
        managed.logins.delete_user(&ann).await.unwrap();
        assert_eq!(managed.send("GET", "/api/queues", ANN, b"").await.status, 401, "it is gone");
    }
}

#[tokio::test]
async fn guest_that_was_deleted_stays_out() {
    let managed = Managed::start().await;
    add_ann(&managed, &["administrator"]).await;
    managed.logins.delete_user(&UserName::new("guest").unwrap()).await.unwrap();
    managed.expect(401, "GET", "/api/overview", None).await;
    assert_eq!(managed.send("GET", "/api/overview", ANN, b"").await.status, 200);
}

#[tokio::test]
async fn users_and_what_they_may_do_are_shown() {
    let managed = Managed::start().await;
    let ann = add_ann(&managed, &["monitoring"]).await;
    let texts = |configure: &str, write: &str, read: &str| PermissionTexts {
        configure: configure.to_owned(),
        write: write.to_owned(),
        read: read.to_owned(),
    };
    let permissions = texts("^ann", ".*", "");
    let may = AccessRecord::SetPermissions { user: ann.clone(), vhost: "/".into(), permissions };
    let (vhost, exchange) = ("/".into(), "amq.topic".into());
    let (write, read) = ("^a".to_owned(), "^b".to_owned());
    let topics = AccessRecord::SetTopics { user: ann, vhost, exchange, write, read };
    managed.logins.change(&[may, topics]).await.unwrap();
    let names: Vec<_> = managed.get("/api/users").await.as_array().unwrap().clone();
    assert_eq!(names.iter().map(|user| &user["name"]).collect::<Vec<_>>(), [&json!("ann"), &json!("guest")]);
    let shown = managed.get("/api/users/ann").await;
    assert_eq!((&shown["tags"], &shown["limits"]), (&json!(["monitoring"]), &json!({})));
    assert!(!shown["password_hash"].as_str().unwrap().contains("secret"));
    let of_ann = json!([{ "user": "ann", "vhost": "/", "configure": "^ann", "write": ".*", "read": "" }]);
    assert_eq!(managed.get("/api/users/ann/permissions").await, of_ann);
    let topics =
        json!([{ "user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^a", "read": "^b" }]);
    assert_eq!(managed.get("/api/topic-permissions").await, topics);
    assert_eq!(managed.get("/api/permissions").await.as_array().unwrap().len(), 2);
    assert_eq!(managed.get("/api/user-limits").await, json!([]));
    managed.expect(404, "GET", "/api/users/nobody", None).await;
}
