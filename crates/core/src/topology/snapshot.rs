//! The durable part of exchanges and bindings: as bytes, so that recovery need not read the log from its
//! beginning, and as an outline, so that two states can be compared.

use std::collections::BTreeMap;

use bytes::Bytes;
use nexo_types::{ExchangeName, QueueId, VhostName};
use thiserror::Error;

use super::binding::Binding;
use super::exchange::{ExchangeSpec, decode_name};
use super::record::{TopologyRecord, decode_bound, decode_vhost, encode_bound};
use super::state::Topology;
use super::targets::Target;
use super::vhost::{VhostSpec, VhostStage};
use crate::message::Durability;
use crate::wire::{Reader, WireError, Writer};

/// The version in which a snapshot is written.
const VERSION: u64 = 2;
/// The version since which there are virtual hosts in it. Before, all was in "/".
const WITH_VHOSTS: u64 = 2;

/// A snapshot that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the snapshot of exchanges and bindings cannot be read: {0}")]
pub struct RestoreError(#[from] pub(crate) WireError);

/// Everything that survives a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Virtual hosts, and whether they are on their way out.
    pub vhosts: BTreeMap<VhostName, (VhostSpec, VhostStage)>,
    /// Durable exchanges.
    pub exchanges: BTreeMap<ExchangeName, ExchangeSpec>,
    /// Bindings between durable ends, and to which queue they lead: by source, in the order in which they were
    /// made.
    pub bindings: Vec<(Binding, Option<QueueId>)>,
}

impl Topology {
    /// The durable state.
    #[must_use]
    pub fn outline(&self) -> Outline {
        let durable = self.exchanges.iter().filter(|(_, exchange)| exchange.is_durable());
        let vhosts =
            self.vhosts.iter().map(|(name, vhost)| (name.clone(), (vhost.spec.clone(), vhost.stage)));
        Outline {
            vhosts: vhosts.collect(),
            exchanges: durable.map(|(name, exchange)| (name.clone(), exchange.spec.clone())).collect(),
            bindings: self.durable_bindings().map(|(binding, queue)| (binding.clone(), queue)).collect(),
        }
    }

    /// The durable state as bytes.
    #[must_use]
    pub fn snapshot(&self) -> Bytes {
        let mut out = Writer::with_capacity(256);
        out.version(VERSION);
        out.u64(self.vhosts.len() as u64);
        for (name, vhost) in &self.vhosts {
            out.text(name.as_str());
            vhost.spec.encode(&mut out);
            out.u8(u8::from(vhost.stage == VhostStage::Deleting));
        }
        // The exchanges that every virtual host has are not written: a later version may have others.
        let ours = |name: &ExchangeName| !name.is_reserved();
        let exchanges = self.exchanges.iter().filter(|(name, exchange)| exchange.is_durable() && ours(name));
        out.u64(exchanges.clone().count() as u64);
        for (name, exchange) in exchanges {
            out.text(name.stored());
            exchange.spec.encode(&mut out);
        }
        out.u64(self.durable_bindings().count() as u64);
        for (binding, queue) in self.durable_bindings() {
            encode_bound(binding, queue, &mut out);
        }
        out.into_bytes()
    }

    /// Exchanges and bindings in the state of a snapshot. Queues are not known yet.
    ///
    /// # Errors
    /// If the bytes are not a snapshot.
    pub fn restore(bytes: &[u8]) -> Result<Self, RestoreError> {
        let mut input = Reader::new(bytes);
        let version = input.version("the snapshot of exchanges and bindings", VERSION)?;
        let mut topology =
            if version < WITH_VHOSTS { Self::new() } else { Self::restore_vhosts(&mut input)? };
        for _ in 0..input.u64()? {
            let name = decode_name(&mut input)?;
            let spec = ExchangeSpec::decode(&mut input)?;
            topology.replay(&TopologyRecord::Declare { name, spec });
        }
        for _ in 0..input.u64()? {
            let (binding, queue) = decode_bound(&mut input)?;
            topology.replay(&TopologyRecord::Bind { binding, queue });
        }
        input.finish()?;
        Ok(topology)
    }

    fn restore_vhosts(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut topology = Self::without_vhosts();
        for _ in 0..input.u64()? {
            let name = decode_vhost(input)?;
            topology.put_vhost(&name, &VhostSpec::decode(input)?);
            if input.flag()? {
                topology.begin_delete_vhost(&name);
            }
        }
        Ok(topology)
    }

    fn durable_bindings(&self) -> impl Iterator<Item = (&Binding, Option<QueueId>)> {
        let all = self.exchanges.values().flat_map(|exchange| exchange.bindings.values());
        all.filter(|bound| bound.durability == Durability::Durable).map(|bound| {
            let queue = match &bound.target {
                Target::Queue(id) => Some(*id),
                Target::Exchange(_) => None,
            };
            (&*bound.binding, queue)
        })
    }
}
