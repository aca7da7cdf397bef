//! What is done to a running broker: queues emptied and deleted, connections closed, the memory watermark moved.

use std::time::Duration;

use serde_json::{Value, json};

use super::lists::pid;
use super::stop::{DATA, Stop, UNAVAILABLE, USAGE};
use super::{ApiPath, Ctl};

pub(super) async fn purge_queue(ctl: &mut Ctl) -> Result<(), Stop> {
    let (queue, vhost) = (ctl.word(0).to_owned(), ctl.vhost().to_owned());
    ctl.say(format_args!("Purging queue '{queue}' in vhost '{vhost}' ..."))?;
    match ctl.api.delete(&ApiPath::of(&["queues", &vhost, &queue, "contents"])).await {
        Err(failure) if failure.is_not_found() => Err(Stop::error(UNAVAILABLE, "not_found")),
        purged => Ok(purged?),
    }
}

pub(super) async fn delete_queue(ctl: &mut Ctl) -> Result<(), Stop> {
    let (queue, vhost) = (ctl.word(0).to_owned(), ctl.vhost().to_owned());
    let (if_empty, if_unused) = (ctl.given.has("if-empty"), ctl.given.has("if-unused"));
    let conditions = match (if_empty, if_unused) {
        (false, false) => "",
        (true, false) => " if queue is empty",
        (false, true) => " if queue is unused",
        (true, true) => " if queue is empty and if queue is unused",
    };
    ctl.say(format_args!("Deleting queue '{queue}' on vhost '{vhost}'{conditions} ..."))?;
    let path = ApiPath::of(&["queues", &vhost, &queue]);
    let found = ctl.api.get(&path).await.map_err(|failure| {
        if failure.is_not_found() { Stop::error(USAGE, "Queue not found") } else { failure.into() }
    })?;
    let mut asked = path;
    for (name, wanted) in [("if-empty", if_empty), ("if-unused", if_unused)] {
        asked = if wanted { asked.with(name, "true") } else { asked };
    }
    ctl.api.delete(&asked).await?;
    let ready = found["messages_ready"].as_u64().unwrap_or(0);
    ctl.say(format_args!("Queue was successfully deleted with {ready} ready messages"))
}

pub(super) async fn close_connection(ctl: &mut Ctl) -> Result<(), Stop> {
    let (which, reason) = (ctl.word(0).to_owned(), reason(ctl, 1));
    ctl.say(format_args!("Closing connection {which}, reason: {reason}..."))?;
    let all = ctl.api.list(&ApiPath::of(&["connections"]).with("columns", "name")).await?;
    let names = all.iter().filter_map(|connection| connection["name"].as_str());
    // As 'list_connections pid' shows it, or by its name.
    let found = names.into_iter().find(|name| *name == which || pid(name) == which);
    let gone = || Stop::error(UNAVAILABLE, format_args!("there is no connection {which}"));
    close(ctl, found.ok_or_else(gone)?, &reason).await.map(drop)
}

pub(super) async fn close_all_connections(ctl: &mut Ctl) -> Result<(), Stop> {
    let (vhost, reason) = (ctl.vhost().to_owned(), reason(ctl, 0));
    let path = if ctl.given.has("global") {
        ctl.say(format_args!("Closing all connections to the broker, reason: {reason}..."))?;
        ApiPath::of(&["connections"])
    } else {
        ctl.say(format_args!("Closing all connections in vhost {vhost}, reason: {reason}..."))?;
        ctl.vhost_there(&vhost).await?;
        ApiPath::of(&["vhosts", &vhost, "connections"])
    };
    close_each(ctl, &path, &reason).await
}

pub(super) async fn close_all_user_connections(ctl: &mut Ctl) -> Result<(), Stop> {
    let (user, reason) = (ctl.word(0).to_owned(), reason(ctl, 1));
    ctl.say(format_args!("Closing connections of user {user}, reason: {reason}..."))?;
    close_each(ctl, &ApiPath::of(&["connections", "username", &user]), &reason).await
}

