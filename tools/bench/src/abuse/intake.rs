//! Memory that a client can make a broker hold: messages that it was sent and does not read, and messages that it
//! begins and does not finish.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::Context;
use nexo_amqp::codec::method::{TxMethod, basic, tx};
use nexo_amqp::codec::{Frame, FrameKind, Method, PropertiesBuilder, encode_frame, encode_message_head};
use nexo_grpc::proto::subscribe_request::Action;
use nexo_grpc::proto::{CreateQueueRequest, QueueConfig, SubscribeRequest, SubscribeStart};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::Found;
use super::descriptors::status;
use super::target::{DURABLE, Sent, Target, message, publish, send, shape};
use crate::amqp::{CHANNEL, Connection, InputSize, declare_queue, short};
use crate::native::Line;
use crate::work::Persistence;

/// How long everything is held when the broker takes no more.
const HOLD: Duration = Duration::from_secs(5);
const MIB: u64 = 1 << 20;

/// A subscriber that asks for a million messages and reads none.
pub(super) fn subscriber(target: &Target) -> anyhow::Result<Found> {
    const BODY_BYTES: usize = 16 * 1024;
    const QUEUE: &str = "abuse-subscriber";
    let mut found = Found::default();
    let line = Line::open(&target.native)?;
    let request = CreateQueueRequest { queue: QUEUE.to_owned(), config: Some(QueueConfig::default()) };
    line.block_on(line.client.queues().create_queue(request)).context("cannot create a queue")?;
    let count = target.count(2_000_000_000 / BODY_BYTES as u64);
    target.probed(&mut found, |found| {
        let began = Instant::now();
        publish(&target.native, &[shape(QUEUE, BODY_BYTES, Persistence::Persistent)], 1_000, count)?;
        let bytes = count * BODY_BYTES as u64;
        found.add(
            "waiting",
            format!("{} MB, filled in {:.1} s", bytes / 1_000_000, began.elapsed().as_secs_f64()),
        );
        let (requests, stream) = mpsc::channel(1);
        let start = SubscribeStart { queue: QUEUE.to_owned(), ..SubscribeStart::default() };
        let first = SubscribeRequest {
            credit: 1_000_000,
            action: Some(Action::Start(start)),
            ..SubscribeRequest::default()
        };
        line.block_on(async {
            requests.send(first).await.context("a stream takes its first request")?;
            // The connection is served meanwhile, so that it takes what its window has room for and no more.
            let events = line.client.messages().subscribe(ReceiverStream::new(stream)).await?;
            tokio::time::sleep(target.time(4 * HOLD)).await;
            drop((events, requests));
            anyhow::Ok(())
        })
    })?;
    Ok(found)
}

/// Bodies that never end, on one connection.
pub(super) fn bodies(target: &Target) -> anyhow::Result<Found> {
    const BODY_BYTES: usize = 60 << 20;
    const QUEUE: &str = "abuse-bodies";
    let mut found = Found::default();
    target.probed(&mut found, |found| {
        let mut connection = target.connect(InputSize::Small)?;
        declare_queue(&mut connection, QUEUE, &DURABLE)?;
        let body_bytes = usize::try_from(target.count(BODY_BYTES as u64))?;
        let publish = basic::Publish {
            ticket: 0,
            exchange: short("")?,
            routing_key: short(QUEUE)?,
            mandatory: false,
            immediate: false,
        };
        let payload = vec![b'x'; connection.frame_max.payload_bytes()];
        let (mut taken, mut last) = (0, Sent::All);
        let channels = CHANNEL..CHANNEL + 20;
        // All before the first body: a channel that the broker closes must not keep the others from sending theirs.
        for channel in channels.clone().skip(1) {
            connection.open_channel(channel)?;
        }
        for channel in channels {
            let mut head = Vec::new();
            encode_message_head(&mut head, channel, &publish, &[], body_bytes);
            let mut frame = Vec::new();
            encode_frame(&mut frame, &Frame { kind: FrameKind::Body, channel, payload: &payload });
            last = send(&connection.socket, &head, &mut taken)?;
            // All but the last frame, which is what keeps it from being a message.
            for _ in 0..(body_bytes - 1) / payload.len() {
                if last != Sent::All {
                    break;
                }
                last = send(&connection.socket, &frame, &mut taken)?;
            }
            if last != Sent::All {
                break;
            }
        }
        std::thread::sleep(target.time(HOLD));
        found.add("sent", tell(taken, &[(last, word(&mut connection))]));
        Ok(())
    })?;
    Ok(found)
}

