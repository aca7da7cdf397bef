//! Lists with columns that nobody chooses: users, what they may do, policies, parameters, limits.

use serde_json::{Value, json};

use super::stop::Stop;
use super::{ApiPath, Ctl};

pub(super) async fn users(ctl: &mut Ctl) -> Result<(), Stop> {
    ctl.say("Listing users ...")?;
    let users = ctl.api.list(&ApiPath::of(&["users"])).await?;
    let rows: Vec<Vec<Value>> =
        users.iter().map(|user| vec![user["name"].clone(), tags(&user["tags"])]).collect();
    ctl.table(&["user", "tags"], &rows)
}

/// A list of tags; older releases have them in one text.
pub(super) fn tags(value: &Value) -> Value {
    match value {
        Value::String(text) => text.split(',').filter(|tag| !tag.is_empty()).map(Value::from).collect(),
        Value::Array(_) => value.clone(),
        _ => json!([]),
    }
}

pub(super) async fn permissions(ctl: &mut Ctl) -> Result<(), Stop> {
    ctl.say(format_args!("Listing permissions for vhost \"{}\" ...", ctl.vhost().to_owned()))?;
    let all = ctl.api.list(&ApiPath::of(&["permissions"])).await?;
    let own = in_vhost(ctl, &all);
    ctl.table(&["user", "configure", "write", "read"], &rows(&own, &["user", "configure", "write", "read"]))
}

pub(super) async fn user_permissions(ctl: &mut Ctl) -> Result<(), Stop> {
    let user = ctl.word(0).to_owned();
    ctl.say(format_args!("Listing permissions for user \"{user}\" ..."))?;
    ctl.user(&user).await?;
    let all = ctl.api.list(&ApiPath::of(&["users", &user, "permissions"])).await?;
    ctl.table(&["vhost", "configure", "write", "read"], &rows(&all, &["vhost", "configure", "write", "read"]))
}

pub(super) async fn topic_permissions(ctl: &mut Ctl) -> Result<(), Stop> {
    ctl.say(format_args!("Listing topic permissions for vhost \"{}\" ...", ctl.vhost().to_owned()))?;
    let all = ctl.api.list(&ApiPath::of(&["topic-permissions"])).await?;
    let own = in_vhost(ctl, &all);
    ctl.table(&["user", "exchange", "write", "read"], &rows(&own, &["user", "exchange", "write", "read"]))
}

pub(super) async fn user_topic_permissions(ctl: &mut Ctl) -> Result<(), Stop> {
    let user = ctl.word(0).to_owned();
    ctl.say(format_args!("Listing topic permissions for user \"{user}\" ..."))?;
    ctl.user(&user).await?;
    let all = ctl.api.list(&ApiPath::of(&["users", &user, "topic-permissions"])).await?;
    ctl.table(&["vhost", "exchange", "write", "read"], &rows(&all, &["vhost", "exchange", "write", "read"]))
}

pub(super) async fn policies(ctl: &mut Ctl) -> Result<(), Stop> {
    ctl.say(format_args!("Listing policies for vhost \"{}\" ...", ctl.vhost().to_owned()))?;
    list_policies(ctl, "policies").await
}

pub(super) async fn operator_policies(ctl: &mut Ctl) -> Result<(), Stop> {
    ctl.say(format_args!("Listing operator policy overrides for vhost \"{}\" ...", ctl.vhost().to_owned()))?;
    list_policies(ctl, "operator-policies").await
}

async fn list_policies(ctl: &mut Ctl, of: &str) -> Result<(), Stop> {
    let all = ctl.api.list(&ApiPath::of(&[of])).await?;
    let own = in_vhost(ctl, &all);
    let columns = ["vhost", "name", "pattern", "apply-to", "definition", "priority"];
    let mut rows = rows(&own, &columns);
    rows.iter_mut().for_each(|row| row[4] = as_json(&row[4]));
    ctl.table(&columns, &rows)
}

