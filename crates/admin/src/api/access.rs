//! Who may ask what, as RabbitMQ's management API has it. Nobody else decides: every address says what it [`Needs`], and what
//! is asked of queues and exchanges is asked as of an AMQP client ([`Caller::by`]).
//!
//! - A user without one of the four tags is let in to job queues only, where permissions decide.
//! - `management`: sees the virtual hosts that he may enter, and his own connections.
//! - `policymaker`: the same, and policies and parameters there.
//! - `monitoring`: sees all virtual hosts, all connections, and the node.
//! - `administrator`: all of that, and manages users, permissions and virtual hosts.
//!
//! No tag gives a right to a queue or an exchange: that is what permissions are for.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use nexo_access::{Identity, Permission, Resource, Tag};
use nexo_amqp::management::By;
use nexo_types::{QueueName, VhostName};

use super::Api;
use super::error::ApiError;
use super::names::Vhost;

/// What an address needs of whoever asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing: it is where one logs in.
    Nobody,
    /// That he has logged in: his permissions say what he may do.
    User,
    /// Any of the tags. What is shown is what he may see.
    Management,
    /// The virtual host in the address is one that he may see.
    VisibleVhost,
    /// It is one that he may enter.
    Vhost,
    /// He makes policies; where the address names a virtual host, one that he may enter.
    Policymaker,
    /// He may see the node and everything on it.
    Monitoring,
    /// He manages the broker.
    Administrator,
}

/// Whoever asks, known by name.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    identity: Identity,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        // The guard has let nobody pass without one.
        parts.extensions.get().cloned().ok_or_else(|| ApiError::not_logged_in("Login failed"))
    }
}

/// What was asked for and allowed. A body may take its time to come, and is asked about once more when it is there.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    caller: Caller,
    needs: Needs,
    vhost: Option<String>,
}

impl Asked {
    /// Whether it is still allowed.
    ///
    /// # Errors
    /// If not.
    pub(super) fn check(&self, api: &Api) -> Result<(), ApiError> {
        self.caller.check(api, self.needs, self.vhost.as_deref())
    }
}

