//! `nexo bench` against the real broker, a second or less each: what it reports must be what happened. How fast it
//! was is nobody's business here.

mod common;

use common::{Process, Server, eventually, nexo};
use rustix::process::Signal;
use serde_json::Value;

/// A broker that speaks AMQP, and its address.
fn amqp_server() -> (Server, String) {
    let server = Server::start_with(&["--amqp", "127.0.0.1:0"]);
    let address = server.ready.split_whitespace().find_map(|word| word.strip_prefix("amqp="));
    let url = format!("amqp://guest:guest@{}/%2F", address.expect("the broker tells its address"));
    (server, url)
}

/// A broker that speaks SQS, and its address.
fn sqs_server() -> (Server, String) {
    let server = Server::start_with(&["--sqs", "127.0.0.1:0"]);
    let address = server.ready.split_whitespace().find_map(|word| word.strip_prefix("sqs="));
    let url = format!("sqs://{}", address.expect("the broker tells its address"));
    (server, url)
}

/// Runs a load and gives back its report.
fn bench(server: &Server, url: &str, args: &[&str]) -> Value {
    let report = server.ok(&[&["bench"], args, &["--url", url, "--output", "json"]].concat());
    serde_json::from_str(&report).unwrap_or_else(|error| panic!("{error}: {report}"))
}

#[track_caller]
fn number(report: &Value, pointer: &str) -> f64 {
    report.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {report}"))
}

const BRIEF: [&str; 4] = ["--duration", "500ms", "--warmup", "100ms"];

#[test]
fn every_message_that_was_published_is_consumed() {
    let (server, url) = amqp_server();
    for kind in [
        &[][..],
        &["--ack", "10", "--prefetch", "100"],
        &["--persistent", "--confirm", "100", "--ack", "50"],
        &["--size", "300000", "--confirm", "10"],
        &["--publishers", "3", "--consumers", "2", "--queues", "5", "--confirm", "50"],
        &["--publishers", "20", "--persistent", "--confirm", "1"],
        &["--priorities", "256", "--confirm", "100"],
    ] {
        let args = [&["throughput", "--drain", "60s"], &BRIEF[..], kind].concat();
        let report = bench(&server, &url, &args);
        let published = number(&report, "/totals/published");
        assert!(published > 0.0, "{kind:?}");
        assert_eq!(number(&report, "/totals/consumed"), published, "{kind:?}");
        assert_eq!((number(&report, "/left"), number(&report, "/redelivered")), (0.0, 0.0), "{kind:?}");
        if kind.contains(&"--confirm") {
            assert_eq!(number(&report, "/totals/confirmed"), published, "{kind:?}");
            assert_eq!(number(&report, "/confirm_time/count"), published, "{kind:?}");
        }
    }
    assert_eq!(server.ok(&["queue", "list", "--output", "json"]), "", "what was declared is deleted");
}

#[test]
fn a_signal_ends_a_run_in_order_and_with_a_report() {
    let (server, url) = amqp_server();
    let args =
        ["bench", "throughput", "--url", &url, "--duration", "10m", "--confirm", "100", "--output", "json"];
    let mut run = Process::spawn(&mut server.command(&args));
    eventually("its queue is there", || !server.ok(&["queue", "list", "--output", "json"]).is_empty());
    run.signal(Signal::INT);
    let report: Value = serde_json::from_str(&run.finish().ok()).unwrap();
    assert_eq!(number(&report, "/left"), 0.0);
    assert_eq!(server.ok(&["queue", "list", "--output", "json"]), "", "what was declared is deleted");
}

#[test]
fn fan_out_gives_every_consumer_every_message() {
    let (server, url) = amqp_server();
    let args =
        [&["throughput", "--fan-out", "--consumers", "3", "--confirm", "100", "--drain", "60s"], &BRIEF[..]];
    let report = bench(&server, &url, &args.concat());
    assert_eq!(number(&report, "/totals/consumed"), 3.0 * number(&report, "/totals/published"));
}

#[test]
fn the_native_api_takes_the_same_load() {
    let (server, _) = amqp_server();
    for kind in [
        &[][..],
        &["--confirm", "200", "--persistent", "--ack", "100"],
        &["--queues", "3", "--priorities", "10"],
    ] {
        let args = [&["throughput", "--drain", "60s"], &BRIEF[..], kind].concat();
        let report = bench(&server, &server.url(), &args);
        let published = number(&report, "/totals/published");
        assert!(published > 0.0, "{kind:?}");
        assert_eq!(number(&report, "/totals/consumed"), published, "{kind:?}");
        assert_eq!(number(&report, "/totals/confirmed"), published, "{kind:?}");
    }
}

