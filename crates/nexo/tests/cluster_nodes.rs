//! Nodes that come, move, are drained and go; secrets and certificates, wrong combinations of options, and the words of `nexo cluster`.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

#[path = "common/certificates.rs"]
mod certificates;
mod common;
#[path = "common/nodes.rs"]
mod nodes;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use certificates::Authority;
use common::{Process, Server, eventually, nexo, serve_command};
use nodes::{Cluster, insist};
use rustix::process::Signal;

#[test]
fn nodes_are_drained_and_removed() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let leader = cluster.leader();
    let follower = cluster.follower().name;
    cluster.node(follower).server().ok(&["cluster", "drain", leader]);
    assert_ne!(cluster.leader(), leader);
    let (status, body) = cluster.node(leader).server().get("/health/ready");
    assert!(status == 503 && body.contains("drained"), "{status} {body}");
    assert_eq!(cluster.node(leader).server().get("/health/live").0, 200);
    cluster.until_in_step(3);
    // A node that is slow to answer counts as lost for that moment.
    eventually("all are in step, and one is drained", || {
        let shown = cluster.node(follower).server().ok(&["cluster", "status"]);
        shown.starts_with("All 3 nodes are in step: any one may be lost.")
            && shown.lines().any(|line| line.starts_with(leader) && line.contains("drained"))
    });
    cluster.node(follower).server().ok(&["cluster", "drain", leader, "--end"]);
    assert_eq!(cluster.node(leader).server().get("/health/ready").0, 200);

    // One that leads can be removed through any other; it hands over first.
    let (leader, asked) = (cluster.leader(), cluster.follower());
    insist(asked.server(), &["cluster", "remove", leader, "--yes"]);
    cluster.node_mut(leader).kill();
    cluster.until_in_step(2);
    let missing = cluster.follower().server().run(&["cluster", "remove", leader, "--yes"]).error();
    assert!(missing.contains(&format!("there is no node '{leader}' in this cluster")), "{missing}");

    // Another takes its place, under a name of its own.
    cluster.nodes.retain(|node| node.server.is_some());
    cluster.add("d");
    cluster.until_in_step(3);
    let groups = cluster.follower().server().json(&["cluster", "groups"]);
    let voters: BTreeSet<&str> =
        groups[0]["voters"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(voters.contains("d") && !voters.contains(leader), "{voters:?}");
}

#[test]
fn the_log_says_who_changed_the_cluster_and_from_where() {
    let [address] = nexo_harness::free_addresses::<1>().unwrap().map(|address| address.to_string());
    let dir = tempfile::tempdir().unwrap();
    let options = ["--node", "a", "--cluster", &address, "--log", "info"];
    let mut alone = Server::start_in(&dir.path().join("a"), &options);
    // It is noted who asks, also where it cannot be done.
    for args in
        [&["cluster", "transfer", "x"][..], &["cluster", "drain", "x"], &["cluster", "remove", "x", "--yes"]]
    {
        assert!(alone.run(args).error().contains("there is no node 'x'"), "{args:?}");
    }
    let log = alone.stop_and_collect().stderr;
    for what in ["leadership is to be handed over", "a node is to be drained", "a node is to be removed"] {
        let mut said = log.lines().filter(|line| line.contains(what));
        assert!(said.any(|line| line.contains("by=guest from 127.0.0.1:")), "{what}: {log}");
    }
}

