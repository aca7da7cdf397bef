//! The description of the API (OpenAPI 3.1), made of the addresses that there are and of what is said of them here. Each that is
//! not described, or described and not there, fails a test.

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};

use super::Api;
use super::access::Needs;
use super::overview::VERSION;
use super::routes::Route;

/// What answers and bodies look like, by name.
const SCHEMAS: &str = include_str!("openapi_schemas.json");

/// A method, an address under `/api`, what it does, the schema of its body and of its answer. `[X]` is a list of those,
/// `[X]+` one of which a page can be asked for; nothing is no body.
type Described = (&'static str, &'static str, &'static str, &'static str, &'static str);

const DESCRIBED: &[Described] = &[
    ("GET", "/overview", "The broker as a whole, or the part of it that the caller may see", "", "Overview"),
    ("GET", "/cluster-name", "What the broker is called", "", "Named"),
    ("PUT", "/cluster-name", "Calls it otherwise", "Named", ""),
    ("GET", "/nodes", "Its nodes", "", "[Node]"),
    ("GET", "/nodes/{name}", "One node", "", "Node"),
    ("GET", "/nodes/{name}/memory", "What a node has in memory", "", "NodeMemory"),
    ("GET", "/extensions", "Extensions of RabbitMQ's page: none", "", "[Any]"),
    ("GET", "/whoami", "Who asks", "", "Whoami"),
    ("GET", "/auth", "How to log in", "", "Auth"),
    ("GET", "/auth/attempts/{node}", "Logins over each protocol", "", "[Attempts]"),
    ("DELETE", "/auth/attempts/{node}", "Counts logins from the beginning", "", ""),
    ("GET", "/auth/attempts/{node}/source", "Logins of each address: they are not counted", "", "[Any]"),
    ("DELETE", "/auth/attempts/{node}/source", "Does nothing", "", ""),
    ("GET", "/users", "All users", "", "[User]"),
    ("GET", "/users/", "All users", "", "[User]"),
    ("GET", "/users/without-permissions", "Users that may enter no virtual host", "", "[User]"),
    ("POST", "/users/bulk-delete", "Deletes several users", "UserNames", ""),
    ("GET", "/users/{name}", "One user", "", "User"),
    ("PUT", "/users/{name}", "Makes a user, or changes one", "NewUser", ""),
    ("DELETE", "/users/{name}", "Deletes a user, and ends its connections", "", ""),
    ("GET", "/users/{name}/permissions", "What a user may do", "", "[Permission]"),
    ("GET", "/users/{name}/topic-permissions", "With which topics", "", "[TopicPermission]"),
    ("GET", "/user-limits", "Limits of users", "", "[UserLimits]"),
    ("GET", "/user-limits/{user}", "Limits of one user", "", "[UserLimits]"),
    ("PUT", "/user-limits/{user}/{name}", "Sets a limit", "Limit", ""),
    ("DELETE", "/user-limits/{user}/{name}", "Takes a limit away", "", ""),
    ("GET", "/permissions", "All permissions", "", "[Permission]"),
    ("GET", "/permissions/{vhost}/{user}", "What a user may do in a virtual host", "", "Permission"),
    ("PUT", "/permissions/{vhost}/{user}", "Says what a user may do there", "NewPermission", ""),
    ("DELETE", "/permissions/{vhost}/{user}", "Keeps a user out", "", ""),
    ("GET", "/topic-permissions", "All topic permissions", "", "[TopicPermission]"),
    (
        "GET",
        "/topic-permissions/{vhost}/{user}",
        "Those of a user in a virtual host",
        "",
        "[TopicPermission]",
    ),
    (
        "PUT",
        "/topic-permissions/{vhost}/{user}",
        "Says which topics of an exchange",
        "NewTopicPermission",
        "",
    ),
    ("DELETE", "/topic-permissions/{vhost}/{user}", "Takes them away", "", ""),
    ("GET", "/feature-flags", "Feature flags: none", "", "[Any]"),
    ("GET", "/policies", "The policies that the caller may change", "", "[Policy]+"),
    ("GET", "/policies/{vhost}", "Those of a virtual host", "", "[Policy]+"),
    ("GET", "/policies/{vhost}/{name}", "One policy", "", "Policy"),
    ("PUT", "/policies/{vhost}/{name}", "Sets a policy", "NewPolicy", ""),
    ("DELETE", "/policies/{vhost}/{name}", "Takes it away", "", ""),
    ("GET", "/operator-policies", "The operator policies that the caller may look at", "", "[Policy]+"),
    ("GET", "/operator-policies/{vhost}", "Those of a virtual host", "", "[Policy]+"),
    ("GET", "/operator-policies/{vhost}/{name}", "One operator policy", "", "Policy"),
    ("PUT", "/operator-policies/{vhost}/{name}", "Sets an operator policy", "NewPolicy", ""),
    ("DELETE", "/operator-policies/{vhost}/{name}", "Takes it away", "", ""),
    ("GET", "/parameters", "The parameters that the caller may look at", "", "[Parameter]+"),
    ("GET", "/parameters/{component}", "Those of a component", "", "[Parameter]+"),
    ("GET", "/parameters/{component}/{vhost}", "Those of it in a virtual host", "", "[Parameter]+"),
    ("GET", "/parameters/{component}/{vhost}/{name}", "One parameter", "", "Parameter"),
    ("PUT", "/parameters/{component}/{vhost}/{name}", "Sets a parameter", "NewParameter", ""),
    ("DELETE", "/parameters/{component}/{vhost}/{name}", "Takes it away", "", ""),
    ("GET", "/global-parameters", "The parameters of the whole broker", "", "[GlobalParameter]+"),
    ("GET", "/global-parameters/{name}", "One of them", "", "GlobalParameter"),
    ("PUT", "/global-parameters/{name}", "Sets one", "NewParameter", ""),
    ("DELETE", "/global-parameters/{name}", "Takes it away", "", ""),
    ("GET", "/vhost-limits", "Limits of virtual hosts", "", "[VhostLimits]"),
    ("GET", "/vhost-limits/{vhost}", "Limits of one", "", "[VhostLimits]"),
    ("PUT", "/vhost-limits/{vhost}/{name}", "Sets a limit", "Limit", ""),
    ("DELETE", "/vhost-limits/{vhost}/{name}", "Takes a limit away", "", ""),
    ("GET", "/vhosts", "The virtual hosts that the caller may see", "", "[Vhost]+"),
    ("GET", "/vhosts/{vhost}", "One virtual host", "", "Vhost"),
    ("PUT", "/vhosts/{vhost}", "Makes a virtual host, or changes one", "NewVhost", ""),
    ("DELETE", "/vhosts/{vhost}", "Deletes it with all that is in it", "", ""),
    ("POST", "/vhosts/{vhost}/start/{node}", "Starts it on a node: it runs there already", "", ""),
    ("GET", "/vhosts/{vhost}/permissions", "Who may do what in it", "", "[Permission]"),
    ("GET", "/vhosts/{vhost}/topic-permissions", "With which topics", "", "[TopicPermission]"),
    ("GET", "/vhosts/{vhost}/connections", "Its connections", "", "[Connection]+"),
    ("GET", "/vhosts/{vhost}/channels", "Its channels", "", "[Channel]+"),
    ("GET", "/connections", "The connections that the caller may see", "", "[Connection]+"),
    ("GET", "/connections/{name}", "One connection", "", "Connection"),
    ("DELETE", "/connections/{name}", "Closes it, with the reason in X-Reason", "", ""),
    ("GET", "/connections/{name}/channels", "Its channels", "", "[Channel]+"),
    ("GET", "/connections/username/{user}", "Those of a user", "", "[Connection]+"),
    ("DELETE", "/connections/username/{user}", "Closes those of a user", "", ""),
    ("GET", "/channels", "The channels that the caller may see", "", "[Channel]+"),
    ("GET", "/channels/{name}", "One channel", "", "Channel"),
    ("GET", "/consumers", "The consumers that the caller may see", "", "[Consumer]+"),
    ("GET", "/consumers/{vhost}", "Those of a virtual host", "", "[Consumer]+"),
    ("GET", "/exchanges", "All exchanges", "", "[Exchange]+"),
    ("GET", "/exchanges/{vhost}", "Those of a virtual host", "", "[Exchange]+"),
    ("GET", "/exchanges/{vhost}/", "Those of a virtual host", "", "[Exchange]+"),
    ("GET", "/exchanges/{vhost}/{name}", "One exchange", "", "Exchange"),
    ("PUT", "/exchanges/{vhost}/{name}", "Declares an exchange", "NewExchange", ""),
    ("DELETE", "/exchanges/{vhost}/{name}", "Deletes it", "", ""),
    ("GET", "/exchanges/{vhost}/{name}/bindings/source", "The bindings that lead from it", "", "[Binding]+"),
    ("GET", "/exchanges/{vhost}/{name}/bindings/destination", "Those that lead to it", "", "[Binding]+"),
    ("POST", "/exchanges/{vhost}/{name}/publish", "Publishes a message", "NewMessage", "Routed"),
    ("GET", "/queues", "All queues", "", "[Queue]+"),
    ("GET", "/queues/detailed", "All queues", "", "[Queue]+"),
    ("GET", "/queues/{vhost}", "Those of a virtual host", "", "[Queue]+"),
    ("GET", "/queues/{vhost}/{name}", "One queue", "", "Queue"),
    ("PUT", "/queues/{vhost}/{name}", "Declares a queue", "NewQueue", ""),
    ("DELETE", "/queues/{vhost}/{name}", "Deletes it", "", ""),
    ("GET", "/queues/{vhost}/{name}/bindings", "Its bindings", "", "[Binding]+"),
    ("DELETE", "/queues/{vhost}/{name}/contents", "Takes out all that waits", "", ""),
    ("POST", "/queues/{vhost}/{name}/get", "Gets messages", "Get", "[Message]"),
    (
        "POST",
        "/queues/{vhost}/{name}/actions",
        "Has mirrors brought up to date: there are none",
        "Action",
        "",
    ),
    ("POST", "/rebalance/queues", "Spreads leaders of queues: there are none of single queues", "", ""),
    ("GET", "/bindings", "All bindings", "", "[Binding]+"),
    ("GET", "/bindings/{vhost}", "Those of a virtual host", "", "[Binding]+"),
    ("GET", "/bindings/{vhost}/e/{source}/{kind}/{destination}", "Those between two ends", "", "[Binding]+"),
    ("POST", "/bindings/{vhost}/e/{source}/{kind}/{destination}", "Binds", "NewBinding", ""),
    ("GET", "/bindings/{vhost}/e/{source}/{kind}/{destination}/{key}", "One binding", "", "Binding"),
    ("DELETE", "/bindings/{vhost}/e/{source}/{kind}/{destination}/{key}", "Takes it away", "", ""),
    ("GET", "/definitions", "Everything as one file", "", "Definitions"),
    ("POST", "/definitions", "Imports such a file", "Definitions", ""),
    ("GET", "/definitions/{vhost}", "What is in a virtual host as one file", "", "Definitions"),
    ("POST", "/definitions/{vhost}", "Imports such a file into a virtual host", "Definitions", ""),
    ("GET", "/aliveness-test/{vhost}", "Whether a message gets through a queue", "", "Health"),
    ("GET", "/healthchecks/node", "Whether clients can be served", "", "Health"),
    ("GET", "/healthchecks/node/{name}", "Whether clients can be served", "", "Health"),
    ("GET", "/health/checks/alarms", "Whether no alarm is on", "", "Health"),
    ("GET", "/health/checks/local-alarms", "Whether no alarm is on", "", "Health"),
    ("GET", "/health/checks/virtual-hosts", "Whether all virtual hosts work", "", "Health"),
    ("GET", "/health/checks/ready-to-serve-clients", "Whether clients can be served", "", "Health"),
    (
        "GET",
        "/health/checks/node-is-mirror-sync-critical",
        "Whether no mirror depends on this node",
        "",
        "Health",
    ),
    ("GET", "/health/checks/node-is-quorum-critical", "Whether no quorum depends on this node", "", "Health"),
    ("GET", "/health/checks/port-listener/{port}", "Whether a port is listened on", "", "Health"),
    ("GET", "/health/checks/protocol-listener/{protocol}", "Whether a protocol is spoken", "", "Health"),
    (
        "GET",
        "/health/checks/certificate-expiration/{within}/{unit}",
        "Whether no certificate expires within so many days, weeks, months or years",
        "",
        "Health",
    ),
    ("GET", "/nexo/queues/{vhost}/{name}", "What is ready, leased, delayed and grouped", "", "NexoQueue"),
    ("GET", "/nexo/queues/{vhost}/{name}/messages", "Shows messages without taking any", "", "NexoMessages"),
    (
        "POST",
        "/nexo/queues/{vhost}/{name}/redrive",
        "Sends dead letters back, or moves messages to a target; with progress, tells how far it is, a line of JSON at a time",
        "Redrive",
        "Redriven",
    ),
    ("PUT", "/nexo/queues/{vhost}/{name}/pause", "Stops handing out, or goes on", "Pause", ""),
    ("GET", "/nexo/schedules", "The schedules that the caller may see", "", "[Schedule]+"),
    ("GET", "/nexo/schedules/{vhost}", "Those of a virtual host", "", "[Schedule]+"),
    ("GET", "/nexo/schedules/{vhost}/{name}", "One schedule", "", "Schedule"),
    ("PUT", "/nexo/schedules/{vhost}/{name}", "Sets a schedule", "NewSchedule", ""),
    ("DELETE", "/nexo/schedules/{vhost}/{name}", "Deletes it", "", ""),
    ("POST", "/nexo/schedules/{vhost}/{name}/run", "Has it do what it does, now", "", ""),
    ("POST", "/nexo/schedules/{vhost}/{name}/pause", "Has its times pass by unnoticed", "", ""),
    ("POST", "/nexo/schedules/{vhost}/{name}/resume", "Has it go on with the next time", "", ""),
    (
        "POST",
        "/nexo/session",
        "Logs in: with Basic, or with a name and a password in the body",
        "Login",
        "Session",
    ),
    ("GET", "/jobs/queues", "Job queues that the caller may see, with figures", "", "[JobQueue]+"),
    ("GET", "/jobs/queues/{vhost}", "Those of a virtual host", "", "[JobQueue]+"),
    ("GET", "/jobs/queues/{vhost}/{name}", "A job queue, with figures by type and by key", "", "JobQueue"),
    (
        "PUT",
        "/jobs/queues/{vhost}/{name}",
        "Makes a job queue, or changes settings of one",
        "JobQueueSettings",
        "",
    ),
    (
        "DELETE",
        "/jobs/queues/{vhost}/{name}",
        "Deletes a job queue with its jobs; whoever waits is told that they are cancelled",
        "",
        "",
    ),
    ("GET", "/jobs/queues/{vhost}/{name}/pending", "The jobs that would be served first", "", "Jobs"),
    (
        "POST",
        "/jobs/queues/{vhost}/{name}/ask",
        "Asks for work: joins the job of the key, or makes one",
        "JobAsk",
        "JobAsked",
    ),
    (
        "POST",
        "/jobs/queues/{vhost}/{name}/take",
        "Takes jobs to work on, and waits for some",
        "JobTake",
        "HandedJobs",
    ),
    ("GET", "/jobs/queues/{vhost}/{name}/answers/{waiter}", "The answer to a waiter", "", "JobAnswered"),
    ("DELETE", "/jobs/queues/{vhost}/{name}/waiters/{waiter}", "Has a waiter wait no more", "", ""),
    (
        "GET",
        "/jobs/queues/{vhost}/{name}/results/{key}",
        "The result that is cached under a key",
        "",
        "JobResult",
    ),
    ("GET", "/jobs/budgets", "Budgets that the caller may see", "", "[Budget]+"),
    ("GET", "/jobs/budgets/{vhost}", "Those of a virtual host", "", "[Budget]+"),
    ("GET", "/jobs/budgets/{vhost}/{name}", "A budget", "", "Budget"),
    ("PUT", "/jobs/budgets/{vhost}/{name}", "Makes a budget, or changes one", "BudgetSettings", ""),
    ("DELETE", "/jobs/budgets/{vhost}/{name}", "Deletes a budget that no job queue needs", "", ""),
    (
        "POST",
        "/jobs/budgets/{vhost}/{name}/report",
        "Tells a budget what its API has left",
        "TokenReport",
        "",
    ),
    ("POST", "/jobs/budgets/{vhost}/{name}/grant", "Has tokens come once, now or later", "TokenGrant", ""),
    ("GET", "/jobs/tokens", "The latest uses of tokens", "", "TokenUses"),
    ("GET", "/jobs/job/{job}", "A job, with those who wait for it", "", "Job"),
    ("DELETE", "/jobs/job/{job}", "Cancels a job; its waiters are told", "", ""),
    (
        "POST",
        "/jobs/receipt/{receipt}/complete",
        "Completes a job: everybody gets the answer",
        "JobComplete",
        "",
    ),
    ("POST", "/jobs/receipt/{receipt}/fail", "Says that a job could not be done", "JobFail", "JobFailed"),
    (
        "POST",
        "/jobs/receipt/{receipt}/extend",
        "Needs longer, or tells of progress",
        "JobExtend",
        "JobExtended",
    ),
    ("POST", "/jobs/receipt/{receipt}/return", "Gives a job back; it keeps its place", "", ""),
    ("GET", "/nexo/cluster", "The cluster that the broker is in, and what it can still lose", "", "Cluster"),
    ("GET", "/nexo/cluster/nodes", "Its nodes", "", "[ClusterNode]"),
    ("GET", "/nexo/cluster/groups", "Its Raft groups", "", "[ClusterGroup]"),
    ("POST", "/nexo/cluster/transfer", "Hands leadership over", "ClusterTransfer", "ClusterLeader"),
    ("POST", "/nexo/cluster/nodes/{name}/drain", "Has a node lead no more", "ClusterDrain", ""),
    ("DELETE", "/nexo/cluster/nodes/{name}", "Takes a node out of the cluster, for good", "", ""),
    ("GET", "/nexo/memory", "The memory watermark, and how near it is", "", "Memory"),
    ("PUT", "/nexo/memory", "Sets the watermark until the next start", "NewMemory", "Memory"),
    ("GET", "/nexo/session", "Whose session it is", "", "Session"),
    ("DELETE", "/nexo/session", "Logs out", "", ""),
    ("GET", "/nexo/openapi.json", "This description", "", "Any"),
];

/// What any request may be answered instead.
const REFUSALS: [(&str, &str); 6] = [
    ("400", "refused"),
    ("401", "not logged in, or not allowed"),
    ("403", "a page of another origin asks"),
    ("404", "not there"),
    ("405", "the address knows other methods only"),
    ("503", "the broker cannot do it now"),
];

/// The description of these addresses.
pub(super) fn document(routes: &[Route]) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        let Some(described) = described(route) else { continue };
        let path = format!("/api{}", route.path);
        paths.entry(path).or_insert_with(|| json!({}))[route.method.to_lowercase()] =
            operation(route, described);
    }
    let schemas: Value = serde_json::from_str(SCHEMAS).unwrap_or_default();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Nexo's management API",
            "version": VERSION,
            "description": "RabbitMQ's management API as release 3.13 has it, and Nexo's own under /api/nexo and /api/jobs.",
        },
        "paths": paths,
        "security": [{ "basic": [] }, { "bearer": [] }, { "session": [] }],
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "basic": { "type": "http", "scheme": "basic" },
                "bearer": { "type": "http", "scheme": "bearer" },
                "session": { "type": "apiKey", "in": "cookie", "name": "nexo_session" },
            },
        },
    })
}

