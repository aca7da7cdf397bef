//! The events there are, with their fields: the words are RabbitMQ's. What happens to the machines is read off their records;
//! the rest is told by whoever does it.

use std::net::SocketAddr;

use nexo_core::access::AccessRecord;
use nexo_core::machine::Step;
use nexo_core::message::Durability;
use nexo_core::policy::{PolicyKind, PolicyRecord};
use nexo_core::schedule::ScheduleRecord;
use nexo_core::topology::{Binding, Destination, HeaderValue, Topology, TopologyRecord, VhostSpec};
use nexo_types::{QueueName, VhostName, limits};

use crate::events::{Event, EventValue, Events, OnBehalf};
use crate::open_connections::{ConnectionFacts, OpenConsumer};
use crate::queue_cell::QueueCell;

/// A login, whatever came of it.
#[derive(Clone, Debug)]
pub struct LoginFacts<'a> {
    /// Who somebody said that he is.
    pub user: &'a str,
    /// What he speaks: `amqp`, `http`.
    pub protocol: &'a str,
    /// How he logs in: `PLAIN`, `EXTERNAL`.
    pub mechanism: &'a str,
    /// Where he comes from.
    pub peer: SocketAddr,
    /// Whether over TLS.
    pub is_tls: bool,
}

impl Events {
    /// Somebody was let in.
    pub fn logged_in(&self, login: &LoginFacts<'_>) {
        self.emit(|| login_event("user.authentication.success", login));
    }

    /// Somebody was not let in. The protocol has logged it.
    pub fn login_refused(&self, login: &LoginFacts<'_>, reason: &str) {
        self.emit(|| login_event("user.authentication.failure", login).with("error", reason));
    }

    /// Changes of policies and parameters.
    pub(crate) fn policies_changed(&self, changes: &[PolicyRecord]) {
        if self.is_wanted() {
            self.emit_all(changes.iter().filter_map(of_policies).collect());
        }
    }

    /// Changes of schedules, which the log has as well.
    pub(crate) fn schedules_changed(&self, records: &[ScheduleRecord]) {
        for event in records.iter().filter_map(of_schedules) {
            let name = event.text("name");
            tracing::info!(event = event.name, vhost = event.text("vhost"), name, by = %OnBehalf::now(), "schedules changed");
            if self.is_wanted() {
                self.emit_all(vec![event]);
            }
        }
    }

    /// A schedule could not do what it should.
    pub(crate) fn schedule_failed(&self, vhost: &VhostName, name: &str, error: &str) {
        tracing::warn!(%vhost, schedule = name, error, "a schedule failed");
        self.emit(|| {
            let event = Event::bare("schedule.failed").with("name", name);
            event.with("vhost", vhost.as_str()).with("error", error)
        });
    }

    /// Publishers are stopped for want of this: `memory` or `disk`.
    pub(crate) fn alarm_set(&self, resource: &str, reason: &str) {
        tracing::warn!(resource, reason, "alarm set: publishers wait");
        self.emit(|| Event::bare("alarm.set").with("resource", resource).with("reason", reason));
    }

    /// There is enough of it again.
    pub(crate) fn alarm_cleared(&self, resource: &str) {
        tracing::warn!(resource, "alarm cleared: publishers go on");
        self.emit(|| Event::bare("alarm.cleared").with("resource", resource));
    }

    pub(crate) fn queue_created(&self, cell: &QueueCell) {
        self.emit(|| {
            let (auto_delete, arguments) = {
                let state = cell.state.lock();
                let config = state.queue.config();
                (config.auto_delete, config.arguments.clone())
            };
            of_queue("queue.created", &cell.name)
                .with("durable", cell.durability == Durability::Durable)
                .with("auto_delete", auto_delete)
                .with("exclusive", cell.owner.is_some())
                .with("arguments", EventValue::Raw(arguments))
        });
    }

    pub(crate) fn queue_deleted(&self, name: &QueueName) {
        self.emit(|| of_queue("queue.deleted", name));
    }

    pub(crate) fn connection_created(&self, name: &str, facts: &ConnectionFacts) {
        self.emit(|| {
            Event::bare("connection.created")
                .with("name", name)
                .with("type", "network")
                .with("protocol", facts.protocol.full_name())
                .with("host", facts.local.ip().to_string())
                .with("port", facts.local.port())
                .with("peer_host", facts.peer.ip().to_string())
                .with("peer_port", facts.peer.port())
                .with("ssl", facts.is_tls)
                .with("auth_mechanism", facts.mechanism.as_str())
                .with("user", facts.user.as_str())
                .with("vhost", facts.vhost.as_str())
                .with("timeout", facts.heartbeat_s)
                .with("frame_max", facts.frame_max)
                .with("channel_max", facts.channel_max)
                .with("client_properties", EventValue::Raw(facts.client_properties.clone()))
                .with("connected_at", facts.connected_at.0)
                .with("user_who_performed_action", facts.user.as_str())
        });
    }

