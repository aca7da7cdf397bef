//! From frames to methods: what each means depends on the state of the connection and of its channel.

use std::time::Instant;

use nexo_access::Presence;
use nexo_broker::Protocol;

use super::answers::is_answered_later;
use super::channel::Channel;
use super::content::{self, Content, Publish, Whole};
use super::erlang;
use super::error::{self, Refusal};
use super::faults::Faulty;
use super::output::HARD_BYTES;
use super::publish::{Body, Incoming};
use super::session::{ChannelState, ConnectionPhase, Session};
use super::steps::{Step, frame_of};
use crate::codec::method::{
    AccessMethod, BasicMethod, ChannelMethod, ConfirmMethod, ConnectionMethod, access, basic, channel,
    connection,
};
use crate::codec::{AmqpMethod, Frame, FrameKind, Frames, Method, PublishedMessage, ReplyCode};

/// How far the session came with what was read.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) bytes: usize,
    pub(super) stop: Stop,
}

/// Why it came no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// There is no other whole frame.
    NoMore,
    /// The session takes no more now.
    Busy,
}

impl Session {
    /// Whether frames are taken: a peer that does not listen is not listened to, and one that publishes waits while
    /// the disk is full.
    pub(super) fn takes_frames(&self) -> bool {
        match self.phase {
            _ if self.has_steps() => false,
            ConnectionPhase::Running => !self.waits_for_broker() && self.out.len() < HARD_BYTES,
            ConnectionPhase::Closing => true,
            ConnectionPhase::Closed => false,
        }
    }

    /// Whether the broker must come on before it takes more from the peer.
    fn waits_for_broker(&self) -> bool {
        let waits_for_disk =
            self.blocked || self.held_up.is_some() || self.pace.is_behind() || self.confirms.is_full();
        waits_for_disk || self.settles_late() || self.intake.is_waiting() || self.has_steps()
    }

    /// Whether there may be words of the peer that have not been heard, and it is not to blame: one that does not listen is.
    pub(super) fn is_held_back(&self) -> bool {
        let waits = self.phase == ConnectionPhase::Running && self.waits_for_broker();
        waits || self.has_steps() || (self.stalled && self.takes_frames())
    }

    /// Whether more should be read from the peer.
    pub(super) fn reads(&self) -> bool {
        !self.stalled && self.takes_frames()
    }

    /// Works through the whole frames at the head of `input`, until they end, or the session takes no more, and refuses
    /// what is no frame.
    pub(super) fn take_frames(&mut self, input: &[u8], now: Instant) -> Taken {
        self.now = now;
        self.look_for_traces();
        if self.timing.is_deaf {
            self.stalled = false;
            return Taken { bytes: input.len(), stop: Stop::NoMore };
        }
        let max = self.limits.frame_max;
        let mut refused_bytes = 0;
        let mut frames = Frames::new(input, max);
        let mut stop = Stop::Busy;
        let mut untaken = 0;
        while self.takes_frames() {
            if let Some(found) = PublishedMessage::parse(frames.rest(), max)
                && self.takes_publish(found.channel, found.body.len())
            {
                frames.skip_bytes(found.bytes);
                let mut incoming = Incoming {
                    exchange: found.publish.exchange.as_bytes(),
                    routing_key: found.publish.routing_key.as_bytes(),
                    mandatory: found.publish.mandatory,
                    immediate: found.publish.immediate,
                    properties: found.properties,
                    body: Body::Read(found.body),
                };
                if let Err(refusal) = self.publish(found.channel, &mut incoming, None) {
                    self.conclude(found.channel, Err(refusal.of(basic::Publish::ID)));
                }
                if self.publishes_are_due() {
                    self.flush_publishes();
                }
                continue;
            }
            match frames.next() {
                Some(Ok(frame)) => {
                    if self.must_wait(&frame) {
                        untaken = frame.bytes();
                        break;
                    }
                    self.take_frame(&frame);
                    if std::mem::take(&mut self.takes_again) {
                        untaken = frame.bytes();
                        break;
                    }
                    if self.publishes_are_due() {
                        self.flush_publishes();
                    }
                }
                Some(Err(fault)) => match self.refuse_bytes(fault, frames.rest()) {
                    Faulty::Bytes(bytes) => {
                        refused_bytes += frames.consumed_bytes() + bytes;
                        frames = Frames::new(&input[refused_bytes..], max);
                    }
                    Faulty::Partly => {
                        stop = Stop::NoMore;
                        break;
                    }
                    Faulty::Deaf => {
                        self.stalled = false;
                        return Taken { bytes: input.len(), stop: Stop::NoMore };
                    }
                },
                None => {
                    stop = Stop::NoMore;
                    break;
                }
            }
        }
        self.flush();
        self.stalled = stop == Stop::Busy;
        Taken { bytes: refused_bytes + frames.consumed_bytes() - untaken, stop }
    }

