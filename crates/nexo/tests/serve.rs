//! `nexo serve` as an operator sees it: settings, the ready line, signals, health and metrics.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::net::{TcpListener, TcpStream};

use common::{PATIENCE, Process, Server, eventually, nexo, serve_command};
use nexo_amqp_client::InputSize;
use nexo_harness::{address_in, addresses_in, http};
use rustix::process::Signal;

#[test]
fn the_ready_line_names_every_address() {
    let server = Server::start();
    let expected =
        format!("ready grpc={} http={} data={}", server.grpc, server.http, server.data_dir().display());
    assert_eq!(server.ready, expected);
}

#[test]
fn every_way_in_takes_several_addresses() {
    let several = "127.0.0.1:0,127.0.0.2:0,127.0.0.1:0";
    let args = ["--amqp", several, "--grpc", several, "--sqs", several, "--http", several];
    let server = Server::start_with(&args);
    for (protocol, alive) in [
        ("amqp", &log_in as &dyn Fn(&str)),
        ("grpc", &|address| {
            assert_eq!(server.ok(&["--server", &format!("http://{address}"), "health"]), "ok\n")
        }),
        ("sqs", &|address| assert_eq!(http::get(address, "/", PATIENCE).unwrap().status, 404)),
        ("http", &|address| assert_eq!(http::get(address, "/health", PATIENCE).unwrap().status, 200)),
    ] {
        let addresses: Vec<&str> = addresses_in(&server.ready, protocol).collect();
        assert_eq!(addresses.len(), 3, "{}", server.ready);
        assert!(addresses[1].starts_with("127.0.0.2:"), "{}", server.ready);
        addresses.into_iter().for_each(alive);
    }
}

#[test]
fn one_of_several_addresses_that_is_taken_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = serve_command(dir.path().join("data"));
    command.args(["--grpc", &format!("127.0.0.1:0,{address}"), "--http", "off"]);
    let error = Process::spawn(&mut command).finish().error();
    assert!(error.starts_with(&format!("nexo: cannot listen on {address} for the native API: ")), "{error}");
}

#[test]
fn an_address_that_is_off_is_not_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = serve_command(dir.path().join("data"));
    let mut process = Process::spawn(command.args(["--grpc", "127.0.0.1:0", "--http", "off"]));
    let ready = process.first_line().unwrap();
    assert!(ready.starts_with("ready grpc=127.0.0.1:") && !ready.contains("http="), "{ready}");
}

#[test]
fn sigterm_ends_it_with_zero_and_keeps_the_messages() {
    let mut server = Server::start();
    server.ok(&["queue", "create", "q", "--max-attempts", "7"]);
    server.ok(&["push", "q", "kept"]);
    assert_eq!(server.stop().code(), Some(0));
    server.restart();
    assert_eq!(server.json(&["queue", "show", "q"])[0]["config"]["max_attempts"], 7);
    assert_eq!(server.ok(&["pop", "q", "--ack"]), "kept\n");
}

#[test]
fn sigint_ends_it_with_zero_too() {
    let mut server = Server::start();
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_second_signal_does_not_wait() {
    let mut server = Server::start();
    // A connection that never says anything holds up the end for as long as there is patience.
    let silent = TcpStream::connect(&server.grpc).unwrap();
    server.signal(Signal::TERM);
    eventually("no one is let in", || TcpStream::connect(&server.grpc).is_err());
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(143));
    drop(silent);
}

#[test]
fn what_was_confirmed_survives_a_kill_and_what_was_acked_stays_gone() {
    let mut server = Server::start();
    server.ok(&["queue", "create", "q"]);
    let lines: String = (0..1000).map(|n| format!("{n}\n")).collect();
    server.run_with_input(&["push", "q", "-"], lines.clone()).ok();
    server.ok(&["pop", "q", "--max", "10", "--ack"]);
    server.kill();
    server.restart();
    let rest = server.ok(&["consume", "q", "--count", "990"]);
    let mut rest: Vec<u32> = rest.lines().map(|line| line.parse().unwrap()).collect();
    rest.sort_unstable();
    assert_eq!(rest, (10..1000).collect::<Vec<u32>>());
}

