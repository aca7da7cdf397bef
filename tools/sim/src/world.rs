//! The world: time, the network, and what happens when. One thread, and every choice from one seed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fastrand::Rng;
use nexo_cluster::store::{Cut, Mark};
use nexo_cluster::{Membership, Role};
use nexo_types::{LogIndex, Millis, NodeId, QueueId, RaftGroupId, Timestamp};

use crate::ledger::{Hold, Ledger, Receipt, Tally, Violation, mix, sum};
use crate::repair::Replacing;
use crate::replica::{Effect, Wish};
use crate::sabotage::Sabotage;
use crate::server::{Server, StartError, Wants};

/// How a run is set up.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Everything follows from this.
    pub seed: u64,
    /// How long there are faults, in simulated milliseconds.
    pub millis: u64,
    /// What is broken on purpose.
    pub sabotage: Option<Sabotage>,
    /// Whether to keep what happened in words.
    pub keeps_trace: bool,
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The sum over everything that happened, in order.
    pub trace: u64,
    /// What must not be.
    pub violations: Vec<Violation>,
    /// How much happened.
    pub tally: Tally,
    /// What happened, if it was to be kept.
    pub story: Vec<String>,
}

/// Something that happens at a moment.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    Tick(NodeId),
    Arrive {
        from: NodeId,
        to: NodeId,
        envelope: Bytes,
    },
    Synced {
        node: NodeId,
        life: u32,
        mark: Mark,
    },
    /// A node notices that the connection from another has ended.
    LostContact {
        node: NodeId,
        with: NodeId,
    },
    /// A client does something.
    Act,
    /// A client says what became of a delivery.
    Settle(Receipt),
    /// A client pushes again what got no answer.
    Again {
        group: RaftGroupId,
        queue: QueueId,
        number: u64,
    },
    /// A worker says what became of a job.
    Work(Hold),
    /// Somebody looks after a node whose disk is damaged.
    Replace(NodeId),
    /// Something breaks.
    Fault,
    Restart(NodeId),
    /// A link works again.
    Heal(NodeId, NodeId),
    /// The network is as it should be again.
    Calm,
    /// A disk is as fast as it should be again, and has room.
    DiskWell(NodeId),
}

/// The groups of a simulated cluster.
pub(crate) const GROUPS: [RaftGroupId; 2] = [RaftGroupId(0), RaftGroupId(1)];

const TICK_US: u64 = nexo_cluster::TICK.0 * 1_000;
/// Without faults, for so long, everything must get well.
const HEALING_US: u64 = 12_000_000;
/// Leases end, and messages die, for so long after the last fault. Then nothing new is proposed, so that replicas can be compared.
const QUIET_AFTER_US: u64 = 1_200_000;
/// The longest that clients rest between what they do, in four kinds of runs.
const PACES_US: [u64; 4] = [40_000, 60_000, 200_000, 400_000];
/// How often somebody looks whether all is well.
const LOOK_US: u64 = 250_000;

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now_us: u64,
    options: Options,
    agenda: BTreeMap<(u64, u64), Happening>,
    happenings: u64,
    pub(crate) servers: BTreeMap<NodeId, Server>,
    /// Links that carry nothing, by direction.
    pub(crate) cut: BTreeSet<(NodeId, NodeId)>,
    pub(crate) loss: f64,
    pub(crate) doubles: f64,
    pub(crate) delay_max_us: u64,
    pub(crate) slow_disks: BTreeSet<NodeId>,
    pub(crate) ledger: Ledger,
    pub(crate) voters_min: usize,
    /// The queues of messages, by number.
    pub(crate) queues: BTreeMap<u64, QueueId>,
    pub(crate) numbers: u64,
    /// The longest that clients rest: in some runs they are busy, in others there is little to do.
    pace_us: u64,
    /// The node whose disk was harmed, if there is one: no second one is before it is replaced.
    pub(crate) replacing: Option<Replacing>,
    trace: u64,
    story: Vec<String>,
}

impl World {
    pub(crate) fn new(options: Options) -> Self {
        let mut rng = Rng::with_seed(options.seed);
        let (voters, spares) = match rng.u32(0..10) {
            0 => (1, 2),
            1 | 2 => (5, 0),
            3..=5 => (3, 2),
            6 => (2, 1),
            _ => (3, 0),
        };
        let members = Membership::of((1..=voters).map(NodeId));
        let ids = (1..=voters + spares).map(NodeId);
        let servers = ids.map(|id| (id, Server::new(id, &GROUPS, &members, options.seed, options.sabotage)));
        let mut world = Self {
            now_us: 0,
            agenda: BTreeMap::new(),
            happenings: 0,
            servers: servers.collect(),
            cut: BTreeSet::new(),
            loss: 0.0,
            doubles: 0.0,
            delay_max_us: 2_000,
            slow_disks: BTreeSet::new(),
            ledger: Ledger::default(),
            voters_min: voters.min(3) as usize,
            queues: BTreeMap::new(),
            numbers: 0,
            pace_us: PACES_US[rng.usize(0..4)],
            replacing: None,
            trace: sum(&options.seed.to_le_bytes()),
            story: Vec::new(),
            options,
            rng,
        };
        for id in world.ids() {
            world.start(id);
        }
        world.after(0, Happening::Act);
        world.after(1_500_000, Happening::Fault);
        world
    }