    /// Whether a frame has to wait for what came before it: for publishes to be with their queues, and for answers.
    fn must_wait(&mut self, frame: &Frame<'_>) -> bool {
        if self.phase != ConnectionPhase::Running || frame.kind != FrameKind::Method {
            return false;
        }
        let Ok(method) = Method::decode(frame.payload) else { return false };
        if matches!(method, Method::Basic(BasicMethod::Publish(_) | BasicMethod::Ack(_))) {
            return false;
        }
        self.flush();
        let number = frame.channel;
        let waits_for_answers = match number {
            0 => self.confirms.owes_answers(),
            _ => !is_answered_later(&method) && self.confirms.owes_answer_to(number),
        };
        self.held_up.is_some() || self.blocked || self.settles_late() || waits_for_answers
    }

    /// Whether what was published should go to its queues before more is read.
    fn publishes_are_due(&self) -> bool {
        self.outbox.is_full() || (self.pace.is_rationed() && self.outbox.holds_ration())
    }

    /// Hands to the broker what was collected, as far as the disk has room. An acknowledgement does not overtake what was
    /// published before it, unless the disk is full: then it may be what makes room.
    pub(super) fn flush(&mut self) {
        if self.flush_publishes().is_some() || self.blocked {
            self.flush_acks();
        }
    }

    fn takes_publish(&self, number: u16, body_bytes: usize) -> bool {
        self.phase == ConnectionPhase::Running
            && body_bytes <= self.shared.body_bytes_max
            && matches!(self.channels.get(&number), Some(ChannelState::Open(channel)) if channel.content.is_nothing())
    }

    fn take_frame(&mut self, frame: &Frame<'_>) {
        let number = frame.channel;
        if self.phase != ConnectionPhase::Running {
            self.take_closing_frame(frame);
            return;
        }
        let body_bytes_max = self.shared.body_bytes_max;
        let taken = match (number, frame.kind) {
            (0, FrameKind::Heartbeat) => Ok(()),
            (0, FrameKind::Method) => self.take_connection_method(frame.payload),
            (0, FrameKind::Header | FrameKind::Body) => Err(content::no_method()),
            (_, FrameKind::Heartbeat) => {
                let text = format!("type 8, all octets = {}", erlang::binary(frame.payload));
                Err(Refusal::new(ReplyCode::UnexpectedFrame, text))
            }
            (_, FrameKind::Method) => self.take_channel_method(number, frame.payload),
            (_, FrameKind::Header) => self
                .take_content(number, |content| content.take_header(frame.payload, body_bytes_max))
                .and_then(|()| self.hold_for_body(number).map_err(|refusal| refusal.of(basic::Publish::ID))),
            (_, FrameKind::Body) => self.take_content(number, |content| content.take_body(frame.payload)),
        };
        self.conclude(number, taken);
    }

