//! TLS on every port, over the real program: what clients see, whom it lets in, and what an operator can change while it
//! runs.

#![allow(clippy::unwrap_used)]

#[path = "common/certificates.rs"]
mod certificates;
mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use certificates::{Authority, Signed, tls_options, tunnel};
use common::{Finished, PATIENCE, Process, SECURE_PORTS, Server, eventually, nexo, serve_command};
use nexo_amqp_client::{Client, Error, Login, Mechanism, PERSISTENT};
use nexo_harness::{address_in, addresses_in, http};
use rustix::process::Signal;

const ANY: &str = "127.0.0.1:0";

/// A broker that speaks TLS on every port, with more options.
fn serve(signed: &Signed, more: &[&str]) -> Server {
    let options = tls_options(signed);
    let mut args: Vec<&str> = options.iter().map(String::as_str).collect();
    args.extend(["--amqps", ANY, "--grpc-tls", ANY, "--sqs-tls", ANY, "--https", ANY]);
    args.extend(more);
    Server::start_with(&args)
}

fn address<'a>(server: &'a Server, name: &str) -> &'a str {
    address_in(&server.ready, name).unwrap_or_else(|| panic!("no {name} in {}", server.ready))
}

/// A command over the native API with TLS.
fn run_over_tls(server: &Server, authority: &Authority, args: &[&str]) -> Finished {
    let mut command = nexo();
    command.args(["--server", &format!("https://{}", address(server, "grpc-tls")), "--ca"]);
    Process::spawn(command.arg(authority.ca()).args(args)).finish()
}

async fn amqp(to: SocketAddr, mechanism: Mechanism) -> Result<Client, Error> {
    let capabilities = &["authentication_failure_close"];
    let login = Login { mechanism, capabilities, ..Login::default() };
    Client::connect(to, &login, PATIENCE).await
}

