//! One policy: for which queues and exchanges it is, and what it says of them.

use std::fmt;
use std::sync::Arc;

use nexo_types::{QueueKind, check_name, limits};
use serde_json::{Map, Value};

use super::definition::Definition;
use super::error::PolicyError;
use super::pattern::PolicyPattern;
use crate::access::PatternError;
use crate::wire::{Reader, WireError, Writer};

/// Whose word a policy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyKind {
    /// A policy.
    Regular,
    /// An operator policy, which bounds what policies and arguments may ask for.
    Operator,
}

/// What a policy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyTo {
    /// Queues and exchanges.
    All,
    /// Queues.
    Queues,
    /// Queues that are no quorum queues.
    ClassicQueues,
    /// Quorum queues.
    QuorumQueues,
    /// Streams, of which there are none.
    Streams,
    /// Exchanges.
    Exchanges,
}

/// What is asked for the policy that applies to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A queue.
    Queue {
        /// Its name in its virtual host.
        name: &'a str,
        /// What it is.
        kind: QueueKind,
    },
    /// An exchange.
    Exchange {
        /// Its name in its virtual host.
        name: &'a str,
    },
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What it is called.
    pub name: Arc<str>,
    /// Which names it is for.
    pub pattern: PolicyPattern,
    /// Of several that match, the one with the highest counts.
    pub priority: i64,
    /// What it is for.
    pub apply_to: ApplyTo,
    /// What it says.
    pub definition: Definition,
}

impl Policy {
    /// Checks what a policy is to be.
    ///
    /// # Errors
    /// Says what is wrong with it, in RabbitMQ's words.
    pub fn new(
        kind: PolicyKind,
        name: &str,
        pattern: &str,
        priority: i64,
        apply_to: ApplyTo,
        definition: Map<String, Value>,
    ) -> Result<Self, PolicyError> {
        check_name(name, "policy name", limits::POLICY_NAME_BYTES_MAX)?;
        let pattern = PolicyPattern::new(pattern).map_err(|error| {
            let reason = match &error {
                PatternError::Invalid { reason, .. } => reason.clone(),
                PatternError::TooLong { .. } => error.to_string(),
            };
            PolicyError::fault(format!("pattern should be regular expression but is invalid: {reason}"))
        })?;
        let definition = Definition::new(kind, definition)?;
        Ok(Self { name: name.into(), pattern, priority, apply_to, definition })
    }

    /// Whether it is for this queue or exchange.
    #[must_use]
    pub fn is_for(&self, subject: Subject<'_>) -> bool {
        let (name, is_for) = match subject {
            Subject::Exchange { name } => (name, matches!(self.apply_to, ApplyTo::All | ApplyTo::Exchanges)),
            Subject::Queue { name, kind } => {
                let is_for = match self.apply_to {
                    ApplyTo::All | ApplyTo::Queues => true,
                    ApplyTo::ClassicQueues => kind != QueueKind::Quorum,
                    ApplyTo::QuorumQueues => kind == QueueKind::Quorum,
                    ApplyTo::Streams | ApplyTo::Exchanges => false,
                };
                (name, is_for && !self.definition.has_any(foreign_keys(kind)))
            }
        };
        is_for && self.pattern.matches(name)
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.text(&self.name);
        out.text(self.pattern.as_str());
        out.u64(self.priority.cast_unsigned());
        out.u8(self.apply_to.number());
        out.text(&self.definition.text());
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            name: input.text()?.into(),
            pattern: PolicyPattern::or_nothing(input.text()?),
            priority: input.u64()?.cast_signed(),
            apply_to: ApplyTo::of_number(input.u8()?)?,
            definition: Definition::from_text(input.text()?).ok_or(WireError::NotText)?,
        })
    }
}

/// As in RabbitMQ, a policy with a key that a type of queue does not know is not for queues of that type. Queues that were not
/// asked for over AMQP know them all.
const fn foreign_keys(kind: QueueKind) -> &'static [&'static str] {
    match kind {
        QueueKind::Classic => &[
            "max-age",
            "stream-max-segment-size-bytes",
            "queue-leader-locator",
            "initial-cluster-size",
            "delivery-limit",
            "dead-letter-strategy",
            "max-in-memory-length",
            "max-in-memory-bytes",
            "target-group-size",
        ],
        QueueKind::Quorum => &[
            "queue-mode",
            "ha-mode",
            "ha-params",
            "ha-sync-mode",
            "ha-promote-on-shutdown",
            "ha-promote-on-failure",
            "queue-master-locator",
            "max-age",
            "stream-max-segment-size-bytes",
            "queue-leader-locator",
            "initial-cluster-size",
        ],
        QueueKind::Native | QueueKind::SqsStandard | QueueKind::SqsFifo => &[],
    }
}

impl Definition {
    fn has_any(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.has(key))
    }
}

impl ApplyTo {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Queues, Self::ClassicQueues, Self::QuorumQueues, Self::Streams, Self::Exchanges, Self::All];

    /// What RabbitMQ calls it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Queues => "queues",
            Self::ClassicQueues => "classic_queues",
            Self::QuorumQueues => "quorum_queues",
            Self::Streams => "streams",
            Self::Exchanges => "exchanges",
        }
    }

    /// What this word stands for.
    ///
    /// # Errors
    /// If it stands for nothing.
    pub fn parse(word: &str) -> Result<Self, PolicyError> {
        Self::ALL.into_iter().find(|known| known.as_str() == word).ok_or_else(|| {
            PolicyError::fault(format!(
                "apply-to '{word}' unrecognised; should be 'queues', 'classic_queues', 'quorum_queues', 'streams', \
                 'exchanges' or 'all'"
            ))
        })
    }

    const fn number(self) -> u8 {
        match self {
            Self::All => 0,
            Self::Queues => 1,
            Self::ClassicQueues => 2,
            Self::QuorumQueues => 3,
            Self::Streams => 4,
            Self::Exchanges => 5,
        }
    }

    fn of_number(number: u8) -> Result<Self, WireError> {
        let found = Self::ALL.into_iter().find(|known| known.number() == number);
        found.ok_or(WireError::Unknown { what: "subject of a policy", value: number })
    }
}

impl PolicyKind {
    pub(super) const fn number(self) -> u8 {
        match self {
            Self::Regular => 0,
            Self::Operator => 1,
        }
    }

    pub(super) const fn of_number(number: u8) -> Result<Self, WireError> {
        match number {
            0 => Ok(Self::Regular),
            1 => Ok(Self::Operator),
            value => Err(WireError::Unknown { what: "kind of policy", value }),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regular => "policy",
            Self::Operator => "operator policy",
        })
    }
}
