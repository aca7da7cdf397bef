//! `list_queues` and its like: columns by name, out of the lists of the management API.

use serde_json::Value;

use super::stop::{Stop, USAGE};
use super::{ApiPath, Ctl};

/// Something that can be listed with columns of one's choice.
struct List {
    /// All columns: the name that RabbitMQ gives each, and where it is in the JSON; `""` for what is not known here.
    columns: &'static [(&'static str, &'static str)],
    /// Those that are shown if none is named.
    usual: &'static [&'static str],
}

const QUEUES: List = List {
    columns: &[
        ("name", "name"),
        ("durable", "durable"),
        ("auto_delete", "auto_delete"),
        ("arguments", "arguments"),
        ("policy", "policy"),
        ("operator_policy", "operator_policy"),
        ("effective_policy_definition", "effective_policy_definition"),
        ("pid", "node"),
        ("leader", "node"),
        ("node", "node"),
        ("vhost", "vhost"),
        ("owner_pid", "owner_pid_details.name"),
        ("exclusive", "exclusive"),
        ("exclusive_consumer_pid", ""),
        ("exclusive_consumer_tag", "exclusive_consumer_tag"),
        ("single_active_consumer_pid", ""),
        ("single_active_consumer_tag", "single_active_consumer_tag"),
        ("messages_ready", "messages_ready"),
        ("messages_unacknowledged", "messages_unacknowledged"),
        ("messages", "messages"),
        ("messages_ready_ram", ""),
        ("messages_unacknowledged_ram", ""),
        ("messages_ram", ""),
        ("messages_persistent", ""),
        ("message_bytes", "message_bytes"),
        ("message_bytes_ready", ""),
        ("message_bytes_unacknowledged", ""),
        ("message_bytes_ram", ""),
        ("message_bytes_persistent", ""),
        ("head_message_timestamp", ""),
        ("disk_reads", ""),
        ("disk_writes", ""),
        ("consumers", "consumers"),
        ("consumer_utilisation", "consumer_utilisation"),
        ("consumer_capacity", "consumer_capacity"),
        ("memory", "memory"),
        ("slave_pids", ""),
        ("synchronised_slave_pids", ""),
        ("mirror_pids", ""),
        ("synchronised_mirror_pids", ""),
        ("members", "node"),
        ("online", "node"),
        ("state", "state"),
        ("type", "type"),
    ],
    usual: &["name", "messages"],
};

const EXCHANGES: List = List {
    columns: &[
        ("name", "name"),
        ("type", "type"),
        ("durable", "durable"),
        ("auto_delete", "auto_delete"),
        ("internal", "internal"),
        ("arguments", "arguments"),
        ("policy", "policy"),
        ("vhost", "vhost"),
    ],
    usual: &["name", "type"],
};

const BINDINGS: List = List {
    columns: &[
        ("source_name", "source"),
        ("source_kind", "=exchange"),
        ("destination_name", "destination"),
        ("destination_kind", "destination_type"),
        ("routing_key", "routing_key"),
        ("arguments", "arguments"),
        ("vhost", "vhost"),
    ],
    usual: &[
        "source_name",
        "source_kind",
        "destination_name",
        "destination_kind",
        "routing_key",
        "arguments",
    ],
};

const CONNECTIONS: List = List {
    columns: &[
        ("pid", "<name"),
        ("name", "name"),
        ("node", "node"),
        ("port", "port"),
        ("host", "host"),
        ("peer_port", "peer_port"),
        ("peer_host", "peer_host"),
        ("ssl", "ssl"),
        ("ssl_protocol", "ssl_protocol"),
        ("ssl_key_exchange", "ssl_key_exchange"),
        ("ssl_cipher", "ssl_cipher"),
        ("ssl_hash", "ssl_hash"),
        ("peer_cert_subject", "peer_cert_subject"),
        ("peer_cert_issuer", "peer_cert_issuer"),
        ("peer_cert_validity", "peer_cert_validity"),
        ("state", "state"),
        ("channels", "channels"),
        ("protocol", "protocol"),
        ("auth_mechanism", "auth_mechanism"),
        ("user", "user"),
        ("vhost", "vhost"),
        ("timeout", "timeout"),
        ("frame_max", "frame_max"),
        ("channel_max", "channel_max"),
        ("client_properties", "client_properties"),
        ("user_provided_name", "user_provided_name"),
        ("connected_at", "connected_at"),
        ("recv_oct", "recv_oct"),
        ("recv_cnt", "recv_cnt"),
        ("send_oct", "send_oct"),
        ("send_cnt", "send_cnt"),
        ("send_pend", "send_pend"),
        ("type", "type"),
    ],
    usual: &["user", "peer_host", "peer_port", "state"],
};

