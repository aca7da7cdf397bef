//! The words on the command line, in RabbitMQ's syntax: options may stand anywhere, `--name value` and `--name=value` are the
//! same, and `--` ends them. Words that look like options but are numbers are words.

use std::collections::BTreeMap;
use std::time::Duration;

use super::commands::Command;
use super::stop::{Stop, USAGE};
use crate::management::{ANSWER_MAX, ManagementUrl};

/// An option: its letter, its name, and whether a value follows.
pub(super) type Opt = (Option<char>, &'static str, bool);

/// What every command takes.
const COMMON: [Opt; 15] = [
    (Some('n'), "node", true),
    (Some('t'), "timeout", true),
    (Some('q'), "quiet", false),
    (Some('s'), "silent", false),
    (Some('l'), "longnames", false),
    (Some('p'), "vhost", true),
    (Some('h'), "help", false),
    (Some('?'), "help", false),
    (None, "formatter", true),
    (None, "no-table-headers", false),
    (None, "table-headers", false),
    (None, "erlang-cookie", true),
    (None, "script-name", true),
    (None, "management", true),
    (None, "dry-run", false),
];

/// What was typed.
#[derive(Debug)]
pub(super) struct Given {
    /// The words that are no options, after the command.
    pub(super) words: Vec<String>,
    /// Which virtual host is meant.
    pub(super) vhost: String,
    options: BTreeMap<&'static str, String>,
    typed: String,
    usage: &'static str,
}

impl Given {
    /// The first word that is no option, nor the value of one that every command takes.
    pub(super) fn command_in(words: &[String]) -> Option<String> {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if !is_option(word) {
                return Some(word.clone());
            }
            let takes_value = find(&COMMON, word).is_some_and(|(_, _, takes_value)| takes_value);
            if takes_value && !word.contains('=') {
                words.next();
            }
        }
        None
    }

    /// All of it.
    ///
    /// # Errors
    /// If there is an option that the command does not take, a value is missing, or the number of words is wrong.
    pub(super) fn parse(all: &[String], command: &'static Command) -> Result<Self, Stop> {
        let typed = all.join(" ");
        let (mut words, mut options) = (Vec::new(), BTreeMap::new());
        let mut given = Self {
            words: Vec::new(),
            vhost: "/".to_owned(),
            options: BTreeMap::new(),
            typed,
            usage: command.usage,
        };
        let known: Vec<Opt> = COMMON.iter().chain(command.options).copied().collect();
        let mut rest = all.iter();
        let mut ended = false;
        while let Some(word) = rest.next() {
            if ended || !is_option(word) {
                words.push(word.clone());
                continue;
            }
            if word == "--" {
                ended = true;
                continue;
            }
            let Some((_, name, takes_value)) = find(&known, word) else {
                return Err(given.wrong(USAGE, format!("Invalid options for this command:\n{word} : ")));
            };
            let joined = word.split_once('=').map(|(_, value)| value.to_owned());
            let value = match (takes_value, joined) {
                (false, _) => String::new(),
                (true, Some(value)) => value,
                (true, None) => {
                    let missing =
                        || given.wrong(USAGE, format!("Invalid options for this command:\n{word} : "));
                    rest.next().cloned().ok_or_else(missing)?
                }
            };
            options.insert(name, value);
        }
        // The first word is the command itself.
        given.words = words.split_off(1.min(words.len()));
        given.options = options;
        let (min, max) = command.words;
        if !given.has("help") {
            if given.words.len() < min {
                return Err(given.wrong(USAGE, "not enough arguments."));
            }
            if given.words.len() > max {
                return Err(given.wrong(USAGE, "too many arguments."));
            }
        }
        Ok(given)
    }

    /// The same, where `-p` stands for this if it was not given.
    pub(super) fn in_vhost(mut self, otherwise: String) -> Self {
        self.vhost = self.value("vhost").map_or(otherwise, str::to_owned);
        self
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.options.contains_key(name)
    }

    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// How long an answer may take.
    pub(super) fn patience(&self) -> Result<Duration, Stop> {
        match self.value("timeout") {
            None => Ok(ANSWER_MAX),
            Some("infinity") => Ok(Duration::from_secs(u64::from(u32::MAX))),
            Some(text) => {
                let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds < 1e9);
                let wrong = || self.wrong(USAGE, format!("'{text}' is no number of seconds"));
                Ok(Duration::from_secs_f64(seconds.ok_or_else(wrong)?))
            }
        }
    }

    /// Where the broker is: `--management`, else what was configured, else the host of `--node`, else this machine.
    pub(super) fn url(&self, configured: Option<ManagementUrl>) -> Result<ManagementUrl, Stop> {
        if let Some(text) = self.value("management") {
            return text.parse().map_err(|error: String| self.wrong(USAGE, error));
        }
        if let Some(url) = configured {
            return Ok(url);
        }
        let host = self.value("node").and_then(|node| node.split_once('@')).map(|(_, host)| host);
        match host.filter(|host| !is_this_machine(host)) {
            Some(host) => Ok(ManagementUrl::of_host(host)),
            None => Ok(ManagementUrl::of_host("127.0.0.1")),
        }
    }

    /// A mistake in it, told as RabbitMQ tells it.
    pub(super) fn wrong(&self, code: u8, text: impl Into<String>) -> Stop {
        let (text, typed) = (text.into(), &self.typed);
        Stop::plain(
            code,
            format!(
                "Error (argument validation): {text}\nArguments given:\n\t{typed}\n\nUsage\n\n\
                 rabbitmqctl [--node <node>] [--longnames] [--quiet] {}",
                self.usage
            ),
        )
    }
}

