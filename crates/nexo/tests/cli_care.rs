//! The command line where care is needed: what cannot be undone, readers that go, brokers that go, and what errors say.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::process::{Command, Stdio};

use common::{Process, Server, eventually, nexo};

#[test]
fn without_a_terminal_nothing_is_destroyed_unless_yes_is_said() {
    let server = Server::start();
    server.ok(&["queue", "create", "mail"]);
    server.ok(&["push", "mail", "x"]);
    for act in ["purge", "delete"] {
        let error = server.run(&["queue", act, "mail"]).error();
        assert!(error.contains("--yes must say that it is meant"), "{error}");
        assert_eq!(server.json(&["queue", "show", "mail"])[0]["stats"]["ready"], 1, "{act}");
        // An answer on standard input is none: a script may have anything there.
        let error = server.run_with_input(&["queue", act, "mail"], "y\n").error();
        assert!(error.contains("--yes"), "{error}");
    }
    assert_eq!(server.ok(&["queue", "purge", "mail", "--yes"]), "removed 1 messages from 'mail'\n");
    assert_eq!(server.ok(&["queue", "delete", "mail", "-y"]), "deleted 'mail' and 0 messages\n");
}

/// `nexo ARGS | head -n COUNT`, as a shell runs it.
fn head(server: &Server, args: &str, count: u32) -> String {
    let line = format!("'{}' {args} | head -n {count}", env!("CARGO_BIN_EXE_nexo"));
    let output = Command::new("sh")
        .args(["-c", &line])
        .env("NEXO_SERVER", server.url())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "a reader that has enough is no error");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn only_what_a_living_reader_got_is_acknowledged() {
    let server = Server::start();
    // With one attempt for each, a message that came back as a failure would be a dead letter.
    server.ok(&["queue", "create", "q", "--max-attempts", "1"]);
    let lines: String = (0..500).map(|n| format!("{n}\n")).collect();
    server.run_with_input(&["push", "q", "-"], lines).ok();
    for (begin, args) in [(0, "consume q"), (5, "consume q --output json"), (10, "pop q --max 400 --ack")] {
        let seen = head(&server, args, 5);
        assert_eq!(seen.lines().count(), 5, "{seen}");
        eventually("the rest is back", || {
            let stats = &server.json(&["queue", "show", "q"])[0]["stats"];
            stats["leased"] == 0 && stats["acked"] == begin + 5 && stats["ready"] == 500 - begin - 5
        });
        let next = &server.json(&["peek", "q"])[0];
        assert_eq!(next["body"], (begin + 5).to_string(), "{args}: the order is as before");
    }
    assert!(server.run(&["queue", "show", "q_dlq"]).error().contains("does not exist"));
}

#[test]
fn a_consumer_finds_its_broker_again() {
    let mut server = Server::start();
    server.ok(&["queue", "create", "q"]);
    let mut consumer = Process::spawn(&mut server.command(&["consume", "q", "--count", "3"]));
    server.ok(&["push", "q", "one"]);
    assert_eq!(consumer.first_line().unwrap(), "one");
    eventually("it is acknowledged", || server.json(&["queue", "show", "q"])[0]["stats"]["acked"] == 1);
    let grpc = server.grpc.clone();
    server.kill();
    server.restart_with(&["--grpc", &grpc]);
    server.ok(&["push", "q", "two"]);
    assert_eq!(consumer.first_line().unwrap(), "two");
    // A broker that stops in good order ends the stream without an error, and is awaited as well.
    eventually("it is acknowledged", || server.json(&["queue", "show", "q"])[0]["stats"]["acked"] == 2);
    server.stop();
    server.restart_with(&["--grpc", &grpc]);
    server.ok(&["push", "q", "three"]);
    let finished = consumer.finish();
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "three\n"), "{finished:?}");
    assert!(finished.stderr.contains("trying again"), "{finished:?}");
    assert!(finished.stderr.contains("connected again"), "{finished:?}");
    eventually("all is acknowledged", || server.json(&["queue", "show", "q"])[0]["stats"]["acked"] == 3);
}

