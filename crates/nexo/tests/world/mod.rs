//! A broker with all its ways in, in this process; users, and a client of SQS that signs by hand.
#![allow(dead_code, reason = "each test program uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use nexo_access::{FirstUser, Logins, NewPassword, PermissionTexts, UserName};
use nexo_broker::access::AccessRecord;
use nexo_broker::{Broker, BrokerOptions, Codecs};
use nexo_grpc::client::{Client, Credentials};
use nexo_sqs::SqsOptions;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A broker with all its ways in.
pub(crate) struct World {
    pub(crate) broker: Broker,
    pub(crate) logins: Logins,
    pub(crate) amqp: SocketAddr,
    pub(crate) grpc: Client,
    pub(crate) sqs: SocketAddr,
    pub(crate) http: SocketAddr,
}

impl World {
    pub(crate) async fn start() -> Self {
        let codecs = nexo_amqp::register(nexo_sqs::register(Codecs::default()));
        let options = BrokerOptions { segment_bytes: 1 << 20, codecs, ..BrokerOptions::new("memory") };
        let disk = Arc::new(nexo_log::disk::MemoryDisk::new());
        let broker = Broker::open_on(disk, options).unwrap();
        let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
        let ports = [listener().await, listener().await, listener().await, listener().await];
        let [amqp, grpc, sqs, http] = ports.each_ref().map(|port| port.local_addr().unwrap());
        let [amqp_port, grpc_port, sqs_port, http_port] = ports;
        let never = std::future::pending::<()>;
        let amqp_options = nexo_amqp::Options::default();
        tokio::spawn(nexo_amqp::serve(broker.clone(), logins.clone(), amqp_port, amqp_options, never()));
        tokio::spawn(nexo_grpc::serve(broker.clone(), logins.clone(), grpc_port, never()));
        tokio::spawn(nexo_sqs::serve(
            broker.clone(),
            logins.clone(),
            sqs_port,
            SqsOptions::default(),
            never(),
        ));
        let admin = nexo_admin::AdminOptions::default();
        tokio::spawn(nexo_admin::serve(broker.clone(), logins.clone(), http_port, admin, never()));
        let grpc = Client::connect(&format!("http://{grpc}")).await.unwrap();
        Self { broker, logins, amqp, grpc, sqs, http }
    }

    /// Somebody whose password is its name, with these patterns to configure, write and read in "/".
    pub(crate) async fn user(&self, name: &str, patterns: [&str; 3]) -> Client {
        let user = UserName::new(name).unwrap();
        let password = NewPassword::Plain(name.as_bytes().to_vec());
        self.logins.add_user(&user, password, BTreeSet::new()).await.unwrap();
        self.allow(name, patterns).await;
        self.grpc.with(Credentials::password(name, name))
    }

    /// Gives somebody other patterns.
    pub(crate) async fn allow(&self, name: &str, patterns: [&str; 3]) {
        let [configure, write, read] = patterns.map(str::to_owned);
        let permissions = PermissionTexts { configure, write, read };
        let user = UserName::new(name).unwrap();
        let change = AccessRecord::SetPermissions { user, vhost: "/".into(), permissions };
        self.logins.change(&[change]).await.unwrap();
    }
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it takes too long")
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The answer of SQS to a request that is signed with a key.
pub(crate) async fn ask_sqs(
    address: SocketAddr,
    id: &str,
    secret: &str,
    action: &str,
    body: &Value,
) -> (u16, Value) {
    let (body, target) = (body.to_string(), format!("AmazonSQS.{action}"));
    let date = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let day = &date[..8];
    let names = "host;x-amz-date;x-amz-target";
    let headers = format!("host:{address}\nx-amz-date:{date}\nx-amz-target:{target}\n");
    let canonical = format!("POST\n/\n\n{headers}\n{names}\n{}", hex(&Sha256::digest(body.as_bytes())));
    let scope = format!("{day}/us-east-1/sqs/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(canonical.as_bytes())));
    let start = format!("AWS4{secret}").into_bytes();
    let key = [day, "us-east-1", "sqs", "aws4_request"].iter().fold(start, |key, part| mac(&key, part));
    let signature = hex(&mac(&key, &text));
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/x-amz-json-1.0\r\n\
         X-Amz-Date: {date}\r\nX-Amz-Target: {target}\r\nContent-Length: {}\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
}

/// The answer of the management API to a user whose password is his name.
pub(crate) async fn ask_http(
    address: SocketAddr,
    user: &str,
    method: &str,
    path: &str,
    body: &Value,
) -> (u16, Value) {
    let (body, login) = (body.to_string(), BASE64_STANDARD.encode(format!("{user}:{user}")));
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Basic {login}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
}