#[test]
fn rabbitmqctl_lists_awaits_and_forgets_nodes() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let asked = cluster.leader();
    let status = |cluster: &Cluster| -> Option<serde_json::Value> {
        let line = ["rabbitmqctl", "cluster_status", "--formatter=json"];
        serde_json::from_str(&cluster.node(asked).server().run(&line).stdout).ok()
    };
    let ctl = |cluster: &Cluster, line: &[&str]| {
        insist(cluster.node(asked).server(), &[&["rabbitmqctl"], line].concat())
    };
    let shown = ctl(&cluster, &["cluster_status"]);
    for part in [
        "\nDisk Nodes\n\na\nb\nc\n",
        "\nRunning Nodes\n\na\nb\nc\n",
        "Node: b, status: not under maintenance",
    ] {
        assert!(shown.contains(part), "{part:?} in {shown}");
    }
    assert!(shown.starts_with(&format!("Cluster status of node {asked} ...")), "{shown}");
    assert_eq!(ctl(&cluster, &["-q", "await_online_nodes", "3"]), "");

    let gone = cluster.follower().name;
    cluster.node_mut(gone).kill();
    eventually("the loss is noticed", || {
        let Some(status) = status(&cluster) else { return false };
        let count = |list: &str| status[list].as_array().map_or(0, Vec::len);
        (count("disk_nodes"), count("running_nodes")) == (3, 2)
    });
    let line = ["rabbitmqctl", "await_online_nodes", "3", "--timeout", "1"];
    let late = cluster.node(asked).server().run(&line);
    assert!(late.code == Some(75) && late.stderr.contains("2 of 3 nodes run"), "{late:?}");

    let offline = ["rabbitmqctl", "forget_cluster_node", "--offline", gone];
    let offline = cluster.node(asked).server().run(&offline);
    assert!(offline.code == Some(64) && offline.stderr.contains("'nexo cluster recover'"), "{offline:?}");
    let said = ctl(&cluster, &["forget_cluster_node", gone]);
    assert_eq!(said, format!("Removing node {gone} from the cluster\n"));
    cluster.until_in_step(2);
    assert_eq!(status(&cluster).unwrap()["disk_nodes"].as_array().unwrap().len(), 2);
    let missing = cluster.node(asked).server().run(&["rabbitmqctl", "forget_cluster_node", gone]);
    let words = format!("there is no node '{gone}' in this cluster");
    assert!(missing.code == Some(69) && missing.stderr.contains(&words), "{missing:?}");
}

#[test]
fn a_removal_that_would_stop_the_cluster_is_refused() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let leader = cluster.leader();
    let (gone, stays) = {
        let mut followers = cluster.nodes.iter().filter(|node| node.name != leader).map(|node| node.name);
        (followers.next().unwrap(), followers.next().unwrap())
    };
    cluster.node_mut(gone).kill();
    eventually("the loss is noticed", || cluster.node(leader).risk().contains("cannot be reached"));
    let refused = cluster.node(leader).server().run(&["cluster", "remove", stays, "--yes"]).error();
    assert!(refused.contains("it would stop"), "{refused}");
    insist(cluster.node(leader).server(), &["cluster", "remove", gone, "--yes"]);
    cluster.until_in_step(2);
}

#[test]
fn a_broker_becomes_the_first_node_with_its_data() {
    let mut alone = Server::start();
    alone.ok(&["queue", "create", "mail"]);
    alone.ok(&["push", "mail", "from before"]);
    let text = alone.run(&["cluster", "status"]).error();
    assert!(text.contains("this broker is not in a cluster"), "{text}");
    assert_eq!(alone.stop().code(), Some(0));
    let [first, second] = nexo_harness::free_addresses::<2>().unwrap().map(|address| address.to_string());
    alone.restart_with(&["--node", "a", "--cluster", &first]);
    let other = Server::start_with(&["--node", "b", "--cluster", &second, "--join", &first]);
    eventually("the second has it too", || {
        let shown = other.run(&["--output", "json", "cluster", "status"]);
        shown.stdout.contains("both nodes are in step")
    });
    assert_eq!(insist(&other, &["pop", "mail", "--wait", "5s", "--ack"]), "from before\n");
}

/// How a broker ends that is started with these.
fn refused(data: &Path, args: &[&str]) -> String {
    let mut command = serve_command(data);
    command.args(args).env("NEXO_GRPC", "127.0.0.1:0").env("NEXO_HTTP", "127.0.0.1:0");
    Process::spawn(&mut command).finish().error()
}

#[test]
fn wrong_combinations_are_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    for (args, words) in [
        (&["--node", "a"][..], "node needs cluster"),
        (&["--cluster", "127.0.0.1:1"], "cluster needs node"),
        (&["--join", "127.0.0.1:1"], "join needs cluster"),
        (&["--node", "a", "--cluster", "here"], "it must be HOST:PORT"),
        (&["--node", "a", "--cluster", "127.0.0.1:1", "--sync", "os"], "sync must be 'always'"),
        (&["--node", "a", "--cluster", "mq.example:1"], "cluster_secret_file"),
        (&["--node", "a", "--cluster", "127.0.0.1:1", "--cluster-tls-cert", "c.pem"], "go together"),
    ] {
        let text = refused(&empty, args);
        assert!(text.contains(words), "{args:?}: {text}");
    }
    let mut alone = Server::start();
    alone.stop();
    let text =
        refused(alone.data_dir(), &["--node", "a", "--cluster", "127.0.0.1:1", "--join", "127.0.0.1:2"]);
    assert!(text.contains("start it with an empty data directory"), "{text}");
}