#[test]
fn a_waiting_pop_does_not_hold_up_the_end() {
    let mut server = Server::start();
    server.ok(&["queue", "create", "q"]);
    let mut waiting = Process::spawn(&mut server.command(&["pop", "q", "--wait", "30m"]));
    let mut consumer = Process::spawn(&mut server.command(&["consume", "q"]));
    eventually("both wait", || server.json(&["queue", "show", "q"])[0]["stats"]["consumers"] == 2);
    assert_eq!(server.stop().code(), Some(0));
    let error = waiting.finish().error();
    assert_eq!(error, "nexo: pop from 'q': the broker is shutting down");
    // A worker waits for its broker to come back, until somebody tells it not to.
    consumer.signal(Signal::INT);
    let finished = consumer.finish();
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let lines: Vec<&str> = finished.stderr.lines().collect();
    assert_eq!(lines[0], "nexo: consume 'q': the broker ended the subscription; trying again");
    assert_eq!(lines[1], "nexo: consume 'q': ended without a connection to the broker");
}

#[test]
fn a_data_directory_serves_one_process_at_a_time() {
    let server = Server::start();
    let mut command = serve_command(server.data_dir());
    command.args(["--grpc", "127.0.0.1:0", "--http", "off"]);
    let error = Process::spawn(&mut command).finish().error();
    assert!(error.contains(&server.data_dir().display().to_string()), "{error}");
    assert!(error.contains("in use"), "{error}");
    assert_eq!(server.ok(&["health"]), "ok\n");
}

#[test]
fn a_directory_with_other_things_in_it_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.txt"), "important").unwrap();
    let mut command = serve_command(dir.path());
    command.args(["--grpc", "127.0.0.1:0", "--http", "off"]);
    let error = Process::spawn(&mut command).finish().error();
    assert!(error.contains("not a Nexo data directory"), "{error}");
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["thesis.txt"]);
}

#[test]
fn a_port_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let data = dir.path().join("data");
    let mut command = serve_command(&data);
    command.args(["--grpc", &address, "--http", "off"]);
    let error = Process::spawn(&mut command).finish().error();
    assert!(error.starts_with(&format!("nexo: cannot listen on {address} for the native API: ")), "{error}");
    assert!(!data.exists(), "the data is not touched");
}

#[test]
fn a_flag_goes_before_the_environment_and_that_before_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let file = path("nexo.toml");
    let text =
        format!("data_dir = '{}'\ngrpc = '127.0.0.1:0'\nhttp = 'off'\namqp = 'off'\n", path("from-file"));
    fs::write(&file, text).unwrap();
    let data_of = |command: &mut std::process::Command| {
        let mut process = Process::spawn(command);
        let ready = process.first_line().expect("a ready line");
        ready.split_once("data=").unwrap().1.to_owned()
    };
    let serve = || {
        let mut command = nexo();
        command.args(["serve", "--config", &file]);
        command
    };
    assert_eq!(data_of(&mut serve()), path("from-file"));
    assert_eq!(data_of(serve().env("NEXO_DATA_DIR", path("from-env"))), path("from-env"));
    let mut both = serve();
    both.env("NEXO_DATA_DIR", path("from-env")).args(["--data-dir", &path("from-flag")]);
    assert_eq!(data_of(&mut both), path("from-flag"));
}

#[test]
fn the_free_space_that_must_stay_can_be_changed_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nexo.toml");
    let set = |text: &str| fs::write(&file, text).unwrap();
    set("disk_free_min = '1KiB'");
    let data = dir.path().join("data");
    let server = Server::start_in(&data, &["--config", file.to_str().unwrap()]);
    server.ok(&["queue", "create", "mail"]);
    server.ok(&["push", "mail", "hello"]);
    assert_eq!(server.get("/health").0, 200);

    set("disk_free_min = '4000000000GiB'");
    server.signal(Signal::HUP);
    eventually("the new limit is known", || server.get("/health").0 == 503);
    let error = server.run(&["push", "mail", "more"]).error();
    assert!(error.contains("must stay free (disk_free_min)"), "{error}");
    assert_eq!(server.ok(&["pop", "mail", "--ack"]), "hello\n");

    set("");
    server.signal(Signal::HUP);
    eventually("there is no limit any more", || server.get("/health").0 == 200);
    server.ok(&["push", "mail", "more"]);
}

