//! What a connection is for, and the bytes that say so.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nexo_net::{TunnelHead, TunnelTls};
use nexo_types::Protocol;

use crate::error::HelloError;
use crate::hello::Input;

/// What a connection between nodes is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Envelopes of Raft, from the node that connects. [`Peers`](crate::Peers) opens these by itself.
    Raft,
    /// A whole state, for a node that is far behind.
    Snapshot,
    /// The connection of a client.
    Tunnel(TunnelHead),
    /// A question and its answer.
    Request,
}

const RAFT: u8 = 1;
const SNAPSHOT: u8 = 2;
const TUNNEL: u8 = 3;
const REQUEST: u8 = 4;

const AMQP: u8 = 1;
const GRPC: u8 = 2;
const SQS: u8 = 3;
const HTTP: u8 = 4;

const TLS_OFF: u8 = 0;
const TLS_THROUGH: u8 = 1;
const TLS_BEFORE: u8 = 2;

const IPV4: u8 = 4;
const IPV6: u8 = 6;

impl Purpose {
    /// Its word in the log.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Raft => "envelopes",
            Self::Snapshot => "a snapshot",
            Self::Tunnel(_) => "a tunnel",
            Self::Request => "a question",
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Raft => out.push(RAFT),
            Self::Snapshot => out.push(SNAPSHOT),
            Self::Request => out.push(REQUEST),
            Self::Tunnel(head) => {
                out.push(TUNNEL);
                out.push(match head.protocol {
                    Protocol::Amqp => AMQP,
                    Protocol::Grpc => GRPC,
                    Protocol::Sqs => SQS,
                    Protocol::Http => HTTP,
                });
                out.push(match head.tls {
                    TunnelTls::Off => TLS_OFF,
                    TunnelTls::Through => TLS_THROUGH,
                    TunnelTls::Before => TLS_BEFORE,
                });
                put_address(out, head.client);
                put_address(out, head.reached);
            }
        }
    }

    pub(crate) fn take(input: &mut Input<'_>) -> Result<Self, HelloError> {
        match input.byte()? {
            RAFT => Ok(Self::Raft),
            SNAPSHOT => Ok(Self::Snapshot),
            REQUEST => Ok(Self::Request),
            TUNNEL => {
                let protocol = match input.byte()? {
                    AMQP => Protocol::Amqp,
                    GRPC => Protocol::Grpc,
                    SQS => Protocol::Sqs,
                    HTTP => Protocol::Http,
                    _ => return Err(HelloError::Malformed("no such port")),
                };
                let tls = match input.byte()? {
                    TLS_OFF => TunnelTls::Off,
                    TLS_THROUGH => TunnelTls::Through,
                    TLS_BEFORE => TunnelTls::Before,
                    _ => return Err(HelloError::Malformed("neither plain nor TLS")),
                };
                let (client, reached) = (take_address(input)?, take_address(input)?);
                Ok(Self::Tunnel(TunnelHead { protocol, tls, client, reached }))
            }
            unknown => Err(HelloError::Purpose(unknown)),
        }
    }
}

/// The zone of an IPv6 address means something on its own machine only, and is left out.
fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(IPV4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(IPV6);
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&address.port().to_be_bytes());
}

fn take_address(input: &mut Input<'_>) -> Result<SocketAddr, HelloError> {
    let ip: IpAddr = match input.byte()? {
        IPV4 => Ipv4Addr::from(input.array::<4>()?).into(),
        IPV6 => Ipv6Addr::from(input.array::<16>()?).into(),
        _ => return Err(HelloError::Malformed("no such kind of address")),
    };
    Ok(SocketAddr::new(ip, u16::from_be_bytes(input.array()?)))
}
