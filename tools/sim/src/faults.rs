//! What breaks.

use nexo_cluster::Change;
use nexo_types::NodeId;

use crate::world::{GROUPS, Happening, World};

impl World {
    pub(crate) fn fault(&mut self) {
        let ids = self.ids();
        let node = ids[self.rng.usize(0..ids.len())];
        match self.rng.u32(0..30) {
            0..=3 => self.crash_for_a_while(node),
            4 => {
                // All at once: the power of a house.
                ids.into_iter().for_each(|id| self.crash_for_a_while(id));
            }
            5..=7 => self.isolate(node),
            8 => self.cut_one_way(node),
            9 => self.split(&ids),
            10 => self.pause(node),
            11 => self.jump(node),
            12 => self.slow_disk(node),
            13 => self.full_disk(node),
            14 => self.storm(),
            15 => self.hand_over(node),
            16 => self.checkpoint(node),
            17..=19 => self.change_members(node),
            20 => self.cut_links(&ids),
            21 => self.bridge(&ids, node),
            22 => {
                if let Some(leader) = self.any_leader() {
                    self.full_disk(leader);
                }
            }
            23 | 24 => {
                // It is found when the node starts, or when it has to read what is there.
                if self.rng.u32(0..4) != 0 {
                    self.crash_for_a_while(node);
                }
                self.harm(node);
            }
            25..=27 => self.change_under_fire(node),
            _ => self.break_connections(&ids),
        }
    }

    fn any_leader(&mut self) -> Option<NodeId> {
        let id = GROUPS[self.rng.usize(0..GROUPS.len())];
        self.find_leader(id)
    }

    /// Connections break and are made again at once: whoever they came to thinks that the other is gone.
    fn break_connections(&mut self, ids: &[NodeId]) {
        self.ledger.tally.others += 1;
        self.note("some connections break");
        for node in ids {
            for with in ids {
                if node != with && self.rng.bool() {
                    let delay = self.rng.u64(0..100_000);
                    self.after(delay, Happening::LostContact { node: *node, with: *with });
                }
            }
        }
    }

    /// A clock is wrong: by seconds, or by up to an hour.
    fn jump(&mut self, node: NodeId) {
        let most = if self.rng.u32(0..3) == 0 { 3_600_000 } else { 5_000 };
        self.server(node).clock_off = self.rng.i64(-most..most);
        self.ledger.tally.others += 1;
        self.note(&format!("the clock of node {node} jumps"));
    }

    /// Some links carry nothing, each by itself and in one direction.
    fn cut_links(&mut self, ids: &[NodeId]) {
        self.ledger.tally.partitions += 1;
        self.note("some links break");
        for from in ids {
            for to in ids {
                if from != to && self.rng.u32(0..3) == 0 {
                    let span = self.rng.u64(200_000..4_000_000);
                    self.cut(*from, *to, span);
                }
            }
        }
    }

    /// Two sides that hear each other only through one node.
    fn bridge(&mut self, ids: &[NodeId], middle: NodeId) {
        self.ledger.tally.partitions += 1;
        let span = self.rng.u64(200_000..4_000_000);
        self.note(&format!("only node {middle} hears everybody"));
        let sides: Vec<(NodeId, bool)> =
            ids.iter().filter(|id| **id != middle).map(|id| (*id, self.rng.bool())).collect();
        for (from, side) in &sides {
            for (to, other) in &sides {
                if side != other {
                    self.cut(*from, *to, span);
                }
            }
        }
    }

    /// Members change while somebody is cut off or crashes: the leader, or whom it is about.
    fn change_under_fire(&mut self, node: NodeId) {
        self.change_members(node);
        let victim = if self.rng.bool() { Some(node) } else { self.any_leader() };
        let Some(victim) = victim else { return };
        match self.rng.u32(0..4) {
            0 => self.crash_for_a_while(victim),
            1 => self.isolate(victim),
            2 => self.cut_one_way(victim),
            _ => {
                let ids = self.ids();
                self.split(&ids);
            }
        }
        self.change_members(node);
    }

    fn crash_for_a_while(&mut self, node: NodeId) {
        self.crash(node);
        let down = self.rng.u64(10_000..2_500_000);
        self.after(down, Happening::Restart(node));
    }

