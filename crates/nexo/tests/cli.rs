//! The command line against a real broker: what a user types and sees.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::{Process, Server, eventually, nexo};
use rustix::process::Signal;

#[test]
fn a_message_goes_in_and_comes_out() {
    let server = Server::start();
    assert_eq!(server.ok(&["queue", "create", "mail"]), "created 'mail'\n");
    assert_eq!(server.ok(&["push", "mail", "hello"]), "0\n");
    assert_eq!(server.ok(&["push", "mail", "world"]), "1\n");
    assert_eq!(server.ok(&["peek", "mail", "--max", "5", "--raw"]), "helloworld");
    assert_eq!(server.ok(&["pop", "mail", "--max", "5", "--ack"]), "hello\nworld\n");
    assert_eq!(server.ok(&["pop", "mail"]), "");
    let queue = &server.json(&["queue", "show", "mail"])[0];
    assert_eq!(queue["stats"]["acked"], 2);
    assert_eq!(queue["stats"]["ready"], 0);
}

#[test]
fn a_popped_message_is_settled_by_its_receipt() {
    let server = Server::start();
    server.ok(&["queue", "create", "q", "--max-attempts", "unlimited"]);
    server.ok(&["push", "q", "x", "--header", "kind=letter", "--priority", "7", "--group", "g"]);
    let first = &server.json(&["pop", "q"])[0];
    assert_eq!((&first["attempt"], &first["body"], &first["priority"]), (&1.into(), &"x".into(), &7.into()));
    assert_eq!(first["headers"][0]["name"], "kind");
    assert_eq!(first["headers"][0]["text"], "letter");
    assert_eq!(first["group_id"], "g");
    let receipt = first["receipt"].as_str().unwrap();

    let extended = &server.json(&["extend", receipt, "--visibility", "1h"])[0];
    assert!(extended["lease_until_ms"].as_u64() > first["lease_until_ms"].as_u64());
    assert_eq!(server.ok(&["nack", receipt, "--delay", "0s"]), format!("{receipt} nacked\n"));

    let second = &server.json(&["pop", "q", "--wait", "10s"])[0];
    assert_eq!(second["attempt"], 2);
    let stale = server.run(&["ack", receipt]).error();
    assert!(stale.contains("attempt 2"), "{stale}");
    let receipt = second["receipt"].as_str().unwrap();
    assert_eq!(server.ok(&["ack", receipt]), format!("{receipt} acked\n"));
    let again = server.run(&["ack", receipt]).error();
    assert!(
        again.starts_with(&format!("nexo: ack '{receipt}': message 0 of queue 'q' is not leased")),
        "{again}"
    );
}

#[test]
fn a_batch_of_receipts_is_answered_one_by_one() {
    let server = Server::start();
    server.ok(&["queue", "create", "q"]);
    server.ok(&["push", "q", "x"]);
    let receipt = server.json(&["pop", "q"])[0]["receipt"].as_str().unwrap().to_owned();
    let finished = server.run(&["ack", &receipt, "nonsense"]);
    assert_eq!(finished.code, Some(1));
    assert_eq!(finished.stdout, format!("{receipt} acked\n"));
    assert!(finished.stderr.contains("'nonsense' is not a receipt"), "{}", finished.stderr);
}

#[test]
fn lines_of_standard_input_become_messages_in_order() {
    let server = Server::start();
    server.ok(&["queue", "create", "numbers"]);
    let lines: String = (0..25_000).map(|n| format!("{n}\n")).collect();
    let ids = server.run_with_input(&["push", "numbers", "-"], lines.clone()).ok();
    assert_eq!(ids, lines, "ids count up from 0 as the lines do");
    let popped = server.ok(&["pop", "numbers", "--max", "3", "--ack"]);
    assert_eq!(popped, "0\n1\n2\n");
    let consumed = server.ok(&["consume", "numbers", "--count", "24997"]);
    assert_eq!(consumed, lines.strip_prefix("0\n1\n2\n").unwrap());
    assert_eq!(server.json(&["queue", "show", "numbers"])[0]["stats"]["acked"], 25_000);
}

