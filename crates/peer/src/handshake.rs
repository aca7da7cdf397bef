//! A hello over a connection, from either side. How long it may take is for the caller to say.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nexo_types::{NodeId, Timestamp};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use crate::error::HelloError;
use crate::hello::{
    Answer, Challenge, HEAD_BYTES, Hello, Versions, Welcome, check_beginning, decode_proof, encode_proof,
    encode_refused, rest_len,
};
use crate::identity::PeerIdentity;
use crate::proof::{Side, holds, nonce, prove};
use crate::purpose::Purpose;

/// What one learns of a node by connecting to it.
#[derive(Clone, Debug)]
pub(crate) struct Met {
    pub(crate) name: String,
    /// From one's question to its answer.
    pub(crate) round_trip: Duration,
    /// How much its clock is ahead of this node's.
    pub(crate) skew_ms: i64,
    /// The version that both speak from now on.
    pub(crate) version: u16,
}

/// Who has connected, and what for.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// None if it is in no cluster yet.
    pub(crate) node: Option<NodeId>,
    pub(crate) name: String,
    pub(crate) purpose: Purpose,
}

/// The time of this machine's clock, as this node takes it.
pub(crate) fn wall_clock(identity: Option<&PeerIdentity>) -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    Timestamp(time.saturating_add_signed(identity.map_or(0, |identity| identity.clock_offset_ms)))
}

/// How much another clock is ahead, if it was read in the middle of a round trip that began at `sent`.
pub(crate) fn skew_ms(sent: Timestamp, round_trip: Duration, theirs: Timestamp) -> i64 {
    let half = u64::try_from(round_trip.as_millis() / 2).unwrap_or(u64::MAX);
    let difference = i128::from(theirs.0) - i128::from(sent.0) - i128::from(half);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

/// Says hello to a node that was reached. `identity` is none before one has joined, `expected` if it is not known who is there.
pub(crate) async fn introduce<S>(
    stream: &mut S,
    identity: Option<&PeerIdentity>,
    secret: &[u8],
    purpose: Purpose,
    expected: Option<NodeId>,
) -> Result<Met, HelloError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let sent = (wall_clock(identity), Instant::now());
    let versions = identity.map_or(Versions::OWN, |identity| identity.versions);
    let hello = Hello {
        versions,
        member: identity.map(|identity| (identity.cluster, identity.node)),
        time: sent.0,
        nonce: nonce(),
        name: identity.map(|identity| identity.name.clone()).unwrap_or_default(),
        purpose,
    };
    let hello = hello.encode();
    say(stream, &hello).await?;
    let challenge_bytes = listen(stream).await?;
    let challenge = match Challenge::decode(&challenge_bytes)? {
        Answer::Yes(challenge) => challenge,
        Answer::Refused(reason) => return Err(HelloError::Refused(reason)),
    };
    let round_trip = sent.1.elapsed();
    // It has chosen from those that it was offered.
    if !(versions.min..=versions.max).contains(&challenge.version) {
        return Err(HelloError::Malformed("it chose a version that was not offered"));
    }
    let proof = prove(secret, Side::Connecting, &[&hello, &challenge_bytes]);
    say(stream, &encode_proof(&proof)).await?;
    let welcome = match Welcome::decode(&listen(stream).await?)? {
        Answer::Yes(welcome) => welcome,
        Answer::Refused(reason) => return Err(HelloError::Refused(reason)),
    };
    let said = welcome_said(&welcome);
    if !holds(&welcome.proof, secret, Side::Other, &[&hello, &challenge_bytes, &said]) {
        return Err(HelloError::Secret);
    }
    if let Some(identity) = identity.filter(|identity| identity.cluster != welcome.cluster) {
        return Err(HelloError::Cluster { connecting: identity.cluster, other: welcome.cluster });
    }
    if let Some(expected) = expected.filter(|expected| *expected != welcome.node) {
        return Err(HelloError::OtherNode { expected, found: welcome.node });
    }
    let skew_ms = skew_ms(sent.0, round_trip, challenge.time);
    Ok(Met { name: welcome.name, round_trip, skew_ms, version: challenge.version })
}

