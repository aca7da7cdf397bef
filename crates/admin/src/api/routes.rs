//! The addresses of the API, each with what it needs of whoever asks. An address that is not noted here cannot be asked for, and
//! the list is what the description of the API is held against.

use axum::Router;
use axum::handler::Handler;
use axum::middleware;
use axum::routing::{MethodFilter, on};

use super::Api;
use super::access::{self, Needs};
use super::question::{AllTaken, Word};

/// One method of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) method: &'static str,
    /// Under `/api`.
    pub(super) path: &'static str,
    pub(super) needs: Needs,
    /// What its handler reads of the question.
    pub(super) words: Vec<Word>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Routes {
    api: Api,
    router: Router<Api>,
    known: Vec<Route>,
}

macro_rules! methods {
    ($($name:ident, $method:literal, $filter:expr;)*) => {$(
        #[doc = concat!("Answers ", $method, " of an address.")]
        pub(super) fn $name<H, T>(self, path: &'static str, needs: Needs, handler: H) -> Self
        where
            H: Handler<T, Api>,
            T: AllTaken + 'static,
        {
            let words = T::words();
            self.add($filter, Route { method: $method, path, needs, words }, handler)
        }
    )*};
}

impl Routes {
    pub(super) fn new(api: &Api) -> Self {
        Self { api: api.clone(), router: Router::new(), known: Vec::new() }
    }

    methods! {
        get, "GET", MethodFilter::GET;
        put, "PUT", MethodFilter::PUT;
        post, "POST", MethodFilter::POST;
        delete, "DELETE", MethodFilter::DELETE;
    }

    /// With the addresses that another file has.
    pub(super) fn with(self, more: impl FnOnce(Self) -> Self) -> Self {
        more(self)
    }

    fn add<H, T>(mut self, filter: MethodFilter, route: Route, handler: H) -> Self
    where
        H: Handler<T, Api>,
        T: 'static,
    {
        let check = middleware::from_fn_with_state((self.api.clone(), route.needs), access::check);
        self.router = self.router.route(route.path, on(filter, handler).layer(check));
        self.known.push(route);
        self
    }

    /// What answers, and the list of what it answers.
    pub(super) fn finish(self) -> (Router<Api>, Vec<Route>) {
        (self.router, self.known)
    }
}
