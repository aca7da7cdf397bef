//! A few threads for work that may wait for the disk: reading messages back, moving dead letters, looking into queues.
//!
//! Each kind of work has threads of its own, so that none waits behind another: a consumer's next messages are read
//! however many dead letters are on the move and however large the messages are that somebody looks at. Within a kind, jobs
//! are done in the order in which they came, and each is a bounded slice, so that queues take turns.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

use crate::threads::Threads;

/// Kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Reading messages back for consumers.
    Deliver,
    /// Moving messages from one queue to another.
    Move,
    /// Reading messages for somebody who only looks.
    Look,
    /// Deleting queues and letting go of messages: little reading, if any.
    Chore,
    /// Making answers to those who wait for jobs, which evaluates what clients wrote.
    Answer,
}

impl Work {
    const ALL: [Self; 5] = [Self::Deliver, Self::Move, Self::Look, Self::Chore, Self::Answer];

    /// Two where one slow read would hold up other queues that wait for the same; the machine has few cores.
    const fn threads(self) -> usize {
        match self {
            Self::Deliver | Self::Move | Self::Answer => 2,
            Self::Look | Self::Chore => 1,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Deliver => "deliver",
            Self::Move => "move",
            Self::Look => "look",
            Self::Chore => "chore",
            Self::Answer => "answer",
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The threads and what they have to do.
#[derive(Clone, Default)]
pub(crate) struct Workers {
    pools: [Arc<Pool>; Work::ALL.len()],
}

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    stopping: bool,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let jobs: Vec<usize> = self.pools.iter().map(|pool| pool.state.lock().jobs.len()).collect();
        f.debug_struct("Workers").field("jobs", &jobs).finish()
    }
}

impl Workers {
    pub(crate) fn start(&self, threads: &Threads) -> std::io::Result<()> {
        for work in Work::ALL {
            for number in 0..work.threads() {
                let pool = Arc::clone(self.pool(work));
                let name = format!("nexo-worker-{}-{number}", work.name());
                let (own_name, noted) = (name.clone(), threads.clone());
                let thread = threads.spawn(&name, move || pool.run(&own_name, &noted))?;
                self.pool(work).state.lock().threads.push(thread);
            }
        }
        Ok(())
    }

    /// Has `job` done soon. After [`Self::stop`] it is dropped.
    pub(crate) fn spawn(&self, work: Work, job: impl FnOnce() + Send + 'static) {
        let pool = self.pool(work);
        let mut state = pool.state.lock();
        if !state.stopping {
            state.jobs.push_back(Box::new(job));
            pool.wake.notify_one();
        }
    }

    /// Finishes what has been started and drops the rest.
    pub(crate) fn stop(&self) {
        let mut threads = Vec::new();
        let mut dropped = Vec::new();
        for pool in &self.pools {
            let mut state = pool.state.lock();
            state.stopping = true;
            // A job may own the last handle to something that needs this lock.
            dropped.push(std::mem::take(&mut state.jobs));
            pool.wake.notify_all();
            threads.append(&mut state.threads);
        }
        drop(dropped);
        for thread in threads {
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }

    fn pool(&self, work: Work) -> &Arc<Pool> {
        &self.pools[work as usize]
    }
}

impl Pool {
    fn run(&self, name: &str, threads: &Threads) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                // A bug in one job must not end all reading and moving.
                let run = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                if parking_lot::MutexGuard::unlocked(&mut state, run).is_err() {
                    threads.note_panic(name);
                }
            } else if state.stopping {
                return;
            } else {
                self.wake.wait(&mut state);
            }
        }
    }
}