#[test]
fn sqs_takes_the_same_load() {
    let (server, url) = sqs_server();
    for kind in [
        &[][..],
        &["--size", "1024", "--publishers", "3", "--consumers", "2"],
        &["--batch", "3", "--ack", "2"],
        &["--queues", "3", "--consumers", "3", "--size", "100000"],
    ] {
        let args = [&["throughput", "--drain", "60s"], &BRIEF[..], kind].concat();
        let report = bench(&server, &url, &args);
        let published = number(&report, "/totals/published");
        assert!(published > 0.0, "{kind:?}");
        assert_eq!(number(&report, "/totals/consumed"), published, "{kind:?}");
        assert_eq!((number(&report, "/left"), number(&report, "/redelivered")), (0.0, 0.0), "{kind:?}");
        assert_eq!(number(&report, "/totals/confirmed"), published, "{kind:?}");
        assert_eq!(number(&report, "/confirm_time/count"), published, "{kind:?}");
    }
    assert_eq!(server.ok(&["queue", "list", "--output", "json"]), "", "what was declared is deleted");
}

#[test]
fn a_backlog_of_sqs_need_not_be_a_multiple_of_a_batch() {
    let (server, url) = sqs_server();
    let report = bench(&server, &url, &["backlog", "--count", "1003", "--rest", "0s", "--short", "0s"]);
    assert_eq!(number(&report, "/consumed"), 1003.0);
}

#[test]
fn each_message_wakes_one_of_those_who_wait() {
    let (server, url) = sqs_server();
    let pid = server.pid().to_string();
    for queues in ["1", "20"] {
        let args = ["waiting", "--receivers", "40", "--queues", queues, "--count", "100", "--rest", "200ms"];
        let report = bench(&server, &url, &[&args[..], &["--broker-pid", &pid]].concat());
        let woken = ["/woken/one", "/woken/none", "/woken/several"].map(|what| number(&report, what));
        assert_eq!(woken, [100.0, 0.0, 0.0], "{report}");
        assert_eq!((number(&report, "/strayed"), number(&report, "/false_alarms")), (0.0, 0.0));
        assert_eq!(number(&report, "/wake_time/count"), 100.0);
        assert_eq!(number(&report, "/send_time/count"), 100.0);
        assert!(number(&report, "/rest_used/broker_resident_bytes") > 0.0);
    }
    assert_eq!(server.ok(&["queue", "list", "--output", "json"]), "", "what was declared is deleted");
}

#[test]
fn a_wait_of_sqs_that_ends_begins_anew() {
    let (server, url) = sqs_server();
    let args = ["waiting", "--receivers", "5", "--wait", "1", "--count", "5", "--rest", "1500ms"];
    let report = bench(&server, &url, &args);
    assert!(number(&report, "/renewed") >= 5.0, "{report}");
    assert_eq!(number(&report, "/woken/one"), 5.0);
}

#[test]
fn latency_is_measured_for_every_message_after_the_warm_up() {
    let (server, url) = amqp_server();
    let (_sqs, sqs_url) = sqs_server();
    for url in [url, server.url(), sqs_url] {
        let args = [&["latency", "--rate", "1000", "--persistent", "--confirm", "500"], &BRIEF[..]].concat();
        let report = bench(&server, &url, &args);
        assert_eq!(number(&report, "/totals/consumed"), number(&report, "/totals/published"));
        let measured = number(&report, "/deliver_time/count");
        assert!(measured > 0.0 && measured < number(&report, "/totals/published"), "{report}");
        assert_eq!(number(&report, "/confirm_time/count"), measured);
        for time in ["p50_us", "p90_us", "p99_us", "p999_us", "max_us"] {
            assert!(number(&report, &format!("/deliver_time/{time}")) > 0.0);
        }
    }
}

#[test]
fn a_backlog_is_filled_and_comes_back_whole() {
    let (server, url) = amqp_server();
    let data = server.data_dir().display().to_string();
    let args =
        ["backlog", "--count", "20000", "--persistent", "--confirm", "1000", "--ack", "100", "--rest", "0s"];
    let report = bench(&server, &url, &[&args[..], &["--short", "200ms", "--broker-data", &data]].concat());
    assert_eq!(number(&report, "/consumed"), 20_000.0);
    assert!(number(&report, "/disk_bytes_per_message") >= 0.0);
    let short = number(&report, "/short_queue_per_second");
    // On a busy machine nothing may come in so short a time: then there is nothing to compare with.
    if short == 0.0 {
        assert!(report["drain_ratio"].is_null(), "{report}");
    } else {
        let ratio = number(&report, "/drained_per_second") / short;
        assert!((number(&report, "/drain_ratio") - ratio).abs() < 1e-6);
    }
}