#[test]
fn settings_that_cannot_be_are_one_clear_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nexo.toml");
    let refused = |text: &str| {
        fs::write(&file, text).unwrap();
        Process::spawn(nexo().args(["serve", "--config", file.to_str().unwrap()])).finish().error()
    };
    let error = refused("port = 5");
    assert!(error.contains("nexo.toml") && error.contains("unknown field `port`"), "{error}");
    let error = refused("grpc = 7654");
    assert!(error.contains("grpc = 7654"), "{error}");
    let error = refused("log = 'loud'");
    assert!(error.contains("log must be a level") && error.contains("'loud' is no level"), "{error}");
    let error = refused("log = 'no=such=filter'");
    assert!(error.contains("log must be a level"), "{error}");
    let finished = Process::spawn(nexo().args(["serve", "--sync", "sometimes"])).finish();
    assert_eq!(finished.code, Some(2));
    assert!(
        finished.stderr.contains("--sync") && finished.stderr.contains("interval"),
        "{}",
        finished.stderr
    );
    let finished = Process::spawn(nexo().arg("serve").env("NEXO_GRPC", "here")).finish();
    assert_eq!(finished.code, Some(2));
    assert!(finished.stderr.contains("must be HOST:PORT"), "{}", finished.stderr);
}

#[test]
fn health_and_metrics_answer_over_http() {
    let server = Server::start();
    assert_eq!(server.get("/health"), (200, r#"{"status":"ok"}"#.into()));
    let name = r#"a "quoted" \ name"#;
    server.ok(&["queue", "create", name]);
    server.ok(&["push", name, "x"]);
    let (status, metrics) = server.get("/metrics");
    assert_eq!(status, 200);
    for line in [
        r#"nexo_queue_ready{queue="a \"quoted\" \\ name",vhost="/"} 1"#,
        r#"nexo_queue_pushed_total{queue="a \"quoted\" \\ name",vhost="/"} 1"#,
        "nexo_healthy 1",
        "nexo_queues 1",
        "# TYPE nexo_queue_pushed_total counter",
    ] {
        assert!(metrics.lines().any(|l| l == line), "no {line:?} in:\n{metrics}");
    }
    assert!(metrics.contains("nexo_log_sync_duration_seconds_bucket"), "{metrics}");
    let (status, index) = server.get("/");
    assert!(status == 200 && index.contains("/metrics"), "{index}");
    assert_eq!(server.get("/nothing").0, 404);
}

#[test]
fn a_quiet_broker_says_nothing_but_ready() {
    let mut server = Server::start();
    server.ok(&["queue", "create", "q"]);
    server.ok(&["push", "q", "x"]);
    let finished = server.stop_and_collect();
    assert_eq!((finished.code, finished.stdout.as_str(), finished.stderr.as_str()), (Some(0), "", ""));
}

/// An AMQP login that works.
fn log_in(address: &str) {
    let url = format!("amqp://guest:guest@{address}").parse().unwrap();
    nexo_amqp_client::Connection::open(&url, InputSize::Small).unwrap();
}

/// An AMQP login that is refused; returns when the broker has said so.
fn log_in_wrongly(address: &str) {
    let url = format!("amqp://mallory:secret@{address}").parse().unwrap();
    let refused = nexo_amqp_client::Connection::open(&url, InputSize::Small);
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn the_log_tells_an_operator_what_happens() {
    let mut server = Server::start_with(&["--log", "info", "--amqp", "127.0.0.1:0"]);
    server.ok(&["queue", "create", "mail"]);
    server.ok(&["push", "mail", "hello"]);
    server.ok(&["queue", "delete", "mail", "--yes"]);
    let amqp = address_in(&server.ready, "amqp").unwrap().to_owned();
    log_in_wrongly(&amqp);
    let log = server.stop_and_collect().stderr;
    let data = server.data_dir().display().to_string();
    for words in [
        &["starting", "version=\"0.1.0\"", &data][..],
        &["data directory is new", "took_ms="],
        &["listening", "protocol=\"amqp\"", &amqp],
        &["listening", "protocol=\"grpc\"", &server.grpc],
        &["connection opened", "protocol=\"grpc\"", "peer=127.0.0.1:"],
        &["connection closed", "protocol=\"grpc\"", "seconds="],
        &["queue created", "queue=mail", "durable=true"],
        &["queue deleted", "queue=mail", "messages=1"],
        &["WARN", "login refused", "user=\"mallory\"", "peer=127.0.0.1:", "mechanism=\"PLAIN\""],
        &["ending", "SIGTERM"],
        &["stopped"],
    ] {
        let told = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(told, "no line with {words:?} in:\n{log}");
    }
    assert!(!log.contains("secret"), "{log}");
}

#[test]
fn the_help_shows_no_open_port() {
    let help = Process::spawn(nexo().args(["serve", "--help"])).finish().ok();
    assert!(help.contains("Examples:") && !help.contains("0.0.0.0"), "{help}");
}

/// An address of this machine that is not loopback, if it has one.
fn outside_address() -> Option<String> {
    let output = std::process::Command::new("hostname").arg("-I").output().ok()?;
    let addresses = String::from_utf8(output.stdout).ok()?;
    addresses.split_whitespace().find(|address| address.contains('.')).map(str::to_owned)
}

#[test]
fn an_open_address_is_warned_of_and_still_serves_this_machine_only() {
    let open = "0.0.0.0:0";
    let mut server = Server::start_with(&["--amqp", open, "--grpc", open, "--sqs", open, "--http", open]);
    let port = server.grpc.rsplit_once(':').unwrap().1;
    if let Some(address) = outside_address() {
        let server_url = format!("http://{address}:{port}");
        for command in [&["queue", "list"][..], &["queue", "create", "q"], &["push", "q", "x"]] {
            let error = server.run(&[&["--server", &server_url], command].concat()).error();
            assert!(error.contains("the call says not who makes it"), "{error}");
        }
    } else {
        println!("this machine has no address but loopback: nobody else can be refused");
    }
    // From this machine it answers.
    let loopback = format!("http://127.0.0.1:{port}");
    assert_eq!(server.ok(&["--server", &loopback, "--output", "json", "queue", "list"]), "");
    let log = server.stop_and_collect().stderr;
    for (protocol, fact) in [
        ("amqp", "there is no user but guest"),
        ("grpc", "there is no user but guest"),
        ("sqs", "there is no user but guest"),
        ("http", "can read health and metrics"),
    ] {
        let words = ["WARN", "other machines can reach", &format!("protocol=\"{protocol}\""), fact];
        let told = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(told, "no line with {words:?} in:\n{log}");
    }
}

#[test]
fn the_log_tells_what_was_recovered_and_every_listener() {
    let any = "127.0.0.1:0";
    let all = ["--log", "info", "--amqp", any, "--sqs", any];
    let mut server = Server::start();
    for (queue, count) in [("mail", 3), ("jobs", 2), ("empty", 0)] {
        server.ok(&["queue", "create", queue]);
        for number in 0..count {
            server.ok(&["push", queue, &number.to_string()]);
        }
    }
    server.ok(&["pop", "mail", "--ack"]);
    // What is there is there, whether the broker was told to end or not.
    for ending in [Signal::KILL, Signal::TERM] {
        server.signal(ending);
        server.wait();
        server.restart_with(&all);
        let ready = server.ready.clone();
        let log = server.stop_and_collect().stderr;
        let recovered = ["data recovered", "queues=3", "messages=4", "took_ms="];
        assert!(
            log.lines().any(|line| recovered.iter().all(|word| line.contains(word))),
            "no line with {recovered:?} in:\n{log}"
        );
        for protocol in ["amqp", "grpc", "sqs", "http"] {
            let address = address_in(&ready, protocol);
            let words = ["listening", &format!("protocol=\"{protocol}\""), address.unwrap()];
            let told = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
            assert!(told, "no line with {words:?} in:\n{log}");
        }
        server.restart();
    }
}

#[test]
fn definitions_are_loaded_before_anybody_comes_in() {
    let dir = tempfile::tempdir().unwrap();
    let (path, data) = (dir.path().join("definitions.json"), dir.path().join("data"));
    let file = serde_json::json!({
        "users": [{"name": "ann", "password": "secret", "tags": "administrator"}],
        "vhosts": [{"name": "/"}, {"name": "shop"}],
        "permissions": [{"user": "ann", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "queues": [{"name": "mail", "vhost": "/", "durable": true}],
    });
    std::fs::write(&path, file.to_string()).unwrap();
    let load = ["--load-definitions", path.to_str().unwrap()];
    let mut server = Server::start_in(&data, &load);
    let as_ann = |server: &Server, args: &[&str]| {
        server.ok(&[&["--user", "ann", "--password", "secret"], args].concat())
    };
    assert!(as_ann(&server, &["queue", "list"]).contains("mail"));
    assert!(as_ann(&server, &["vhost", "list"]).contains("shop"));
    let error = server.run(&["queue", "list"]).error();
    assert!(error.contains("who makes it"), "a broker that has users gets no guest: {error}");
    // Again, over what is there.
    server.stop();
    server.restart_with(&load);
    assert!(as_ann(&server, &["queue", "list"]).contains("mail"));
    server.stop();
    std::fs::write(&path, "{").unwrap();
    let mut command = serve_command(&data);
    let error = Process::spawn(command.args(load)).finish().error();
    assert!(error.contains("the definitions '") && error.contains("cannot be imported"), "{error}");
}
