//! What a start finds of the group in the log of this node.

use std::ops::ControlFlow;

use bytes::Bytes;
use nexo_cluster::store::{GroupRecord, Recovered};
use nexo_cluster::{Change, EntryId, GroupEntry, HardState, Membership, Payload};
use nexo_log::{Damage, Frame, Log, encode_entries};
use nexo_types::{LogIndex, Position};

use super::damage::JournalOpenError;
use super::head::{body_of, head_of};
use super::places::{Place, Places};
use crate::manifest::{GroupMark, Manifest};

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) hard_state: HardState,
    pub(super) places: Places,
    /// Members as of the first entry that is gone, and after each change since.
    pub(super) members: Vec<(LogIndex, Membership)>,
    /// Frames of entries that others took the place of.
    pub(super) discarded: Vec<Position>,
    /// Whether there is anything of a group at all.
    pub(super) is_known: bool,
    /// Parts of the log that cannot be read: entries and promises may have been there.
    pub(super) damage: Vec<Damage>,
}

struct Scan {
    found: Found,
    changes: Vec<(LogIndex, Change)>,
    first_members: Membership,
    error: Option<JournalOpenError>,
}

/// Looks through the log from the latest checkpoint on.
///
/// # Errors
/// If the log cannot be read, or makes no sense.
pub(super) fn scan(log: &Log, manifest: &Manifest) -> Result<Found, JournalOpenError> {
    let mark = manifest.group.clone();
    let is_known = mark.is_some();
    let GroupMark { last, members, hard_state, discarded } = mark.unwrap_or_default();
    let hard_state = later(hard_state, HardState { commit: last.index, term: last.term, vote: None });
    let (places, members_since, damage) = (Places::behind(last), Vec::new(), Vec::new());
    let found = Found { hard_state, places, members: members_since, discarded, is_known, damage };
    let mut scan = Scan { found, changes: Vec::new(), first_members: members, error: None };
    let replayed = log.replay(manifest.replay_from, &mut |frame| scan.visit(&frame));
    scan.found.damage = replayed.map_err(|error| error.to_string())?;
    if let Some(error) = scan.error {
        return Err(error);
    }
    let Scan { mut found, changes, first_members, .. } = scan;
    let mut members = first_members;
    found.members.push((found.places.before().index, members.clone()));
    for (index, change) in changes {
        members = members.after(change);
        found.members.push((index, members.clone()));
    }
    Ok(found)
}

impl Scan {
    fn visit(&mut self, frame: &Frame) -> ControlFlow<()> {
        let at = frame.at;
        let taken = match head_of(frame) {
            Ok(Some(head)) => self
                .take(frame, head)
                .map_err(|reason| JournalOpenError::Damaged(format!("the frame at {at}: {reason}"))),
            Ok(None) => Ok(()),
            Err(reason) => Err(JournalOpenError::Unreadable(format!("the frame at {at}: {reason}"))),
        };
        match taken {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.error = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// Fails if it does not follow on what came before.
    fn take(&mut self, frame: &Frame, head: GroupRecord) -> Result<(), String> {
        self.found.is_known = true;
        match head {
            GroupRecord::Entry(id, payload) => {
                let place = Place { id, at: frame.at, end: frame.end };
                let last = self.found.places.last();
                let replaced = self.found.places.push(place).ok_or_else(|| {
                    format!("entry {} comes behind entry {}: entries were lost", id.index, last.index)
                })?;
                self.found.discarded.extend(replaced);
                self.changes.retain(|(index, _)| *index < id.index);
                if let Payload::Change(change) = payload {
                    self.changes.push((id.index, change));
                }
            }
            // Some lie before the checkpoint, which says more.
            GroupRecord::HardState(state) => self.found.hard_state = later(self.found.hard_state, state),
            GroupRecord::Installed(snapshot) => {
                self.found.places = Places::behind(snapshot.last);
                let base = HardState { commit: snapshot.last.index, term: snapshot.last.term, vote: None };
                self.found.hard_state = later(self.found.hard_state, base);
                self.first_members = snapshot.members;
                self.changes.clear();
            }
            GroupRecord::Taken(_) | GroupRecord::Purged(_) => {}
        }
        Ok(())
    }
}

impl Found {
    /// Members as of an entry.
    pub(super) fn members_at(&self, index: LogIndex) -> Membership {
        let known = self.members.iter().rev().find(|(at, _)| *at <= index);
        known.map(|(_, members)| members.clone()).unwrap_or_default()
    }

    /// What the group is opened with: the machines have the state of all that is known to be committed.
    ///
    /// # Errors
    /// If an entry cannot be read.
    pub(super) fn recovered(&self, log: &Log) -> Result<Recovered, String> {
        let commit = self.hard_state.commit;
        let before = self.places.before();
        let snapshot = match self.places.get(commit) {
            Some(place) => place.id,
            None => before,
        };
        let (known, after): (Vec<&Place>, Vec<&Place>) =
            self.places.iter().partition(|place| place.id.index <= snapshot.index);
        let entries: Result<Vec<GroupEntry>, String> =
            after.into_iter().map(|place| read_entry(log, *place)).collect();
        // Entries may be there whose term was not written down yet. Nobody was promised anything in it.
        let last = HardState { term: self.places.last().term, ..HardState::default() };
        Ok(Recovered {
            hard_state: later(self.hard_state, last),
            snapshot,
            members: self.members_at(snapshot.index),
            purged: before,
            terms: known.into_iter().map(|place| place.id).collect(),
            entries: entries?,
        })
    }
}

/// Both promises. Terms and commits only go up, and a vote is not taken back.
fn later(one: HardState, other: HardState) -> HardState {
    let (old, new) = if one.term > other.term { (other, one) } else { (one, other) };
    let vote = if old.term == new.term { old.vote.or(new.vote) } else { new.vote };
    HardState { term: new.term, vote, commit: old.commit.max(new.commit) }
}

/// Reads an entry as other nodes get it.
///
/// # Errors
/// If it cannot be read.
pub(super) fn read_entry(log: &Log, place: Place) -> Result<GroupEntry, String> {
    let frame = log.read_frame(place.at).map_err(|error| error.to_string())?;
    let entry = match head_of(&frame)? {
        Some(GroupRecord::Entry(id, Payload::Data(_))) => {
            GroupEntry { id, payload: Payload::Data(data_of(&frame)) }
        }
        Some(GroupRecord::Entry(id, payload)) => GroupEntry { id, payload },
        _ => return Err(format!("there is no entry at {}", place.at)),
    };
    match entry.id == place.id {
        true => Ok(entry),
        false => Err(format!("at {} there is entry {:?} instead of {:?}", place.at, entry.id, place.id)),
    }
}

fn data_of(frame: &Frame) -> Bytes {
    encode_entries(&body_of(frame))
}

/// The first entry of a cluster, which stands for all that the node had before.
pub(super) const fn first_entry() -> EntryId {
    EntryId::new(nexo_types::Term(1), LogIndex(1))
}
