//! The network between the nodes. Each node is reached by the others through a port of this program, which learns from the hello
//! who connects. While the way from one node to another is cut, what the one says is held back, the end of a connection too;
//! when the way is open again it arrives, as it does over TCP. Ways are cut in each direction by itself.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use nexo_harness::free_addresses;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::nodes::NODES;

/// What is carried at once.
const CHUNK_BYTES: usize = 64 << 10;
/// A connection that begins with no hello for this long is let go.
const HELLO_MAX: Duration = Duration::from_secs(10);

/// Of a hello: the magic word, the length of the rest, then its kind, two versions, the cluster, and the node that connects.
const HEAD_BYTES: usize = 8;
const NODE_AT: usize = HEAD_BYTES + 1 + 4 + 16;
const NODE_END: usize = NODE_AT + 8;

/// How one way is, from a node to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) is_cut: bool,
    /// How long each piece takes.
    pub(super) delay: Duration,
}

/// All ways: from the first to the second.
type Ways = [[Way; NODES]; NODES];

/// The network.
#[derive(Debug)]
pub(super) struct Wires {
    /// Where each node is reached by the others.
    fronts: [SocketAddr; NODES],
    /// Where each node listens.
    nodes: [SocketAddr; NODES],
    ways: watch::Sender<Ways>,
}

impl Wires {
    /// Begins to carry connections.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let nodes = free_addresses::<NODES>()?;
        let ways = watch::Sender::new(Ways::default());
        let mut fronts = nodes;
        for (number, front) in fronts.iter_mut().enumerate() {
            let listener =
                TcpListener::bind("127.0.0.1:0").await.context("no port for the network of nodes")?;
            *front = listener.local_addr()?;
            tokio::spawn(take_connections(listener, nodes[number], number, ways.subscribe()));
        }
        Ok(Self { fronts, nodes, ways })
    }

    /// Where the others reach a node.
    pub(super) const fn front(&self, number: usize) -> SocketAddr {
        self.fronts[number]
    }

    /// Where a node listens.
    pub(super) const fn node(&self, number: usize) -> SocketAddr {
        self.nodes[number]
    }

    /// Changes all ways from a node to others.
    pub(super) fn set_from(&self, number: usize, way: Way) {
        self.ways.send_modify(|ways| ways[number] = [way; NODES]);
    }

    /// Changes all ways from others to a node.
    pub(super) fn set_to(&self, number: usize, way: Way) {
        self.ways.send_modify(|ways| ways.iter_mut().for_each(|from| from[number] = way));
    }

    /// All ways are open and quick.
    pub(super) fn heal(&self) {
        self.ways.send_replace(Ways::default());
    }
}

async fn take_connections(
    listener: TcpListener,
    node: SocketAddr,
    number: usize,
    ways: watch::Receiver<Ways>,
) {
    loop {
        match listener.accept().await {
            Ok((caller, _)) => drop(tokio::spawn(carry(caller, node, number, ways.clone()))),
            // Too many are open at once, perhaps.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Carries one connection to its end.
async fn carry(mut caller: TcpStream, node: SocketAddr, to: usize, ways: watch::Receiver<Ways>) {
    let Ok(Ok((hello, from))) = timeout(HELLO_MAX, hear(&mut caller)).await else { return };
    let Ok(called) = TcpStream::connect(node).await else { return };
    if caller.set_nodelay(true).is_err() || called.set_nodelay(true).is_err() {
        return;
    }
    let ((from_caller, to_caller), (from_called, to_called)) = (caller.into_split(), called.into_split());
    let there = pump(from_caller, to_called, hello, Direction { from, to: Some(to), ways: ways.clone() });
    let back = pump(from_called, to_caller, Vec::new(), Direction { from: Some(to), to: from, ways });
    tokio::join!(there, back);
}

/// Reads as much of a hello as says who connects. Nobody, if it is in no cluster yet.
async fn hear(caller: &mut TcpStream) -> std::io::Result<(Vec<u8>, Option<usize>)> {
    let mut hello = vec![0; NODE_END];
    caller.read_exact(&mut hello).await?;
    let from = caller_of(&hello);
    Ok((hello, from))
}

/// The number of the node that a hello is from. Nodes are counted from one, in the order in which they joined.
fn caller_of(hello: &[u8]) -> Option<usize> {
    let node = hello.get(NODE_AT..NODE_END)?.try_into().ok().map(u64::from_be_bytes)?;
    usize::try_from(node).ok()?.checked_sub(1).filter(|number| *number < NODES)
}

/// From whom to whom. Whoever is in no cluster yet is never held back.
struct Direction {
    from: Option<usize>,
    to: Option<usize>,
    ways: watch::Receiver<Ways>,
}

impl Direction {
    /// Waits until something gets through.
    async fn passes(&mut self) {
        let (Some(from), Some(to)) = (self.from, self.to) else { return };
        // With the network gone, so is the run.
        let Ok(way) = self.ways.wait_for(|ways| !ways[from][to].is_cut).await.map(|ways| ways[from][to])
        else {
            return;
        };
        if !way.delay.is_zero() {
            sleep(way.delay).await;
        }
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, first: Vec<u8>, mut direction: Direction) {
    let mut chunk = first;
    loop {
        if !chunk.is_empty() {
            direction.passes().await;
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
        chunk.clear();
        chunk.reserve(CHUNK_BYTES);
        match from.read_buf(&mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    // That it is over is told as late as anything else.
    direction.passes().await;
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How node 2 begins to speak to another.
    fn hello_of_second() -> Vec<u8> {
        let mut hello = vec![7; NODE_END];
        hello[NODE_AT..].copy_from_slice(&2_u64.to_be_bytes());
        hello
    }

    async fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        stream.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    #[test]
    fn who_connects_is_known_by_the_hello() {
        assert_eq!(caller_of(&hello_of_second()), Some(1));
        let mut stranger = hello_of_second();
        stranger[NODE_AT..].fill(0);
        assert_eq!(caller_of(&stranger), None);
        stranger[NODE_AT..].copy_from_slice(&9_u64.to_be_bytes());
        assert_eq!((caller_of(&stranger), caller_of(&[])), (None, None));
    }

    #[tokio::test]
    async fn what_a_cut_holds_back_arrives_when_it_is_healed() {
        let wires = Wires::start().await.unwrap();
        let listener = TcpListener::bind(wires.node(0)).await.unwrap();
        let mut second = TcpStream::connect(wires.front(0)).await.unwrap();
        second.write_all(&hello_of_second()).await.unwrap();
        let (mut first, _) = listener.accept().await.unwrap();
        assert_eq!(read(&mut first, NODE_END).await, hello_of_second());

        wires.set_to(0, Way { is_cut: true, delay: Duration::ZERO });
        second.write_all(b"held back").await.unwrap();
        first.write_all(b"heard").await.unwrap();
        assert_eq!(read(&mut second, 5).await, b"heard", "the other direction is open");
        let held = first.try_read(&mut [0; 9]).unwrap_err();
        assert_eq!(held.kind(), std::io::ErrorKind::WouldBlock);

        wires.heal();
        assert_eq!(read(&mut first, 9).await, b"held back");
        wires.set_from(0, Way { is_cut: true, delay: Duration::ZERO });
        drop(first);
        second.write_all(b"more").await.unwrap();
        wires.heal();
        assert_eq!(second.read(&mut [0; 1]).await.unwrap_or(0), 0, "its end is told as well");
    }
}