async fn close_each(ctl: &mut Ctl, path: &ApiPath, reason: &str) -> Result<(), Stop> {
    let number = |ctl: &Ctl, option: &str| -> Result<Option<u64>, Stop> {
        let Some(text) = ctl.given.value(option) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| ctl.wrong(USAGE, format!("'{text}' is no number")))
    };
    let pause = Duration::from_millis(number(ctl, "per-connection-delay")?.unwrap_or(0));
    // As in RabbitMQ, 0 is no limit.
    let limit = number(ctl, "limit")?.filter(|limit| *limit > 0).unwrap_or(u64::MAX);
    let all = ctl.api.list(&path.clone().with("columns", "name")).await?;
    let names: Vec<String> = all.iter().filter_map(|item| item["name"].as_str().map(str::to_owned)).collect();
    let mut closed = 0_u64;
    for name in names.iter().take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        closed += u64::from(close(ctl, name, reason).await?);
        tokio::time::sleep(pause).await;
    }
    ctl.say(format_args!("Closed {closed} connections"))
}

/// Whether it was still there.
async fn close(ctl: &mut Ctl, name: &str, reason: &str) -> Result<bool, Stop> {
    match ctl.api.delete_because(&ApiPath::of(&["connections", name]), reason).await {
        Err(failure) if failure.is_not_found() => Ok(false),
        closed => Ok(closed.map(|()| true)?),
    }
}

/// All words from here on.
fn reason(ctl: &Ctl, from: usize) -> String {
    ctl.given.words.get(from..).unwrap_or_default().join(" ")
}

pub(super) async fn set_memory_watermark(ctl: &mut Ctl) -> Result<(), Stop> {
    let node = ctl.node().await?;
    let body: Value = match ctl.given.words.as_slice() {
        [word, text] if word == "absolute" => {
            let bytes = bytes_of(text);
            let wrong =
                || ctl.wrong(DATA, "Bad argument: The limit is a number of bytes, like 1000000000 or 1GiB");
            let body = json!({ "absolute_bytes": bytes.ok_or_else(wrong)? });
            let text = text.clone();
            ctl.say(format_args!("Setting memory threshold on {node} to {text} bytes ..."))?;
            body
        }
        [text] if text != "absolute" => {
            let fraction = text.parse::<f64>().ok().filter(|fraction| (0.0..=1.0).contains(fraction));
            let wrong =
                || ctl.wrong(DATA, "Bad argument: The threshold should be a fraction between 0.0 and 1.0");
            let fraction = fraction.ok_or_else(wrong)?;
            ctl.say(format_args!("Setting memory threshold on {node} to {fraction:?} ..."))?;
            json!({ "high": fraction })
        }
        _ => return Err(ctl.wrong(USAGE, "not enough arguments.")),
    };
    ctl.api.put(&ApiPath::of(&["nexo", "memory"]), &body).await?;
    Ok(())
}

/// A number of bytes with RabbitMQ's units.
fn bytes_of(text: &str) -> Option<u64> {
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.trim() {
        "" | "B" => 1,
        "k" | "K" | "ki" | "Ki" | "kiB" | "KiB" => 1 << 10,
        "M" | "Mi" | "MiB" => 1 << 20,
        "G" | "Gi" | "GiB" => 1 << 30,
        "T" | "Ti" | "TiB" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_rabbitmqs() {
        assert_eq!(bytes_of("1000"), Some(1000));
        assert_eq!(
            (bytes_of("1GiB"), bytes_of("1GB"), bytes_of("2M")),
            (Some(1 << 30), Some(1_000_000_000), Some(2 << 20))
        );
        assert_eq!((bytes_of("1.5G"), bytes_of("GiB"), bytes_of("99999999T")), (None, None, None));
    }
}