/// Hears the hello of a node that has connected. It is told why, if it is refused.
pub(crate) async fn receive<S>(
    stream: &mut S,
    identity: &PeerIdentity,
    secret: &[u8],
) -> Result<Caller, HelloError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let received = hear(stream, identity, secret).await;
    if let Some(reason) = received.as_ref().err().and_then(HelloError::to_tell) {
        // It may be gone already.
        let _ = say(stream, &encode_refused(&reason)).await;
        let _ = stream.shutdown().await;
    }
    received
}

async fn hear<S>(stream: &mut S, identity: &PeerIdentity, secret: &[u8]) -> Result<Caller, HelloError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let hello_bytes = listen_whole(stream).await?;
    let hello = Hello::decode(&hello_bytes[HEAD_BYTES..], identity.versions)?;
    let version = hello
        .versions
        .common(identity.versions)
        .ok_or(HelloError::Version { connecting: hello.versions, other: identity.versions })?;
    let time = wall_clock(Some(identity));
    let challenge = Challenge { version, time, nonce: nonce() }.encode();
    say(stream, &challenge).await?;
    let proof = decode_proof(&listen(stream).await?)?;
    let challenge = &challenge[HEAD_BYTES..];
    if !holds(&proof, secret, Side::Connecting, &[&hello_bytes, challenge]) {
        return Err(HelloError::Secret);
    }
    // Only whoever knows the secret is told anything of this cluster.
    match hello.member {
        Some((cluster, _)) if cluster != identity.cluster => {
            return Err(HelloError::Cluster { connecting: cluster, other: identity.cluster });
        }
        Some((_, node)) if node == identity.node && hello.purpose != Purpose::Request => {
            return Err(HelloError::SameNode(node));
        }
        None if hello.purpose != Purpose::Request => return Err(HelloError::NotAMember),
        Some(_) | None => {}
    }
    let mut welcome = Welcome {
        cluster: identity.cluster,
        node: identity.node,
        name: identity.name.clone(),
        proof: Default::default(),
    };
    let said = welcome_said(&welcome);
    welcome.proof = prove(secret, Side::Other, &[&hello_bytes, challenge, &said]);
    say(stream, &welcome.encode()).await?;
    let node = hello.member.map(|(_, node)| node);
    Ok(Caller { node, name: hello.name, purpose: hello.purpose })
}

/// What a welcome says, but for its proof.
fn welcome_said(welcome: &Welcome) -> Vec<u8> {
    Welcome { proof: Default::default(), ..welcome.clone() }.encode()
}

async fn say<S: AsyncWrite + Unpin>(stream: &mut S, message: &[u8]) -> Result<(), HelloError> {
    stream.write_all(message).await?;
    Ok(stream.flush().await?)
}

/// The next message, without its head. Nothing behind it is read.
async fn listen<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>, HelloError> {
    let mut message = listen_whole(stream).await?;
    message.drain(..HEAD_BYTES);
    Ok(message)
}

async fn listen_whole<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>, HelloError> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head[..2]).await?;
    check_beginning([head[0], head[1]])?;
    stream.read_exact(&mut head[2..]).await?;
    let len = rest_len(&head)?;
    let mut message = head.to_vec();
    message.resize(HEAD_BYTES + len, 0);
    stream.read_exact(&mut message[HEAD_BYTES..]).await?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_ahead_is_told_from_a_slow_network() {
        let skew = |theirs| skew_ms(Timestamp(10_000), Duration::from_millis(40), Timestamp(theirs));
        assert_eq!((skew(10_020), skew(10_520), skew(9_520)), (0, 500, -500));
        assert_eq!(skew(u64::MAX), i64::MAX);
    }
}
