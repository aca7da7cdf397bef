//! A client that has just come: it connects, logs in and publishes one message, again and again. Whoever else is connected
//! must not keep it out, nor make it wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nexo_amqp::codec::PropertiesBuilder;
use nexo_grpc::proto::{CreateQueueRequest, NewMessage, PushRequest};
use nexo_harness::http;

use super::Found;
use super::target::{DURABLE, Target, message};
use crate::amqp::{Confirmed, InputSize, declare_queue};
use crate::native::{Line, accepted};
use crate::probe::{Times, paced};
use crate::threads::joined;

/// How often one comes.
const EVERY: Duration = Duration::from_millis(100);
const QUEUE: &str = "abuse-newcomer";
const PATIENCE: Duration = Duration::from_secs(10);

/// A port of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    Amqp,
    Grpc,
    Sqs,
    Http,
}

/// Newcomers to a port, on a thread of their own.
pub(super) struct Newcomers {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Times>>,
}

impl Newcomers {
    pub(super) fn start(target: &Target, port: Port) -> anyhow::Result<Self> {
        let mut publish = publisher(target, port)?;
        // The first of all pays for what is made once, such as the check of a password.
        publish()?;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let goes_on = || !stopped.load(Ordering::Relaxed);
            paced(EVERY, goes_on, || {
                let began = Instant::now();
                publish()?;
                Ok(began.elapsed())
            })
        });
        Ok(Self { stop, thread })
    }

    /// Ends them, and notes how long they took.
    pub(super) fn finish(self, found: &mut Found) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let times = joined(self.thread, "a newcomer")?.found().sent.context("a newcomer came")?;
        found.add("a new client, from connect to confirm", times).number("newcomer_p99_us", times.p99_us);
        Ok(())
    }
}

/// What a newcomer to a port does. The queue is there before.
fn publisher(target: &Target, port: Port) -> anyhow::Result<Box<dyn FnMut() -> anyhow::Result<()> + Send>> {
    Ok(match port {
        Port::Amqp => {
            let mut connection = target.connect(InputSize::Small)?;
            declare_queue(&mut connection, QUEUE, &DURABLE)?;
            let properties = PropertiesBuilder::new().delivery_mode(2).to_vec();
            let frames = message("", QUEUE, &properties, b"hello", connection.frame_max)?;
            let url = target.amqp.clone();
            Box::new(move || {
                let mut newcomer = Confirmed::open(&url)?;
                newcomer.publish(&frames)?;
                Ok(newcomer.connection.close()?)
            })
        }
        Port::Grpc => {
            let line = Line::open(&target.native)?;
            let request = CreateQueueRequest { queue: QUEUE.to_owned(), ..Default::default() };
            line.block_on(line.client.queues().create_queue(request)).context("cannot create a queue")?;
            let url = target.native.clone();
            Box::new(move || {
                let line = Line::open(&url)?;
                let messages = vec![NewMessage { body: "hello".into(), ..NewMessage::default() }];
                let request = PushRequest { queue: QUEUE.to_owned(), messages, ..Default::default() };
                let reply = line.block_on(line.client.messages().push(request))?.into_inner();
                accepted(&reply.results).map(drop)
            })
        }
        Port::Sqs => {
            let address = target.sqs.clone();
            let call = move |action: &str, body: &str| {
                let head = format!(
                    "Host: localhost\r\nContent-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.{action}\r\n"
                );
                answered(&address, &http::request("POST", "/", &head, body))
            };
            call("CreateQueue", &format!(r#"{{"QueueName": "{QUEUE}"}}"#))?;
            let send = format!(r#"{{"QueueUrl": "{QUEUE}", "MessageBody": "hello"}}"#);
            Box::new(move || call("SendMessage", &send))
        }
        Port::Http => {
            declare_queue(&mut target.connect(InputSize::Small)?, QUEUE, &DURABLE)?;
            let address = target.http.clone();
            let head = "Host: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";
            let body = format!(
                r#"{{"properties": {{"delivery_mode": 2}}, "routing_key": "{QUEUE}", "payload": "hello", "payload_encoding": "string"}}"#
            );
            let publish = http::request("POST", "/api/exchanges/%2F/amq.default/publish", head, &body);
            Box::new(move || answered(&address, &publish))
        }
    })
}

fn answered(address: &str, request: &str) -> anyhow::Result<()> {
    let answer = http::exchange(address, request, PATIENCE)?;
    ensure!(answer.status == 200, "{} {}", answer.status, answer.body.trim());
    Ok(())
}