#[test]
fn pushing_lines_stops_at_the_first_that_is_refused() {
    let server = Server::start();
    server.ok(&["queue", "create", "small", "--max-messages", "2"]);
    let finished = server.run_with_input(&["push", "small", "--stdin"], "a\nb\nc\nd\n");
    assert_eq!(finished.code, Some(1));
    assert_eq!(finished.stdout, "0\n1\n");
    assert!(
        finished.stderr.starts_with("nexo: push line 3 to 'small': queue 'small' is full"),
        "{finished:?}"
    );
}

#[test]
fn a_file_is_one_message_and_bytes_are_kept() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("body");
    fs::write(&file, [0xff, b'\n', 0]).unwrap();
    server.ok(&["queue", "create", "q"]);
    server.ok(&["push", "q", "--file", file.to_str().unwrap()]);
    let message = &server.json(&["pop", "q"])[0];
    assert_eq!(message["body_base64"], "/woA");
    assert!(message.get("body").is_none());
}

#[test]
fn a_second_push_with_the_same_dedup_id_is_recognised() {
    let server = Server::start();
    server.ok(&["queue", "create", "q"]);
    assert_eq!(server.ok(&["push", "q", "a", "--dedup-id", "1"]), "0\n");
    assert_eq!(server.ok(&["push", "q", "b", "--dedup-id", "1"]), "0 (duplicate)\n");
    assert_eq!(server.json(&["queue", "show", "q"])[0]["stats"]["ready"], 1);
}

#[test]
fn a_command_runs_for_each_message_and_its_exit_code_decides() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let seen = dir.path().join("seen");
    server.ok(&["queue", "create", "work", "--max-attempts", "2"]);
    for text in ["good", "bad", "fine"] {
        server.ok(&["push", "work", text, "--header", "from=me"]);
    }
    // "bad" fails twice and becomes a dead letter: four runs in all.
    let script = format!(
        "body=$(cat); echo \"$NEXO_QUEUE $NEXO_ATTEMPT $NEXO_HEADER_FROM $body\" >> '{}'; test $body != bad",
        seen.display()
    );
    let results = server.json(&["consume", "work", "--exec", &script, "--count", "4"]);
    let outcomes: Vec<_> = results.iter().map(|result| result["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == "acked").count(), 2, "{results:?}");
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == "nacked").count(), 2, "{results:?}");
    let mut lines: Vec<String> = fs::read_to_string(&seen).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["work 1 me bad", "work 1 me fine", "work 1 me good", "work 2 me bad"]);

    server.until_ready("work_dlq", 1);
    let dead = &server.json(&["peek", "work_dlq"])[0];
    assert_eq!(dead["body"], "bad");
    assert_eq!(dead["dead_letter"]["reason"], "max_attempts");
    assert_eq!(dead["dead_letter"]["source_queue"], "work");
    assert_eq!(dead["dead_letter"]["attempts"], 2);
}

#[test]
fn a_command_may_take_longer_than_the_lease() {
    let server = Server::start();
    server.ok(&["queue", "create", "slow", "--visibility", "600ms", "--max-attempts", "1"]);
    server.ok(&["push", "slow", "x"]);
    let results = server.json(&["consume", "slow", "--count", "1", "--", "sleep", "2"]);
    assert_eq!(results[0]["outcome"], "acked", "{results:?}");
    assert_eq!(server.json(&["queue", "show", "slow"])[0]["stats"]["redelivered"], 0);
}

#[test]
fn commands_run_side_by_side() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    server.ok(&["queue", "create", "work"]);
    for _ in 0..3 {
        server.ok(&["push", "work", "x"]);
    }
    // Each waits until three have begun, so this ends only if they run together.
    let script = format!(
        "touch {dir}/$NEXO_ID; n=0; until [ $(ls {dir} | wc -l) = 3 ]; do n=$((n+1)); [ $n -lt 600 ] || exit 1; sleep 0.05; done",
        dir = dir.path().display()
    );
    let results = server.json(&["consume", "work", "--exec", &script, "--jobs", "3", "--count", "3"]);
    assert!(results.iter().all(|result| result["outcome"] == "acked"), "{results:?}");
}

