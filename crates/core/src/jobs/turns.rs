//! Whose waiters are answered next: queues in a circle, and in each queue its jobs in a circle. So neither a queue nor a job whose
//! answers take long keeps others from theirs.

use std::collections::BTreeMap;
use std::ops::Bound;

use nexo_types::{JobId, JobQueueId};

use super::queue::JobQueue;
use super::state::Jobs;

/// Who has had a turn.
#[derive(Debug, Default)]
pub struct Turns {
    queue: Option<JobQueueId>,
    /// The job of each queue that was last.
    jobs: BTreeMap<JobQueueId, u64>,
}

impl Turns {
    /// Finished jobs with waiters that have no answer, at most so many: one of each queue before a second one of any.
    #[must_use]
    pub fn next(&self, jobs: &Jobs, max: usize) -> Vec<JobId> {
        let (behind, rest) = match self.queue {
            Some(last) => (Bound::Excluded(last), Bound::Included(last)),
            None => (Bound::Unbounded, Bound::Excluded(JobQueueId(0))),
        };
        let circle =
            jobs.queues.range((behind, Bound::Unbounded)).chain(jobs.queues.range((Bound::Unbounded, rest)));
        let mut queues: Vec<_> = circle
            .map(|(_, queue)| queue)
            .filter(|queue| !queue.to_answer.is_empty())
            .take(max)
            .map(|queue| (queue.id, self.of_queue(queue)))
            .collect();
        let mut found = Vec::new();
        while found.len() < max && !queues.is_empty() {
            queues.retain_mut(|(id, numbers)| match numbers.next() {
                Some(number) if found.len() < max => {
                    found.push(JobId::new(*id, number));
                    true
                }
                Some(_) | None => false,
            });
        }
        found
    }

    fn of_queue<'a>(&self, queue: &'a JobQueue) -> impl Iterator<Item = u64> + use<'a> {
        // Numbers are far from the highest there is.
        let first = self.jobs.get(&queue.id).map_or(0, |last| last.saturating_add(1));
        queue.to_answer.range(first..).chain(queue.to_answer.range(..first)).copied()
    }

    /// A job has had its turn.
    pub fn note(&mut self, job: JobId) {
        self.queue = Some(job.queue());
        self.jobs.insert(job.queue(), job.sequence());
    }

    /// Nobody waits for a turn any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use nexo_types::{JobQueueName, Timestamp};

    use crate::jobs::config::JobQueueConfig;

    /// Queues with these numbers of jobs whose waiters are to be answered.
    fn jobs_of(counts: &[u64]) -> Jobs {
        let mut jobs = Jobs::new();
        for (at, count) in counts.iter().enumerate() {
            let (id, name) = (JobQueueId(at as u32), JobQueueName::new(&format!("q{at}")).unwrap());
            let config = Arc::new(JobQueueConfig::default());
            let mut queue = JobQueue::new(id, name, config, None, Timestamp(0));
            queue.to_answer.extend(0..*count);
            jobs.queues.insert(id, queue);
        }
        jobs
    }

    fn told(turns: &Turns, jobs: &Jobs, max: usize) -> Vec<(u32, u64)> {
        turns.next(jobs, max).into_iter().map(|job| (job.queue().0, job.sequence())).collect()
    }

    #[test]
    fn every_queue_has_a_turn_before_any_has_two() {
        let (jobs, mut turns) = (jobs_of(&[3, 0, 1, 2]), Turns::default());
        assert_eq!(told(&turns, &jobs, 10), [(0, 0), (2, 0), (3, 0), (0, 1), (3, 1), (0, 2)]);
        assert_eq!(told(&turns, &jobs, 2), [(0, 0), (2, 0)]);
        turns.note(JobId::new(JobQueueId(2), 0));
        assert_eq!(told(&turns, &jobs, 4), [(3, 0), (0, 0), (2, 0), (3, 1)]);
        turns.note(JobId::new(JobQueueId(3), 1));
        assert_eq!(told(&turns, &jobs, 3), [(0, 0), (2, 0), (3, 0)]);
    }

    #[test]
    fn a_job_that_has_had_its_turn_is_behind_the_others_of_its_queue() {
        let (jobs, mut turns) = (jobs_of(&[3]), Turns::default());
        for expected in [0, 1, 2, 0, 1] {
            let job = turns.next(&jobs, 1)[0];
            assert_eq!(job.sequence(), expected);
            turns.note(job);
        }
    }
}