#[test]
fn a_command_that_ran_while_the_broker_was_away_counts() {
    let mut server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let (began, go) = (dir.path().join("began"), dir.path().join("go"));
    server.ok(&["queue", "create", "q", "--visibility", "1h"]);
    server.ok(&["push", "q", "x"]);
    let script = format!(
        "echo x >> {}; n=0; until [ -e {} ]; do n=$((n+1)); [ $n -lt 600 ] || exit 1; sleep 0.05; done",
        began.display(),
        go.display()
    );
    let mut consumer = Process::spawn(
        &mut server.command(&["consume", "q", "--exec", &script, "--count", "1", "--output", "json"]),
    );
    eventually("the command runs", || began.exists());
    // Nobody waits for a lease to be written; whatever is synced after it takes it along.
    server.ok(&["queue", "create", "other"]);
    let grpc = server.grpc.clone();
    server.kill();
    fs::write(&go, "").unwrap();
    server.restart_with(&["--grpc", &grpc]);
    let finished = consumer.finish();
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains(r#""outcome":"acked""#), "{finished:?}");
    assert_eq!(fs::read_to_string(&began).unwrap(), "x\n", "it ran once");
}

#[test]
fn a_consumer_whose_queue_goes_ends_with_the_reason() {
    let server = Server::start();
    server.ok(&["queue", "create", "q"]);
    let mut consumer = Process::spawn(&mut server.command(&["consume", "q"]));
    eventually("it has subscribed", || server.json(&["queue", "show", "q"])[0]["stats"]["consumers"] == 1);
    server.ok(&["queue", "delete", "q", "--yes"]);
    assert_eq!(consumer.finish().error(), "nexo: consume 'q': queue 'q' does not exist");
}

#[test]
fn why_a_command_failed_is_told() {
    let server = Server::start();
    server.ok(&["queue", "create", "q", "--max-attempts", "1"]);
    for text in ["a", "b", "c"] {
        server.ok(&["push", "q", text]);
    }
    let failed = server.run(&["consume", "q", "--exec", "exit 3", "--count", "1"]);
    assert_eq!(failed.code, Some(0));
    assert_eq!(
        failed.stderr,
        "nexo: message 0 of 'q', attempt 1: 'exit 3' exited with code 3; that was its last attempt, and the message \
         becomes a dead letter\n"
    );
    assert_eq!(server.json(&["queue", "show", "q_dlq"])[0]["stats"]["ready"], 1);
    server.ok(&["queue", "create", "again", "--max-attempts", "2"]);
    server.ok(&["push", "again", "x"]);
    let failed = server.run(&["consume", "again", "--exec", "exit 3", "--count", "1"]);
    assert!(failed.stderr.ends_with("; the message is returned to the queue\n"), "{failed:?}");
    let missing = server.run(&["consume", "missing"]).error();
    assert_eq!(missing, "nexo: consume 'missing': queue 'missing' does not exist");
    let killed = server.run(&["consume", "q", "--exec", "kill -9 $$", "--count", "1"]);
    assert!(killed.stderr.contains("was killed by signal 9"), "{killed:?}");
    let result = &server.json(&["consume", "q", "--exec", "no-such-command", "--count", "1"])[0];
    assert_eq!(result["exit_code"], 127);
    assert_eq!(result["reason"], "exited with code 127: the shell did not find a command");
}

#[test]
fn a_command_that_cannot_run_costs_no_attempt() {
    let server = Server::start();
    server.ok(&["queue", "create", "q", "--max-attempts", "1"]);
    server.ok(&["push", "q", "x"]);
    let error = server.run(&["consume", "q", "--", "/does/not/exist"]).error();
    assert_eq!(error, "nexo: cannot run '/does/not/exist': No such file or directory");
    assert_eq!(server.ok(&["pop", "q", "--ack"]), "x\n");
}

#[test]
fn a_redrive_tells_what_remains() {
    let server = Server::start();
    server.ok(&["queue", "create", "work", "--max-attempts", "1"]);
    for text in ["a", "b", "c"] {
        server.ok(&["push", "work", text]);
    }
    server.ok(&["consume", "work", "--exec", "exit 1", "--count", "3"]);
    server.until_ready("work_dlq", 3);
    assert_eq!(
        server.ok(&["queue", "redrive", "work_dlq", "--max", "2"]),
        "moved 2 messages out of 'work_dlq', 1 remain\n"
    );
    server.ok(&["push", "work_dlq", "never was elsewhere"]);
    assert_eq!(
        server.ok(&["queue", "redrive", "work_dlq"]),
        "moved 1 message out of 'work_dlq', 1 remain; 1 message had no queue to go back to, which --to QUEUE can name\n"
    );
}

#[test]
fn limits_of_nothing_or_less_are_explained() {
    let server = Server::start();
    let cases: [(&[&str], &str); 8] = [
        (&["queue", "create", "q", "--max-attempts", "0"], "it must be 1 or more, or 'unlimited'"),
        (&["queue", "create", "q", "--max-attempts", "-1"], "it must be 1 or more, or 'unlimited'"),
        (&["queue", "create", "q", "--max-messages", "0"], "it must be 1 or more, or 'unlimited'"),
        (&["queue", "create", "q", "--ttl", "-5s"], "it must be longer than nothing, like 30s, or 'none'"),
        (&["queue", "create", "q", "--max-bytes", "0"], "it must be 1 byte or more, like 64MiB, or 'none'"),
        (&["push", "q", "x", "--delay", "-5s"], "a time cannot be negative; '-5s' is"),
        (&["pop", "q", "--max", "0"], "it must be a whole number, 1 or more"),
        (&["queue", "redrive", "q", "--max", "0"], "it must be a whole number, 1 or more"),
    ];
    for (args, reason) in cases {
        let finished = server.run(args);
        assert_eq!(finished.code, Some(2), "{args:?}: {finished:?}");
        assert!(finished.stderr.contains(reason), "{args:?}: {}", finished.stderr);
    }
    let error = server.run(&["queue", "create", "q", "--max-attempts", "9999999"]).error();
    assert_eq!(error, "nexo: create 'q': --max-attempts must be between 1 and 1000000; it is 9999999");
    let error = server.run(&["queue", "create", "q", "--visibility", "40000d"]).error();
    assert_eq!(error, "nexo: create 'q': --visibility must be between 1ms and 366d; it is 40000d");
}

#[test]
fn a_wrong_port_is_called_what_it_is() {
    let server = Server::start_with(&["--amqp", "127.0.0.1:0", "--sqs", "127.0.0.1:0"]);
    for (port, speaks) in [("amqp=", "AMQP"), ("sqs=", "HTTP"), ("http=", "HTTP")] {
        let address = server.ready.split_whitespace().find_map(|word| word.strip_prefix(port)).unwrap();
        for args in [&["health"][..], &["queue", "list"], &["push", "q", "x"]] {
            let error = Process::spawn(nexo().args(["--server", address]).args(args)).finish().error();
            assert!(error.contains(speaks) && error.contains("native API"), "{port}{args:?}: {error}");
            assert!(error.contains("grpc= in its ready line"), "{port}{args:?}: {error}");
        }
    }
    let cases = [
        ("127.0.0.1", "has no port"),
        ("127.0.0.1:99999", "is not the address"),
        ("amqp://127.0.0.1:5672", "nexo bench"),
    ];
    for (address, reason) in cases {
        let finished = Process::spawn(nexo().args(["--server", address, "health"])).finish();
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains(reason), "{finished:?}");
    }
}

