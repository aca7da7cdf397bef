//! A queue that is rebuilt: by a replay of its records, from a snapshot, and from a snapshot that was taken in slices while
//! it changed, with the records after it.

use super::*;

impl Rig {
    /// The process dies: what is in the log is all there is.
    pub(super) fn restart(&mut self) {
        self.write_leases();
        let before = self.queue.outline(self.now);
        let whole = !self.has_transient();
        let restored = self.queue.restored();
        assert_same(&restored.outline(self.now), &before, whole, "a snapshot");
        restored.check_invariants();
        let caught_up = self.saved.as_ref().map(|saved| {
            let chunks = saved.chunks.values().map(|bytes| &bytes[..]);
            let mut caught_up = Queue::restore(&saved.head, chunks).unwrap();
            self.apply_records(&mut caught_up, saved.records);
            assert_same(&caught_up.outline(self.now), &before, whole, "a snapshot with the records after it");
            caught_up.check_invariants();
            caught_up
        });
        let replayed = self.replay();
        assert_same(&replayed.outline(self.now), &before, whole, "a replay of all records");
        replayed.check_invariants();
        if !self.has_transient() {
            // Go on with the queue as a crash would leave it.
            let known = self.saved.as_ref().map(|saved| saved.chunks.clone());
            self.chunks = known.unwrap_or_default();
            self.taking = None;
            let mut replayed = caught_up.unwrap_or(replayed);
            replayed.finish_recovery();
            let ids: Vec<_> = self.model.consumers.iter().map(|(id, (terms, _))| (*id, *terms)).collect();
            self.queue = replayed;
            self.late = None;
            // Turns and rates are not durable.
            self.model.turn.clear();
            self.model.delivered_at.clear();
            for (id, terms) in ids {
                self.queue.add_consumer(ConsumerId(id), terms, 0, None).unwrap();
                self.model.consumers.insert(id, (terms, 0));
            }
            let plan = self.queue.decide_session_end(self.now);
            for record in &plan.records {
                self.run(record, true);
            }
            let now = self.now;
            plan.deaths.iter().for_each(|death| self.model.die(death));
            let visibility = self.queue.config().visibility;
            for message in &mut self.model.messages {
                match &mut message.place {
                    Where::Leased { until: None, .. } if message.dying.is_none() => {
                        message.place = Where::Waiting;
                        message.ready_at = now;
                    }
                    // For how long a consumer asked is forgotten; the queue's own time counts.
                    Where::Leased { visibility: asked, phase: LeasePhase::Receipt, .. } => {
                        *asked = visibility
                    }
                    Where::Leased { .. } | Where::Waiting | Where::Aside => {}
                }
            }
            self.wait(0);
        }
    }

    /// There is room for them again.
    pub(super) fn write_leases(&mut self) {
        for record in self.queue.decide_unwritten_leases(usize::MAX) {
            self.run(&record, true);
        }
        assert!(!self.queue.has_unwritten_leases());
    }

    pub(super) fn replay(&self) -> Queue {
        let Record::Create { name, config, at } = &self.log[0] else { unreachable!() };
        let mut queue = Queue::new(QueueId(1), name.clone(), config.clone(), *at);
        self.apply_records(&mut queue, 1);
        queue
    }

    /// Applies all records from this one on, as recovery does.
    pub(super) fn apply_records(&self, queue: &mut Queue, from: usize) {
        for (index, record) in self.log.iter().enumerate() {
            if index < from {
                continue;
            }
            while let Err(NeedsPage(page)) = queue.apply(record) {
                let read = |offset: Offset| {
                    let batch = &self.store[&offset];
                    MessageEntry::from_batch(batch, batch.find(offset).unwrap()).unwrap()
                };
                let entries = page.offsets.iter().map(read).collect();
                assert!(queue.page_in(&page, entries, Timestamp(0)));
            }
        }
    }

    pub(super) fn checkpoint(&mut self) {
        self.abandon_snapshot();
        let known: Vec<ChunkId> = self.chunks.keys().copied().collect();
        // Some chunk lies where it cannot stay.
        let stale: Vec<ChunkId> = known.iter().copied().step_by(5).collect();
        let head = self.queue.begin_snapshot(known.into_iter(), &stale);
        self.taking = Some(Taking { head, records: self.log.len(), chunks: Vec::new() });
        self.take_chunks(1);
    }

    pub(super) fn take_chunks(&mut self, count: usize) {
        let Some(taking) = &mut self.taking else { return };
        let Some(slice) = self.queue.next_chunks(count, usize::MAX) else {
            // A purge has cancelled it.
            self.abandon_snapshot();
            return;
        };
        taking.chunks.extend(slice.chunks);
        if slice.more {
            return;
        }
        let Some(Taking { head, records, chunks }) = self.taking.take() else { return };
        for (chunk, bytes) in chunks {
            if bytes.is_empty() {
                self.chunks.remove(&chunk);
            } else {
                self.chunks.insert(chunk, bytes);
            }
        }
        self.saved = Some(Saved { head, chunks: self.chunks.clone(), records });
    }

    pub(super) fn abandon_snapshot(&mut self) {
        let Some(taking) = self.taking.take() else { return };
        let taken: Vec<ChunkId> = taking.chunks.iter().map(|(chunk, _)| *chunk).collect();
        self.queue.abandon_snapshot(&taken);
    }
}

/// A replay knows nothing of transient messages, so what counts them as well is left out of the comparison.
fn assert_same(rebuilt: &Outline, original: &Outline, whole: bool, what: &str) {
    assert_eq!(rebuilt.messages, original.messages, "{what} gives the same messages");
    assert_eq!(rebuilt.config, original.config, "{what} gives the same settings");
    if whole {
        // A message that was settled before its lease was written down was delivered all the same, and a replay does
        // not know it.
        let mut totals = original.totals;
        totals.delivered = rebuilt.totals.delivered;
        totals.redelivered = rebuilt.totals.redelivered;
        assert_eq!(*rebuilt, Outline { totals, ..original.clone() }, "{what} gives the same state");
    }
}
