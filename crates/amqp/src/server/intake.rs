//! Memory for what is on its way in on one connection: bodies that have not come whole, and open transactions.
//!
//! A message's whole size is asked for when its content header comes. A connection that holds nothing waits for it and
//! is not read from meanwhile. One that holds some could wait for itself: it is refused what does not fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use nexo_broker::{Intake, IntakeHold};
use nexo_types::limits;

use super::channel::Mode;
use super::content::Content;
use super::error::Refusal;
use super::operations;
use super::session::{ChannelState, Session};
use crate::codec::ReplyCode;

/// What one connection holds, and waits for.
pub(super) struct ConnectionIntake {
    broker: Intake,
    held: Arc<AtomicUsize>,
    wait: Option<Wait>,
    /// When something last came of what is held.
    pub(super) progress: Instant,
}

struct Wait {
    channel: u16,
    serial: u64,
    granted: BoxFuture<'static, IntakeHold>,
    bytes: usize,
}

/// A part of the memory; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Hold {
    _permit: IntakeHold,
    pub(super) bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Hold {
    fn new(permit: IntakeHold, bytes: usize, held: Arc<AtomicUsize>) -> Self {
        held.fetch_add(bytes, Ordering::Relaxed);
        Self { _permit: permit, bytes, held }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl ConnectionIntake {
    pub(super) fn new(broker: Intake, now: Instant) -> Self {
        Self { broker, held: Arc::default(), wait: None, progress: now }
    }

    /// What the connection holds now.
    pub(super) fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) const fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    /// Asks for memory; `None` if the connection must wait for it.
    pub(super) fn ask(&self, bytes: usize) -> Result<Option<Hold>, Refusal> {
        let held = self.held_bytes();
        let max = limits::CONNECTION_INTAKE_BYTES_MAX;
        if held > 0 && held.saturating_add(bytes) > max {
            return Err(resource_error(format!(
                "messages that have not come whole and open transactions of one connection take at most {max} bytes; \
                 it holds {held} and asks for {bytes} more"
            )));
        }
        match self.broker.try_hold(bytes) {
            Some(permit) => Ok(Some(Hold::new(permit, bytes, Arc::clone(&self.held)))),
            None if held == 0 => Ok(None),
            None => Err(resource_error(format!(
                "the broker has no memory for {bytes} bytes more of a connection that holds {held} bytes of messages \
                 that have not come whole or been committed"
            ))),
        }
    }

    /// Waits for memory on behalf of a channel; nothing is read until it is there.
    pub(super) fn wait(&mut self, channel: u16, serial: u64, bytes: usize) {
        let granted = operations::memory(&self.broker, bytes);
        self.wait = Some(Wait { channel, serial, granted, bytes });
    }

    pub(super) fn stop_waiting(&mut self) {
        self.wait = None;
    }

    /// The memory that is waited for, if any is.
    pub(super) fn pending(&mut self) -> Option<&mut BoxFuture<'static, IntakeHold>> {
        self.wait.as_mut().map(|wait| &mut wait.granted)
    }

    fn stands_still(&self, now: Instant, max: Duration) -> bool {
        self.held_bytes() > 0
            && now.saturating_duration_since(self.progress) > max
            && self.broker.is_contended()
    }
}

impl Session {
    /// Asks for the memory of the body that a channel begins to receive.
    pub(super) fn hold_for_body(&mut self, number: u16) -> Result<(), Refusal> {
        let Some(ChannelState::Open(channel)) = self.channels.get_mut(&number) else { return Ok(()) };
        let Content::Body(partial) = &mut channel.content else { return Ok(()) };
        self.intake.progress = self.now;
        let bytes = partial.memory_bytes();
        match self.intake.ask(bytes) {
            Ok(Some(hold)) => partial.hold = Some(hold),
            Ok(None) => self.intake.wait(number, channel.serial, bytes),
            Err(refusal) => {
                channel.content = Content::Nothing;
                return Err(refusal);
            }
        }
        if self.shared.broker.has_memory_alarm()
            && let Some(alarm) = self.shared.broker.alarms().first()
        {
            // It would be refused when it has come whole, and take its memory until then.
            self.block(alarm);
        }
        Ok(())
    }

    /// Memory that was waited for is there.
    pub(super) fn take_hold(&mut self, permit: IntakeHold, now: Instant) {
        self.now = now;
        self.intake.progress = now;
        let Some(Wait { channel: number, serial, bytes, .. }) = self.intake.wait.take() else { return };
        let hold = Hold::new(permit, bytes, Arc::clone(&self.intake.held));
        let Some(ChannelState::Open(channel)) = self.channels.get_mut(&number) else { return };
        if channel.serial != serial {
            return;
        }
        match (&mut channel.content, &mut channel.mode) {
            (Content::Body(partial), _) if partial.hold.is_none() => partial.hold = Some(hold),
            (_, Mode::Transaction(transaction)) => transaction.holds.push(hold),
            (_, Mode::Plain | Mode::Confirm(_)) => {}
        }
    }

    /// Closes channels that keep memory from others and do not come on.
    pub(super) fn end_standstill(&mut self) {
        let max = self.shared.options.standstill_max;
        if self.is_held_back() {
            // One that is not read from cannot come on.
            self.intake.progress = self.now;
        }
        if !self.intake.stands_still(self.now, max) {
            return;
        }
        let holds = |channel_state: &ChannelState| match channel_state {
            ChannelState::Open(channel) => {
                matches!(&channel.content, Content::Body(_))
                    || matches!(&channel.mode, Mode::Transaction(transaction) if !transaction.holds.is_empty())
            }
            ChannelState::Closing => false,
        };
        let held = self.intake.held_bytes();
        let still: Vec<u16> = self
            .channels
            .iter()
            .filter(|(_, channel_state)| holds(channel_state))
            .map(|(number, _)| *number)
            .collect();
        for number in still {
            let refusal = resource_error(format!(
                "others wait for the {held} bytes that messages of this connection hold, which have not come on for \
                 {max:?}"
            ));
            self.close_channel(number, &refusal);
        }
    }
}

fn resource_error(text: String) -> Refusal {
    Refusal::new(ReplyCode::ResourceError, text)
}
