//! Users as a [`Machine`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use nexo_types::Timestamp;

use super::error::AccessError;
use super::name::UserName;
use super::record::AccessRecord;
use super::state::Access;
use super::user::User;
use crate::machine::{Decision, Machine};
use crate::message::Durability;
use crate::queue::{ChunkId, ChunkSlice};
use crate::wire::WireError;

impl Machine for Access {
    /// All of these, or none.
    type Command = Vec<AccessRecord>;
    type Answer = Result<(), AccessError>;
    type Record = AccessRecord;
    type Applied = ();
    type Missing = Infallible;
    type Outline = (bool, BTreeMap<UserName, Arc<User>>);

    fn decide(
        &self,
        now: Timestamp,
        command: &Vec<AccessRecord>,
    ) -> Decision<AccessRecord, Result<(), AccessError>> {
        match self.decide_changes(now, command) {
            Ok(records) => Decision::of(records, true, Ok(())),
            Err(refusal) => Decision::of([], true, Err(refusal)),
        }
    }

    fn apply(&mut self, record: &AccessRecord, _: Durability) -> Result<(), Infallible> {
        self.apply_record(record);
        Ok(())
    }

    fn encode(record: &AccessRecord) -> Bytes {
        record.encode()
    }

    fn decode(bytes: &[u8]) -> Result<AccessRecord, WireError> {
        AccessRecord::decode(bytes)
    }

    fn begin_snapshot(&mut self, _: impl Iterator<Item = ChunkId>, _: &[ChunkId]) -> Bytes {
        self.snapshot()
    }

    /// All of it is in the head.
    fn next_chunks(&mut self, _: usize, _: usize) -> Option<ChunkSlice> {
        Some(ChunkSlice::default())
    }

    fn time_of(record: &AccessRecord) -> Option<Timestamp> {
        record.time()
    }

    fn restore<'a>(head: &[u8], _: impl Iterator<Item = &'a [u8]>) -> Result<Self, WireError> {
        Self::from_snapshot(head)
    }

    fn outline(&self, _: Timestamp) -> Self::Outline {
        (self.had_users, (*self.users).clone())
    }
}

#[cfg(test)]
mod tests;