#[test]
fn an_interrupted_consumer_finishes_its_message_and_returns_the_others() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let (began, go) = (dir.path().join("began"), dir.path().join("go"));
    server.ok(&["queue", "create", "work"]);
    for _ in 0..5 {
        server.ok(&["push", "work", "x"]);
    }
    let script = format!(
        "touch {}; n=0; until [ -e {} ]; do n=$((n+1)); [ $n -lt 600 ] || exit 1; sleep 0.05; done",
        began.display(),
        go.display()
    );
    let mut consumer =
        Process::spawn(&mut server.command(&["consume", "work", "--exec", &script, "--credit", "5"]));
    eventually("the command runs", || began.exists());
    consumer.signal(Signal::INT);
    let waits = "nexo: consume 'work': waiting for what still runs; a second signal ends it";
    assert_eq!(consumer.first_error_line().as_deref(), Some(waits));
    fs::write(&go, "").unwrap();
    assert_eq!(consumer.finish().code, Some(0));
    let stats = || {
        let stats = &server.json(&["queue", "show", "work"])[0]["stats"];
        (stats["acked"].as_u64(), stats["ready"].as_u64())
    };
    eventually("the others are back", || stats().1 == Some(4));
    assert_eq!(stats(), (Some(1), Some(4)));
}

#[test]
fn a_command_that_cannot_run_is_one_clear_error() {
    let server = Server::start();
    server.ok(&["queue", "create", "q"]);
    server.ok(&["push", "q", "x"]);
    let error = server.run(&["consume", "q", "--", "/does/not/exist"]).error();
    assert!(error.starts_with("nexo: cannot run '/does/not/exist': "), "{error}");
}

#[test]
fn dead_letters_are_redriven_to_where_they_came_from() {
    let server = Server::start();
    server.ok(&["queue", "create", "work", "--max-attempts", "1"]);
    for text in ["a", "b", "c"] {
        server.ok(&["push", "work", text]);
        let receipt = server.json(&["pop", "work"])[0]["receipt"].as_str().unwrap().to_owned();
        server.ok(&["nack", &receipt]);
    }
    server.until_ready("work_dlq", 3);
    assert_eq!(
        server.json(&["queue", "redrive", "work_dlq", "--max", "1"]),
        [serde_json::json!({ "queue": "work_dlq", "moved": 1, "skipped": 0, "remaining": 2 })]
    );
    assert_eq!(server.json(&["queue", "redrive", "work_dlq", "--id", "2"])[0]["moved"], 1);
    server.ok(&["queue", "create", "other"]);
    assert_eq!(server.json(&["queue", "redrive", "work_dlq", "--to", "other"])[0]["moved"], 1);
    assert_eq!(server.ok(&["pop", "work", "--max", "9", "--ack"]), "a\nc\n");
    assert_eq!(server.ok(&["pop", "other", "--ack"]), "b\n");
}

#[test]
fn queues_are_listed_changed_paused_purged_and_deleted() {
    let server = Server::start();
    for name in ["a1", "a2", "b1"] {
        server.ok(&["queue", "create", name, "--retry", "exponential:100ms:2:30s"]);
    }
    assert_eq!(
        server.ok(&["queue", "create", "a1", "--retry", "exponential:100ms:2:30s"]),
        "exists already: 'a1'\n"
    );
    let names: Vec<_> =
        server.json(&["queue", "list", "--prefix", "a"]).iter().map(|q| q["name"].clone()).collect();
    assert_eq!(names, ["a1", "a2"]);
    let table = server.ok(&["queue", "list"]);
    assert_eq!(table.lines().count(), 4, "{table}");

    let updated = &server.json(&["queue", "update", "a1", "--visibility", "5s", "--max-messages", "10"])[0];
    assert_eq!(updated["config"]["visibility_ms"], 5000);
    assert_eq!(updated["config"]["retry"], "exponential:100ms:2:30s");
    let updated = &server.json(&["queue", "update", "a1", "--max-messages", "none"])[0];
    assert!(updated["config"].get("max_messages").is_none());

    server.ok(&["queue", "pause", "a1"]);
    server.ok(&["push", "a1", "x"]);
    assert_eq!(server.ok(&["pop", "a1"]), "");
    server.ok(&["queue", "resume", "a1"]);
    assert!(server.ok(&["peek", "a1"]).ends_with("Z\nx\n"));

    assert_eq!(server.json(&["queue", "purge", "a1", "--yes"])[0]["messages"], 1);
    assert_eq!(server.json(&["queue", "delete", "a1", "--yes"])[0]["messages"], 0);
    let error = server.run(&["queue", "show", "a1"]).error();
    assert_eq!(error, "nexo: show 'a1': queue 'a1' does not exist");
}