#[test]
fn urgent_messages_come_first_and_none_before_its_time() {
    let (server, url) = amqp_server();
    for url in [url, server.url()] {
        let args = ["mixed", "--count", "1000", "--spread", "500ms", "--settle", "2s"];
        let report = bench(&server, &url, &args);
        assert_eq!(report["consumed"], serde_json::json!([1000, 1000]));
        assert_eq!((number(&report, "/early"), number(&report, "/out_of_order")), (0.0, 0.0), "{report}");
        assert_eq!(number(&report, "/late/count"), 1000.0);
    }
}

#[test]
fn a_page_is_written_beside_what_is_printed() {
    let (server, url) = amqp_server();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.html").display().to_string();
    let args = [&["bench", "throughput", "--url", &url, "--html", &path], &BRIEF[..]].concat();
    let printed = server.ok(&args);
    assert!(printed.contains("consumed") && printed.contains("msg/s"), "{printed}");
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page.contains("<svg ") && page.contains("consumed"), "{page}");
    assert!(!page.contains("guest:guest"), "a report does not tell the password");
}

#[test]
fn things_come_and_go_and_leave_nothing_behind() {
    let (server, url) = amqp_server();
    let report = bench(&server, &url, &["churn", "--duration", "50ms"]);
    let one_by_one = ["connections", "channels", "durable_queues", "transient_queues", "bindings"];
    let at_once = ["pipelined_declares", "pipelined_deletes", "concurrent_declares"];
    for kind in one_by_one.into_iter().chain(at_once) {
        assert!(number(&report, &format!("/came_and_went/{kind}")) > 0.0);
    }
    assert_eq!(server.ok(&["queue", "list", "--output", "json"]), "");
}

#[test]
fn held_connections_stay_and_heartbeats_go_both_ways() {
    let (server, url) = amqp_server();
    let hold = [
        "churn",
        "--hold",
        "4s",
        "--heartbeat",
        "3",
        "--connections",
        "20",
        "--channels",
        "2",
        "--queues",
        "3",
    ];
    let report = bench(&server, &url, &hold);
    assert!(number(&report, "/held/heartbeats_sent") >= 20.0, "{report}");
    assert!(number(&report, "/held/heartbeats_received") >= 20.0, "{report}");
    assert_eq!(server.ok(&["queue", "list", "--output", "json"]), "");
}

#[test]
fn the_disk_is_measured_without_a_broker() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display().to_string();
    let mut command = nexo();
    command.args(["bench", "disk", "--count", "20", "--data-dir", &path, "--output", "json"]);
    let report: Value = serde_json::from_str(&Process::spawn(&mut command).finish().ok()).unwrap();
    assert_eq!(number(&report, "/sync_time/count"), 20.0);
}

#[test]
fn the_sink_confirms_what_it_counts() {
    let mut command = nexo();
    let mut sink = Process::spawn(command.args(["bench", "sink", "--listen", "127.0.0.1:0"]));
    let ready = sink.first_line().unwrap();
    let address = ready.strip_prefix("ready amqp=").unwrap_or_else(|| panic!("{ready:?}"));
    for confirm in ["0", "100"] {
        let mut command = nexo();
        command.args(["bench", "throughput", "--consumers", "0", "--confirm", confirm, "--output", "json"]);
        command.args(BRIEF).args(["--url", &format!("amqp://{address}")]);
        let report: Value = serde_json::from_str(&Process::spawn(&mut command).finish().ok()).unwrap();
        let published = number(&report, "/totals/published");
        assert!(published > 0.0);
        if confirm != "0" {
            assert_eq!(number(&report, "/totals/confirmed"), published);
        }
    }
}

#[test]
fn what_cannot_be_measured_is_said_in_one_line() {
    let (server, url) = amqp_server();
    let (_sqs, sqs) = sqs_server();
    for (args, reason) in [
        (
            &["throughput", "--url", "amqp://127.0.0.1:1"][..],
            "cannot connect to amqp://127.0.0.1:1; is the broker running?",
        ),
        (
            &["throughput", "--url", &url, "--ack", "100", "--prefetch", "10"],
            "would never come with a prefetch of 10",
        ),
        (&["latency", "--url", &url, "--size", "4"], "a message of 4 bytes cannot tell its time"),
        (&["throughput", "--url", &server.url(), "--fan-out"], "--fan-out needs AMQP"),
        (&["throughput", "--url", &sqs, "--size", "0"], "the first other failed with MissingParameter: "),
        (&["throughput", "--url", &sqs, "--queues", "2"], "--consumers must be at least --queues"),
        (&["throughput", "--url", &sqs, "--ack", "11"], "one request deletes at most 10 messages"),
        (&["latency", "--url", &sqs, "--size", "8"], "--size must be at least 16"),
        (&["latency", "--url", &sqs, "--rate", "200000"], "20 messages are due at once"),
        (&["mixed", "--url", &sqs], "SQS has no priorities"),
        (
            &["waiting", "--url", "sqs://127.0.0.1:1"],
            "cannot connect to sqs://127.0.0.1:1; is the broker running?",
        ),
        (&["waiting", "--url", &sqs, "--receivers", "2", "--queues", "3"], "3 queues have no receiver each"),
        (&["throughput", "--url", &url.replace("guest:guest", "guest:wrong")], "cannot log in to"),
    ] {
        let finished = server.run(&[&["bench"], args].concat());
        assert_eq!(finished.code, Some(1), "{args:?}");
        assert!(finished.stderr.contains(reason), "{args:?}: {}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{args:?}: {}", finished.stderr);
    }
}

