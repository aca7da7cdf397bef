//! Peers that begin to say something and do not go on: each port of the real broker, plain or with TLS, lets them go on time.
#![allow(clippy::unwrap_used)]

#[path = "common/certificates.rs"]
mod certificates;
mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use certificates::{Authority, tls_options, tunnel};
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

/// Addresses of the ports on this machine.
const PORTS: [&str; 12] =
    ["--amqp", ANY, "--sqs", ANY, "--amqps", ANY, "--grpc-tls", ANY, "--sqs-tls", ANY, "--https", ANY];
const ANY: &str = "127.0.0.1:0";

#[test]
fn a_peer_that_does_not_go_on_is_let_go_on_every_port() {
    let authority = Authority::new();
    let tls = tls_options(&authority.server("server"));
    let tls = tls.iter().map(String::as_str);
    let server = Server::start_with(&tls.chain(PORTS).collect::<Vec<_>>());
    let at = |name: &str| nexo_harness::address_in(&server.ready, name).unwrap().to_owned();
    // Behind such an address the handshake has been made. They last as long as this.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let behind = |name: &str| runtime.block_on(tunnel(&at(name), authority.ca(), None)).to_string();
    let head = &b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Never: e"[..];
    let (header, opening) = (&b"AMQP\x00\x00\x09\x01"[..], &b"PRI * HTTP/2.0\r\n"[..]);
    let peers: [(&str, String, &[u8], u64); 16] = [
        ("silent AMQP", at("amqp"), b"", 10),
        ("AMQP without a login", at("amqp"), header, 10),
        ("silent native", at("grpc"), b"", 10),
        ("half a native opening", at("grpc"), opening, 10),
        ("half a request to SQS", at("sqs"), head, 30),
        ("half a request to management", at("http"), head, 30),
        ("AMQP before the handshake", at("amqps"), b"", 10),
        ("native before the handshake", at("grpc-tls"), b"", 10),
        ("SQS before the handshake", at("sqs-tls"), b"", 10),
        ("management before the handshake", at("https"), b"", 10),
        ("half a handshake", at("amqps"), &[22, 3, 1], 10),
        ("half an opening of AMQP over TLS", behind("amqps"), &header[..5], 10),
        ("AMQP over TLS without a login", behind("amqps"), header, 10),
        ("half a native opening over TLS", behind("grpc-tls"), opening, 10),
        ("half a request to SQS over TLS", behind("sqs-tls"), head, 30),
        ("half a request to management over TLS", behind("https"), head, 30),
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
