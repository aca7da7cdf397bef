//! One request: read, let in, understood, done, answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response as HttpResponse;
use bytes::Bytes;
use nexo_broker::IntakeHold;
use nexo_net::Ends;
use nexo_types::VhostName;

use crate::clock::now;
use crate::fault::{Fault, FaultCode};
use crate::protocol::form::Form;
use crate::protocol::{Protocol, json, query, query_json, xml};
use crate::request::Action;
use crate::request_body;
use crate::response::Response;
use crate::service::{Context, Service};
use crate::signature::{Signed, key_id, region};
use crate::{host, ids};

/// The answer to a `GET` without an action, whatever the client asked for.
const UNKNOWN_OPERATION: &str = "<UnknownOperationException/>\n";

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Json,
    Xml,
    /// JSON for a client of the Query protocol that asks for it.
    QueryJson,
}

impl Style {
    fn of(protocol: Protocol, headers: &HeaderMap) -> Self {
        let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        match protocol {
            Protocol::Json => Self::Json,
            Protocol::Query if accepted.contains(query_json::CONTENT_TYPE) && !accepted.contains("xml") => {
                Self::QueryJson
            }
            Protocol::Query => Self::Xml,
        }
    }

    const fn content_type(self) -> &'static str {
        match self {
            Self::Json => Protocol::Json.content_type(),
            Self::Xml => Protocol::Query.content_type(),
            Self::QueryJson => query_json::CONTENT_TYPE,
        }
    }
}

/// Answers one request.
pub(crate) async fn handle(
    State(service): State<Arc<Service>>,
    Extension(ends): Extension<Ends>,
    request: Request,
) -> HttpResponse {
    let protocol = protocol_of(request.headers());
    let style = Style::of(protocol, request.headers());
    let request_id = ids::random();
    if protocol == Protocol::Query && request.method() == Method::GET && !has_action(&request) {
        let body = Bytes::from_static(UNKNOWN_OPERATION.as_bytes());
        return http_response(Style::Xml, StatusCode::NOT_FOUND, &request_id, body);
    }
    let peer = ends.peer;
    let answered = answer(&service, ends, protocol, request).await;
    if let Err(fault) = &answered
        && fault.code.is_refused_login()
    {
        service.note_refused_login(peer, fault);
    }
    match answered {
        Ok((action, mut response)) => {
            let body = match style {
                Style::Json => json::response(&response),
                Style::Xml => xml::response(action, &response, &request_id),
                Style::QueryJson => query_json::response(action, &response, &request_id),
            };
            let body = until_sent(body, response.take_hold());
            http_response(style, StatusCode::OK, &request_id, body)
        }
        Err(fault) => {
            let status = StatusCode::from_u16(fault.code.status()).unwrap_or(StatusCode::BAD_REQUEST);
            if !fault.code.is_senders() {
                tracing::warn!(code = fault.code.query(), reason = %fault.message, "an SQS request failed");
            }
            let body = match style {
                Style::Json => json::fault(&fault),
                Style::Xml => xml::fault(&fault, &request_id),
                Style::QueryJson => query_json::fault(&fault, &request_id),
            };
            let mut response = http_response(style, status, &request_id, body);
            let told = format!("{};{}", fault.code.query(), fault.code.side());
            if let (Protocol::Json, Ok(told)) = (protocol, HeaderValue::from_str(&told)) {
                response.headers_mut().insert("x-amzn-query-error", told);
            }
            response
        }
    }
}

async fn answer(
    service: &Service,
    Ends { peer, is_tls, .. }: Ends,
    protocol: Protocol,
    request: Request,
) -> Result<(Action, Response), Fault> {
    let (head, body) = request.into_parts();
    check_method(protocol, &head.method)?;
    let address = Form::parse(head.uri.query().unwrap_or_default(), b"")?;
    // Who is not let in has no body read: it may be long.
    let signed = match let_in(service, peer, &head, &address) {
        Ok(signed) => signed,
        Err(fault) => return Err(refused(service, peer, &head.headers, &address, fault).await),
    };
    let body = request_body::read(body, service.limits().request_bytes, service.intake()).await?;
    if let Some(signed) = signed
        && let Err(fault) = signed.verify(&head.method, &head.uri, &head.headers, &body.bytes)
    {
        return Err(refused(service, peer, &head.headers, &address, fault).await);
    }
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let context = Context {
        base_url: base_url(&head.headers, is_tls),
        path: head.uri.path().to_owned(),
        region: region(&head.headers, &address).unwrap_or_else(|| service.options.region.clone()),
        vhost: vhost_of_caller(),
        trace: text("x-amzn-trace-id").filter(|trace| !trace.is_empty()).map(str::to_owned),
    };
    let form;
    let (action, request) = match protocol {
        Protocol::Json => json::parse(text("x-amz-target").unwrap_or_default(), &body.bytes)?,
        Protocol::Query => {
            form = Form::parse(head.uri.query().unwrap_or_default(), &body.bytes)?;
            let (action, request) = query::parse(&form)?;
            check_place(action, &context.path)?;
            (action, request)
        }
    };
    let response = service.call(&context, request).await?;
    Ok((action, response))
}

