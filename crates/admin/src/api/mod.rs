//! RabbitMQ's management API, under `/api`: for `rabbitmqadmin`, for what monitors brokers, and for scripts.
//!
//! - `guard`, `login`, `sessions`: what every request must pass. `access`: who may ask what. `routes`: the addresses, which
//!   `openapi` describes. `body`: the JSON that it brings. `error`: what is answered instead.
//! - `names`: vhosts, queues and exchanges in addresses. `question`: what stands behind the `?`. `listing`: pages, order and columns. `rates`: history.
//! - By what they are about: `overview` (with nodes and what never changes), `attempts` (logins), `vhosts`, `users`, `permissions`, `connections`
//!   (with channels and consumers), `consumer_tags`, `exchanges`, `queues`, `bindings`, `messages`, `policies`, `parameters`, `definitions`,
//!   `health_checks`. `nexo`: what RabbitMQ has no words for; `redrive`: moves of messages; `cluster`; `schedules`. `jobs`: job queues and budgets. `memory`: the memory
//!   watermark.
//!
//! What a queue or an exchange may be, and in which words it is refused, is AMQP's matter: `nexo_amqp::management`. Where an
//! answer differs from RabbitMQ's, docs/management.md says why.

mod access;
mod attempts;
mod bindings;
mod body;
mod cluster;
mod connections;
mod consumer_tags;
mod definitions;
mod error;
mod exchanges;
mod guard;
mod health_checks;
mod jobs;
mod listing;
#[cfg(test)]
mod listing_turns_tests;
mod login;
mod memory;
mod messages;
mod names;
mod nexo;
mod openapi;
mod overview;
mod parameters;
mod permissions;
mod policies;
mod question;
mod queues;
mod rates;
mod redrive;
mod routes;
mod schedules;
mod sessions;
mod users;
mod vhosts;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, middleware};
use nexo_access::Logins;
use nexo_broker::Broker;
use nexo_broker::policy::PolicyKind;
use nexo_net::TlsServer;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use definitions::import_definitions;

use crate::cluster::ClusterControl;
use access::Needs;
use attempts::Attempts;
pub(crate) use error::ApiError;
use rates::Rates;
use routes::Routes;
use sessions::Sessions;

/// Lists that are made at the same time: each may look at everything there is, and holds all of its answer.
const LISTS_MAX: usize = 2;

/// Answers with messages that are made at the same time: each may hold 16 MiB of them, and again as text.
const GETS_MAX: usize = 4;

/// A port of the broker, for those who ask which there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// What the settings call it: `amqp`, `grpc`, `sqs` or `http`; over TLS `amqps`, `grpc-tls`, `sqs-tls` or `https`.
    pub protocol: &'static str,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Listener {
    fn is_tls(&self) -> bool {
        matches!(self.protocol, "amqps" | "grpc-tls" | "sqs-tls" | "https")
    }
}

/// What all requests share.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    broker: Broker,
    logins: Logins,
    /// What this node is called.
    node: Arc<str>,
    listeners: Arc<[Listener]>,
    tls: Option<Arc<TlsServer>>,
    cluster: Option<Arc<dyn ClusterControl>>,
    attempts: Arc<Attempts>,
    rates: Arc<Rates>,
    large_bodies: Arc<Semaphore>,
    lists: Arc<Semaphore>,
    gets: Arc<Semaphore>,
    sessions: Arc<Sessions>,
    /// Cancelled when the port is to close: what could take long ends.
    stop: CancellationToken,
    /// The description of the API, as it is served.
    openapi: Arc<OnceLock<Bytes>>,
}

impl Api {
    pub(crate) fn new(broker: Broker, logins: Logins, listeners: Vec<Listener>) -> Self {
        Self {
            broker,
            logins,
            node: nexo_broker::node_name().into(),
            listeners: listeners.into(),
            tls: None,
            cluster: None,
            attempts: Arc::default(),
            rates: Arc::default(),
            large_bodies: Arc::new(Semaphore::new(body::LARGE_BODIES_MAX)),
            lists: Arc::new(Semaphore::new(LISTS_MAX)),
            gets: Arc::new(Semaphore::new(GETS_MAX)),
            sessions: Arc::default(),
            stop: CancellationToken::new(),
            openapi: Arc::default(),
        }
    }

