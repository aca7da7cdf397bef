//! What every call passes before its service sees it: who may call at all, and how its requests come in.

use std::convert::Infallible;
use std::pin::pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use nexo_access::{Identity, LoginError, Logins, claimed_user};
use nexo_broker::{Actor, Broker, LoginFacts, Protocol, acting};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::header::{AUTHORIZATION, CONTENT_TYPE, ORIGIN};
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use crate::deposed::answer_in;
use crate::incoming::{Held, Incoming, Requests};
use crate::listener::Peer;
use crate::status::Failure;

/// Puts a [`Guard`] before a service.
#[derive(Clone, Debug)]
pub(crate) struct GuardLayer {
    pub(crate) broker: Broker,
    pub(crate) logins: Logins,
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { inner, broker: self.broker.clone(), logins: self.logins.clone() }
    }
}

/// Lets calls pass.
#[derive(Clone, Debug)]
pub(crate) struct Guard<S> {
    inner: S,
    broker: Broker,
    logins: Logins,
}

impl<S> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().cloned();
        let held = Held::default();
        let requests = requests(request.uri().path());
        // Only what brings much keeps what it was sent. Another call may last, and must not keep memory for it.
        let mut kept = None;
        if requests == Requests::AnyTime {
            request.extensions_mut().insert(held.clone());
        } else if is_push(request.uri().path()) || is_result(request.uri().path()) {
            kept = Some(held.clone());
        }
        let intake = self.broker.intake().clone();
        let request = request.map(|body| Body::new(Incoming::new(body, intake, held, requests)));
        // The one that was made ready is the one to be called.
        let next = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, next);
        let (broker, logins) = (self.broker.clone(), self.logins.clone());
        Box::pin(async move {
            let peer = peer.as_ref();
            // Pinned here: it is large, and would be moved otherwise.
            let answering = pin!(async {
                match let_in(&broker, &logins, peer, request).await {
                    Ok(request) => {
                        let mut inner = inner;
                        match actor(&request, peer) {
                            Some(actor) => acting(actor, inner.call(request)).await,
                            None => inner.call(request).await,
                        }
                    }
                    Err(refused) => Ok(refused.into_http()),
                }
            });
            let response = answer_in(peer.and_then(|peer| peer.tenure.clone()), answering).await;
            drop(kept);
            response
        })
    }
}

/// Whether a page in a browser calls, which could do so in the name of whoever looks at it: over TLS browsers speak HTTP/2. No
/// client of gRPC sends what tells them, and a page cannot send the type of content that clients do without being asked first.
fn is_from_page(headers: &HeaderMap) -> bool {
    let is_grpc =
        headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    !is_grpc || headers.contains_key(ORIGIN) || site.is_some_and(|site| site != b"none")
}

/// Who calls, for those who are told what he does.
fn actor(request: &Request<Body>, peer: Option<&Peer>) -> Option<Actor> {
    let identity = request.extensions().get::<Identity>()?;
    Some(Actor { user: identity.name().as_str().to_owned(), from: peer.map(|peer| peer.address) })
}

/// Notes who calls, or says why he may not.
async fn let_in(
    broker: &Broker,
    logins: &Logins,
    peer: Option<&Peer>,
    mut request: Request<Body>,
) -> Result<Request<Body>, Status> {
    if is_from_page(request.headers()) {
        broker.traffic().of(Protocol::Grpc).login_refused();
        return Err(Status::permission_denied("calls of web pages are not served"));
    }
    if let Some(why) = peer.and_then(|peer| peer.unserved) {
        return Err(Failure::from(why).into());
    }
    if let Some(max) = peer.and_then(|peer| peer.limit_reached) {
        let text = format!("there are {max} connections, and no more are allowed; try again later");
        return Err(Status::resource_exhausted(text));
    }
    if is_for_everybody(request.uri().path()) {
        return Ok(request);
    }
    let login = request.headers().get(AUTHORIZATION).cloned();
    let identity = match peer {
        Some(peer) => logins.authorize_or_guest(login.as_ref(), peer.address.ip()).await,
        None => Err(LoginError::Missing),
    };
    match identity {
        Ok(identity) => {
            broker.traffic().of(Protocol::Grpc).logged_in();
            if broker.has_memory_alarm() && is_push(request.uri().path()) {
                // It would be refused when it has come whole, and take its memory until then.
                broker.refuse_if_short().map_err(|error| Status::from(Failure::from(error)))?;
            }
            request.extensions_mut().insert(identity);
            Ok(request)
        }
        Err(error) => {
            broker.traffic().of(Protocol::Grpc).login_refused();
            let (user, address) = (claimed_user(login.as_ref()), peer.map(|peer| peer.address.to_string()));
            let address = address.unwrap_or_default();
            tracing::warn!(protocol = "grpc", user, peer = address, reason = %error, "call refused");
            if let Some(peer) = peer {
                let login = LoginFacts {
                    user: &user,
                    protocol: "grpc",
                    mechanism: "",
                    peer: peer.address,
                    is_tls: peer.is_tls,
                };
                broker.events().login_refused(&login, &error.to_string());
            }
            Err(refusal(error))
        }
    }
}