#[test]
fn errors_of_the_system_are_told_once_and_in_words() {
    let server = Server::start();
    let taken = Process::spawn(
        nexo()
            .args([
                "serve",
                "--data-dir",
                "/proc/none",
                "--amqp",
                "off",
                "--sqs",
                "off",
                "--http",
                "off",
                "--grpc",
            ])
            .arg(&server.grpc),
    )
    .finish()
    .error();
    assert_eq!(
        taken,
        format!("nexo: cannot listen on {} for the native API: Address already in use", server.grpc)
    );
    let mut command = common::serve_command("/proc/none");
    let nowhere = Process::spawn(command.args(["--grpc", "127.0.0.1:0", "--http", "off"])).finish().error();
    assert_eq!(nowhere, "nexo: cannot use the data directory '/proc/none': No such file or directory");
    let unread = server.run(&["push", "q", "--file", "/no/such/file"]).error();
    assert_eq!(unread, "nexo: cannot read '/no/such/file': No such file or directory");
    let refused = Process::spawn(nexo().args(["health", "--server", "127.0.0.1:1"])).finish().error();
    assert!(refused.starts_with("nexo: cannot reach http://127.0.0.1:1: Connection refused; "), "{refused}");
}

#[test]
fn a_list_can_be_sorted_and_summed_up() {
    let server = Server::start();
    assert_eq!(server.run(&["queue", "list"]).stderr, "there are no queues\n");
    for (name, count) in [("a", 1), ("b", 3), ("c", 2)] {
        server.ok(&["queue", "create", name]);
        for _ in 0..count {
            server.ok(&["push", name, "x", "--group", "g"]);
        }
        server.ok(&["push", name, "later", "--delay", "1h"]);
    }
    let table = server.ok(&["queue", "list", "--sort", "grouped", "--total"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..5], ["NAME", "READY", "LEASED", "DELAYED", "GROUPED"]);
    assert_eq!(rows[1][..5], ["b", "1", "0", "1", "2"]);
    assert_eq!(rows[2][..5], ["c", "1", "0", "1", "1"]);
    assert_eq!(rows[3][..5], ["a", "1", "0", "1", "0"]);
    assert_eq!(rows[4][..6], ["TOTAL", "(3)", "3", "0", "3", "3"]);
    let json = server.json(&["queue", "list", "--sort", "grouped", "--total"]);
    assert_eq!(json[0]["name"], "b");
    assert_eq!(json[3]["total"]["grouped"], 3);
}