#[test]
fn whoever_has_another_secret_is_kept_out() {
    let cluster = Cluster::start(&["a"]);
    let first = cluster.node("a").address.to_string();
    let secret = cluster.dir.path().join("other-secret");
    std::fs::write(&secret, "quite another secret than the others have").unwrap();
    let [address] = nexo_harness::free_addresses::<1>().unwrap().map(|address| address.to_string());
    let data = cluster.dir.path().join("x");
    let join = ["--node", "x", "--cluster", &address, "--join", &first];
    let mut command = serve_command(&data);
    command.args(join).env("NEXO_CLUSTER_SECRET_FILE", &secret).env("NEXO_GRPC", "127.0.0.1:0");
    command.env("NEXO_HTTP", "127.0.0.1:0").env("NEXO_LOG", "warn");
    let mut stranger = Process::spawn(&mut command);
    let mut said = String::new();
    while !said.contains("cluster secret") {
        said = stranger.first_error_line().expect("it says why it cannot join");
    }
    stranger.signal(Signal::KILL);
    stranger.wait();
    assert_eq!(cluster.node("a").status().unwrap()["nodes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_node_whose_disk_was_wiped_comes_back_as_another() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let wiped = cluster.follower().name;
    cluster.node_mut(wiped).kill();
    let (data, address) = (cluster.node(wiped).data.clone(), cluster.node(wiped).address.to_string());
    std::fs::remove_dir_all(&data).unwrap();
    let others: Vec<String> = cluster.running().map(|node| node.address.to_string()).collect();
    let args = ["--node", wiped, "--cluster", &address, "--join", &others.join(",")].map(str::to_owned);
    let mut command = serve_command(&data);
    command.env("NEXO_CLUSTER_SECRET_FILE", cluster.dir.path().join("secret")).args(&args);
    command.env("NEXO_GRPC", "127.0.0.1:0").env("NEXO_HTTP", "127.0.0.1:0");
    let text = Process::spawn(&mut command).finish().error();
    assert!(text.contains(&format!("there is a node '{wiped}' already, with other data")), "{text}");
    insist(cluster.follower().server(), &["cluster", "remove", wiped, "--yes"]);
    let server = cluster.serve(&data, &args);
    cluster.node_mut(wiped).server = Some(server);
    cluster.until_in_step(3);
    let nodes = cluster.node(wiped).server().json(&["cluster", "nodes"]);
    let back = nodes.iter().find(|node| node["name"] == wiped).unwrap();
    assert_eq!(back["id"], 4, "{back}");
}

#[test]
fn three_nodes_to_try_out() {
    let [first] = nexo_harness::free_addresses::<1>().unwrap();
    let port = first.port().min(65_000).to_string();
    let mut command: Command = nexo();
    command.args(["cluster", "try", "--first-port", &port]);
    let mut tried = Process::spawn(&mut command);
    let line = tried.first_line().unwrap_or_else(|| panic!("it did not start: {:?}", tried.finish()));
    assert!(line.starts_with("ready: three nodes"), "{line}");
    let data = line.rsplit(' ').next().unwrap().to_owned();
    assert!(Path::new(&data).join("c").exists());
    tried.signal(Signal::INT);
    let finished = tried.finish();
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("cluster status --watch"), "{finished:?}");
    assert!(!Path::new(&data).exists(), "it leaves nothing behind");
}

#[test]
fn new_nodes_begin_one_cluster_together_and_a_wiped_one_begins_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, nodes::SECRET).unwrap();
    let addresses = nexo_harness::free_addresses::<3>().unwrap().map(|address| address.to_string());
    let names = ["a", "b", "c"];
    // The same on all of them, but for who they are.
    let args = |at: usize| {
        let join = addresses.join(",");
        ["--node", names[at], "--cluster", &addresses[at], "--join", &join, "--bootstrap"].map(str::to_owned)
    };
    let start = |at: usize| nodes::serve(&secret, &dir.path().join(names[at]), &args(at));
    // The first one is not enough, nor are two: the third could be in a cluster.
    let mut servers: Vec<Server> = std::thread::scope(|scope| {
        let started: Vec<_> = [0, 1].map(|at| scope.spawn(move || start(at))).into();
        std::thread::sleep(std::time::Duration::from_secs(3));
        assert!(started.iter().all(|thread| !thread.is_finished()), "a cluster was begun without the third");
        let last = start(2);
        started.into_iter().map(|thread| thread.join().unwrap()).chain([last]).collect()
    });
    let in_step = |server: &Server| {
        server.run(&["--output", "json", "cluster", "status"]).stdout.contains("all 3 nodes are in step")
    };
    eventually("they are one cluster", || servers.iter().all(in_step));
    insist(&servers[0], &["queue", "create", "work"]);

    // The first one loses its disk while the others are away: it waits, and begins nothing.
    for server in &mut servers {
        server.kill();
    }
    std::fs::remove_dir_all(dir.path().join("a")).unwrap();
    let mut command = serve_command(dir.path().join("a"));
    command.args(args(0)).env("NEXO_CLUSTER_SECRET_FILE", &secret).env("NEXO_LOG", "warn");
    command.env("NEXO_GRPC", "127.0.0.1:0").env("NEXO_HTTP", "127.0.0.1:0").env("NEXO_AMQP", "127.0.0.1:0");
    let mut wiped = Process::spawn(&mut command);
    assert!(wiped.first_error_line().expect("it says that it waits").contains("cannot join yet"));
    let others: Vec<Server> = std::thread::scope(|scope| {
        let started: Vec<_> = [1, 2].map(|at| scope.spawn(move || start(at))).into();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let finished = wiped.finish();
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains("there is a node 'a' already, with other data"), "{finished:?}");
    assert_eq!(
        insist(&others[0], &["queue", "list"]).lines().filter(|line| line.starts_with("work")).count(),
        1
    );
}

