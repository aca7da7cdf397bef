//! Memory that a client can make a broker hold: messages that it was sent and does not read, and messages that it
//! begins and does not finish.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::Context;
use nexo_amqp::codec::method::tx;
use nexo_amqp::codec::{Frame, FrameKind, PropertiesBuilder, encode_frame, encode_message_head};
use nexo_amqp_client::methods;
use nexo_grpc::proto::subscribe_request::Action;
use nexo_grpc::proto::{CreateQueueRequest, GetQueueRequest, QueueConfig, SubscribeRequest, SubscribeStart};
use nexo_harness::http;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::Found;
use super::target::{DURABLE, Sent, Target, message, publish, send, shape};
use crate::amqp::{CHANNEL, Connection, InputSize, declare_queue, short};
use crate::native::Line;
use crate::work::Persistence;

/// How long everything is held when the broker takes no more.
const HOLD: Duration = Duration::from_secs(5);
/// How long an answer may take that is there already.
const ANSWER: Duration = Duration::from_millis(50);
/// If so many requests were held back, no further one is sent.
const HELD_BACK_MAX: u32 = 4;
const MIB: u64 = 1 << 20;

/// A subscriber that asks for a million messages and reads none.
pub(super) fn subscriber(target: &Target) -> anyhow::Result<Found> {
    const BODY_BYTES: usize = 16 * 1024;
    const QUEUE: &str = "abuse-subscriber";
    let mut found = Found::default();
    let line = Line::open(&target.native)?;
    let request = CreateQueueRequest {
        queue: QUEUE.to_owned(),
        config: Some(QueueConfig::default()),
        ..Default::default()
    };
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
            let request = GetQueueRequest { queue: QUEUE.to_owned(), ..Default::default() };
            let told = line.client.queues().get_queue(request).await?.into_inner();
            let stats = told.queue.and_then(|queue| queue.stats).context("a queue has figures")?;
            found
                .add("on its way to the subscriber", stats.leased)
                .number("on_its_way", stats.leased as f64)
                .number("kept_part", (stats.ready + stats.leased) as f64 / count as f64);
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
        let publish = methods::publish(short("")?, short(QUEUE)?);
        let payload = vec![b'x'; connection.frame_max.payload_bytes()];
        let (mut taken, mut last) = (0, Sent::All);
        let channels = CHANNEL..CHANNEL + 20;
        let asked = (channels.len() * body_bytes) as u64;
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
        found.number("taken_mib", mebibytes(taken)).number("taken_part", part(taken, asked));
        Ok(())
    })?;
    Ok(found)
}

/// Transactions that are not committed, each on a connection of its own.
pub(super) fn transactions(target: &Target) -> anyhow::Result<Found> {
    const QUEUE: &str = "abuse-transactions";
    const TRANSACTIONS: u64 = 8;
    let mut found = Found::default();
    let properties = PropertiesBuilder::new().delivery_mode(2).to_vec();
    target.probed(&mut found, |found| {
        let (mut open, mut taken, mut ends) = (Vec::new(), 0, Vec::new());
        let times = target.count(200);
        for _ in 0..TRANSACTIONS {
            let mut connection = target.connect(InputSize::Small)?;
            declare_queue(&mut connection, QUEUE, &DURABLE)?;
            connection.call(CHANNEL, &tx::Select {}, "tx.select-ok")?;
            let body = vec![b'x'; MIB as usize];
            let frames = message("", QUEUE, &properties, &body, connection.frame_max)?;
            let mut last = Sent::All;
            for _ in 0..times {
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
        let asked = TRANSACTIONS * times * MIB;
        found.add("sent", tell(taken, &ends));
        found.number("taken_mib", mebibytes(taken)).number("taken_part", part(taken, asked));
        Ok(())
    })?;
    Ok(found)
}

/// Requests to the SQS API whose last byte never comes: some that are too large, and many that are not.
pub(super) fn sqs_bodies(target: &Target) -> anyhow::Result<Found> {
    /// Larger than any that is taken, also for a quick look.
    const TOO_LARGE_MIB: u64 = 200;
    /// Less than the most that a request may have.
    const ALLOWED_MIB: u64 = 7;
    let mut found = Found::default();
    target.probed(&mut found, |found| {
        let (too_large, ends) = unfinished(target, 8, TOO_LARGE_MIB)?;
        let refused = ends.iter().filter(|end| is_refused(end)).count() as u64;
        found.add("too large", tell(too_large, &ends)).number("refused_part", part(refused, 8));
        let count = target.count(200);
        let (taken, ends) = unfinished(target, count, ALLOWED_MIB)?;
        found.add("not too large", tell(taken, &ends));
        let asked = count * ALLOWED_MIB * MIB;
        found.number("taken_mib", mebibytes(taken)).number("taken_part", part(taken, asked));
        Ok(())
    })?;
    Ok(found)
}

/// What became of somebody who sent something: how that ended, and what the broker said.
type End = (Sent, Option<String>);

/// Sends requests of this size but for their last byte, and holds them all. Says what was taken, and how each ended.
fn unfinished(target: &Target, count: u64, mebibytes: u64) -> anyhow::Result<(u64, Vec<End>)> {
    let (mut open, mut taken, mut held_back) = (Vec::new(), 0, 0);
    let part = vec![b' '; MIB as usize];
    for _ in 0..count {
        let socket = TcpStream::connect(&target.sqs).context("the SQS API does not answer")?;
        let head = format!(
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n\
             X-Amz-Target: AmazonSQS.SendMessage\r\nContent-Length: {}\r\n\r\n",
            mebibytes * MIB + 1
        );
        let mut last = send(&socket, head.as_bytes(), &mut taken)?;
        for _ in 0..mebibytes {
            if last != Sent::All {
                break;
            }
            last = send(&socket, &part, &mut taken)?;
        }
        held_back += u32::from(last == Sent::HeldBack);
        open.push((socket, last));
        // More would wait as these do.
        if held_back == HELD_BACK_MAX {
            break;
        }
    }
    std::thread::sleep(target.time(HOLD));
    let mut ends = Vec::new();
    for (mut socket, last) in open {
        socket.set_read_timeout(Some(ANSWER))?;
        let mut answer = [0; 64];
        let read = socket.read(&mut answer).unwrap_or(0);
        let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
        ends.push((last, http::status(&answer).map(|status| status.to_string())));
    }
    Ok((taken, ends))
}

/// Why the broker ended a channel or the connection, if it said so.
fn word(connection: &mut Connection) -> Option<String> {
    connection.socket.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
    let error = connection.wait_for(CHANNEL, |_| None::<()>).err()?.to_string();
    error.strip_prefix("the broker closed the ").map(str::to_owned)
}

fn is_refused((sent, said): &End) -> bool {
    *sent == Sent::Ended || said.is_some()
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

/// Nothing of nothing is no part at all: a load that did not run meets no goal.
fn part(of: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { of as f64 / whole as f64 }
}

/// What was taken, and what became of those who sent it.
fn tell(taken: u64, ends: &[End]) -> String {
    let held = ends.iter().filter(|(sent, said)| *sent == Sent::HeldBack && said.is_none()).count();
    let ended = ends.iter().filter(|end| is_refused(end)).count();
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
    fn a_load_that_was_not_taken_has_no_part() {
        assert_eq!(part(0, 0), 0.0);
        assert_eq!((part(MIB, 4 * MIB), mebibytes(3 * MIB / 2)), (0.25, 1.5));
    }

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
