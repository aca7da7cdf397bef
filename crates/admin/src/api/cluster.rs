//! The cluster, under `/api/nexo/cluster`. Every node answers for itself, also one that does not lead.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use nexo_broker::OnBehalf;
use serde_json::{Value, json};

use super::Api;
use super::access::Needs;
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::routes::Routes;
use crate::cluster::{
    ClusterControl, ClusterRefused, ClusterReport, Drain, GroupReport, NodeReport, RemoveIf,
};

pub(super) fn routes(routes: Routes) -> Routes {
    use Needs::{Administrator, Monitoring};
    routes
        .get("/nexo/cluster", Monitoring, show)
        .get("/nexo/cluster/nodes", Monitoring, nodes)
        .get("/nexo/cluster/groups", Monitoring, groups)
        .post("/nexo/cluster/transfer", Administrator, transfer)
        .post("/nexo/cluster/nodes/{name}/drain", Administrator, drain)
        .delete("/nexo/cluster/nodes/{name}", Administrator, remove)
}

/// Who looks after the cluster. A broker by itself is none.
fn cluster(api: &Api) -> Result<&Arc<dyn ClusterControl>, ApiError> {
    let alone = || ApiError::not_found().with_reason("this broker is not in a cluster");
    api.cluster.as_ref().ok_or_else(alone)
}

async fn show(State(api): State<Api>) -> Result<Json<ClusterReport>, ApiError> {
    Ok(Json(cluster(&api)?.report().await))
}

async fn nodes(State(api): State<Api>) -> Result<Json<Vec<NodeReport>>, ApiError> {
    Ok(Json(cluster(&api)?.report().await.nodes))
}

async fn groups(State(api): State<Api>) -> Result<Json<Vec<GroupReport>>, ApiError> {
    Ok(Json(cluster(&api)?.report().await.groups))
}

/// Takes `{"to": "name"}`, or nothing for whoever has most of the log.
async fn transfer(State(api): State<Api>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let to = body.object.text_or_nothing("to")?.map(str::to_owned);
    tracing::info!(?to, by = %OnBehalf::now(), "leadership is to be handed over");
    let leader = cluster(&api)?.transfer(to).await.map_err(|error| refused(&error))?;
    Ok(Json(json!({ "leader": leader })))
}

/// Takes `{"drain": false}` to have the node take part again.
async fn drain(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let wanted = if body.object.truth("drain", true)? { Drain::Begin } else { Drain::End };
    tracing::info!(node = name, ?wanted, by = %OnBehalf::now(), "a node is to be drained");
    cluster(&api)?.drain(name, wanted).await.map_err(|error| refused(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// With `force=true` also a node without which the others have no majority.
async fn remove(
    State(api): State<Api>,
    Path(name): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Result<StatusCode, ApiError> {
    let is_forced = query.get("force").is_some_and(|force| force == "true");
    let when = if is_forced { RemoveIf::Always } else { RemoveIf::Safe };
    tracing::warn!(node = name, ?when, by = %OnBehalf::now(), "a node is to be removed");
    cluster(&api)?.remove(name, when).await.map_err(|error| refused(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

fn refused(refused: &ClusterRefused) -> ApiError {
    let words = refused.to_string();
    match refused {
        ClusterRefused::NoSuchNode(_) => ApiError::not_found().with_reason(words),
        ClusterRefused::Refused(_) => ApiError::conflict(words),
        ClusterRefused::Unavailable(_) => ApiError::unavailable(words),
    }
}
