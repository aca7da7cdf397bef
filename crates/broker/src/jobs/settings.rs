//! Settings of job queues and budgets. A change is made from the settings there are under the lock of the machine: of two that name
//! different settings at the same time, neither is lost.

use std::sync::Arc;

use nexo_core::jobs::{BudgetConfig, JobAnswer, JobCommand, JobQueueConfig, Jobs};
use nexo_log::Claim;
use nexo_types::{BudgetName, JobQueueName};

use super::JobCallError;
use crate::broker::Broker;

impl Broker {
    /// Has a job queue with these settings, new or instead of those it has. `true` if it is new.
    ///
    /// # Errors
    /// If a setting cannot be, there is no such virtual host, or the log takes no more.
    pub async fn put_job_queue(
        &self,
        name: &JobQueueName,
        config: JobQueueConfig,
    ) -> Result<bool, JobCallError> {
        self.change_job_queue(name, |_| Ok(config.clone())).await?
    }

    /// Makes a job queue, or gives one other settings: `change` makes them from those it has, if there is one, and others wait
    /// meanwhile. `true` if it is new.
    ///
    /// # Errors
    /// If a setting cannot be, there is no such virtual host, or the log takes no more; in the inner result, if `change` does not
    /// want it.
    pub async fn change_job_queue<E>(
        &self,
        name: &JobQueueName,
        change: impl Fn(Option<&JobQueueConfig>) -> Result<JobQueueConfig, E>,
    ) -> Result<Result<bool, E>, JobCallError> {
        self.refuse_closed_vhost(&name.vhost())?;
        self.change_settings(|jobs| {
            let before = jobs.queue(name).map(|queue| &**queue.config());
            let config = Arc::new(change(before)?);
            Ok((JobCommand::PutQueue { name: name.clone(), config }, before.is_none()))
        })
        .await
    }

    /// Has a budget with these settings, new or instead of those it has. `true` if it is new.
    ///
    /// # Errors
    /// As [`Self::put_job_queue`].
    pub async fn put_budget(&self, name: &BudgetName, config: BudgetConfig) -> Result<bool, JobCallError> {
        self.change_budget(name, |_| Ok(config)).await?
    }

    /// Makes a budget, or gives one other settings, as [`Self::change_job_queue`] does. What jobs have reserved stays reserved.
    ///
    /// # Errors
    /// As [`Self::change_job_queue`].
    pub async fn change_budget<E>(
        &self,
        name: &BudgetName,
        change: impl Fn(Option<&BudgetConfig>) -> Result<BudgetConfig, E>,
    ) -> Result<Result<bool, E>, JobCallError> {
        self.refuse_closed_vhost(&name.vhost())?;
        self.change_settings(|jobs| {
            let before = jobs.budget(name).map(|budget| budget.config());
            let config = change(before)?;
            Ok((JobCommand::PutBudget { name: name.clone(), config }, before.is_none()))
        })
        .await
    }

    /// Has a command carried out that is made from what is there, under the lock.
    async fn change_settings<E>(
        &self,
        make: impl Fn(&Jobs) -> Result<(JobCommand, bool), E>,
    ) -> Result<Result<bool, E>, JobCallError> {
        let mut is_new = false;
        let mut unwanted = None;
        let changed = self.until_changed(|shared| {
            let (_, written, touched) = shared.decide_jobs(Claim::Normal, |jobs, now| {
                let command = match make(jobs) {
                    Ok((command, new)) => {
                        is_new = new;
                        command
                    }
                    Err(error) => {
                        unwanted = Some(error);
                        return Ok((Vec::new(), JobAnswer::Done));
                    }
                };
                jobs.decide_command(now, &command)
            })?;
            shared.serve_takers(touched);
            Ok(((), written))
        });
        changed.await?;
        Ok(unwanted.map_or(Ok(is_new), Err))
    }
}
