//! `nexo jobs` against a broker: work is asked for, taken, done and answered through the command line, over a restart too.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Server, eventually};
use serde_json::{Value, json};

/// Takes the one job that there is.
fn take(server: &Server, queue: &str) -> Value {
    server.json(&["jobs", "take", queue, "--wait", "30s"]).remove(0)
}

#[test]
fn work_is_asked_for_taken_done_and_answered_over_a_restart() {
    let mut server = Server::start();
    assert_eq!(
        server.ok(&[
            "jobs",
            "budget",
            "set",
            "api",
            "--initial",
            "9",
            "--capacity",
            "50",
            "--refill",
            "5/1h"
        ]),
        "created 'api'\n"
    );
    let set = ["jobs", "queue", "set", "deals", "--budget", "api", "--cost", "search=size(payload.pages)"];
    assert_eq!(server.ok(&set), "created 'deals'\n");
    assert_eq!(server.ok(&["jobs", "queue", "set", "deals", "--lease", "10m"]), "changed 'deals'\n");
    server.ok(&["queue", "create", "answers"]);
    let ask = |waiter: &str, more: &[&str]| {
        let base = [
            "jobs",
            "ask",
            "deals",
            "phones",
            "--type",
            "search",
            "--payload",
            r#"{"pages": [1, 2]}"#,
            "--waiter",
            waiter,
        ];
        server.json(&[&base, more].concat()).remove(0)
    };
    let first = ask("ann", &["--class", "pro", "--for-user", "ann", "--due-in", "10m"]);
    assert_eq!(first["state"], "created");
    let second = ask("ben", &["--filter", "item.price < 100", "--reply-to", "answers"]);
    assert_eq!((&second["state"], &second["job"]), (&json!("joined"), &first["job"]));
    let waits = server.run(&["jobs", "answer", "deals", "ann"]).error();
    assert!(waits.contains("is not finished"), "{waits}");

    server.kill();
    server.restart();
    let job = take(&server, "deals");
    assert_eq!((&job["job"], &job["cost"], &job["waiters"]), (&first["job"], &json!(2), &json!(2)));
    assert_eq!(job["payload"], json!({ "pages": [1, 2] }));
    let receipt = job["receipt"].as_str().unwrap().to_owned();
    let extended = server.ok(&["jobs", "extend", &receipt, "--progress", r#"{"page": 1}"#]);
    assert!(extended.starts_with(&format!("{receipt} held until ")), "{extended}");
    let shown = &server.json(&["jobs", "show", &receipt])[0];
    assert_eq!((&shown["state"], &shown["progress"]), (&json!("running"), &json!({ "page": 1 })));

    server.kill();
    server.restart();
    let result = r#"[{"price":80},{"price":800}]"#;
    let done = server.run_with_input(&["jobs", "complete", &receipt, "-", "--used", "1"], result).ok();
    assert_eq!(done, format!("{receipt} done\n"));
    assert_eq!(server.ok(&["jobs", "answer", "deals", "ann", "--wait", "30s"]), format!("{result}\n"));
    let answer = &server.json(&["jobs", "answer", "deals", "ben"])[0];
    assert_eq!((&answer["status"], &answer["result"]), (&json!("done"), &json!([{ "price": 80 }])));
    server.until_ready("answers", 1);
    assert_eq!(server.ok(&["jobs", "result", "deals", "phones"]), format!("{result}\n"));
    let cached = server.ok(&["jobs", "ask", "deals", "phones", "--waiter", "eve", "--wait", "30s"]);
    assert_eq!(cached, format!("{result}\n"));

    let budget = &server.json(&["jobs", "budget", "show", "api"])[0];
    assert_eq!((&budget["level"], &budget["used_total"]), (&json!(8), &json!(1)));
    assert_eq!((&budget["queues"], &budget["config"]["refill"]["tokens"]), (&json!(["deals"]), &json!(5)));
    let uses = server.json(&["jobs", "tokens", "--since", "1h"]);
    assert_eq!((uses.len(), &uses[0]["key"], &uses[0]["tokens"]), (1, &json!("phones"), &json!(1)));
    assert!(server.json(&["jobs", "tokens", "--until", "1h"]).is_empty());
    let queue = &server.json(&["jobs", "queue", "show", "deals", "--keys", "5"])[0];
    let figures = &queue["figures"];
    assert_eq!(
        (&figures["created"], &figures["joined"], &figures["cache_hits"]),
        (&json!(1), &json!(1), &json!(1))
    );
    assert_eq!(
        (&queue["config"]["lease_ms"], &figures["keys"][0]["name"]),
        (&json!(600_000), &json!("phones"))
    );
    let text = server.ok(&["jobs", "queue", "show", "deals"]);
    assert!(
        text.contains("budget              api\n") && text.contains("lease               10m\n"),
        "{text}"
    );
    assert!(server.ok(&["jobs", "queue", "list"]).contains("deals"));
    assert!(server.ok(&["jobs", "budget", "list"]).contains("5/1h"));
    assert_eq!(server.json(&["jobs", "watch", "deals", "--every", "10ms", "--count", "2"]).len(), 2);
}

#[test]
fn what_is_refused_says_why() {
    let server = Server::start();
    let error = server.run(&["jobs", "take", "deals"]).error();
    assert_eq!(error, "nexo: take from 'deals': there is no job queue 'deals'");
    server.ok(&["jobs", "queue", "set", "deals"]);
    let error = server.run(&["jobs", "queue", "set", "deals", "--score", "class +"]).error();
    assert!(error.starts_with("nexo: set job queue 'deals': the expression for"), "{error}");
    let error = server.run(&["jobs", "queue", "set", "deals", "--score", "clas"]).error();
    assert!(error.contains("clas"), "it names what it does not know: {error}");
    let error = server.run(&["jobs", "queue", "set", "deals", "--cost", "search=size("]).error();
    assert!(error.contains("the expression for a cost cannot be used"), "{error}");
    let error =
        server.run(&["jobs", "ask", "deals", "k", "--waiter", "w", "--filter", "item.price <"]).error();
    assert!(error.contains("the expression for the filter cannot be used"), "{error}");
    let error = server.run(&["jobs", "ask", "deals", "k", "--waiter", "w", "--class", "gold"]).error();
    assert!(error.contains("has no class 'gold'; it has business"), "{error}");
    let error = server.run(&["jobs", "complete", "nonsense", "1"]).error();
    assert!(error.contains("is not a receipt"), "{error}");
    let error = server.run(&["jobs", "queue", "pause", "none"]).error();
    assert!(error.contains("there is no job queue 'none'"), "{error}");
    assert_eq!(server.json(&["jobs", "queue", "list"]).len(), 1, "a mistyped name makes none");
    assert_eq!(
        server.run(&["jobs", "ask", "deals", "k", "--wait", "1s"]).code,
        Some(2),
        "--wait needs --waiter"
    );
    assert_eq!(server.run(&["jobs", "queue", "set", "deals", "--class", "pro"]).code, Some(2));
    let error = server.run(&["jobs", "queue", "delete", "deals"]).error();
    assert!(error.contains("--yes"), "{error}");
    server.ok(&["jobs", "queue", "delete", "deals", "--yes"]);
}

#[test]
fn jobs_fail_come_back_and_are_cancelled() {
    let server = Server::start();
    server.ok(&[
        "jobs",
        "queue",
        "set",
        "deals",
        "--max-attempts",
        "2",
        "--retry",
        "none",
        "--class",
        "=1",
        "--class",
        "vip=0",
    ]);
    let ask = |key: &str, waiter: &str, class: &str| {
        let args = ["jobs", "ask", "deals", key, "--waiter", waiter, "--class", class];
        server.json(&args)[0]["job"].as_str().unwrap().to_owned()
    };
    let slow = ask("slow", "a", "");
    let urgent = ask("urgent", "b", "vip");
    eventually("scores are known", || {
        let pending = server.json(&["jobs", "pending", "deals"]);
        pending.len() == 2
            && pending.iter().all(|job| job["score"].is_number())
            && pending[0]["job"] == urgent
    });
    let text = server.ok(&["jobs", "pending", "deals", "--max", "1"]);
    assert!(text.contains("urgent") && !text.contains("slow"), "{text}");
    server.ok(&["jobs", "queue", "pause", "deals"]);
    assert!(server.json(&["jobs", "take", "deals"]).is_empty());
    server.ok(&["jobs", "queue", "resume", "deals"]);

    let job = take(&server, "deals");
    assert_eq!(job["job"], urgent.as_str());
    let receipt = job["receipt"].as_str().unwrap();
    assert_eq!(server.ok(&["jobs", "return", receipt]), format!("{receipt} returned\n"));
    let job = take(&server, "deals");
    let failed = server.ok(&["jobs", "fail", job["receipt"].as_str().unwrap(), "no route"]);
    assert!(failed.contains("is tried again"), "{failed}");
    let job = take(&server, "deals");
    assert_eq!(job["attempt"], 2);
    let failed = server.json(&["jobs", "fail", job["receipt"].as_str().unwrap(), "no route"]);
    assert_eq!(failed[0]["outcome"], "failed");
    let told = server.run(&["jobs", "answer", "deals", "b"]);
    assert_eq!((told.code, told.stdout.as_str()), (Some(1), ""));
    assert!(told.stderr.contains("failed: no route"), "{told:?}");

    assert_eq!(server.ok(&["jobs", "cancel", &slow]), format!("{slow} cancelled\n"));
    let told = server.run(&["--output", "json", "jobs", "answer", "deals", "a"]);
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(told["status"], "cancelled");
    let left = ask("other", "c", "");
    server.ok(&["jobs", "leave", "deals", "c"]);
    assert_eq!(server.json(&["jobs", "show", &left])[0]["state"], "cancelled");

    server.ok(&["jobs", "budget", "set", "api", "--initial", "0"]);
    server.ok(&["jobs", "budget", "report", "api", "--left", "-2"]);
    server.ok(&["jobs", "budget", "grant", "api", "5"]);
    assert_eq!(server.json(&["jobs", "budget", "show", "api"])[0]["level"], 3);
    server.ok(&["jobs", "budget", "delete", "api", "--yes"]);
    let error = server.run(&["jobs", "budget", "show", "api"]).error();
    assert!(error.contains("there is no budget 'api'"), "{error}");
}
