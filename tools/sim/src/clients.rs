//! What clients do, and what they are told.

use std::sync::Arc;

use nexo_core::access::{AccessRecord, PermissionTexts, Tag, UserLimits, UserName};
use nexo_core::jobs::{JobBody, JobCommand, NewJob, Reply, TokenReport, Waiter};
use nexo_core::message::Durability;
use nexo_core::nodes::{JoinId, NodeAddress, NodeChange};
use nexo_core::policy::PolicyRecord;
use nexo_core::schedule::{AskedSchedule, ScheduleChange, ScheduleCommand};
use nexo_core::topology::{DeleteIf, ExchangeKind, ExchangeSpec, Matching, TopologyCommand};
use nexo_types::{ExchangeName, Millis, NodeId, NodeName, RaftGroupId, Timestamp, VhostName};

use crate::ledger::{Hold, Receipt};
use crate::machines::{Command, job_queue, put_budget, put_job_queue};
use crate::replica::{Effect, Wish, Word};
use crate::state::{GROUPED, PLAIN, RICH};
use crate::world::{GROUPS, Happening, World};

impl World {
    /// Clients are told something.
    pub(crate) fn tell(&mut self, effects: Vec<(RaftGroupId, Effect)>) {
        for (group, effect) in effects {
            self.note_effect(group, &effect);
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
                Effect::Changed(id) => self.ledger.changed(group, id),
                Effect::JobHanded(hold) => {
                    self.ledger.job_handed(&hold);
                    let delay = self.rng.u64(5_000..400_000) * if self.rng.u32(0..8) == 0 { 10 } else { 1 };
                    self.after(delay, Happening::Work(hold));
                }
                Effect::JobEnded(job, term) => self.ledger.job_ended(group, job, term),
            }
        }
    }

    /// A client does something.
    pub(crate) fn act(&mut self) {
        let group = GROUPS[self.rng.usize(0..GROUPS.len())];
        match self.rng.u32(0..100) {
            0..20 => {
                let command = self.any_command();
                self.change(group, &command);
            }
            20 => self.purge(group),
            21 => {
                let (paused, attempts) = (self.rng.u32(0..4) == 0, self.rng.u32(2..5));
                let Some(node) = self.find_leader(group) else { return };
                let now = self.now_us;
                let server = self.server(node);
                let clock = server.clock(now);
                let (group, replica) = server.part(group);
                replica.configure(group, clock, paused, attempts);
                self.pump(node);
            }
            _ => {
                let queue = match self.rng.u32(0..9) {
                    0..3 => GROUPED,
                    3..6 => RICH,
                    _ => PLAIN,
                };
                let count = self.rng.u64(1..=3);
                let numbers: Vec<u64> = (self.numbers + 1..=self.numbers + count).collect();
                self.numbers += count;
                let delay = if self.rng.u32(0..6) == 0 { Millis(self.rng.u64(1..1_500)) } else { Millis(0) };
                let short = queue == RICH && self.rng.u32(0..4) == 0;
                let ttl = if short { Some(Millis(self.rng.u64(50..3_000))) } else { None };
                self.queues.extend(numbers.iter().map(|number| (*number, queue)));
                self.push(group, Wish { queue, delay, ttl }, &numbers);
            }
        }
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

    pub(crate) fn push(&mut self, id: RaftGroupId, wish: Wish, numbers: &[u64]) {
        let Some(node) = self.find_leader(id) else { return };
        let now = self.now_us;
        let server = self.server(node);
        let clock = server.clock(now);
        let (group, replica) = server.part(id);
        let mut told = replica.push(group, clock, wish, numbers).unwrap_or_default();
        let (group, replica) = server.part(id);
        told.extend(replica.hand_out(group, clock));
        self.tell(told.into_iter().map(|effect| (id, effect)).collect());
        self.pump(node);
    }

    fn purge(&mut self, id: RaftGroupId) {
        let queue = if self.rng.bool() { PLAIN } else { RICH };
        let Some(node) = self.find_leader(id) else { return };
        let now = self.now_us;
        let server = self.server(node);
        let clock = server.clock(now);
        let (group, replica) = server.part(id);
        if replica.purge(group, clock, queue) {
            let there = self.queues.iter().filter(|(_, of)| **of == queue).map(|(number, _)| *number);
            self.ledger.purge_asked(id, there);
        }
        self.note("a queue is purged");
        self.pump(node);
    }

    pub(crate) fn settle(&mut self, receipt: &Receipt) {
        // Most say so where they got it, some to whoever leads.
        let there = self.rng.u32(0..8) != 0;
        let node = if there { Some(receipt.node) } else { self.find_leader(receipt.group) };
        let Some(node) = node.filter(|node| self.servers[node].is_up) else { return };
        if !self.is_awake(node, Happening::Settle(*receipt)) {
            return;
        }
        let word = match self.rng.u32(0..24) {
            0 => Word::Longer,
            1..4 => Word::Again,
            4 => Word::Never,
            _ => Word::Done,
        };
        // Only dead letters have nowhere to go.
        let word = if word == Word::Never && receipt.queue != RICH { Word::Again } else { word };
        let now = self.now_us;
        let server = self.server(node);
        let clock = server.clock(now);
        let (group, replica) = server.part(receipt.group);
        if word != Word::Longer {
            replica.add_credit(receipt.queue);
        }
        let told = replica.settle(group, clock, receipt, word);
        match word {
            Word::Done if told.is_some() => self.ledger.ack_asked(receipt),
            Word::Longer => {
                let delay = self.rng.u64(10_000..900_000);
                self.after(delay, Happening::Settle(*receipt));
            }
            _ => {}
        }
        let told = told.unwrap_or_default().into_iter().map(|effect| (receipt.group, effect));
        self.tell(told.collect());
        self.pump(node);
    }

    /// A worker says what became of a job.
    pub(crate) fn work(&mut self, hold: &Hold) {
        let there = self.rng.u32(0..8) != 0;
        let node = if there { Some(hold.node) } else { self.find_leader(hold.group) };
        let Some(node) = node.filter(|node| self.servers[node].is_up) else { return };
        if !self.is_awake(node, Happening::Work(*hold)) {
            return;
        }
        let receipt = hold.receipt;
        let (used, report) = (Some(self.rng.u64(0..4)), TokenReport::default());
        let command = match self.rng.u32(0..12) {
            0 => return,
            1 => JobCommand::GiveBack { receipt },
            2 => JobCommand::Fail { receipt, error: "no".into(), used, report, retry: self.rng.bool() },
            3 => {
                let delay = self.rng.u64(10_000..900_000);
                self.after(delay, Happening::Work(*hold));
                JobCommand::Extend { receipt, lease: Some(Millis(1_500)), progress: None }
            }
            _ => JobCommand::Complete { receipt, result: "[1]".into(), used, report },
        };
        self.change_at(node, hold.group, &Command::Jobs(command));
    }

    fn change(&mut self, id: RaftGroupId, command: &Command) {
        if let Some(node) = self.find_leader(id) {
            self.change_at(node, id, command);
        }
    }

    fn change_at(&mut self, node: NodeId, id: RaftGroupId, command: &Command) {
        let now = self.now_us;
        let server = self.server(node);
        let clock = server.clock(now);
        let (group, replica) = server.part(id);
        let told = replica.change(group, clock, command);
        self.tell(told.into_iter().map(|effect| (id, effect)).collect());
        self.pump(node);
    }

    /// Something that can be asked of a machine beside the queues.
    fn any_command(&mut self) -> Command {
        match self.rng.u32(0..20) {
            0..2 => self.exchange_command(),
            2..12 => self.job_command(),
            12..14 => self.schedule_command(),
            14..16 => self.user_command(),
            16..18 => self.node_command(),
            _ => self.policy_command(),
        }
    }

    fn exchange_command(&mut self) -> Command {
        let name = ExchangeName::new(&format!("e{}", self.rng.u32(0..5))).expect("a name");
        if self.rng.bool() {
            return Command::Topology(TopologyCommand::Delete(name, DeleteIf::Always));
        }
        let spec = ExchangeSpec {
            kind: ExchangeKind::Plain(Matching::Fanout),
            durability: Durability::Durable,
            auto_delete: false,
            internal: false,
            alternate: None,
            arguments: bytes::Bytes::new(),
        };
        Command::Topology(TopologyCommand::Declare(name, spec))
    }

    fn job_command(&mut self) -> Command {
        Command::Jobs(match self.rng.u32(0..20) {
            0 => put_budget(self.rng.u64(20..60)),
            1 => put_job_queue(self.rng.bool()),
            2..11 => {
                let key = self.rng.u32(0..12);
                let kind = format!("kind {}", key % 2).into();
                let body = JobBody { kind, key: format!("key {key}").into(), payload: "{}".into() };
                let waiter = self.rng.bool().then(|| {
                    Arc::new(Waiter {
                        id: format!("waiter {}", self.rng.u32(0..200)).into(),
                        user: "anna".into(),
                        class: "".into(),
                        class_value: self.rng.i64(0..10),
                        due: None,
                        filter: "".into(),
                        reply: Reply::Call,
                        at: Timestamp(0),
                    })
                });
                let (cost, background) = (self.rng.u64(0..4), waiter.is_none());
                let job = NewJob { body: Arc::new(body), cost, deadline: None, background };
                JobCommand::Ask { queue: job_queue(), job, waiter }
            }
            _ => {
                let max = self.rng.usize(1..4);
                JobCommand::Take { queue: job_queue(), worker: "w".into(), lease: None, max }
            }
        })
    }

    fn schedule_command(&mut self) -> Command {
        let vhost = VhostName::DEFAULT;
        let name: Arc<str> = format!("s{}", self.rng.u32(0..4)).into();
        let change = match self.rng.u32(0..4) {
            0 => ScheduleChange::Delete { vhost, name },
            1 => ScheduleChange::Pause { vhost, name, is_paused: self.rng.bool() },
            _ => {
                let every = Some(Millis(self.rng.u64(500..5_000)));
                let asked = AskedSchedule { name: &name, every, queue: "plain", ..AskedSchedule::default() };
                let schedule = Arc::new(asked.schedule(&vhost).expect("a schedule"));
                ScheduleChange::Put { vhost, schedule, set_by: "anna".into(), is_paused: None }
            }
        };
        Command::Schedules(ScheduleCommand::Change(vec![change]))
    }

    fn user_command(&mut self) -> Command {
        let user = UserName::new(&format!("u{}", self.rng.u32(0..4))).expect("a name");
        let vhost: Arc<str> = "/".into();
        let tags = || [Tag::new("monitoring").expect("a tag")].into();
        Command::Access(vec![match self.rng.u32(0..7) {
            0 | 1 => AccessRecord::Add { user, password: None, tags: tags() },
            2 => AccessRecord::Delete { user },
            3 => AccessRecord::SetTags { user, tags: if self.rng.bool() { tags() } else { [].into() } },
            4 => AccessRecord::SetPermissions { user, vhost, permissions: PermissionTexts::all() },
            5 => AccessRecord::ClearPermissions { user, vhost },
            _ => {
                let max_channels = Some(self.rng.u32(1..9));
                AccessRecord::SetLimits { user, limits: UserLimits { max_channels, ..UserLimits::default() } }
            }
        }])
    }

    fn node_command(&mut self) -> Command {
        let name = NodeName::new(&format!("mq{}", self.rng.u32(0..4))).expect("a name");
        let address = NodeAddress::new(&format!("mq.example:{}", self.rng.u32(1..9))).expect("an address");
        Command::Nodes(match self.rng.u32(0..4) {
            0 => NodeChange::Remove { name },
            1 => NodeChange::SetAddress { name, address },
            _ => NodeChange::Add { name, address, join: JoinId(self.rng.u128(0..3)) },
        })
    }

    fn policy_command(&mut self) -> Command {
        let vhost = VhostName::DEFAULT;
        let (component, name): (Arc<str>, Arc<str>) = ("c".into(), format!("p{}", self.rng.u32(0..4)).into());
        let value: Arc<str> = self.rng.u32(0..100).to_string().into();
        Command::Policies(vec![match self.rng.u32(0..5) {
            0 => PolicyRecord::DeleteParameter { vhost, component, name },
            1 => PolicyRecord::DeleteGlobal { name },
            2 => PolicyRecord::PutGlobal { name, value },
            _ => PolicyRecord::PutParameter { vhost, component, name, value },
        }])
    }
}
