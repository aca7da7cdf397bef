//! Whether the broker is well: `ping`, `await_startup`, and the checks of `rabbitmq-diagnostics`.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::status::alarms;
use super::stop::{Stop, TRY_LATER, UNAVAILABLE};
use super::{ApiPath, Ctl};
use crate::management::Failure;

/// How long to wait for a broker to start, or for its nodes, as RabbitMQ does.
pub(super) const STARTUP_MAX: Duration = Duration::from_secs(300);
/// Between two attempts.
pub(super) const PAUSE: Duration = Duration::from_millis(250);
/// How long a port may take to answer.
const PORT_MAX: Duration = Duration::from_secs(30);

pub(super) async fn ping(ctl: &mut Ctl) -> Result<(), Stop> {
    let (url, ms) = (ctl.api.url().to_string(), ctl.given.patience()?.as_millis());
    ctl.say(format_args!(
        "Will ping {url}. This only checks that the management API answers. Timeout: {ms} ms."
    ))?;
    match ctl.api.get(&ApiPath::of(&["whoami"])).await {
        // Whoever says no is there.
        Ok(_) | Err(Failure::Refused { .. } | Failure::NotLoggedIn(_)) => ctl.say("Ping succeeded"),
        Err(failure) => Err(failure.into()),
    }
}

