//! The bytes that nodes say before they know each other. Pure: bytes in, values out.
//!
//! ```text
//! the one that connects            the other
//! Hello (versions, who, nonce) ──►
//!                              ◄── Challenge (version, nonce)
//! Proof                        ──►
//!                              ◄── Welcome (who, proof)
//! ```
//!
//! Instead of its part the other may say `Refused`, with the reason. Who connects proves first that it knows the secret: it
//! has chosen whom to reach, while anybody may reach the other. A message is a magic word, a length, a kind and fields. Fields
//! are only ever added at the end, and who does not know them leaves them; so a hello of any version can be read up to its
//! versions, and refused by name.

use std::fmt;

use nexo_types::limits::PEER_HELLO_BYTES_MAX;
use nexo_types::{NodeId, Timestamp};

use crate::error::HelloError;
use crate::identity::ClusterId;
use crate::proof::{NONCE_BYTES, Nonce, PROOF_BYTES, Proof};
use crate::purpose::Purpose;

/// The first version of the protocol between nodes that this build speaks.
pub const VERSION_MIN: u16 = 1;
/// And the last.
pub const VERSION_MAX: u16 = 1;

/// What every message begins with.
pub(crate) const MAGIC: [u8; 6] = *b"NEXOPR";
/// The magic word and the length of the rest.
pub(crate) const HEAD_BYTES: usize = MAGIC.len() + 2;
/// How TLS begins: a record of a handshake, or of an alert.
const TLS_RECORDS: [u8; 2] = [0x16, 0x15];

const HELLO: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;
const WELCOME: u8 = 4;
const REFUSED: u8 = 5;

/// Longest name of a node that is sent.
const NAME_BYTES_MAX: usize = 255;
/// Longest reason that is sent.
const REASON_BYTES_MAX: usize = 1024;

/// Versions that a node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The first.
    pub min: u16,
    /// The last.
    pub max: u16,
}

impl Versions {
    /// Those of this build.
    pub const OWN: Self = Self { min: VERSION_MIN, max: VERSION_MAX };

    /// The highest that both speak.
    pub(crate) fn common(self, other: Self) -> Option<u16> {
        let highest = self.max.min(other.max);
        (highest >= self.min.max(other.min)).then_some(highest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            write!(f, "version {}", self.min)
        } else {
            write!(f, "versions {} to {}", self.min, self.max)
        }
    }
}

/// How the one that connects begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) versions: Versions,
    /// Which member of which cluster it is; none before it has joined.
    pub(crate) member: Option<(ClusterId, NodeId)>,
    pub(crate) time: Timestamp,
    pub(crate) nonce: Nonce,
    pub(crate) name: String,
    pub(crate) purpose: Purpose,
}

/// What the other asks back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub(crate) version: u16,
    pub(crate) time: Timestamp,
    pub(crate) nonce: Nonce,
}

/// Who the other is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
    pub(crate) name: String,
    pub(crate) proof: Proof,
}

/// What the other answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer<T> {
    Yes(T),
    Refused(String),
}

/// Looks at how a message begins. TLS that does not understand says no more than seven bytes, fewer than a head has.
pub(crate) fn check_beginning(bytes: [u8; 2]) -> Result<(), HelloError> {
    if TLS_RECORDS.contains(&bytes[0]) && bytes[1] == 3 {
        return Err(HelloError::OneSpeaksTls);
    }
    if bytes != MAGIC[..2] {
        return Err(HelloError::NotANode);
    }
    Ok(())
}

/// How long the rest of a message is, by its head.
pub(crate) fn rest_len(head: &[u8; HEAD_BYTES]) -> Result<usize, HelloError> {
    let (magic, len) = head.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(HelloError::NotANode);
    }
    let len = usize::from(u16::from_be_bytes([len[0], len[1]]));
    if len > PEER_HELLO_BYTES_MAX {
        return Err(HelloError::Malformed("it is too long"));
    }
    Ok(len)
}

