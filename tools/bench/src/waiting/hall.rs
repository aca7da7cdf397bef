//! Very many receivers that wait, and a few who send, all on one thread, so that no other thread of the load stands between
//! a message that has arrived and the moment that is noted for it.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::WaitingOptions;
use super::ledger::Ledger;
use crate::percentiles;
use crate::sqs::{AnswerSize, Connection, PATIENCE, Received, Request, SentOn, SqsUrl, all_taken};

/// Connections that send, at first and at most. One alone would have to wait for the disk before it could send the next
/// message when that is due; a disk that pauses for a second keeps as many busy as messages are due in it.
const SENDERS: usize = 16;
const SENDERS_MAX: usize = 2_000;
/// Events that are taken at once.
const EVENTS: usize = 256;
/// An answer with nothing in it that comes earlier than this before its time was a false alarm.
const EARLY: Duration = Duration::from_secs(1);

/// Everybody.
pub(super) struct Hall {
    url: SqsUrl,
    poll: OwnedFd,
    events: Vec<epoll::Event>,
    receivers: Vec<Receiver>,
    /// The address of each queue, and what asks for a message of it.
    queues: Vec<(String, Request)>,
    wait: Duration,
    senders: Vec<Sender>,
    began: Instant,
    pub(super) ledger: Ledger,
    pub(super) send_nanos: Histogram<u64>,
    /// Waits that had to begin anew because their time was over.
    pub(super) renewed: u64,
    /// Receivers that were woken without a message.
    pub(super) false_alarms: u64,
}

struct Receiver {
    connection: Connection,
    queue: usize,
    state: State,
}

struct Sender {
    connection: Connection,
    /// When the message that is on its way was due.
    sending: Option<Instant>,
}

/// What a receiver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits, since that moment.
    Waiting(Instant),
    /// Deletes so many messages.
    Deleting(u64),
}

