//! What users with each tag may ask the management API, and what they see.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeSet;

use common::api::{Managed, column};
use nexo_access::UserName;
use nexo_amqp_client::{Client, Login};
use nexo_broker::access::AccessRecord;
use nexo_types::VhostName;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A user with each tag, all of whom may do everything in `own` and nothing elsewhere.
const USERS: [&str; 5] = ["none", "management", "policymaker", "monitoring", "administrator"];

/// What each of them is answered, in the order of [`USERS`]: `y` for anything but 401.
const TABLE: [(&str, &str, &str); 51] = [
    ("GET", "/api/overview", "-yyyy"),
    ("GET", "/api/whoami", "-yyyy"),
    ("GET", "/api/cluster-name", "-yyyy"),
    ("PUT", "/api/cluster-name", "----y"),
    ("POST", "/api/rebalance/queues", "----y"),
    ("POST", "/api/vhosts/own/start/x", "----y"),
    ("GET", "/api/aliveness-test/own", "-yyyy"),
    ("GET", "/api/aliveness-test/other", "-----"),
    ("GET", "/api/nodes", "---yy"),
    ("GET", "/api/nodes/x/memory", "---yy"),
    ("GET", "/api/users", "----y"),
    ("GET", "/api/users/none", "----y"),
    ("PUT", "/api/users/none", "----y"),
    ("GET", "/api/users/without-permissions", "----y"),
    ("POST", "/api/users/bulk-delete", "----y"),
    ("GET", "/api/users/none/permissions", "----y"),
    ("GET", "/api/user-limits", "----y"),
    ("PUT", "/api/user-limits/none/max-channels", "----y"),
    ("GET", "/api/permissions", "----y"),
    ("PUT", "/api/permissions/own/none", "----y"),
    ("DELETE", "/api/permissions/%2F/none", "----y"),
    ("GET", "/api/topic-permissions", "----y"),
    ("PUT", "/api/topic-permissions/own/none", "----y"),
    ("GET", "/api/parameters", "--y-y"),
    ("GET", "/api/global-parameters", "--y-y"),
    ("GET", "/api/policies", "-yyyy"),
    ("GET", "/api/vhosts", "-yyyy"),
    ("GET", "/api/vhosts/own", "-yyyy"),
    ("GET", "/api/vhosts/other", "---yy"),
    ("GET", "/api/vhosts/not-there", "-yyyy"),
    ("PUT", "/api/vhosts/own", "----y"),
    ("DELETE", "/api/vhosts/not-there", "----y"),
    ("GET", "/api/vhosts/own/permissions", "----y"),
    ("PUT", "/api/vhost-limits/own/max-queues", "----y"),
    ("GET", "/api/vhost-limits/other", "---yy"),
    ("GET", "/api/queues/own", "-yyyy"),
    ("GET", "/api/queues/other", "---yy"),
    ("GET", "/api/queues/other/q", "---yy"),
    ("PUT", "/api/queues/own/new", "-yyyy"),
    ("PUT", "/api/queues/other/new", "-----"),
    ("DELETE", "/api/queues/other/q", "-----"),
    ("DELETE", "/api/queues/other/q/contents", "-----"),
    ("GET", "/api/exchanges/other/amq.topic", "---yy"),
    ("PUT", "/api/exchanges/other/new", "-----"),
    ("GET", "/api/bindings/other", "---yy"),
    ("POST", "/api/bindings/other/e/amq.topic/q/q", "-----"),
    ("GET", "/api/consumers/other", "---yy"),
    ("GET", "/api/definitions", "----y"),
    ("POST", "/api/definitions", "----y"),
    ("GET", "/api/health/checks/alarms", "-yyyy"),
    ("GET", "/api/nexo/queues/other/q/messages", "-----"),
];

async fn world() -> Managed {
    let managed = Managed::start().await;
    for vhost in ["own", "other"] {
        managed.expect(201, "PUT", &format!("/api/vhosts/{vhost}"), None).await;
        managed.expect(201, "PUT", &format!("/api/queues/{vhost}/q"), Some(json!({}))).await;
    }
    let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
    for user in USERS {
        let tags = if user == "none" { "mine" } else { user };
        let body = json!({ "password": user, "tags": tags });
        managed.expect(201, "PUT", &format!("/api/users/{user}"), Some(body)).await;
        managed.expect(201, "PUT", &format!("/api/permissions/own/{user}"), Some(all.clone())).await;
    }
    managed
}

#[tokio::test]
async fn each_tag_opens_what_the_table_says() {
    let managed = world().await;
    for (method, path, expected) in TABLE {
        for (user, expected) in USERS.into_iter().zip(expected.chars()) {
            let reply = managed.call_as(user, method, path, None).await;
            let is_let = reply.status != 401;
            assert_eq!(is_let, expected == 'y', "{user} {method} {path}: {reply:?}");
        }
    }
    let reply = managed.call_as("none", "GET", "/api/overview", None).await;
    assert_eq!(reply.json(), json!({"error": "not_authorised", "reason": "Not management user"}));
    let reply = managed.call_as("management", "GET", "/api/users", None).await;
    assert_eq!(reply.json(), json!({"error": "not_authorised", "reason": "Not administrator user"}));
    let reply = managed.call_as("management", "GET", "/api/nodes", None).await;
    assert_eq!(reply.json()["reason"], "Not monitor user");
    let reply = managed.call_as("management", "GET", "/api/queues/other", None).await;
    assert_eq!(reply.json()["reason"], "User not authorised to access virtual host");
    let reply = managed.call_as("administrator", "DELETE", "/api/queues/other/q", None).await;
    assert_eq!(reply.json(), json!({"error": "not_authorised", "reason": "Access refused."}));
}