/// Serves it.
pub(super) async fn serve(State(api): State<Api>) -> impl IntoResponse {
    let text = api.openapi.get().cloned().unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], text)
}

fn described(route: &Route) -> Option<&'static Described> {
    DESCRIBED.iter().find(|(method, path, ..)| *method == route.method && *path == route.path)
}

fn operation(route: &Route, (method, path, summary, body, answer): &Described) -> Value {
    let named = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let text = json!({ "type": "string" });
    let mut parameters: Vec<Value> =
        named.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": text })).collect();
    let words = route.words.iter();
    parameters.extend(
        words.map(|(name, says)| json!({ "name": name, "in": "query", "description": says, "schema": text })),
    );
    let mut responses = json!({});
    for (status, reason) in REFUSALS {
        responses[status] = refusal(reason);
    }
    if !body.is_empty() {
        responses["413"] = refusal("the body is too large");
    }
    if answer.is_empty() {
        responses["204"] = json!({ "description": "done" });
        if *method != "DELETE" {
            responses["201"] = json!({ "description": "made" });
        }
    } else {
        responses["200"] = json!({ "description": "the answer", "content": json_of(&schema(answer)) });
    }
    if *answer == "Redriven" {
        // With `"progress": true`; this is what each line is.
        responses["200"]["content"]["application/x-ndjson"] = json!({ "schema": schema("RedriveLine") });
    }
    if *answer == "Health" {
        responses["503"] = json!({ "description": "not well", "content": json_of(&schema(answer)) });
    }
    let mut operation = json!({
        "summary": summary,
        "description": needs_text(route.needs),
        "parameters": parameters,
        "responses": responses,
    });
    if !body.is_empty() {
        operation["requestBody"] = json!({ "content": json_of(&schema(body)) });
    }
    operation
}

