//! How the broker is: `status`, `version`, `listeners`.

use serde_json::{Value, json};

use super::formatter::{Formatter, escaped};
use super::stop::{Stop, USAGE};
use super::{ApiPath, Ctl};

pub(super) async fn status(ctl: &mut Ctl) -> Result<(), Stop> {
    let unit = unit(ctl)?;
    let overview = ctl.api.get(&ApiPath::of(&["overview"])).await?;
    let node = overview["node"].as_str().unwrap_or("nexo").to_owned();
    ctl.say(format_args!("Status of node {node} ..."))?;
    let shown = ctl.api.get(&ApiPath::of(&["nodes", &node])).await?;
    let memory = ctl.api.get(&ApiPath::of(&["nodes", &node, "memory"])).await?;
    let vhosts = ctl.api.list(&ApiPath::of(&["vhosts"]).with("columns", "name")).await?.len();
    let alarms = alarms(&shown);
    if ctl.formatter == Formatter::Json {
        return ctl.line(as_json(&overview, &shown, &memory["memory"], vhosts, &alarms));
    }
    let size = |bytes: &Value| in_unit(bytes.as_f64().unwrap_or(0.0), unit);
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), escaped);
    ctl.line("Runtime\n")?;
    ctl.line(format_args!("OS PID: {}", text(&shown["os_pid"])))?;
    ctl.line("OS: Linux")?;
    ctl.line(format_args!("Uptime (seconds): {}", shown["uptime"].as_u64().unwrap_or(0) / 1000))?;
    ctl.line(format_args!("Is under maintenance?: {}", shown["being_drained"]))?;
    ctl.line(format_args!(
        "{} version: {}",
        text(&overview["product_name"]),
        text(&overview["product_version"])
    ))?;
    ctl.line(format_args!("RabbitMQ version: {}", text(&overview["rabbitmq_version"])))?;
    ctl.line(format_args!("Node name: {node}"))?;
    ctl.line("\nData directory\n")?;
    ctl.line(format_args!("Node data directory: {}", text(&shown["db_dir"])))?;
    ctl.line("\nAlarms\n")?;
    ctl.line(if alarms.is_empty() { "(none)".to_owned() } else { alarms.join("\n") })?;
    ctl.line("\nMemory\n")?;
    ctl.line(format_args!("Total memory used: {}", size(&shown["mem_used"])))?;
    ctl.line(format_args!("Calculation strategy: {}", text(&shown["mem_calculation_strategy"])))?;
    ctl.line(format_args!("Memory high watermark setting: {}", size(&shown["mem_limit"])))?;
    ctl.line("")?;
    for (name, bytes) in
        memory["memory"].as_object().into_iter().flatten().filter(|(_, bytes)| bytes.is_u64())
    {
        ctl.line(format_args!("{}: {}", escaped(name), size(bytes)))?;
    }
    ctl.line("\nFile Descriptors\n")?;
    ctl.line(format_args!("Total: {}, limit: {}", shown["fd_used"], shown["fd_total"]))?;
    ctl.line(format_args!("Sockets: {}, limit: {}", shown["sockets_used"], shown["sockets_total"]))?;
    ctl.line("\nFree Disk Space\n")?;
    ctl.line(format_args!("Low free disk space watermark: {}", size(&shown["disk_free_limit"])))?;
    ctl.line(format_args!("Free disk space: {}", size(&shown["disk_free"])))?;
    ctl.line("\nTotals\n")?;
    ctl.line(format_args!("Connection count: {}", overview["object_totals"]["connections"]))?;
    ctl.line(format_args!("Queue count: {}", overview["object_totals"]["queues"]))?;
    ctl.line(format_args!("Virtual host count: {vhosts}"))?;
    ctl.line("\nListeners\n")?;
    for line in listener_lines(&overview) {
        ctl.line(line)?;
    }
    Ok(())
}

/// Of this program, as RabbitMQ's prints its own.
pub(super) async fn version(ctl: &mut Ctl) -> Result<(), Stop> {
    ctl.line(env!("CARGO_PKG_VERSION"))
}

pub(super) async fn server_version(ctl: &mut Ctl) -> Result<(), Stop> {
    let overview = ctl.api.get(&ApiPath::of(&["overview"])).await?;
    let node = overview["node"].as_str().unwrap_or("nexo").to_owned();
    ctl.say(format_args!("Asking node {node} for its version ..."))?;
    ctl.line(overview["product_version"].as_str().unwrap_or_default())
}