/// What is asked before anybody has logged in: whether the broker is well, and what it offers.
fn is_for_everybody(path: &str) -> bool {
    path.starts_with("/grpc.health.") || path.starts_with("/grpc.reflection.")
}

/// Whether a call brings one request with messages. In a stream of them, each is refused by itself.
fn is_push(path: &str) -> bool {
    path.ends_with("/Push")
}

/// Whether a call brings the result of a job.
fn is_result(path: &str) -> bool {
    path.ends_with("/Complete")
}

fn refusal(error: LoginError) -> Status {
    match error {
        LoginError::Missing => Status::unauthenticated(
            "the call says not who makes it; give a user's name and password (authorization: Basic ...) or a token \
             (authorization: Bearer ...)",
        ),
        LoginError::Invalid => Status::unauthenticated("invalid credentials"),
        LoginError::LoopbackOnly => {
            Status::permission_denied("the user guest may come from the broker's own machine only")
        }
        LoginError::TooMany => Status::resource_exhausted("too many logins at once; try again later"),
    }
}

/// How many requests a client may send with this call.
fn requests(path: &str) -> Requests {
    match path.rsplit('/').next() {
        Some("PushStream" | "Calls") => Requests::AnyTime,
        Some("Subscribe" | "ServerReflectionInfo") => Requests::Many,
        _ => Requests::One,
    }
}

#[cfg(test)]
mod tests {
    use nexo_broker::topology::{Binding, Destination};
    use nexo_types::{ExchangeName, QueueName, VhostName};
    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;
    use crate::proto;

    /// Answers everything.
    #[derive(Clone)]
    struct Anything;