/// The virtual host that the queues of whoever asks are in. As long as there is one user, that is "/".
const fn vhost_of_caller() -> VhostName {
    VhostName::DEFAULT
}

fn has_action(request: &Request) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| pair.split('=').next() == Some("Action"))
}

/// What is about no queue, or about all of them, cannot be asked at the address of one.
fn check_place(action: Action, path: &str) -> Result<(), Fault> {
    let is_queues = path.split('/').filter(|part| !part.is_empty()).count() >= 2;
    if is_queues && matches!(action, Action::CreateQueue | Action::ListQueues) {
        let message = format!("The action {} is not valid for this endpoint.", action.name());
        return Err(Fault::new(FaultCode::InvalidAction, message));
    }
    Ok(())
}

/// Tells the log who was refused, and makes whoever tries again and again wait.
async fn refused(
    service: &Service,
    peer: SocketAddr,
    headers: &HeaderMap,
    address: &Form<'_>,
    fault: Fault,
) -> Fault {
    if service.options.access_keys.is_empty() {
        return fault;
    }
    let key = key_id(headers, address);
    let consequence = service.refusals.note(peer.ip().to_canonical(), Instant::now());
    if let Some(count) = consequence.tell {
        let (key, code) = (key.unwrap_or_default(), fault.code.query());
        tracing::warn!(%peer, ?key, code, count, "the signature of an SQS request was refused");
    }
    tokio::time::sleep(consequence.pause).await;
    fault
}

/// Requests are posted; those of the older protocol may be in an address, too.
fn check_method(protocol: Protocol, method: &Method) -> Result<(), Fault> {
    if method == Method::POST || (protocol == Protocol::Query && method == Method::GET) {
        return Ok(());
    }
    let message = format!("The method {method} is not supported by this endpoint.");
    Err(Fault::new(FaultCode::UnsupportedOperation, message))
}

/// Whether whoever asks may, as far as the head of a request tells. Without keys nobody can be told from anybody else, so only
/// this machine is let in.
fn let_in<'s>(
    service: &'s Service,
    peer: SocketAddr,
    head: &Parts,
    address: &Form<'_>,
) -> Result<Option<Signed<'s>>, Fault> {
    let headers = &head.headers;
    let keys = &service.options.access_keys;
    if !keys.is_empty() {
        return Signed::read(headers, address, keys, now()).map(Some);
    }
    let denied = |whom: &str| {
        let message =
            format!("Access is denied: the broker has no access keys, and without them it serves {whom}.");
        Err(Fault::new(FaultCode::AccessDenied, message))
    };
    if !peer.ip().to_canonical().is_loopback() {
        return denied("its own machine only");
    }
    if is_from_page(headers) {
        return denied("no web pages");
    }
    if !host::is_loopback(headers, &head.uri) {
        return denied("requests for localhost only");
    }
    Ok(None)
}

/// Whether a browser sends this for a page that somebody looks at. Such a page comes from anywhere, and must not reach the
/// queues of whoever looks at it only because both are on the same machine.
fn is_from_page(headers: &HeaderMap) -> bool {
    let is_asked_for = |site: &HeaderValue| site.as_bytes() == b"none";
    headers.contains_key(header::ORIGIN)
        || headers.get("sec-fetch-site").is_some_and(|site| !is_asked_for(site))
}

fn protocol_of(headers: &HeaderMap) -> Protocol {
    let content_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if headers.contains_key("x-amz-target") || content_type.starts_with(b"application/x-amz-json") {
        Protocol::Json
    } else {
        Protocol::Query
    }
}

/// What stands before the path of queues' addresses: the broker as this client reached it.
fn base_url(headers: &HeaderMap, is_tls: bool) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = if is_tls || text("x-forwarded-proto") == Some("https") { "https" } else { "http" };
    format!("{scheme}://{}", text("host").unwrap_or("localhost"))
}

/// The same bytes, which keep this memory until the last of them has been sent.
fn until_sent(body: Bytes, hold: Option<IntakeHold>) -> Bytes {
    struct Held(Bytes, #[allow(dead_code)] IntakeHold);

    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    match hold {
        Some(hold) => Bytes::from_owner(Held(body, hold)),
        None => body,
    }
}

fn http_response(style: Style, status: StatusCode, request_id: &str, body: Bytes) -> HttpResponse {
    let mut response = HttpResponse::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(style.content_type()));
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert("x-amzn-requestid", id);
    }
    response
}
