//! One request: read, let in, understood, done, answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response as HttpResponse;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body as _;

use crate::clock::now;
use crate::fault::{Fault, FaultCode};
use crate::ids;
use crate::protocol::form::Form;
use crate::protocol::{Protocol, json, query, xml};
use crate::request::Action;
use crate::response::Response;
use crate::service::{Context, Service};
use crate::signature::{Signed, region};

/// How long a client may be silent in the middle of a request.
const BODY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long a request may take to come, however steadily it does.
const BODY_MAX: Duration = Duration::from_secs(15 * 60);

/// Answers one request.
pub(crate) async fn handle(
    State(service): State<Arc<Service>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> HttpResponse {
    let protocol = protocol_of(request.headers());
    let request_id = ids::random();
    let answered = answer(&service, peer, protocol, request).await;
    if let Err(fault) = &answered
        && fault.code.is_refused_login()
    {
        service.note_refused_login(peer, fault);
    }
    match answered {
        Ok((action, response)) => {
            let body = match protocol {
                Protocol::Json => json::response(&response),
                Protocol::Query => xml::response(action, &response, &request_id),
            };
            http_response(protocol, StatusCode::OK, &request_id, body)
        }
        Err(fault) => {
            let status = StatusCode::from_u16(fault.code.status()).unwrap_or(StatusCode::BAD_REQUEST);
            if !fault.code.is_senders() {
                tracing::warn!(code = fault.code.query(), reason = %fault.message, "an SQS request failed");
            }
            let body = match protocol {
                Protocol::Json => json::fault(&fault),
                Protocol::Query => xml::fault(&fault, &request_id),
            };
            let mut response = http_response(protocol, status, &request_id, body);
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
    peer: SocketAddr,
    protocol: Protocol,
    request: Request,
) -> Result<(Action, Response), Fault> {
    let (head, body) = request.into_parts();
    check_method(protocol, &head.method)?;
    let address = Form::parse(head.uri.query().unwrap_or_default(), b"")?;
    // Who is not let in has no body read: it may be long.
    let signed = let_in(service, peer, &head.headers, &address)?;
    let body = tokio::time::timeout(BODY_MAX, read(body, service.limits().request_bytes));
    let body = body.await.unwrap_or_else(|_| Err(too_slow()))?;
    if let Some(signed) = signed {
        signed.verify(&head.method, &head.uri, &head.headers, &body)?;
    }
    let context = Context {
        base_url: base_url(&head.headers),
        path: head.uri.path().to_owned(),
        region: region(&head.headers, &address).unwrap_or_else(|| service.options.region.clone()),
    };
    let form;
    let (action, request) = match protocol {
        Protocol::Json => {
            let target = head.headers.get("x-amz-target").and_then(|target| target.to_str().ok());
            json::parse(target.unwrap_or_default(), &body)?
        }
        Protocol::Query => {
            form = Form::parse(head.uri.query().unwrap_or_default(), &body)?;
            query::parse(&form)?
        }
    };
    let response = service.call(&context, request).await?;
    Ok((action, response))
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
    headers: &HeaderMap,
    address: &Form<'_>,
) -> Result<Option<Signed<'s>>, Fault> {
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
    Ok(None)
}

/// Whether a browser sends this for a page that somebody looks at. Such a page comes from anywhere, and must not reach the
/// queues of whoever looks at it only because both are on the same machine.
fn is_from_page(headers: &HeaderMap) -> bool {
    let is_asked_for = |site: &HeaderValue| site.as_bytes() == b"none";
    headers.contains_key(header::ORIGIN)
        || headers.get("sec-fetch-site").is_some_and(|site| !is_asked_for(site))
}

/// The body of a request, as long as it is not too long and keeps coming.
async fn read(mut body: Body, max: usize) -> Result<Bytes, Fault> {
    let too_large = || {
        let message = format!("A request has at most {max} bytes.");
        Fault::new(FaultCode::RequestEntityTooLarge, message)
    };
    if body.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    let mut whole = BytesMut::new();
    let mut first = Bytes::new();
    loop {
        let frame = tokio::time::timeout(BODY_PAUSE_MAX, body.frame()).await.map_err(|_| too_slow())?;
        let Some(frame) = frame else { break };
        let cut = |_| Fault::new(FaultCode::MalformedQueryString, "The request ended before its body did.");
        let Ok(data) = frame.map_err(cut)?.into_data() else { continue };
        // Most requests come in one piece, which then need not be copied.
        if first.is_empty() && whole.is_empty() {
            first = data;
        } else {
            if whole.is_empty() {
                whole.extend_from_slice(&std::mem::take(&mut first));
            }
            whole.extend_from_slice(&data);
        }
        if first.len() + whole.len() > max {
            return Err(too_large());
        }
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

fn too_slow() -> Fault {
    Fault::new(FaultCode::RequestTimeout, "The rest of the request did not come in time.")
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
fn base_url(headers: &HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = if text("x-forwarded-proto") == Some("https") { "https" } else { "http" };
    format!("{scheme}://{}", text("host").unwrap_or("localhost"))
}

fn http_response(protocol: Protocol, status: StatusCode, request_id: &str, body: Bytes) -> HttpResponse {
    let mut response = HttpResponse::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(protocol.content_type()));
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert("x-amzn-requestid", id);
    }
    response
}