    /// The same, where ports speak TLS.
    pub(crate) fn over_tls(self, tls: Option<Arc<TlsServer>>) -> Self {
        Self { tls, ..self }
    }

    /// The same, in a cluster.
    pub(crate) fn in_cluster(self, cluster: Option<Arc<dyn ClusterControl>>) -> Self {
        Self { cluster, ..self }
    }

    /// The same, with what says that the port is to close.
    pub(crate) fn until(self, stop: CancellationToken) -> Self {
        Self { stop, ..self }
    }

    /// Takes samples until it is dropped.
    pub(crate) async fn sample(&self) {
        self.rates.run(&self.broker).await;
    }

    /// Has something done that may look at everything there is, when it is its turn.
    async fn look<R: Send + 'static>(
        &self,
        look: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        let stopping = || ApiError::unavailable("the broker is stopping");
        let turn = self.lists.clone().acquire_owned().await.map_err(|_| stopping())?;
        let api = self.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let seen = look(&api);
            drop(turn);
            seen
        });
        looked.await.map_err(|_| stopping())
    }

    /// The same for an answer, which is made into text there as well.
    async fn look_for(
        &self,
        look: impl FnOnce(&Self) -> Value + Send + 'static,
    ) -> Result<Response, ApiError> {
        self.look(|api| Json(look(api)).into_response()).await
    }
}

/// All addresses under `/api`.
pub(crate) fn router(api: Api) -> Router {
    let (router, known) = routes(&api).finish();
    api.openapi.get_or_init(|| openapi::document(&known).to_string().into());
    let router = router
        .fallback(async || ApiError::not_found())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed());
    router.layer(middleware::from_fn_with_state(api.clone(), guard::guard)).with_state(api)
}

