//! Sessions of a web page: a cookie in place of the password.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{LOGIN, Managed, Reply};
use nexo_access::{NewPassword, UserName};
use serde_json::json;

const OWN: &str = "origin: http://localhost\r\nsec-fetch-site: same-origin\r\n";

/// The line by which a browser sends what it was given.
fn cookie(reply: &Reply) -> String {
    let line = reply.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    format!("cookie: other=1; {}\r\n", line.split(';').next().unwrap())
}

async fn begin(managed: &Managed, name: &str, password: &str) -> Reply {
    let body = json!({ "username": name, "password": password }).to_string();
    managed.send("POST", "/api/nexo/session", OWN, body.as_bytes()).await
}

#[tokio::test]
async fn a_page_logs_in_once_and_out_again() {
    let managed = Managed::start().await;
    let reply = begin(&managed, "guest", "guest").await;
    assert_eq!((reply.status, &reply.json()["name"]), (200, &json!("guest")));
    let line = reply.head.lines().find(|line| line.starts_with("set-cookie: nexo_session=")).unwrap();
    assert!(line.ends_with("; Path=/; Max-Age=28800; HttpOnly; SameSite=Strict"), "{line}");
    let with = cookie(&reply);
    assert_eq!(managed.send("GET", "/api/queues", &with, b"").await.status, 200);
    assert_eq!(managed.send("GET", "/api/nexo/session", &with, b"").await.json()["name"], "guest");
    let put = format!("{with}{OWN}");
    assert_eq!(managed.send("PUT", "/api/queues/%2F/q", &put, b"{}").await.status, 201);
    assert_eq!(managed.send("DELETE", "/api/nexo/session", &put, b"").await.status, 204);
    assert_eq!(managed.send("GET", "/api/queues", &with, b"").await.status, 401);
    // Who sends his password with the header gets one too.
    assert_eq!(managed.send("POST", "/api/nexo/session", LOGIN, b"").await.status, 200);
}

#[tokio::test]
async fn a_page_of_another_origin_has_no_use_of_the_cookie() {
    let managed = Managed::start().await;
    let with = cookie(&begin(&managed, "guest", "guest").await);
    for line in
        ["origin: http://evil.example\r\n", "origin: http://localhost:1\r\n", "sec-fetch-site: same-site\r\n"]
    {
        for (method, path) in
            [("GET", "/api/queues"), ("PUT", "/api/queues/%2F/q"), ("POST", "/api/nexo/session")]
        {
            let reply = managed.send(method, path, &format!("{with}{line}"), b"{}").await;
            assert_eq!(reply.status, 403, "{method} {path} {line}");
        }
    }
    let reply = managed.send("PUT", "/api/queues/%2F/q", &with, b"{}").await;
    assert_eq!(reply.status, 403, "what changes something says where it comes from");
    assert!(managed.broker.queue_names().is_empty());
}

#[tokio::test]
async fn only_a_password_begins_a_session() {
    let managed = Managed::start().await;
    assert_eq!(begin(&managed, "guest", "wrong").await.status, 401);
    assert_eq!(begin(&managed, "nobody", "guest").await.status, 401);
    assert_eq!(managed.send("POST", "/api/nexo/session", "", b"{}").await.status, 400);
    let guest = UserName::new("guest").unwrap();
    let token = managed.logins.add_token(&guest, "").await.unwrap().token;
    let bearer = format!("authorization: Bearer {token}\r\n");
    assert_eq!(managed.send("POST", "/api/nexo/session", &bearer, b"").await.status, 400);
    managed.expect(201, "PUT", "/api/users/ann", Some(json!({ "password": "ann", "tags": "" }))).await;
    assert_eq!(begin(&managed, "ann", "ann").await.status, 401, "without a tag");
    for made_up in ["nexo_session=x", "nexo_session=", "__Host-nexo_session=x"] {
        assert_eq!(
            managed.send("GET", "/api/queues", &format!("cookie: {made_up}\r\n"), b"").await.status,
            401
        );
    }
}

#[tokio::test]
async fn a_session_ends_with_its_user_and_with_its_password() {
    let managed = Managed::start().await;
    let status = async |with: &str| managed.send("GET", "/api/whoami", with, b"").await.status;
    let ann = UserName::new("ann").unwrap();
    let made = Some(json!({ "password": "ann", "tags": "management" }));
    managed.expect(201, "PUT", "/api/users/ann", made.clone()).await;
    let with = cookie(&begin(&managed, "ann", "ann").await);
    assert_eq!(status(&with).await, 200);
    managed.logins.set_password(&ann, NewPassword::Plain(b"other".to_vec())).await.unwrap();
    assert_eq!(status(&with).await, 401);
    let with = cookie(&begin(&managed, "ann", "other").await);
    managed.expect(204, "PUT", "/api/users/ann", Some(json!({ "password_hash": "", "tags": "" }))).await;
    assert_eq!(status(&with).await, 401);
    managed.expect(204, "PUT", "/api/users/ann", made.clone()).await;
    let with = cookie(&begin(&managed, "ann", "ann").await);
    managed.logins.delete_user(&ann).await.unwrap();
    assert_eq!(status(&with).await, 401);
    managed.expect(201, "PUT", "/api/users/ann", made).await;
    assert_eq!(status(&with).await, 401, "it is another ann");
}

#[tokio::test]
async fn who_is_not_known_yet_may_say_little() {
    let managed = Managed::start().await;
    let of = |bytes: usize| json!({ "username": "guest", "password": "x".repeat(bytes) }).to_string();
    let ask =
        async |body: String| managed.send("POST", "/api/nexo/session", OWN, body.as_bytes()).await.status;
    assert_eq!(ask(of(30_000)).await, 401, "as long as a token may be");
    assert_eq!(ask(of(33_000)).await, 413);
}
