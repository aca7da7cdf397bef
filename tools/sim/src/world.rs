//! The world: time, the network, and what happens when. One thread, and every choice from one seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use bytes::Bytes;
use fastrand::Rng;
use nexo_cluster::store::{Cut, Mark};
use nexo_cluster::{Membership, Role};
use nexo_types::{LogIndex, Millis, NodeId, QueueId, RaftGroupId, Timestamp};

use crate::ledger::{Ledger, Receipt, Tally, Violation, sum};
use crate::replica::Effect;
use crate::sabotage::Sabotage;
use crate::server::{Server, Wants};
use crate::state::{GROUPED, PLAIN};

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
/// In the end leases may end no more, so that replicas can be compared.
const QUIET_US: u64 = 4_000_000;

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
    queues: BTreeMap<u64, QueueId>,
    numbers: u64,
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

    pub(crate) fn ids(&self) -> Vec<NodeId> {
        self.servers.keys().copied().collect()
    }

    pub(crate) fn server(&mut self, id: NodeId) -> &mut Server {
        self.servers.get_mut(&id).expect("a node of this cluster")
    }

    /// Plays until the end, and closes the books.
    pub(crate) fn play(mut self) -> Outcome {
        let faults_end = self.options.millis * 1_000;
        self.play_until(faults_end);
        self.heal_all();
        self.play_until(faults_end + HEALING_US);
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

    fn is_healing(&self) -> bool {
        self.now_us >= self.options.millis * 1_000
    }

    fn is_quiet(&self) -> bool {
        self.now_us >= self.options.millis * 1_000 + HEALING_US - QUIET_US
    }

    pub(crate) fn after(&mut self, delay_us: u64, happening: Happening) {
        self.happenings += 1;
        self.agenda.insert((self.now_us + delay_us, self.happenings), happening);
    }

    /// Adds to the trace.
    pub(crate) fn note(&mut self, what: &str) {
        let now = self.now_us;
        self.trace =
            sum(&[self.trace.to_le_bytes(), now.to_le_bytes(), sum(what.as_bytes()).to_le_bytes()].concat());
        if self.options.keeps_trace {
            self.story.push(format!("{:>9}.{:03} {what}", now / 1_000, now % 1_000));
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Tick(node) => self.tick(node),
            Happening::Arrive { from, to, envelope } => self.arrive(from, to, &envelope),
            Happening::Synced { node, life, mark } => self.synced(node, life, mark),
            Happening::Act => {
                if !self.is_healing() {
                    self.act();
                    let pause = self.rng.u64(2_000..60_000);
                    self.after(pause, Happening::Act);
                }
            }
            Happening::Settle(receipt) => self.settle(&receipt),
            Happening::Again { group, queue, number } => self.push(group, queue, &[number], Millis(0)),
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
    fn is_awake(&mut self, node: NodeId, happening: Happening) -> bool {
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

    fn start(&mut self, node: NodeId) {
        if self.servers[&node].is_up {
            return;
        }
        let wipe = self.options.sabotage == Some(Sabotage::ComeBackWiped)
            && self.servers[&node].life > 0
            && self.rng.u32(0..3) == 0;
        if let Err(error) = self.server(node).start(wipe) {
            self.ledger.violations.push(Violation::Unsound(format!("node {node} cannot start: {error}")));
            return;
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
        self.tell(told);
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
    }

    fn send(&mut self, from: NodeId, to: NodeId, envelope: &Bytes) {
        let told = format!("{from} to {to}: {} bytes, {:x}", envelope.len(), sum(envelope));
        self.note(&told);
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

    /// Clients are told something.
    fn tell(&mut self, effects: Vec<(RaftGroupId, Effect)>) {
        for (group, effect) in effects {
            let mut told = String::new();
            let _ = write!(told, "group {group}: {effect:?}");
            self.note(&told);
            match effect {
                Effect::PushConfirmed(number) => self.ledger.push_confirmed(group, number),
                Effect::PushUnknown(number) => {
                    self.ledger.push_unknown();
                    if self.rng.bool() && !self.is_healing() {
                        let delay = self.rng.u64(10_000..2_000_000);
                        let queue = self.queues[&number];
                        self.after(delay, Happening::Again { group, queue, number });
                    }
                }
                Effect::Delivered(receipt) => {
                    self.ledger.delivered(&receipt);
                    let delay = self.rng.u64(1_000..200_000) * if self.rng.u32(0..8) == 0 { 20 } else { 1 };
                    self.after(delay, Happening::Settle(receipt));
                }
                Effect::AckConfirmed(receipt) => self.ledger.ack_confirmed(&receipt),
            }
        }
    }

    /// A client does something.
    fn act(&mut self) {
        let group = GROUPS[self.rng.usize(0..GROUPS.len())];
        if self.rng.u32(0..20) == 0 {
            let (which, is_there) = (self.rng.u64(0..5), self.rng.bool());
            let Some(node) = self.find_leader(group) else { return };
            let now = self.now_us;
            let server = self.server(node);
            let clock = server.clock(now);
            let (group, replica) = server.part(group);
            replica.change_topology(group, clock, which, is_there);
            self.pump(node);
            return;
        }
        let queue = if self.rng.u32(0..3) == 0 { GROUPED } else { PLAIN };
        let count = self.rng.u64(1..=3);
        let numbers: Vec<u64> = (self.numbers + 1..=self.numbers + count).collect();
        self.numbers += count;
        let delay = if self.rng.u32(0..6) == 0 { Millis(self.rng.u64(1..1_500)) } else { Millis(0) };
        self.queues.extend(numbers.iter().map(|number| (*number, queue)));
        self.push(group, queue, &numbers, delay);
    }

    /// A node that leads a group, or thinks so: clients cannot know better.
    pub(crate) fn find_leader(&mut self, group: RaftGroupId) -> Option<NodeId> {
        let now = self.now_us;
        let awake = self.servers.values().filter(|server| server.is_up && server.paused_until <= now);
        let leaders: Vec<NodeId> = awake
            .filter(|server| server.leads().any(|(of, _)| of == group))
            .map(|server| server.id)
            .collect();
        (!leaders.is_empty()).then(|| leaders[self.rng.usize(0..leaders.len())])
    }

    fn push(&mut self, id: RaftGroupId, queue: QueueId, numbers: &[u64], delay: Millis) {
        let Some(node) = self.find_leader(id) else { return };
        let now = self.now_us;
        let server = self.server(node);
        let clock = server.clock(now);
        let (group, replica) = server.part(id);
        let mut told = replica.push(group, clock, queue, numbers, delay).unwrap_or_default();
        let (group, replica) = server.part(id);
        told.extend(replica.hand_out(group, clock));
        self.tell(told.into_iter().map(|effect| (id, effect)).collect());
        self.pump(node);
    }

    fn settle(&mut self, receipt: &Receipt) {
        // Most say so where they got it, some to whoever leads.
        let there = self.rng.u32(0..8) != 0;
        let node = if there { Some(receipt.node) } else { self.find_leader(receipt.group) };
        let Some(node) = node.filter(|node| self.servers[node].is_up) else { return };
        if !self.is_awake(node, Happening::Settle(*receipt)) {
            return;
        }
        let done = self.rng.u32(0..6) != 0;
        let now = self.now_us;
        let server = self.server(node);
        let clock = server.clock(now);
        let (group, replica) = server.part(receipt.group);
        replica.add_credit(receipt.queue);
        let told = replica.settle(group, clock, receipt, done);
        if done && told.is_some() {
            self.ledger.ack_asked(receipt);
        }
        let told = told.unwrap_or_default().into_iter().map(|effect| (receipt.group, effect));
        self.tell(told.collect());
        self.pump(node);
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
        let mut of_members = BTreeMap::new();
        for id in GROUPS {
            let leader = self.servers.values().find_map(|server| {
                let group = server.node.group(id).filter(|_| server.is_up)?;
                (group.role() == Role::Leader && group.is_ready()).then_some(group)
            });
            match leader {
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
        if tally.confirmed == 0 || tally.delivered == 0 || tally.elected == 0 {
            self.ledger.violations.push(Violation::NotExercised(format!("{tally:?}")));
        }
    }
}
