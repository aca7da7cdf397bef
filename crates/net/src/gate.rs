//! Where connections of clients are served: here, or on another node of the cluster. A port asks its [`Gate`] once for each
//! connection. A node by itself has none.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nexo_types::{NodeId, Term};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::peer_stream::PeerStream;
use crate::tunnel::TunnelHead;

/// How long clients wait for a leader and for the way to it: longer than an election takes. When nobody has been known to lead for
/// so long, whoever waits is told, and tunnels to the last leader end.
pub const LEADER_WITHIN: Duration = Duration::from_secs(5);

/// Where clients are served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// By this node, which leads in this term.
    Here {
        /// The term. Whoever was served in an earlier one is not served on in this.
        term: Term,
    },
    /// By another node, which leads.
    Node(NodeId),
    /// By nobody that this node knows of.
    Nowhere,
}

/// Says where clients are served, and leads there.
pub trait Gate: fmt::Debug + Send + Sync {
    /// The place, and whenever it changes.
    fn places(&self) -> watch::Receiver<Place>;

    /// Opens a tunnel to a node, for one connection of a client.
    fn open(&self, to: NodeId, head: TunnelHead) -> OpeningTunnel<'_>;

    /// So many bytes went through a tunnel, one way or the other. For figures.
    fn note_passed_on(&self, _bytes: usize) {}
}

/// A tunnel that is being opened.
pub type OpeningTunnel<'g> = Pin<Box<dyn Future<Output = io::Result<PeerStream>> + Send + 'g>>;

/// Why a client is not served, or not any more. Its text is for everybody who connects, so it tells nothing of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unserved {
    /// Nobody has been known to lead for [`LEADER_WITHIN`].
    #[error("no node is known to lead: no majority of the cluster can be reached")]
    NobodyLeads,
    /// Another node leads, and there is no way to it.
    #[error("the node that leads the cluster cannot be reached from this one")]
    LeaderUnreachable,
    /// It was served under another leader.
    #[error("another node leads the cluster now")]
    AnotherLeads,
    /// This node led. Who does now is not known yet.
    #[error(
        "this node has lost leadership: another node took it, or no majority of the cluster can be reached"
    )]
    Deposed,
}

/// How long a connection may be served where it is.
#[derive(Clone, Debug)]
pub struct Tenure {
    /// Cancelled when clients are served elsewhere, or nowhere.
    pub over: CancellationToken,
    /// Cancelled then, and when the port closes.
    pub over_or_closed: CancellationToken,
    /// Said before it is over.
    why: Arc<OnceLock<Unserved>>,
}

impl Tenure {
    fn new(port: &CancellationToken) -> Self {
        let (over, over_or_closed) = (CancellationToken::new(), port.child_token());
        Self { over, over_or_closed, why: Arc::default() }
    }

    fn end(&self, why: Unserved) {
        // It ends once.
        let _ = self.why.set(why);
        self.over.cancel();
        self.over_or_closed.cancel();
    }

    /// The same for one connection, whose requests wait for its end: they share no lock with those of other connections.
    #[must_use]
    pub fn of_one(&self) -> Self {
        let (over, over_or_closed) = (self.over.child_token(), self.over_or_closed.child_token());
        Self { over, over_or_closed, why: Arc::clone(&self.why) }
    }

    /// Why it is over, if it is. A port that closes is no such reason.
    #[must_use]
    pub fn why(&self) -> Option<Unserved> {
        self.why.get().copied()
    }

    /// Resolves when it is over, which it never is on a node by itself.
    pub async fn until_over(tenure: Option<&Self>) -> Unserved {
        let Some(tenure) = tenure else { return std::future::pending().await };
        tenure.over.cancelled().await;
        tenure.why().unwrap_or(Unserved::Deposed)
    }
}

/// Where a port's connections go, and how long those that begin now may stay.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    pub(crate) place: Place,
    pub(crate) tenure: Tenure,
    /// Until when a leader is waited for, if nobody leads.
    pub(crate) awaited_until: Instant,
}

/// Follows a gate for one port, and ends what began elsewhere.
#[derive(Debug)]
pub(crate) struct Gatekeeper {
    gate: Arc<dyn Gate>,
    places: watch::Receiver<Place>,
    /// The last place at which anybody was served.
    served_at: Place,
    port: CancellationToken,
    course: watch::Sender<Course>,
}