const CHANNELS: List = List {
    columns: &[
        ("pid", "<name"),
        ("connection", "<connection_details.name"),
        ("name", "name"),
        ("number", "number"),
        ("node", "node"),
        ("user", "user"),
        ("vhost", "vhost"),
        ("transactional", "transactional"),
        ("confirm", "confirm"),
        ("consumer_count", "consumer_count"),
        ("messages_unacknowledged", "messages_unacknowledged"),
        ("messages_uncommitted", "messages_uncommitted"),
        ("acks_uncommitted", "acks_uncommitted"),
        ("messages_unconfirmed", "messages_unconfirmed"),
        ("prefetch_count", "prefetch_count"),
        ("global_prefetch_count", "global_prefetch_count"),
        ("state", "state"),
    ],
    usual: &["pid", "user", "consumer_count", "messages_unacknowledged"],
};

const CONSUMERS: List = List {
    columns: &[
        ("queue_name", "queue.name"),
        ("channel_pid", "<channel_details.name"),
        ("consumer_tag", "consumer_tag"),
        ("ack_required", "ack_required"),
        ("exclusive", "exclusive"),
        ("prefetch_count", "prefetch_count"),
        ("active", "active"),
        ("activity_status", "activity_status"),
        ("arguments", "arguments"),
    ],
    usual: &[
        "queue_name",
        "channel_pid",
        "consumer_tag",
        "ack_required",
        "prefetch_count",
        "active",
        "arguments",
    ],
};

const VHOSTS: List = List {
    columns: &[
        ("name", "name"),
        ("tracing", "tracing"),
        ("cluster_state", "cluster_state"),
        ("description", "description"),
        ("tags", "tags"),
        ("default_queue_type", "default_queue_type"),
        ("metadata", "metadata"),
    ],
    usual: &["name"],
};

pub(super) async fn queues(ctl: &mut Ctl) -> Result<(), Stop> {
    let columns = columns(ctl, &QUEUES)?;
    let seconds = ctl.given.patience()?.as_secs_f64();
    ctl.say(format_args!("Timeout: {seconds:?} seconds ..."))?;
    ctl.say(format_args!("Listing queues for vhost {} ...", ctl.vhost().to_owned()))?;
    let path = ApiPath::of(&["queues", ctl.vhost()]);
    // The node that leads answers for all queues, so none is offline while anybody answers.
    let items = if ctl.given.has("offline") { Vec::new() } else { items(ctl, &path).await? };
    show(ctl, &columns, &items)
}

pub(super) async fn exchanges(ctl: &mut Ctl) -> Result<(), Stop> {
    let columns = columns(ctl, &EXCHANGES)?;
    ctl.say(format_args!("Listing exchanges for vhost {} ...", ctl.vhost().to_owned()))?;
    let path = ApiPath::of(&["exchanges", ctl.vhost()]);
    let items = items(ctl, &path).await?;
    show(ctl, &columns, &items)
}

pub(super) async fn bindings(ctl: &mut Ctl) -> Result<(), Stop> {
    let columns = columns(ctl, &BINDINGS)?;
    ctl.say(format_args!("Listing bindings for vhost {}...", ctl.vhost().to_owned()))?;
    let path = ApiPath::of(&["bindings", ctl.vhost()]);
    let items = items(ctl, &path).await?;
    show(ctl, &columns, &items)
}

pub(super) async fn connections(ctl: &mut Ctl) -> Result<(), Stop> {
    let columns = columns(ctl, &CONNECTIONS)?;
    ctl.say("Listing connections ...")?;
    let items = items(ctl, &ApiPath::of(&["connections"])).await?;
    show(ctl, &columns, &items)
}

pub(super) async fn channels(ctl: &mut Ctl) -> Result<(), Stop> {
    let columns = columns(ctl, &CHANNELS)?;
    ctl.say("Listing channels ...")?;
    let items = items(ctl, &ApiPath::of(&["channels"])).await?;
    show(ctl, &columns, &items)
}

