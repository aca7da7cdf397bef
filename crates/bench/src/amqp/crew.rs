//! Many publishers with confirms on one thread. With a message or two on its way each, a publisher mostly waits; a
//! thread for each would spend more time on changing threads than on messages (16 µs a message with a hundred threads,
//! half of that here).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::ensure;
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::connection::PATIENCE;
use super::publisher::Publisher;
use crate::tally::Tally;

/// Publishers that take turns.
pub(crate) struct Crew {
    members: Vec<(Publisher, Arc<Tally>)>,
}

impl Crew {
    /// All of them must have asked for confirms.
    pub(crate) fn new(members: Vec<(Publisher, Arc<Tally>)>) -> Self {
        Self { members }
    }

    /// Publishes until told to stop, then waits until everything is confirmed. Gives back how long confirms took.
    pub(crate) fn run(mut self, stop: &AtomicBool) -> anyhow::Result<Option<Histogram<u64>>> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, (publisher, tally)) in self.members.iter_mut().enumerate() {
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&poll, publisher.socket(), data, epoll::EventFlags::IN)?;
            publisher.fill_window(tally)?;
        }
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut events = Vec::with_capacity(self.members.len());
        let mut waiting = self.members.len();
        while waiting > 0 {
            epoll::wait(&poll, spare_capacity(&mut events), Some(&patience))?;
            ensure!(!events.is_empty(), "nothing was confirmed for {PATIENCE:?}");
            let stopped = stop.load(Ordering::Relaxed);
            for event in events.drain(..) {
                let index = usize::try_from(event.data.u64())?;
                let (publisher, tally) = &mut self.members[index];
                publisher.await_confirms(tally)?;
                if !stopped {
                    publisher.fill_window(tally)?;
                } else if publisher.unconfirmed() == 0 {
                    epoll::delete(&poll, publisher.socket())?;
                    waiting -= 1;
                }
            }
        }
        let mut all: Option<Histogram<u64>> = None;
        for (publisher, _) in self.members {
            if let Some(nanos) = publisher.finish()? {
                match &mut all {
                    None => all = Some(nanos),
                    Some(sum) => sum.add(nanos)?,
                }
            }
        }
        Ok(all)
    }
}