/// Transactions that are not committed, each on a connection of its own.
pub(super) fn transactions(target: &Target) -> anyhow::Result<Found> {
    const QUEUE: &str = "abuse-transactions";
    let mut found = Found::default();
    let properties = PropertiesBuilder::new().delivery_mode(2).to_vec();
    target.probed(&mut found, |found| {
        let (mut open, mut taken, mut ends) = (Vec::new(), 0, Vec::new());
        for _ in 0..8 {
            let mut connection = target.connect(InputSize::Small)?;
            declare_queue(&mut connection, QUEUE, &DURABLE)?;
            connection.send(CHANNEL, &tx::Select {})?;
            connection.wait_for(CHANNEL, |method| match method {
                Method::Tx(TxMethod::SelectOk(_)) => Some(()),
                _ => None,
            })?;
            let body = vec![b'x'; MIB as usize];
            let frames = message("", QUEUE, &properties, &body, connection.frame_max)?;
            let mut last = Sent::All;
            for _ in 0..target.count(200) {
                last = send(&connection.socket, &frames, &mut taken)?;
                if last != Sent::All {
                    break;
                }
            }
            open.push((connection, last));
        }
        std::thread::sleep(target.time(HOLD));
        for (mut connection, last) in open {
            ends.push((last, word(&mut connection)));
        }
        found.add("sent", tell(taken, &ends));
        Ok(())
    })?;
    Ok(found)
}

/// Requests to the SQS API whose last byte never comes.
pub(super) fn sqs_bodies(target: &Target) -> anyhow::Result<Found> {
    let mut found = Found::default();
    target.probed(&mut found, |found| {
        let (mut open, mut taken, mut ends) = (Vec::new(), 0, Vec::new());
        let mebibytes = target.count(200);
        for _ in 0..8 {
            let socket = TcpStream::connect(&target.sqs).context("the SQS API does not answer")?;
            let head = format!(
                "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n\
                 X-Amz-Target: AmazonSQS.SendMessage\r\nContent-Length: {}\r\n\r\n",
                mebibytes * MIB + 1
            );
            let part = vec![b' '; MIB as usize];
            let mut last = send(&socket, head.as_bytes(), &mut taken)?;
            for _ in 0..mebibytes {
                if last != Sent::All {
                    break;
                }
                last = send(&socket, &part, &mut taken)?;
            }
            open.push((socket, last));
        }
        std::thread::sleep(target.time(HOLD));
        for (mut socket, last) in open {
            socket.set_read_timeout(Some(Duration::from_millis(200)))?;
            let mut answer = [0; 64];
            let read = socket.read(&mut answer).unwrap_or(0);
            let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
            ends.push((last, status(&answer).map(str::to_owned)));
        }
        found.add("sent", tell(taken, &ends));
        Ok(())
    })?;
    Ok(found)
}

/// Why the broker ended a channel or the connection, if it said so.
fn word(connection: &mut Connection) -> Option<String> {
    connection.socket.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
    let error = connection.wait_for(CHANNEL, |_| None::<()>).err()?.to_string();
    error.strip_prefix("the broker closed the ").map(str::to_owned)
}

/// What was taken, and what became of those who sent it.
fn tell(taken: u64, ends: &[(Sent, Option<String>)]) -> String {
    let held = ends.iter().filter(|(sent, said)| *sent == Sent::HeldBack && said.is_none()).count();
    let ended = ends.iter().filter(|(sent, said)| *sent == Sent::Ended || said.is_some()).count();
    let mut text = format!("{} MiB taken", taken / MIB);
    if held > 0 {
        text += &format!(", {held} of {} held back", ends.len());
    }
    if ended > 0 {
        text += &format!(", {ended} of {} refused", ends.len());
    }
    if let Some(said) = ends.iter().find_map(|(_, said)| said.as_deref()) {
        text += &format!(" ({said})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_senders_is_told() {
        assert_eq!(tell(3 * MIB, &[(Sent::All, None)]), "3 MiB taken");
        let ends = [
            (Sent::HeldBack, None),
            (Sent::Ended, None),
            (Sent::All, Some("channel: 506 RESOURCE_ERROR".to_owned())),
        ];
        assert_eq!(
            tell(MIB, &ends),
            "1 MiB taken, 1 of 3 held back, 2 of 3 refused (channel: 506 RESOURCE_ERROR)"
        );
    }
}
