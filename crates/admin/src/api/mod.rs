//! RabbitMQ's management API, under `/api`: for `rabbitmqadmin`, for what monitors brokers, and for scripts.
//!
//! - `guard`, `login`: what every request must pass. `body`: the JSON that it brings. `error`: what is answered instead.
//! - `names`: vhosts, queues and exchanges in addresses. `listing`: pages, order and columns. `rates`: history.
//! - By what they are about: `overview` (with nodes and what never changes), `vhosts`, `users`, `connections` (with channels and
//!   consumers), `exchanges`, `queues`, `bindings`, `messages`, `policies`, `parameters`, `definitions`, `health_checks`. `nexo`: what RabbitMQ has
//!   no words for. `memory`: the memory watermark.
//!
//! What a queue or an exchange may be, and in which words it is refused, is AMQP's matter: `nexo_amqp::management`. Where an
//! answer differs from RabbitMQ's, docs/management.md says why.

mod bindings;
mod body;
mod connections;
mod definitions;
mod error;
mod exchanges;
mod guard;
mod health_checks;
mod listing;
mod login;
mod memory;
mod messages;
mod names;
mod nexo;
mod overview;
mod parameters;
mod policies;
mod queues;
mod rates;
mod users;
mod vhosts;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::middleware;
use axum::routing::{delete, get, post};
use nexo_access::Logins;
use nexo_broker::Broker;
use nexo_broker::policy::PolicyKind;
use tokio::sync::Semaphore;

use error::ApiError;
use rates::Rates;

/// Lists that are made at the same time: each may look at everything there is, and holds all of its answer.
const LISTS_MAX: usize = 2;

/// A port of the broker, for those who ask which there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// What the settings call it: `amqp`, `grpc`, `sqs` or `http`.
    pub protocol: &'static str,
    /// Where it listens.
    pub address: SocketAddr,
}

/// What all requests share.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    broker: Broker,
    logins: Logins,
    /// What this node is called.
    node: Arc<str>,
    listeners: Arc<[Listener]>,
    rates: Arc<Rates>,
    large_bodies: Arc<Semaphore>,
    lists: Arc<Semaphore>,
}

