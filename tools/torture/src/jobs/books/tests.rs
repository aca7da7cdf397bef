//! Violations that the books must see, and what they must not take for one.

use serde_json::{Value, json};

use super::*;
use crate::clock;
use crate::jobs::setup::{INITIAL, REFILL_EVERY, REFILL_TOKENS, REMEMBER, Reply};

const START: Micros = 1_000_000_000;
const SECOND: Micros = 1_000_000;
const JOB: JobNumber = JobNumber(7);

/// Books with a budget that was made a second before the start.
fn books() -> Books {
    let mut books = Books::default();
    books.budget_made(START - SECOND, START - SECOND, REFILL_EVERY);
    books
}

fn found(books: &mut Books) -> Vec<What> {
    books.take_found().iter().map(|violation| violation.what).collect()
}

fn hold(key: u8, job: JobNumber, until: Micros) -> Hold {
    Hold { kind: Kind::Share, key, job, worker: 1, cost: 2, until }
}

fn request(reply: Option<Reply>) -> Request {
    Request { kind: Kind::Share, key: 3, filter: Filter::Remainder(2), reply }
}

/// A waiter of the job that the broker knows.
fn waiter(books: &mut Books, reply: Option<Reply>) -> WaiterId {
    let waiter = books.asks(request(reply), START);
    books.asked(waiter, JOB, "created");
    waiter
}

/// Somebody has done the job.
fn done(books: &mut Books) -> RunId {
    let run = books.handed(hold(3, JOB, START + SECOND), START);
    books.saying(run, Word::Complete { used: 1 });
    books.settled(run, START + 10);
    run
}

fn answer(waiter: WaiterId, run: RunId) -> Value {
    let result = items(run, Filter::Remainder(2));
    json!({ "waiter": waiter.to_string(), "job": "7", "key": "key 3", "status": "done", "result": result })
}

fn look(books: &Books, tokens: i64, reserved: u64, used: u64) -> Look {
    Look { sent_at: START, used_before: books.used(), got_at: START, tokens, reserved, used }
}

/// What has come until the start.
fn came() -> i64 {
    (INITIAL + SECOND / clock::micros(REFILL_EVERY) * REFILL_TOKENS) as i64
}

#[test]
fn every_waiter_with_its_own_answer_is_as_it_should_be() {
    let mut books = books();
    let (call, message) = (waiter(&mut books, None), waiter(&mut books, Some(Reply::A)));
    let run = done(&mut books);
    assert_eq!(books.answered(&answer(call, run), Via::Call), Some(call));
    assert_eq!(books.open(), 1, "the other waits for a message");
    books.answered(&answer(message, run), Via::Call);
    assert_eq!(books.open(), 1, "and asking for it is not the same");
    let via = Via::Message { from: Reply::A, id: 4 };
    books.answered(&answer(message, run), via);
    books.answered(&answer(message, run), via);
    books.acked(message, 4);
    assert_eq!((found(&mut books), books.open()), (vec![], 0));
    assert_eq!((books.totals().messages, books.totals().messages_again), (1, 1));
    let figures = Figures { created: 1, waiters: 2, answered: 2, done: 1, failed: 0 };
    assert_eq!((books.figures(Kind::Share), books.figures(Kind::Next)), (figures, Figures::default()));
}

#[test]
fn two_messages_to_one_waiter_are_two_answers_and_one_that_was_acknowledged_does_not_come_again() {
    let mut books = books();
    let waiter = waiter(&mut books, Some(Reply::A));
    let run = done(&mut books);
    let via = |id| Via::Message { from: Reply::A, id };
    books.answered(&answer(waiter, run), via(4));
    books.answered(&answer(waiter, run), via(5));
    assert_eq!(found(&mut books), [What::AnsweredTwice]);
    books.acked(waiter, 5);
    books.answered(&answer(waiter, run), via(4));
    assert_eq!(found(&mut books), [], "the first was not acknowledged");
    books.acked(waiter, 4);
    books.answered(&answer(waiter, run), via(4));
    assert_eq!(found(&mut books), [What::Resurrected]);
}

#[test]
fn a_message_in_another_queue_or_to_nobody_is_told() {
    let mut books = books();
    let waiter = waiter(&mut books, Some(Reply::A));
    let run = done(&mut books);
    books.answered(&answer(waiter, run), Via::Message { from: Reply::B, id: 1 });
    assert_eq!(found(&mut books), [What::WrongAnswer]);
    books.answered(&answer(WaiterId(99), run), Via::Call);
    assert_eq!(found(&mut books), [What::Invented]);
}

