//! What nodes ask each other besides Raft, and are told: JSON, one question and one answer for each connection.

use std::collections::BTreeMap;
use std::time::Duration;

use nexo_admin::{ClusterRefused, Drain, RemoveIf};
use nexo_peer::{PeerStream, read_message, write_message};
use serde::{Deserialize, Serialize};

/// The version of questions and answers. A node that is asked in a later one says so.
const VERSION: u32 = 1;

/// A question, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asked {
    version: u32,
    /// Whether the one who asks passes it on for another. It is not passed on again.
    pub(super) is_passed_on: bool,
    pub(super) request: Request,
}

/// Whose question it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// Of the node that asks. Whoever is asked may ask the leader for it.
    Itself,
    /// Of somebody who has asked that node. It is not passed on again.
    Another,
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// A node wants to be let in. For the leader.
    Join { name: String, address: String, join_id: String },
    /// A node whose data is damaged wants to come back as another. For the leader.
    Rejoin { name: String, address: String, join_id: String, instead_of: u64, cluster: String },
    /// A node is reached somewhere else. For the leader.
    Move { name: String, address: String },
    /// A node is to leave for good. For the leader.
    Remove { name: String, when: RemoveIf },
    /// Another node is to lead. For the leader.
    Transfer { to: Option<String> },
    /// The node that is asked is to lead no more, or may again.
    Drain { wanted: Drain },
    /// How the node is that is asked.
    Status,
}

impl Request {
    /// Whether only the leader can answer it.
    pub(super) const fn is_for_leader(&self) -> bool {
        match self {
            Self::Join { .. }
            | Self::Rejoin { .. }
            | Self::Move { .. }
            | Self::Remove { .. }
            | Self::Transfer { .. } => true,
            Self::Drain { .. } | Self::Status => false,
        }
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// A node is let in: into which cluster, as whom, and where the others are.
    Joined { cluster: String, node: u64, others: BTreeMap<u64, String> },
    /// Nobody is: the node that was asked is in no cluster itself.
    New,
    /// Who leads now.
    Leader(String),
    /// How the node is.
    Status(Box<OwnStatus>),
    /// It is done.
    Done,
    /// It is not.
    Refused(ClusterRefused),
}

/// How a node is, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OwnStatus {
    pub(super) node: u64,
    pub(super) version: String,
    pub(super) is_leading: bool,
    pub(super) is_draining: bool,
    /// What is wrong with it.
    pub(super) ill: Option<String>,
    /// Its disk is full, or its log has failed. Earlier builds do not say so.
    #[serde(default)]
    pub(super) takes_no_writes: bool,
    pub(super) leader: Option<u64>,
    pub(super) term: u64,
    pub(super) commit: u64,
    pub(super) last: u64,
    pub(super) members: Vec<MemberShown>,
}

/// A member of the group, as a node knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemberShown {
    pub(super) node: u64,
    pub(super) is_voter: bool,
    /// The last entry that it has, if a leader tells.
    pub(super) matched: Option<u64>,
    /// It lacks entries and gets none, if a leader tells. Earlier builds do not say so.
    #[serde(default)]
    pub(super) is_stuck: bool,
}

/// Asks over a connection, and waits for the answer.
pub(super) async fn ask(
    mut stream: PeerStream,
    request: &Request,
    asker: Asker,
    patience: Duration,
) -> Result<Answer, String> {
    let is_passed_on = asker == Asker::Another;
    let asked = Asked { version: VERSION, is_passed_on, request: request.clone() };
    let question = serde_json::to_vec(&asked).map_err(|error| error.to_string())?;
    let answered = tokio::time::timeout(patience, async {
        write_message(&mut stream, &question).await?;
        read_message(&mut stream).await
    });
    let bytes = match answered.await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => return Err(format!("the connection failed: {error}")),
        Err(_) => return Err(format!("there is no answer within {} s", patience.as_secs())),
    };
    serde_json::from_slice(&bytes).map_err(|_| "its answer means nothing to this version of Nexo".to_owned())
}

/// Reads a question.
pub(super) fn parse(bytes: &[u8]) -> Result<Asked, ClusterRefused> {
    let refused = |words: String| ClusterRefused::Refused(words);
    let version =
        serde_json::from_slice::<serde_json::Value>(bytes).ok().and_then(|it| it["version"].as_u64());
    match version {
        Some(1..) if version > Some(VERSION.into()) => Err(refused(format!(
            "the question is of version {}, and this node knows versions up to {VERSION}; update it first",
            version.unwrap_or_default()
        ))),
        Some(1..) => serde_json::from_slice(bytes)
            .map_err(|_| refused("the question means nothing to this version of Nexo".to_owned())),
        Some(0) | None => Err(refused("the question has no version".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_reads_back_and_a_later_one_is_refused_by_name() {
        let asked = Asked { version: VERSION, is_passed_on: true, request: Request::Transfer { to: None } };
        assert_eq!(parse(&serde_json::to_vec(&asked).unwrap()), Ok(asked.clone()));
        let later = serde_json::to_vec(&Asked { version: 2, ..asked }).unwrap();
        assert!(parse(&later).unwrap_err().to_string().starts_with("the question is of version 2"));
        for wrong in ["", "{}", r#"{"version":1,"is_passed_on":false,"request":"sing"}"#] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
