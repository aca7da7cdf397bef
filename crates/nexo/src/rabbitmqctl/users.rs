//! Users, their passwords, tags, permissions and limits.
//!
//! The management API replaces a user as a whole, as RabbitMQ's does. What a command does not change is therefore read first
//! and sent back: the hash of the password, the tags.

use std::io::{self, BufRead};

use serde_json::{Map, Value, json};

use super::access_lists::tags;
use super::stop::{DATA, SOFTWARE, Stop, UNAVAILABLE, USAGE};
use super::{ApiPath, Ctl, json_of};
use crate::management::{Authorization, Failure};

pub(super) async fn add(ctl: &mut Ctl) -> Result<(), Stop> {
    let (user, password) = (ctl.word(0).to_owned(), password(ctl, 1)?);
    ctl.say(format_args!("Adding user \"{user}\" ..."))?;
    let path = ApiPath::of(&["users", &user]);
    match ctl.api.get(&path).await {
        Ok(_) => return Err(Stop::error(SOFTWARE, format_args!("User \"{user}\" already exists"))),
        Err(failure) if failure.is_not_found() => {}
        Err(failure) => return Err(failure.into()),
    }
    let field = if ctl.given.has("pre-hashed-password") { "password_hash" } else { "password" };
    ctl.api.put(&path, &json!({ (field): password, "tags": "" })).await?;
    ctl.say(
        "Done. Don't forget to grant the user permissions to some virtual hosts! See 'rabbitmqctl help set_permissions' to \
         learn more.",
    )
}

pub(super) async fn delete(ctl: &mut Ctl) -> Result<(), Stop> {
    let user = ctl.word(0).to_owned();
    ctl.say(format_args!("Deleting user \"{user}\" ..."))?;
    ctl.user(&user).await?;
    Ok(ctl.api.delete(&ApiPath::of(&["users", &user])).await?)
}

pub(super) async fn change_password(ctl: &mut Ctl) -> Result<(), Stop> {
    let (user, password) = (ctl.word(0).to_owned(), password(ctl, 1)?);
    ctl.say(format_args!("Changing password for user \"{user}\" ..."))?;
    let known = ctl.user(&user).await?;
    put(ctl, &user, json!({ "password": password, "tags": tags_text(&known["tags"]) })).await
}

pub(super) async fn clear_password(ctl: &mut Ctl) -> Result<(), Stop> {
    let user = ctl.word(0).to_owned();
    ctl.say(format_args!("Clearing password for user \"{user}\" ..."))?;
    let known = ctl.user(&user).await?;
    put(ctl, &user, json!({ "password_hash": "", "tags": tags_text(&known["tags"]) })).await
}

pub(super) async fn set_tags(ctl: &mut Ctl) -> Result<(), Stop> {
    let user = ctl.word(0).to_owned();
    let new: Vec<String> = ctl.given.words.iter().skip(1).cloned().collect();
    ctl.say(format_args!("Setting tags for user \"{user}\" to [{}] ...", new.join(", ")))?;
    let known = ctl.user(&user).await?;
    let mut body = json!({ "password_hash": known["password_hash"], "tags": new.join(",") });
    if let Some(algorithm) = known["hashing_algorithm"].as_str().filter(|text| !text.is_empty()) {
        body["hashing_algorithm"] = algorithm.into();
    }
    put(ctl, &user, body).await
}

async fn put(ctl: &mut Ctl, user: &str, body: Value) -> Result<(), Stop> {
    ctl.api.put(&ApiPath::of(&["users", user]), &body).await?;
    Ok(())
}

fn tags_text(value: &Value) -> String {
    let tags = tags(value);
    let tags: Vec<&str> = tags.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    tags.join(",")
}

pub(super) async fn authenticate(ctl: &mut Ctl) -> Result<(), Stop> {
    let (user, password) = (ctl.word(0).to_owned(), password(ctl, 1)?);
    ctl.say(format_args!("Authenticating user \"{user}\" ..."))?;
    let who = Authorization::password(&user, &password);
    match ctl.api.get_as(&ApiPath::of(&["whoami"]), who).await {
        Ok(_) => ctl.say("Success"),
        // Who may not use the management API was told so, and not that the password is wrong.
        Err(Failure::NotLoggedIn(reason)) if reason.starts_with("Not ") => ctl.say("Success"),
        Err(Failure::NotLoggedIn(_)) => Err(Stop::error(
            DATA,
            format_args!(
                "Error: failed to authenticate user \"{user}\"\nuser '{user}' - invalid credentials"
            ),
        )),
        Err(failure) => Err(failure.into()),
    }
}

/// A password that was typed, or the first line of standard input: others can read the command line.
fn password(ctl: &Ctl, at: usize) -> Result<String, Stop> {
    if let Some(typed) = ctl.given.words.get(at) {
        return Ok(typed.clone());
    }
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let password = line.trim_end_matches(['\r', '\n']).to_owned();
    if password.is_empty() {
        return Err(ctl.wrong(USAGE, "not enough arguments."));
    }
    Ok(password)
}