impl Hall {
    /// Connects everybody, and has all receivers wait, shared out among the queues.
    pub(super) fn open(options: &WaitingOptions, addresses: &[String]) -> anyhow::Result<Self> {
        // A sleep may otherwise be 50 µs longer than asked for. Where this is not allowed, the times show it.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).ok();
        let url = &options.url;
        let receive = |address: &String| (address.clone(), Request::receive(url, address, 1, options.wait));
        let mut hall = Self {
            url: url.clone(),
            poll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS),
            receivers: Vec::new(),
            queues: addresses.iter().map(receive).collect(),
            wait: Duration::from_secs(u64::from(options.wait)),
            senders: Vec::new(),
            began: Instant::now(),
            ledger: Ledger::new(addresses.len()),
            send_nanos: percentiles::nanos(),
            renewed: 0,
            false_alarms: 0,
        };
        for _ in 0..SENDERS {
            hall.add_sender()?;
        }
        for index in 0..options.receivers as usize {
            let queue = index % addresses.len();
            let mut connection = Connection::open(url, AnswerSize::Small)
                .with_context(|| format!("receiver {} cannot connect", index + 1))?;
            connection.send(&hall.queues[queue].1)?;
            watch_for_input(&hall.poll, &connection, index)?;
            hall.receivers.push(Receiver { connection, queue, state: State::Waiting(Instant::now()) });
        }
        Ok(hall)
    }

    fn add_sender(&mut self) -> anyhow::Result<()> {
        let connection = Connection::open(&self.url, AnswerSize::Small)?;
        self.senders.push(Sender { connection, sending: None });
        Ok(())
    }

    /// Moments count from now on; gives back when that is.
    pub(super) fn begin(&mut self) -> Instant {
        self.began = Instant::now();
        self.began
    }

    /// Sends a message that is due so long after the beginning, as soon as one of the senders is free.
    pub(super) fn send(&mut self, due: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        let free = loop {
            if let Some(free) = self.senders.iter().position(|sender| sender.sending.is_none()) {
                break free;
            }
            if self.senders.len() < SENDERS_MAX {
                self.add_sender()?;
                continue;
            }
            ensure!(Instant::now() < end, "{} has not answered SendMessage for {PATIENCE:?}", self.url);
            self.turn(PATIENCE)?;
        };
        let (number, queue) = self.ledger.send(due);
        let sender = &mut self.senders[free];
        sender.connection.send(&Request::send(&self.url, &self.queues[queue].0, &number.to_string()))?;
        sender.sending = Some(self.began + due);
        // Only while something is to come: an endpoint may end the connection after its answer.
        watch_for_input(&self.poll, &sender.connection, self.receivers.len() + free)
    }

    /// Takes whatever comes until that moment.
    pub(super) fn run_until(&mut self, moment: Instant) -> anyhow::Result<()> {
        loop {
            let left = moment.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.turn(left)?;
        }
    }

    /// Waits for something to come, at most so long, and takes it.
    fn turn(&mut self, time: Duration) -> anyhow::Result<()> {
        let timeout = Timespec::try_from(time).context("a time between two messages is short")?;
        // Waiting for events themselves would count in milliseconds.
        match poll(&mut [PollFd::new(&self.poll, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut events = std::mem::take(&mut self.events);
        epoll::wait(&self.poll, spare_capacity(&mut events), Some(&Timespec::default()))?;
        for event in events.drain(..) {
            // Receivers have the first numbers, senders those after.
            let number = usize::try_from(event.data.u64())?;
            match number.checked_sub(self.receivers.len()) {
                None => self.take_answer(number)?,
                Some(sender) => self.take_confirm(sender)?,
            }
        }
        self.events = events;
        Ok(())
    }

    fn take_confirm(&mut self, index: usize) -> anyhow::Result<()> {
        let sender = &mut self.senders[index];
        if sender.connection.read("SendMessage")?.is_some() {
            epoll::delete(&self.poll, sender.connection.socket())?;
            if let Some(due) = sender.sending.take() {
                percentiles::note(&mut self.send_nanos, due.elapsed(), 1);
            }
        }
        Ok(())
    }

    fn take_answer(&mut self, index: usize) -> anyhow::Result<()> {
        let receiver = &mut self.receivers[index];
        let (address, receive) = &self.queues[receiver.queue];
        let sent_on = match receiver.state {
            State::Waiting(since) => {
                let Some(answer) = receiver.connection.read("ReceiveMessage")? else { return Ok(()) };
                let at = self.began.elapsed();
                let body = receiver.connection.body(&answer);
                let messages = Received::parse(&body)?;
                for message in &messages {
                    self.ledger.woken(&message.body, receiver.queue, at);
                }
                if messages.is_empty() {
                    let is_early = since.elapsed() + EARLY < self.wait;
                    *(if is_early { &mut self.false_alarms } else { &mut self.renewed }) += 1;
                    drop(body);
                    receiver.wait(receive)?
                } else {
                    let receipts = messages.iter().map(|message| &*message.receipt);
                    let delete = Request::delete_batch(&self.url, address, receipts);
                    receiver.state = State::Deleting(messages.len() as u64);
                    drop(body);
                    receiver.connection.send(&delete)?
                }
            }
            State::Deleting(count) => {
                let Some(answer) = receiver.connection.read("DeleteMessageBatch")? else { return Ok(()) };
                all_taken("DeleteMessageBatch", count, &receiver.connection.body(&answer))?;
                receiver.wait(receive)?
            }
        };
        match sent_on {
            SentOn::TheSame => Ok(()),
            SentOn::Another => watch_for_input(&self.poll, &self.receivers[index].connection, index),
        }
    }
}

impl Receiver {
    fn wait(&mut self, receive: &Request) -> anyhow::Result<SentOn> {
        self.state = State::Waiting(Instant::now());
        self.connection.send(receive)
    }
}

fn watch_for_input(poll: &OwnedFd, connection: &Connection, number: usize) -> anyhow::Result<()> {
    let data = epoll::EventData::new_u64(number as u64);
    epoll::add(poll, connection.socket(), data, epoll::EventFlags::IN).context("cannot watch a connection")
}
