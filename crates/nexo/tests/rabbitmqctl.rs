//! `rabbitmqctl` and the commands that ask the management API, against a real broker. What RabbitMQ 3.10 prints for the same
//! was recorded, and stands here.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use common::{Finished, PATIENCE, Process, Server, eventually, nexo};
use lapin::options::*;
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};

fn server() -> Server {
    Server::start_with(&["--amqp", "127.0.0.1:0"])
}

fn run(server: &Server, line: &[&str]) -> Finished {
    server.run(&[&["rabbitmqctl"], line].concat())
}

fn ctl(server: &Server, line: &[&str]) -> String {
    run(server, line).ok()
}

/// A command that must fail with this code; what it said.
#[track_caller]
fn fails(server: &Server, code: i32, line: &[&str]) -> String {
    let finished = run(server, line);
    assert_eq!(finished.code, Some(code), "{line:?}: {finished:?}");
    finished.stderr
}

async fn within<T>(work: impl Future<Output = lapin::Result<T>>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes no minute").unwrap()
}

async fn connect(server: &Server) -> (Connection, Channel) {
    let connection = within(Connection::connect(&server.amqp_url(), ConnectionProperties::default())).await;
    let channel = within(connection.create_channel()).await;
    (connection, channel)
}

/// An exchange with a queue bound to it, and a message in another queue.
fn with_topology(server: &Server) {
    server.ok(&["queue", "create", "mail"]);
    server.ok(&["queue", "create", "post"]);
    server.ok(&["push", "mail", "hello"]);
    server.ok(&["exchange", "declare", "events", "--type", "topic"]);
    server.ok(&["binding", "add", "events", "post", "--routing-key", "user.*", "--argument", "a=1"]);
}

#[test]
fn queues_are_listed_as_rabbitmq_prints_them() {
    let server = server();
    with_topology(&server);
    let banner = "Timeout: 60.0 seconds ...\nListing queues for vhost / ...\n";
    let rows = "mail\t1\npost\t0\n";
    assert_eq!(ctl(&server, &["list_queues"]), format!("{banner}name\tmessages\n{rows}"));
    assert_eq!(ctl(&server, &["-q", "list_queues", "name", "messages"]), format!("name\tmessages\n{rows}"));
    assert_eq!(ctl(&server, &["-s", "list_queues", "name", "messages"]), rows);
    let headless = ctl(&server, &["list_queues", "--no-table-headers", "name,messages"]);
    assert_eq!(headless, format!("{banner}{rows}"));
    assert_eq!(
        ctl(&server, &["list_queues", "--formatter=json", "name", "messages", "consumers"]),
        "[\n{\"name\":\"mail\",\"messages\":1,\"consumers\":0}\n,{\"name\":\"post\",\"messages\":0,\"consumers\":0}\n]\n"
    );
    assert_eq!(
        ctl(&server, &["list_queues", "--formatter", "csv", "name", "messages"]),
        "\"name\",\"messages\"\n\"mail\",\"1\"\n\"post\",\"0\"\n"
    );
    let columns =
        ctl(&server, &["-q", "list_queues", "name", "durable", "arguments", "policy", "disk_reads"]);
    assert_eq!(columns.lines().nth(1), Some("mail\ttrue\t[]\t\t"));
    assert_eq!(ctl(&server, &["-q", "list_queues", "--offline"]), "");
    assert_eq!(ctl(&server, &["-q", "list_queues", "-p", "none"]), "");
}

