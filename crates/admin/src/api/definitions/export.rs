//! What is there, as a file of definitions.

use nexo_amqp::management::{queue_type, raw_table_json};
use nexo_broker::{BindingsOf, Durability};
use serde_json::{Value, json};

use super::plan::NEXO_SCHEDULES;
use super::policies;
use crate::api::Api;
use crate::api::access::Visible;
use crate::api::bindings::binding_json;
use crate::api::exchanges::exchange_json;
use crate::api::names::{of_exchange, of_queue};
use crate::api::overview::{PRODUCT, RABBITMQ_VERSION, VERSION};
use crate::api::permissions::{permissions_json, topics_json};
use crate::api::schedules;
use crate::api::users::user_json;
use crate::api::vhosts::vhost_definition;

/// Everything.
pub(super) fn whole(api: &Api) -> Value {
    let (access, vhosts) = (api.broker.access(), api.broker.vhosts());
    let mut file = objects(api, &Visible::All);
    let more = json!({
        "rabbit_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": PRODUCT,
        "product_version": VERSION,
        "rabbitmq_definition_format": "cluster",
        "users": access.users().map(|user| user_json(user)).collect::<Value>(),
        "vhosts": vhosts.iter().map(vhost_definition).collect::<Value>(),
        "permissions": access.users().flat_map(|user| permissions_json(user)).collect::<Value>(),
        "topic_permissions": access.users().flat_map(|user| topics_json(user)).collect::<Value>(),
        "parameters": policies::parameters(api, &Visible::All),
        "global_parameters": policies::globals(api),
        "policies": policies::policies(api, &Visible::All),
    });
    if let (Value::Object(file), Value::Object(more)) = (&mut file, more) {
        file.extend(more);
    }
    put_schedules(api, &Visible::All, &mut file);
    file
}

/// What is in one virtual host. Such a file may go into any other.
pub(super) fn of_vhost(api: &Api, vhost: &Visible) -> Value {
    let mut file = objects(api, vhost);
    file["parameters"] = policies::parameters(api, vhost);
    file["policies"] = policies::policies(api, vhost);
    put_schedules(api, vhost, &mut file);
    for kind in ["queues", "exchanges", "bindings", "parameters", "policies", NEXO_SCHEDULES] {
        for item in file
            .get_mut(kind)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
        {
            item.remove("vhost");
        }
    }
    file["rabbit_version"] = RABBITMQ_VERSION.into();
    file["rabbitmq_version"] = RABBITMQ_VERSION.into();
    file
}

/// Under a key of its own, and only if there are any: RabbitMQ knows of none.
fn put_schedules(api: &Api, vhosts: &Visible, file: &mut Value) {
    let schedules = schedules::definitions(api, vhosts);
    if !schedules.is_empty() {
        file[NEXO_SCHEDULES] = schedules.into();
    }
}

/// Queues that belong to a connection are not among them: they could not be made again.
fn objects(api: &Api, vhosts: &Visible) -> Value {
    let names = api.broker.queue_names().into_iter().filter(|name| vhosts.has(of_queue(name)));
    let rows = names.filter_map(|name| api.broker.queue_row(&name)).filter(|row| row.owner.is_none());
    let queues: Value = rows
        .map(|row| {
            json!({
                "name": row.stats.name.as_str(),
                "vhost": of_queue(&row.stats.name),
                "durable": row.durability == Durability::Durable,
                "auto_delete": row.stats.config.auto_delete,
                "type": queue_type(row.stats.config.base()),
                "arguments": raw_table_json(&row.stats.config.arguments),
            })
        })
        .collect();
    let exchanges = api.broker.exchanges().into_iter();
    let own = exchanges.filter(|(name, _)| !name.is_reserved() && vhosts.has(of_exchange(name)));
    let exchanges: Value =
        own.map(|(name, spec)| without(exchange_json(&name, &spec), "user_who_performed_action")).collect();
    let bindings = api.broker.bindings(BindingsOf::All, usize::MAX);
    let own = bindings.iter().filter(|one| vhosts.has(of_exchange(one.source())));
    let bindings: Value = own.map(|one| without(binding_json(one), "properties_key")).collect();
    json!({ "queues": queues, "exchanges": exchanges, "bindings": bindings })
}

fn without(mut shown: Value, name: &str) -> Value {
    if let Some(object) = shown.as_object_mut() {
        object.remove(name);
    }
    shown
}
