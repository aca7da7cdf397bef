//! Many publishers with confirms on one thread. With a message or two on its way each, a publisher mostly waits; a
//! thread for each would spend more time on changing threads than on messages (16 µs a message with a hundred threads,
//! half of that here).

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::protocol::Publish;

/// From this many on, publishers with confirms had better share a thread.
pub(crate) const CREW_MIN: usize = 8;
/// How long nothing may be confirmed before we say that the broker hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A publisher with confirms that can take turns with others.
pub(crate) trait Member: Send {
    /// What becomes readable when there are confirms.
    fn socket(&self) -> &TcpStream;
    /// Publishes as many as the window has room for; all of them are on their way when this returns.
    fn fill_window(&mut self) -> anyhow::Result<()>;
    /// Reads confirms, of which there are some.
    fn await_confirms(&mut self) -> anyhow::Result<()>;
    /// How many messages are on their way.
    fn unconfirmed(&self) -> u64;
    /// Ends the connection; gives back how long confirms took.
    fn finish(self) -> anyhow::Result<Option<Histogram<u64>>>;
}

/// Publishers that take turns.
pub(crate) struct Crew<M> {
    members: Vec<M>,
}

impl<M: Member> Crew<M> {
    /// All of them must have asked for confirms.
    pub(crate) fn new(members: Vec<M>) -> Self {
        Self { members }
    }
}

impl<M: Member> Publish for Crew<M> {
    fn run(mut self: Box<Self>, stop: &AtomicBool) -> anyhow::Result<Option<Histogram<u64>>> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, member) in self.members.iter_mut().enumerate() {
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&poll, member.socket(), data, epoll::EventFlags::IN)?;
            member.fill_window()?;
        }
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut events = Vec::with_capacity(self.members.len());
        // Until it is told to stop, every member has messages on their way, so that something will become readable.
        let mut waiting = self.members.len();
        while waiting > 0 {
            epoll::wait(&poll, spare_capacity(&mut events), Some(&patience))?;
            ensure!(!events.is_empty(), "nothing was confirmed for {PATIENCE:?}");
            let stopped = stop.load(Ordering::Relaxed);
            for event in events.drain(..) {
                let member = &mut self.members[usize::try_from(event.data.u64())?];
                member.await_confirms()?;
                if !stopped {
                    member.fill_window()?;
                } else if member.unconfirmed() == 0 {
                    epoll::delete(&poll, member.socket())?;
                    waiting -= 1;
                }
            }
        }
        let mut all: Option<Histogram<u64>> = None;
        for member in self.members {
            if let Some(nanos) = member.finish()? {
                match &mut all {
                    None => all = Some(nanos),
                    Some(sum) => sum.add(nanos)?,
                }
            }
        }
        Ok(all)
    }
}