#[test]
fn exchanges_bindings_vhosts_and_users_are_listed_as_rabbitmq_prints_them() {
    let server = server();
    with_topology(&server);
    let exchanges = ctl(&server, &["list_exchanges"]);
    assert!(exchanges.starts_with("Listing exchanges for vhost / ...\nname\ttype\n"), "{exchanges}");
    assert!(exchanges.contains("\nevents\ttopic\n") && exchanges.contains("\n\tdirect\n"), "{exchanges}");
    let bindings = ctl(&server, &["list_bindings"]);
    let head = "Listing bindings for vhost /...\n\
                source_name\tsource_kind\tdestination_name\tdestination_kind\trouting_key\targuments\n";
    assert!(bindings.starts_with(head), "{bindings}");
    assert!(bindings.contains("\tmail\tqueue\tmail\t[]\n"), "{bindings}");
    assert!(bindings.contains("events\texchange\tpost\tqueue\tuser.*\t[{\"a\",1}]\n"), "{bindings}");
    assert_eq!(ctl(&server, &["list_vhosts"]), "Listing vhosts ...\nname\n/\n");
    assert_eq!(ctl(&server, &["-q", "list_vhosts", "name", "tracing"]), "name\ttracing\n/\tfalse\n");
    assert_eq!(ctl(&server, &["list_users"]), "Listing users ...\nuser\ttags\nguest\t[administrator]\n");
    assert_eq!(
        ctl(&server, &["list_users", "--formatter=json"]),
        "[\n{\"user\":\"guest\",\"tags\":[\"administrator\"]}\n]\n"
    );
    assert_eq!(
        ctl(&server, &["list_permissions"]),
        "Listing permissions for vhost \"/\" ...\nuser\tconfigure\twrite\tread\nguest\t.*\t.*\t.*\n"
    );
    assert_eq!(
        ctl(&server, &["list_user_permissions", "guest"]),
        "Listing permissions for user \"guest\" ...\nvhost\tconfigure\twrite\tread\n/\t.*\t.*\t.*\n"
    );
    assert_eq!(ctl(&server, &["-q", "list_topic_permissions"]), "");
    for list in ["list_policies", "list_operator_policies", "list_parameters"] {
        assert_eq!(ctl(&server, &["-q", list]), "", "{list}");
    }
}