pub(super) async fn await_startup(ctl: &mut Ctl) -> Result<(), Stop> {
    let patience = if ctl.given.has("timeout") { ctl.given.patience()? } else { STARTUP_MAX };
    let began = Instant::now();
    loop {
        let failure = match ctl.api.get(&ApiPath::of(&["health", "checks", "ready-to-serve-clients"])).await {
            Ok(_) => return Ok(()),
            // To wait would not help.
            Err(failure @ Failure::NotLoggedIn(_)) => return Err(failure.into()),
            Err(failure) => failure,
        };
        if began.elapsed() >= patience {
            let seconds = patience.as_secs_f64();
            return Err(Stop::error(
                TRY_LATER,
                format_args!("the broker was not ready within {seconds:?} seconds: {failure}"),
            ));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

pub(super) async fn node_health_check(ctl: &mut Ctl) -> Result<(), Stop> {
    let node = ctl.node().await?;
    ctl.say(format_args!("Checking health of node {node} ..."))?;
    check(ctl, "ready-to-serve-clients").await?;
    check(ctl, "alarms").await?;
    ctl.say("Health check passed")
}

pub(super) async fn check_running(ctl: &mut Ctl) -> Result<(), Stop> {
    let node = ctl.node().await?;
    ctl.say(format_args!("Checking if RabbitMQ is running on node {node} ..."))?;
    check(ctl, "ready-to-serve-clients").await?;
    ctl.say(format_args!("RabbitMQ on node {node} is fully booted and running"))
}

pub(super) async fn show_alarms(ctl: &mut Ctl) -> Result<(), Stop> {
    let (node, alarms) = all_alarms(ctl, "known").await?;
    if alarms.is_empty() {
        return ctl.say(format_args!("Node {node} reported no alarms, local or clusterwide"));
    }
    ctl.line(alarms.join("\n"))
}

pub(super) async fn check_alarms(ctl: &mut Ctl) -> Result<(), Stop> {
    let (node, alarms) = all_alarms(ctl, "local").await?;
    if alarms.is_empty() {
        return ctl.say(format_args!("Node {node} reported no alarms, local or clusterwide"));
    }
    Err(Stop::plain(SOFTWARE_ALARM, format!("Error:\n{}", alarms.join("\n"))))
}

pub(super) async fn check_local_alarms(ctl: &mut Ctl) -> Result<(), Stop> {
    let (node, alarms) = all_alarms(ctl, "local").await?;
    if alarms.is_empty() {
        return ctl.say(format_args!("Node {node} reported no local alarms"));
    }
    Err(Stop::plain(SOFTWARE_ALARM, format!("Error:\n{}", alarms.join("\n"))))
}

/// What RabbitMQ's checks end with when they find something.
const SOFTWARE_ALARM: u8 = UNAVAILABLE;

async fn all_alarms(ctl: &mut Ctl, which: &str) -> Result<(String, Vec<String>), Stop> {
    let node = ctl.node().await?;
    ctl.say(format_args!("Asking node {node} to report any {which} resource alarms ..."))?;
    let nodes = ctl.api.list(&ApiPath::of(&["nodes"])).await?;
    Ok((node, nodes.iter().flat_map(alarms).collect()))
}

pub(super) async fn check_vhosts(ctl: &mut Ctl) -> Result<(), Stop> {
    let node = ctl.node().await?;
    ctl.say(format_args!("Checking if all vhosts are running on node {node} ..."))?;
    check(ctl, "virtual-hosts").await?;
    ctl.say(format_args!("Node {node} reported all vhosts as running"))
}

pub(super) async fn check_port_listener(ctl: &mut Ctl) -> Result<(), Stop> {
    let (node, port) = (ctl.node().await?, ctl.word(0).to_owned());
    ctl.say(format_args!("Asking node {node} if there's an active listener on port {port} ..."))?;
    let asked = ctl.api.get(&ApiPath::of(&["health", "checks", "port-listener", &port])).await;
    asked.map_err(|failure| not_listening(failure, format!("No listener on port {port}")))?;
    ctl.say(format_args!("A listener for port {port} is running on node {node}."))
}

pub(super) async fn check_protocol_listener(ctl: &mut Ctl) -> Result<(), Stop> {
    let (node, protocol) = (ctl.node().await?, ctl.word(0).to_owned());
    ctl.say(format_args!("Asking node {node} if there's an active listener for protocol {protocol} ..."))?;
    let asked = ctl.api.get(&ApiPath::of(&["health", "checks", "protocol-listener", &protocol])).await;
    asked.map_err(|failure| not_listening(failure, format!("No listener for protocol {protocol}")))?;
    ctl.say(format_args!("A listener for protocol {protocol} is running on node {node}."))
}

fn not_listening(failure: Failure, text: String) -> Stop {
    match failure {
        Failure::Refused { .. } => Stop::error(UNAVAILABLE, text),
        other => other.into(),
    }
}

/// Connects to every port that the broker says it listens on.
pub(super) async fn check_port_connectivity(ctl: &mut Ctl) -> Result<(), Stop> {
    let overview = ctl.api.get(&ApiPath::of(&["overview"])).await?;
    let node = overview["node"].as_str().unwrap_or("nexo").to_owned();
    ctl.say(format_args!("Testing TCP connections to all active listeners on node {node} ..."))?;
    let (mut ports, mut failed) = (Vec::new(), Vec::new());
    for listener in overview["listeners"].as_array().into_iter().flatten() {
        let Some(address) = address_of(listener) else { continue };
        let reached = tokio::time::timeout(PORT_MAX, tokio::net::TcpStream::connect(address)).await;
        if matches!(reached, Ok(Ok(_))) {
            ports.push(address.port())
        } else {
            failed.push(address.to_string())
        }
    }
    ports.sort_unstable();
    ports.dedup();
    if !failed.is_empty() {
        return Err(Stop::error(UNAVAILABLE, format_args!("Connection to {} failed", failed.join(", "))));
    }
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    ctl.say(format_args!("Successfully connected to ports {} on node {node}.", ports.join(", ")))
}

/// Where a listener can be reached from its own machine.
fn address_of(listener: &Value) -> Option<SocketAddr> {
    let ip: IpAddr = listener["ip_address"].as_str()?.parse().ok()?;
    let port = u16::try_from(listener["port"].as_u64()?).ok()?;
    let ip = match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    Some(SocketAddr::new(ip, port))
}

async fn check(ctl: &mut Ctl, which: &str) -> Result<(), Stop> {
    ctl.api.get(&ApiPath::of(&["health", "checks", which])).await?;
    Ok(())
}

/// There are no flags that could be off.
pub(super) async fn enable_feature_flag(ctl: &mut Ctl) -> Result<(), Stop> {
    let name = ctl.word(0).to_owned();
    if name == "all" {
        return ctl.say("Enabling all feature flags ...");
    }
    ctl.say(format_args!("Enabling feature flag \"{name}\" ..."))?;
    let flags = ctl.api.list(&ApiPath::of(&["feature-flags"])).await?;
    if flags.iter().any(|flag| flag["name"] == *name && flag["state"] == "enabled") {
        return Ok(());
    }
    Err(Stop::error(UNAVAILABLE, format_args!("The feature flag is not supported: {name}")))
}
