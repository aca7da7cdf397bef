//! Virtual hosts: name spaces of exchanges, bindings and queues, each with the exchanges that it has from the beginning.
//!
//! A virtual host goes in two steps, because its queues are machines of their own and may be very many. The first takes its
//! exchanges and bindings, and from then on nothing can be declared in it. The second is taken when its queues have
//! gone. What was cut off between the two is finished at the next start.

use nexo_types::{ExchangeName, VhostName, limits};
use thiserror::Error;

use super::exchange::{ExchangeKind, ExchangeSpec, Matching};
use super::record::{Plan, TopologyRecord};
use super::state::Topology;
use crate::message::Durability;
use crate::wire::{Reader, WireError, Writer};

/// The exchanges that every virtual host has, beside the default one.
const PREDECLARED: [(&str, Matching); 6] = [
    ("amq.direct", Matching::Direct),
    ("amq.fanout", Matching::Fanout),
    ("amq.headers", Matching::Headers),
    ("amq.match", Matching::Headers),
    (TRACE, Matching::Topic),
    ("amq.topic", Matching::Topic),
];

/// The one that only the broker may publish to.
const TRACE: &str = ExchangeName::TRACE;

/// What is said about a virtual host, and how much may be in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostSpec {
    /// For people.
    pub description: String,
    /// For people and their tools.
    pub tags: Vec<String>,
    /// The type of queues whose declaration names none.
    pub default_queue_type: Option<DefaultQueueType>,
    /// AMQP connections that may be open in it.
    pub max_connections: Option<u64>,
    /// Queues that it may have.
    pub max_queues: Option<u64>,
}

/// The type of a queue whose declaration names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultQueueType {
    /// `classic`.
    Classic,
    /// `quorum`.
    Quorum,
}

/// A virtual host as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vhost {
    /// What is said about it.
    pub spec: VhostSpec,
    /// Whether it is there, or on its way out.
    pub stage: VhostStage,
    /// How many queues it has.
    pub queues: u64,
}

/// Where a virtual host is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VhostStage {
    /// It is there.
    Open,
    /// It is being deleted: its exchanges have gone, its queues go, and nothing comes in.
    Deleting,
}

/// Why a virtual host is not made or changed, or nothing may be done in it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VhostError {
    /// There is none of that name.
    #[error("virtual host '{name}' does not exist")]
    NotFound {
        /// As it was asked for.
        name: VhostName,
    },
    /// There is one of that name.
    #[error("virtual host '{name}' exists already")]
    Exists {
        /// The name.
        name: VhostName,
    },
    /// It is on its way out.
    #[error("virtual host '{name}' is being deleted; try again when it is gone")]
    Deleting {
        /// One that takes nothing new until its queues are gone.
        name: VhostName,
    },
    /// There are too many.
    #[error("virtual host '{name}' would be one more than the {max} that there may be")]
    TooMany {
        /// The name.
        name: VhostName,
        /// Virtual hosts of one broker.
        max: usize,
    },
    /// It has as many queues as it may have.
    #[error("virtual host '{name}' has {max} queues, and no more are allowed")]
    QueueLimit {
        /// The one that is full.
        name: VhostName,
        /// Its own limit: queues in it.
        max: u64,
    },
    /// What is said about it is too long.
    #[error("{what} of a virtual host has at most {max} {unit}; this one has {len}")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Counted in `unit`.
        max: usize,
        /// Of what.
        unit: &'static str,
        /// What was given.
        len: usize,
    },
    /// A control character in what is said about it.
    #[error("{what} of a virtual host must not contain control characters")]
    Control {
        /// The description or the tags.
        what: &'static str,
    },
}

impl DefaultQueueType {
    /// The name by which clients know it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }

    /// The type of a name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "classic" => Some(Self::Classic),
            "quorum" => Some(Self::Quorum),
            _ => None,
        }
    }
}

impl VhostSpec {
    fn check(&self) -> Result<(), VhostError> {
        let fits = |what, text: &str, max| match text.len() {
            len if len > max => Err(VhostError::TooLong { what, max, unit: "bytes", len }),
            _ if text.chars().any(char::is_control) => Err(VhostError::Control { what }),
            _ => Ok(()),
        };
        fits("the description", &self.description, limits::VHOST_DESCRIPTION_BYTES_MAX)?;
        let (max, len) = (limits::VHOST_TAGS_MAX, self.tags.len());
        if len > max {
            return Err(VhostError::TooLong { what: "the list of tags", max, unit: "tags", len });
        }
        self.tags.iter().try_for_each(|tag| fits("a tag", tag, limits::VHOST_TAG_BYTES_MAX))
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.text(&self.description);
        out.u64(self.tags.len() as u64);
        for tag in &self.tags {
            out.text(tag);
        }
        out.u8(match self.default_queue_type {
            None => 0,
            Some(DefaultQueueType::Classic) => 1,
            Some(DefaultQueueType::Quorum) => 2,
        });
        out.optional(self.max_connections);
        out.optional(self.max_queues);
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let description = input.text()?.to_owned();
        let mut tags = Vec::new();
        for _ in 0..input.u64()? {
            tags.push(input.text()?.to_owned());
        }
        Ok(Self {
            description,
            tags,
            default_queue_type: match input.u8()? {
                0 => None,
                1 => Some(DefaultQueueType::Classic),
                2 => Some(DefaultQueueType::Quorum),
                value => return Err(WireError::Unknown { what: "default queue type", value }),
            },
            max_connections: input.optional()?,
            max_queues: input.optional()?,
        })
    }
}