#[tokio::test]
async fn lists_show_the_virtual_hosts_that_one_may_see() {
    let managed = world().await;
    for (user, vhosts) in
        [("management", &["own"][..]), ("policymaker", &["own"]), ("monitoring", &["/", "other", "own"])]
    {
        let list = async |path: &str| managed.call_as(user, "GET", path, None).await.json();
        assert_eq!(column(&list("/api/vhosts").await, "name"), vhosts, "{user}");
        for path in ["/api/queues", "/api/exchanges", "/api/bindings", "/api/queues?sort=messages"] {
            let mut seen: Vec<String> = column(&list(path).await, "vhost")
                .iter()
                .map(|vhost| vhost.as_str().unwrap().to_owned())
                .collect();
            seen.sort();
            seen.dedup();
            let expected: Vec<&str> =
                vhosts.iter().copied().filter(|vhost| *vhost != "/" || path == "/api/exchanges").collect();
            assert_eq!(seen, expected, "{user} {path}");
        }
        let page = list("/api/queues?page=1").await;
        let queues = vhosts.iter().filter(|vhost| **vhost != "/").count();
        assert_eq!(page["total_count"], json!(queues), "{user}: a page does not tell of others");
        let overview = list("/api/overview").await;
        assert_eq!(overview["object_totals"]["queues"], json!(queues), "{user}");
        assert_eq!(overview.get("listeners").is_some(), user == "monitoring", "{user}");
    }
}

#[tokio::test]
async fn connections_are_ones_own_unless_one_may_see_all() {
    let managed = world().await;
    let login = Login {
        user: "none".into(),
        password: "none".into(),
        virtual_host: "own".into(),
        ..Login::default()
    };
    let mut client = Client::connect(managed.amqp, &login, std::time::Duration::from_secs(30)).await.unwrap();
    client.open_channel(1).await.unwrap();
    let seen =
        managed.until("/api/channels", |shown| shown.as_array().is_some_and(|all| all.len() == 1)).await;
    let name =
        seen[0]["connection_details"]["name"].as_str().unwrap().replace(' ', "%20").replace('>', "%3E");
    let (connection, channel) = (format!("/api/connections/{name}"), format!("/api/channels/{name}%20(1)"));
    for (user, count, status) in [("management", 0, 401), ("monitoring", 1, 200)] {
        for path in
            ["/api/connections", "/api/channels", "/api/vhosts/own/connections", "/api/vhosts/own/channels"]
        {
            let shown: Value = managed.call_as(user, "GET", path, None).await.json();
            assert_eq!(shown.as_array().unwrap().len(), count, "{user} {path}");
        }
        for path in
            [&connection, &channel, &format!("{connection}/channels"), "/api/connections/username/none"]
        {
            assert_eq!(managed.call_as(user, "GET", path, None).await.status, status, "{user} {path}");
        }
    }
    // Whoever watches does not end what is another's.
    for user in ["management", "monitoring"] {
        for path in [&connection, "/api/connections/username/none"] {
            assert_eq!(managed.call_as(user, "DELETE", path, None).await.status, 401, "{user} {path}");
        }
    }
    assert_eq!(managed.get("/api/connections").await.as_array().unwrap().len(), 1, "it is still there");
    assert_eq!(managed.call_as("administrator", "DELETE", &connection, None).await.status, 204);
    managed.until("/api/connections", |shown| shown.as_array().is_some_and(Vec::is_empty)).await;
}

#[tokio::test]
async fn who_loses_his_tag_while_his_request_comes_has_asked_in_vain() {
    let managed = Managed::start().await;
    let ann = UserName::new("ann").unwrap();
    let made = json!({ "password": "ann", "tags": "administrator" });
    managed.expect(201, "PUT", "/api/users/ann", Some(made)).await;
    let mut stream = TcpStream::connect(managed.http).await.unwrap();
    let (body, login) = (br#"{"description": "late"}"#, common::api::login("ann"));
    let head = format!(
        "PUT /api/vhosts/late HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nexpect: 100-continue\r\n\
         content-length: {}\r\n{login}\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server asks for the body when it has let the head pass.
    let mut answer = vec![0; 64];
    let read = stream.read(&mut answer).await.unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&answer));
    managed.logins.change(&[AccessRecord::SetTags { user: ann, tags: BTreeSet::new() }]).await.unwrap();
    stream.write_all(body).await.unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(rest.starts_with("HTTP/1.1 401 "), "{rest}");
    assert!(managed.broker.vhost(&VhostName::new("late").unwrap()).is_none());
}