pub(super) async fn consumers(ctl: &mut Ctl) -> Result<(), Stop> {
    let columns = columns(ctl, &CONSUMERS)?;
    ctl.say(format_args!("Listing consumers in vhost {} ...", ctl.vhost().to_owned()))?;
    let path = ApiPath::of(&["consumers", ctl.vhost()]);
    let items = items(ctl, &path).await?;
    show(ctl, &columns, &items)
}

pub(super) async fn vhosts(ctl: &mut Ctl) -> Result<(), Stop> {
    let columns = columns(ctl, &VHOSTS)?;
    ctl.say("Listing vhosts ...")?;
    let items = items(ctl, &ApiPath::of(&["vhosts"])).await?;
    show(ctl, &columns, &items)
}

/// The columns that were asked for, with commas or spaces between them.
fn columns(ctl: &Ctl, list: &List) -> Result<Vec<(&'static str, &'static str)>, Stop> {
    let mut names: Vec<&str> =
        ctl.given.words.iter().flat_map(|word| word.split(',')).filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        names = list.usual.to_vec();
    }
    let find = |name: &str| list.columns.iter().find(|(column, _)| *column == name);
    let unknown: Vec<&str> = names.iter().copied().filter(|name| find(name).is_none()).collect();
    if unknown.is_empty() {
        return Ok(names.into_iter().filter_map(find).copied().collect());
    }
    Err(ctl.wrong(USAGE, format!("Info key(s) {} are not supported", unknown.join(","))))
}

/// All of a list. A virtual host that is not there has nothing in it, as in RabbitMQ.
async fn items(ctl: &mut Ctl, path: &ApiPath) -> Result<Vec<Value>, Stop> {
    match ctl.api.list(path).await {
        Err(failure) if failure.is_not_found() => Ok(Vec::new()),
        listed => Ok(listed?),
    }
}

fn show(ctl: &mut Ctl, columns: &[(&str, &str)], items: &[Value]) -> Result<(), Stop> {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let rows: Vec<Vec<Value>> = items
        .iter()
        .map(|item| columns.iter().map(|(name, path)| value(item, name, path)).collect())
        .collect();
    ctl.table(&names, &rows)
}

/// A column of an item. A path that begins with `=` is the value itself, one with `<` leads to a name of which is made what
/// looks like a process of Erlang's: one word, which `close_connection` understands.
fn value(item: &Value, name: &str, path: &str) -> Value {
    if let Some(constant) = path.strip_prefix('=') {
        return constant.into();
    }
    let at =
        |path: &str| path.split('.').try_fold(item, |item, part| item.get(part)).cloned().unwrap_or_default();
    if let Some(path) = path.strip_prefix('<') {
        return at(path).as_str().map_or(Value::Null, |name| pid(name).into());
    }
    match (name, at(path)) {
        ("protocol", Value::String(text)) if text == "AMQP 0-9-1" => "{0,9,1}".into(),
        ("owner_pid", Value::String(name)) => pid(&name).into(),
        (_, found) => found,
    }
}

/// The name of a connection or a channel as one word.
pub(super) fn pid(name: &str) -> String {
    let name: String = name.chars().filter(|character| !character.is_whitespace()).collect();
    format!("<{name}>")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usual_columns_are_columns() {
        for list in [QUEUES, EXCHANGES, BINDINGS, CONNECTIONS, CHANNELS, CONSUMERS, VHOSTS] {
            for usual in list.usual {
                assert!(list.columns.iter().any(|(name, _)| name == usual), "{usual}");
            }
        }
    }

    #[test]
    fn a_connection_is_one_word() {
        let item = json!({ "name": "127.0.0.1:1 -> 127.0.0.1:2", "protocol": "AMQP 0-9-1", "queue": { "name": "q" } });
        assert_eq!(value(&item, "pid", "<name"), "<127.0.0.1:1->127.0.0.1:2>");
        assert_eq!(value(&item, "protocol", "protocol"), "{0,9,1}");
        assert_eq!(value(&item, "queue_name", "queue.name"), "q");
        assert_eq!(value(&item, "source_kind", "=exchange"), "exchange");
        assert_eq!(value(&item, "disk_reads", ""), Value::Null);
    }
}
