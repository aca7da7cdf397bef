//! What is not passed on to the library: it would end the process, or believe it.

use nexo_types::{LogIndex, NodeId};

use super::{Group, Rejected, Role};
use crate::message::{Body, Message};

impl Group {
    pub(super) fn screen(&self, from: NodeId, message: &Message) -> Result<(), Rejected> {
        if from == self.options.node {
            return Err(Rejected::OwnMessage);
        }
        let last = LogIndex(self.raw.raft.raft_log.last_index());
        match &message.body {
            // A leader tells a follower of commits only as far as the follower has confirmed entries.
            Body::Heartbeat { commit, .. } if message.term >= self.term() && *commit > last => {
                Err(Rejected::LostEntries { claimed: *commit, last })
            }
            Body::Append { after, entries, .. } => {
                let terms = || entries.iter().map(|entry| entry.id.term);
                let rising = terms().zip(terms().skip(1)).all(|(term, next)| term <= next);
                let first = entries.first().is_none_or(|first| first.id.term >= after.term);
                let top = entries.last().is_none_or(|last| last.id.term <= message.term);
                if rising && first && top && after.term <= message.term {
                    Ok(())
                } else {
                    Err(Rejected::BadTerms)
                }
            }
            // Who has led in this term and restarted may have lost entries that only others have synced.
            Body::Appended { last: claimed, .. }
                if message.term == self.term() && self.role() == Role::Leader && *claimed > last =>
            {
                Err(Rejected::Unsent { from, claimed: *claimed, last })
            }
            Body::Install(snapshot) if snapshot.last.term > message.term => Err(Rejected::BadTerms),
            Body::Appended { .. }
            | Body::AppendRefused { .. }
            | Body::Vote { .. }
            | Body::Voted { .. }
            | Body::Heartbeat { .. }
            | Body::HeartbeatHeard { .. }
            | Body::Install(_)
            | Body::TimeoutNow => Ok(()),
        }
    }
}
