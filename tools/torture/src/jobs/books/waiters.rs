//! Waiters: who asked for what, and what each was told.

use serde_json::Value;

use super::answer::{Filter, items, run_of_items, run_of_reason};
use super::{Books, End, JobNumber, WaiterId};
use crate::clock::{self, Micros};
use crate::jobs::setup::{Kind, REMEMBER, Reply};
use crate::ledger::What;

/// Waiters whose answers are asked for once more when stock is taken.
const RECENT_MAX: usize = 150;

/// What somebody asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) key: u8,
    pub(crate) filter: Filter,
    /// Where the answer goes; `None` if it is asked for.
    pub(crate) reply: Option<Reply>,
}

/// How an answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Call,
    Message {
        from: Reply,
        /// Its number in its queue: a redelivery has the same.
        id: u64,
    },
}

/// What is known of a waiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) request: Request,
    asked_at: Micros,
    /// Whether the broker has said that it knows of it.
    pub(super) is_confirmed: bool,
    job: Option<JobNumber>,
    end: Option<End>,
    has_answer: bool,
    message: Option<u64>,
    is_acked: bool,
}

impl Books {
    /// Somebody is about to ask.
    pub(crate) fn asks(&mut self, request: Request, now: Micros) -> WaiterId {
        let id = WaiterId(self.waiters.len() as u64);
        self.waiters.push(Waiter {
            request,
            asked_at: now,
            is_confirmed: false,
            job: None,
            end: None,
            has_answer: false,
            message: None,
            is_acked: false,
        });
        self.open.insert(id);
        self.totals.waiters += 1;
        id
    }

    /// The broker has said which job a waiter waits for, and whether it knew the waiter already.
    pub(crate) fn asked(&mut self, id: WaiterId, job: JobNumber, state: &str) {
        let Some(waiter) = self.waiters.get_mut(id.0 as usize) else { return };
        let (kind, before) = (waiter.request.kind, waiter.job);
        let was_confirmed = std::mem::replace(&mut waiter.is_confirmed, true);
        waiter.job = Some(job);
        self.saw_job(job, kind);
        if was_confirmed && state != "known" {
            let fact = format!("waiter {id} was known; asked again, it is '{state}' in {job}");
            self.report(What::Unanswered, fact);
        }
        if let Some(before) = before.filter(|before| *before != job) {
            self.report(What::WrongAnswer, format!("waiter {id} waited for {before}, and now for {job}"));
        }
    }

    /// The broker does not know the waiter.
    pub(crate) fn not_known(&mut self, id: WaiterId, now: Micros) {
        let Some(waiter) = self.waiters.get(id.0 as usize).filter(|waiter| waiter.is_confirmed) else {
            return;
        };
        let has_ended = waiter.job.and_then(|job| self.jobs.get(&job)).is_some_and(|job| job.end.is_some());
        let is_old = now > waiter.asked_at + clock::micros(REMEMBER);
        if !has_ended || !is_old {
            let fact =
                format!("waiter {id} is not known any more; it asked at {}: {waiter:?}", waiter.asked_at);
            self.report(What::Unanswered, fact);
        }
    }

    /// An answer came; says whose it is.
    pub(crate) fn answered(&mut self, answer: &Value, via: Via) -> Option<WaiterId> {
        let id = answer["waiter"].as_str().and_then(WaiterId::parse);
        let Some((id, waiter)) = id.and_then(|id| Some((id, *self.waiters.get(id.0 as usize)?))) else {
            self.report(What::Invented, format!("an answer to nobody came, {via:?}: {answer}"));
            return None;
        };
        let wrong =
            |why: &str| format!("waiter {id} got a wrong answer ({why}), {via:?}: {answer}; {waiter:?}");
        if let Via::Message { from, .. } = via
            && waiter.request.reply != Some(from)
        {
            self.report(What::WrongAnswer, wrong("it wants it elsewhere"));
        }
        let job = answer["job"].as_str().and_then(|job| job.parse().ok()).map(JobNumber);
        let Some(job) = job.filter(|job| waiter.job.is_none_or(|known| known == *job)) else {
            self.report(What::WrongAnswer, wrong("of another job"));
            return Some(id);
        };
        self.saw_job(job, waiter.request.kind);
        if answer["key"].as_str() != Some(&waiter.request.key()) {
            self.report(What::WrongAnswer, wrong("of another key"));
        }
        let filter = waiter.request.filter;
        let end = match answer["status"].as_str() {
            Some("done") if filter == Filter::Nothing => {
                if answer["result"] != Value::Array(Vec::new()) {
                    self.report(What::WrongAnswer, wrong("nothing was to be let through"));
                }
                None
            }
            Some("done") => match run_of_items(&answer["result"]) {
                Some(run) if answer["result"] == items(run, filter) => Some(End::Done(run)),
                _ => {
                    self.report(What::WrongAnswer, wrong("other items are let through"));
                    None
                }
            },
            Some("failed") => {
                answer["error"].as_str().and_then(run_of_reason).map(End::GivenUp).or_else(|| {
                    self.report(What::WrongAnswer, wrong("nobody has failed like that"));
                    None
                })
            }
            _ => {
                self.report(What::WrongAnswer, wrong("nobody has asked for that"));
                None
            }
        };
        if let Some(end) = end {
            if self.can_have_ended(job, end) {
                self.ended(job, end, &id);
            } else {
                self.report(What::WrongAnswer, wrong("no worker has said that"));
            }
        }
        self.note_answer(id, job, end, via);
        Some(id)
    }

