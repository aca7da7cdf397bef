//! Virtual hosts: made, tagged, deleted, limited and traced.

use serde_json::{Value, json};

use super::stop::Stop;
use super::users::limits_of;
use super::{ApiPath, Ctl};

pub(super) async fn add(ctl: &mut Ctl) -> Result<(), Stop> {
    let vhost = ctl.word(0).to_owned();
    ctl.say(format_args!("Adding vhost \"{vhost}\" ..."))?;
    let mut body = json!({});
    for (option, field) in
        [("description", "description"), ("tags", "tags"), ("default-queue-type", "default_queue_type")]
    {
        if let Some(text) = ctl.given.value(option) {
            body[field] = text.into();
        }
    }
    put(ctl, &vhost, &body).await
}

pub(super) async fn delete(ctl: &mut Ctl) -> Result<(), Stop> {
    let vhost = ctl.word(0).to_owned();
    ctl.say(format_args!("Deleting vhost \"{vhost}\" ..."))?;
    ctl.vhost_there(&vhost).await?;
    Ok(ctl.api.delete(&ApiPath::of(&["vhosts", &vhost])).await?)
}

pub(super) async fn set_tags(ctl: &mut Ctl) -> Result<(), Stop> {
    let vhost = ctl.word(0).to_owned();
    let tags: Vec<String> = ctl.given.words.iter().skip(1).cloned().collect();
    ctl.say(format_args!("Setting tags for virtual host \"{vhost}\" to [{}] ...", tags.join(", ")))?;
    ctl.vhost_there(&vhost).await?;
    put(ctl, &vhost, &json!({ "tags": tags.join(",") })).await
}

pub(super) async fn trace_on(ctl: &mut Ctl) -> Result<(), Stop> {
    let vhost = ctl.vhost().to_owned();
    ctl.say(format_args!("Starting tracing for vhost \"{vhost}\" ..."))?;
    ctl.vhost_there(&vhost).await?;
    put(ctl, &vhost, &json!({ "tracing": true })).await?;
    ctl.say(format_args!("Trace enabled for vhost {vhost}"))
}

pub(super) async fn trace_off(ctl: &mut Ctl) -> Result<(), Stop> {
    let vhost = ctl.vhost().to_owned();
    ctl.say(format_args!("Stopping tracing for vhost \"{vhost}\" ..."))?;
    ctl.vhost_there(&vhost).await?;
    put(ctl, &vhost, &json!({ "tracing": false })).await?;
    ctl.say(format_args!("Trace disabled for vhost {vhost}"))
}

async fn put(ctl: &mut Ctl, vhost: &str, body: &Value) -> Result<(), Stop> {
    ctl.api.put(&ApiPath::of(&["vhosts", vhost]), body).await?;
    Ok(())
}

/// Limits replace those there were, as in RabbitMQ.
pub(super) async fn set_limits(ctl: &mut Ctl) -> Result<(), Stop> {
    let (vhost, text) = (ctl.vhost().to_owned(), ctl.word(0).to_owned());
    ctl.say(format_args!("Setting vhost limits to \"{text}\" for vhost \"{vhost}\" ..."))?;
    let limits = limits_of(&text)?;
    ctl.vhost_there(&vhost).await?;
    for (name, value) in &limits {
        ctl.api.put(&ApiPath::of(&["vhost-limits", &vhost, name]), &json!({ "value": value })).await?;
    }
    clear(ctl, &vhost, |name| !limits.contains_key(name)).await
}

pub(super) async fn clear_limits(ctl: &mut Ctl) -> Result<(), Stop> {
    let vhost = ctl.vhost().to_owned();
    ctl.say(format_args!("Clearing vhost \"{vhost}\" limits ..."))?;
    ctl.vhost_there(&vhost).await?;
    clear(ctl, &vhost, |_| true).await
}

async fn clear(ctl: &mut Ctl, vhost: &str, which: impl Fn(&str) -> bool) -> Result<(), Stop> {
    for name in ["max-connections", "max-queues"].into_iter().filter(|name| which(name)) {
        match ctl.api.delete(&ApiPath::of(&["vhost-limits", vhost, name])).await {
            Err(failure) if failure.is_not_found() => {}
            deleted => deleted?,
        }
    }
    Ok(())
}
