//! A node that is cut off from a majority: whoever publishes through it is told so in its protocol and soon, whether it was connected
//! before or not, and is served again without a restart when the others are back.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;
#[path = "common/nodes.rs"]
mod nodes;

use std::error::Error;
use std::time::{Duration, Instant};

use common::{PATIENCE, Server};
use nexo_amqp::codec::ShortStr;
use nexo_amqp::codec::method::confirm;
use nexo_amqp_client::{Client as AmqpClient, Event, Login, PERSISTENT, methods};
use nexo_grpc::client::Client as NativeClient;
use nexo_grpc::proto;
use nodes::Cluster;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What whoever connects is told.
const WORDS: &str = "no majority of the cluster can be reached";
/// What is in all that a leader says which is cut off.
const SHORTER_WORDS: &str = "majority of the cluster";
/// Until a client must have been told. Nobody leads for certain after one or two seconds, and five more are waited for a leader;
/// the rest is for slow machines.
const TOLD_WITHIN: Duration = Duration::from_secs(20);

/// What came of a publish: it was confirmed, or this was told instead.
type Published = Result<(), String>;

/// An error with its causes.
fn told(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        told = format!("{told}: {error}");
        cause = error.source();
    }
    told
}

/// A connection in each protocol through which messages can be published.
struct Clients {
    amqp: AmqpClient,
    native: NativeClient,
    sqs: TcpStream,
}

impl Clients {
    async fn connect(server: &Server) -> Self {
        let amqp = amqp(server, "guest").await.unwrap();
        let native = NativeClient::connect(&server.url()).await.unwrap();
        let sqs = TcpStream::connect(server.sqs()).await.unwrap();
        let mut clients = Self { amqp, native, sqs };
        for published in clients.publish().await {
            published.unwrap();
        }
        clients
    }

    /// Publishes a message in each protocol: AMQP, the native API and SQS.
    async fn publish(&mut self) -> [Published; 3] {
        let Self { amqp, native, sqs } = self;
        let all = async { tokio::join!(over_amqp(amqp), over_native(native), over_sqs(sqs)) };
        timeout(TOLD_WITHIN, all).await.expect("no publish hangs").into()
    }
}

async fn amqp(server: &Server, password: &str) -> Result<AmqpClient, String> {
    let login = Login { password: password.into(), ..Login::default() };
    let opened = async {
        let mut client = AmqpClient::connect(server.amqp().parse().unwrap(), &login, PATIENCE).await?;
        client.open_channel(1).await?;
        client.call(1, &confirm::Select { nowait: false }, "confirm.select-ok").await?;
        Ok::<_, nexo_amqp_client::Error>(client)
    };
    opened.await.map_err(|error| told(&error))
}

async fn over_amqp(client: &mut AmqpClient) -> Published {
    let publish = methods::publish(ShortStr::EMPTY, ShortStr::from_static("work"));
    client.add_message(1, &publish, PERSISTENT, b"x");
    client.flush().await.map_err(|error| told(&error))?;
    loop {
        match client.event().await.map_err(|error| told(&error))? {
            Event::Method(frame) if frame.method().is_ok_and(|method| method.name() == "basic.ack") => {
                return Ok(());
            }
            // One that is refused is told why with the end of the connection.
            Event::Method(_) | Event::Message(_) => {}
        }
    }
}

async fn over_native(client: &NativeClient) -> Published {
    let message = proto::NewMessage { body: "x".into(), ..Default::default() };
    let push = proto::PushRequest { queue: "work".into(), messages: vec![message], ..Default::default() };
    let pushed = client.messages().push(push).await;
    let pushed = pushed.map_err(|status| format!("{:?}: {}", status.code(), status.message()))?;
    match pushed.into_inner().results.remove(0).outcome.unwrap() {
        proto::push_result::Outcome::Pushed(_) => Ok(()),
        proto::push_result::Outcome::Error(error) => {
            Err(format!("{:?}: {}", tonic::Code::from(error.code), error.message))
        }
    }
}

