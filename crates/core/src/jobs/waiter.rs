//! Who waits for a job, and where the answer goes.

use std::sync::Arc;

use nexo_types::{QueueName, Timestamp};

use crate::wire::{Reader, WireError, Writer};

/// Where a waiter's answer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To whoever asks for it, by the waiter's id, for as long as it is remembered.
    Call,
    /// As a message into this queue. It can be asked for as well.
    Queue(QueueName),
}

/// Somebody who waits for a job. Its fields are what was asked; nothing of it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Names it within its job queue. A second request with the same id is the same waiter.
    pub id: Arc<str>,
    /// For whom it waits; may be empty.
    pub user: Arc<str>,
    /// Its class, a plan for example; may be empty.
    pub class: Arc<str>,
    /// What that class counted for when it asked.
    pub class_value: i64,
    /// When it needs the answer.
    pub due: Option<Timestamp>,
    /// An expression that says which items of the result it wants; empty for all.
    pub filter: Arc<str>,
    /// Where the answer goes.
    pub reply: Reply,
    /// When it asked, which is when its record was decided.
    pub at: Timestamp,
}

/// A waiter as it is kept and written down: its bytes. A million of them are in memory, and most are read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredWaiter(Box<[u8]>);

const CALL: u8 = 0;
const QUEUE: u8 = 1;

impl Waiter {
    /// The same, asking at this moment. Its request may have waited since it was made, and others have written later times.
    pub(super) fn asking_at(self: &Arc<Self>, now: Timestamp) -> Arc<Self> {
        if self.at == now { Arc::clone(self) } else { Arc::new(Self { at: now, ..Self::clone(self) }) }
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.text(&self.id);
        out.text(&self.user);
        out.text(&self.class);
        out.u64(zigzag(self.class_value));
        out.optional(self.due.map(|due| due.0));
        out.text(&self.filter);
        match &self.reply {
            Reply::Call => out.u8(CALL),
            Reply::Queue(name) => {
                out.u8(QUEUE);
                out.text(name.stored());
            }
        }
        out.u64(self.at.0);
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            id: input.text()?.into(),
            user: input.text()?.into(),
            class: input.text()?.into(),
            class_value: unzigzag(input.u64()?),
            due: input.optional()?.map(Timestamp),
            filter: input.text()?.into(),
            reply: match input.u8()? {
                CALL => Reply::Call,
                QUEUE => Reply::Queue(QueueName::from_stored(input.text()?).map_err(|_| WireError::BadName)?),
                value => return Err(WireError::Unknown { what: "place for an answer", value }),
            },
            at: Timestamp(input.u64()?),
        })
    }
}

impl StoredWaiter {
    pub(super) fn new(waiter: &Waiter) -> Self {
        let mut out = Writer::with_capacity(64);
        waiter.encode(&mut out);
        Self(out.into_vec().into())
    }

    /// One that has left. Its place stays, so that the others keep theirs.
    pub(super) fn gone() -> Self {
        Self(Box::default())
    }

    pub(super) fn is_gone(&self) -> bool {
        self.0.is_empty()
    }

    /// Its id; nothing if it has left.
    pub(super) fn id(&self) -> &str {
        Reader::new(&self.0).text().unwrap_or_default()
    }

    /// Whether its answer is to be brought to it. Otherwise it asks for it, or has left.
    pub(super) fn is_to_be_told(&self) -> bool {
        let reply = || -> Result<u8, WireError> {
            let mut input = Reader::new(&self.0);
            for _ in 0..3 {
                input.text()?;
            }
            input.u64()?;
            input.optional()?;
            input.text()?;
            input.u8()
        };
        reply().is_ok_and(|reply| reply == QUEUE)
    }

    /// All of it; `None` if it has left.
    pub(super) fn read(&self) -> Option<Waiter> {
        // It was written by `new`, or was read once when it came from a snapshot.
        Waiter::decode(&mut Reader::new(&self.0)).ok()
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.bytes(&self.0);
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let bytes = input.bytes()?;
        if !bytes.is_empty() {
            let mut inner = Reader::new(bytes);
            Waiter::decode(&mut inner)?;
            inner.finish()?;
        }
        Ok(Self(bytes.into()))
    }

    pub(super) const fn bytes(&self) -> u32 {
        self.0.len() as u32
    }
}

/// Small numbers of either sign as small numbers.
pub(super) const fn zigzag(value: i64) -> u64 {
    (value.wrapping_shl(1) ^ (value >> 63)) as u64
}

pub(super) const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_either_sign_read_back() {
        for value in [0, 1, -1, 63, -64, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
    }

    #[test]
    fn a_waiter_that_has_left_has_no_id() {
        let gone = StoredWaiter::gone();
        assert!(gone.is_gone() && gone.id().is_empty() && gone.read().is_none());
    }
}
