//! How channels and the connection end: what was published counts, answers are given, and what is not settled goes back.

use std::collections::HashSet;
use std::time::Instant;

use nexo_broker::{QueueError, Written};
use nexo_net::Unserved;

use super::error::Refusal;
use super::leaving::Leaving;
use super::operations::Subscriptions;
use super::session::{ChannelState, ConnectionPhase, Peer, Session};
use super::steps::{Step, frame_of};
use crate::codec::method::{channel, connection};
use crate::codec::{MethodId, ReplyCode, ShortStr};

impl Session {
    /// Acts on what came of a frame: a refusal ends the channel or the connection.
    pub(super) fn conclude(&mut self, number: u16, outcome: Result<(), Refusal>) {
        if let Err(refusal) = outcome {
            self.steps.push_back(Step::Refuse { number, refusal });
            self.run_steps();
        }
    }

    /// Says that a channel ends, and why.
    pub(super) fn close_channel(&mut self, number: u16, refusal: &Refusal) {
        self.begin_close_channel(number, refusal);
        self.run_steps();
    }

    pub(super) fn begin_close_channel(&mut self, number: u16, refusal: &Refusal) {
        if !self.is_open(number) {
            // It was closed while the refusal waited for the disk.
            return;
        }
        let (peer, error) = (Peer(self.peer), refusal.reply_text());
        let vhost = self.vhost_logged();
        tracing::info!(protocol = "amqp", %peer, user = self.user.as_str(), vhost, channel = number, error, "channel closed");
        let MethodId { class_id, method_id } = refusal.method;
        let text = refusal.reply_text();
        let reply_text = ShortStr::clipped(text.as_bytes());
        let close = channel::Close { reply_code: refusal.code.number(), reply_text, class_id, method_id };
        self.steps.extend([
            Step::Flush,
            Step::GiveAnswers(number),
            Step::LeaveChannel {
                number,
                after: Some(ChannelState::Closing),
                reply: frame_of(number, &close),
            },
        ]);
    }

    /// Ends a channel because its client says so.
    pub(super) fn end_channel(&mut self, number: u16) {
        let reply = frame_of(number, &channel::CloseOk {});
        self.steps.extend([
            Step::Flush,
            Step::GiveAnswers(number),
            Step::LeaveChannel { number, after: None, reply },
        ]);
        self.run_steps();
    }

    /// Ends what a channel holds. Its consumers go, and what it did not settle comes back.
    pub(super) fn leave_channel(&mut self, number: u16, after: Option<ChannelState>, reply: Vec<u8>) {
        let Some(ChannelState::Open(channel)) = self.channels.get_mut(&number) else { return };
        let ids: HashSet<u64> = channel.consumers.keys().copied().collect();
        for consumer in channel.consumers.values() {
            consumer.stop.notify_one();
        }
        let queues = channel.consumed_queues();
        // What was handed to consumers that do not acknowledge is gone with them.
        drop(self.stop_consumers(ids));
        self.waiting.retain(|batch| batch.source.channel != number);
        let channel_states = self.channels.remove(&number).into_iter().collect();
        if let Some(after) = after {
            self.channels.insert(number, after);
        }
        let leaving = Leaving { refused: Vec::new(), unfinished: None, channel_states };
        self.put_first([
            Step::Leave(leaving),
            Step::DeleteLeftAlone { queues, written: Written::NOTHING },
            Step::Say { frame: reply, phase: None },
        ]);
    }

    /// Ends the connection because somebody asked for that, this node leads no more, or the broker stops.
    pub(super) fn force_end(&mut self, now: Instant, unserved: Option<Unserved>) {
        self.now = now;
        let text = match (self.shown.close_reason(), unserved) {
            (Some(reason), _) => reason.to_owned(),
            (None, Some(why)) => why.to_string(),
            (None, None) => "broker forced connection closure with reason 'shutdown'".to_owned(),
        };
        self.close(&Refusal::new(ReplyCode::ConnectionForced, text));
        // What it waits for may never come: a disk that hangs. As long again as its client may take to agree.
        self.end_within(2 * self.shared.options.close_max);
    }

    /// Ends the connection because its virtual host was deleted.
    pub(super) fn vhost_deleted(&mut self, now: Instant) {
        self.now = now;
        let text = format!("vhost '{}' is deleted", self.vhost);
        self.close(&Refusal::new(ReplyCode::ConnectionForced, text));
        self.end_within(2 * self.shared.options.close_max);
    }

