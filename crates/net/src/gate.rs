//! Where connections of clients are served: here, or on another node of the cluster. A port asks its [`Gate`] once for each
//! connection. A node by itself has none.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use nexo_types::{NodeId, Term};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::peer_stream::PeerStream;
use crate::tunnel::TunnelHead;

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

/// How long a connection may be served where it is.
#[derive(Clone, Debug)]
pub struct Tenure {
    /// Cancelled when clients are served elsewhere.
    pub over: CancellationToken,
    /// Cancelled then, and when the port closes.
    pub over_or_closed: CancellationToken,
}

impl Tenure {
    fn new(port: &CancellationToken) -> Self {
        Self { over: CancellationToken::new(), over_or_closed: port.child_token() }
    }

    fn end(&self) {
        self.over.cancel();
        self.over_or_closed.cancel();
    }

    /// Resolves when it is over, which it never is on a node by itself.
    pub async fn until_over(tenure: Option<&Self>) {
        match tenure {
            Some(tenure) => tenure.over.cancelled().await,
            None => std::future::pending().await,
        }
    }
}

/// Where a port's connections go, and how long those that begin now may stay.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    pub(crate) place: Place,
    pub(crate) tenure: Tenure,
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
        let course = watch::Sender::new(Course { place, tenure: Tenure::new(port) });
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

    /// Waits for the next change and does what it asks for. May be dropped while it waits.
    pub(crate) async fn follow(keeper: &mut Option<Self>) {
        let Some(keeper) = keeper else { return std::future::pending().await };
        // Whoever told of changes is gone: the process ends.
        if keeper.places.changed().await.is_err() {
            return std::future::pending().await;
        }
        let place = *keeper.places.borrow_and_update();
        keeper.turn_to(place);
    }

    fn turn_to(&mut self, place: Place) {
        let ends = match (self.served_at, place) {
            // A leader that is not heard of for a moment may still lead: tunnels to it stay.
            (Place::Node(_), Place::Nowhere) => false,
            (before, now) => before != now,
        };
        let tenure = self.course.borrow().tenure.clone();
        let next = if ends { Tenure::new(&self.port) } else { tenure.clone() };
        if place != Place::Nowhere || ends {
            self.served_at = place;
        }
        self.course.send_replace(Course { place, tenure: next });
        if ends {
            tenure.end();
        }
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

    /// Whether what began at the first place is still served after the others.
    async fn stays(places: &[Place]) -> bool {
        let gate = Arc::new(Told(watch::Sender::new(places[0])));
        let port = CancellationToken::new();
        let mut keeper = Some(Gatekeeper::new(Arc::clone(&gate) as Arc<dyn Gate>, &port));
        let began = keeper.as_ref().unwrap().course();
        for place in &places[1..] {
            gate.0.send_replace(*place);
            Gatekeeper::follow(&mut keeper).await;
            assert_eq!(keeper.as_ref().unwrap().course().place, *place);
        }
        assert_eq!(began.tenure.over.is_cancelled(), began.tenure.over_or_closed.is_cancelled());
        let now = keeper.as_ref().unwrap().course();
        assert!(!now.tenure.over.is_cancelled(), "what begins now may begin");
        !began.tenure.over.is_cancelled()
    }

    #[tokio::test]
    async fn a_leader_that_is_deposed_serves_nobody_on() {
        let here = |term| Place::Here { term: Term(term) };
        assert!(stays(&[here(3)]).await);
        assert!(!stays(&[here(3), Place::Nowhere]).await);
        assert!(!stays(&[here(3), LED_BY_2]).await);
        assert!(!stays(&[here(3), here(5)]).await, "it was deposed in between");
    }

    #[tokio::test]
    async fn tunnels_end_with_their_leader_and_not_with_a_missed_heartbeat() {
        assert!(stays(&[LED_BY_2, Place::Nowhere]).await);
        assert!(stays(&[LED_BY_2, Place::Nowhere, LED_BY_2]).await);
        assert!(!stays(&[LED_BY_2, Place::Nowhere, Place::Node(NodeId(3))]).await);
        assert!(!stays(&[LED_BY_2, Place::Here { term: Term(4) }]).await);
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
