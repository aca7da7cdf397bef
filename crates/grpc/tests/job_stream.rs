//! Calls of job queues over one stream: each is answered by itself, in any order, and a stream that breaks leaves nothing behind.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use bytes::Bytes;
use common::{Served, within};
use nexo_access::{NewPassword, PermissionTexts, UserName};
use nexo_broker::access::AccessRecord;
use nexo_grpc::client::{Client, Credentials};
use nexo_grpc::proto::job_call::Call;
use nexo_grpc::proto::job_reply::Reply;
use nexo_grpc::proto::{self, JobAsked, JobOutcome};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

/// A stream, and answers that nobody has asked for yet.
struct Calls {
    requests: mpsc::Sender<proto::JobCallsRequest>,
    replies: Streaming<proto::JobCallsResponse>,
    come: BTreeMap<u64, Reply>,
}

impl Calls {
    async fn open(client: &Client) -> Self {
        let (requests, stream) = mpsc::channel(8);
        let replies = client.jobs().calls(ReceiverStream::new(stream)).await.unwrap().into_inner();
        Self { requests, replies, come: BTreeMap::new() }
    }

    async fn send(&self, calls: impl IntoIterator<Item = (u64, Call)>) {
        let call = |(sequence, call)| proto::JobCall { sequence, call: Some(call) };
        let calls = calls.into_iter().map(call).collect();
        within(self.requests.send(proto::JobCallsRequest { calls })).await.unwrap();
    }

    /// The answer to a call, whichever others come before.
    async fn reply(&mut self, sequence: u64) -> Reply {
        while !self.come.contains_key(&sequence) {
            let response = within(self.replies.message()).await.unwrap().expect("the stream goes on");
            for reply in response.replies {
                let twice = self.come.insert(reply.sequence, reply.reply.unwrap());
                assert!(twice.is_none(), "{} is answered once", reply.sequence);
            }
        }
        self.come.remove(&sequence).unwrap()
    }

    async fn taken(&mut self, sequence: u64) -> Vec<proto::TakenJob> {
        let Reply::Take(taken) = self.reply(sequence).await else { panic!("jobs come") };
        taken.jobs
    }

    async fn refused(&mut self, sequence: u64) -> (Code, String) {
        let Reply::Error(error) = self.reply(sequence).await else { panic!("it is refused") };
        (error.code.into(), error.message)
    }
}