#[test]
fn an_answer_is_what_the_filter_leaves_of_a_result_that_a_worker_sent() {
    let mut books = books();
    let waiter = waiter(&mut books, None);
    let run = done(&mut books);
    let told = |books: &mut Books, name: &str, value: Value| {
        let mut answer = answer(waiter, run);
        answer[name] = value;
        books.answered(&answer, Via::Call);
        found(books)
    };
    assert_eq!(told(&mut books, "result", items(run, Filter::All)), [What::WrongAnswer]);
    assert_eq!(told(&mut books, "result", json!([])), [What::WrongAnswer]);
    assert_eq!(told(&mut books, "key", json!("key 4")), [What::WrongAnswer]);
    assert_eq!(told(&mut books, "job", json!("8")), [What::WrongAnswer]);
    assert_eq!(told(&mut books, "status", json!("expired")), [What::WrongAnswer]);
    assert_eq!(told(&mut books, "status", json!("failed")), [What::WrongAnswer]);
    let other = books.handed(hold(4, JobNumber(8), START + SECOND), START);
    let result = items(other, Filter::Remainder(2));
    let told = told(&mut books, "result", result);
    assert_eq!(told, [What::WrongAnswer, What::AnsweredTwice], "that is another job's, and not as before");
}

#[test]
fn all_waiters_of_a_job_and_its_worker_are_told_of_the_same_end() {
    let mut books = books();
    let (first, second) = (waiter(&mut books, None), waiter(&mut books, None));
    let late = books.handed(hold(3, JOB, START + SECOND), START);
    let next = books.handed(hold(3, JOB, START + 4 * SECOND), START + 2 * SECOND);
    books.saying(late, Word::Complete { used: 1 });
    books.saying(next, Word::Complete { used: 1 });
    books.answered(&answer(first, next), Via::Call);
    assert_eq!(found(&mut books), []);
    books.answered(&answer(second, late), Via::Call);
    assert_eq!(found(&mut books), [What::AnsweredTwice]);
    books.answered(&answer(first, late), Via::Call);
    assert_eq!(found(&mut books), [What::AnsweredTwice, What::AnsweredTwice], "the job, and the waiter");
    books.settled(late, START + 3 * SECOND);
    assert_eq!(found(&mut books), [What::AnsweredTwice]);
}

#[test]
fn a_job_that_is_given_up_says_so_to_its_waiters() {
    let mut books = books();
    let (first, second) = (waiter(&mut books, None), waiter(&mut books, None));
    let failed = |waiter: WaiterId, run| {
        let error = reason(run);
        json!({ "waiter": waiter.to_string(), "job": "7", "key": "key 3", "status": "failed", "error": error })
    };
    let run = books.handed(hold(3, JOB, START + SECOND), START);
    books.saying(run, Word::Fail { used: 0 });
    books.answered(&failed(first, run), Via::Call);
    assert_eq!(found(&mut books), [What::WrongAnswer], "it was to be tried again");
    let run = books.handed(hold(3, JOB, START + 4 * SECOND), START + 2 * SECOND);
    books.saying(run, Word::GiveUp { used: 0 });
    books.answered(&failed(second, run), Via::Call);
    assert_eq!(found(&mut books), []);
}

#[test]
fn a_waiter_that_was_known_is_not_forgotten_before_its_time() {
    let mut books = books();
    let unanswered = books.asks(request(None), START);
    books.not_known(unanswered, START);
    assert_eq!(found(&mut books), [], "its request may not have come");
    let waiter = waiter(&mut books, None);
    let long_ago = START + clock::micros(REMEMBER) + 1;
    books.not_known(waiter, long_ago);
    assert_eq!(found(&mut books), [What::Unanswered], "its job is not even done");
    done(&mut books);
    books.not_known(waiter, START + SECOND);
    assert_eq!(found(&mut books), [What::Unanswered]);
    books.not_known(waiter, long_ago);
    assert_eq!(found(&mut books), []);
    books.asked(waiter, JOB, "known");
    assert_eq!(found(&mut books), []);
    books.asked(waiter, JOB, "joined");
    books.asked(waiter, JobNumber(8), "known");
    assert_eq!(found(&mut books), [What::Unanswered, What::WrongAnswer]);
    books.give_up();
    assert_eq!(found(&mut books), [What::Unanswered, What::Unanswered], "neither has an answer");
}

#[test]
fn damage_excuses_as_many_messages_as_the_broker_counts() {
    let mut books = books();
    let waiters = [waiter(&mut books, Some(Reply::A)), waiter(&mut books, Some(Reply::A))];
    waiter(&mut books, Some(Reply::B));
    assert_eq!(books.excuse(Reply::A, 1), []);
    assert_eq!(books.excuse(Reply::A, 2), waiters);
    assert_eq!(books.open(), 1);
}

#[test]
fn two_workers_do_not_have_one_key_at_once() {
    let mut books = books();
    books.handed(hold(3, JOB, START + SECOND), START);
    books.handed(hold(4, JobNumber(8), START + SECOND), START);
    books.handed(Hold { kind: Kind::Next, ..hold(3, JobNumber(9), START + SECOND) }, START);
    assert_eq!(found(&mut books), [], "another key, another queue");
    books.handed(hold(3, JobNumber(10), START + SECOND), START + 10);
    assert_eq!(found(&mut books), [What::SharedKey]);
}

