//! Peers that begin to say something and do not go on: each port of the real broker lets them go on time.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{PATIENCE, Server};

/// How long a peer was there. An answer that tells it off is read to its end.
fn until_let_go(address: &str, opening: &[u8]) -> Duration {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let began = Instant::now();
    socket.write_all(opening).unwrap();
    let mut answer = [0; 4096];
    loop {
        match socket.read(&mut answer) {
            Ok(0) => return began.elapsed(),
            Ok(_) => {}
            Err(error) => {
                let kind = error.kind();
                assert_eq!(kind, std::io::ErrorKind::ConnectionReset, "{address}: not within {PATIENCE:?}");
                return began.elapsed();
            }
        }
    }
}

#[test]
fn a_peer_that_does_not_go_on_is_let_go_on_every_port() {
    let server = Server::start_with(&["--amqp", "127.0.0.1:0", "--sqs", "127.0.0.1:0"]);
    let sqs = nexo_harness::address_in(&server.ready, "sqs").unwrap().to_owned();
    let head = &b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Never: e"[..];
    let peers: [(&str, String, &[u8], u64); 6] = [
        ("silent AMQP", server.amqp(), b"", 10),
        ("AMQP without a login", server.amqp(), b"AMQP\x00\x00\x09\x01", 10),
        ("silent native", server.grpc.clone(), b"", 10),
        ("half a native opening", server.grpc.clone(), b"PRI * HTTP/2.0\r\n", 10),
        ("half a request to SQS", sqs, head, 30),
        ("half a request to management", server.http.clone(), head, 30),
    ];
    let waiting = peers.map(|(who, address, opening, limit)| {
        let opening = opening.to_vec();
        (who, limit, std::thread::spawn(move || until_let_go(&address, &opening)))
    });
    for (who, limit, peer) in waiting {
        let took = peer.join().unwrap().as_secs_f64();
        let limit = limit as f64;
        // A machine with other work looks at its clocks late.
        assert!((limit - 1.0..limit + 15.0).contains(&took), "{who}: let go after {took:.1} s, not {limit}");
    }
}