pub(super) async fn set_permissions(ctl: &mut Ctl) -> Result<(), Stop> {
    let (user, vhost) = (ctl.word(0).to_owned(), ctl.vhost().to_owned());
    ctl.say(format_args!("Setting permissions for user \"{user}\" in vhost \"{vhost}\" ..."))?;
    there(ctl, &user, &vhost).await?;
    let body = json!({ "configure": ctl.word(1), "write": ctl.word(2), "read": ctl.word(3) });
    ctl.api.put(&ApiPath::of(&["permissions", &vhost, &user]), &body).await?;
    Ok(())
}

pub(super) async fn clear_permissions(ctl: &mut Ctl) -> Result<(), Stop> {
    let (user, vhost) = (ctl.word(0).to_owned(), ctl.vhost().to_owned());
    ctl.say(format_args!("Clearing permissions for user \"{user}\" in vhost \"{vhost}\" ..."))?;
    there(ctl, &user, &vhost).await?;
    unless_gone(ctl.api.delete(&ApiPath::of(&["permissions", &vhost, &user])).await)
}

pub(super) async fn set_topic_permissions(ctl: &mut Ctl) -> Result<(), Stop> {
    let (user, exchange, vhost) = (ctl.word(0).to_owned(), ctl.word(1).to_owned(), ctl.vhost().to_owned());
    ctl.say(format_args!(
        "Setting topic permissions on \"{exchange}\" for user \"{user}\" in vhost \"{vhost}\" ..."
    ))?;
    there(ctl, &user, &vhost).await?;
    let body = json!({ "exchange": exchange, "write": ctl.word(2), "read": ctl.word(3) });
    ctl.api.put(&ApiPath::of(&["topic-permissions", &vhost, &user]), &body).await?;
    Ok(())
}

pub(super) async fn clear_topic_permissions(ctl: &mut Ctl) -> Result<(), Stop> {
    let (user, vhost) = (ctl.word(0).to_owned(), ctl.vhost().to_owned());
    let path = ApiPath::of(&["topic-permissions", &vhost, &user]);
    let Some(exchange) = ctl.given.words.get(1).cloned() else {
        ctl.say(format_args!("Clearing topic permissions for user \"{user}\" in vhost \"{vhost}\" ..."))?;
        there(ctl, &user, &vhost).await?;
        return unless_gone(ctl.api.delete(&path).await);
    };
    ctl.say(format_args!(
        "Clearing topic permissions on \"{exchange}\" for user \"{user}\" in vhost \"{vhost}\" ..."
    ))?;
    there(ctl, &user, &vhost).await?;
    // The API takes all of them away at once: the others are put back.
    let all = ctl.api.list(&ApiPath::of(&["users", &user, "topic-permissions"])).await?;
    unless_gone(ctl.api.delete(&path).await)?;
    for other in all.iter().filter(|other| other["vhost"] == *vhost && other["exchange"] != *exchange) {
        let body = json!({ "exchange": other["exchange"], "write": other["write"], "read": other["read"] });
        ctl.api.put(&path, &body).await?;
    }
    Ok(())
}

/// That a user and a virtual host are there, told in RabbitMQ's words and codes if not.
async fn there(ctl: &mut Ctl, user: &str, vhost: &str) -> Result<(), Stop> {
    ctl.user(user).await?;
    ctl.vhost_there(vhost).await?;
    Ok(())
}

/// What is not there any more need not be taken away.
fn unless_gone(deleted: Result<(), Failure>) -> Result<(), Stop> {
    match deleted {
        Err(failure) if failure.is_not_found() => Ok(()),
        deleted => Ok(deleted?),
    }
}

pub(super) async fn set_limits(ctl: &mut Ctl) -> Result<(), Stop> {
    let (user, text) = (ctl.word(0).to_owned(), ctl.word(1).to_owned());
    ctl.say(format_args!("Setting user limits to \"{text}\" for user \"{user}\" ..."))?;
    let limits = limits_of(&text)?;
    ctl.user(&user).await?;
    for (name, value) in &limits {
        ctl.api.put(&ApiPath::of(&["user-limits", &user, name]), &json!({ "value": value })).await?;
    }
    Ok(())
}

pub(super) async fn clear_limits(ctl: &mut Ctl) -> Result<(), Stop> {
    let (user, which) = (ctl.word(0).to_owned(), ctl.word(1).to_owned());
    ctl.say(format_args!("Clearing \"{which}\" limit for user \"{user}\" ..."))?;
    ctl.user(&user).await?;
    let names: &[&str] = match which.as_str() {
        "all" => &["max-connections", "max-channels"],
        one => &[one],
    };
    for name in names {
        unless_gone(ctl.api.delete(&ApiPath::of(&["user-limits", &user, name])).await)?;
    }
    Ok(())
}

/// Limits that were typed as JSON.
pub(super) fn limits_of(text: &str) -> Result<Map<String, Value>, Stop> {
    match json_of(text)? {
        Value::Object(limits) => Ok(limits),
        _ => Err(Stop::error(UNAVAILABLE, "limits are an object, like {\"max-connections\": 100}")),
    }
}