#[test]
fn what_is_replayed_at_a_start_is_no_rate() {
    let mut server = Server::start();
    server.ok(&["queue", "create", "q"]);
    server.ok(&["produce", "q", "--count", "5000"]);
    server.ok(&["pop", "q", "--max", "1000", "--ack"]);
    server.kill();
    server.restart();
    // Five whole seconds count: what is read again from the log must not be among them.
    let rates = |server: &Server| {
        let stats = server.json(&["queue", "show", "q"])[0]["stats"].clone();
        ["push_rate", "deliver_rate", "ack_rate", "redeliver_rate"].map(|rate| stats[rate].as_f64().unwrap())
    };
    let until = std::time::Instant::now() + std::time::Duration::from_millis(2500);
    while std::time::Instant::now() < until {
        assert_eq!(rates(&server), [0.0; 4]);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn peek_shows_all_about_messages_and_goes_as_far_as_asked() {
    let server = Server::start();
    server.ok(&["queue", "create", "q"]);
    let lines: String = (0..2500).map(|n| format!("{n}\n")).collect();
    server.run_with_input(&["push", "q", "-", "--header", "kind=number"], lines.clone()).ok();
    let shown = server.ok(&["peek", "q"]);
    let mut parts = shown.lines();
    assert!(parts.next().unwrap().starts_with("id 0, priority 0, pushed 20"), "{shown}");
    assert_eq!(parts.collect::<Vec<_>>(), ["  header kind: number", "0"]);
    let all = server.json(&["peek", "q", "--max", "100000"]);
    assert_eq!(all.len(), 2500);
    for (n, message) in all.iter().enumerate() {
        assert_eq!(message["id"], n);
        assert_eq!(message["body"].as_str(), Some(n.to_string().as_str()));
    }
    assert_eq!(server.json(&["peek", "q", "--max", "1500"]).len(), 1500);
    assert_eq!(server.ok(&["peek", "q", "--max", "3", "--raw"]), "012");
    assert_eq!(server.json(&["queue", "show", "q"])[0]["stats"]["ready"], 2500);
}

#[test]
fn peek_shows_large_messages_beyond_what_one_answer_holds() {
    let server = Server::start();
    server.ok(&["queue", "create", "q"]);
    let line = "x".repeat(800_000) + "\n";
    server.run_with_input(&["push", "q", "-"], line.repeat(12)).ok();
    let ids: Vec<u64> = (0..12).collect();
    let shown = server.json(&["peek", "q", "--max", "100"]);
    assert_eq!(shown.iter().map(|message| message["id"].as_u64().unwrap()).collect::<Vec<_>>(), ids);
    assert_eq!(server.ok(&["peek", "q", "--max", "7", "--raw"]).len(), 7 * 800_000);
}

#[test]
fn raw_bodies_are_as_they_were() {
    let server = Server::start();
    server.ok(&["queue", "create", "q"]);
    server.ok(&["push", "q", "no line end"]);
    server.ok(&["push", "q", "none either"]);
    assert_eq!(server.ok(&["pop", "q", "--raw", "--ack", "--max", "2"]), "no line endnone either");
}

#[test]
fn a_shell_completes_the_names_of_queues() {
    let server = Server::start();
    for name in ["mail", "mailbox", "orders"] {
        server.ok(&["queue", "create", name]);
    }
    assert_eq!(server.ok(&["complete-queues", "--prefix", "ma", "--", "push"]), "mail\nmailbox\n");
    assert_eq!(server.ok(&["complete-queues", "--", "queue", "list"]), "");
    let none =
        Process::spawn(nexo().args(["complete-queues", "--server", "127.0.0.1:1", "--", "push"])).finish();
    assert_eq!((none.code, none.stdout.as_str(), none.stderr.as_str()), (Some(0), "", ""));

    // As bash does it: the script is read, and its function asked what fits.
    let script = server.ok(&["completions", "bash"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nexo.bash");
    fs::write(&file, script).unwrap();
    let path = std::path::Path::new(env!("CARGO_BIN_EXE_nexo")).parent().unwrap().display().to_string();
    let bash = format!(
        "PATH='{path}':$PATH; source '{}'; COMP_WORDS=(nexo queue show ord); COMP_CWORD=3; \
         _nexo_with_queues nexo ord show; echo \"${{COMPREPLY[@]}}\"",
        file.display()
    );
    let mut shell = Command::new("bash");
    shell.args(["--norc", "-c", &bash]).env("NEXO_SERVER", server.url()).stdin(Stdio::null());
    let output = shell.output().unwrap();
    let offered = String::from_utf8_lossy(&output.stdout);
    assert!(offered.split_whitespace().any(|word| word == "orders"), "{output:?}");
}