impl Gatekeeper {
    /// For a port that closes when `port` is cancelled.
    pub(crate) fn new(gate: Arc<dyn Gate>, port: &CancellationToken) -> Self {
        let mut places = gate.places();
        let place = *places.borrow_and_update();
        let awaited_until = Instant::now() + LEADER_WITHIN;
        let course = watch::Sender::new(Course { place, tenure: Tenure::new(port), awaited_until });
        Self { gate, places, served_at: place, port: port.clone(), course }
    }

    pub(crate) fn gate(&self) -> Arc<dyn Gate> {
        Arc::clone(&self.gate)
    }

    /// Where a connection that comes now goes.
    pub(crate) fn course(&self) -> Course {
        self.course.borrow().clone()
    }

    /// The same, for whoever waits for it to change.
    pub(crate) fn courses(&self) -> watch::Receiver<Course> {
        self.course.subscribe()
    }

    /// Waits for the next change, or until a leader that is not heard of has been waited for long enough, and does what that asks
    /// for. May be dropped while it waits.
    pub(crate) async fn follow(keeper: &mut Option<Self>) {
        let Some(keeper) = keeper else { return std::future::pending().await };
        let gives_up = keeper.gives_up_at();
        tokio::select! {
            changed = keeper.places.changed() => {
                // Whoever told of changes is gone: the process ends.
                if changed.is_err() {
                    return std::future::pending().await;
                }
                let place = *keeper.places.borrow_and_update();
                keeper.turn_to(place);
            }
            () = until(gives_up) => keeper.give_up(),
        }
    }

    fn turn_to(&mut self, place: Place) {
        // Also if it was the same before: somebody led in between.
        let awaited_until = Instant::now() + LEADER_WITHIN;
        match ended_by(self.served_at, place) {
            Some(why) => {
                self.served_at = place;
                self.begin(Course { place, tenure: Tenure::new(&self.port), awaited_until }, why);
            }
            None => {
                let tenure = self.course.borrow().tenure.clone();
                self.course.send_replace(Course { place, tenure, awaited_until });
            }
        }
    }

    /// When tunnels to a leader end that is not heard of, if that is so.
    fn gives_up_at(&self) -> Option<Instant> {
        let course = self.course.borrow();
        let is_awaited = matches!(self.served_at, Place::Node(_)) && course.place == Place::Nowhere;
        is_awaited.then_some(course.awaited_until)
    }

    /// Ends tunnels to a leader that nobody has heard of for long. What was sent through them may never be answered.
    fn give_up(&mut self) {
        self.served_at = Place::Nowhere;
        let awaited_until = self.course.borrow().awaited_until;
        let course = Course { place: Place::Nowhere, tenure: Tenure::new(&self.port), awaited_until };
        self.begin(course, Unserved::NobodyLeads);
    }

    /// Has another tenure begin, and what began in the one before end.
    fn begin(&self, course: Course, why: Unserved) {
        self.course.send_replace(course).tenure.end(why);
    }
}

