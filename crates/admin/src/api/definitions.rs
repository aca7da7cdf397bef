//! Definitions: all queues, exchanges and bindings in one file, out and in.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use nexo_amqp::management::{queue_type, raw_table_json};
use nexo_broker::{BindingsOf, Durability};
use serde_json::{Map, Value, json};

use super::Api;
use super::bindings::{self, binding_json};
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::exchanges::{self, exchange_json};
use super::names::{Vhost, of_exchange, of_queue};
use super::overview::{CLUSTER_NAME, PRODUCT, RABBITMQ_VERSION, VERSION};
use super::queues;
use super::vhosts::{self, vhost_definition};

/// Kinds of definitions that a file may hold and that have no place here yet.
const LEFT_OUT: [&str; 7] = [
    "users",
    "permissions",
    "topic_permissions",
    "policies",
    "parameters",
    "global_parameters",
    "user_limits",
];

pub(super) async fn export(State(api): State<Api>) -> Result<Response, ApiError> {
    let mut file = objects(&api, Vhost::all(&api)).await?;
    let more = json!({
        "rabbit_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": PRODUCT,
        "product_version": VERSION,
        "rabbitmq_definition_format": "cluster",
        "users": [],
        "vhosts": api.broker.vhosts().iter().map(vhost_definition).collect::<Value>(),
        "permissions": [],
        "topic_permissions": [],
        "parameters": [],
        "global_parameters": [{ "name": "cluster_name", "value": CLUSTER_NAME }],
        "policies": [],
    });
    if let (Value::Object(file), Value::Object(more)) = (&mut file, more) {
        file.extend(more);
    }
    Ok(download(&file))
}

pub(super) async fn export_vhost(
    State(api): State<Api>,
    Path(vhost): Path<String>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost).map_err(|_| ApiError::bad_request("vhost_not_found"))?;
    let mut file = objects(&api, vec![vhost]).await?;
    for kind in ["queues", "exchanges", "bindings"] {
        for item in file[kind].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            // Such a file may go into any vhost.
            item.remove("vhost");
        }
    }
    file["rabbit_version"] = RABBITMQ_VERSION.into();
    file["rabbitmq_version"] = RABBITMQ_VERSION.into();
    file["parameters"] = json!([]);
    file["policies"] = json!([]);
    Ok(download(&file))
}

fn download(file: &Value) -> Response {
    let name = [(header::CONTENT_DISPOSITION, "attachment; filename=nexo_definitions.json")];
    (name, Json(file)).into_response()
}

/// Queues that belong to a connection are not among them: they could not be made again.
async fn objects(api: &Api, vhosts: Vec<Vhost>) -> Result<Value, ApiError> {
    api.look(move |api| {
        let is_wanted = |vhost: &str| vhosts.iter().any(|wanted| wanted.as_str() == vhost);
        let names = api.broker.queue_names().into_iter();
        let rows = names.filter(|name| vhosts.iter().any(|vhost| vhost.has_queue(name)));
        let rows = rows.filter_map(|name| api.broker.queue_row(&name)).filter(|row| row.owner.is_none());
        let queues: Value = rows
            .map(|row| {
                json!({
                    "name": row.stats.name.as_str(),
                    "vhost": of_queue(&row.stats.name),
                    "durable": row.durability == Durability::Durable,
                    "auto_delete": row.stats.config.auto_delete,
                    "type": queue_type(&row.stats.config),
                    "arguments": raw_table_json(&row.stats.config.arguments),
                })
            })
            .collect();
        let exchanges = api.broker.exchanges().into_iter();
        let own = exchanges.filter(|(name, _)| !name.is_reserved() && is_wanted(of_exchange(name)));
        let exchanges: Value = own
            .map(|(name, spec)| without(exchange_json(&name, &spec), &["user_who_performed_action"]))
            .collect();
        let bindings = api.broker.bindings(BindingsOf::All, usize::MAX);
        let own = bindings.iter().filter(|one| is_wanted(of_exchange(one.source())));
        let bindings: Value = own.map(|one| without(binding_json(one), &["properties_key"])).collect();
        json!({ "queues": queues, "exchanges": exchanges, "bindings": bindings })
    })
    .await
}