    impl Service<Request<Body>> for Anything {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            std::future::ready(Ok(Response::new(Body::empty())))
        }
    }

    async fn guarded() -> (Broker, Logins, Guard<Anything>) {
        let disk = std::sync::Arc::new(nexo_log::disk::FaultyDisk::new());
        let broker = Broker::open_on(disk, nexo_broker::BrokerOptions::new("faulty")).unwrap();
        let logins = Logins::open(&broker, &nexo_access::FirstUser::default()).await.unwrap();
        let guard = GuardLayer { broker: broker.clone(), logins: logins.clone() }.layer(Anything);
        (broker, logins, guard)
    }

    async fn code(
        guard: &mut Guard<Anything>,
        from: Option<&str>,
        login: Option<&str>,
        path: &str,
    ) -> tonic::Code {
        let mut request = Request::new(Body::empty());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        *request.uri_mut() = path.parse().unwrap();
        if let Some(from) = from {
            request.extensions_mut().insert(Peer {
                address: from.parse().unwrap(),
                is_tls: false,
                limit_reached: None,
                unserved: None,
                tenure: None,
            });
        }
        if let Some(login) = login {
            request.headers_mut().insert("authorization", login.parse().unwrap());
        }
        let response = guard.call(request).await.unwrap();
        Status::from_header_map(response.headers()).map_or(tonic::Code::Ok, |status| status.code())
    }

    const PUSH: &str = "/nexo.v1.MessageService/Push";
    const GUEST: &str = "Basic Z3Vlc3Q6Z3Vlc3Q=";
    const HERE: Option<&str> = Some("127.0.0.1:1");
    const ELSEWHERE: Option<&str> = Some("10.0.0.1:1");

    #[tokio::test]
    async fn who_says_nothing_is_guest_here_and_nobody_elsewhere() {
        use tonic::Code::{Ok, PermissionDenied, Unauthenticated};
        let (broker, _, mut guard) = guarded().await;
        for (from, login, expected) in [
            (HERE, None, Ok),
            (Some("[::1]:1"), None, Ok),
            (Some("[::ffff:127.0.0.1]:1"), None, Ok),
            (HERE, Some(GUEST), Ok),
            (ELSEWHERE, None, Unauthenticated),
            (Some("[::ffff:10.0.0.1]:1"), None, Unauthenticated),
            (None, None, Unauthenticated),
            (ELSEWHERE, Some(GUEST), PermissionDenied),
            (HERE, Some("Basic Z3Vlc3Q6d3Jvbmc="), Unauthenticated),
            (HERE, Some("Bearer nexo_A_b"), Unauthenticated),
            (HERE, Some("Digest x"), Unauthenticated),
        ] {
            assert_eq!(code(&mut guard, from, login, PUSH).await, expected, "{from:?} {login:?}");
        }
        assert_eq!(broker.traffic().of(Protocol::Grpc).stats().refused_logins, 7);
        let health = "/grpc.health.v1.Health/Check";
        assert_eq!(code(&mut guard, ELSEWHERE, None, health).await, Ok, "anybody may ask whether it is well");
        broker.shutdown().await;
    }

    #[tokio::test]
    async fn who_is_refused_is_told_by_the_name_that_he_gave() {
        let (broker, _, mut guard) = guarded().await;
        broker.ensure_event_exchange().await.unwrap();
        let queue = QueueName::new("events").unwrap();
        broker.create_queue(&queue, nexo_broker::QueueConfig::default()).await.unwrap();
        let exchange = ExchangeName::at(&VhostName::DEFAULT, nexo_broker::EVENT_EXCHANGE).unwrap();
        let binding = Binding::new(exchange, Destination::Queue(queue), b"#".as_slice().into(), Vec::new());
        broker.bind(binding).await.unwrap();
        code(&mut guard, HERE, Some("Basic Z3Vlc3Q6d3Jvbmc="), PUSH).await;
        let told = broker.events().next().await;
        assert_eq!(told[0].name, "user.authentication.failure");
        assert_eq!(told[0].fields[0], ("name".to_owned(), "guest".into()));
        broker.shutdown().await;
    }

    #[tokio::test]
    async fn nobody_is_guest_any_more_when_the_password_is_changed() {
        let (broker, logins, mut guard) = guarded().await;
        let guest = nexo_access::UserName::new("guest").unwrap();
        logins.set_password(&guest, nexo_access::NewPassword::Plain(b"other".to_vec())).await.unwrap();
        assert_eq!(code(&mut guard, HERE, None, PUSH).await, tonic::Code::Unauthenticated);
        let user = nexo_access::UserName::new("ann").unwrap();
        logins.add_user(&user, nexo_access::NewPassword::None, [].into()).await.unwrap();
        let token = logins.add_token(&user, "").await.unwrap().token;
        let bearer = format!("Bearer {token}");
        assert_eq!(code(&mut guard, ELSEWHERE, Some(&bearer), PUSH).await, tonic::Code::Ok);
        logins.delete_user(&user).await.unwrap();
        assert_eq!(code(&mut guard, ELSEWHERE, Some(&bearer), PUSH).await, tonic::Code::Unauthenticated);
        broker.shutdown().await;
    }

    #[test]
    fn pages_in_a_browser_are_told_from_clients() {
        let from_page = |pairs: &[(&'static str, &'static str)]| {
            let pairs =
                pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            is_from_page(&pairs.collect())
        };
        let grpc = ("content-type", "application/grpc+proto");
        assert!(!from_page(&[grpc]) && !from_page(&[grpc, ("sec-fetch-site", "none")]));
        assert!(from_page(&[grpc, ("origin", "https://evil.example")]));
        assert!(from_page(&[grpc, ("sec-fetch-site", "same-site")]));
        assert!(
            from_page(&[("content-type", "text/plain")]) && from_page(&[]),
            "what needs no leave to be sent"
        );
    }

    #[test]
    fn every_method_that_takes_a_stream_is_known() {
        let files = FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).unwrap();
        let methods = files.file.iter().flat_map(|file| &file.service).flat_map(|service| &service.method);
        for method in methods {
            let path = format!("/nexo.v1.Service/{}", method.name());
            assert_eq!(requests(&path) != Requests::One, method.client_streaming(), "{}", method.name());
        }
    }
}