    /// Once we said that the connection ends, only the client's word about that counts.
    fn take_closing_frame(&mut self, frame: &Frame<'_>) {
        if frame.channel != 0 || frame.kind != FrameKind::Method {
            return;
        }
        match Method::decode(frame.payload) {
            Ok(Method::Connection(ConnectionMethod::CloseOk(_))) => self.enter(ConnectionPhase::Closed),
            Ok(Method::Connection(ConnectionMethod::Close(_))) => {
                self.out.method(0, &connection::CloseOk {});
                self.enter(ConnectionPhase::Closed);
            }
            Ok(_) | Err(_) => {}
        }
    }

    fn take_connection_method(&mut self, payload: &[u8]) -> Result<(), Refusal> {
        let method = Method::decode(payload).map_err(|error| error::method_refusal(error, payload))?;
        match method {
            Method::Connection(ConnectionMethod::Close(_)) => {
                self.end_connection();
                Ok(())
            }
            Method::Connection(ConnectionMethod::UpdateSecret(update)) => {
                self.update_secret(update.new_secret)
                    .map_err(|refusal| refusal.of(connection::UpdateSecret::ID))?;
                self.out.method(0, &connection::UpdateSecretOk {});
                Ok(())
            }
            other => {
                let text = "unexpected method in connection state running";
                Err(Refusal::new(ReplyCode::ChannelError, text).of(other.id()))
            }
        }
    }

    fn take_content(
        &mut self,
        number: u16,
        take: impl FnOnce(&mut Content) -> Result<Option<Whole>, Refusal>,
    ) -> Result<(), Refusal> {
        match self.channels.get_mut(&number) {
            Some(ChannelState::Open(channel)) => match take(&mut channel.content)? {
                Some(mut whole) => {
                    let hold = whole.hold.take();
                    self.publish(number, &mut whole.as_incoming(), hold)
                        .map_err(|refusal| refusal.of(basic::Publish::ID))
                }
                None => {
                    self.intake.progress = self.now;
                    Ok(())
                }
            },
            Some(ChannelState::Closing) => Ok(()),
            None => Err(content::no_method()),
        }
    }

    fn take_channel_method(&mut self, number: u16, payload: &[u8]) -> Result<(), Refusal> {
        let method = Method::decode(payload);
        let id = method.as_ref().map_or(error::NO_METHOD, Method::id);
        match self.channels.get(&number) {
            None => {
                let method = method.map_err(|error| error::method_refusal(error, payload))?;
                self.open_channel(number, &method).map_err(|refusal| refusal.of(id))
            }
            Some(ChannelState::Closing) => {
                match method {
                    Ok(Method::Channel(ChannelMethod::CloseOk(_))) => {
                        self.channels.remove(&number);
                    }
                    Ok(Method::Channel(ChannelMethod::Close(_))) => {
                        self.out.method(number, &channel::CloseOk {})
                    }
                    Ok(_) | Err(_) => {}
                }
                Ok(())
            }
            Some(ChannelState::Open(channel)) => {
                channel.content.refuse_method()?;
                let method = method.map_err(|error| error::method_refusal(error, payload))?;
                self.dispatch(number, &method).map_err(|refusal| refusal.of(id))
            }
        }
    }

    fn open_channel(&mut self, number: u16, method: &Method<'_>) -> Result<(), Refusal> {
        let Method::Channel(ChannelMethod::Open(_)) = method else {
            return Err(Refusal::new(ReplyCode::ChannelError, "expected 'channel.open'"));
        };
        let max = self.limits.channel_max;
        let open = self.channels.len();
        if open >= usize::from(max) {
            let text =
                format!("number of channels opened ({open}) has reached the negotiated channel_max ({max})");
            return Err(Refusal::new(ReplyCode::NotAllowed, text));
        }
        let presence = self.presence.as_ref().map(Presence::open_channel).transpose();
        let presence = presence.map_err(|limit| Refusal::new(ReplyCode::NotAllowed, limit.to_string()))?;
        let serial = self.new_serial();
        let counted = self.shared.broker.traffic().channel(Protocol::Amqp);
        let shown = self.shown.open_channel(number);
        let channel = Channel::new(serial, counted, shown, presence);
        self.channels.insert(number, ChannelState::Open(Box::new(channel)));
        self.out.method(number, &channel::OpenOk { channel_id: b"" });
        Ok(())
    }

