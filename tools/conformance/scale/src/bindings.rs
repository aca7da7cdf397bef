//! Many bindings on one topic exchange: every message arrives where a naive matcher says and nowhere else, and the rate
//! of publishing is told with one binding and with all.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::ensure;
use nexo_amqp_client::{Client, PERSISTENT};

use crate::Size;
use crate::broker::{Broker, CHANNEL};
use crate::report::{Report, rate};

const EXCHANGE: &str = "scale.topic";
const RATE_QUEUE: &str = "scale.rate";
/// A key that only one queue is bound for.
const RATE_KEY: &str = "the.rate.of.publishing";
const BINDINGS_PER_QUEUE: usize = 10;
/// Publishes that are confirmed together.
const BURST: usize = 500;
/// Words of keys; few, so that patterns often match.
const WORDS: [&str; 12] = ["a", "b", "c", "d", "e", "eu", "us", "log", "order", "x1", "x2", "x3"];

pub(crate) async fn run(broker: &Broker, size: Size, report: &mut Report) -> anyhow::Result<()> {
    let count = size.of(10_000, 500);
    let messages = size.of(5_000, 300);
    let published = size.of(100_000, 2_000);
    // The same every time, so that a failure can be repeated.
    let mut random = fastrand::Rng::with_seed(20_261_115);
    let queues: Vec<String> =
        (0..count / BINDINGS_PER_QUEUE).map(|number| format!("scale.topic.{number}")).collect();
    let bindings: Vec<(usize, String)> = (0..count)
        .map(|number| (number % queues.len(), pattern(&mut random)))
        .filter(|(_, pattern)| !matches(pattern, RATE_KEY))
        .collect();

    let mut client = broker.client().await?;
    client.select_confirms(CHANNEL).await?;
    client.declare_exchange(CHANNEL, EXCHANGE, "topic").await?;
    client.declare_queues(CHANNEL, &[RATE_QUEUE.to_owned()]).await?;
    client.bind(CHANNEL, EXCHANGE, [(RATE_QUEUE, RATE_KEY)].into_iter()).await?;
    let mut publisher = Publisher { client, tag: 0, confirmed: 0 };
    let seconds = publisher.time(published).await?;
    report.row("publishing to a topic exchange with 1 binding", rate(published, seconds));

    let began = Instant::now();
    publisher.client.declare_queues(CHANNEL, &queues).await?;
    let pairs: Vec<(&str, &str)> =
        bindings.iter().map(|(queue, pattern)| (queues[*queue].as_str(), pattern.as_str())).collect();
    publisher.client.bind(CHANNEL, EXCHANGE, pairs.into_iter()).await?;
    let took = began.elapsed().as_secs_f64();
    let total = bindings.len() + 1;
    report.row(format!("{} queues and {total} bindings made in", queues.len()), format!("{took:.1} s"));
    let seconds = publisher.time(published).await?;
    report.row(format!("publishing with {total} bindings, of which one matches"), rate(published, seconds));

    let mut expected: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut copies = 0;
    let began = Instant::now();
    for number in 0..messages {
        let key = key(&mut random);
        let body = format!("{number} {key}");
        let mut matching: Vec<usize> =
            bindings.iter().filter(|(_, pattern)| matches(pattern, &key)).map(|(queue, _)| *queue).collect();
        matching.sort_unstable();
        matching.dedup();
        copies += matching.len();
        for queue in matching {
            expected.entry(queue).or_default().push(body.clone());
        }
        publisher.publish(&key, body.as_bytes()).await?;
    }
    publisher.settle().await?;
    for (number, queue) in queues.iter().enumerate() {
        let mut found = Vec::new();
        while let Some(message) = publisher.client.get(CHANNEL, queue, true).await? {
            found.push(String::from_utf8_lossy(&message.body).into_owned());
        }
        let expected = expected.remove(&number).unwrap_or_default();
        ensure!(found == expected, "queue {queue} has {found:?}, and should have {expected:?}");
    }
    report.row(
        format!("{messages} messages with random keys: {copies} copies, each exactly where it should be"),
        format!("yes, {:.1} s", began.elapsed().as_secs_f64()),
    );
    let mut client = publisher.client;
    client.delete_queues(CHANNEL, &queues).await?;
    client.delete_queues(CHANNEL, &[RATE_QUEUE.to_owned()]).await?;
    Ok(client.delete_exchange(CHANNEL, EXCHANGE).await?)
}

/// Publishes with confirms, a burst at a time.
struct Publisher {
    client: Client,
    /// The last publish, and the last that is known to be confirmed.
    tag: u64,
    confirmed: u64,
}

impl Publisher {
    /// How many seconds it takes to publish so many to the one queue and have them confirmed.
    async fn time(&mut self, count: usize) -> anyhow::Result<f64> {
        let began = Instant::now();
        for _ in 0..count {
            self.publish(RATE_KEY, &[b'x'; 100]).await?;
        }
        self.settle().await?;
        Ok(began.elapsed().as_secs_f64())
    }

    async fn publish(&mut self, key: &str, body: &[u8]) -> anyhow::Result<()> {
        self.client.add_publish(CHANNEL, EXCHANGE, key, PERSISTENT, body)?;
        self.tag += 1;
        if self.tag.is_multiple_of(BURST as u64) { self.settle().await } else { Ok(()) }
    }

    async fn settle(&mut self) -> anyhow::Result<()> {
        if self.confirmed < self.tag {
            self.client.flush().await?;
            self.client.confirmed(self.tag).await?;
            self.confirmed = self.tag;
        }
        Ok(())
    }
}

fn word(random: &mut fastrand::Rng) -> &'static str {
    WORDS[random.usize(..WORDS.len())]
}

fn key(random: &mut fastrand::Rng) -> String {
    let words: Vec<&str> = (0..random.usize(1..=5)).map(|_| word(random)).collect();
    words.join(".")
}

/// Mostly words, some stars, now and then a hash.
fn pattern(random: &mut fastrand::Rng) -> String {
    let words = (0..random.usize(2..=5)).map(|_| match random.u8(..20) {
        0 => "#",
        1..=4 => "*",
        _ => word(random),
    });
    words.collect::<Vec<&str>>().join(".")
}

/// Whether a pattern matches a key: `*` is one word, `#` any number. As plain as can be.
fn matches(pattern: &str, key: &str) -> bool {
    fn from(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern, key) {
            ([], []) => true,
            ([], _) => false,
            (["#", rest @ ..], _) => (0..=key.len()).any(|skipped| from(rest, &key[skipped..])),
            (_, []) => false,
            ([first, rest @ ..], [word, words @ ..]) => (*first == "*" || first == word) && from(rest, words),
        }
    }
    let (pattern, key): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), key.split('.').collect());
    from(&pattern, &key)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_are_one_word_and_hashes_any_number() {
        for (pattern, key) in
            [("a.*.c", "a.b.c"), ("#", "a.b"), ("a.#", "a"), ("#.c", "a.b.c"), ("a.#.c", "a.c")]
        {
            assert!(matches(pattern, key), "{pattern} {key}");
        }
        for (pattern, key) in [("a.*", "a"), ("a.*", "a.b.c"), ("*", "a.b"), ("a.#.c", "a.b"), ("a", "b")] {
            assert!(!matches(pattern, key), "{pattern} {key}");
        }
    }
}
