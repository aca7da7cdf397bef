//! Policies, operator policies and parameters.

use serde_json::json;

use super::stop::{Stop, UNAVAILABLE, USAGE};
use super::{ApiPath, Ctl, json_of};
use crate::management::Failure;

pub(super) async fn set_policy(ctl: &mut Ctl) -> Result<(), Stop> {
    set(ctl, "policies", "policy").await
}

pub(super) async fn set_operator_policy(ctl: &mut Ctl) -> Result<(), Stop> {
    set(ctl, "operator-policies", "operator policy override").await
}

async fn set(ctl: &mut Ctl, of: &str, what: &str) -> Result<(), Stop> {
    let (name, pattern, text) = (ctl.word(0).to_owned(), ctl.word(1).to_owned(), ctl.word(2).to_owned());
    let (vhost, priority) = (ctl.vhost().to_owned(), ctl.given.value("priority").unwrap_or("0").to_owned());
    let number: i64 =
        priority.parse().map_err(|_| ctl.wrong(USAGE, format!("'{priority}' is no priority")))?;
    ctl.say(format_args!(
        "Setting {what} \"{name}\" for pattern \"{pattern}\" to \"{text}\" with priority \"{priority}\" for vhost \
         \"{vhost}\" ..."
    ))?;
    let definition = json_of(&text)?;
    let apply_to = ctl.given.value("apply-to").unwrap_or("all");
    let body =
        json!({ "pattern": pattern, "definition": definition, "priority": number, "apply-to": apply_to });
    ctl.vhost_there(&vhost).await?;
    ctl.api.put(&ApiPath::of(&[of, &vhost, &name]), &body).await?;
    Ok(())
}

pub(super) async fn clear_policy(ctl: &mut Ctl) -> Result<(), Stop> {
    let (name, vhost) = (ctl.word(0).to_owned(), ctl.vhost().to_owned());
    ctl.say(format_args!("Clearing policy \"{name}\" on vhost \"{vhost}\" ..."))?;
    cleared(ctl.api.delete(&ApiPath::of(&["policies", &vhost, &name])).await)
}

pub(super) async fn clear_operator_policy(ctl: &mut Ctl) -> Result<(), Stop> {
    let (name, vhost) = (ctl.word(0).to_owned(), ctl.vhost().to_owned());
    ctl.say(format_args!("Clearing operator policy \"{name}\" on vhost \"{vhost}\" ..."))?;
    cleared(ctl.api.delete(&ApiPath::of(&["operator-policies", &vhost, &name])).await)
}

pub(super) async fn set_parameter(ctl: &mut Ctl) -> Result<(), Stop> {
    let (component, name, text) = (ctl.word(0).to_owned(), ctl.word(1).to_owned(), ctl.word(2).to_owned());
    let vhost = ctl.vhost().to_owned();
    ctl.say(format_args!(
        "Setting runtime parameter \"{name}\" for component \"{component}\" to \"{text}\" in vhost \"{vhost}\" ..."
    ))?;
    let value = json_of(&text)?;
    let body = json!({ "vhost": vhost, "component": component, "name": name, "value": value });
    ctl.api.put(&ApiPath::of(&["parameters", &component, &vhost, &name]), &body).await?;
    Ok(())
}

pub(super) async fn clear_parameter(ctl: &mut Ctl) -> Result<(), Stop> {
    let (component, name, vhost) = (ctl.word(0).to_owned(), ctl.word(1).to_owned(), ctl.vhost().to_owned());
    ctl.say(format_args!(
        "Clearing runtime parameter \"{name}\" for component \"{component}\" on vhost \"{vhost}\" ..."
    ))?;
    cleared(ctl.api.delete(&ApiPath::of(&["parameters", &component, &vhost, &name])).await)
}

pub(super) async fn set_global_parameter(ctl: &mut Ctl) -> Result<(), Stop> {
    let (name, text) = (ctl.word(0).to_owned(), ctl.word(1).to_owned());
    ctl.say(format_args!("Setting global runtime parameter \"{name}\" to \"{text}\" ..."))?;
    let value = json_of(&text)?;
    ctl.api
        .put(&ApiPath::of(&["global-parameters", &name]), &json!({ "name": name, "value": value }))
        .await?;
    Ok(())
}

pub(super) async fn clear_global_parameter(ctl: &mut Ctl) -> Result<(), Stop> {
    let name = ctl.word(0).to_owned();
    ctl.say(format_args!("Clearing global runtime parameter \"{name}\" ..."))?;
    cleared(ctl.api.delete(&ApiPath::of(&["global-parameters", &name])).await)
}

fn cleared(deleted: Result<(), Failure>) -> Result<(), Stop> {
    match deleted {
        Err(failure) if failure.is_not_found() => Err(Stop::error(UNAVAILABLE, "Parameter does not exist")),
        deleted => Ok(deleted?),
    }
}