/// Publishes a body, and takes it out again.
async fn round_trip(client: &mut Client, queue: &str, body: &[u8]) {
    client.add_publish(1, "", queue, PERSISTENT, body).unwrap();
    client.round_trip(1).await.unwrap();
    let got = client.get(1, queue, true).await.unwrap().expect("a message");
    assert!(got.body == body, "{} bytes came of {}", got.body.len(), body.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn amqp_goes_over_tls_with_bodies_of_any_size() {
    let authority = Authority::new();
    let server = serve(&authority.server("server"), &[]);
    let to = tunnel(address(&server, "amqps"), authority.ca(), None).await;
    let mut client = amqp(to, Mechanism::Plain).await.unwrap();
    client.open_channel(1).await.unwrap();
    client.declare_queues(1, &["q".to_owned()]).await.unwrap();
    for bytes in [0, 1, 16_384, 100_000, 5 << 20] {
        let body: Vec<u8> = (0..bytes).map(|at| u8::try_from(at % 251).unwrap()).collect();
        round_trip(&mut client, "q", &body).await;
    }
    // More than the socket takes at once, for a client that reads late.
    let body = vec![7; 1 << 20];
    for _ in 0..8 {
        client.add_publish(1, "", "q", PERSISTENT, &body).unwrap();
    }
    client.round_trip(1).await.unwrap();
    client.consume(1, "q", "late").await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    for _ in 0..8 {
        let got = client.message(PATIENCE).await.unwrap().expect("a message");
        assert_eq!(got.body, body);
    }
}

#[test]
fn the_command_line_speaks_tls_and_says_what_is_wrong() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = serve(&authority.server("server"), &[]);
    assert_eq!(run_over_tls(&server, &authority, &["health"]).ok(), "ok\n");
    run_over_tls(&server, &authority, &["queue", "create", "q"]).ok();
    run_over_tls(&server, &authority, &["push", "q", "hello"]).ok();
    assert_eq!(run_over_tls(&server, &authority, &["pop", "q", "--ack"]).ok(), "hello\n");

    let error = run_over_tls(&server, &other, &["health"]).error();
    assert!(error.contains("cannot agree on TLS") && error.contains("--ca"), "{error}");
    let plain = format!("http://{}", address(&server, "grpc-tls"));
    let error = server.run(&["--server", &plain, "health"]).error();
    assert!(error.contains("it speaks TLS"), "{error}");
    let secure = format!("https://{}", address(&server, "grpc"));
    let mut command = nexo();
    command.args(["--server", &secure, "health", "--ca"]).arg(authority.ca());
    let error = Process::spawn(&mut command).finish().error();
    assert!(error.contains("cannot agree on TLS"), "{error}");
    let error = server.run(&["--server", &secure, "--ca", "/nowhere.pem", "health"]).error();
    assert!(error.contains("cannot read certificates in '/nowhere.pem'"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_goes_over_tls_and_queues_have_addresses_that_say_so() {
    let authority = Authority::new();
    let server = serve(&authority.server("server"), &[]);
    let management = tunnel(address(&server, "https"), authority.ca(), None).await;
    let sqs = tunnel(address(&server, "sqs-tls"), authority.ca(), None).await;
    let asked = tokio::task::spawn_blocking(move || {
        assert_eq!(http::get(management, "/health", PATIENCE).unwrap().status, 200);
        let head = "Host: localhost\r\nContent-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.CreateQueue\r\n";
        let request = http::request("POST", "/", head, r#"{"QueueName":"jobs"}"#);
        http::exchange(sqs, &request, PATIENCE).unwrap()
    });
    let answer = asked.await.unwrap();
    assert!(answer.body.contains(r#""QueueUrl":"https://localhost/"#), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_must_show_a_certificate_and_does_not_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let ca = authority.ca().display().to_string();
    let server = serve(&authority.server("server"), &["--tls-client-ca", &ca]);
    let to = address(&server, "amqps").to_owned();
    let (own, foreign) = (authority.client("guest"), other.client("guest"));
    let connects = async |identity: Option<&Signed>| {
        amqp(tunnel(&to, authority.ca(), identity).await, Mechanism::Plain).await.is_ok()
    };
    assert!(connects(Some(&own)).await);
    assert!(!connects(None).await, "without a certificate");
    assert!(!connects(Some(&foreign)).await, "with one of another authority");

    let error = run_over_tls(&server, &authority, &["health"]).error();
    assert!(error.contains("cannot agree on TLS") && error.contains("--cert"), "{error}");
    let shown = ["--cert", own.cert.to_str().unwrap(), "--key", own.key.to_str().unwrap(), "health"];
    assert_eq!(run_over_tls(&server, &authority, &shown).ok(), "ok\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_logs_in_the_user_that_it_names() {
    let authority = Authority::new();
    let ca = authority.ca().display().to_string();
    let ask = ["--tls-client-ca", &ca, "--tls-verify", "request"];
    let server = serve(
        &authority.server("server"),
        &[&ask[..], &["--tls-login-from", "common_name", "--log", "info"]].concat(),
    );
    let to = address(&server, "amqps").to_owned();
    let external = async |identity: Option<&Signed>| {
        amqp(tunnel(&to, authority.ca(), identity).await, Mechanism::External).await
    };
    let mut client = external(Some(&authority.client("guest"))).await.unwrap();
    client.open_channel(1).await.unwrap();
    for nobody in [Some(authority.client("mallory")), None] {
        let error = external(nobody.as_ref()).await.unwrap_err();
        let error = std::error::Error::source(&error).unwrap().to_string();
        assert!(error.contains("403") && error.contains("EXTERNAL"), "{error}");
    }
    // By RabbitMQ's default it is all of the subject, of which there is no user.
    let server = serve(&authority.server("server"), &ask);
    let to = tunnel(address(&server, "amqps"), authority.ca(), Some(&authority.client("guest"))).await;
    assert!(amqp(to, Mechanism::External).await.is_err());
    assert!(amqp(to, Mechanism::Plain).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_read_again_and_open_connections_go_on() {
    let (authority, next) = (Authority::new(), Authority::new());
    let used = authority.server("server");
    let server = serve(&used, &["--log", "info"]);
    let amqps = address(&server, "amqps").to_owned();
    let mut old = amqp(tunnel(&amqps, authority.ca(), None).await, Mechanism::Plain).await.unwrap();
    old.open_channel(1).await.unwrap();
    old.declare_queues(1, &["q".to_owned()]).await.unwrap();

    let renewed = next.server("server");
    fs::copy(&renewed.cert, &used.cert).unwrap();
    fs::copy(&renewed.key, &used.key).unwrap();
    server.signal(Signal::HUP);
    let trusted = |authority: &Authority| run_over_tls(&server, authority, &["health"]).code == Some(0);
    eventually("the new certificate is shown", || trusted(&next));
    assert!(!trusted(&authority));
    round_trip(&mut old, "q", b"still here").await;
    amqp(tunnel(&amqps, next.ca(), None).await, Mechanism::Plain).await.unwrap();

    // A certificate without its key, and then nothing that could be one.
    fs::copy(&authority.server("other").cert, &used.cert).unwrap();
    server.signal(Signal::HUP);
    fs::write(&used.key, "no key").unwrap();
    server.signal(Signal::HUP);
    let mut server = server;
    round_trip(&mut old, "q", b"and here").await;
    eventually("the broker answers", || server.get("/health").0 == 200);
    let trusted = run_over_tls(&server, &next, &["health"]).code == Some(0);
    assert!(trusted, "what was read before stays");
    drop(old);
    let log = server.stop_and_collect().stderr;
    let told =
        log.lines().filter(|line| line.contains("ERROR") && line.contains("certificates stay as they are"));
    assert!(told.count() >= 1, "{log}");
}

#[test]
fn garbage_gets_an_alert_and_silence_keeps_nobody_out() {
    let authority = Authority::new();
    let mut server = serve(&authority.server("server"), &["--log", "info"]);
    let mut held = Vec::new();
    for name in ["amqps", "grpc-tls", "sqs-tls", "https"] {
        let connect = || {
            let socket = TcpStream::connect(address(&server, name)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        // A few bytes of a handshake, and nothing more.
        for _ in 0..25 {
            let mut silent = connect();
            silent.write_all(&[22, 3, 1]).unwrap();
            held.push(silent);
        }
        for _ in 0..50 {
            let mut garbage = connect();
            garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            garbage.read_to_end(&mut answer).unwrap();
            assert_eq!(answer.first_chunk(), Some(&[21, 3]), "{name}: an alert, not {answer:?}");
        }
    }
    assert_eq!(run_over_tls(&server, &authority, &["health"]).ok(), "ok\n");
    drop(held);
    let log = server.stop_and_collect().stderr;
    let told = log.lines().filter(|line| line.contains("handshake")).count();
    assert!((1..8).contains(&told), "{told} lines of {}", log.lines().count());
}

#[test]
fn settings_that_cannot_be_are_named() {
    let authority = Authority::new();
    let signed = authority.server("server");
    let refused = |args: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let mut command = serve_command(dir.path().join("data"));
        let args = command.args(["--grpc", ANY, "--http", "off", "--amqps", ANY]).args(args);
        Process::spawn(args).finish().error()
    };
    assert_eq!(refused(&[]), "nexo: amqps needs tls_cert and tls_key");
    let error = refused(&["--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.pem"]);
    assert!(error.starts_with("nexo: cannot read certificates in '/nowhere.pem': "), "{error}");
    let cert = signed.cert.to_str().unwrap();
    let error = refused(&["--tls-cert", cert, "--tls-key", cert]);
    assert!(error.contains("cannot read a private key in"), "{error}");
    let other = authority.server("other");
    let error = refused(&["--tls-cert", cert, "--tls-key", other.key.to_str().unwrap()]);
    assert!(error.contains("cannot be used with the key"), "{error}");
}

#[test]
fn a_certificate_alone_opens_the_usual_ports() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let mut command = serve_command(dir.path().join("data"));
    for port in SECURE_PORTS {
        command.env_remove(port);
    }
    command.env("NEXO_GRPC", ANY).env("NEXO_HTTP", ANY).args(tls_options(&authority.server("server")));
    let mut broker = Process::spawn(command.args(["--https", "off"]));
    let Some(ready) = broker.first_line() else {
        let error = broker.finish().error();
        assert!(error.contains("cannot listen on") && error.contains("in use"), "{error}");
        println!("another program has one of the ports: {error}");
        return;
    };
    let ports = |name: &str| -> Vec<u16> {
        addresses_in(&ready, name).map(|at| at.parse::<SocketAddr>().unwrap().port()).collect()
    };
    for (name, port) in [("amqps", 5671), ("grpc-tls", 7653), ("sqs-tls", 9325)] {
        let ports = ports(name);
        assert!(!ports.is_empty() && ports.iter().all(|open| *open == port), "{name}: {ready}");
    }
    assert!(ports("https").is_empty(), "off stays off: {ready}");
    assert!(!ports("grpc").contains(&7653), "the plain ports are where they were: {ready}");
    let mut command = nexo();
    command.args(["--server", "https://localhost:7653", "health", "--ca"]).arg(authority.ca());
    assert_eq!(Process::spawn(&mut command).finish().ok(), "ok\n");
}

#[test]
fn rabbitmqctl_speaks_tls() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = serve(&authority.server("server"), &[]);
    let run = |authority: &Authority, args: &[&str]| {
        let mut command = nexo();
        command.args(["--management", &format!("https://{}", address(&server, "https")), "--ca"]);
        Process::spawn(command.arg(authority.ca()).args(args)).finish()
    };
    run(&authority, &["rabbitmqctl", "add_vhost", "shop"]).ok();
    assert_eq!(run(&authority, &["rabbitmqctl", "-s", "list_vhosts", "name"]).ok(), "/\nshop\n");
    let listeners = run(&authority, &["rabbitmqctl", "listeners"]).ok();
    for purpose in ["AMQP 0-9-1", "HTTP API", "native API", "SQS API"] {
        assert!(listeners.contains(&format!("purpose: {purpose} over TLS")), "{purpose}: {listeners}");
    }
    let refused = run(&other, &["rabbitmqctl", "list_vhosts"]);
    assert!(refused.code == Some(69) && refused.stderr.contains("no TLS with https://"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_over_tls_gets_a_cookie_that_only_goes_over_tls() {
    let authority = Authority::new();
    let server = serve(&authority.server("server"), &[]);
    let secure = tunnel(address(&server, "https"), authority.ca(), None).await;
    let plain: SocketAddr = address(&server, "http").parse().unwrap();
    let asked = tokio::task::spawn_blocking(move || {
        let origin = "Host: localhost\r\nOrigin: https://localhost\r\n";
        let login = r#"{"username":"guest","password":"guest"}"#;
        let ask = |to: SocketAddr, method: &str, head: &str, body: &str| {
            let request = http::request(method, "/api/nexo/session", &format!("{origin}{head}"), body);
            http::exchange(to, &request, PATIENCE).unwrap()
        };
        let begun = ask(secure, "POST", "", login);
        let cookie =
            begun.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap().to_owned();
        assert!(cookie.starts_with("__Host-nexo_session=") && cookie.ends_with("; Secure"), "{cookie}");
        let with = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
        [secure, plain].map(|to| ask(to, "GET", &with, "").status)
    });
    assert_eq!(asked.await.unwrap(), [200, 401], "what was sent in the clear is worth nothing");
}

#[test]
fn certificates_that_expire_are_named() {
    let authority = Authority::new();
    let (signed, ca) = (authority.server("server"), authority.ca().display().to_string());
    let server = serve(&signed, &["--tls-client-ca", &ca, "--tls-verify", "request"]);
    let ask = |within: &str| {
        let path = format!("/api/health/checks/certificate-expiration/{within}");
        let head = "Host: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";
        http::exchange(address(&server, "http"), &http::request("GET", &path, head, ""), PATIENCE).unwrap()
    };
    // Those that tests make are valid for two thousand years.
    assert_eq!(ask("1/months").status, 200);
    let answer = ask("3000/years");
    assert_eq!(answer.status, 503, "{answer:?}");
    for part in
        ["Certificates expiring", "amqps", "https", "grpc-tls", "sqs-tls", &ca, "cacertfile_expires_on"]
    {
        assert!(answer.body.contains(part), "{part}: {answer:?}");
    }
    assert!(answer.body.contains(&signed.cert.display().to_string()), "{answer:?}");
}
