//! Bindings: list, look at, bind, unbind. One of several between the same two ends is named by its *properties key*, made of
//! its routing key and, if it has arguments, of their hash.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use md5::{Digest, Md5};
use nexo_amqp::management::{By, argument_json, bind as make, binding, unbind as take_away};
use nexo_broker::BindingsOf;
use nexo_broker::topology::{Binding, Destination};
use nexo_types::QueueName;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use super::Api;
use super::access::Caller;
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::listing::ListQuery;
use super::names::{Vhost, of_exchange, of_queue};

/// Bindings in one list: there may be millions, and the answer is in memory as a whole.
pub(super) const LISTED_MAX: usize = 100_000;

/// What stands for itself in a properties key. The tilde does not: it stands between routing key and hash.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// The ends of a binding, as an address names them: vhost, source, `q` or `e`, destination.
type Ends = (String, String, String, String);

pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    answer(&api, query, caller.vhosts(&api)).await
}

pub(super) async fn list_of_vhost(
    State(api): State<Api>,
    Path(vhost): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    answer(&api, query, vec![vhost]).await
}

async fn answer(api: &Api, query: ListQuery, vhosts: Vec<Vhost>) -> Result<Response, ApiError> {
    api.look(move |api| {
        let mut shown = of_default(api, &vhosts);
        let all = api.broker.bindings(BindingsOf::All, LISTED_MAX);
        let own =
            all.iter().filter(|one| vhosts.iter().any(|vhost| vhost.as_str() == of_exchange(one.source())));
        shown.extend(own.map(binding_json));
        query.answer(shown)
    })
    .await?
}

/// The bindings of the default exchange: one for each queue.
pub(super) fn of_default(api: &Api, vhosts: &[Vhost]) -> Vec<Value> {
    let names = api.broker.queue_names();
    let own = names.iter().filter(|name| vhosts.iter().any(|vhost| vhost.has_queue(name)));
    own.take(LISTED_MAX).map(default_json).collect()
}

pub(super) async fn between(
    State(api): State<Api>,
    Path(ends): Path<Ends>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let found = all_between(&api, &ends).await?;
    query.answer(found.into_iter().map(|(_, shown)| shown).collect())
}

pub(super) async fn show(
    State(api): State<Api>,
    Path((vhost, source, kind, destination, key)): Path<(String, String, String, String, String)>,
) -> Result<Json<Value>, ApiError> {
    let found = all_between(&api, &(vhost, source, kind, destination)).await?;
    let shown = found.into_iter().map(|(_, shown)| shown).find(|shown| shown["properties_key"] == *key);
    shown.map(Json).ok_or_else(ApiError::not_found)
}

pub(super) async fn unbind(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, source, kind, destination, key)): Path<(String, String, String, String, String)>,
) -> Result<StatusCode, ApiError> {
    let found = all_between(&api, &(vhost, source, kind, destination)).await?;
    let wanted = found.into_iter().find(|(_, shown)| shown["properties_key"] == *key);
    match wanted {
        Some((Some(binding), _)) => {
            take_away(caller.by(&api), &binding).await?;
            Ok(StatusCode::NO_CONTENT)
        }
        Some((None, _)) => Err(ApiError::access_refused()),
        None => Err(ApiError::not_found()),
    }
}

/// Makes a binding, and tells where it is found.
pub(super) async fn bind(
    State(api): State<Api>,
    caller: Caller,
    Path(ends): Path<Ends>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let (vhost, source, kind, destination) = &ends;
    let named = Vhost::to_change(&api, vhost)?;
    let to = destination_of(&named, kind, destination)?;
    let arguments = body.object.table("arguments")?;
    let key = body.object.text_or_nothing("routing_key")?.unwrap_or_default();
    let wanted = binding(named.exchange(source)?, to, key, &arguments)?;
    let properties_key = properties_key(&wanted);
    make(caller.by(&api), wanted, &arguments).await?;
    let part = |text: &str| utf8_percent_encode(text, KEPT).to_string();
    // Relative to the address that was asked, as RabbitMQ has it.
    let location = format!("{}/{}", part(destination), part(&properties_key));
    Ok((StatusCode::CREATED, [(header::LOCATION, location)]).into_response())
}

/// Makes a binding as an object of JSON describes it.
pub(super) async fn bind_from(
    by: By<'_>,
    vhost: &Vhost,
    object: &Map<String, Value>,
) -> Result<(), ApiError> {
    let arguments = object.table("arguments")?;
    let kind = if object.text("destination_type")? == "exchange" { "e" } else { "q" };
    let destination = destination_of(vhost, kind, object.text("destination")?)?;
    let source = vhost.exchange(object.text("source")?)?;
    let wanted = binding(source, destination, object.text("routing_key")?, &arguments)?;
    Ok(make(by, wanted, &arguments).await?)
}

