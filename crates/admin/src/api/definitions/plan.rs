//! What a file of definitions asks for. It is read and checked as a whole: a file that cannot be understood changes nothing.

use std::collections::BTreeSet;

use nexo_amqp::management::{ExchangeAsked, QueueAsked, check_exchange, check_queue};
use nexo_broker::access::AccessRecord;
use nexo_broker::policy::PolicyRecord;
use nexo_broker::schedule::ScheduleChange;
use nexo_broker::{Broker, Durability};
use nexo_types::{ExchangeName, QueueName, UserName, VhostName};
use serde_json::{Map, Value, json};

use super::policies::{self, LimitsAsked};
use crate::api::body::Fields;
use crate::api::error::ApiError;
use crate::api::permissions::{texts, topic_texts};
use crate::api::schedules::change_of;
use crate::api::users::UserAsked;
use crate::api::vhosts::VhostAsked;

/// Where schedules are in a file, of which RabbitMQ knows nothing.
pub(super) const NEXO_SCHEDULES: &str = "nexo_schedules";

/// A queue of a file.
#[derive(Debug)]
pub(super) struct QueueDefinition {
    pub(super) name: QueueName,
    durability: Durability,
    auto_delete: bool,
    arguments: Map<String, Value>,
}

impl QueueDefinition {
    pub(super) const fn asked(&self) -> QueueAsked<'_> {
        QueueAsked { durability: self.durability, auto_delete: self.auto_delete, arguments: &self.arguments }
    }
}

/// An exchange of a file.
#[derive(Debug)]
pub(super) struct ExchangeDefinition {
    pub(super) name: ExchangeName,
    kind: String,
    durability: Durability,
    auto_delete: bool,
    internal: bool,
    arguments: Map<String, Value>,
}

impl ExchangeDefinition {
    pub(super) fn asked(&self) -> ExchangeAsked<'_> {
        ExchangeAsked {
            kind: &self.kind,
            durability: self.durability,
            auto_delete: self.auto_delete,
            internal: self.internal,
            arguments: &self.arguments,
        }
    }
}

/// All that a file asks for.
pub(super) struct Plan {
    pub(super) vhosts: Vec<(VhostName, VhostAsked)>,
    pub(super) limits: Vec<LimitsAsked>,
    pub(super) users: Vec<UserAsked>,
    pub(super) permissions: Vec<AccessRecord>,
    pub(super) topics: Vec<AccessRecord>,
    pub(super) queues: Vec<QueueDefinition>,
    pub(super) exchanges: Vec<ExchangeDefinition>,
    pub(super) bindings: Vec<(VhostName, Map<String, Value>)>,
    pub(super) policies: Vec<PolicyRecord>,
    pub(super) schedules: Vec<ScheduleChange>,
}

impl Plan {
    /// Reads a file; with `only`, one whose queues, exchanges and bindings go into that virtual host. It takes time in
    /// proportion to the file: not on a thread of the runtime.
    ///
    /// # Errors
    /// Names the first thing that cannot be.
    pub(super) fn read(
        file: &Map<String, Value>,
        only: Option<&VhostName>,
        broker: &Broker,
        by: &str,
    ) -> Result<Self, ApiError> {
        let mut plan = Self {
            vhosts: Vec::new(),
            limits: Vec::new(),
            users: Vec::new(),
            permissions: Vec::new(),
            topics: Vec::new(),
            queues: Vec::new(),
            exchanges: Vec::new(),
            bindings: Vec::new(),
            policies: Vec::new(),
            schedules: Vec::new(),
        };
        if only.is_none() {
            plan.read_vhosts(file)?;
        }
        let made: BTreeSet<VhostName> = plan.vhosts.iter().map(|(name, _)| name.clone()).collect();
        let vhost_of = |item: &Map<String, Value>| match only {
            Some(only) => Ok(only.clone()),
            None => {
                let name = item.text_or_nothing("vhost")?.unwrap_or("undefined");
                let is_there = |name: &VhostName| made.contains(name) || broker.vhost(name).is_some();
                let found = VhostName::new(name).ok().filter(is_there);
                found.ok_or_else(|| ApiError::bad_request(json!(["no_such_vhost", name])))
            }
        };
        (plan.policies, plan.limits) = policies::read(file, vhost_of)?;
        if only.is_none() {
            plan.policies.extend(policies::read_globals(file)?);
            plan.read_users(file, vhost_of, broker)?;
        }
        for item in items(file, NEXO_SCHEDULES)? {
            let name = item.text("name")?;
            let change = change_of(&vhost_of(item)?, name, item, by);
            plan.schedules.push(change.map_err(|error| told(&error, "schedule", name))?);
        }
        for item in items(file, "queues")? {
            let name = item.text("name")?;
            let queue = read_queue(item, &vhost_of(item)?, name);
            plan.queues.push(queue.map_err(|error| told(&error, "queue", name))?);
        }
        for item in items(file, "exchanges")? {
            let name = item.text("name")?;
            let exchange = read_exchange(item, &vhost_of(item)?, name);
            plan.exchanges.push(exchange.map_err(|error| told(&error, "exchange", name))?);
        }
        for item in items(file, "bindings")? {
            let destination = item.text("destination")?;
            check_binding(item).map_err(|error| told(&error, "binding to", destination))?;
            plan.bindings.push((vhost_of(item)?, item.clone()));
        }
        Ok(plan)
    }