    fn cut(&mut self, from: NodeId, to: NodeId, span: u64) {
        self.cut.insert((from, to));
        self.after(span, Happening::Heal(from, to));
    }

    fn isolate(&mut self, node: NodeId) {
        self.ledger.tally.partitions += 1;
        let span = self.rng.u64(200_000..4_000_000);
        self.note(&format!("node {node} is cut off"));
        for other in self.ids() {
            self.cut(node, other, span);
            self.cut(other, node, span);
        }
    }

    /// It hears nobody, and is heard; or the other way round.
    fn cut_one_way(&mut self, node: NodeId) {
        self.ledger.tally.partitions += 1;
        let span = self.rng.u64(200_000..3_000_000);
        let hears = self.rng.bool();
        self.note(&format!("node {node} is cut off one way"));
        for other in self.ids() {
            if hears { self.cut(node, other, span) } else { self.cut(other, node, span) }
        }
    }

    fn split(&mut self, ids: &[NodeId]) {
        self.ledger.tally.partitions += 1;
        let span = self.rng.u64(200_000..4_000_000);
        let sides: Vec<(NodeId, bool)> = ids.iter().map(|id| (*id, self.rng.bool())).collect();
        self.note(&format!("the network splits: {sides:?}"));
        for (from, side) in &sides {
            for (to, other) in &sides {
                if side != other {
                    self.cut(*from, *to, span);
                }
            }
        }
    }

    fn pause(&mut self, node: NodeId) {
        self.ledger.tally.others += 1;
        let span = self.rng.u64(50_000..2_500_000);
        self.note(&format!("node {node} is paused"));
        self.server(node).paused_until = self.now_us + span;
    }

    fn slow_disk(&mut self, node: NodeId) {
        self.ledger.tally.others += 1;
        self.slow_disks.insert(node);
        let span = self.rng.u64(300_000..3_000_000);
        self.after(span, Happening::DiskWell(node));
    }

    fn full_disk(&mut self, node: NodeId) {
        self.ledger.tally.others += 1;
        let room = self.rng.usize(0..5_000);
        self.note(&format!("node {node} has room for {room} bytes"));
        self.server(node).store.set_room(Some(room));
        let span = self.rng.u64(300_000..3_000_000);
        self.after(span, Happening::DiskWell(node));
    }

    /// Messages are lost, come twice and late.
    fn storm(&mut self) {
        self.ledger.tally.others += 1;
        self.loss = self.rng.f64() * 0.4;
        self.doubles = self.rng.f64() * 0.3;
        self.delay_max_us = self.rng.u64(2_000..400_000);
        let span = self.rng.u64(300_000..3_000_000);
        self.after(span, Happening::Calm);
    }

    fn hand_over(&mut self, to: NodeId) {
        for id in GROUPS {
            if let Some(leader) = self.find_leader(id) {
                // Who is no voter is not elected.
                let _ = self.server(leader).part(id).0.hand_over(to);
                self.pump(leader);
            }
        }
    }

    fn checkpoint(&mut self, node: NodeId) {
        if !self.servers[&node].is_up {
            return;
        }
        let slack = self.rng.u64(0..20);
        for id in GROUPS {
            let (group, replica) = self.server(node).part(id);
            replica.checkpoint(group, slack);
        }
        self.pump(node);
    }

    /// A node comes or goes, by one step.
    fn change_members(&mut self, node: NodeId) {
        let id = GROUPS[self.rng.usize(0..GROUPS.len())];
        let Some(leader) = self.find_leader(id) else { return };
        let (goes, voters_min) = (self.rng.bool(), self.voters_min);
        let group = self.server(leader).part(id).0;
        let members = group.members();
        let change = if members.learners.contains(&node) {
            if goes { Change::Remove(node) } else { Change::AddVoter(node) }
        } else if !members.voters.contains(&node) {
            Change::AddLearner(node)
        } else if members.voters.len() > voters_min {
            if goes { Change::Remove(node) } else { Change::AddLearner(node) }
        } else {
            return;
        };
        let taken = group.change_members(change);
        self.note(&format!("{change:?} in group {id}: {taken:?}"));
        self.pump(leader);
    }
}