fn destination_of(vhost: &Vhost, kind: &str, name: &str) -> Result<Destination, ApiError> {
    match kind {
        "q" => Ok(Destination::Queue(vhost.queue(name)?)),
        "e" => Ok(Destination::Exchange(vhost.exchange(name)?)),
        _ => Err(ApiError::not_found()),
    }
}

/// The bindings between two ends; that of the default exchange is none that could be changed.
async fn all_between(api: &Api, ends: &Ends) -> Result<Vec<(Option<Binding>, Value)>, ApiError> {
    let (vhost, source, kind, destination) = ends;
    let vhost = Vhost::named(api, vhost)?;
    let source = vhost.exchange(source)?;
    let destination = destination_of(&vhost, kind, destination)?;
    let is_there = match &destination {
        Destination::Queue(name) => api.broker.queue(name).is_some(),
        Destination::Exchange(name) => name.is_default() || api.broker.exchange(name).is_some(),
    };
    if !is_there {
        return Ok(Vec::new());
    }
    if source.is_default() {
        let own = match &destination {
            Destination::Queue(name) => vec![(None, default_json(name))],
            Destination::Exchange(_) => Vec::new(),
        };
        return Ok(own);
    }
    api.look(move |api| {
        let all = api.broker.bindings(BindingsOf::Destination(&destination), usize::MAX);
        let between = all.into_iter().filter(|one| *one.source() == source).take(LISTED_MAX);
        between.map(|one| (Some(one.clone()), binding_json(&one))).collect()
    })
    .await
}

pub(super) fn binding_json(binding: &Binding) -> Value {
    let (destination, kind) = match binding.destination() {
        Destination::Queue(name) => (name.as_str(), "queue"),
        Destination::Exchange(name) => (name.as_str(), "exchange"),
    };
    json!({
        "source": binding.source().as_str(),
        "vhost": of_exchange(binding.source()),
        "destination": destination,
        "destination_type": kind,
        "routing_key": String::from_utf8_lossy(binding.key()),
        "arguments": arguments_json(binding),
        "properties_key": properties_key(binding),
    })
}

/// The binding by which the default exchange leads to a queue.
pub(super) fn default_json(name: &QueueName) -> Value {
    json!({
        "source": "",
        "vhost": of_queue(name),
        "destination": name.as_str(),
        "destination_type": "queue",
        "routing_key": name.as_str(),
        "arguments": {},
        "properties_key": quoted(name.as_str().as_bytes()),
    })
}

fn arguments_json(binding: &Binding) -> Value {
    let named = binding.arguments().iter();
    let shown: Map<String, Value> = named
        .map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), argument_json(value)))
        .collect();
    Value::Object(shown)
}

/// The routing key, and a hash of the arguments if there are any; `~` for neither.
fn properties_key(binding: &Binding) -> String {
    let key = quoted(binding.key());
    if binding.arguments().is_empty() {
        return if key.is_empty() { "~".to_owned() } else { key };
    }
    let mut hash = Md5::new();
    for (name, value) in binding.arguments() {
        hash.update((name.len() as u64).to_be_bytes());
        hash.update(name);
        // Two values that are not the same are not written alike: the type is in it.
        hash.update(format!("{value:?}"));
        hash.update([0]);
    }
    format!("{key}~{}", BASE64_URL_SAFE_NO_PAD.encode(hash.finalize()))
}

fn quoted(bytes: &[u8]) -> String {
    percent_encoding::percent_encode(bytes, KEPT).to_string().replace("%20", "+")
}

#[cfg(test)]
mod tests {
    use nexo_broker::topology::HeaderValue;
    use nexo_types::ExchangeName;

    use super::*;

    fn one(key: &'static str, arguments: &[(&'static str, HeaderValue)]) -> Binding {
        let named =
            arguments.iter().map(|(name, value)| (bytes::Bytes::from_static(name.as_bytes()), value.clone()));
        let queue = Destination::Queue(QueueName::new("q").unwrap());
        Binding::new(ExchangeName::new("e").unwrap(), queue, key.into(), named.collect())
    }

    #[test]
    fn a_properties_key_names_one_binding() {
        assert_eq!(properties_key(&one("", &[])), "~");
        assert_eq!(properties_key(&one("a.*", &[])), "a.%2A");
        assert_eq!(properties_key(&one("a b~c/d", &[])), "a+b%7Ec%2Fd");
        let numbered = properties_key(&one("k", &[("x", HeaderValue::Signed(1))]));
        assert!(numbered.starts_with("k~") && numbered.len() == 24, "{numbered}");
        let text = properties_key(&one("k", &[("x", HeaderValue::Text("1".into()))]));
        let split = properties_key(&one("k", &[("x", HeaderValue::Void), ("y", HeaderValue::Void)]));
        let joined = properties_key(&one("k", &[("xy", HeaderValue::Void)]));
        assert!(numbered != text && split != joined);
    }
}