#[test]
fn a_queue_that_exists_with_other_settings_is_not_created() {
    let server = Server::start();
    server.ok(&["queue", "create", "q"]);
    let error = server.run(&["queue", "create", "q", "--visibility", "1s"]).error();
    assert!(error.starts_with("nexo: create 'q': queue 'q' exists with"), "{error}");
}

#[test]
fn produce_pushes_random_texts_and_sums_up() {
    let server = Server::start();
    server.ok(&["queue", "create", "load"]);
    let summary = &server.json(&["produce", "load", "--count", "2000"])[0];
    assert_eq!(summary["messages"], 2000);
    let summary = &server.json(&["produce", "load", "--rate", "1000/s", "--count", "50"])[0];
    assert_eq!(summary["messages"], 50);
    let message = &server.json(&["pop", "load"])[0];
    assert_eq!(message["body"].as_str().unwrap().len(), 15);
    assert_eq!(server.json(&["queue", "show", "load"])[0]["stats"]["pushed"], 2050);
}

#[test]
fn two_phase_messages_are_marked_as_received() {
    let server = Server::start();
    server.ok(&["queue", "create", "two", "--receipt-timeout", "1h"]);
    server.ok(&["push", "two", "x"]);
    let receipt = server.json(&["pop", "two"])[0]["receipt"].as_str().unwrap().to_owned();
    let received = &server.json(&["received", &receipt])[0];
    assert!(received["lease_until_ms"].is_u64(), "{received}");
    server.ok(&["ack", &receipt]);
    server.ok(&["push", "two", "y"]);
    assert_eq!(server.ok(&["consume", "two", "--count", "1"]), "y\n");
}

#[test]
fn bad_input_is_refused_by_name_and_changes_nothing() {
    let server = Server::start();
    server.ok(&["queue", "create", "q"]);
    let cases: [(&[&str], &str); 6] = [
        (&["queue", "create", ""], "a queue name must not be empty"),
        (
            &["push", "q", "x", "--group", &"g".repeat(513)],
            "push to 'q': --group: a group id has at most 512 bytes",
        ),
        (&["push", "q", "x", "--delay", "40000d"], "--delay must be between 0ms and 36600d; it is 40000d"),
        (&["pop", "q", "--wait", "2h"], "--wait must be between 0ms and 1h; it is 2h"),
        (&["pop", "q", "--max", "10001"], "--max must be between 0 and 10000; it is 10001"),
        (&["ack", "zz"], "'zz' is not a receipt"),
    ];
    for (args, reason) in cases {
        let error = server.run(args).error();
        assert!(error.contains(reason), "{args:?}: {error}");
    }
    let usage: [(&[&str], &str); 4] = [
        (&["push", "q", "x", "--delay", "30"], "a time needs a unit: 30ms, 30s"),
        (&["push", "q", "x", "--priority", "256"], "256 is not in 0..=255"),
        (&["push", "q"], "required"),
        (&["queue", "create", "r", "--retry", "often"], "is not a retry policy"),
    ];
    for (args, reason) in usage {
        let finished = server.run(args);
        assert_eq!(finished.code, Some(2), "{args:?}: {finished:?}");
        assert!(finished.stderr.contains(reason), "{args:?}: {}", finished.stderr);
    }
    let queues = server.json(&["queue", "list"]);
    assert_eq!(queues.len(), 1);
    assert_eq!(queues[0]["stats"]["pushed"], 0);
}

