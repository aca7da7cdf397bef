//! What every call passes before its service sees it: who may call at all, and how its requests come in.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use nexo_broker::{Broker, Protocol};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use crate::incoming::{Held, Incoming, Requests};
use crate::listener::Peer;

/// Puts a [`Guard`] before a service.
#[derive(Clone, Debug)]
pub(crate) struct GuardLayer {
    pub(crate) broker: Broker,
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { inner, broker: self.broker.clone() }
    }
}

/// Lets calls pass.
#[derive(Clone, Debug)]
pub(crate) struct Guard<S> {
    inner: S,
    broker: Broker,
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
        let peer = request.extensions().get::<Peer>().copied();
        // There are no users yet, so nobody can be told from anybody else.
        if !peer.is_some_and(|peer| peer.0.ip().to_canonical().is_loopback()) {
            self.broker.traffic().of(Protocol::Grpc).login_refused();
            let address = peer.map(|peer| peer.0.to_string()).unwrap_or_default();
            tracing::warn!(protocol = "grpc", peer = address, "call refused: it comes from another machine");
            let text = "the broker has no users, and without them the native API serves its own machine only";
            let refused = Status::permission_denied(text).into_http();
            return Box::pin(async { Ok(refused) });
        }
        let held = Held::default();
        let requests = requests(request.uri().path());
        // Only pushes keep what they were sent. Another call may last, and must not keep memory for it.
        let mut kept = None;
        if requests == Requests::AnyTime {
            request.extensions_mut().insert(held.clone());
        } else if request.uri().path().ends_with("/Push") {
            kept = Some(held.clone());
        }
        let intake = self.broker.intake().clone();
        let request = request.map(|body| Body::new(Incoming::new(body, intake, held, requests)));
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await;
            drop(kept);
            response
        })
    }
}

/// How many requests a client may send with this call.
fn requests(path: &str) -> Requests {
    match path.rsplit('/').next() {
        Some("PushStream") => Requests::AnyTime,
        Some("Subscribe" | "ServerReflectionInfo") => Requests::Many,
        _ => Requests::One,
    }
}

#[cfg(test)]
mod tests {
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

    #[tokio::test]
    async fn who_does_not_come_from_this_machine_is_refused() {
        let disk = std::sync::Arc::new(nexo_log::disk::FaultyDisk::new());
        let broker = Broker::open_on(disk, nexo_broker::BrokerOptions::new("faulty")).unwrap();
        let mut guard = GuardLayer { broker: broker.clone() }.layer(Anything);
        for (address, refused) in [
            (Some("127.0.0.1:1"), false),
            (Some("[::1]:1"), false),
            (Some("[::ffff:127.0.0.1]:1"), false),
            (Some("10.0.0.1:1"), true),
            (Some("[2001:db8::1]:1"), true),
            (Some("[::ffff:10.0.0.1]:1"), true),
            (None, true),
        ] {
            let mut request = Request::new(Body::empty());
            if let Some(address) = address {
                request.extensions_mut().insert(Peer(address.parse().unwrap()));
            }
            let response = guard.call(request).await.unwrap();
            let status = Status::from_header_map(response.headers());
            assert_eq!(status.as_ref().map(Status::code), refused.then_some(tonic::Code::PermissionDenied));
            if let Some(status) = status {
                assert!(status.message().contains("serves its own machine only"), "{status:?}");
            }
        }
        assert_eq!(broker.traffic().of(Protocol::Grpc).stats().refused_logins, 4);
        broker.shutdown().await;
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