/// Each address with what it needs of whoever asks.
fn routes(api: &Api) -> Routes {
    use Needs::{Administrator, Management, Monitoring, Nobody, Policymaker, Vhost, VisibleVhost};
    Routes::new(api)
        .get("/overview", Management, overview::overview)
        .get("/cluster-name", Management, overview::cluster_name)
        .put("/cluster-name", Administrator, overview::set_cluster_name)
        .get("/nodes", Monitoring, overview::nodes)
        .get("/nodes/{name}", Monitoring, overview::node)
        .get("/nodes/{name}/memory", Monitoring, overview::memory)
        .get("/extensions", Management, overview::extensions)
        .get("/whoami", Management, overview::whoami)
        .get("/auth", Management, overview::auth)
        .get("/auth/attempts/{node}", Monitoring, attempts::list)
        .delete("/auth/attempts/{node}", Monitoring, attempts::reset)
        .get("/auth/attempts/{node}/source", Monitoring, attempts::by_source)
        .delete("/auth/attempts/{node}/source", Monitoring, attempts::reset_source)
        .get("/users", Administrator, users::list)
        .get("/users/", Administrator, users::list)
        .get("/users/without-permissions", Administrator, users::list_without_permissions)
        .post("/users/bulk-delete", Administrator, users::delete_many)
        .get("/users/{name}", Administrator, users::show)
        .put("/users/{name}", Administrator, users::put)
        .delete("/users/{name}", Administrator, users::delete)
        .get("/users/{name}/permissions", Administrator, permissions::of_user)
        .get("/users/{name}/topic-permissions", Administrator, permissions::topics_of_user)
        .get("/user-limits", Administrator, users::limits)
        .get("/user-limits/{user}", Administrator, users::limits_of)
        .put("/user-limits/{user}/{name}", Administrator, users::set_limit)
        .delete("/user-limits/{user}/{name}", Administrator, users::clear_limit)
        .get("/permissions", Administrator, permissions::list)
        .get("/permissions/{vhost}/{user}", Administrator, permissions::show)
        .put("/permissions/{vhost}/{user}", Administrator, permissions::put)
        .delete("/permissions/{vhost}/{user}", Administrator, permissions::delete)
        .get("/topic-permissions", Administrator, permissions::list_topics)
        .get("/topic-permissions/{vhost}/{user}", Administrator, permissions::show_topics)
        .put("/topic-permissions/{vhost}/{user}", Administrator, permissions::put_topics)
        .delete("/topic-permissions/{vhost}/{user}", Administrator, permissions::delete_topics)
        .get("/feature-flags", Administrator, overview::nothing)
        .get("/parameters", Policymaker, parameters::list)
        .get("/parameters/{component}", Policymaker, parameters::list_of_component)
        .get("/parameters/{component}/{vhost}", Policymaker, parameters::list_of_vhost)
        .get("/parameters/{component}/{vhost}/{name}", Policymaker, parameters::show)
        .put("/parameters/{component}/{vhost}/{name}", Policymaker, parameters::put)
        .delete("/parameters/{component}/{vhost}/{name}", Policymaker, parameters::delete)
        .get("/global-parameters", Policymaker, parameters::list_global)
        .get("/global-parameters/{name}", Policymaker, parameters::show_global)
        .put("/global-parameters/{name}", Administrator, parameters::put_global)
        .delete("/global-parameters/{name}", Administrator, parameters::delete_global)
        .with(|routes| policies::routes(routes, PolicyKind::Regular))
        .with(|routes| policies::routes(routes, PolicyKind::Operator))
        .get("/vhost-limits", Management, vhosts::limits)
        .get("/vhost-limits/{vhost}", VisibleVhost, vhosts::limits_of)
        .put("/vhost-limits/{vhost}/{name}", Administrator, vhosts::set_limit)
        .delete("/vhost-limits/{vhost}/{name}", Administrator, vhosts::clear_limit)
        .get("/vhosts", Management, vhosts::list)
        .get("/vhosts/{vhost}", VisibleVhost, vhosts::show)
        .put("/vhosts/{vhost}", Administrator, vhosts::put)
        .delete("/vhosts/{vhost}", Administrator, vhosts::delete)
        .post("/vhosts/{vhost}/start/{node}", Administrator, vhosts::start)
        .get("/vhosts/{vhost}/permissions", Administrator, permissions::of_vhost)
        .get("/vhosts/{vhost}/topic-permissions", Administrator, permissions::topics_of_vhost)
        .get("/vhosts/{vhost}/connections", VisibleVhost, connections::of_vhost)
        .get("/vhosts/{vhost}/channels", VisibleVhost, connections::channels_of_vhost)
        .get("/connections", Management, connections::list)
        .get("/connections/{name}", Management, connections::show)
        .delete("/connections/{name}", Management, connections::close)
        .get("/connections/{name}/channels", Management, connections::channels_of)
        .get("/connections/username/{user}", Management, connections::of_user)
        .delete("/connections/username/{user}", Management, connections::close_of_user)
        .get("/channels", Management, connections::channels)
        .get("/channels/{name}", Management, connections::channel)
        .get("/consumers", Management, connections::consumers)
        .get("/consumers/{vhost}", VisibleVhost, connections::consumers_of_vhost)
        .get("/exchanges", Management, exchanges::list)
        .get("/exchanges/{vhost}", VisibleVhost, exchanges::list_of_vhost)
        .get("/exchanges/{vhost}/", VisibleVhost, exchanges::list_of_vhost)
        .get("/exchanges/{vhost}/{name}", VisibleVhost, exchanges::show)
        .put("/exchanges/{vhost}/{name}", Vhost, exchanges::declare)
        .delete("/exchanges/{vhost}/{name}", Vhost, exchanges::delete)
        .get("/exchanges/{vhost}/{name}/bindings/source", VisibleVhost, exchanges::bindings_from)
        .get("/exchanges/{vhost}/{name}/bindings/destination", VisibleVhost, exchanges::bindings_to)
        .post("/exchanges/{vhost}/{name}/publish", Vhost, messages::publish)
        .get("/queues", Management, queues::list)
        .get("/queues/detailed", Management, queues::list)
        .get("/queues/{vhost}", VisibleVhost, queues::list_of_vhost)
        .get("/queues/{vhost}/{name}", VisibleVhost, queues::show)
        .put("/queues/{vhost}/{name}", Vhost, queues::declare)
        .delete("/queues/{vhost}/{name}", Vhost, queues::delete)
        .get("/queues/{vhost}/{name}/bindings", VisibleVhost, queues::bindings)
        .delete("/queues/{vhost}/{name}/contents", Vhost, queues::purge)
        .post("/queues/{vhost}/{name}/get", Vhost, messages::get)
        .post("/queues/{vhost}/{name}/actions", Administrator, queues::act)
        .post("/rebalance/queues", Administrator, queues::rebalance)
        .get("/bindings", Management, bindings::list)
        .get("/bindings/{vhost}", VisibleVhost, bindings::list_of_vhost)
        .get("/bindings/{vhost}/e/{source}/{kind}/{destination}", VisibleVhost, bindings::between)
        .post("/bindings/{vhost}/e/{source}/{kind}/{destination}", Vhost, bindings::bind)
        .get("/bindings/{vhost}/e/{source}/{kind}/{destination}/{key}", VisibleVhost, bindings::show)
        .delete("/bindings/{vhost}/e/{source}/{kind}/{destination}/{key}", Vhost, bindings::unbind)
        .get("/definitions", Administrator, definitions::export)
        .post("/definitions", Administrator, definitions::import)
        .get("/definitions/{vhost}", Administrator, definitions::export_vhost)
        .post("/definitions/{vhost}", Administrator, definitions::import_vhost)
        .get("/aliveness-test/{vhost}", Vhost, health_checks::aliveness)
        .get("/healthchecks/node", Management, health_checks::node)
        .get("/healthchecks/node/{name}", Management, health_checks::node)
        .get("/health/checks/alarms", Management, health_checks::alarms)
        .get("/health/checks/local-alarms", Management, health_checks::local_alarms)
        .get("/health/checks/virtual-hosts", Management, health_checks::vhosts)
        .get("/health/checks/ready-to-serve-clients", Management, health_checks::ready)
        .get("/health/checks/node-is-mirror-sync-critical", Management, health_checks::not_critical)
        .get("/health/checks/node-is-quorum-critical", Management, health_checks::quorum)
        .get("/health/checks/port-listener/{port}", Management, health_checks::port)
        .get("/health/checks/protocol-listener/{protocol}", Management, health_checks::protocol)
        .get("/health/checks/certificate-expiration/{within}/{unit}", Management, health_checks::certificates)
        .with(jobs::routes)
        .with(cluster::routes)
        .get("/nexo/memory", Monitoring, memory::show)
        .put("/nexo/memory", Administrator, memory::set)
        .get("/nexo/queues/{vhost}/{name}", VisibleVhost, nexo::queue)
        .get("/nexo/queues/{vhost}/{name}/messages", Vhost, nexo::messages)
        .post("/nexo/queues/{vhost}/{name}/redrive", Vhost, redrive::redrive)
        .put("/nexo/queues/{vhost}/{name}/pause", Vhost, nexo::pause)
        .get("/nexo/schedules", Management, schedules::list)
        .get("/nexo/schedules/{vhost}", VisibleVhost, schedules::list_of_vhost)
        .get("/nexo/schedules/{vhost}/{name}", VisibleVhost, schedules::show)
        .put("/nexo/schedules/{vhost}/{name}", Vhost, schedules::put)
        .delete("/nexo/schedules/{vhost}/{name}", Vhost, schedules::delete)
        .post("/nexo/schedules/{vhost}/{name}/run", Vhost, schedules::run)
        .post("/nexo/schedules/{vhost}/{name}/pause", Vhost, schedules::pause)
        .post("/nexo/schedules/{vhost}/{name}/resume", Vhost, schedules::resume)
        .post("/nexo/session", Nobody, sessions::begin)
        .get("/nexo/session", Management, sessions::show)
        .delete("/nexo/session", Management, sessions::end)
        .get("/nexo/openapi.json", Management, openapi::serve)
}
