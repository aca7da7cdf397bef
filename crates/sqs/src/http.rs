//! One request: read, let in, understood, done, answered.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response as HttpResponse;
use bytes::Bytes;
use nexo_access::{Identity, UserName};
use nexo_broker::{Actor, IntakeHold, LoginFacts, acting};
use nexo_net::{Ends, Tenure, Unserved};
use nexo_types::VhostName;

use crate::clock::now;
use crate::fault::{Fault, FaultCode};
use crate::protocol::form::Form;
use crate::protocol::{Protocol, json, query, query_json, xml};
use crate::request::Action;
use crate::request_body;
use crate::response::Response;
use crate::service::{Context, Service};
use crate::signature::{AccessKey, Credential, Signed};
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
    let unserved = request.extensions().get::<Unserved>().copied();
    let tenure = request.extensions().get::<Arc<Tenure>>().cloned();
    let answered = match unserved {
        Some(why) => Err(turned_away(&service, why, request).await),
        None => tokio::select! {
            // First, since an answer of one who leads no more, and has thrown its memory away, would be wrong.
            biased;
            why = Tenure::until_over(tenure.as_deref()) => Err(why.into()),
            answered = answer(&service, ends, protocol, request) => answered,
        },
    };
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

/// What a request is told that no node of the cluster serves.
async fn turned_away(service: &Service, why: Unserved, request: Request) -> Fault {
    // The connection is closed after the answer. A client that is still sending then would not read it.
    let _ = request_body::read(request.into_body(), service.limits().request_bytes, service.intake()).await;
    why.into()
}

async fn answer(
    service: &Service,
    ends: Ends,
    protocol: Protocol,
    request: Request,
) -> Result<(Action, Response), Fault> {
    let Ends { peer, is_tls, .. } = ends;
    let (head, body) = request.into_parts();
    check_method(protocol, &head.method)?;
    let address = Form::parse(head.uri.query().unwrap_or_default(), b"")?;
    let credential = Credential::of(&head.headers, &address);
    // Who is not let in has no body read: it may be long.
    let claimant = match let_in(service, peer, &head, &address, credential).await {
        Ok(claimant) => claimant,
        Err(fault) => return Err(refused(service, ends, credential, fault).await),
    };
    let body = request_body::read(body, service.limits().request_bytes, service.intake()).await?;
    let identity = match claimant.verify(&head, &body.bytes) {
        Ok(identity) => identity,
        Err(fault) => return Err(refused(service, ends, credential, fault).await),
    };
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let context = Context {
        base_url: base_url(&head.headers, is_tls),
        path: head.uri.path().to_owned(),
        region: credential.and_then(|of| of.region()).unwrap_or(&service.options.region).to_owned(),
        vhost: vhost_of(&identity),
        trace: text("x-amzn-trace-id").filter(|trace| !trace.is_empty()).map(str::to_owned),
        identity,
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
    service.broker.traffic().of(nexo_broker::Protocol::Sqs).logged_in();
    let actor = Actor { user: context.identity.name().as_str().to_owned(), from: Some(peer) };
    // Pinned here: it is large, and would be moved otherwise.
    let call = pin!(service.call(&context, request));
    let response = acting(actor, call).await?;
    Ok((action, response))
}

/// The virtual host that the queues of whoever asks are in.
fn vhost_of(identity: &Identity) -> VhostName {
    identity.default_vhost().and_then(|name| VhostName::new(&name).ok()).unwrap_or_default()
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

/// Tells the log, and whoever wants to know, who was refused, and makes whoever tries again and again wait.
async fn refused(
    service: &Service,
    Ends { peer, is_tls, .. }: Ends,
    credential: Option<Credential<'_>>,
    fault: Fault,
) -> Fault {
    let key = credential.map(|credential| credential.key_id_shown());
    if service.options.access_keys.is_empty() && key.is_none() {
        return fault;
    }
    if fault.code.is_refused_login() {
        // A key that nobody has is told as it is.
        let owner = key.as_deref().and_then(|id| service.logins.access_key(id));
        let user =
            owner.map_or_else(|| key.clone().unwrap_or_default(), |(user, _)| user.as_str().to_owned());
        let login = LoginFacts { user: &user, protocol: "sqs", mechanism: "", peer, is_tls };
        service.broker.events().login_refused(&login, fault.code.query());
    }
    service.logins.refused(peer.ip());
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

/// Somebody who asks, and the signature that still has to hold, if there is one.
struct Claimant {
    identity: Identity,
    signed: Option<Signed>,
}

impl Claimant {
    /// Who it is, if the request is signed as it should be.
    fn verify(self, head: &Parts, body: &[u8]) -> Result<Identity, Fault> {
        if let Some(signed) = self.signed {
            signed.verify(&head.method, &head.uri, &head.headers, body)?;
        }
        Ok(self.identity)
    }
}

/// Who asks, as far as the head of a request tells: a user by one of its keys, or somebody with a key of the configuration,
/// who may do everything. If the configuration has none, this machine may ask without a key, or with one that nobody
/// knows, as guest, as long as guest's password is the one that everybody knows.
async fn let_in(
    service: &Service,
    peer: SocketAddr,
    head: &Parts,
    address: &Form<'_>,
    credential: Option<Credential<'_>>,
) -> Result<Claimant, Fault> {
    let headers = &head.headers;
    let configured = &service.options.access_keys;
    let claimed = credential.map(|credential| credential.key_id);
    let of_user = claimed.and_then(|id| service.logins.access_key(id));
    if of_user.is_none() && configured.is_empty() {
        return guest(service, peer, head).await;
    }
    if service.logins.turn(peer.ip()).await.is_err() {
        return Err(Fault::new(
            FaultCode::ServiceUnavailable,
            "Too many requests of this address were refused.",
        ));
    }
    let Some((user, secret)) = of_user else {
        let find = |id: &str| configured.iter().find(|key| key.id == id).cloned();
        let signed = Signed::read(headers, address, find, now())?;
        let name = UserName::new(&signed.key_id()).map_err(|_| unknown_key())?;
        let identity = Identity::configured(service.broker.clone(), name);
        return Ok(Claimant { identity, signed: Some(signed) });
    };
    let find =
        |id: &str| (claimed == Some(id)).then(|| AccessKey { id: id.to_owned(), secret: secret.to_string() });
    let signed = Signed::read(headers, address, find, now())?;
    let identity = service.logins.signed(&user, peer.ip()).map_err(|_| unknown_key())?;
    Ok(Claimant { identity, signed: Some(signed) })
}

fn unknown_key() -> Fault {
    Fault::new(FaultCode::InvalidClientTokenId, "The security token included in the request is invalid.")
}

/// Somebody who is not told from anybody else on this machine.
async fn guest(service: &Service, peer: SocketAddr, head: &Parts) -> Result<Claimant, Fault> {
    let headers = &head.headers;
    let denied = |whom: &str| {
        let message =
            format!("Access is denied: the request has no access key that is known, and without one {whom}.");
        Err(Fault::new(FaultCode::AccessDenied, message))
    };
    if !peer.ip().to_canonical().is_loopback() {
        return denied("only the broker's own machine is served");
    }
    if is_from_page(headers) {
        return denied("web pages are not served");
    }
    if !host::is_loopback(headers, &head.uri) {
        return denied("only requests for localhost are served");
    }
    match service.logins.anonymous(peer.ip()).await {
        Ok(identity) => Ok(Claimant { identity, signed: None }),
        Err(_) => denied("nobody is served since the user guest is gone or has a password of its own"),
    }
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
