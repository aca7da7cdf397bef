//! Policies and parameters as a [`Machine`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{Timestamp, VhostName};

use super::error::PolicyError;
use super::record::PolicyRecord;
use super::state::{Policies, VhostPolicies};
use crate::machine::{Decision, Machine};
use crate::message::Durability;
use crate::queue::{ChunkId, ChunkSlice};
use crate::wire::WireError;

impl Machine for Policies {
    /// All of these, or none.
    type Command = Vec<PolicyRecord>;
    type Answer = Result<(), PolicyError>;
    type Record = PolicyRecord;
    type Applied = ();
    type Missing = Infallible;
    type Outline = PolicyOutline;

    fn decide(
        &self,
        _: Timestamp,
        command: &Vec<PolicyRecord>,
    ) -> Decision<PolicyRecord, Result<(), PolicyError>> {
        match self.decide_changes(command) {
            Ok(records) => Decision::of(records, true, Ok(())),
            Err(refusal) => Decision::of([], true, Err(refusal)),
        }
    }

    fn apply(&mut self, record: &PolicyRecord, _: Durability) -> Result<(), Infallible> {
        self.apply_record(record);
        Ok(())
    }

    fn encode(record: &PolicyRecord) -> Bytes {
        record.encode()
    }

    fn decode(bytes: &[u8]) -> Result<PolicyRecord, WireError> {
        PolicyRecord::decode(bytes)
    }

    fn begin_snapshot(&mut self, _: impl Iterator<Item = ChunkId>, _: &[ChunkId]) -> Bytes {
        self.snapshot()
    }

    /// All of it is in the head.
    fn next_chunks(&mut self, _: usize, _: usize) -> Option<ChunkSlice> {
        Some(ChunkSlice::default())
    }

    fn restore<'a>(head: &[u8], _: impl Iterator<Item = &'a [u8]>) -> Result<Self, WireError> {
        Self::from_snapshot(head)
    }

    fn outline(&self, _: Timestamp) -> PolicyOutline {
        PolicyOutline { vhosts: (*self.vhosts).clone(), globals: (*self.globals).clone() }
    }
}

/// All policies and parameters, to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyOutline {
    vhosts: BTreeMap<VhostName, Arc<VhostPolicies>>,
    globals: BTreeMap<Arc<str>, Arc<str>>,
}

#[cfg(test)]
mod tests;
