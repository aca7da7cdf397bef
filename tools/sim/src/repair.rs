//! Disks that forget: bytes that were synced change, and the node that finds that is replaced.
//!
//! A node whose log lacks what it had promised to keep must not vote. So it never starts again: somebody removes it from all
//! groups, and another node, with an empty disk, comes in its place.

use nexo_cluster::store::{Harm, StoreError};
use nexo_cluster::{Change, Membership};
use nexo_types::NodeId;

use crate::server::Server;
use crate::world::{GROUPS, Happening, World};

/// A node whose disk was harmed.
#[derive(Clone, Debug)]
pub(crate) struct Replacing {
    pub(crate) lost: NodeId,
    /// Whether anybody knows of the damage.
    pub(crate) is_found: bool,
    /// Who comes in its place.
    successor: Option<NodeId>,
}

/// How often somebody tries to go on with it.
const STEP_US: u64 = 150_000;

impl World {
    /// Some synced bytes of a node change. Never on two nodes before the first was replaced: a majority has to be whole.
    pub(crate) fn harm(&mut self, node: NodeId) {
        let proven = self.servers[&node].store.proven();
        if self.replacing.is_some() || self.voters_min < 3 || proven == 0 {
            return;
        }
        let at = match self.rng.u32(0..3) {
            // What was written last is read most.
            0 => self.rng.usize(proven - proven.min(600)..proven),
            _ => self.rng.usize(0..proven),
        };
        let harm = if self.rng.bool() {
            Harm::Flip(self.rng.u8(0..8))
        } else {
            Harm::Zero(self.rng.usize(1..4_096))
        };
        self.note(&format!("the disk of node {node} is damaged at {at}: {harm:?}"));
        self.ledger.tally.damaged += 1;
        self.server(node).store.harm(at, harm);
        self.replacing = Some(Replacing { lost: node, is_found: false, successor: None });
    }

    /// A node found its log damaged.
    pub(crate) fn lose(&mut self, node: NodeId, error: &StoreError) {
        self.note(&format!("node {node} does not start: {error}"));
        self.server(node).is_lost = true;
        self.replacing = Some(Replacing { lost: node, is_found: true, successor: None });
        let delay = if self.is_healing() { STEP_US } else { self.rng.u64(STEP_US..3_000_000) };
        self.after(delay, Happening::Replace(node));
    }

    /// A step on the way of another node into the place of one that was lost.
    pub(crate) fn replace(&mut self, lost: NodeId) {
        let Some(replacing) = self.replacing.clone().filter(|replacing| replacing.lost == lost) else {
            return;
        };
        if self.take_step(lost, replacing.successor) {
            match replacing.successor {
                None => self.add_successor(),
                Some(_) => {
                    self.ledger.tally.replaced += 1;
                    self.replacing = None;
                    return;
                }
            }
        }
        self.after(STEP_US, Happening::Replace(lost));
    }

    /// Changes members by one step where that is wanted. Says whether nothing is left to do.
    fn take_step(&mut self, lost: NodeId, successor: Option<NodeId>) -> bool {
        let mut is_done = true;
        for id in GROUPS {
            let Some(leader) = self.find_leader(id) else {
                is_done = false;
                continue;
            };
            let group = self.server(leader).part(id).0;
            let members = group.members();
            let change = match successor {
                _ if members.contains(lost) => Change::Remove(lost),
                Some(node) if !members.contains(node) => Change::AddLearner(node),
                Some(node) if members.learners.contains(&node) => Change::AddVoter(node),
                _ => continue,
            };
            is_done = false;
            let taken = group.change_members(change);
            self.note(&format!("{change:?} in group {id}: {taken:?}"));
            self.pump(leader);
        }
        is_done
    }

    fn add_successor(&mut self) {
        let last = self.servers.keys().next_back().map_or(0, |id| id.0);
        let id = NodeId(last + 1);
        let (seed, sabotage) = self.seed_and_sabotage();
        self.servers.insert(id, Server::new(id, &GROUPS, &Membership::default(), seed, sabotage));
        if let Some(replacing) = &mut self.replacing {
            replacing.successor = Some(id);
        }
        self.start(id);
    }
}
