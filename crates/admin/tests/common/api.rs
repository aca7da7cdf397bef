//! A broker with its management port and its AMQP port in this process, and a client of the management API.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nexo_access::{FirstUser, Logins};
use nexo_admin::{AdminOptions, Listener};
use nexo_amqp_client::{Client, Login};
use nexo_broker::{Broker, BrokerOptions, Codecs};
use nexo_log::disk::FaultyDisk;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// `guest:guest`.
pub const LOGIN: &str = "authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Managed {
    pub broker: Broker,
    pub logins: Logins,
    pub http: SocketAddr,
    pub amqp: SocketAddr,
}

/// What came back.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Managed {
    pub async fn start() -> Self {
        Self::start_on(&FaultyDisk::new()).await
    }

    pub async fn start_on(disk: &FaultyDisk) -> Self {
        Self::start_with(disk, BrokerOptions::new("faulty")).await
    }

    pub async fn start_with(disk: &FaultyDisk, options: BrokerOptions) -> Self {
        Self::start_as(disk, options, AdminOptions::default()).await
    }

    /// The same with these options of the management port.
    pub async fn start_as(disk: &FaultyDisk, options: BrokerOptions, admin: AdminOptions) -> Self {
        let codecs = nexo_amqp::register(Codecs::default());
        let options = BrokerOptions { segment_bytes: 1 << 20, codecs, ..options };
        let broker = Broker::open_on(Arc::new(disk.clone()), options).unwrap();
        let (http, amqp) = (listener().await, listener().await);
        let (http_at, amqp_at) = (http.local_addr().unwrap(), amqp.local_addr().unwrap());
        let listeners = vec![
            Listener { protocol: "amqp", address: amqp_at },
            Listener { protocol: "http", address: http_at },
        ];
        let admin = AdminOptions { listeners, ..admin };
        let never = std::future::pending();
        let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
        let options = nexo_amqp::Options::default();
        tokio::spawn(nexo_amqp::serve(broker.clone(), logins.clone(), amqp, options, never));
        tokio::spawn(nexo_admin::serve(broker.clone(), logins.clone(), http, admin, std::future::pending()));
        Self { broker, logins, http: http_at, amqp: amqp_at }
    }

    /// An AMQP client that is logged in.
    pub async fn client(&self) -> Client {
        Client::connect(self.amqp, &Login::default(), PATIENCE).await.unwrap()
    }

    /// Sends a request with these header lines besides those that it needs.
    pub async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        let mut stream = TcpStream::connect(self.http).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        // It may have been refused by its head alone.
        let _ = stream.write_all(body).await;
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply).await;
        let reply = String::from_utf8(reply).unwrap();
        let status = reply.split_whitespace().nth(1).unwrap_or_else(|| panic!("no answer to {path}"));
        let (head, text) = reply.split_once("\r\n\r\n").unwrap();
        Reply { status: status.parse().unwrap(), head: head.to_owned(), text: text.to_owned() }
    }

    /// Sends a request as a user, whose password is his name unless another is given after a colon.
    pub async fn call_as(&self, user: &str, method: &str, path: &str, body: Option<Value>) -> Reply {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.send(method, path, &login(user), body.as_bytes()).await
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.send(method, path, LOGIN, body.as_bytes()).await
    }

    /// The answer to a GET that works.
    pub async fn get(&self, path: &str) -> Value {
        let reply = self.call("GET", path, None).await;
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        reply.json()
    }

    /// The status of a request, which must be this one.
    pub async fn expect(&self, status: u16, method: &str, path: &str, body: Option<Value>) -> Reply {
        let reply = self.call(method, path, body).await;
        assert_eq!(reply.status, status, "{method} {path}: {reply:?}");
        reply
    }

    /// Waits until a GET shows what is wanted.
    pub async fn until(&self, path: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let reply = self.call("GET", path, None).await;
            if reply.status == 200 {
                let shown = reply.json();
                if is_wanted(&shown) {
                    return shown;
                }
            }
            assert!(tokio::time::Instant::now() < end, "{path}: {reply:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The header by which a user logs in.
pub fn login(user: &str) -> String {
    let pair = if user.contains(':') { user.to_owned() } else { format!("{user}:{user}") };
    format!("authorization: Basic {}\r\n", BASE64_STANDARD.encode(pair))
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// The values of one field.
pub fn column(list: &Value, name: &str) -> Vec<Value> {
    list.as_array().unwrap().iter().map(|item| item[name].clone()).collect()
}
