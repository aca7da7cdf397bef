//! The real binary and clients that log in with tokens somebody else has signed: over AMQP, HTTP and the native API.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use common::{PATIENCE, Server};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use nexo_amqp::codec::ShortStr;
use nexo_amqp::codec::method::connection::UpdateSecret;
use nexo_amqp_client::{Client as RawClient, Error, Login, methods};
use nexo_grpc::client::{Client, Credentials};
use nexo_grpc::proto;
use nexo_harness::http;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use tonic::Code;

/// Somebody who signs tokens.
struct Issuer(EcdsaKeyPair);

impl Issuer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Self(EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.as_ref(), &random).unwrap())
    }

    /// Writes down its public key.
    fn publish(&self, path: &Path) {
        let point = self.0.public_key().as_ref();
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let key = json!({ "kty": "EC", "crv": "P-256", "x": part(&point[1..33]), "y": part(&point[33..]) });
        std::fs::write(path, json!({ "keys": [key] }).to_string()).unwrap();
    }

    /// A token of ann that holds for so many seconds, and five more.
    fn token(&self, scope: &str, seconds: i64) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let expires = now.saturating_add_signed(seconds);
        let claims = json!({ "sub": "ann", "aud": "nexo", "iss": "me", "exp": expires, "scope": scope });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(&json!({ "alg": "ES256" })), part(&claims));
        let signature = self.0.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// A broker that takes the issuer's tokens.
fn serve(keys: &Path) -> Server {
    let keys = keys.to_str().unwrap();
    Server::start_with(&[
        "--amqp",
        "127.0.0.1:0",
        "--oauth-keys",
        keys,
        "--oauth-audience",
        "nexo",
        "--oauth-issuer",
        "me",
    ])
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes no minute")
}

fn login(token: &str) -> Login {
    Login { user: "whoever".into(), password: token.into(), ..Login::default() }
}

async fn raw(server: &Server, token: &str) -> Result<RawClient, Error> {
    RawClient::connect(server.amqp().parse().unwrap(), &login(token), PATIENCE).await
}

