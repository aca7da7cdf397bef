//! Doing what a file of definitions asks for: virtual hosts first, then users and what they may do, then queues and exchanges,
//! then bindings, then schedules. What is there already stays as it is, and a binding that lacks an end is passed over, as in RabbitMQ.

use std::fmt;

use futures_util::stream::{self, StreamExt};
use nexo_access::{Identity, Logins, NewPassword, UserName};
use nexo_amqp::management::{By, declare_exchange, declare_queue};
use nexo_broker::access::AccessRecord;
use nexo_broker::{Broker, OnBehalf};
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::plan::{ExchangeDefinition, Plan, QueueDefinition, told};
use super::policies::LimitsAsked;
use crate::api::bindings::bind_from;
use crate::api::error::ApiError;
use crate::api::names::Vhost;
use crate::api::users::{AskedPassword, UserAsked, changes_of};
use crate::api::vhosts::{put_from, set_limits};

/// Things that are made at the same time: they share what waits for the disk.
const TOGETHER: usize = 64;
/// Passwords that are hashed at the same time. Files have hashes as a rule.
const HASHED_TOGETHER: usize = 2;
/// Changes of users that are written down as one.
const CHANGES_MAX: usize = 1_000;
/// Who did what a file asked for when the broker started.
const AT_START: &str = "start";

/// What was done.
#[derive(Clone, Debug, Default)]
pub(super) struct Done {
    counts: Vec<(&'static str, usize)>,
    passed_over: usize,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> =
            self.counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        if self.passed_over > 0 {
            parts.push(format!("{} bindings that lack an end passed over", self.passed_over));
        }
        if parts.is_empty() {
            return f.write_str("nothing");
        }
        f.write_str(&parts.join(", "))
    }
}

impl Done {
    /// Notes what came of things of one kind. The first that failed is told, with what was done until then.
    fn note(&mut self, what: &'static str, outcomes: Vec<Result<(), ApiError>>) -> Result<(), ApiError> {
        let made = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let failed = outcomes.len() - made;
        self.add(what, made);
        match outcomes.into_iter().find_map(Result::err) {
            Some(first) => Err(self.after(first, failed - 1)),
            None => Ok(()),
        }
    }

    fn add(&mut self, what: &'static str, count: usize) {
        if count > 0 {
            self.counts.push((what, count));
        }
    }

    /// A refusal, with what was done before it.
    fn after(&self, first: ApiError, others: usize) -> ApiError {
        let reason = match first.reason() {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let others = if others > 0 { format!(" (and {others} more of these)") } else { String::new() };
        first.with_reason(format!("{reason}{others}; done before that: {self}"))
    }
}

/// Somebody who takes a file in.
#[derive(Clone)]
pub(super) struct Import {
    broker: Broker,
    logins: Logins,
    /// Whoever may import may have anything made: what he may do himself does not count.
    identity: Identity,
}

impl Import {
    pub(super) fn new(broker: &Broker, logins: &Logins, by: &UserName) -> Self {
        let identity = Identity::configured(broker.clone(), by.clone());
        Self { broker: broker.clone(), logins: logins.clone(), identity }
    }

    /// Nobody in particular: the broker's own settings name the file.
    pub(super) fn at_start(broker: &Broker, logins: &Logins) -> Self {
        let name = UserName::new(AT_START).expect("it is a name");
        Self::new(broker, logins, &name)
    }

    pub(super) const fn broker(&self) -> &Broker {
        &self.broker
    }

    pub(super) fn by(&self) -> &str {
        self.identity.name().as_str()
    }

    const fn rights(&self) -> By<'_> {
        By { broker: &self.broker, identity: &self.identity }
    }

    /// Does all of it, or says how far it came.
    pub(super) async fn run(&self, plan: Plan) -> Result<Done, ApiError> {
        let mut done = Done::default();
        // Hashed and checked before anything is made.
        let users = self.changes(plan.users).await?;
        let (names, permissions, topics) = (users.count, plan.permissions.len(), plan.topics.len());
        let changes: Vec<AccessRecord> =
            users.changes.into_iter().chain(plan.permissions).chain(plan.topics).collect();
        let changes = self.checked(changes).await?;
        let made = together(plan.vhosts, |(name, asked)| {
            let own = self.clone();
            async move {
                let put = put_from(&own.broker, &name, &asked).await;
                put.map(drop).map_err(|error| told(&error, "vhost", name.as_str()))
            }
        });
        done.note("vhosts", made.await)?;
        let limited = together(plan.limits, |limits| {
            let own = self.clone();
            async move { own.limit(limits).await }
        });
        done.note("limits of vhosts", limited.await)?;
        self.change_users(changes).await.map_err(|error| done.after(error, 0))?;
        done.add("users", names);
        done.add("permissions", permissions);
        done.add("topic permissions", topics);
        if !plan.policies.is_empty() {
            // All of them or none, and before there are queues that they would have to change.
            let changed = self.broker.change_policies(&plan.policies).await;
            changed.map_err(|error| done.after(error.into(), 0))?;
            done.add("policies and parameters", plan.policies.len());
        }
        let made = together(plan.queues, |queue| {
            let own = self.clone();
            async move { own.queue(queue).await }
        });
        done.note("queues", made.await)?;
        let made = together(plan.exchanges, |exchange| {
            let own = self.clone();
            async move { own.exchange(exchange).await }
        });
        done.note("exchanges", made.await)?;
        let bound = together(plan.bindings, |(vhost, item)| {
            let own = self.clone();
            async move { own.bind(Vhost::of(vhost), item).await }
        });
        let bound = bound.await;
        done.passed_over = bound.iter().filter(|outcome| matches!(outcome, Ok(false))).count();
        let outcomes = bound.into_iter().filter(|outcome| !matches!(outcome, Ok(false)));
        done.note("bindings", outcomes.map(|outcome| outcome.map(drop)).collect())?;
        if !plan.schedules.is_empty() {
            // All of them or none, when what they send to is there.
            let changed = self.broker.change_schedules(&plan.schedules).await;
            changed.map_err(|error| done.after(error.into(), 0))?;
            done.add("schedules", plan.schedules.len());
        }
        Ok(done)
    }