    pub(crate) fn connection_closed(&self, name: &str, facts: &ConnectionFacts) {
        self.emit(|| {
            Event::bare("connection.closed")
                .with("name", name)
                .with("user", facts.user.as_str())
                .with("vhost", facts.vhost.as_str())
                .with("client_properties", EventValue::Raw(facts.client_properties.clone()))
        });
    }

    pub(crate) fn channel_created(&self, connection: &str, facts: &ConnectionFacts, number: u16) {
        self.emit(|| {
            channel("channel.created", connection, number)
                .with("user", facts.user.as_str())
                .with("vhost", facts.vhost.as_str())
                .with("user_who_performed_action", facts.user.as_str())
        });
    }

    pub(crate) fn channel_closed(&self, connection: &str, number: u16) {
        self.emit(|| channel("channel.closed", connection, number));
    }

    pub(crate) fn consumer_created(&self, connection: &str, user: &str, number: u16, of: &OpenConsumer) {
        self.emit(|| {
            consumer("consumer.created", connection, user, number, of)
                .with("exclusive", of.is_exclusive)
                .with("ack_required", of.acknowledges)
                .with("prefetch_count", of.prefetch)
                .with("arguments", EventValue::Raw(of.arguments.clone()))
        });
    }

    pub(crate) fn consumer_deleted(&self, connection: &str, user: &str, number: u16, of: &OpenConsumer) {
        self.emit(|| consumer("consumer.deleted", connection, user, number, of));
    }

    /// Changes of users.
    pub(crate) fn users_changed(&self, changes: &[AccessRecord]) {
        if self.is_wanted() {
            self.emit_all(changes.iter().filter_map(of_access).collect());
        }
    }
}

/// Has changes of policies and parameters in the log.
pub(crate) fn log_policies(changes: &[PolicyRecord]) {
    for event in changes.iter().filter_map(of_policies) {
        let name = event.text("name");
        tracing::info!(event = event.name, vhost = event.text("vhost"), name, by = %OnBehalf::now(), "policies changed");
    }
}

/// Has changes of users in the log.
pub(crate) fn log_users(changes: &[AccessRecord]) {
    for event in changes.iter().filter_map(of_access) {
        tracing::info!(event = event.name, user = event.user(), by = %OnBehalf::now(), "users changed");
    }
}

impl Event {
    /// What a field says, if that is text.
    fn text(&self, field: &str) -> Option<&str> {
        match self.fields.iter().find(|(name, _)| name == field) {
            Some((_, EventValue::Text(text))) => Some(text),
            _ => None,
        }
    }

    /// The user that a change is about.
    fn user(&self) -> Option<&str> {
        ["username", "user", "name"].iter().find_map(|field| self.text(field))
    }
}

fn login_event(name: &'static str, login: &LoginFacts<'_>) -> Event {
    Event::bare(name)
        .with("name", login.user)
        .with("connection_type", "network")
        .with("protocol", login.protocol)
        .with("auth_mechanism", login.mechanism)
        .with("peer_host", login.peer.ip().to_string())
        .with("peer_port", login.peer.port())
        .with("ssl", login.is_tls)
}

/// What a change of policies and parameters means. RabbitMQ sets both kinds of policies under one name.
fn of_policies(change: &PolicyRecord) -> Option<Event> {
    Some(match change {
        PolicyRecord::Put { vhost, policy, .. } => Event::now("policy.set")
            .with("name", &*policy.name)
            .with("vhost", vhost.as_str())
            .with("pattern", policy.pattern.as_str())
            .with("apply-to", policy.apply_to.as_str())
            .with("priority", EventValue::Whole(policy.priority))
            .with("definition", EventValue::Json(policy.definition.text())),
        PolicyRecord::Delete { kind, vhost, name } => {
            let event = match kind {
                PolicyKind::Regular => "policy.cleared",
                PolicyKind::Operator => "operator.policy.cleared",
            };
            Event::now(event).with("name", &**name).with("vhost", vhost.as_str())
        }
        PolicyRecord::PutParameter { vhost, component, name, value } => {
            parameter("parameter.set", component, name)
                .with("vhost", vhost.as_str())
                .with("value", EventValue::Json(value.to_string()))
        }
        PolicyRecord::DeleteParameter { vhost, component, name } => {
            parameter("parameter.cleared", component, name).with("vhost", vhost.as_str())
        }
        PolicyRecord::PutGlobal { name, value } => {
            parameter("parameter.set", "global", name).with("value", EventValue::Json(value.to_string()))
        }
        PolicyRecord::DeleteGlobal { name } => parameter("parameter.cleared", "global", name),
        PolicyRecord::ForgetVhost { .. } => return None,
    })
}