#[test]
fn a_key_is_free_when_its_worker_has_said_something_or_its_lease_is_over() {
    let mut books = books();
    let first = books.handed(hold(3, JOB, START + SECOND), START);
    books.saying(first, Word::GiveBack);
    books.handed(hold(3, JOB, START + SECOND), START + 10);
    let third = books.handed(hold(3, JOB, START + 3 * SECOND), START + SECOND);
    assert_eq!(found(&mut books), []);
    books.extended(third, Ok(START + 9 * SECOND), START + 2 * SECOND);
    books.handed(hold(3, JOB, START + 9 * SECOND), START + 5 * SECOND);
    assert_eq!(found(&mut books), [What::SharedKey], "it has more time");
}

#[test]
fn a_job_that_has_ended_is_not_handed_out() {
    let mut books = books();
    done(&mut books);
    books.handed(hold(3, JOB, START + 2 * SECOND), START + SECOND);
    assert_eq!(found(&mut books), [What::Resurrected]);
}

#[test]
fn a_worker_keeps_its_job_until_its_lease_is_over() {
    let mut books = books();
    let run = books.handed(hold(3, JOB, START + SECOND), START);
    books.extended(run, Err(()), START + 10);
    assert_eq!(found(&mut books), [What::LeaseBroken]);
    books.saying(run, Word::Fail { used: 1 });
    books.refused(run, START + 10);
    assert_eq!(found(&mut books), [What::LeaseBroken]);
    let run = books.handed(hold(4, JobNumber(8), START + SECOND), START);
    books.saying(run, Word::Complete { used: 1 });
    books.refused(run, START + 2 * SECOND);
    assert_eq!(found(&mut books), [], "it was late");
    let run = books.handed(hold(5, JobNumber(9), START + SECOND), START);
    books.saying(run, Word::Fail { used: 1 });
    books.saying(run, Word::Fail { used: 1 });
    books.refused(run, START + 10);
    assert_eq!(found(&mut books), [], "the first time, it may have been heard");
}

#[test]
fn what_is_left_reserved_and_used_is_what_has_come() {
    let mut books = books();
    books.looked(&look(&books, came(), 0, 0));
    assert_eq!(found(&mut books), []);
    books.looked(&look(&books, came() + 2 * REFILL_TOKENS as i64, 0, 0));
    books.looked(&look(&books, came() - 2 * REFILL_TOKENS as i64, 0, 0));
    assert_eq!(found(&mut books), [What::Overspent, What::Overspent]);
    books.handed(hold(3, JOB, START + SECOND), START);
    books.looked(&look(&books, came() - 2, 2, 0));
    assert_eq!(found(&mut books), []);
    books.looked(&look(&books, came(), 0, 0));
    assert_eq!(found(&mut books), [What::Overspent], "a worker holds a job that costs two");
}

#[test]
fn what_is_used_is_what_workers_have_said() {
    let mut books = books();
    let run = books.handed(hold(3, JOB, START + SECOND), START);
    books.saying(run, Word::Complete { used: 2 });
    books.looked(&look(&books, came() - 2, 2, 0));
    books.looked(&look(&books, came() - 2, 0, 2));
    assert_eq!(found(&mut books), [], "it may have been heard or not");
    books.settled(run, START);
    books.looked(&look(&books, came(), 0, 0));
    books.looked(&look(&books, came() - 3, 0, 3));
    assert_eq!(found(&mut books), [What::Figures, What::Figures]);
}

#[test]
fn a_budget_is_below_nothing_only_by_what_was_paid_late() {
    let mut books = books();
    let below = |books: &Books| look(books, -1, 0, came() as u64 + 1);
    books.looked(&below(&books));
    assert_eq!(found(&mut books), [What::Overspent, What::Figures]);
    let run = books.handed(hold(3, JOB, START), START - SECOND);
    books.saying(run, Word::Complete { used: 2 });
    books.settled(run, START);
    books.looked(&below(&books));
    assert_eq!(found(&mut books), [What::Figures]);
    // It has had tokens since.
    books.looked(&Look { sent_at: START + 1, got_at: START + 1, ..look(&books, came() - 2, 0, 2) });
    assert_eq!(found(&mut books), []);
    books.looked(&below(&books));
    assert_eq!(found(&mut books), [What::Overspent, What::Figures]);
}

#[test]
fn workers_do_not_hold_more_than_has_come() {
    let mut books = books();
    let dear = |key| Hold {
        cost: came() as u64 / 2 + REFILL_TOKENS,
        ..hold(key, JobNumber(key.into()), START + SECOND)
    };
    books.handed(dear(1), START);
    assert_eq!(found(&mut books), []);
    books.handed(dear(2), START);
    assert_eq!(found(&mut books), [What::Overspent]);
}
