//! Definitions: users, virtual hosts, permissions, queues, exchanges and bindings in one file, out and in. A file that RabbitMQ
//! has exported goes in as one of our own.
//!
//! - `export`: what is there, as such a file.
//! - `plan`: what a file asks for, read and checked as a whole before anything is done.
//! - `import`: doing it, as much as can be at the same time.
//! - `policies`: policies and parameters, out and in.

mod export;
mod import;
mod plan;
mod policies;

use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use nexo_access::Logins;
use nexo_broker::{Broker, OnBehalf};
use nexo_types::VhostName;
use tokio::task::spawn_blocking;

use super::Api;
use super::access::{Caller, Visible};
use super::body::{parse, read};
use super::error::ApiError;
use super::names::Vhost;
use import::Import;
use plan::Plan;

pub(super) async fn export(State(api): State<Api>) -> Result<Response, ApiError> {
    api.look(|api| download(&export::whole(api))).await
}

pub(super) async fn export_vhost(
    State(api): State<Api>,
    Path(vhost): Path<String>,
) -> Result<Response, ApiError> {
    let vhost = named(&api, &vhost)?;
    api.look(move |api| download(&export::of_vhost(api, &Visible::only(vhost.as_str())))).await
}

/// The text is made here: where a file is large, not on a thread of the runtime.
fn download(file: &serde_json::Value) -> Response {
    let headers = [
        (header::CONTENT_DISPOSITION, "attachment; filename=nexo_definitions.json"),
        (header::CONTENT_TYPE, "application/json"),
    ];
    (headers, file.to_string()).into_response()
}

pub(super) async fn import(
    State(api): State<Api>,
    caller: Caller,
    request: Request,
) -> Result<StatusCode, ApiError> {
    take_in(&api, &caller, request, None).await
}

pub(super) async fn import_vhost(
    State(api): State<Api>,
    caller: Caller,
    Path(vhost): Path<String>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let vhost = named(&api, &vhost)?;
    take_in(&api, &caller, request, Some(vhost.name().clone())).await
}

fn named(api: &Api, vhost: &str) -> Result<Vhost, ApiError> {
    Vhost::named(api, vhost).map_err(|_| ApiError::bad_request("vhost_not_found"))
}

async fn take_in(
    api: &Api,
    caller: &Caller,
    request: Request,
    only: Option<VhostName>,
) -> Result<StatusCode, ApiError> {
    let (bytes, turn) = read(request, api).await?;
    let import = Import::new(&api.broker, &api.logins, caller.identity().name());
    import_bytes(import, bytes, only).await?;
    drop(turn);
    Ok(StatusCode::NO_CONTENT)
}

/// Reads a file, and does what it asks for if all of it can be read.
async fn import_bytes(import: Import, bytes: Bytes, only: Option<VhostName>) -> Result<(), ApiError> {
    let (broker, by) = (import.broker().clone(), import.by().to_owned());
    let read = spawn_blocking(move || {
        let file = if bytes.is_empty() { serde_json::Map::new() } else { parse(&bytes)? };
        drop(bytes);
        Plan::read(&file, only.as_ref(), &broker, &by)
    });
    let plan = read.await.map_err(|_| ApiError::unavailable("the broker is stopping"))??;
    // It goes on when whoever asked for it has gone: half a file would be worse than either.
    let running = tokio::spawn(OnBehalf::now().run(async move {
        let done = import.run(plan).await?;
        tracing::info!(by = %OnBehalf::now(), "definitions were imported: {done}");
        Ok(())
    }));
    running.await.map_err(|_| ApiError::unavailable("the broker is stopping"))?
}

/// Takes in a file of definitions, as `POST /api/definitions` does: at the start of a broker, before anybody can come in.
///
/// # Errors
/// Says what is wrong with it, and what was done before that was found.
pub async fn import_definitions(broker: &Broker, logins: &Logins, text: Vec<u8>) -> Result<(), String> {
    let import = Import::at_start(broker, logins);
    let told = |error: ApiError| match error.reason() {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    import_bytes(import, text.into(), None).await.map_err(told)
}