fn message(kind: u8, put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&[0, 0, kind]);
    put(&mut out);
    let len = u16::try_from(out.len() - HEAD_BYTES).expect("all fields together are short");
    out[MAGIC.len()..HEAD_BYTES].copy_from_slice(&len.to_be_bytes());
    out
}

fn put_text(out: &mut Vec<u8>, text: &str, bytes_max: usize) {
    let end = (0..=text.len().min(bytes_max)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let len = u16::try_from(end).expect("texts are shorter");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&text.as_bytes()[..end]);
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        message(HELLO, |out| {
            out.extend_from_slice(&self.versions.min.to_be_bytes());
            out.extend_from_slice(&self.versions.max.to_be_bytes());
            // No cluster is all zeros, and no node is 0.
            let (cluster, node) =
                self.member.map_or(([0; ClusterId::BYTES], 0), |(cluster, node)| (cluster.0, node.0));
            out.extend_from_slice(&cluster);
            out.extend_from_slice(&node.to_be_bytes());
            out.extend_from_slice(&self.time.0.to_be_bytes());
            out.extend_from_slice(&self.nonce);
            put_text(out, &self.name, NAME_BYTES_MAX);
            self.purpose.put(out);
        })
    }

    /// Reads what came behind the head of a message. Nothing behind the versions is looked at if none is common with `own`.
    pub(crate) fn decode(rest: &[u8], own: Versions) -> Result<Self, HelloError> {
        let mut input = Input::of_kind(HELLO, rest)?;
        let versions = Versions { min: input.short()?, max: input.short()? };
        if versions.common(own).is_none() {
            return Err(HelloError::Version { connecting: versions, other: own });
        }
        let (cluster, node) = (ClusterId(input.array()?), NodeId(input.long()?));
        let member = match (cluster.0 == [0; ClusterId::BYTES], node.0 == 0) {
            (true, true) => None,
            (false, false) => Some((cluster, node)),
            (true, false) | (false, true) => return Err(HelloError::Malformed("half a member")),
        };
        let (time, nonce) = (Timestamp(input.long()?), input.array::<NONCE_BYTES>()?);
        let name = input.text(NAME_BYTES_MAX)?;
        Ok(Self { versions, member, time, nonce, name, purpose: Purpose::take(&mut input)? })
    }
}

impl Challenge {
    pub(crate) fn encode(&self) -> Vec<u8> {
        message(CHALLENGE, |out| {
            out.extend_from_slice(&self.version.to_be_bytes());
            out.extend_from_slice(&self.time.0.to_be_bytes());
            out.extend_from_slice(&self.nonce);
        })
    }

    pub(crate) fn decode(rest: &[u8]) -> Result<Answer<Self>, HelloError> {
        if let Some(reason) = refused(rest)? {
            return Ok(Answer::Refused(reason));
        }
        let mut input = Input::of_kind(CHALLENGE, rest)?;
        let version = input.short()?;
        let (time, nonce) = (Timestamp(input.long()?), input.array()?);
        Ok(Answer::Yes(Self { version, time, nonce }))
    }
}

pub(crate) fn encode_proof(proof: &Proof) -> Vec<u8> {
    message(PROOF, |out| out.extend_from_slice(proof))
}

pub(crate) fn decode_proof(rest: &[u8]) -> Result<Proof, HelloError> {
    Input::of_kind(PROOF, rest)?.array::<PROOF_BYTES>()
}

impl Welcome {
    pub(crate) fn encode(&self) -> Vec<u8> {
        message(WELCOME, |out| {
            out.extend_from_slice(&self.proof);
            out.extend_from_slice(&self.cluster.0);
            out.extend_from_slice(&self.node.0.to_be_bytes());
            put_text(out, &self.name, NAME_BYTES_MAX);
        })
    }