pub(super) async fn listeners(ctl: &mut Ctl) -> Result<(), Stop> {
    let overview = ctl.api.get(&ApiPath::of(&["overview"])).await?;
    let node = overview["node"].as_str().unwrap_or("nexo").to_owned();
    ctl.say(format_args!("Asking node {node} to report its protocol listeners ..."))?;
    if ctl.formatter == Formatter::Json {
        return ctl.line(json!({ "node": node, "listeners": overview["listeners"] }));
    }
    listener_lines(&overview).into_iter().try_for_each(|line| ctl.line(line))
}

pub(super) fn listener_lines(overview: &Value) -> Vec<String> {
    let line = |listener: &Value| {
        let protocol = listener["protocol"].as_str().unwrap_or_default();
        let purpose = match protocol {
            "amqp" => "AMQP 0-9-1",
            "amqps" | "amqp/ssl" => "AMQP 0-9-1 over TLS",
            "http" => "HTTP API",
            "https" => "HTTP API over TLS (HTTPS)",
            "grpc" => "native API",
            "grpc-tls" => "native API over TLS",
            "sqs" => "SQS API",
            "sqs-tls" => "SQS API over TLS",
            "cluster" => "inter-node communication",
            other => other,
        };
        let ip = listener["ip_address"].as_str().unwrap_or_default();
        let ip = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        format!("Interface: {ip}, port: {}, protocol: {protocol}, purpose: {purpose}", listener["port"])
    };
    overview["listeners"].as_array().into_iter().flatten().map(line).collect()
}

/// The alarms of a node, in RabbitMQ's words.
pub(super) fn alarms(node: &Value) -> Vec<String> {
    let name = node["name"].as_str().unwrap_or_default();
    let all = [("mem_alarm", "Memory"), ("disk_free_alarm", "Free disk space")];
    let on = all.into_iter().filter(|(field, _)| node[*field] == true);
    on.map(|(_, what)| format!("{what} alarm on node {name}")).collect()
}

fn as_json(overview: &Value, node: &Value, memory: &Value, vhosts: usize, alarms: &[String]) -> Value {
    json!({
        "active_plugins": node["enabled_plugins"],
        "alarms": alarms,
        "config_files": node["config_files"],
        "data_directory": node["db_dir"],
        "disk_free": node["disk_free"],
        "disk_free_limit": node["disk_free_limit"],
        "file_descriptors": {
            "total_used": node["fd_used"],
            "total_limit": node["fd_total"],
            "sockets_used": node["sockets_used"],
            "sockets_limit": node["sockets_total"],
        },
        "is_under_maintenance": node["being_drained"],
        "listeners": overview["listeners"],
        "log_files": node["log_files"],
        "memory": memory,
        "os": "Linux",
        "pid": node["os_pid"].as_str().and_then(|pid| pid.parse::<u64>().ok()),
        "product_name": overview["product_name"],
        "product_version": overview["product_version"],
        "rabbitmq_version": overview["rabbitmq_version"],
        "release_series_support_status": overview["release_series_support_status"],
        "totals": {
            "connection_count": overview["object_totals"]["connections"],
            "queue_count": overview["object_totals"]["queues"],
            "virtual_host_count": vhosts,
        },
        "uptime": node["uptime"].as_u64().unwrap_or(0) / 1000,
        "vm_memory_calculation_strategy": node["mem_calculation_strategy"],
        "vm_memory_high_watermark_limit": node["mem_limit"],
    })
}

/// The unit that sizes are shown in: its name and its bytes.
fn unit(ctl: &Ctl) -> Result<(&'static str, f64), Stop> {
    match ctl.given.value("unit").unwrap_or("gb").to_lowercase().as_str() {
        "bytes" => Ok(("bytes", 1.0)),
        "mb" => Ok(("mb", 1e6)),
        "gb" => Ok(("gb", 1e9)),
        _ => Err(ctl.wrong(USAGE, "the unit is one of bytes, mb and gb")),
    }
}

fn in_unit(bytes: f64, (name, size): (&str, f64)) -> String {
    if size <= 1.0 {
        format!("{bytes} {name}")
    } else {
        format!("{:?} {name}", (bytes / size * 1e4).round() / 1e4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_as_rabbitmq_tells_them() {
        assert_eq!(in_unit(418_600_000.0, ("gb", 1e9)), "0.4186 gb");
        assert_eq!(in_unit(0.0, ("gb", 1e9)), "0.0 gb");
        assert_eq!(in_unit(5.0, ("bytes", 1.0)), "5 bytes");
    }

    #[test]
    fn alarms_name_what_is_short() {
        let node = json!({ "name": "n@h", "mem_alarm": true, "disk_free_alarm": false });
        assert_eq!(alarms(&node), ["Memory alarm on node n@h"]);
    }
}