    /// Ends the connection because its user is no more.
    pub(super) fn user_was_deleted(&mut self, now: Instant) {
        self.now = now;
        let text = format!("user '{}' was deleted", self.user);
        self.close(&Refusal::new(ReplyCode::ConnectionForced, text));
        self.end_within(2 * self.shared.options.close_max);
    }

    /// Ends the connection because its user's token has expired.
    pub(super) fn credential_expired(&mut self) {
        let (peer, user) = (Peer(self.peer), self.user.as_str());
        tracing::warn!(protocol = "amqp", %peer, user, "connection is closed: its credential has expired");
        self.expires = None;
        self.close(&Refusal::new(ReplyCode::ConnectionForced, "credential expired"));
        self.end_within(2 * self.shared.options.close_max);
    }

    /// Says that the connection ends, and why.
    pub(super) fn close(&mut self, refusal: &Refusal) {
        self.begin_close(refusal);
        self.run_steps();
    }

    pub(super) fn begin_close(&mut self, refusal: &Refusal) {
        if self.phase != ConnectionPhase::Running || self.is_ending {
            return;
        }
        let (peer, error) = (Peer(self.peer), refusal.reply_text());
        let vhost = self.vhost_logged();
        tracing::info!(protocol = "amqp", %peer, user = self.user.as_str(), vhost, error, "connection closed by the broker");
        let MethodId { class_id, method_id } = refusal.method;
        let text = refusal.reply_text();
        let reply_text = ShortStr::clipped(text.as_bytes());
        let close = connection::Close { reply_code: refusal.code.number(), reply_text, class_id, method_id };
        self.begin_end(frame_of(0, &close), ConnectionPhase::Closing);
    }

    /// Ends the connection because its client says so.
    pub(super) fn end_connection(&mut self) {
        self.begin_end(frame_of(0, &connection::CloseOk {}), ConnectionPhase::Closed);
        self.run_steps();
    }

    fn begin_end(&mut self, frame: Vec<u8>, phase: ConnectionPhase) {
        self.is_ending = true;
        self.steps.extend([
            Step::Flush,
            Step::GiveAnswers(0),
            Step::LeaveConnection,
            Step::Say { frame, phase: Some(phase) },
        ]);
    }

    /// Gives back everything that the connection holds: its client is gone.
    pub(super) fn end(&mut self) {
        // What was said about messages counts; whatever else was begun does not matter to anybody now.
        self.steps.retain(|step| matches!(step, Step::Settle { .. }));
        self.safe = None;
        self.stop_waiting();
        self.steps.push_back(Step::LeaveConnection);
        self.run_steps();
    }

    pub(super) fn leave_connection(&mut self) {
        self.intake.stop_waiting();
        self.consumers = Subscriptions::default();
        self.waiting.clear();
        let refused = self.take_refused();
        let mut queues = Vec::new();
        let channel_states: Vec<ChannelState> =
            self.channels.drain().map(|(_, channel_state)| channel_state).collect();
        for channel_state in &channel_states {
            if let ChannelState::Open(channel) = channel_state {
                queues.extend(channel.consumed_queues());
            }
        }
        let leaving = Leaving { refused, unfinished: self.unfinished.take(), channel_states };
        if std::mem::take(&mut self.owns_queues) {
            self.put_first([Step::EndSession]);
        }
        self.put_first([Step::Leave(leaving), Step::DeleteLeftAlone { queues, written: Written::NOTHING }]);
    }

    fn put_first<const N: usize>(&mut self, steps: [Step; N]) {
        for step in steps.into_iter().rev() {
            self.steps.push_front(step);
        }
    }

    /// Pushes what was published, however long that takes, unless the disk is full: its client is gone.
    pub(super) fn flush_whole(&mut self) {
        self.steps.push_back(Step::Flush);
        self.run_steps();
    }

    /// Whether something was begun that must come to its end though the client has gone: a step, or a commit that waits for
    /// the disk, of which a half would be worse than either. One that finds the disk full does not.
    pub(super) fn must_finish(&self) -> bool {
        self.has_steps() || self.is_committing()
    }

    /// Whether a commit has begun and waits for the disk.
    pub(super) fn is_committing(&self) -> bool {
        self.unfinished.is_some() && self.held_up.is_some()
    }

    /// Ends the connection if what its client said about messages, or declared, can never be written down: it must know.
    pub(super) fn close_if_log_failed(&mut self) {
        let settles = self.settle_refusal.as_ref();
        let settles = settles.filter(|error| matches!(error, QueueError::Unavailable { .. }));
        if let Some(error) = settles.or(self.answer_failure.as_ref()) {
            let refusal = Refusal::from(error.clone());
            self.close(&refusal);
        }
    }
}
