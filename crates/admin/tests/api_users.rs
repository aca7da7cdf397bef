//! Users and permissions over the management API: made, changed, shown, deleted, and what is refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{Managed, column};
use nexo_access::UserName;
use nexo_amqp_client::{Client, Login};
use serde_json::{Value, json};

async fn add(managed: &Managed, user: &str, tags: &str) {
    let body = json!({ "password": user, "tags": tags });
    managed.expect(201, "PUT", &format!("/api/users/{user}"), Some(body)).await;
}

fn patterns(configure: &str, write: &str, read: &str) -> Option<Value> {
    Some(json!({ "configure": configure, "write": write, "read": read }))
}

/// What the answer to a bad request says.
async fn reason(managed: &Managed, method: &str, path: &str, body: Value) -> Value {
    managed.expect(400, method, path, Some(body)).await.json()["reason"].clone()
}

#[tokio::test]
async fn a_user_is_made_changed_and_deleted() {
    let managed = Managed::start().await;
    let whoami = "/api/whoami";
    add(&managed, "ann", "monitoring, management").await;
    let shown = managed.call_as("ann", "GET", whoami, None).await.json();
    assert_eq!((&shown["name"], &shown["tags"]), (&json!("ann"), &json!(["management", "monitoring"])));

    let body = json!({ "password": "other", "tags": ["administrator"] });
    managed.expect(204, "PUT", "/api/users/ann", Some(body)).await;
    assert_eq!(managed.call_as("ann", "GET", whoami, None).await.status, 401, "the old password");
    assert_eq!(managed.call_as("ann:other", "GET", "/api/users", None).await.status, 200);
    let shown = managed.get("/api/users/ann").await;
    assert_eq!((&shown["tags"], &shown["limits"]), (&json!(["administrator"]), &json!({})));
    assert!(shown["password_hash"].as_str().unwrap().starts_with("$argon2id$"));

    // Without a password he has none, as in RabbitMQ.
    managed.expect(204, "PUT", "/api/users/ann", Some(json!({ "tags": "administrator" }))).await;
    assert_eq!(managed.call_as("ann:other", "GET", whoami, None).await.status, 401);
    assert_eq!(managed.get("/api/users/ann").await["password_hash"], "");
    managed.expect(204, "DELETE", "/api/users/ann", None).await;
    managed.expect(404, "DELETE", "/api/users/ann", None).await;
    managed.expect(404, "GET", "/api/users/ann", None).await;
}

/// The example of RabbitMQ's documentation: password `test12`.
#[tokio::test]
async fn a_hash_of_rabbitmq_lets_its_user_in() {
    let managed = Managed::start().await;
    let hash = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR";
    let body = json!({ "password_hash": hash, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "management" });
    managed.expect(201, "PUT", "/api/users/ann", Some(body)).await;
    managed.expect(201, "PUT", "/api/permissions/%2F/ann", patterns(".*", ".*", ".*")).await;
    assert_eq!(managed.call_as("ann:test12", "GET", "/api/whoami", None).await.status, 200);
    assert_eq!(managed.call_as("ann:test13", "GET", "/api/whoami", None).await.status, 401);
    let login = Login { user: "ann".into(), password: "test12".into(), ..Login::default() };
    Client::connect(managed.amqp, &login, std::time::Duration::from_secs(30)).await.unwrap();
    let shown = managed.get("/api/users/ann").await;
    assert_eq!(
        (&shown["password_hash"], &shown["hashing_algorithm"]),
        (&json!(hash), &json!("rabbit_password_hashing_sha256"))
    );
}

#[tokio::test]
async fn a_user_with_a_mistake_is_refused() {
    let managed = Managed::start().await;
    let path = "/api/users/ann";
    assert_eq!(reason(&managed, "PUT", path, json!({ "password": "x" })).await, "tags_not_present");
    let both = json!({ "password": "x", "password_hash": "y", "tags": "" });
    assert_eq!(reason(&managed, "PUT", path, both).await, "both_password_and_password_hash_are_provided");
    for body in [
        json!({ "password": "", "tags": "" }),
        json!({ "password": "x", "tags": 5 }),
        json!({ "password": "x", "tags": ["a\nb"] }),
        json!({ "password": 5, "tags": "" }),
        json!({ "password_hash": "not base64!", "tags": "" }),
        json!({ "password_hash": "AAAA", "hashing_algorithm": "rabbit_password_hashing_md5", "tags": "" }),
        json!({ "password": "x", "tags": "", "limits": { "max-cows": 5 } }),
    ] {
        reason(&managed, "PUT", path, body).await;
    }
    managed.expect(404, "GET", path, None).await;
}

#[tokio::test]
async fn many_users_go_at_once() {
    let managed = Managed::start().await;
    for user in ["a", "b", "c"] {
        add(&managed, user, "").await;
    }
    managed.expect(201, "PUT", "/api/permissions/%2F/c", patterns("", "", "")).await;
    let without = managed.get("/api/users/without-permissions").await;
    assert_eq!(column(&without, "name"), ["a", "b"]);
    let refused = reason(&managed, "POST", "/api/users/bulk-delete", json!({ "users": ["a", "none"] })).await;
    assert_eq!(refused, json!(["no_such_user", "none"]));
    let body = json!({ "users": ["a", "c", "a"] });
    managed.expect(204, "POST", "/api/users/bulk-delete", Some(body)).await;
    assert_eq!(column(&managed.get("/api/users").await, "name"), ["b", "guest"]);
    reason(&managed, "POST", "/api/users/bulk-delete", json!({ "users": [1] })).await;
}

