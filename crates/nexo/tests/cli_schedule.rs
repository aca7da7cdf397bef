//! `nexo schedule` against a real broker, which is killed in between: messages come at their times, once each, and after a downtime as
//! was asked for.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

use common::{Server, eventually};
use serde_json::{Value, json};

fn show(server: &Server, name: &str) -> Value {
    server.json(&["schedule", "show", name]).remove(0)
}

/// The times of all messages in a queue, by the schedule.
fn times(server: &Server, queue: &str) -> Vec<String> {
    let header = |message: &Value| {
        let headers = message["headers"].as_array().unwrap();
        let found = headers.iter().find(|header| header["name"] == "x-scheduled-at").unwrap();
        found["text"].as_str().unwrap().to_owned()
    };
    server.json(&["peek", queue, "--max", "1000"]).iter().map(header).collect()
}

#[test]
fn messages_come_and_a_kill_neither_loses_nor_repeats_a_time() {
    let mut server = Server::start();
    for catch_up in ["all", "once", "skip"] {
        server.ok(&["queue", "create", catch_up]);
        let set = [
            "schedule",
            "set",
            catch_up,
            "tick",
            "--every",
            "200ms",
            "--queue",
            catch_up,
            "--catch-up",
            catch_up,
        ];
        assert!(server.ok(&set).starts_with(&format!("created '{catch_up}': due 20")));
    }
    for _ in 0..2 {
        let before = show(&server, "all")["runs"].as_u64().unwrap();
        eventually("messages come", || show(&server, "all")["runs"].as_u64().unwrap() >= before + 2);
        server.kill();
        // Some times pass while it is away.
        sleep(Duration::from_millis(700));
        server.restart();
    }
    let before = show(&server, "all")["runs"].as_u64().unwrap();
    eventually("it goes on", || show(&server, "all")["runs"].as_u64().unwrap() > before);
    for name in ["all", "once", "skip"] {
        server.ok(&["schedule", "pause", name]);
        let status = show(&server, name);
        let seen = times(&server, name);
        let unique: BTreeSet<&String> = seen.iter().collect();
        assert_eq!(
            (unique.len(), json!(seen.len())),
            (seen.len(), status["runs"].clone()),
            "{name}: {seen:?}"
        );
        assert_eq!(status["failures"], 0);
        let missed = status["missed"].as_u64().unwrap();
        match name {
            "all" => {
                assert_eq!(missed, 0);
                let moments: Vec<i64> =
                    seen.iter().map(|at| at.parse::<jiff::Timestamp>().unwrap().as_millisecond()).collect();
                assert!(moments.windows(2).all(|pair| pair[1] - pair[0] == 200), "each of them: {seen:?}");
            }
            _ => assert!(missed >= 4, "{name}: {missed}"),
        }
    }
    let (_, metrics) = server.get("/metrics");
    for name in [
        "nexo_schedules 3",
        "nexo_schedule_fired_total",
        "nexo_schedule_failed_total 0",
        "nexo_schedule_late_seconds",
    ] {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
}

#[test]
fn a_schedule_is_set_shown_run_and_deleted() {
    let server = Server::start();
    server.ok(&["queue", "create", "reports"]);
    let set = [
        "schedule",
        "set",
        "report",
        "make it",
        "--cron",
        "0 9 * * 1-5",
        "--time-zone",
        "Europe/Berlin",
        "--queue",
        "reports",
        "--header",
        "kind=daily",
        "--content-type",
        "text/plain",
        "--priority",
        "7",
        "--max-runs",
        "5",
        "--until",
        "2199-01-01T00:00:00Z",
        "--description",
        "for the office",
    ];
    assert!(server.ok(&set).starts_with("created 'report': due 20"));
    assert!(server.ok(&set).starts_with("changed 'report': due 20"));
    let shown = show(&server, "report");
    assert_eq!(
        (&shown["cron"], &shown["time_zone"], &shown["body"]),
        (&json!("0 9 * * 1-5"), &json!("Europe/Berlin"), &json!("make it"))
    );
    assert_eq!(
        (&shown["headers"], &shown["until"], &shown["max_runs"]),
        (&json!([["kind", "daily"]]), &json!("2199-01-01T00:00:00Z"), &json!(5))
    );
    assert_eq!(server.ok(&["schedule", "run", "report"]), "ran 'report'\n");
    let message = &server.json(&["pop", "reports"])[0];
    assert_eq!((&message["body"], &message["priority"]), (&json!("make it"), &json!(7)));
    assert!(server.ok(&["schedule", "list"]).contains("queue reports"));
    assert_eq!(server.ok(&["schedule", "pause", "report"]), "paused 'report'\n");
    assert!(server.ok(&["schedule", "show", "report"]).contains("paused"));
    assert!(server.ok(&["schedule", "resume", "report"]).starts_with("resumed 'report': due 20"));
    assert_eq!(server.json(&["schedule", "list", "--all-vhosts"])[0]["manual_runs"], 1);
    assert!(server.run(&["schedule", "delete", "report"]).error().contains("--yes"));
    server.ok(&["schedule", "delete", "report", "--yes"]);
    let gone = server.run(&["schedule", "show", "report"]).error();
    assert_eq!(gone, "nexo: show schedule 'report': there is no schedule 'report' in virtual host '/'");
}

#[test]
fn jobs_are_asked_for_and_a_kill_leaves_as_many_as_times_were_fired() {
    let mut server = Server::start();
    // Nothing is joined: every time that is fired by itself is a job of its own.
    server.ok(&["jobs", "queue", "set", "deals", "--window", "0s"]);
    let warm =
        ["schedule", "set", "warm", r#"{"category": "books"}"#, "--every", "100ms", "--catch-up", "skip"];
    let job = ["--job-queue", "deals", "--job-type", "search", "--job-key", "books"];
    assert!(server.ok(&[&warm[..], &job[..]].concat()).starts_with("created 'warm': due 20"));
    assert!(server.ok(&["schedule", "list"]).contains("job queue deals books"));
    for _ in 0..4 {
        let before = show(&server, "warm")["runs"].as_u64().unwrap();
        eventually("it is fired", || show(&server, "warm")["runs"].as_u64().unwrap() >= before + 3);
        server.kill();
        server.restart();
    }
    server.ok(&["schedule", "pause", "warm"]);
    let shown = show(&server, "warm");
    let asked = json!({
        "queue": "deals", "type": "search", "key": "books", "payload": {"category": "books"}, "background": true,
    });
    assert_eq!((&shown["job"], &shown["failures"]), (&asked, &json!(0)));
    let queue = &server.json(&["jobs", "queue", "show", "deals"])[0];
    assert_eq!(
        (&queue["figures"]["created"], &queue["figures"]["pending"]),
        (&shown["runs"], &shown["runs"]),
        "{queue}"
    );

    let work = &server.json(&["jobs", "take", "deals", "--wait", "30s"])[0];
    assert_eq!((&work["type"], &work["payload"]), (&json!("search"), &asked["payload"]));
    server.ok(&["jobs", "queue", "delete", "deals", "--yes"]);
    let gone = server.run(&["schedule", "run", "warm"]).error();
    assert!(gone.contains("there is no job queue 'deals'"), "{gone}");
    let again = server.run(&[&warm[..], &job[..]].concat()).error();
    assert!(again.contains("there is no job queue 'deals'"), "{again}");
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let server = Server::start();
    server.ok(&["queue", "create", "q"]);
    let refused = |args: &[&str]| server.run(&[&["schedule", "set", "s", "x"], args].concat()).error();
    assert!(refused(&["--cron", "0 0 30 2 *", "--queue", "q"]).contains("names a moment that never comes"));
    assert!(refused(&["--every", "50ms", "--queue", "q"]).contains("an interval is at least 100 ms"));
    assert!(refused(&["--every", "1s", "--queue", "none"]).contains("queue 'none' does not exist"));
    let zone = ["--cron", "* * * * *", "--time-zone", "Berlin", "--queue", "q"];
    assert!(refused(&zone).contains("there is no time zone 'Berlin'"));
    let nowhere = refused(&["--every", "1s", "--queue", "q", "--vhost", "none"]);
    assert!(nowhere.contains("none"), "{nowhere}");
    server.ok(&["user", "add", "ann", "--new-password", "secret", "--tag", "management"]);
    server.ok(&["permission", "set", "ann", "--configure", ".*", "--write", "^other$", "--read", ".*"]);
    let ann = ["--every", "1s", "--queue", "q", "--user", "ann", "--password", "secret"];
    assert!(refused(&ann).contains("access to queue 'q' in vhost '/' refused for user 'ann'"));
}