    pub(crate) fn decode(rest: &[u8]) -> Result<Answer<Self>, HelloError> {
        if let Some(reason) = refused(rest)? {
            return Ok(Answer::Refused(reason));
        }
        let mut input = Input::of_kind(WELCOME, rest)?;
        let (proof, cluster, node) = (input.array()?, ClusterId(input.array()?), NodeId(input.long()?));
        Ok(Answer::Yes(Self { proof, cluster, node, name: input.text(NAME_BYTES_MAX)? }))
    }
}

pub(crate) fn encode_refused(reason: &str) -> Vec<u8> {
    message(REFUSED, |out| put_text(out, reason, REASON_BYTES_MAX))
}

/// The reason, if it is a refusal. It is shown to people, so nothing is left in it that a terminal would act on.
fn refused(rest: &[u8]) -> Result<Option<String>, HelloError> {
    if rest.first() != Some(&REFUSED) {
        return Ok(None);
    }
    let reason = Input::of_kind(REFUSED, rest)?.text(REASON_BYTES_MAX)?;
    Ok(Some(reason.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()))
}

/// Bytes that are taken from the front.
pub(crate) struct Input<'b>(&'b [u8]);

impl<'b> Input<'b> {
    fn of_kind(kind: u8, rest: &'b [u8]) -> Result<Self, HelloError> {
        match rest.split_first() {
            Some((found, fields)) if *found == kind => Ok(Self(fields)),
            Some(_) => Err(HelloError::Malformed("it is out of turn")),
            None => Err(HelloError::Malformed("it is empty")),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], HelloError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(HelloError::Malformed("it ends too soon"))?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, HelloError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn short(&mut self) -> Result<u16, HelloError> {
        self.array().map(u16::from_be_bytes)
    }

    fn long(&mut self) -> Result<u64, HelloError> {
        self.array().map(u64::from_be_bytes)
    }

    fn text(&mut self, bytes_max: usize) -> Result<String, HelloError> {
        let len = usize::from(self.short()?);
        if len > bytes_max {
            return Err(HelloError::Malformed("a text is too long"));
        }
        let (taken, rest) = self.0.split_at_checked(len).ok_or(HelloError::Malformed("it ends too soon"))?;
        self.0 = rest;
        String::from_utf8(taken.to_vec()).map_err(|_| HelloError::Malformed("a text is not UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use nexo_net::{TunnelHead, TunnelTls};
    use nexo_types::Protocol;
    use proptest::prelude::*;

    use super::*;

    fn hello(purpose: Purpose) -> Hello {
        Hello {
            versions: Versions::OWN,
            member: Some((ClusterId([7; 16]), NodeId(2))),
            time: Timestamp(1_234_567),
            nonce: [9; NONCE_BYTES],
            name: "zweite".to_owned(),
            purpose,
        }
    }

    /// Without the head, whose length is looked at.
    fn rest(message: &[u8]) -> &[u8] {
        let (head, rest) = message.split_first_chunk().unwrap();
        assert_eq!(rest_len(head).unwrap(), rest.len());
        rest
    }

    #[test]
    fn what_was_said_is_understood() {
        let tunnel = |client: &str, reached: &str, protocol, tls| {
            let (client, reached): (SocketAddr, SocketAddr) =
                (client.parse().unwrap(), reached.parse().unwrap());
            Purpose::Tunnel(TunnelHead { protocol, tls, client, reached })
        };
        for purpose in [
            Purpose::Raft,
            Purpose::Snapshot,
            Purpose::Request,
            tunnel("192.0.2.1:50000", "10.0.0.1:5671", Protocol::Amqp, TunnelTls::Through),
            tunnel("[2001:db8::1]:1", "[::1]:9324", Protocol::Sqs, TunnelTls::Off),
            tunnel("127.0.0.1:1", "127.0.0.1:2", Protocol::Grpc, TunnelTls::Off),
            tunnel("127.0.0.1:1", "127.0.0.1:2", Protocol::Http, TunnelTls::Before),
        ] {
            let said = hello(purpose);
            assert_eq!(Hello::decode(rest(&said.encode()), Versions::OWN).unwrap(), said);
            let stranger = Hello { member: None, ..said };
            assert_eq!(Hello::decode(rest(&stranger.encode()), Versions::OWN).unwrap(), stranger);
        }
        let challenge = Challenge { version: 1, time: Timestamp(5), nonce: [3; NONCE_BYTES] };
        assert_eq!(Challenge::decode(rest(&challenge.encode())).unwrap(), Answer::Yes(challenge));
        let welcome = Welcome {
            cluster: ClusterId([1; 16]),
            node: NodeId(3),
            name: "c".into(),
            proof: [4; PROOF_BYTES],
        };
        assert_eq!(Welcome::decode(rest(&welcome.encode())).unwrap(), Answer::Yes(welcome));
        assert_eq!(decode_proof(rest(&encode_proof(&[8; PROOF_BYTES]))).unwrap(), [8; PROOF_BYTES]);
    }

    #[test]
    fn a_refusal_is_heard_wherever_it_comes_and_moves_no_cursor() {
        let refusal = encode_refused("no\x1b[2J");
        assert_eq!(Challenge::decode(rest(&refusal)).unwrap(), Answer::Refused("no [2J".into()));
        assert_eq!(Welcome::decode(rest(&refusal)).unwrap(), Answer::Refused("no [2J".into()));
        let long = encode_refused(&"ä".repeat(3000));
        assert!(matches!(Welcome::decode(rest(&long)).unwrap(), Answer::Refused(text) if text.len() == 1024));
    }

    /// The bytes of version 1, for all time.
    #[test]
    fn version_1_is_as_it_was() {
        let mut expected = b"NEXOPR\x00\x4e\x01\x00\x01\x00\x01".to_vec();
        expected.extend([7; 16]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0x12, 0xd6, 0x87]);
        expected.extend([9; 32]);
        expected.extend(b"\x00\x06zweite\x01");
        assert_eq!(hello(Purpose::Raft).encode(), expected);
        assert_eq!(Hello::decode(rest(&expected), Versions::OWN).unwrap(), hello(Purpose::Raft));
    }

    #[test]
    fn a_later_release_is_understood_as_far_as_versions_are_common() {
        let mut later = hello(Purpose::Request);
        later.versions = Versions { min: 1, max: 9 };
        let mut bytes = later.encode();
        // A field that this release does not know.
        bytes.extend_from_slice(b"more");
        assert_eq!(Hello::decode(&bytes[HEAD_BYTES..], Versions::OWN).unwrap(), later);
        later.versions = Versions { min: 2, max: 9 };
        let error = Hello::decode(&later.encode()[HEAD_BYTES..], Versions::OWN).unwrap_err().to_string();
        assert!(error.starts_with("the node that connects speaks versions 2 to 9 of the"), "{error}");
        assert!(error.contains("and the other version 1;"), "{error}");
    }

    #[test]
    fn the_highest_common_version_is_spoken() {
        let common = |a: (u16, u16), b: (u16, u16)| {
            Versions { min: a.0, max: a.1 }.common(Versions { min: b.0, max: b.1 })
        };
        assert_eq!(common((1, 3), (2, 5)), Some(3));
        assert_eq!(common((2, 5), (1, 3)), Some(3));
        assert_eq!(common((1, 1), (2, 5)), None);
        assert_eq!(common((4, 3), (1, 9)), None, "no sound node says that");
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..7) {
            let mut rest = vec![kind];
            rest.extend(&bytes);
            let _ = (Hello::decode(&rest, Versions::OWN), Challenge::decode(&rest), Welcome::decode(&rest), decode_proof(&rest));
            if let Some(head) = bytes.first_chunk() {
                let _ = rest_len(head);
            }
        }

        #[test]
        fn a_hello_that_is_cut_off_is_none(cut in 0usize..60) {
            let whole = hello(Purpose::Snapshot).encode();
            let rest = &whole[HEAD_BYTES..];
            prop_assert!(Hello::decode(&rest[..cut.min(rest.len() - 1)], Versions::OWN).is_err());
        }
    }
}