    fn dispatch(&mut self, number: u16, method: &Method<'_>) -> Result<(), Refusal> {
        tracing::trace!(session = self.id.0, channel = number, ?method, "received");
        match method {
            Method::Basic(BasicMethod::Publish(publish)) => {
                self.channel(number)?.content = Content::Header(Publish::new(publish));
                return Ok(());
            }
            Method::Basic(BasicMethod::Ack(ack)) => return self.ack(number, ack),
            _ => self.flush(),
        }
        if !is_answered_later(method) {
            self.refuse_after_failure()?;
        }
        match method {
            Method::Basic(method) => self.basic_method(number, method),
            Method::Queue(method) => self.queue_method(number, method),
            Method::Exchange(method) => self.exchange_method(number, method),
            Method::Tx(method) => self.tx_method(number, method),
            Method::Confirm(ConfirmMethod::Select(select)) => self.select_confirms(number, select),
            Method::Channel(method) => self.channel_method(number, method),
            Method::Access(AccessMethod::Request(_)) => {
                self.answer(number, &access::RequestOk { ticket: 1 });
                Ok(())
            }
            Method::Confirm(ConfirmMethod::SelectOk(_))
            | Method::Access(AccessMethod::RequestOk(_))
            | Method::Connection(_) => Err(error::unimplemented()),
        }
    }

    fn basic_method(&mut self, number: u16, method: &BasicMethod<'_>) -> Result<(), Refusal> {
        match method {
            BasicMethod::Qos(qos) => self.qos(number, qos),
            BasicMethod::Consume(consume) => self.consume(number, consume),
            BasicMethod::Cancel(cancel) => self.cancel(number, cancel),
            BasicMethod::Get(get) => self.get(number, get),
            BasicMethod::Nack(nack) => self.nack(number, nack),
            BasicMethod::Reject(reject) => self.reject(number, reject),
            BasicMethod::RecoverAsync(recover) => self.recover(number, recover.requeue),
            BasicMethod::Recover(recover) => {
                self.recover(number, recover.requeue)?;
                let frame = frame_of(number, &basic::RecoverOk {});
                self.steps.push_back(Step::Say { frame, phase: None });
                self.run_steps();
                Ok(())
            }
            BasicMethod::CancelOk(_) => Ok(()),
            BasicMethod::Publish(_)
            | BasicMethod::Ack(_)
            | BasicMethod::QosOk(_)
            | BasicMethod::ConsumeOk(_)
            | BasicMethod::Return(_)
            | BasicMethod::Deliver(_)
            | BasicMethod::GetOk(_)
            | BasicMethod::GetEmpty(_)
            | BasicMethod::RecoverOk(_) => Err(error::unimplemented()),
        }
    }

    fn channel_method(&mut self, number: u16, method: &ChannelMethod<'_>) -> Result<(), Refusal> {
        match method {
            ChannelMethod::Open(_) => {
                Err(Refusal::new(ReplyCode::ChannelError, "second 'channel.open' seen"))
            }
            ChannelMethod::Flow(flow) if flow.active => {
                self.answer(number, &channel::FlowOk { active: true });
                Ok(())
            }
            ChannelMethod::Flow(_) => Err(Refusal::new(ReplyCode::NotImplemented, "active=false")),
            ChannelMethod::Close(_) => {
                self.end_channel(number);
                Ok(())
            }
            ChannelMethod::CloseOk(_) | ChannelMethod::FlowOk(_) | ChannelMethod::OpenOk(_) => {
                Err(error::unimplemented())
            }
        }
    }
}