/// That times were fired is told by the messages.
fn of_schedules(record: &ScheduleRecord) -> Option<Event> {
    let of = |event, vhost: &VhostName, name: &str| {
        Event::now(event).with("name", name).with("vhost", vhost.as_str())
    };
    Some(match record {
        ScheduleRecord::Put { vhost, schedule, .. } => of("schedule.set", vhost, &schedule.name),
        ScheduleRecord::Delete { vhost, name } => of("schedule.deleted", vhost, name),
        ScheduleRecord::Pause { vhost, name, is_paused: true, .. } => of("schedule.paused", vhost, name),
        ScheduleRecord::Pause { vhost, name, is_paused: false, .. } => of("schedule.resumed", vhost, name),
        ScheduleRecord::Fired { .. }
        | ScheduleRecord::Failed { .. }
        | ScheduleRecord::Ran { .. }
        | ScheduleRecord::ForgetVhost { .. } => return None,
    })
}

fn parameter(event: &'static str, component: &str, name: &str) -> Event {
    Event::now(event).with("name", name).with("component", component)
}

fn of_queue(event: &'static str, name: &QueueName) -> Event {
    Event::now(event).with("name", name.as_str()).with("vhost", name.vhost_str())
}

fn channel(event: &'static str, connection: &str, number: u16) -> Event {
    Event::bare(event)
        .with("name", format!("{connection} ({number})"))
        .with("connection", connection)
        .with("number", number)
}

fn consumer(event: &'static str, connection: &str, user: &str, number: u16, of: &OpenConsumer) -> Event {
    Event::bare(event)
        .with("consumer_tag", String::from_utf8_lossy(&of.tag).into_owned())
        .with("channel", format!("{connection} ({number})"))
        .with("queue", of.queue.as_str())
        .with("vhost", of.queue.vhost_str())
        .with("user_who_performed_action", user)
}

/// What a change of exchanges and bindings means, from the state before it.
pub(crate) fn of_topology(topology: &Topology, steps: &[Step<TopologyRecord>]) -> Vec<Event> {
    let mut events = Vec::new();
    for step in steps {
        match &step.record {
            TopologyRecord::Declare { name, spec } => events.push(
                Event::now("exchange.created")
                    .with("name", name.as_str())
                    .with("vhost", name.vhost_str())
                    .with("type", spec.kind.name())
                    .with("durable", spec.durability == Durability::Durable)
                    .with("auto_delete", spec.auto_delete)
                    .with("internal", spec.internal)
                    .with("arguments", EventValue::Raw(spec.arguments.clone())),
            ),
            TopologyRecord::Delete { name } => {
                // Its bindings go with it; there may be very many.
                let room = limits::EVENTS_WAITING_MAX.saturating_sub(events.len());
                events.extend(
                    topology.bindings_from(name).take(room).map(|one| binding("binding.deleted", one)),
                );
                events.push(
                    Event::now("exchange.deleted")
                        .with("name", name.as_str())
                        .with("vhost", name.vhost_str()),
                );
            }
            TopologyRecord::PutVhost { name, spec } => events.extend(vhost_put(topology, name, spec)),
            TopologyRecord::DeleteVhost { name } => {
                events.push(Event::now("vhost.deleted").with("name", name.as_str()));
            }
            TopologyRecord::Bind { binding: one, .. } => events.push(binding("binding.created", one)),
            TopologyRecord::Unbind { binding: one } => events.push(binding("binding.deleted", one)),
            // A queue is told of by whoever deletes it, and a virtual host when that begins.
            TopologyRecord::QueueGone { .. } | TopologyRecord::VhostGone { .. } => {}
        }
    }
    events
}

/// A virtual host that comes to be, or is changed, from the state before it.
fn vhost_put(topology: &Topology, name: &VhostName, spec: &VhostSpec) -> Vec<Event> {
    let mut events = Vec::new();
    let before = topology.open_vhost(name).ok().map(|vhost| &vhost.spec);
    if before.is_none() {
        let tags = spec.tags.iter().map(|tag| EventValue::from(tag.as_str())).collect();
        let kind = spec.default_queue_type.map_or("undefined", |kind| kind.as_str());
        events.push(
            Event::now("vhost.created")
                .with("name", name.as_str())
                .with("description", spec.description.as_str())
                .with("tags", EventValue::List(tags))
                .with("default_queue_type", kind)
                .with("tracing", false),
        );
    }
    let limits = |spec: &VhostSpec| (spec.max_connections, spec.max_queues);
    if before.map(limits).unwrap_or_default() != limits(spec) {
        let limits = [("max-connections", spec.max_connections), ("max-queues", spec.max_queues)];
        let is_cleared = limits.iter().all(|(_, limit)| limit.is_none());
        let event = if is_cleared { "vhost.limits.cleared" } else { "vhost.limits.set" };
        let event = Event::now(event).with("name", "limits").with("vhost", name.as_str());
        events.push(limits.into_iter().fold(event, |event, (name, limit)| match limit {
            Some(limit) => event.with(name, limit),
            None => event,
        }));
    }
    events
}