    /// All nodes but those whose disks were found damaged.
    pub(crate) fn ids(&self) -> Vec<NodeId> {
        self.servers.values().filter(|server| !server.is_lost).map(|server| server.id).collect()
    }

    pub(crate) fn seed_and_sabotage(&self) -> (u64, Option<Sabotage>) {
        (self.options.seed, self.options.sabotage)
    }

    pub(crate) fn server(&mut self, id: NodeId) -> &mut Server {
        self.servers.get_mut(&id).expect("a node of this cluster")
    }

    /// Plays until the end, and closes the books.
    pub(crate) fn play(mut self) -> Outcome {
        let faults_end = self.options.millis * 1_000;
        self.play_until(faults_end);
        self.heal_all();
        let mut until = faults_end + QUIET_AFTER_US;
        self.play_until(until);
        while until < faults_end + HEALING_US && !self.is_well() {
            until += LOOK_US;
            self.play_until(until);
        }
        self.close();
        let Self { ledger, trace, story, .. } = self;
        Outcome { trace, violations: ledger.violations, tally: ledger.tally, story }
    }

    fn play_until(&mut self, end: u64) {
        while let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((at, _), happening) = entry.remove_entry();
            self.now_us = at;
            self.happen(happening);
            // One violation is enough, and what comes after it may be anything.
            if !self.ledger.violations.is_empty() {
                self.agenda.clear();
            }
        }
        self.now_us = end;
    }

    /// Whether every group has a leader, every member has all that is committed, and no node waits to be replaced.
    fn is_well(&self) -> bool {
        if !self.ledger.violations.is_empty() {
            return true;
        }
        let is_replaced = self.replacing.as_ref().is_none_or(|replacing| !replacing.is_found);
        is_replaced
            && GROUPS.into_iter().all(|id| {
                let Some(leader) = self.leader_of(id) else { return false };
                let Some(group) = self.servers[&leader].node.group(id) else { return false };
                let applied = |node: &NodeId| {
                    let server = self.servers.get(node).filter(|server| server.is_up);
                    server.map(|server| server.replicas[&id].applied.index)
                };
                // The entry of whoever leads now is the last, since nothing is proposed.
                group.applied() == group.last()
                    && group.members().all().all(|node| applied(&node) == Some(group.last()))
            })
    }

    /// Who leads a group and is ready to, in the latest term.
    fn leader_of(&self, id: RaftGroupId) -> Option<NodeId> {
        let leading = self.servers.values().filter_map(|server| {
            let group = server.node.group(id).filter(|_| server.is_up)?;
            (group.role() == Role::Leader && group.is_ready()).then_some((group.term(), server.id))
        });
        leading.max().map(|(_, id)| id)
    }

    pub(crate) fn is_healing(&self) -> bool {
        self.now_us >= self.options.millis * 1_000
    }

    fn is_quiet(&self) -> bool {
        self.now_us >= self.options.millis * 1_000 + QUIET_AFTER_US
    }

    pub(crate) fn after(&mut self, delay_us: u64, happening: Happening) {
        self.happenings += 1;
        self.agenda.insert((self.now_us + delay_us, self.happenings), happening);
    }

    /// Adds to the trace.
    pub(crate) fn note(&mut self, what: &str) {
        self.note_sum(sum(what.as_bytes()), || what.to_owned());
    }

    /// Adds something to the trace of which the sum is known. Words for it are made only if somebody wants to read them.
    fn note_sum(&mut self, sum: u64, what: impl FnOnce() -> String) {
        let now = self.now_us;
        self.trace = mix(mix(self.trace, now), sum);
        if self.options.keeps_trace {
            self.story.push(format!("{:>9}.{:03} {}", now / 1_000, now % 1_000, what()));
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Tick(node) => self.tick(node),
            Happening::Arrive { from, to, envelope } => self.arrive(from, to, &envelope),
            Happening::Synced { node, life, mark } => self.synced(node, life, mark),
            Happening::LostContact { node, with } => self.lose_contact(node, with),
            Happening::Act => {
                if !self.is_healing() {
                    self.act();
                    let pause = self.rng.u64(2_000..self.pace_us);
                    self.after(pause, Happening::Act);
                }
            }
            Happening::Settle(receipt) => self.settle(&receipt),
            Happening::Again { group, queue, number } => {
                let wish = Wish { queue, delay: Millis(0), ttl: None };
                self.push(group, wish, &[number]);
            }
            Happening::Work(hold) => self.work(&hold),
            Happening::Replace(node) => self.replace(node),
            Happening::Fault => {
                if !self.is_healing() {
                    self.fault();
                    let pause = self.rng.u64(50_000..900_000);
                    self.after(pause, Happening::Fault);
                }
            }
            Happening::Restart(node) => self.start(node),
            Happening::Heal(from, to) => {
                self.cut.remove(&(from, to));
            }
            Happening::Calm => {
                (self.loss, self.doubles, self.delay_max_us) = (0.0, 0.0, 2_000);
            }
            Happening::DiskWell(node) => {
                self.slow_disks.remove(&node);
                self.server(node).make_room();
                self.pump(node);
            }
        }
    }

    /// Whether the node does something now. What waits for one that is paused comes later.
    pub(crate) fn is_awake(&mut self, node: NodeId, happening: Happening) -> bool {
        let server = &self.servers[&node];
        if !server.is_up {
            return false;
        }
        if server.paused_until > self.now_us {
            let pause = server.paused_until - self.now_us;
            self.after(pause, happening);
            return false;
        }
        true
    }

    pub(crate) fn start(&mut self, node: NodeId) {
        if self.servers[&node].is_up || self.servers[&node].is_lost {
            return;
        }
        let wipe = self.options.sabotage == Some(Sabotage::ComeBackWiped)
            && self.servers[&node].life > 0
            && self.rng.u32(0..3) == 0;
        match self.server(node).start(wipe) {
            Ok(()) => {}
            Err(StartError::Damaged(error)) => return self.lose(node, &error),
            Err(StartError::Open(error)) => {
                self.ledger.violations.push(Violation::Unsound(format!("node {node} cannot start: {error}")));
                return;
            }
        }
        self.note(&format!("node {node} starts"));
        let first = self.rng.u64(0..TICK_US);
        self.after(first, Happening::Tick(node));
        self.pump(node);
    }

    pub(crate) fn crash(&mut self, node: NodeId) {
        if !self.servers[&node].is_up {
            return;
        }
        let cut = match self.rng.u32(0..4) {
            0 => Cut::Torn,
            1 => Cut::After(usize::MAX),
            2 => Cut::Unsynced,
            _ => Cut::After(self.rng.usize(0..4_000)),
        };
        self.note(&format!("node {node} crashes: {cut:?}"));
        let told = self.server(node).crash(cut);
        self.ledger.tally.crashes += 1;
        // A node that starts again has one row of ticks.
        self.agenda.retain(|_, happening| !matches!(happening, Happening::Tick(of) if *of == node));
        self.close_connections(node);
        self.tell(told);
    }

    /// The system of a process that is gone closes its connections: others notice, each in its own time, unless they are cut off.
    fn close_connections(&mut self, of: NodeId) {
        for node in self.ids() {
            if node != of && !self.cut.contains(&(of, node)) && self.rng.f64() >= self.loss {
                let delay = self.rng.u64(50..=20_000);
                self.after(delay, Happening::LostContact { node, with: of });
            }
        }
    }

    fn lose_contact(&mut self, node: NodeId, with: NodeId) {
        if self.is_awake(node, Happening::LostContact { node, with }) {
            self.server(node).node.lost_contact(with);
            self.pump(node);
        }
    }

    fn tick(&mut self, node: NodeId) {
        if !self.is_awake(node, Happening::Tick(node)) {
            return;
        }
        self.after(TICK_US, Happening::Tick(node));
        let (now, quiet, healing) = (self.now_us, self.is_quiet(), self.is_healing());
        let server = self.server(node);
        let clock = server.clock(now);
        server.node.tick();
        let mut told = Vec::new();
        for id in GROUPS {
            let (group, replica) = server.part(id);
            if !quiet {
                replica.due(group, clock);
            }
            if !healing {
                told.extend(replica.hand_out(group, clock).into_iter().map(|effect| (id, effect)));
            }
        }
        self.tell(told);
        self.pump(node);
    }

    fn arrive(&mut self, from: NodeId, to: NodeId, envelope: &Bytes) {
        if self.is_awake(to, Happening::Arrive { from, to, envelope: envelope.clone() }) {
            let mut ledger = std::mem::take(&mut self.ledger);
            self.server(to).receive(from, envelope, &mut ledger);
            self.ledger = ledger;
            self.pump(to);
        }
    }

    fn synced(&mut self, node: NodeId, life: u32, mark: Mark) {
        if self.servers[&node].life == life && self.is_awake(node, Happening::Synced { node, life, mark }) {
            self.server(node).synced(mark);
            self.pump(node);
        }
    }

    /// Has a node do what it wants.
    pub(crate) fn pump(&mut self, node: NodeId) {
        if !self.servers[&node].is_up {
            return;
        }
        let mut ledger = std::mem::take(&mut self.ledger);
        let Wants { envelopes, effects } = self.server(node).pump(&mut ledger);
        self.ledger = ledger;
        for (to, envelope) in envelopes {
            self.send(node, to, &envelope);
        }
        if let Some(mark) = self.server(node).wants_sync() {
            let slow = self.slow_disks.contains(&node);
            let delay = if slow { self.rng.u64(50_000..700_000) } else { self.rng.u64(100..3_000) };
            let life = self.servers[&node].life;
            self.after(delay, Happening::Synced { node, life, mark });
        }
        self.tell(effects);
        if self.servers[&node].must_stop {
            self.crash(node);
            self.start(node);
        }
    }

    fn send(&mut self, from: NodeId, to: NodeId, envelope: &Bytes) {
        let sum = mix(mix(sum(envelope), from.0), to.0);
        self.note_sum(sum, || format!("{from} to {to}: {} bytes, {sum:x}", envelope.len()));
        if !self.servers.contains_key(&to) {
            return;
        }
        let copies = if self.rng.f64() < self.doubles { 2 } else { 1 };
        for _ in 0..copies {
            if self.cut.contains(&(from, to)) || self.rng.f64() < self.loss {
                continue;
            }
            let delay = self.rng.u64(50..=self.delay_max_us);
            self.after(delay, Happening::Arrive { from, to, envelope: envelope.clone() });
        }
    }

    /// Adds what clients are told to the trace.
    pub(crate) fn note_effect(&mut self, group: RaftGroupId, effect: &Effect) {
        let (kind, of_kind) = match effect {
            Effect::PushConfirmed(number) => (1, *number),
            Effect::PushUnknown(number) => (2, *number),
            Effect::Delivered(receipt) => (3, mix(receipt.number, receipt.attempt.into())),
            Effect::AckConfirmed(receipt) => (4, mix(receipt.number, receipt.attempt.into())),
            Effect::Changed(id) => (5, mix(id.term.0, id.index.0)),
            Effect::JobHanded(hold) => (6, mix(hold.receipt.job.0, hold.receipt.hold.into())),
            Effect::JobEnded(job, term) => (7, mix(job.0, term.0)),
        };
        let sum = mix(mix(u64::from(group.0), kind), of_kind);
        self.note_sum(sum, || format!("group {group}: {effect:?}"));
    }

    fn heal_all(&mut self) {
        self.note("all is well from now on");
        self.cut.clear();
        (self.loss, self.doubles, self.delay_max_us) = (0.0, 0.0, 2_000);
        self.slow_disks.clear();
        for id in self.ids() {
            let server = self.server(id);
            server.make_room();
            server.paused_until = 0;
            self.start(id);
            self.pump(id);
        }
    }

    fn close(&mut self) {
        if !self.ledger.violations.is_empty() {
            return;
        }
        if let Some(Replacing { lost, is_found: true, .. }) = &self.replacing {
            let told = format!("node {lost} was lost, and nobody has come in its place");
            self.ledger.violations.push(Violation::Stuck(told));
        }
        let mut of_members = BTreeMap::new();
        for id in GROUPS {
            let leader = self.leader_of(id);
            match leader.and_then(|leader| self.servers[&leader].node.group(id)) {
                Some(group) => {
                    of_members.insert(id, group.members().clone());
                }
                None => self.ledger.violations.push(Violation::Stuck(format!("nobody leads group {id}"))),
            }
        }
        let clock =
            self.servers.values().map(|server| server.clock(self.now_us)).max().unwrap_or(Timestamp(0));
        let mut ledger = std::mem::take(&mut self.ledger);
        let mut replicas: Vec<(NodeId, RaftGroupId, LogIndex, _)> = Vec::new();
        for server in self.servers.values_mut() {
            let node = server.id;
            for (group, replica) in &mut server.replicas {
                if of_members.get(group).is_some_and(|members| members.contains(node)) {
                    replicas.push((node, *group, replica.applied.index, &mut replica.state));
                }
            }
        }
        ledger.close(clock, &mut replicas);
        self.ledger = ledger;
        let tally = self.ledger.tally;
        // With little to do, faults may leave time for nothing.
        let is_busy = self.pace_us <= PACES_US[1];
        if tally.elected == 0 || (is_busy && (tally.confirmed == 0 || tally.delivered == 0)) {
            self.ledger.violations.push(Violation::NotExercised(format!("{tally:?}")));
        }
    }
}