#[test]
fn virtual_hosts_are_made_limited_and_deleted() {
    let server = server();
    assert_eq!(ctl(&server, &["add_vhost", "v1", "--description", "for tests"]), "Adding vhost \"v1\" ...\n");
    assert_eq!(ctl(&server, &["-s", "list_vhosts", "name", "description"]), "/\t\nv1\tfor tests\n");
    let limits = r#"{"max-queues": 5, "max-connections": 7}"#;
    assert_eq!(
        ctl(&server, &["set_vhost_limits", "-p", "v1", limits]),
        format!("Setting vhost limits to \"{limits}\" for vhost \"v1\" ...\n")
    );
    ctl(&server, &["set_vhost_limits", "-p", "v1", r#"{"max-queues": 6}"#]);
    assert_eq!(
        ctl(&server, &["list_vhost_limits", "-p", "v1"]),
        "Listing limits for vhost \"v1\" ...\n{\"max-queues\":6}\n",
        "limits replace those there were"
    );
    ctl(&server, &["clear_vhost_limits", "-p", "v1"]);
    assert_eq!(ctl(&server, &["-q", "list_vhost_limits", "-p", "v1"]), "{}\n");
    assert_eq!(ctl(&server, &["delete_vhost", "v1"]), "Deleting vhost \"v1\" ...\n");
    assert_eq!(fails(&server, 65, &["delete_vhost", "v1"]), "Virtual host 'v1' does not exist\n");
}

#[test]
fn queues_are_purged_and_deleted() {
    let server = server();
    with_topology(&server);
    assert_eq!(
        fails(&server, 69, &["delete_queue", "mail", "--if-empty"]).lines().next(),
        Some("Error:"),
        "it is not empty"
    );
    assert_eq!(ctl(&server, &["purge_queue", "mail"]), "Purging queue 'mail' in vhost '/' ...\n");
    assert_eq!(ctl(&server, &["-s", "list_queues", "name", "messages"]), "mail\t0\npost\t0\n");
    assert_eq!(
        ctl(&server, &["delete_queue", "mail", "-e"]),
        "Deleting queue 'mail' on vhost '/' if queue is empty ...\nQueue was successfully deleted with 0 ready messages\n"
    );
    assert_eq!(fails(&server, 69, &["purge_queue", "mail"]), "Error:\nnot_found\n");
    assert_eq!(fails(&server, 64, &["delete_queue", "mail"]), "Error:\nQueue not found\n");
}

#[test]
fn definitions_go_to_a_file_and_come_back() {
    let server = server();
    with_topology(&server);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("definitions.json");
    let path = path.to_str().unwrap();
    let said = ctl(&server, &["export_definitions", path]);
    assert_eq!(said, format!("Exporting definitions in JSON to a file at \"{path}\" ...\n"));
    let exported: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(exported["queues"].as_array().unwrap().len(), 2);
    let printed = ctl(&server, &["export_definitions", "-"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).unwrap(), exported);

    let other = self::server();
    ctl(&other, &["import_definitions", path]);
    assert_eq!(ctl(&other, &["-s", "list_queues", "name"]), "mail\npost\n");
    let missing = fails(&other, 65, &["import_definitions", "/none/of/this"]);
    assert!(missing.contains("File /none/of/this does not exist"), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_seen_and_closed() {
    let server = server();
    let (connection, channel) = connect(&server).await;
    within(channel.queue_declare("q".into(), QueueDeclareOptions::default(), FieldTable::default())).await;
    let _consumer = within(channel.basic_consume(
        "q".into(),
        "tag".into(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    ))
    .await;
    let shown = ctl(&server, &["-q", "list_connections", "user", "vhost", "state", "protocol", "channels"]);
    assert_eq!(shown, "user\tvhost\tstate\tprotocol\tchannels\nguest\t/\trunning\t{0,9,1}\t1\n");
    let consumers =
        ctl(&server, &["-s", "list_consumers", "queue_name", "consumer_tag", "ack_required", "active"]);
    assert_eq!(consumers, "q\ttag\ttrue\ttrue\n");
    let channels = ctl(&server, &["-s", "list_channels", "number", "consumer_count"]);
    assert_eq!(channels, "1\t1\n");

    let all = server.json(&["connection", "list"]);
    let name = all[0]["name"].as_str().unwrap();
    let shown = server.ok(&["connection", "show", name]);
    let is_user = |line: &str| line.starts_with("user ") && line.ends_with(" guest");
    assert!(shown.lines().any(is_user), "{shown}");
    assert_eq!(server.json(&["channel", "list", "--of", name]).len(), 1);
    let consumers = server.ok(&["consumer", "list", "--of", "q"]);
    assert!(consumers.contains("tag") && consumers.contains("guest"), "{consumers}");

    // As a script does it: the process of the list is what is closed.
    let pid = ctl(&server, &["-s", "list_connections", "pid"]);
    let pid = pid.trim();
    assert!(!pid.contains(' ') && pid.starts_with('<'), "{pid}");
    let closed = ctl(&server, &["close_connection", pid, "for", "maintenance"]);
    assert_eq!(closed, format!("Closing connection {pid}, reason: for maintenance...\n"));
    eventually("the client knows", || !connection.status().connected());
    eventually("it is gone", || ctl(&server, &["-s", "list_connections"]).is_empty());
    let gone = fails(&server, 69, &["close_connection", pid, "again"]);
    assert!(gone.contains("there is no connection"), "{gone}");

    let (second, _channel) = connect(&server).await;
    let said = ctl(&server, &["close_all_connections", "-p", "/", "enough"]);
    assert_eq!(said, "Closing all connections in vhost /, reason: enough...\nClosed 1 connections\n");
    eventually("the client knows", || !second.status().connected());
    let (third, _channel) = connect(&server).await;
    let said = server.ok(&["connection", "close", "--of-user", "guest", "--reason", "enough", "--yes"]);
    assert_eq!(said, "closed 1 connections of user 'guest'\n");
    eventually("the client knows", || !third.status().connected());
}

#[test]
fn exchanges_and_bindings_have_commands_of_their_own() {
    let server = server();
    with_topology(&server);
    server.ok(&["exchange", "declare", "all", "--type", "fanout", "--transient"]);
    server.ok(&["binding", "add", "events", "all", "--to-exchange", "--routing-key", "#"]);
    let exchange = &server.json(&["exchange", "show", "events"])[0];
    assert_eq!((&exchange["type"], exchange["bindings"].as_array().unwrap().len()), (&"topic".into(), 2));
    let shown = server.ok(&["exchange", "show", "events"]);
    assert!(shown.contains("bindings"), "{shown}");
    let listed = server.ok(&["exchange", "list"]);
    assert!(listed.contains("(default)") && listed.contains("events"), "{listed}");
    let bindings = server.json(&["binding", "list", "--queue", "post"]);
    assert_eq!(bindings.len(), 2, "its own and the default exchange's: {bindings:?}");
    let missing = server.run(&["binding", "delete", "events", "post", "--routing-key", "user.*"]).error();
    assert_eq!(missing, "nexo: unbind 'post' from 'events': there is no such binding", "it has arguments");
    server.ok(&["binding", "delete", "events", "post", "--routing-key", "user.*", "--argument", "a=1"]);
    assert_eq!(server.json(&["binding", "list", "--exchange", "events"]).len(), 1);
    let refused = server.run(&["exchange", "delete", "events", "--if-unused", "--yes"]).error();
    assert!(refused.starts_with("nexo: delete exchange 'events': "), "{refused}");
    server.ok(&["exchange", "delete", "events", "--yes"]);
    let gone = server.run(&["exchange", "show", "events"]).error();
    assert_eq!(gone, "nexo: show exchange 'events': Not Found");
}

#[test]
fn the_broker_is_found_well() {
    let server = server();
    let status = ctl(&server, &["status"]);
    for part in [
        "Status of node nexo@",
        "\nUptime (seconds): ",
        "\nVirtual host count: 1\n",
        "protocol: amqp, purpose: AMQP 0-9-1",
    ] {
        assert!(status.contains(part), "{part:?} in {status}");
    }
    let status: serde_json::Value =
        serde_json::from_str(&ctl(&server, &["status", "--formatter=json"])).unwrap();
    assert_eq!(
        (status["pid"].as_u64(), &status["totals"]["queue_count"]),
        (Some(server.pid().into()), &0.into())
    );
    assert!(ctl(&server, &["cluster_status"]).contains("\nRunning Nodes\n\nnexo@"));
    assert_eq!(ctl(&server, &["ping"]).lines().last(), Some("Ping succeeded"));
    assert_eq!(ctl(&server, &["await_startup"]), "");
    assert_eq!(ctl(&server, &["version"]), concat!(env!("CARGO_PKG_VERSION"), "\n"));
    for check in [
        "check_running",
        "check_alarms",
        "check_local_alarms",
        "check_virtual_hosts",
        "node_health_check",
        "listeners",
    ] {
        ctl(&server, &[check]);
    }
    assert!(ctl(&server, &["check_port_connectivity"]).contains("Successfully connected to ports "));
    ctl(&server, &["check_protocol_listener", "amqp"]);
    let amqp = server.amqp();
    ctl(&server, &["check_port_listener", amqp.rsplit(':').next().unwrap()]);
    fails(&server, 69, &["check_port_listener", "1"]);
}

#[test]
fn a_broker_by_itself_is_a_cluster_of_one() {
    let server = server();
    let waited = ctl(&server, &["await_online_nodes", "1"]);
    let url = format!("http://{}", server.http);
    let banner =
        format!("Will wait for at least 1 nodes to join the cluster of {url}. Timeout: 300 seconds.\n");
    assert_eq!(waited, banner);
    let alone = fails(&server, 69, &["await_online_nodes", "2"]);
    assert!(alone.contains("this broker is not in a cluster, so no other nodes will come"), "{alone}");
    assert!(fails(&server, 64, &["await_online_nodes", "two"]).contains("'two' is no number of nodes"));
    let alone = fails(&server, 69, &["forget_cluster_node", "rabbit@x"]);
    assert_eq!(alone, "Error:\nthis broker is not in a cluster\n");
    assert_eq!(ctl(&server, &["set_cluster_name", "ours"]), "Setting cluster name to ours ...\n");
    assert!(ctl(&server, &["cluster_status"]).contains("\nCluster name: ours\n"));
    let status = ctl(&server, &["cluster_status", "--formatter=json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!((&status["cluster_name"], &status["disk_nodes"]), (&"ours".into(), &status["running_nodes"]));
    assert_eq!(status["running_nodes"].as_array().unwrap().len(), 1);
}

#[test]
fn mistakes_end_with_rabbitmqs_codes() {
    let server = server();
    let wrong = fails(&server, 64, &["list_queues", "nonsense"]);
    assert!(
        wrong.starts_with("Error (argument validation): Info key(s) nonsense are not supported\nArguments given:\n\tlist_queues nonsense\n"),
        "{wrong}"
    );
    assert!(fails(&server, 64, &["nonsense"]).contains("Command 'nonsense' not found."));
    assert!(fails(&server, 64, &["add_user"]).contains("not enough arguments."));
    assert!(
        fails(&server, 64, &["list_users", "--bogus"])
            .contains("Invalid options for this command:\n--bogus : ")
    );
    let join = fails(&server, 64, &["join_cluster", "rabbit@x"]);
    assert!(join.contains("'join_cluster' is not done by this broker"), "{join}");
    assert!(join.contains("'nexo serve --node NAME --cluster HOST:PORT --join HOST:PORT'"), "{join}");
    assert!(
        fails(&server, 65, &["set_vm_memory_high_watermark", "7"]).contains("a fraction between 0.0 and 1.0")
    );
    assert_eq!(fails(&server, 67, &["delete_user", "nobody"]), "Error:\nUser \"nobody\" does not exist\n");
    assert_eq!(fails(&server, 69, &["set_policy", "p", "^q", "nojson"]).lines().next(), Some("Error:"));
    let refused = fails(&server, 65, &["authenticate_user", "guest", "wrong"]);
    assert!(refused.contains("failed to authenticate user \"guest\""), "{refused}");
    assert!(ctl(&server, &["authenticate_user", "guest", "guest"]).ends_with("\nSuccess\n"));

    let mut nobody = nexo();
    nobody.args(["rabbitmqctl", "list_users"]).env("NEXO_MANAGEMENT", "http://127.0.0.1:1");
    let finished = Process::spawn(&mut nobody).finish();
    assert_eq!(finished.code, Some(69), "{finished:?}");
    assert!(finished.stderr.contains("cannot reach http://127.0.0.1:1"), "{finished:?}");
    let mut stranger = server.command(&["rabbitmqctl", "list_users"]);
    stranger.env("NEXO_USER", "guest").env("NEXO_PASSWORD", "wrong");
    assert_eq!(Process::spawn(&mut stranger).finish().code, Some(69));
}

#[test]
fn a_link_of_its_name_is_the_tool() {
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("rabbitmqctl");
    symlink(env!("CARGO_BIN_EXE_nexo"), &link).unwrap();
    let mut command = std::process::Command::new(&link);
    command
        .args(["-q", "list_users"])
        .env("NEXO_MANAGEMENT", format!("http://{}", server.http))
        .stdin(Stdio::null());
    assert_eq!(Process::spawn(&mut command).finish().ok(), "user\ttags\nguest\t[administrator]\n");
    let mut help = std::process::Command::new(&link);
    let help = Process::spawn(help.arg("help").stdin(Stdio::null())).finish().ok();
    assert!(help.contains("\n   list_queues "), "{help}");
}