impl Topology {
    /// All virtual hosts by name, those on their way out among them.
    pub fn vhosts(&self) -> impl Iterator<Item = (&VhostName, &Vhost)> {
        self.vhosts.iter()
    }

    /// A virtual host that is there.
    ///
    /// # Errors
    /// If there is none, or it is on its way out.
    pub fn open_vhost(&self, name: &VhostName) -> Result<&Vhost, VhostError> {
        match self.vhosts.get(name) {
            None => Err(VhostError::NotFound { name: name.clone() }),
            Some(Vhost { stage: VhostStage::Deleting, .. }) => {
                Err(VhostError::Deleting { name: name.clone() })
            }
            Some(vhost) => Ok(vhost),
        }
    }

    /// Whether a virtual host may have one more queue.
    ///
    /// # Errors
    /// If it is not there, or full.
    pub fn check_new_queue(&self, name: &VhostName) -> Result<(), VhostError> {
        let vhost = self.open_vhost(name)?;
        match vhost.spec.max_queues {
            Some(max) if vhost.queues >= max => Err(VhostError::QueueLimit { name: name.clone(), max }),
            Some(_) | None => Ok(()),
        }
    }

    /// Makes a virtual host, or changes what is said about it. If it is as asked for, the plan is empty.
    ///
    /// # Errors
    /// If it is on its way out, there are too many, or what is said about it is too long.
    pub fn decide_put_vhost(&self, name: &VhostName, spec: VhostSpec) -> Result<Plan, VhostError> {
        spec.check()?;
        let mut plan = Plan::default();
        match self.open_vhost(name) {
            Ok(vhost) if vhost.spec == spec => return Ok(plan),
            Ok(_) => {}
            Err(VhostError::NotFound { .. }) if self.vhosts.len() >= limits::VHOSTS_MAX => {
                return Err(VhostError::TooMany { name: name.clone(), max: limits::VHOSTS_MAX });
            }
            Err(VhostError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        plan.push(TopologyRecord::PutVhost { name: name.clone(), spec }, Durability::Durable);
        Ok(plan)
    }

    /// Begins to delete a virtual host: its exchanges and bindings go. If that was begun before, the plan is empty.
    ///
    /// # Errors
    /// If there is none.
    pub fn decide_delete_vhost(&self, name: &VhostName) -> Result<Plan, VhostError> {
        let mut plan = Plan::default();
        match self.open_vhost(name) {
            Ok(_) => {
                plan.push(TopologyRecord::DeleteVhost { name: name.clone() }, Durability::Durable);
                Ok(plan)
            }
            Err(VhostError::Deleting { .. }) => Ok(plan),
            Err(error) => Err(error),
        }
    }

    /// Ends what [`Self::decide_delete_vhost`] began, when its queues have gone. If it is not on its way out, or has queues,
    /// the plan is empty.
    pub fn decide_vhost_gone(&self, name: &VhostName) -> Plan {
        let mut plan = Plan::default();
        let is_over = |vhost: &Vhost| vhost.stage == VhostStage::Deleting && vhost.queues == 0;
        if self.vhosts.get(name).is_some_and(is_over) {
            plan.push(TopologyRecord::VhostGone { name: name.clone() }, Durability::Durable);
        }
        plan
    }

    /// The virtual host of a queue that was recovered is there, whatever was lost of it. `true` if it was not.
    pub fn recover_vhost(&mut self, name: &VhostName) -> bool {
        let is_lost = !self.vhosts.contains_key(name);
        if is_lost {
            self.add_vhost(name, VhostSpec::default());
        }
        is_lost
    }

    pub(super) fn put_vhost(&mut self, name: &VhostName, spec: &VhostSpec) {
        match self.vhosts.get_mut(name) {
            Some(vhost) => {
                vhost.spec = spec.clone();
                // Publishing does not care, but whoever asks whether something has changed is told so.
                self.routes_mut();
            }
            None => self.add_vhost(name, spec.clone()),
        }
    }

    pub(super) fn add_vhost(&mut self, name: &VhostName, spec: VhostSpec) {
        self.vhosts.insert(name.clone(), Vhost { spec, stage: VhostStage::Open, queues: 0 });
        self.routes_mut().add_vhost(name);
        for (text, matching) in PREDECLARED {
            let exchange =
                ExchangeName::at(name, text).expect("the names of predeclared exchanges are names");
            let spec = ExchangeSpec::durable(ExchangeKind::Plain(matching));
            self.add_exchange(&exchange, &ExchangeSpec { internal: text == TRACE, ..spec });
        }
    }

    pub(super) fn begin_delete_vhost(&mut self, name: &VhostName) {
        let Some(vhost) = self.vhosts.get_mut(name) else { return };
        vhost.stage = VhostStage::Deleting;
        let own = |exchange: &&ExchangeName| exchange.vhost_str() == name.as_str();
        let exchanges: Vec<ExchangeName> = self.exchanges.keys().filter(own).cloned().collect();
        for exchange in exchanges {
            self.delete_exchange(&exchange);
        }
        self.routes_mut().remove_vhost(name);
    }

    pub(super) fn forget_vhost(&mut self, name: &VhostName) {
        self.vhosts.remove(name);
        self.routes_mut().remove_vhost(name);
    }
}