#[test]
fn a_consumer_that_sleeps_takes_one_message_a_time() {
    let (server, url) = amqp_server();
    let slow = ["--consumer-pause", "50ms", "--ack", "1", "--prefetch", "10", "--drain", "0s"];
    let report = bench(&server, &url, &[&["throughput"], &BRIEF[..], &slow].concat());
    let consumed = number(&report, "/consumed_per_second");
    assert!(consumed <= 30.0, "one each 50 ms, not {consumed} a second");
    // Of the whole run: a busy machine may do nothing in the half second that is measured.
    assert!(number(&report, "/totals/consumed") > 0.0, "{report}");
    assert!(number(&report, "/left") > 0.0, "{report}");
    let over_native = ["bench", "throughput", "--url", "http://127.0.0.1:1", "--consumer-pause", "1ms"];
    let refused = server.run(&over_native).error();
    assert!(refused.contains("--consumer-pause needs AMQP"), "{refused}");
}

#[test]
fn a_probe_has_every_message_confirmed() {
    let (server, url) = amqp_server();
    let report = bench(&server, &url, &["probe", "--every", "10ms", "--duration", "500ms"]);
    let sent = number(&report, "/probed/sent/count");
    assert!((1.0..=51.0).contains(&sent), "{sent} messages in half a second");
    assert!(number(&report, "/probed/due/count") >= sent, "what could not be sent counts too");
}

#[test]
fn abuse_tells_the_memory_and_what_others_waited_for() {
    let (server, url) = amqp_server();
    let pid = server.pid().to_string();
    let args = ["abuse", "requeue", "--divide", "1000", "--broker-pid", &pid];
    let report = bench(&server, &url, &args);
    assert!(number(&report, "/before_bytes") > 0.0);
    assert!(number(&report, "/peak_bytes") > 0.0 && number(&report, "/after_bytes") > 0.0);
    assert!(number(&report, "/probe/sent/count") > 0.0);
    let measured = report.pointer("/measured").unwrap().to_string();
    assert!(measured.contains(r#"["held","5,000"]"#) && measured.contains("5,000 in "), "{measured}");
}

/// The most memory that a process has held, in bytes.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the broker runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the system tells VmHWM");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib * 1024
}

/// Messages that all queues have taken, and those of them that were acknowledged.
fn pushed_and_acked(server: &Server) -> (u64, u64) {
    let queues = server.json(&["queue", "list"]);
    let sum = |count: &str| queues.iter().filter_map(|queue| queue["stats"][count].as_u64()).sum();
    (sum("pushed"), sum("acked"))
}

/// Without anything that keeps them even, consumers of small messages get a quarter or less of what is published, for as
/// long as it goes on. So it goes on until they had half of all: a busy machine may hold them up for a while. With
/// twenty queues this build is too slow to tell publishers that hold consumers up from consumers that are slow:
/// `cargo xtask bench abuse --only flow` judges that, and how fast it is.
#[test]
fn publishers_do_not_starve_consumers() {
    const BOUND: u64 = 256 << 20;
    // What is published at least: several times what may be ready before publishers are slowed.
    for (least, kind) in [
        (100_000, &["--publishers", "4", "--consumers", "4", "--ack", "100"][..]),
        (
            20_000,
            &["--publishers", "20", "--consumers", "20", "--queues", "20", "--ack", "10", "--size", "4000"],
        ),
    ] {
        let (server, url) = amqp_server();
        let args = ["bench", "throughput", "--url", &url, "--duration", "10m", "--drain", "0s"];
        let mut run = Process::spawn(&mut server.command(&[&args[..], kind].concat()));
        eventually("consumers get half of what is published", || {
            let (pushed, acked) = pushed_and_acked(&server);
            println!("{kind:?}: {pushed} published, {acked} acknowledged");
            pushed >= least && acked >= pushed / 2
        });
        let (pushed, acked) = pushed_and_acked(&server);
        eventually("both go on", || {
            let now = pushed_and_acked(&server);
            now.0 >= pushed + least / 4 && now.1 >= acked + least / 4
        });
        let peak = peak_bytes(server.pid());
        assert!(peak <= BOUND / 2 * 3, "{kind:?}: {} MiB", peak >> 20);
        run.signal(Signal::INT);
        run.finish().ok();
    }
}