#[test]
fn one_node_goes_on_alone_when_a_majority_is_gone_for_good() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let left = cluster.follower().name;
    cluster.node(left).server().ok(&["queue", "create", "work"]);
    cluster.node(left).server().ok(&["push", "work", "still here"]);
    cluster.until_in_step(3);
    let recover = |data: &Path| {
        Process::spawn(nexo().args(["cluster", "recover", "--yes", "--data-dir"]).arg(data)).finish()
    };
    let data = cluster.node(left).data.clone();
    let text = recover(&data).error();
    assert!(text.contains("is in use; stop the node first"), "{text}");
    for name in ["a", "b", "c"] {
        cluster.node_mut(name).kill();
    }
    let text = recover(&data).ok();
    assert!(text.contains(&format!("node '{left}' is alone from its next start on")), "{text}");
    cluster.restart(left);
    cluster.until_in_step(1);
    let shown = insist(cluster.node(left).server(), &["peek", "work"]);
    assert!(shown.contains("still here"), "{shown}");

    // One that comes back after all is not let in, and a new one is.
    let other = ["a", "b", "c"].into_iter().find(|name| *name != left).unwrap();
    cluster.restart(other);
    assert_eq!(cluster.node(other).server().get("/health/ready").0, 503);
    cluster.node_mut(other).kill();
    cluster.nodes.retain(|node| node.server.is_some());
    cluster.add("d");
    cluster.until_in_step(2);
    assert_eq!(insist(cluster.node("d").server(), &["pop", "work", "--wait", "5s", "--ack"]), "still here\n");
}

#[test]
fn nodes_know_each_other_by_certificates() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let [first, second, third] =
        nexo_harness::free_addresses::<3>().unwrap().map(|address| address.to_string());
    let serve = |name: &str, address: &str, join: Option<&str>, by: &Authority| {
        let signed = by.node(name);
        let mut command = serve_command(dir.path().join(name));
        command.args(["--node", name, "--cluster", address]);
        command.arg("--cluster-tls-cert").arg(signed.cert).arg("--cluster-tls-key").arg(signed.key);
        command.arg("--cluster-tls-ca").arg(by.ca());
        if let Some(join) = join {
            command.args(["--join", join]);
        }
        command
    };
    let a = Server::start_by(serve("a", &first, None, &authority), &dir.path().join("a"));
    let b = Server::start_by(serve("b", &second, Some(&first), &authority), &dir.path().join("b"));
    eventually("both are in step", || {
        b.run(&["cluster", "status"]).stdout.starts_with("Both nodes are in step")
    });
    b.ok(&["queue", "create", "mail"]);
    a.ok(&["push", "mail", "over TLS"]);
    assert_eq!(b.ok(&["pop", "mail", "--wait", "5s", "--ack"]), "over TLS\n");

    // Whoever has a certificate of somebody else is kept out.
    let foreign = Authority::new();
    let mut stranger = serve("x", &third, Some(&first), &foreign);
    stranger.env("NEXO_GRPC", "127.0.0.1:0").env("NEXO_HTTP", "127.0.0.1:0");
    let mut stranger = Process::spawn(&mut stranger);
    let said = stranger.first_error_line().expect("it says why it cannot join");
    assert!(said.contains("cannot join yet"), "{said}");
    stranger.signal(Signal::KILL);
    stranger.wait();
    assert_eq!(a.json(&["cluster", "nodes"]).len(), 2);
}

