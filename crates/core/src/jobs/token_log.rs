//! The latest uses of tokens, one by one, to be asked for by time. They are written in blocks like jobs, and the oldest give way.

use std::collections::VecDeque;
use std::sync::Arc;

use nexo_types::{BudgetId, JobId, Millis, Timestamp, limits};

use crate::wire::{Reader, WireError, Writer};

/// Uses of one block. Part of the format on disk.
pub(super) const BLOCK_USES: u64 = 256;

/// What a job used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenUse {
    /// The broker's time at which the attempt was settled.
    pub at: Timestamp,
    /// The budget that they were paid from.
    pub budget: BudgetId,
    /// For which job.
    pub job: JobId,
    /// That of the job.
    pub kind: Arc<str>,
    /// That of the job.
    pub key: Arc<str>,
    /// What was used, which may be more or less than the job was to cost.
    pub tokens: u64,
    /// Whether the attempt came to something.
    pub success: bool,
    /// How long it took.
    pub took: Millis,
}

/// The latest uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenLog {
    uses: VecDeque<TokenUse>,
    /// The number of the first.
    first: u64,
}

impl TokenLog {
    /// Notes a use.
    pub(super) fn push(&mut self, used: TokenUse) {
        if self.to_give_way().is_some() {
            self.uses.pop_front();
            self.first += 1;
        }
        self.uses.push_back(used);
    }

    /// The number of the one that makes room for the next, if one must.
    pub(super) fn to_give_way(&self) -> Option<u64> {
        (self.uses.len() >= limits::TOKEN_LOG_MAX).then_some(self.first)
    }

    /// The number of the next one.
    pub(super) fn next(&self) -> u64 {
        self.first + self.uses.len() as u64
    }

    /// Those from `since` on and before `until`, the latest first.
    pub(super) fn between(&self, since: Timestamp, until: Timestamp) -> impl Iterator<Item = &TokenUse> {
        let from = self.uses.partition_point(|used| used.at < since);
        let to = self.uses.partition_point(|used| used.at < until);
        self.uses.range(from..to.max(from)).rev()
    }

    pub(super) fn encode_block(&self, block: u64, out: &mut Writer) -> usize {
        let start = (block * BLOCK_USES).max(self.first);
        let end = ((block + 1) * BLOCK_USES).min(self.next());
        if start >= end {
            return 0;
        }
        out.u64(start);
        out.u64(end - start);
        for used in self.uses.range((start - self.first) as usize..(end - self.first) as usize) {
            out.u64(used.at.0);
            out.u64(used.budget.0.into());
            out.u64(used.job.0);
            out.text(&used.kind);
            out.text(&used.key);
            out.u64(used.tokens);
            out.u8(u8::from(used.success));
            out.u64(used.took.0);
        }
        (end - start) as usize
    }

    /// Blocks come in their order.
    pub(super) fn decode_block(&mut self, input: &mut Reader<'_>) -> Result<(), WireError> {
        let start = input.u64()?;
        if start != self.next() {
            // It is the first, or one before it is lost to damage: what follows is kept.
            self.uses.clear();
            self.first = start;
        }
        for _ in 0..input.u64()? {
            self.uses.push_back(TokenUse {
                at: Timestamp(input.u64()?),
                budget: BudgetId(input.u32()?),
                job: JobId(input.u64()?),
                kind: input.text()?.into(),
                key: input.text()?.into(),
                tokens: input.u64()?,
                success: input.flag()?,
                took: Millis(input.u64()?),
            });
        }
        Ok(())
    }

    /// Where to go on, if nothing is kept.
    pub(super) fn begin_at(&mut self, next: u64) {
        if self.uses.is_empty() {
            self.first = next;
        }
    }
}