#[tokio::test]
async fn permissions_are_set_and_cleared() {
    let managed = Managed::start().await;
    add(&managed, "ann", "").await;
    let path = "/api/permissions/%2F/ann";
    managed.expect(404, "GET", path, None).await;
    managed.expect(201, "PUT", path, patterns("^ann", ".*", "")).await;
    managed.expect(204, "PUT", path, patterns("^ann", ".*", "")).await;
    let of_ann = json!({ "user": "ann", "vhost": "/", "configure": "^ann", "write": ".*", "read": "" });
    assert_eq!(managed.get(path).await, of_ann);
    assert_eq!(managed.get("/api/users/ann/permissions").await, json!([of_ann]));
    assert_eq!(column(&managed.get("/api/vhosts/%2F/permissions").await, "user"), ["ann", "guest"]);
    assert_eq!(managed.get("/api/permissions").await.as_array().unwrap().len(), 2);
    let missing = reason(&managed, "PUT", path, json!({ "write": "" })).await;
    assert_eq!(missing, "[{key_missing,configure},\n {key_missing,read}]");
    reason(&managed, "PUT", path, patterns("(", "", "").unwrap()).await;
    managed.expect(204, "DELETE", path, None).await;
    managed.expect(404, "DELETE", path, None).await;

    let path = "/api/topic-permissions/%2F/ann";
    managed.expect(404, "GET", path, None).await;
    let topics = json!({ "exchange": "amq.topic", "write": "^a", "read": "^b" });
    managed.expect(201, "PUT", path, Some(topics.clone())).await;
    managed.expect(204, "PUT", path, Some(topics)).await;
    let shown =
        json!([{ "user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^a", "read": "^b" }]);
    for path in [
        path,
        "/api/topic-permissions",
        "/api/users/ann/topic-permissions",
        "/api/vhosts/%2F/topic-permissions",
    ] {
        assert_eq!(managed.get(path).await, shown, "{path}");
    }
    managed.expect(204, "DELETE", path, None).await;
    managed.expect(404, "DELETE", path, None).await;
}

#[tokio::test]
async fn permissions_need_their_virtual_host_and_their_user() {
    let managed = Managed::start().await;
    add(&managed, "ann", "").await;
    let topics = json!({ "exchange": "amq.topic", "write": "", "read": "" });
    for (vhost, user) in [("none", "ann"), ("%2F", "none")] {
        let path = format!("/api/permissions/{vhost}/{user}");
        let said = reason(&managed, "PUT", &path, patterns("", "", "").unwrap()).await;
        assert_eq!(said, "vhost_or_user_not_found");
        let path = format!("/api/topic-permissions/{vhost}/{user}");
        assert_eq!(reason(&managed, "PUT", &path, topics.clone()).await, "vhost_or_user_not_found");
        managed.expect(404, "GET", &path, None).await;
        managed.expect(404, "DELETE", &path, None).await;
    }
    // Whoever makes a virtual host may do everything in it; with it the permissions go.
    managed.expect(201, "PUT", "/api/vhosts/shop", None).await;
    managed.expect(201, "PUT", "/api/queues/shop/q", Some(json!({}))).await;
    managed.expect(201, "PUT", "/api/permissions/shop/ann", patterns("", "", "")).await;
    managed.expect(204, "DELETE", "/api/vhosts/shop", None).await;
    assert_eq!(managed.get("/api/users/ann/permissions").await, json!([]));
}

#[tokio::test]
async fn limits_of_users_are_set_and_cleared() {
    let managed = Managed::start().await;
    add(&managed, "ann", "").await;
    managed.expect(204, "PUT", "/api/user-limits/ann/max-connections", Some(json!({ "value": 1 }))).await;
    managed.expect(204, "PUT", "/api/user-limits/ann/max-channels", Some(json!({ "value": "5" }))).await;
    let shown = json!([{ "user": "ann", "value": { "max-connections": 1, "max-channels": 5 } }]);
    assert_eq!(managed.get("/api/user-limits").await, shown);
    assert_eq!(managed.get("/api/user-limits/ann").await, shown);
    assert_eq!(managed.get("/api/user-limits/guest").await, json!([]));
    managed.expect(204, "DELETE", "/api/user-limits/ann/max-channels", None).await;
    assert_eq!(managed.get("/api/user-limits").await[0]["value"], json!({ "max-connections": 1 }));
    managed.expect(404, "PUT", "/api/user-limits/none/max-channels", Some(json!({ "value": 1 }))).await;
    reason(&managed, "PUT", "/api/user-limits/ann/max-cows", json!({ "value": 1 })).await;
    reason(&managed, "PUT", "/api/user-limits/ann/max-channels", json!({})).await;

    managed.expect(201, "PUT", "/api/permissions/%2F/ann", patterns("", "", "")).await;
    let login = Login { user: "ann".into(), password: "ann".into(), ..Login::default() };
    let patience = std::time::Duration::from_secs(30);
    let _first = Client::connect(managed.amqp, &login, patience).await.unwrap();
    assert!(
        Client::connect(managed.amqp, &login, patience).await.is_err(),
        "one connection is what she may have"
    );
}

#[tokio::test]
async fn guest_that_was_deleted_stays_out() {
    let managed = Managed::start().await;
    add(&managed, "ann", "administrator").await;
    managed.logins.delete_user(&UserName::new("guest").unwrap()).await.unwrap();
    managed.expect(401, "GET", "/api/overview", None).await;
    assert_eq!(managed.call_as("ann", "GET", "/api/overview", None).await.status, 200);
}