fn without(mut shown: Value, names: &[&str]) -> Value {
    if let Some(object) = shown.as_object_mut() {
        for name in names {
            object.remove(*name);
        }
    }
    shown
}

pub(super) async fn import(State(api): State<Api>, body: JsonBody) -> Result<StatusCode, ApiError> {
    take_in(&api, &body.object, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn import_vhost(
    State(api): State<Api>,
    Path(vhost): Path<String>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let vhost = Vhost::named(&api, &vhost).map_err(|_| ApiError::bad_request("vhost_not_found"))?;
    take_in(&api, &body.object, Some(&vhost)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes what a file describes: first what bindings need. As in RabbitMQ, what is there already stays as it is, and a binding
/// that lacks an end is passed over.
async fn take_in(api: &Api, file: &Map<String, Value>, vhost: Option<&Vhost>) -> Result<(), ApiError> {
    let of = |item: &Map<String, Value>| match vhost {
        Some(vhost) => Ok(vhost.clone()),
        None => {
            let name = item.text_or_nothing("vhost")?.unwrap_or("undefined");
            Vhost::named(api, name).map_err(|_| ApiError::bad_request(json!(["no_such_vhost", name])))
        }
    };
    for item in items(file, "vhosts")? {
        let name = item.text("name")?;
        vhosts::put_from(api, name, item).await.map_err(|error| told(&error, "vhost", name))?;
    }
    for item in items(file, "queues")? {
        let name = item.text("name")?;
        let queue = of(item)?.queue(name)?;
        if api.broker.queue(&queue).is_some() {
            continue;
        }
        let mut wanted = item.clone();
        say_type(&mut wanted);
        let declared = queues::declare_from(api, &queue, &wanted).await;
        declared.map_err(|error| told(&error, "queue", name))?;
    }
    for item in items(file, "exchanges")? {
        let name = item.text("name")?;
        let exchange = of(item)?.exchange(name)?;
        if api.broker.exchange(&exchange).is_some() {
            continue;
        }
        let declared = exchanges::declare_from(api, &exchange, item).await;
        declared.map_err(|error| told(&error, "exchange", name))?;
    }
    for item in items(file, "bindings")? {
        let vhost = of(item)?;
        let (source, destination) = (item.text("source")?, item.text("destination")?);
        match bindings::bind_from(api, &vhost, item).await {
            Ok(()) => {}
            Err(error) if error.is_not_found() => {
                tracing::warn!(?source, ?destination, "a binding that lacks an end is not imported");
            }
            Err(error) => return Err(told(&error, "binding to", destination)),
        }
    }
    for kind in LEFT_OUT {
        let left_out = items(file, kind)?.count();
        if left_out > 0 {
            tracing::warn!(kind, left_out, "definitions of this kind are not imported");
        }
    }
    Ok(())
}

/// A quorum queue says so in its arguments as well, in files of RabbitMQ; ours may be told by its type alone.
fn say_type(item: &mut Map<String, Value>) {
    let is_quorum = item.get("type").and_then(Value::as_str) == Some("quorum");
    if let Some(Value::Object(arguments)) = item.get_mut("arguments")
        && is_quorum
    {
        arguments.entry("x-queue-type").or_insert_with(|| "quorum".into());
    }
}

fn items<'f>(
    file: &'f Map<String, Value>,
    kind: &'static str,
) -> Result<impl Iterator<Item = &'f Map<String, Value>>, ApiError> {
    let wrong = || ApiError::bad_request(format!("{kind} must be a list of objects"));
    let listed: &[Value] = match file.get(kind) {
        None | Some(Value::Null) => &[],
        Some(Value::Array(items)) => items,
        Some(_) => return Err(wrong()),
    };
    if !listed.iter().all(Value::is_object) {
        return Err(wrong());
    }
    Ok(listed.iter().filter_map(Value::as_object))
}

fn told(error: &ApiError, what: &str, name: &str) -> ApiError {
    let reason = match error.reason() {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    ApiError::bad_request(format!("{what} {name:?}: {reason}"))
}