fn ask(key: &str, waiter: &str, wait_ms: u64) -> Call {
    let waiter = Some(proto::JobWaiter { id: waiter.into(), ..Default::default() });
    let (queue, r#type, key) = ("deals".into(), "search".into(), key.into());
    Call::Ask(proto::AskJobRequest { queue, r#type, key, waiter, wait_ms, ..Default::default() })
}

fn take(max: u32, wait_ms: u64) -> Call {
    let (queue, worker) = ("deals".into(), "w".into());
    Call::Take(proto::TakeJobsRequest { queue, worker, max, wait_ms, ..Default::default() })
}

fn complete(receipt: &str, result: &'static str) -> Call {
    let (receipt, result) = (receipt.into(), Bytes::from_static(result.as_bytes()));
    Call::Complete(proto::CompleteJobRequest { receipt, result, ..Default::default() })
}

async fn with_deals() -> Served {
    let served = Served::start().await;
    let request = proto::PutJobQueueRequest { queue: "deals".into(), ..Default::default() };
    served.client.jobs().put_queue(request).await.unwrap();
    served
}

#[tokio::test(flavor = "multi_thread")]
async fn asked_for_taken_and_completed_over_one_stream() {
    let served = with_deals().await;
    let mut calls = Calls::open(&served.client).await;
    calls
        .send([(2, ask("phones", "ann", 60_000)), (3, ask("phones", "bob", 60_000)), (1, take(1, 60_000))])
        .await;
    let job = calls.taken(1).await.remove(0);
    assert!(calls.come.is_empty(), "nobody is answered before the work is done");
    let unknown = Call::GiveBack(proto::GiveBackJobRequest { receipt: "99-1".into(), ..Default::default() });
    calls.send([(4, complete(&job.receipt, "[1,2]")), (5, unknown)]).await;
    for (sequence, state) in [(2, JobAsked::Created), (3, JobAsked::Joined)] {
        let Reply::Ask(asked) = calls.reply(sequence).await else { panic!("it is answered") };
        let answer = asked.answer.clone().unwrap();
        assert_eq!((asked.job, asked.state(), answer.outcome()), (job.job, state, JobOutcome::Done));
        assert_eq!(answer.result, "[1,2]");
    }
    assert!(matches!(calls.reply(4).await, Reply::Complete(_)));
    assert_eq!(calls.refused(5).await.0, Code::NotFound);
    calls.send([(6, Call::Leave(proto::LeaveJobRequest::default()))]).await;
    let (code, message) = calls.refused(6).await;
    assert_eq!(code, Code::InvalidArgument, "{message}");
    let nothing = proto::JobCallsRequest { calls: vec![proto::JobCall { sequence: 7, call: None }] };
    calls.requests.send(nothing).await.unwrap();
    assert_eq!(calls.refused(7).await.0, Code::InvalidArgument);
    // Its last word: what is under way is still answered.
    calls.send([(8, ask("phones", "eve", 60_000))]).await;
    let Calls { requests, mut replies, .. } = calls;
    drop(requests);
    let last = within(replies.message()).await.unwrap().unwrap().replies.remove(0);
    assert!(matches!(last.reply, Some(Reply::Ask(asked)) if asked.state() == JobAsked::Cached));
    assert!(within(replies.message()).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_more_than_may_be_under_way_waits_and_all_are_answered() {
    const ASKED: u64 = 5_000;
    let served = with_deals().await;
    let mut calls = Calls::open(&served.client).await;
    for first in (0..ASKED).step_by(1_000) {
        let some =
            (first..first + 1_000).map(|n| (n, ask(&format!("key {}", n % 7), &n.to_string(), 60_000)));
        calls.send(some).await;
    }
    let mut worker = Calls::open(&served.client).await;
    let mut done = 0;
    for sequence in 0..ASKED {
        while !calls.come.contains_key(&sequence) {
            done += 1;
            worker.send([(done, take(10, 20))]).await;
            for job in worker.taken(done).await {
                done += 1;
                worker.send([(done, complete(&job.receipt, "[]"))]).await;
                worker.reply(done).await;
            }
            if let Ok(response) =
                tokio::time::timeout(std::time::Duration::from_millis(20), calls.replies.message()).await
            {
                let replies = response.unwrap().unwrap().replies;
                calls.come.extend(replies.into_iter().map(|reply| (reply.sequence, reply.reply.unwrap())));
            }
        }
        assert!(
            matches!(calls.reply(sequence).await, Reply::Ask(asked) if asked.answer.is_some()),
            "{sequence}"
        );
    }
    let much = (0..5_000).map(|n| proto::JobCall { sequence: n, call: None }).collect();
    calls.requests.send(proto::JobCallsRequest { calls: much }).await.unwrap();
    let status = within(calls.replies.message()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("at most 4096"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_takes_no_job_with_it() {
    let served = with_deals().await;
    let calls = Calls::open(&served.client).await;
    calls.send([(1, take(1, 60_000))]).await;
    while served.broker.waiting_workers() == 0 {
        tokio::task::yield_now().await;
    }
    drop(calls);
    while served.broker.waiting_workers() > 0 {
        tokio::task::yield_now().await;
    }
    let mut calls = Calls::open(&served.client).await;
    calls.send([(1, ask("k", "ann", 0)), (2, take(1, 60_000))]).await;
    assert_eq!(calls.taken(2).await.len(), 1, "nobody else has it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_does_not_hold_up_the_end() {
    let mut served = with_deals().await;
    let mut calls = Calls::open(&served.client).await;
    calls.send([(1, take(1, 3_600_000)), (2, ask("k", "ann", 3_600_000))]).await;
    assert_eq!(calls.taken(1).await.len(), 1);
    served.begin_stop();
    let (code, message) = calls.refused(2).await;
    assert_eq!(code, Code::Unavailable, "{message}");
    assert!(within(calls.replies.message()).await.unwrap().is_none());
    drop(calls);
    served.stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_of_a_stream_needs_its_permission_when_it_is_made() {
    let served = with_deals().await;
    let ann = UserName::new("ann").unwrap();
    served.logins.add_user(&ann, NewPassword::Plain(b"ann".to_vec()), [].into()).await.unwrap();
    let permit = async |write: &str| {
        let permissions =
            PermissionTexts { configure: String::new(), write: write.into(), read: String::new() };
        let record = AccessRecord::SetPermissions { user: ann.clone(), vhost: "/".into(), permissions };
        served.broker.change_access(&[record]).await.unwrap();
    };
    permit("deals").await;
    let mut calls = Calls::open(&served.client.with(Credentials::password("ann", "ann"))).await;
    calls.send([(1, ask("k", "w", 0)), (2, take(1, 0)), (3, ask("k", "v", 60_000))]).await;
    assert!(matches!(calls.reply(1).await, Reply::Ask(_)));
    assert_eq!(calls.refused(2).await.0, Code::PermissionDenied);
    permit("").await;
    assert_eq!(calls.refused(3).await.0, Code::PermissionDenied, "it waited");
    calls.send([(4, ask("k", "u", 0))]).await;
    assert_eq!(calls.refused(4).await.0, Code::PermissionDenied);
    served.logins.delete_user(&ann).await.unwrap();
    assert!(within(calls.replies.message()).await.unwrap().is_none(), "a user who is gone has no stream");
}