fn binding(event: &'static str, of: &Binding) -> Event {
    let (kind, destination) = match of.destination() {
        Destination::Queue(name) => ("queue", name.as_str()),
        Destination::Exchange(name) => ("exchange", name.as_str()),
    };
    let argument = |value: &HeaderValue| match value {
        HeaderValue::Bool(truth) => EventValue::Truth(*truth),
        HeaderValue::Signed(number) => EventValue::Whole(*number),
        HeaderValue::Unsigned(number) | HeaderValue::Timestamp(number) => (*number).into(),
        HeaderValue::Float(bits) => EventValue::Fraction(f64::from_bits(*bits)),
        HeaderValue::Text(text) => String::from_utf8_lossy(text).into_owned().into(),
        HeaderValue::Void | HeaderValue::Other(_) => "".into(),
    };
    let arguments = of.arguments().iter();
    let arguments = arguments
        .map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), argument(value)))
        .collect();
    Event::now(event)
        .with("source_name", of.source().as_str())
        .with("source_kind", "exchange")
        .with("destination_name", destination)
        .with("destination_kind", kind)
        .with("routing_key", String::from_utf8_lossy(of.key()).into_owned())
        .with("arguments", EventValue::Table(arguments))
        .with("vhost", of.source().vhost_str())
}

/// What a change of users means. Keys and tokens are Nexo's own; RabbitMQ has no words for them.
fn of_access(change: &AccessRecord) -> Option<Event> {
    let named = |event: &'static str, user: &str| Event::now(event).with("name", user);
    let tags = |tags: &std::collections::BTreeSet<nexo_core::access::Tag>| {
        EventValue::List(tags.iter().map(|tag| tag.as_str().into()).collect())
    };
    let permission = |event: &'static str, user: &str, vhost: &str| {
        Event::now(event).with("user", user).with("vhost", vhost)
    };
    Some(match change {
        AccessRecord::Add { user, tags: given, .. } => {
            named("user.created", user.as_str()).with("tags", tags(given))
        }
        AccessRecord::SetPassword { user, password: Some(_) } => {
            named("user.password.changed", user.as_str())
        }
        AccessRecord::SetPassword { user, password: None } => named("user.password.cleared", user.as_str()),
        AccessRecord::SetTags { user, tags: given } => {
            named("user.tags.set", user.as_str()).with("tags", tags(given))
        }
        AccessRecord::Delete { user } => named("user.deleted", user.as_str()),
        AccessRecord::SetPermissions { user, vhost, permissions } => {
            permission("permission.created", user.as_str(), vhost)
                .with("configure", permissions.configure.as_str())
                .with("write", permissions.write.as_str())
                .with("read", permissions.read.as_str())
        }
        AccessRecord::ClearPermissions { user, vhost } => {
            permission("permission.deleted", user.as_str(), vhost)
        }
        AccessRecord::SetTopics { user, vhost, exchange, write, read } => {
            permission("topic.permission.created", user.as_str(), vhost)
                .with("exchange", &**exchange)
                .with("write", write.as_str())
                .with("read", read.as_str())
        }
        AccessRecord::ClearTopics { user, vhost, exchange } => {
            let event = permission("topic.permission.deleted", user.as_str(), vhost);
            match exchange {
                Some(exchange) => event.with("exchange", &**exchange),
                None => event,
            }
        }
        AccessRecord::SetLimits { user, limits } => {
            let all = [("max-connections", limits.max_connections), ("max-channels", limits.max_channels)];
            let is_cleared = all.iter().all(|(_, limit)| limit.is_none());
            let event = Event::now(if is_cleared { "user.limits.cleared" } else { "user.limits.set" });
            let event = event.with("name", "limits").with("username", user.as_str());
            all.into_iter().fold(event, |event, (name, limit)| match limit {
                Some(limit) => event.with(name, limit),
                None => event,
            })
        }
        AccessRecord::SetDefaultVhost { .. }
        | AccessRecord::AddKey { .. }
        | AccessRecord::RemoveKey { .. }
        | AccessRecord::AddToken { .. }
        | AccessRecord::RemoveToken { .. }
        | AccessRecord::ForgetVhost { .. } => return None,
    })
}
