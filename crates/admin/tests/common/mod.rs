//! A broker with its management port in this process.

// Each test program uses its own part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod api;
pub mod exposition;
pub mod hostile;

use std::net::SocketAddr;
use std::sync::Arc;

use nexo_access::{FirstUser, Logins};
use nexo_admin::AdminOptions;
use nexo_broker::{Broker, BrokerOptions};
use nexo_log::disk::FaultyDisk;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub struct Served {
    pub broker: Broker,
    pub address: SocketAddr,
}

/// What came back.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Served {
    pub async fn start(disk: &FaultyDisk) -> Self {
        Self::start_with(disk, AdminOptions::default()).await
    }

    pub async fn start_with(disk: &FaultyDisk, options: AdminOptions) -> Self {
        let broker_options = BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("faulty") };
        let broker = Broker::open_on(Arc::new(disk.clone()), broker_options).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
        tokio::spawn(nexo_admin::serve(broker.clone(), logins, listener, options, std::future::pending()));
        Self { broker, address }
    }

    /// Sends `request` as it is and reads to the end.
    pub async fn ask(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        let status = reply.split_whitespace().nth(1).unwrap().parse().unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// A GET with more header lines.
    pub async fn get_with(&self, path: &str, headers: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n")).await
    }

    /// Status and body of a GET.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.get_with(path, "host: localhost\r\n").await;
        (answer.status, answer.body)
    }
}