/// Publishes over a connection that stays open, if the broker does not close it.
async fn over_sqs(stream: &mut TcpStream) -> Published {
    let body = r#"{"QueueUrl":"work","MessageBody":"x"}"#;
    let request = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.SendMessage\r\n\
         Content-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.map_err(|error| told(&error))?;
    let mut answer = Vec::new();
    // The end of the only object in it.
    while !answer.ends_with(b"}") {
        if stream.read_buf(&mut answer).await.map_err(|error| told(&error))? == 0 {
            return Err("closed".to_owned());
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    if answer.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(answer) }
}

/// What clients are told that connect now and publish.
async fn newcomers(server: &Server) -> [Published; 3] {
    let over_amqp = async { over_amqp(&mut amqp(server, "guest").await?).await };
    let over_native = async {
        let client = NativeClient::connect(&server.url()).await.map_err(|error| told(&error))?;
        over_native(&client).await
    };
    let over_sqs = async { over_sqs(&mut TcpStream::connect(server.sqs()).await.unwrap()).await };
    let all = async { tokio::join!(over_amqp, over_native, over_sqs) };
    timeout(TOLD_WITHIN, all).await.expect("no publish hangs").into()
}

/// Each is told in its protocol, with these words.
#[track_caller]
fn assert_told(published: [Published; 3], words: &str) {
    for (published, form) in
        published.into_iter().zip(["closed the connection: 320 CONNECTION_FORCED", "Unavailable: ", "503 "])
    {
        let told = published.expect_err("no majority has it");
        assert!(told.contains(form) && told.contains(words), "{told}");
        assert!(form != "503 " || told.contains("#ServiceUnavailableException"), "{told}");
    }
}

/// Newcomers are told, and learn nothing else. So is whoever asks the management port.
async fn assert_newcomers_are_told(server: &Server) {
    assert_told(newcomers(server).await, WORDS);
    let stranger = timeout(TOLD_WITHIN, amqp(server, "wrong")).await.unwrap().unwrap_err();
    assert!(stranger.contains(WORDS), "{stranger}");
    let (status, body) = server.get("/api/overview");
    assert!(status == 503 && body.contains(WORDS), "{status} {body}");
}

async fn until_served(server: &Server) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let published = newcomers(server).await;
        if published.iter().all(Result::is_ok) {
            return;
        }
        assert!(Instant::now() < deadline, "{published:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_cut_off_keeps_nobody_waiting() {
    let cluster = Cluster::start(&["a", "b", "c"]);
    cluster.follower().server().ok(&["queue", "create", "work"]);
    let left = cluster.follower().name;
    let others: Vec<&Server> =
        cluster.nodes.iter().filter(|node| node.name != left).map(|node| node.server()).collect();
    let through = cluster.node(left).server();
    let mut clients = Clients::connect(through).await;
    let mut idle = Clients::connect(through).await;
    for other in &others {
        other.freeze();
    }
    // They were connected with the leader: what goes between them is not understood here, and their connections end.
    let published = clients.publish().await;
    assert!(published.iter().all(Result::is_err), "no majority has it: {published:?}");
    let published = idle.publish().await;
    assert!(published.iter().all(Result::is_err), "nobody takes it: {published:?}");
    assert_newcomers_are_told(through).await;

    for other in &others {
        other.signal(Signal::CONT);
    }
    until_served(through).await;
    cluster.until_in_step(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_tells_its_clients() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    cluster.follower().server().ok(&["queue", "create", "work"]);
    let left = cluster.leader();
    let lost: Vec<&str> = cluster.nodes.iter().map(|node| node.name).filter(|name| *name != left).collect();
    let mut clients = Clients::connect(cluster.node(left).server()).await;
    for name in &lost {
        cluster.node_mut(name).kill();
    }
    assert_told(clients.publish().await, SHORTER_WORDS);
    assert_newcomers_are_told(cluster.node(left).server()).await;

    for name in &lost {
        cluster.restart(name);
    }
    until_served(cluster.node(left).server()).await;
    cluster.until_in_step(3);
}