    fn read_vhosts(&mut self, file: &Map<String, Value>) -> Result<(), ApiError> {
        for item in items(file, "vhosts")? {
            let name = item.text("name")?;
            let read = || Ok((VhostName::new(name)?, VhostAsked::of(item)?));
            self.vhosts.push(read().map_err(|error: ApiError| told(&error, "vhost", name))?);
        }
        Ok(())
    }

    fn read_users(
        &mut self,
        file: &Map<String, Value>,
        vhost_of: impl Fn(&Map<String, Value>) -> Result<VhostName, ApiError>,
        broker: &Broker,
    ) -> Result<(), ApiError> {
        for item in items(file, "users")? {
            let name = item.text("name")?;
            let user = UserAsked::of(name, item).map_err(|error| told(&error, "user", name))?;
            self.users.push(user);
        }
        let made: BTreeSet<UserName> = self.users.iter().map(|asked| asked.user.clone()).collect();
        let user_of = |item: &Map<String, Value>| {
            let name = item.text("user")?;
            let is_there =
                |name: &UserName| made.contains(name) || broker.access().user(name.as_str()).is_some();
            let found = UserName::new(name).ok().filter(is_there);
            found.ok_or_else(|| ApiError::bad_request(json!(["no_such_user", name])))
        };
        for item in items(file, "permissions")? {
            let (user, vhost) = (user_of(item)?, vhost_of(item)?.as_str().into());
            let permissions = texts(item).map_err(|error| told(&error, "permissions of", user.as_str()))?;
            self.permissions.push(AccessRecord::SetPermissions { user, vhost, permissions });
        }
        for item in items(file, "topic_permissions")? {
            let (user, vhost) = (user_of(item)?, vhost_of(item)?.as_str().into());
            let read = topic_texts(item);
            let (exchange, write, read) =
                read.map_err(|error| told(&error, "topic permissions of", user.as_str()))?;
            self.topics.push(AccessRecord::SetTopics { user, vhost, exchange, write, read });
        }
        Ok(())
    }
}

fn read_queue(item: &Map<String, Value>, vhost: &VhostName, name: &str) -> Result<QueueDefinition, ApiError> {
    let mut arguments = item.table("arguments")?;
    // A quorum queue says so in its arguments as well, in files of RabbitMQ; ours may be told by its type alone.
    if item.get("type").and_then(Value::as_str) == Some("quorum") {
        arguments.entry("x-queue-type").or_insert_with(|| "quorum".into());
    }
    let queue = QueueDefinition {
        name: QueueName::at(vhost, name)?,
        durability: item.durability()?,
        auto_delete: item.truth("auto_delete", false)?,
        arguments,
    };
    check_queue(&queue.name, queue.asked())?;
    Ok(queue)
}

fn read_exchange(
    item: &Map<String, Value>,
    vhost: &VhostName,
    name: &str,
) -> Result<ExchangeDefinition, ApiError> {
    let exchange = ExchangeDefinition {
        name: ExchangeName::at(vhost, name)?,
        kind: item.text_or_nothing("type")?.unwrap_or("direct").to_owned(),
        durability: item.durability()?,
        auto_delete: item.truth("auto_delete", false)?,
        internal: item.truth("internal", false)?,
        arguments: item.table("arguments")?,
    };
    check_exchange(&exchange.name, exchange.asked())?;
    Ok(exchange)
}

fn check_binding(item: &Map<String, Value>) -> Result<(), ApiError> {
    item.text("source")?;
    item.text("routing_key")?;
    item.table("arguments")?;
    match item.text("destination_type")? {
        "queue" | "exchange" => Ok(()),
        other => Err(ApiError::bad_request(format!("{other:?} is neither queue nor exchange"))),
    }
}

/// The definitions of one kind.
pub(super) fn items<'f>(
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

/// The same refusal, with what it is about.
pub(super) fn told(error: &ApiError, what: &str, name: &str) -> ApiError {
    let reason = match error.reason() {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    ApiError::bad_request(format!("{what} {name:?}: {reason}"))
}