const EVERYTHING: &str = "nexo.configure:*/* nexo.write:*/* nexo.read:*/*";

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_token_opens_amqp_http_and_the_native_api() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, issuer) = (dir.path().join("jwks.json"), Issuer::new());
    issuer.publish(&keys);
    let server = serve(&keys);
    let own = "nexo.configure:%2F/own-* nexo.write:%2F/amq.default nexo.write:%2F/own-* nexo.read:%2F/own-*";
    let token = issuer.token(own, 600);

    // lapin, with the token as its password.
    let url = format!("amqp://ann:{token}@{}/%2f", server.amqp());
    let connection = within(Connection::connect(&url, ConnectionProperties::default())).await.unwrap();
    let channel = within(connection.create_channel()).await.unwrap();
    within(channel.confirm_select(ConfirmSelectOptions::default())).await.unwrap();
    let declare = |name: &str| {
        channel.queue_declare(name.into(), QueueDeclareOptions::durable(), FieldTable::default())
    };
    within(declare("own-q")).await.unwrap();
    let options = BasicPublishOptions::default();
    let publish =
        channel.basic_publish("".into(), "own-q".into(), options, b"hello", BasicProperties::default());
    assert_eq!(within(within(publish).await.unwrap()).await.unwrap(), Confirmation::Ack(None));
    let refused = within(declare("other")).await.unwrap_err().to_string();
    assert!(refused.contains("access to queue 'other' in vhost '/' refused for user 'ann'"), "{refused}");

    // The native API.
    let client = Client::connect(&server.url()).await.unwrap().with(Credentials::token(&token));
    let pop = |queue: &str| proto::PopRequest { queue: queue.into(), max: 1, ..Default::default() };
    let popped = client.messages().pop(pop("own-q")).await.unwrap().into_inner().messages;
    assert_eq!(popped[0].body, &b"hello"[..]);
    assert_eq!(client.messages().pop(pop("other")).await.unwrap_err().code(), Code::PermissionDenied);
    assert!(client.users().list_users(proto::ListUsersRequest {}).await.is_err(), "it has no tag");

    // The management API, which is for administrators.
    let whoami = |token: &str| {
        let head = format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n");
        http::exchange(&server.http, &http::request("GET", "/api/whoami", &head, ""), PATIENCE).unwrap()
    };
    assert_eq!(whoami(&token).status, 401);
    let answer = whoami(&issuer.token("nexo.tag:administrator", 600));
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(
        (answer.status, &body["name"], &body["tags"][0]),
        (200, &json!("ann"), &json!("administrator"))
    );
    assert_eq!(whoami(&issuer.token("nexo.tag:administrator", -60)).status, 401);
    assert_eq!(whoami(&Issuer::new().token("nexo.tag:administrator", 60)).status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_when_its_token_expires_unless_it_is_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, issuer) = (dir.path().join("jwks.json"), Issuer::new());
    issuer.publish(&keys);
    let server = serve(&keys);
    let began = Instant::now();
    // With the leeway both have two or three seconds.
    let mut left = raw(&server, &issuer.token(EVERYTHING, -2)).await.unwrap();
    let mut renewed = raw(&server, &issuer.token(EVERYTHING, -2)).await.unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let stream = client.with(Credentials::token(&issuer.token(EVERYTHING, -2)));
    stream
        .queues()
        .create_queue(proto::CreateQueueRequest { queue: "q".into(), ..Default::default() })
        .await
        .unwrap();
    let pop = proto::PopRequest { queue: "q".into(), max: 1, wait_ms: 20_000, ..Default::default() };
    let pop = tokio::spawn(async move { stream.messages().pop(pop).await.map(drop) });

    let reason = ShortStr::from_static("renewed");
    let token = issuer.token("nexo.configure:*/mine", 600);
    let update = UpdateSecret { new_secret: token.as_bytes(), reason };
    within(renewed.call(0, &update, "connection.update-secret-ok")).await.unwrap();
    let ended = within(left.expect("connection.close-ok")).await.unwrap_err();
    let Error::Closed { code, text, .. } = ended else { panic!("{ended:?}") };
    assert_eq!((code, &*text), (320, "CONNECTION_FORCED - credential expired"));
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(within(pop).await.unwrap().unwrap_err().code(), Code::PermissionDenied);

    // The other one goes on, and may do what the new token says.
    renewed.open_channel(1).await.unwrap();
    let declare = methods::declare_queue(ShortStr::from_static("mine"));
    within(renewed.call(1, &declare, "queue.declare-ok")).await.unwrap();
    let declare = methods::declare_queue(ShortStr::from_static("theirs"));
    let refused = within(renewed.call(1, &declare, "queue.declare-ok")).await.unwrap_err();
    assert!(matches!(refused, Error::Closed { code: 403, .. }), "{refused:?}");

    let mut wrong = raw(&server, &issuer.token(EVERYTHING, 600)).await.unwrap();
    let update = UpdateSecret { new_secret: b"nonsense", reason };
    let refused = within(wrong.call(0, &update, "connection.update-secret-ok")).await.unwrap_err();
    let Error::Closed { code, text, .. } = refused else { panic!("{refused:?}") };
    assert_eq!((code, &*text), (530, "NOT_ALLOWED - New secret was refused by one of the backends"));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_read_again_and_bad_ones_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, old, new) = (dir.path().join("jwks.json"), Issuer::new(), Issuer::new());
    old.publish(&keys);
    let server = serve(&keys);
    assert!(raw(&server, &old.token(EVERYTHING, 60)).await.is_ok());
    assert!(raw(&server, &new.token(EVERYTHING, 60)).await.is_err());
    std::fs::write(&keys, "nothing").unwrap();
    server.signal(rustix::process::Signal::HUP);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(raw(&server, &old.token(EVERYTHING, 60)).await.is_ok());
    new.publish(&keys);
    server.signal(rustix::process::Signal::HUP);
    within(async {
        while raw(&server, &new.token(EVERYTHING, 60)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert!(raw(&server, &old.token(EVERYTHING, 60)).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_token_begins_no_session_and_a_login_is_told_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, issuer) = (dir.path().join("jwks.json"), Issuer::new());
    issuer.publish(&keys);
    let server = serve(&keys);
    let token = issuer.token("nexo.tag:administrator", 600);
    let begin = |head: &str, body: &str| {
        let head = format!("Host: localhost\r\n{head}");
        let request = http::request("POST", "/api/nexo/session", &head, body);
        http::exchange(&server.http, &request, PATIENCE).unwrap()
    };
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("ann:{token}"));
    let in_body = json!({ "username": "ann", "password": token }).to_string();
    for (head, body) in [
        (format!("Authorization: Bearer {token}\r\n"), ""),
        (format!("Authorization: Basic {basic}\r\n"), ""),
        (String::new(), in_body.as_str()),
    ] {
        let answer = begin(&head, body);
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(!answer.head.contains("set-cookie"), "{answer:?}");
    }
    // Nor does a user of the same name make a difference.
    server.ok(&["user", "add", "ann", "--new-password", "secret", "--tag", "administrator"]);
    let answer = begin(&format!("Authorization: Basic {basic}\r\n"), "");
    assert!(!answer.head.contains("set-cookie"), "{answer:?}");

    let url = server.amqp_url();
    let connection = within(Connection::connect(&url, ConnectionProperties::default())).await.unwrap();
    let channel = within(connection.create_channel()).await.unwrap();
    let declare = channel.queue_declare("told".into(), QueueDeclareOptions::durable(), FieldTable::default());
    within(declare).await.unwrap();
    let key = "user.authentication.success";
    let options = lapin::options::QueueBindOptions::default();
    let event = "amq.rabbitmq.event";
    let bind = channel.queue_bind("told".into(), event.into(), key.into(), options, FieldTable::default());
    within(bind).await.unwrap();
    let _client = raw(&server, &issuer.token(EVERYTHING, 600)).await.unwrap();
    server.until_ready("told", 1);
    let get = channel.basic_get("told".into(), lapin::options::BasicGetOptions::default());
    let told = within(get).await.unwrap().unwrap();
    let headers = told.properties.headers().clone().unwrap();
    let name = headers.inner().get(&lapin::types::ShortString::from("name")).cloned();
    assert_eq!(name, Some(lapin::types::AMQPValue::LongString("ann".into())), "the client said 'whoever'");
}
