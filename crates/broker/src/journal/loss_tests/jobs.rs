//! Job queues over a journal that loses.

use std::collections::BTreeMap;

use nexo_core::jobs::JobQueueConfig;
use nexo_core::message::NewMessage;
use nexo_types::{JobId, JobQueueId, JobQueueName};

use super::{ProposeError, name, open, rebuilt};
use crate::journal::fake::Pace;

/// Answers are made without a lock, from what was in memory. They are given only if that is the memory still: otherwise the end of the
/// job, or the waiter at that place, may be lost.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_were_made_before_a_loss_are_not_given_after_it() {
    let (broker, fake) = open(1 << 20);
    broker.create_queue(&name("q"), Default::default()).await.unwrap();
    broker.put_job_queue(&JobQueueName::new("jobs").unwrap(), JobQueueConfig::default()).await.unwrap();
    let job = JobId::new(JobQueueId(1), 0);
    let term = broker.shared.memory_term();

    fake.set_pace(Pace::Held);
    let (pushing, lost) = (broker.clone(), fake.clone());
    let push = tokio::spawn(async move { pushing.push(&name("q"), vec![NewMessage::new("lost")]).await });
    while lost.pending() == 0 {
        tokio::task::yield_now().await;
    }
    fake.lose_behind(0);
    push.await.unwrap().unwrap_err();
    rebuilt(&broker, &fake).await;

    let given = broker.shared.push_answers(term, job, 1, &BTreeMap::new());
    assert!(matches!(given, Err(ProposeError::Lost)), "{given:?}");
    assert_eq!(fake.pending(), 0, "nothing was proposed");
}