#[test]
fn a_node_that_has_moved_tells_the_others() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let moved = cluster.follower().name;
    cluster.node_mut(moved).kill();
    let [address] = nexo_harness::free_addresses::<1>().unwrap();
    let data = cluster.node(moved).data.clone();
    let server = cluster.serve(&data, &["--cluster".to_owned(), address.to_string()]);
    cluster.node_mut(moved).server = Some(server);
    let leader = cluster.leader();
    eventually("all know where it is", || {
        let nodes = cluster.node(leader).server().json(&["cluster", "nodes"]);
        nodes.iter().any(|node| node["name"] == moved && node["address"] == address.to_string())
    });
    cluster.until_in_step(3);
}

#[test]
fn a_leader_whose_clock_is_off_hands_over_to_one_whose_clock_is_right() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let off = cluster.follower().name;
    cluster.node_mut(off).kill();
    let mut command = serve_command(cluster.node(off).data.clone());
    command.env("NEXO_CLUSTER_SECRET_FILE", cluster.dir.path().join("secret"));
    command.env("NEXO_TEST_CLOCK_OFFSET_MS", "-90000");
    let server = Server::start_by(command, &cluster.node(off).data.clone());
    cluster.node_mut(off).server = Some(server);
    eventually("the others name it", || {
        let nodes = cluster.node(off).status().unwrap()["nodes"].as_array().unwrap().clone();
        nodes.iter().any(|node| node["reason"].as_str().is_some_and(|why| why.contains("clock is off by")))
    });
    // It may be asked to lead, but does not for long.
    insist(cluster.node(off).server(), &["cluster", "transfer", off]);
    eventually("another leads", || cluster.leader() != off);
    // The others stay.
    let leader = cluster.leader();
    insist(cluster.node(off).server(), &["queue", "create", "work"]);
    assert_eq!(cluster.leader(), leader);
}

#[test]
fn a_follower_that_is_ill_is_named() {
    let mut cluster = Cluster::start(&["a", "b", "c"]);
    let ill = cluster.follower().name;
    cluster.node_mut(ill).kill();
    let data = cluster.node(ill).data.clone();
    let args = ["--disk-free-min", "4000000000GiB"].map(str::to_owned);
    let server = cluster.serve(&data, &args);
    cluster.node_mut(ill).server = Some(server);
    let leader = cluster.leader();
    eventually("the leader names it", || {
        let risk = cluster.node(leader).risk();
        risk.contains(&format!("node '{ill}': ")) && risk.contains("must stay free (disk_free_min)")
    });
}

#[test]
fn five_nodes_lose_two_and_two_others_leave() {
    let mut cluster = Cluster::start(&["a", "b", "c", "d", "e"]);
    cluster.follower().server().ok(&["queue", "create", "work"]);
    cluster.follower().server().ok(&["push", "work", "kept"]);
    cluster.until_in_step(5);
    eventually("any two may be lost", || {
        cluster.follower().risk().starts_with("all 5 nodes are in step: any 2 may be lost")
    });
    for _ in 0..2 {
        let leader = cluster.leader();
        cluster.node_mut(leader).kill();
    }
    assert!(insist(cluster.follower().server(), &["peek", "work"]).contains("kept"));
    let gone: Vec<&str> =
        cluster.nodes.iter().filter(|node| node.server.is_none()).map(|node| node.name).collect();
    for name in gone {
        insist(cluster.follower().server(), &["cluster", "remove", name, "--yes"]);
    }
    cluster.nodes.retain(|node| node.server.is_some());
    cluster.until_in_step(3);
    assert!(insist(cluster.follower().server(), &["peek", "work"]).contains("kept"));
}