    async fn queue(&self, queue: QueueDefinition) -> Result<(), ApiError> {
        if self.broker.queue(&queue.name).is_some() {
            return Ok(());
        }
        let declared = declare_queue(self.rights(), &queue.name, queue.asked()).await;
        declared.map(drop).map_err(|error| told(&error.into(), "queue", queue.name.as_str()))
    }

    async fn exchange(&self, exchange: ExchangeDefinition) -> Result<(), ApiError> {
        if self.broker.exchange(&exchange.name).is_some() {
            return Ok(());
        }
        let declared = declare_exchange(self.rights(), &exchange.name, exchange.asked()).await;
        declared.map(drop).map_err(|error| told(&error.into(), "exchange", exchange.name.as_str()))
    }

    /// Makes a binding. `false` if it lacks an end.
    async fn bind(&self, vhost: Vhost, item: Map<String, Value>) -> Result<bool, ApiError> {
        let named = |name| item.get(name).and_then(Value::as_str).unwrap_or_default();
        match bind_from(self.rights(), &vhost, &item).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => {
                let (source, destination) = (named("source"), named("destination"));
                tracing::warn!(?source, ?destination, "a binding that lacks an end is not imported");
                Ok(false)
            }
            Err(error) => Err(told(&error, "binding to", named("destination"))),
        }
    }

    async fn limit(&self, (vhost, limits): LimitsAsked) -> Result<(), ApiError> {
        let changed = set_limits(&self.broker, &vhost, &limits).await;
        changed.map(drop).map_err(|error| told(&error, "limits of vhost", vhost.as_str()))
    }

    /// What makes the users of a file what they are there.
    async fn changes(&self, users: Vec<UserAsked>) -> Result<UserChanges, ApiError> {
        let count = users.len();
        let hashed = stream::iter(users).map(|asked| {
            let logins = self.logins.clone();
            async move {
                let UserAsked { user, password, tags, limits } = asked;
                let password = match password {
                    AskedPassword::Hashed(hash) => hash,
                    AskedPassword::Plain(plain) => {
                        let hashed = logins.hashed(NewPassword::Plain(plain)).await;
                        hashed.map_err(|error| told(&error.into(), "user", user.as_str()))?
                    }
                };
                Ok::<_, ApiError>((user, password, tags, limits))
            }
        });
        let hashed: Vec<_> = hashed.buffered(HASHED_TOGETHER).collect().await;
        let mut changes = Vec::with_capacity(count);
        for one in hashed {
            let (user, password, tags, limits) = one?;
            let is_there = self.broker.access().user(user.as_str()).is_some();
            changes.extend(changes_of(&user, is_there, password, tags, limits));
        }
        Ok(UserChanges { count, changes })
    }

    /// Whether all changes can be made, before any is. Patterns are compiled for it: not on a thread of the runtime.
    async fn checked(&self, changes: Vec<AccessRecord>) -> Result<Vec<AccessRecord>, ApiError> {
        let broker = self.broker.clone();
        let checked = spawn_blocking(move || {
            let decided = broker.access().decide_changes(broker.now(), &changes).map(drop);
            decided.map(|()| changes).map_err(|error| ApiError::bad_request(error.to_string()))
        });
        checked.await.map_err(|_| ApiError::unavailable("the broker is stopping"))?
    }

    async fn change_users(&self, changes: Vec<AccessRecord>) -> Result<(), ApiError> {
        let (logins, runtime, on_behalf) = (self.logins.clone(), Handle::current(), OnBehalf::now());
        let changed = spawn_blocking(move || {
            let change = |part| runtime.block_on(on_behalf.clone().run(logins.change(part)));
            changes.chunks(CHANGES_MAX).try_for_each(change)
        });
        Ok(changed.await.map_err(|_| ApiError::unavailable("the broker is stopping"))??)
    }
}

/// Changes of users, and how many users they are about.
struct UserChanges {
    count: usize,
    changes: Vec<AccessRecord>,
}

/// Does something with all of a kind, several at a time, in their order.
async fn together<T, R, F>(all: Vec<T>, make: impl Fn(T) -> F) -> Vec<Result<R, ApiError>>
where
    F: Future<Output = Result<R, ApiError>>,
{
    stream::iter(all).map(make).buffered(TOGETHER).collect().await
}