pub(super) async fn parameters(ctl: &mut Ctl) -> Result<(), Stop> {
    ctl.say(format_args!("Listing runtime parameters for vhost \"{}\" ...", ctl.vhost().to_owned()))?;
    let all = ctl.api.list(&ApiPath::of(&["parameters"])).await?;
    let own = in_vhost(ctl, &all);
    let mut rows = rows(&own, &["component", "name", "value"]);
    rows.iter_mut().for_each(|row| row[2] = as_json(&row[2]));
    ctl.table(&["component", "name", "value"], &rows)
}

pub(super) async fn global_parameters(ctl: &mut Ctl) -> Result<(), Stop> {
    ctl.say("Listing global runtime parameters ...")?;
    let all = ctl.api.list(&ApiPath::of(&["global-parameters"])).await?;
    let mut rows = rows(&all, &["name", "value"]);
    rows.iter_mut().for_each(|row| row[1] = as_json(&row[1]));
    ctl.table(&["name", "value"], &rows)
}

pub(super) async fn feature_flags(ctl: &mut Ctl) -> Result<(), Stop> {
    ctl.say("Listing feature flags ...")?;
    let all = ctl.api.list(&ApiPath::of(&["feature-flags"])).await?;
    ctl.table(&["name", "state"], &rows(&all, &["name", "state"]))
}

pub(super) async fn vhost_limits(ctl: &mut Ctl) -> Result<(), Stop> {
    if ctl.given.has("global") {
        ctl.say("Listing limits for all vhosts ...")?;
        return all_limits(ctl, "vhost-limits", "vhost").await;
    }
    let vhost = ctl.vhost().to_owned();
    ctl.say(format_args!("Listing limits for vhost \"{vhost}\" ..."))?;
    ctl.vhost_there(&vhost).await?;
    let all = ctl.api.list(&ApiPath::of(&["vhost-limits"])).await?;
    one_limit(ctl, &all, "vhost", &vhost)
}

pub(super) async fn user_limits(ctl: &mut Ctl) -> Result<(), Stop> {
    let Some(user) = ctl.given.value("user").map(str::to_owned).filter(|_| !ctl.given.has("global")) else {
        ctl.say("Listing limits for all users ...")?;
        return all_limits(ctl, "user-limits", "user").await;
    };
    ctl.say(format_args!("Listing limits for user \"{user}\" ..."))?;
    ctl.user(&user).await?;
    let all = ctl.api.list(&ApiPath::of(&["user-limits"])).await?;
    one_limit(ctl, &all, "user", &user)
}

async fn all_limits(ctl: &mut Ctl, of: &str, whose: &str) -> Result<(), Stop> {
    let all = ctl.api.list(&ApiPath::of(&[of])).await?;
    let rows: Vec<Vec<Value>> =
        all.iter().map(|limits| vec![limits[whose].clone(), as_json(&limits["value"])]).collect();
    ctl.table(&[whose, "limits"], &rows)
}

/// The limits of one, as RabbitMQ prints them: JSON on a line.
fn one_limit(ctl: &mut Ctl, all: &[Value], whose: &str, name: &str) -> Result<(), Stop> {
    let own =
        all.iter().find(|limits| limits[whose] == name).map_or_else(|| json!({}), |own| own["value"].clone());
    ctl.line(own)
}

/// Those of the virtual host that was named.
fn in_vhost(ctl: &Ctl, all: &[Value]) -> Vec<Value> {
    all.iter().filter(|item| item["vhost"] == ctl.vhost()).cloned().collect()
}

fn rows(items: &[Value], columns: &[&str]) -> Vec<Vec<Value>> {
    items.iter().map(|item| columns.iter().map(|column| item[*column].clone()).collect()).collect()
}

/// A definition is shown as the JSON that it was given as.
fn as_json(value: &Value) -> Value {
    value.to_string().into()
}