/// Why those who are served at `before` are not served any more, if that is so.
fn ended_by(before: Place, now: Place) -> Option<Unserved> {
    match (before, now) {
        // A leader that is not heard of for a moment may still lead: tunnels to it stay.
        (Place::Node(_) | Place::Nowhere, Place::Nowhere) => None,
        (before, now) if before == now => None,
        (Place::Here { .. }, Place::Here { .. } | Place::Nowhere) => Some(Unserved::Deposed),
        (_, Place::Node(_)) | (Place::Node(_) | Place::Nowhere, Place::Here { .. }) => {
            Some(Unserved::AnotherLeads)
        }
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Told(watch::Sender<Place>);

    impl Gate for Told {
        fn places(&self) -> watch::Receiver<Place> {
            self.0.subscribe()
        }

        fn open(&self, _: NodeId, _: TunnelHead) -> OpeningTunnel<'_> {
            Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
        }
    }

    const LED_BY_2: Place = Place::Node(NodeId(2));

    fn here(term: u64) -> Place {
        Place::Here { term: Term(term) }
    }

    /// A port whose connections begin at one place, and the tenure of the first.
    struct Port {
        gate: Arc<Told>,
        keeper: Option<Gatekeeper>,
        began: Tenure,
    }

    impl Port {
        fn at(place: Place) -> Self {
            let gate = Arc::new(Told(watch::Sender::new(place)));
            let keeper = Gatekeeper::new(Arc::clone(&gate) as Arc<dyn Gate>, &CancellationToken::new());
            let began = keeper.course().tenure;
            Self { gate, keeper: Some(keeper), began }
        }

        async fn turns_to(&mut self, place: Place) {
            self.gate.0.send_replace(place);
            Gatekeeper::follow(&mut self.keeper).await;
            assert_eq!(self.now().place, place);
        }

        /// Lets time pass while nothing changes.
        async fn waits(&mut self, seconds: u64) {
            let end = Instant::now() + Duration::from_secs(seconds);
            while tokio::time::timeout_at(end, Gatekeeper::follow(&mut self.keeper)).await.is_ok() {}
        }

        fn now(&self) -> Course {
            self.keeper.as_ref().unwrap().course()
        }

        /// Why what began at first has ended, if it has.
        fn ended(&self) -> Option<Unserved> {
            let tenure = &self.began;
            assert_eq!(tenure.over.is_cancelled(), tenure.over_or_closed.is_cancelled());
            assert_eq!(tenure.over.is_cancelled(), tenure.why().is_some());
            assert!(!self.now().tenure.over.is_cancelled(), "what begins now may begin");
            tenure.why()
        }
    }

    /// Why what began at the first place has ended after the others, if it has.
    async fn ended(places: &[Place]) -> Option<Unserved> {
        let mut port = Port::at(places[0]);
        for place in &places[1..] {
            port.turns_to(*place).await;
        }
        port.ended()
    }

    #[tokio::test]
    async fn a_leader_that_is_deposed_serves_nobody_on() {
        assert_eq!(ended(&[here(3)]).await, None);
        assert_eq!(ended(&[here(3), Place::Nowhere]).await, Some(Unserved::Deposed));
        assert_eq!(ended(&[here(3), LED_BY_2]).await, Some(Unserved::AnotherLeads));
        assert_eq!(ended(&[here(3), here(5)]).await, Some(Unserved::Deposed), "it was deposed in between");
    }

    #[tokio::test]
    async fn tunnels_end_with_their_leader_and_not_with_a_missed_heartbeat() {
        let another = Some(Unserved::AnotherLeads);
        assert_eq!(ended(&[LED_BY_2, Place::Nowhere]).await, None);
        assert_eq!(ended(&[LED_BY_2, Place::Nowhere, LED_BY_2]).await, None);
        assert_eq!(ended(&[LED_BY_2, Place::Nowhere, Place::Node(NodeId(3))]).await, another);
        assert_eq!(ended(&[LED_BY_2, here(4)]).await, another);
    }

    /// Time passes at once when everybody waits.
    #[tokio::test(start_paused = true)]
    async fn tunnels_end_when_nobody_has_led_for_long() {
        let mut port = Port::at(LED_BY_2);
        port.waits(60).await;
        port.turns_to(Place::Nowhere).await;
        port.waits(4).await;
        assert_eq!(port.ended(), None);
        port.waits(2).await;
        assert_eq!(port.ended(), Some(Unserved::NobodyLeads));

        // What comes later is served by whoever leads then.
        port.turns_to(LED_BY_2).await;
        port.began = port.now().tenure;
        port.waits(60).await;
        assert_eq!(port.ended(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn only_silence_without_interruption_ends_tunnels() {
        let mut port = Port::at(LED_BY_2);
        for _ in 0..5 {
            port.turns_to(Place::Nowhere).await;
            port.waits(4).await;
            port.turns_to(LED_BY_2).await;
        }
        assert_eq!(port.ended(), None);
        // Nor does it count as silence that the leader came back and went before anybody looked.
        port.turns_to(Place::Nowhere).await;
        port.waits(4).await;
        port.gate.0.send_replace(LED_BY_2);
        port.turns_to(Place::Nowhere).await;
        port.waits(4).await;
        assert_eq!(port.ended(), None);
    }

    #[test]
    fn the_words_fit_into_every_protocol() {
        use Unserved::{AnotherLeads, Deposed, LeaderUnreachable, NobodyLeads};
        for why in [NobodyLeads, LeaderUnreachable, AnotherLeads, Deposed] {
            // A text of AMQP has at most 255 bytes, and RabbitMQ's name of the code stands before it.
            let words = why.to_string();
            assert!(words.len() < 200 && words.is_ascii(), "{words}");
        }
    }

    #[tokio::test]
    async fn a_port_that_closes_ends_tunnels_but_deposes_nobody() {
        let gate = Arc::new(Told(watch::Sender::new(LED_BY_2)));
        let port = CancellationToken::new();
        let tenure = Gatekeeper::new(gate, &port).course().tenure;
        port.cancel();
        assert!(tenure.over_or_closed.is_cancelled() && !tenure.over.is_cancelled());
    }
}