#[test]
fn stats_and_health_answer() {
    let server = Server::start();
    assert_eq!(server.ok(&["health"]), "ok\n");
    assert_eq!(server.json(&["health"])[0]["status"], "ok");
    server.ok(&["queue", "create", "q"]);
    server.ok(&["push", "q", "x"]);
    let stats = &server.json(&["stats"])[0];
    assert_eq!(stats["healthy"], true);
    assert_eq!(stats["queues"], 1);
    assert!(stats["log"]["syncs"].as_u64().unwrap() > 0, "{stats}");
    assert_eq!(server.json(&["stats", "q"])[0]["stats"]["ready"], 1);
}

#[test]
fn a_broker_that_is_not_there_is_named_with_a_hint() {
    let refused = Process::spawn(nexo().args(["health", "--server", "127.0.0.1:1"])).finish().error();
    assert!(refused.starts_with("nexo: cannot reach http://127.0.0.1:1: "), "{refused}");
    assert!(refused.contains("'nexo serve' starts one"), "{refused}");
}

#[test]
fn output_to_a_closed_pipe_is_no_error() {
    let server = Server::start();
    server.ok(&["queue", "create", "q"]);
    let lines = "x\n".repeat(50_000);
    server.run_with_input(&["push", "q", "-"], lines).ok();
    let mut command = server.command(&["consume", "q", "--count", "50000"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn help_and_completions_are_there() {
    let help = Process::spawn(nexo().arg("--help")).finish().ok();
    assert!(help.contains("Examples:") && help.contains("consume"), "{help}");
    let script = Process::spawn(nexo().args(["completions", "bash"])).finish().ok();
    assert!(script.contains("redrive"));
}

#[test]
fn a_virtual_host_is_added_used_and_deleted() {
    let server = Server::start();
    assert_eq!(
        server.ok(&["vhost", "add", "acme", "--max-queues", "1", "--tag", "eu", "--tag", "test"]),
        "created 'acme'\n"
    );
    let again = server.run(&["vhost", "add", "acme"]).error();
    assert_eq!(again, "nexo: add vhost 'acme': virtual host 'acme' exists already");
    for (vhost, body) in [("/", "ours"), ("acme", "theirs")] {
        server.ok(&["queue", "create", "mail", "--vhost", vhost]);
        server.ok(&["push", "mail", body, "--vhost", vhost]);
    }
    let full = server.run(&["queue", "create", "other", "--vhost", "acme"]).error();
    assert_eq!(full, "nexo: create 'other': virtual host 'acme' has 1 queues, and no more are allowed");
    let missing = server.run(&["queue", "create", "mail", "--vhost", "none"]).error();
    assert_eq!(missing, "nexo: create 'mail': virtual host 'none' does not exist");
    assert_eq!(server.ok(&["peek", "mail", "--raw"]), "ours");
    assert_eq!(server.ok(&["consume", "mail", "--count", "1", "--vhost", "acme"]), "theirs\n");
    let listed = server.json(&["queue", "list", "--all-vhosts"]);
    let places: Vec<_> = listed.iter().map(|queue| (&queue["vhost"], &queue["name"])).collect();
    assert_eq!(places, [(&"/".into(), &"mail".into()), (&"acme".into(), &"mail".into())]);
    assert_eq!(server.json(&["queue", "list", "--vhost", "acme"]).len(), 1);

    server.ok(&["vhost", "update", "acme", "--description", "Acme's", "--max-queues", "-1"]);
    let shown = &server.json(&["vhost", "show", "acme"])[0];
    assert_eq!((&shown["description"], &shown["queues"]), (&"Acme's".into(), &1.into()));
    assert_eq!((&shown["tags"][1], shown.get("max_queues")), (&"test".into(), None));
    assert!(server.ok(&["vhost", "list"]).contains("acme"));
    let deleted = server.ok(&["vhost", "delete", "acme", "--yes"]);
    assert_eq!(deleted, "deleted 'acme' with 1 queues and 0 messages\n");
    let gone = server.run(&["vhost", "show", "acme"]).error();
    assert_eq!(gone, "nexo: show vhost 'acme': virtual host 'acme' does not exist");
    assert_eq!(server.ok(&["pop", "mail", "--ack"]), "ours\n");
}
