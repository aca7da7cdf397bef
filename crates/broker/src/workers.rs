//! A few threads for work that may wait for the disk: reading messages back, moving dead letters.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

/// Two: one that waits for a slow read does not hold up the other queues, and the machine has few cores.
const THREADS: usize = 2;

type Job = Box<dyn FnOnce() + Send>;

/// The threads and what they have to do.
#[derive(Clone, Default)]
pub(crate) struct Workers {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
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
        f.debug_struct("Workers").field("jobs", &self.shared.state.lock().jobs.len()).finish()
    }
}

impl Workers {
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let mut state = self.shared.state.lock();
        for number in 0..THREADS {
            let shared = Arc::clone(&self.shared);
            let name = format!("nexo-worker-{number}");
            state.threads.push(thread::Builder::new().name(name).spawn(move || shared.run())?);
        }
        Ok(())
    }

    /// Has `job` done soon. After [`Self::stop`] it is dropped.
    pub(crate) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        if !state.stopping {
            state.jobs.push_back(Box::new(job));
            self.shared.wake.notify_one();
        }
    }

    /// Finishes what has been started and drops the rest.
    pub(crate) fn stop(&self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.stopping = true;
            state.jobs.clear();
            self.shared.wake.notify_all();
            std::mem::take(&mut state.threads)
        };
        for thread in threads {
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                // A bug in one job must not end all reading and moving.
                let run = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                if parking_lot::MutexGuard::unlocked(&mut state, run).is_err() {
                    tracing::error!("a job of the broker panicked");
                }
            } else if state.stopping {
                return;
            } else {
                self.wake.wait(&mut state);
            }
        }
    }
}