fn is_option(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && word.parse::<f64>().is_err()
}

fn find(known: &[Opt], word: &str) -> Option<Opt> {
    let bare = word.split_once('=').map_or(word, |(name, _)| name);
    let by_name = bare.strip_prefix("--");
    let by_letter =
        bare.strip_prefix('-').filter(|rest| rest.chars().count() == 1).and_then(|rest| rest.chars().next());
    // RabbitMQ takes names with underscores as well.
    let by_name = by_name.map(|name| name.replace('_', "-"));
    known
        .iter()
        .find(|(letter, name, _)| {
            by_name.as_deref() == Some(*name) || by_letter.is_some() && by_letter == *letter
        })
        .copied()
}

/// Whether a node of that host is on the machine that the command runs on.
fn is_this_machine(host: &str) -> bool {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let own = own.trim();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    host == "localhost" || nexo_net::is_loopback_name(host) || host == own || short(host) == short(own)
}

#[cfg(test)]
mod tests {
    use super::super::commands::COMMANDS;
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn parsed(line: &str) -> Result<Given, Stop> {
        let words = words(line);
        let name = Given::command_in(&words).unwrap();
        let command = COMMANDS.iter().find(|command| command.name == name).unwrap();
        Given::parse(&words, command).map(|given| given.in_vhost("/".to_owned()))
    }

    #[test]
    fn options_stand_anywhere() {
        for line in [
            "-q -p acme list_queues name messages",
            "list_queues --vhost acme --quiet name messages",
            "list_queues name --vhost=acme messages -q",
            "-n rabbit@localhost list_queues -q name -p acme -- messages",
        ] {
            let given = parsed(line).unwrap();
            assert_eq!(
                (given.words.join(" "), given.vhost.as_str()),
                ("name messages".to_owned(), "acme"),
                "{line}"
            );
            assert!(given.has("quiet"), "{line}");
        }
    }

    #[test]
    fn wrong_options_and_numbers_of_words_are_usage_errors() {
        for line in
            ["list_users --bogus", "add_user", "add_user a b c d", "list_queues -p", "list_users -t x"]
        {
            let stop = parsed(line).and_then(|given| given.patience().map(drop)).unwrap_err();
            assert_eq!(stop.code(), USAGE, "{line}");
            assert!(stop.to_string().starts_with("Error (argument validation): "), "{stop}");
        }
    }

    #[test]
    fn a_node_of_another_host_is_asked_there() {
        let url = |line: &str| parsed(line).unwrap().url(None).unwrap().to_string();
        assert_eq!(url("-n rabbit@mq2.example list_users"), "http://mq2.example:15672");
        assert_eq!(url("-n rabbit@localhost list_users"), "http://127.0.0.1:15672");
        assert_eq!(url("list_users --management https://x:1"), "https://x:1");
        let configured = "http://y:2".parse().unwrap();
        assert_eq!(
            parsed("-n rabbit@x list_users").unwrap().url(Some(configured)).unwrap().to_string(),
            "http://y:2"
        );
    }
}