impl Api {
    pub(crate) fn new(broker: Broker, logins: Logins, listeners: Vec<Listener>) -> Self {
        Self {
            broker,
            logins,
            node: nexo_broker::node_name().into(),
            listeners: listeners.into(),
            rates: Arc::default(),
            large_bodies: Arc::new(Semaphore::new(body::LARGE_BODIES_MAX)),
            lists: Arc::new(Semaphore::new(LISTS_MAX)),
        }
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
}

/// All addresses under `/api`.
pub(crate) fn router(api: Api) -> Router {
    let router = Router::new()
        .route("/overview", get(overview::overview))
        .route("/cluster-name", get(overview::cluster_name))
        .route("/nodes", get(overview::nodes))
        .route("/nodes/{name}", get(overview::node))
        .route("/nodes/{name}/memory", get(overview::memory))
        .route("/extensions", get(overview::extensions))
        .route("/whoami", get(overview::whoami))
        .route("/auth", get(overview::auth))
        .route("/users", get(users::list))
        .route("/users/{name}", get(users::show))
        .route("/users/{name}/permissions", get(users::permissions_of))
        .route("/users/{name}/topic-permissions", get(users::topic_permissions_of))
        .route("/permissions", get(users::permissions))
        .route("/topic-permissions", get(users::topic_permissions))
        .route("/user-limits", get(users::limits))
        .route("/feature-flags", get(overview::nothing))
        .merge(policies::routes("/policies", PolicyKind::Regular))
        .merge(policies::routes("/operator-policies", PolicyKind::Operator))
        .route("/parameters", get(parameters::list))
        .route("/parameters/{component}", get(parameters::list_of_component))
        .route("/parameters/{component}/{vhost}", get(parameters::list_of_vhost))
        .route(
            "/parameters/{component}/{vhost}/{name}",
            get(parameters::show).put(parameters::put).delete(parameters::delete),
        )
        .route("/global-parameters", get(parameters::list_global))
        .route(
            "/global-parameters/{name}",
            get(parameters::show_global).put(parameters::put_global).delete(parameters::delete_global),
        )
        .route("/vhost-limits", get(vhosts::limits))
        .route("/vhost-limits/{vhost}", get(vhosts::limits_of))
        .route(
            "/vhost-limits/{vhost}/{name}",
            axum::routing::put(vhosts::set_limit).delete(vhosts::clear_limit),
        )
        .route("/vhosts", get(vhosts::list))
        .route("/vhosts/{vhost}", get(vhosts::show).put(vhosts::put).delete(vhosts::delete))
        .route("/vhosts/{vhost}/connections", get(connections::of_vhost))
        .route("/vhosts/{vhost}/channels", get(connections::channels_of_vhost))
        .route("/connections", get(connections::list))
        .route("/connections/{name}", get(connections::show).delete(connections::close))
        .route("/connections/{name}/channels", get(connections::channels_of))
        .route("/connections/username/{user}", get(connections::of_user).delete(connections::close_of_user))
        .route("/channels", get(connections::channels))
        .route("/channels/{name}", get(connections::channel))
        .route("/consumers", get(connections::consumers))
        .route("/consumers/{vhost}", get(connections::consumers_of_vhost))
        .route("/exchanges", get(exchanges::list))
        .route("/exchanges/{vhost}", get(exchanges::list_of_vhost))
        .route("/exchanges/{vhost}/", get(exchanges::list_of_vhost))
        .route(
            "/exchanges/{vhost}/{name}",
            get(exchanges::show).put(exchanges::declare).delete(exchanges::delete),
        )
        .route("/exchanges/{vhost}/{name}/bindings/source", get(exchanges::bindings_from))
        .route("/exchanges/{vhost}/{name}/bindings/destination", get(exchanges::bindings_to))
        .route("/exchanges/{vhost}/{name}/publish", post(messages::publish))
        .route("/queues", get(queues::list))
        .route("/queues/{vhost}", get(queues::list_of_vhost))
        .route("/queues/{vhost}/{name}", get(queues::show).put(queues::declare).delete(queues::delete))
        .route("/queues/{vhost}/{name}/bindings", get(queues::bindings))
        .route("/queues/{vhost}/{name}/contents", delete(queues::purge))
        .route("/queues/{vhost}/{name}/get", post(messages::get))
        .route("/queues/{vhost}/{name}/actions", post(queues::act))
        .route("/bindings", get(bindings::list))
        .route("/bindings/{vhost}", get(bindings::list_of_vhost))
        .route(
            "/bindings/{vhost}/e/{source}/{kind}/{destination}",
            get(bindings::between).post(bindings::bind),
        )
        .route(
            "/bindings/{vhost}/e/{source}/{kind}/{destination}/{key}",
            get(bindings::show).delete(bindings::unbind),
        )
        .route("/definitions", get(definitions::export).post(definitions::import))
        .route("/definitions/{vhost}", get(definitions::export_vhost).post(definitions::import_vhost))
        .route("/aliveness-test/{vhost}", get(health_checks::aliveness))
        .route("/healthchecks/node", get(health_checks::node))
        .route("/healthchecks/node/{name}", get(health_checks::node))
        .route("/health/checks/alarms", get(health_checks::alarms))
        .route("/health/checks/local-alarms", get(health_checks::local_alarms))
        .route("/health/checks/virtual-hosts", get(health_checks::vhosts))
        .route("/health/checks/ready-to-serve-clients", get(health_checks::ready))
        .route("/health/checks/node-is-mirror-sync-critical", get(health_checks::not_critical))
        .route("/health/checks/node-is-quorum-critical", get(health_checks::not_critical))
        .route("/health/checks/port-listener/{port}", get(health_checks::port))
        .route("/health/checks/protocol-listener/{protocol}", get(health_checks::protocol))
        .route("/nexo/memory", get(memory::show).put(memory::set))
        .route("/nexo/queues/{vhost}/{name}", get(nexo::queue))
        .route("/nexo/queues/{vhost}/{name}/messages", get(nexo::messages))
        .route("/nexo/queues/{vhost}/{name}/redrive", post(nexo::redrive))
        .route("/nexo/queues/{vhost}/{name}/pause", axum::routing::put(nexo::pause))
        .fallback(async || ApiError::not_found())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed());
    router.layer(middleware::from_fn_with_state(api.clone(), guard::guard)).with_state(api)
}