const fn needs_text(needs: Needs) -> &'static str {
    match needs {
        Needs::Nobody => "Needs no login.",
        Needs::User => "Needs a login; permissions by the names of job queues and budgets decide.",
        Needs::Management => "Needs one of the tags management, policymaker, monitoring and administrator.",
        Needs::VisibleVhost => "Needs a tag, and permissions in the virtual host or the tag monitoring.",
        Needs::Vhost => "Needs a tag, and permissions in the virtual host.",
        Needs::Policymaker => "Needs the tag policymaker or administrator.",
        Needs::Monitoring => "Needs the tag monitoring or administrator.",
        Needs::Administrator => "Needs the tag administrator.",
    }
}

fn refusal(reason: &str) -> Value {
    json!({ "description": reason, "content": json_of(&reference("Error")) })
}

fn json_of(schema: &Value) -> Value {
    json!({ "application/json": { "schema": schema } })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn schema(text: &str) -> Value {
    let list = |name: &str| json!({ "type": "array", "items": reference(name) });
    if let Some(name) = text.strip_prefix('[').and_then(|text| text.strip_suffix("]+")) {
        // With `page` it is one page.
        return json!({ "anyOf": [list(name), reference("Page")] });
    }
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(name) => list(name),
        None => reference(text),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use nexo_access::Logins;
    use nexo_broker::{Broker, BrokerOptions};

    use super::*;
    use crate::api::routes;

    #[tokio::test]
    async fn every_address_is_described_and_none_that_is_not_there() {
        let disk = Arc::new(nexo_log::disk::FaultyDisk::new());
        let broker = Broker::open_on(disk, BrokerOptions::new("faulty")).unwrap();
        let api = Api::new(broker.clone(), Logins::new(&broker), Vec::new());
        let (_, known) = routes(&api).finish();
        let known: BTreeSet<_> = known.iter().map(|route| (route.path, route.method)).collect();
        let described: BTreeSet<_> = DESCRIBED.iter().map(|(method, path, ..)| (*path, *method)).collect();
        assert_eq!(known, described);
        assert_eq!(DESCRIBED.len(), described.len(), "none is described twice");
    }

    /// The words of a question, of each address that has some.
    fn questions(document: &Value) -> BTreeMap<(String, String), Vec<&str>> {
        let mut found = BTreeMap::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let parameters = operation["parameters"].as_array().unwrap();
                let asked = parameters.iter().filter(|parameter| parameter["in"] == "query");
                let words: Vec<&str> = asked.map(|word| word["name"].as_str().unwrap()).collect();
                if !words.is_empty() {
                    found.insert((method.clone(), path.clone()), words);
                }
            }
        }
        found
    }

    #[tokio::test]
    async fn what_handlers_read_of_a_question_is_described() {
        let disk = Arc::new(nexo_log::disk::FaultyDisk::new());
        let broker = Broker::open_on(disk, BrokerOptions::new("faulty")).unwrap();
        let api = Api::new(broker.clone(), Logins::new(&broker), Vec::new());
        let (_, known) = routes(&api).finish();
        let document = document(&known);
        let questions = questions(&document);
        let of = |method: &str, path: &str| {
            questions.get(&(method.to_owned(), path.to_owned())).cloned().unwrap_or_default()
        };
        let list = ["columns", "sort", "sort_reverse", "page", "page_size", "name", "use_regex"];
        let figures = ["disable_stats", "enable_queue_totals"];
        let history = ["lengths_age", "lengths_incr", "msg_rates_age", "msg_rates_incr"];
        let browse = ["state", "max", "header", "text", "dead", "after"];
        assert_eq!(of("get", "/api/exchanges"), list);
        assert_eq!(of("get", "/api/policies/{vhost}"), list);
        for path in ["/api/queues", "/api/queues/detailed", "/api/queues/{vhost}"] {
            assert_eq!(of("get", path), [&list[..], &figures].concat());
        }
        assert_eq!(of("get", "/api/overview"), history);
        assert_eq!(of("get", "/api/queues/{vhost}/{name}"), history);
        assert_eq!(of("get", "/api/nexo/queues/{vhost}/{name}/messages"), browse);
        assert_eq!(of("delete", "/api/queues/{vhost}/{name}"), ["if-empty", "if-unused"]);
        assert_eq!(of("delete", "/api/exchanges/{vhost}/{name}"), ["if-unused"]);
        assert_eq!(of("get", "/api/jobs/tokens"), ["since_ms", "until_ms", "budget", "key", "max"]);
        // Whatever reads a map reads this word alone.
        let maps: Vec<_> = questions.iter().filter(|(_, words)| words.contains(&"force")).collect();
        let (remove, force) =
            (("delete".to_owned(), "/api/nexo/cluster/nodes/{name}".to_owned()), vec!["force"]);
        assert_eq!(maps, [(&remove, &force)]);
        // A page can be asked for just where an answer may be one.
        for ((method, path), words) in &questions {
            let schema = &document["paths"][path][method]["responses"]["200"]["content"];
            let is_page = schema.to_string().contains("/Page\"");
            assert_eq!(words.starts_with(&list), is_page, "{method} {path}");
        }
    }

    #[test]
    fn every_schema_is_there() {
        let schemas: Map<String, Value> = serde_json::from_str(SCHEMAS).unwrap();
        for (.., body, answer) in DESCRIBED {
            for name in [body, answer].map(|text| text.trim_matches(['[', ']', '+'])) {
                assert!(name.is_empty() || schemas.contains_key(name), "{name}");
            }
        }
    }
}