/// Lets a request through if whoever asks may ask for that.
pub(super) async fn check(
    State((api, needs)): State<(Api, Needs)>,
    caller: Result<Caller, ApiError>,
    params: Result<RawPathParams, axum::extract::rejection::RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    let vhost = params.as_ref().ok().and_then(|params| {
        let mut named = params.iter().filter(|(name, _)| *name == "vhost");
        named.next().map(|(_, value)| value.to_owned())
    });
    let checked = match (needs, caller) {
        (Needs::Nobody, _) => Ok(()),
        (needs, caller) => caller.and_then(|caller| {
            let asked = Asked { caller, needs, vhost };
            asked.check(&api).map(|()| drop(request.extensions_mut().insert(asked)))
        }),
    };
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

impl Caller {
    /// Somebody who has logged in and has one of the tags.
    ///
    /// # Errors
    /// If he has none.
    pub(super) fn admitted(identity: Identity) -> Result<Self, ApiError> {
        let tags = [Tag::MANAGEMENT, Tag::POLICYMAKER, Tag::MONITORING, Tag::ADMINISTRATOR];
        match tags.iter().any(|tag| identity.is(tag)) {
            true => Ok(Self { identity }),
            false => Err(ApiError::not_authorised("Not management user")),
        }
    }

    /// Somebody who has logged in.
    pub(super) const fn new(identity: Identity) -> Self {
        Self { identity }
    }

    /// Whether he is let in to anything but what [any user](Needs::User) may ask for.
    ///
    /// # Errors
    /// If he has none of the tags.
    pub(crate) fn check_tags(&self) -> Result<(), ApiError> {
        Self::admitted(self.identity.clone()).map(drop)
    }

    fn check(&self, api: &Api, needs: Needs, vhost: Option<&str>) -> Result<(), ApiError> {
        if !matches!(needs, Needs::Nobody | Needs::User) {
            self.check_tags()?;
        }
        // Of a virtual host that is not there the handler says so.
        let vhost = vhost.filter(|name| Vhost::named(api, name).is_ok());
        let (is_fine, reason) = match needs {
            Needs::Nobody | Needs::User | Needs::Management => (true, ""),
            Needs::VisibleVhost => {
                let sees = vhost.is_none_or(|vhost| self.visible().has(vhost));
                (sees, "User not authorised to access virtual host")
            }
            Needs::Vhost => {
                let enters = self.is_administrator() || vhost.is_none_or(|vhost| self.may_enter(vhost));
                (enters, "User not authorised to access virtual host")
            }
            Needs::Policymaker => {
                let makes =
                    self.identity.is(Tag::POLICYMAKER) && vhost.is_none_or(|name| self.may_enter(name));
                (self.is_administrator() || makes, "User not authorised to access object")
            }
            Needs::Monitoring => (self.is_monitor(), "Not monitor user"),
            Needs::Administrator => (self.is_administrator(), "Not administrator user"),
        };
        if is_fine { Ok(()) } else { Err(ApiError::not_authorised(reason)) }
    }

    pub(super) fn name(&self) -> &str {
        self.identity.name().as_str()
    }

    pub(super) const fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(super) fn tags(&self) -> Vec<String> {
        self.identity.tags()
    }

    /// Whether he sees everything there is.
    pub(super) fn is_monitor(&self) -> bool {
        self.is_administrator() || self.identity.is(Tag::MONITORING)
    }

    fn is_administrator(&self) -> bool {
        self.identity.is(Tag::ADMINISTRATOR)
    }

    fn may_enter(&self, vhost: &str) -> bool {
        self.identity.may_enter(vhost).is_ok()
    }

    /// In whose name something is declared, bound, published or got: what he may do there is asked as of an AMQP client.
    pub(super) const fn by<'a>(&'a self, api: &'a Api) -> By<'a> {
        By { broker: &api.broker, identity: &self.identity }
    }

    /// Whether he may do this with a queue, where AMQP has no words for it.
    pub(super) fn may_queue(&self, permission: Permission, name: &QueueName) -> Result<(), ApiError> {
        let allowed = self.identity.may(name.vhost_str(), permission, Resource::queue(name.as_str()));
        allowed.map_err(|_| ApiError::access_refused())
    }

    /// Whether he may see what belongs to a user: connections, channels and consumers.
    pub(super) fn sees_user(&self, user: &str) -> bool {
        self.is_monitor() || self.name() == user
    }

    /// Whether he makes policies there.
    pub(super) fn makes_policies_in(&self, vhost: &str) -> bool {
        self.is_administrator() || (self.identity.is(Tag::POLICYMAKER) && self.may_enter(vhost))
    }

    /// Whether he manages the broker.
    pub(super) fn check_administrator(&self) -> Result<(), ApiError> {
        let refused = || ApiError::not_authorised("User not authorised to access object");
        self.is_administrator().then_some(()).ok_or_else(refused)
    }

    /// The same as an answer.
    pub(super) fn check_user(&self, user: &str) -> Result<(), ApiError> {
        let refused = || ApiError::not_authorised("User not authorised to access object");
        self.sees_user(user).then_some(()).ok_or_else(refused)
    }

    /// Whether he may end what belongs to a user. Whoever only watches may end his own.
    pub(super) fn may_end(&self, user: &str) -> Result<(), ApiError> {
        let refused = || ApiError::not_authorised("User not authorised to access object");
        (self.is_administrator() || self.name() == user).then_some(()).ok_or_else(refused)
    }

    /// The virtual hosts that he may see.
    pub(super) fn visible(&self) -> Visible {
        if self.is_monitor() {
            return Visible::All;
        }
        Visible::Some(self.identity.vhosts())
    }

    /// The same as a list of those that are there.
    pub(super) fn vhosts(&self, api: &Api) -> Vec<Vhost> {
        let visible = self.visible();
        Vhost::all(api).into_iter().filter(|vhost| visible.has(vhost.as_str())).collect()
    }
}

/// The virtual hosts that somebody may see, as they were when he asked.
#[derive(Clone, Debug)]
pub(super) enum Visible {
    All,
    Some(BTreeSet<Arc<str>>),
}

impl Visible {
    /// One virtual host.
    pub(super) fn only(vhost: &str) -> Self {
        Self::Some([Arc::from(vhost)].into())
    }

    pub(super) fn has(&self, vhost: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.contains(vhost),
        }
    }

    pub(super) fn has_name(&self, vhost: &VhostName) -> bool {
        self.has(vhost.as_str())
    }
}
