//! What RabbitMQ's tool does and this does not: each by name, with what to do instead.

use super::stop::{Stop, USAGE};

const RECOVER: &str = "a node starts by itself and waits for the others; when a majority is gone for good, 'nexo cluster recover' has the \
                       node that is left go on alone";
const PROCESS: &str = "the broker is a process of its own: start it with 'nexo serve', end it with SIGTERM or by the service \
                       manager that started it";
const NO_ERLANG: &str = "there is no Erlang here that could do it";
const SETTINGS: &str =
    "settings are in the configuration file and the options of 'nexo serve'; 'nexo serve --help' names them";
const MIRRORS: &str =
    "queues have no mirrors; every node of a cluster has every durable queue, and catches up by itself";
const FILES: &str = "to begin anew, end the broker and give it an empty --data-dir; a node of a cluster is taken out first, with \
                     'nexo cluster remove NODE'";
const LISTENERS: &str = "'nexo cluster drain NODE' has a node lead no more and be sent no new clients, and '--end' takes that back";
const SECRETS: &str = "the configuration has no encrypted values; secrets go into the environment (NEXO_…) or a file that others \
                       cannot read";

/// Commands that are known and not done.
const REFUSED: [(&str, &str); 43] = [
    (
        "join_cluster",
        "a node joins when it is started: 'nexo serve --node NAME --cluster HOST:PORT --join HOST:PORT', with an empty data directory",
    ),
    ("leave_cluster", "'nexo cluster remove NODE' takes a node out, and any node can be asked"),
    (
        "change_cluster_node_type",
        "all nodes have everything, and keep it on disk; 'nexo cluster nodes' tells who leads",
    ),
    (
        "rename_cluster_node",
        "a node keeps its name: let one with another name join, then take this one out with 'nexo cluster remove NODE'",
    ),
    (
        "update_cluster_nodes",
        "a node remembers the others, and tells them when it has moved; 'nexo cluster nodes' tells where all are",
    ),
    ("force_boot", RECOVER),
    ("force_standalone_boot", RECOVER),
    ("stop", PROCESS),
    ("shutdown", PROCESS),
    ("start_app", PROCESS),
    ("stop_app", PROCESS),
    ("wait", "use 'rabbitmqctl await_startup', which needs no file with a process number"),
    ("reset", FILES),
    ("force_reset", FILES),
    ("eval", NO_ERLANG),
    ("eval_file", NO_ERLANG),
    ("exec", NO_ERLANG),
    ("force_gc", NO_ERLANG),
    ("list_ciphers", SECRETS),
    ("list_hashes", SECRETS),
    ("encode", SECRETS),
    ("decode", SECRETS),
    ("hash_password", "add the user with the password itself; the broker hashes it"),
    ("sync_queue", MIRRORS),
    ("cancel_sync_queue", MIRRORS),
    ("environment", SETTINGS),
    ("set_disk_free_limit", "change disk_free_min in the configuration file and send the broker SIGHUP"),
    ("set_log_level", "start the broker with --log; docs/operating.md names the levels"),
    ("rotate_logs", "the log goes to standard error; whoever keeps it rotates it"),
    ("suspend_listeners", LISTENERS),
    ("resume_listeners", LISTENERS),
    ("restart_vhost", "a virtual host is there or it is not; none can fail by itself"),
    ("report", "'rabbitmqctl status', 'nexo stats' and GET /metrics tell how the broker is"),
    ("schema_info", "there is no Mnesia here"),
    (
        "list_unresponsive_queues",
        "queues answer as long as the broker does; 'rabbitmqctl check_running' tells",
    ),
    ("list_node_auth_attempt_stats", "GET and DELETE /api/auth/attempts/{node} have them"),
    ("reset_node_auth_attempt_stats", "GET and DELETE /api/auth/attempts/{node} have them"),
    ("list_deprecated_features", "there are none"),
    ("rename_vhost", "a virtual host keeps its name; export its definitions and import them into another"),
    ("update_vhost_metadata", "use 'rabbitmqctl set_vhost_tags' or 'nexo vhost update'"),
    ("autocomplete", "'nexo completions' makes completions for a shell"),
    ("activate_free_disk_space_monitoring", SETTINGS),
    ("deactivate_free_disk_space_monitoring", SETTINGS),
];

/// The refusal, if it is one of these.
pub(super) fn refuse(name: &str) -> Option<Stop> {
    let (_, instead) = REFUSED.iter().find(|(refused, _)| *refused == name)?;
    Some(Stop::plain(USAGE, format!("Error: '{name}' is not done by this broker: {instead}.")))
}

#[cfg(test)]
mod tests {
    use super::super::commands::COMMANDS;
    use super::*;

    #[test]
    fn nothing_is_both_done_and_refused() {
        for (name, _) in REFUSED {
            assert!(COMMANDS.iter().all(|command| command.name != name), "{name}");
            assert_eq!(REFUSED.iter().filter(|(other, _)| *other == name).count(), 1, "{name}");
        }
    }

    #[test]
    fn a_refusal_says_what_to_do_instead() {
        let stop = refuse("stop_app").unwrap();
        assert_eq!(stop.code(), 64);
        assert!(stop.to_string().contains("SIGTERM"), "{stop}");
        for (name, instead) in [
            ("join_cluster", "'nexo serve --node NAME --cluster HOST:PORT --join HOST:PORT'"),
            ("leave_cluster", "'nexo cluster remove NODE'"),
            ("rename_cluster_node", "'nexo cluster remove NODE'"),
            ("change_cluster_node_type", "'nexo cluster nodes'"),
            ("update_cluster_nodes", "'nexo cluster nodes'"),
            ("force_boot", "'nexo cluster recover'"),
            ("force_standalone_boot", "'nexo cluster recover'"),
            ("reset", "'nexo cluster remove NODE'"),
        ] {
            let stop = refuse(name).unwrap().to_string();
            assert!(stop.contains(instead) && !stop.contains("no cluster"), "{stop}");
        }
        assert!(refuse("nonsense").is_none());
    }
}
