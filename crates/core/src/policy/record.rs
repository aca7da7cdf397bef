//! What happened to policies and parameters, as it is written down. The same list is what can be asked for.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::VhostName;

use super::policy::{Policy, PolicyKind};
use crate::wire::{Reader, WireError, Writer};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyRecord {
    /// A policy, new or instead of the one of that name.
    Put {
        /// Whether it is a policy, or an operator policy, which limits those.
        kind: PolicyKind,
        /// The virtual host that it is in.
        vhost: VhostName,
        /// All of it, with its name.
        policy: Arc<Policy>,
    },
    /// A policy is gone.
    Delete {
        /// Which of the two lists it was in.
        kind: PolicyKind,
        /// The virtual host that it is in.
        vhost: VhostName,
        /// One of that list.
        name: Arc<str>,
    },
    /// A parameter of a virtual host has this value.
    PutParameter {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// The part of the broker, or the plugin, that reads it.
        component: Arc<str>,
        /// Unique for its component in its virtual host.
        name: Arc<str>,
        /// Its value, as JSON.
        value: Arc<str>,
    },
    /// A parameter is gone.
    DeleteParameter {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// The part of the broker, or the plugin, that read it.
        component: Arc<str>,
        /// One of that component.
        name: Arc<str>,
    },
    /// A parameter of the whole broker has this value.
    PutGlobal {
        /// Unique in the broker: it is in no virtual host.
        name: Arc<str>,
        /// Its value, as JSON.
        value: Arc<str>,
    },
    /// A parameter of the whole broker is gone.
    DeleteGlobal {
        /// One that is there.
        name: Arc<str>,
    },
    /// A virtual host is gone, and all that was said of it.
    ForgetVhost {
        /// Its policies and parameters go with it.
        vhost: VhostName,
    },
}

/// The version in which records are written.
const VERSION: u8 = 1;

impl PolicyRecord {
    /// The bytes to write down.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::with_capacity(64);
        match self {
            Self::Put { kind, vhost, policy } => {
                out.tag(VERSION, 0);
                out.u8(kind.number());
                out.text(vhost.as_str());
                policy.encode(&mut out);
            }
            Self::Delete { kind, vhost, name } => {
                out.tag(VERSION, 1);
                out.u8(kind.number());
                out.text(vhost.as_str());
                out.text(name);
            }
            Self::PutParameter { vhost, component, name, value } => {
                out.tag(VERSION, 2);
                [vhost.as_str(), component, name, value].into_iter().for_each(|text| out.text(text));
            }
            Self::DeleteParameter { vhost, component, name } => {
                out.tag(VERSION, 3);
                [vhost.as_str(), component, name].into_iter().for_each(|text| out.text(text));
            }
            Self::PutGlobal { name, value } => {
                out.tag(VERSION, 4);
                out.text(name);
                out.text(value);
            }
            Self::DeleteGlobal { name } => {
                out.tag(VERSION, 5);
                out.text(name);
            }
            Self::ForgetVhost { vhost } => {
                out.tag(VERSION, 6);
                out.text(vhost.as_str());
            }
        }
        out.into_bytes()
    }

    /// Reads a record back.
    ///
    /// # Errors
    /// If the bytes are not a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(bytes);
        let (_, kind) = input.tag("a record of policies", VERSION)?;
        let from = &mut input;
        let record = match kind {
            0 => Self::Put {
                kind: PolicyKind::of_number(from.u8()?)?,
                vhost: decode_vhost(from)?,
                policy: Arc::new(Policy::decode(from)?),
            },
            1 => Self::Delete {
                kind: PolicyKind::of_number(from.u8()?)?,
                vhost: decode_vhost(from)?,
                name: from.text()?.into(),
            },
            2 => Self::PutParameter {
                vhost: decode_vhost(from)?,
                component: from.text()?.into(),
                name: from.text()?.into(),
                value: from.text()?.into(),
            },
            3 => Self::DeleteParameter {
                vhost: decode_vhost(from)?,
                component: from.text()?.into(),
                name: from.text()?.into(),
            },
            4 => Self::PutGlobal { name: from.text()?.into(), value: from.text()?.into() },
            5 => Self::DeleteGlobal { name: from.text()?.into() },
            6 => Self::ForgetVhost { vhost: decode_vhost(from)? },
            value => return Err(WireError::Unknown { what: "kind of record of policies", value }),
        };
        input.finish()?;
        Ok(record)
    }
}

pub(super) fn decode_vhost(input: &mut Reader<'_>) -> Result<VhostName, WireError> {
    VhostName::new(input.text()?).map_err(|_| WireError::BadName)
}