    fn note_answer(&mut self, id: WaiterId, job: JobNumber, end: Option<End>, via: Via) {
        let before = self.waiters[id.0 as usize];
        if let (Some(first), Some(end)) = (before.end, end)
            && first != end
        {
            let fact = format!("waiter {id} was told that {job} is {end}, and before, that it is {first}");
            self.report(What::AnsweredTwice, fact);
        }
        if let Via::Message { from, id: message } = via {
            match before.message {
                None => {
                    self.totals.messages += 1;
                    self.waiters[id.0 as usize].message = Some(message);
                }
                Some(first) if first != message => {
                    let fact = format!(
                        "waiter {id} got two messages from '{}', {first} and {message}: {before:?}",
                        from.name()
                    );
                    self.report(What::AnsweredTwice, fact);
                }
                Some(_) if before.is_acked => {
                    let fact = format!(
                        "message {message} to waiter {id} came from '{}' and was acknowledged",
                        from.name()
                    );
                    self.report(What::Resurrected, fact);
                }
                Some(_) => self.totals.messages_again += 1,
            }
        }
        let waiter = &mut self.waiters[id.0 as usize];
        waiter.job = Some(job);
        waiter.end = waiter.end.or(end);
        waiter.has_answer = true;
        let is_by_message = waiter.request.reply.is_some();
        if !is_by_message || waiter.message.is_some() {
            self.close(id);
        }
    }

    fn close(&mut self, id: WaiterId) {
        if self.open.remove(&id) {
            self.totals.answered += 1;
            if self.recent.len() == RECENT_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back(id);
        }
    }

    /// The acknowledgement of a waiter's message was answered. Of two messages, which is a violation already, the first counts.
    pub(crate) fn acked(&mut self, id: WaiterId, message: u64) {
        if let Some(waiter) = self.waiters.get_mut(id.0 as usize) {
            waiter.is_acked |= waiter.message == Some(message);
        }
    }

    /// How many have not got what they asked for.
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Those who wait for a message from a queue in which there is none. If so many were lost to damage, they are excused.
    pub(crate) fn excuse(&mut self, reply: Reply, damaged: u64) -> Vec<WaiterId> {
        let waits = |id: &&WaiterId| self.waiters[id.0 as usize].request.reply == Some(reply);
        let missing: Vec<WaiterId> = self.open.iter().filter(waits).copied().collect();
        if missing.len() as u64 > damaged {
            return Vec::new();
        }
        missing.iter().for_each(|id| self.close(*id));
        missing
    }

    /// Tells of all who have not got what they asked for, and waits for them no longer.
    pub(crate) fn give_up(&mut self) {
        for id in std::mem::take(&mut self.open) {
            let waiter = self.waiters[id.0 as usize];
            self.report(What::Unanswered, format!("waiter {id} has no answer: {waiter:?}"));
        }
    }

    /// The last that were answered, and are remembered for certain.
    pub(crate) fn recent(&self, now: Micros) -> Vec<(WaiterId, Kind)> {
        let is_young = |id: &&WaiterId| {
            let waiter = &self.waiters[id.0 as usize];
            waiter.is_confirmed && now < waiter.asked_at + clock::micros(REMEMBER) / 2
        };
        let recent = self.recent.iter().filter(is_young);
        recent.map(|id| (*id, self.waiters[id.0 as usize].request.kind)).collect()
    }
}

impl Request {
    /// The key as the broker is told.
    pub(crate) fn key(&self) -> String {
        format!("key {}", self.key)
    }
}
