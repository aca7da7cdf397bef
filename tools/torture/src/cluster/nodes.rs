//! Three nodes as processes, and what they say of themselves.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::wires::Wires;
use crate::doors::Doors;
use crate::jobs::Http;
use crate::server::Server;

/// How many there are.
pub(super) const NODES: usize = 3;
/// How long a node may take to say how it is. One that is frozen does not say.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// How long nodes may take to find together.
pub(super) const TOGETHER_MAX: Duration = Duration::from_secs(60);
/// Who leads, and why, is told in the log.
const SAY_MORE: [&str; 2] = ["--log", "info"];
/// How much of the log each node keeps for others: who leads decides whether one that was away gets entries or everything.
const LOG_KEPT: [&str; NODES] = ["0", "4MiB", "256MiB"];
const AGAIN: Duration = Duration::from_millis(20);

/// The nodes, by their numbers.
pub(super) struct Nodes {
    all: [Server; NODES],
    /// What is between them.
    pub(super) wires: Wires,
}

/// What a node says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) is_leading: bool,
    pub(super) has_leader: bool,
    pub(super) term: u64,
    pub(super) applied: u64,
    pub(super) last: u64,
    pub(super) snapshots_received: u64,
}

/// What a node is called.
pub(super) fn name(number: usize) -> String {
    format!("n{}", number + 1)
}

impl Nodes {
    /// Starts the first, and has the others join it.
    pub(super) async fn start(nexo: &Path, home: &Path) -> anyhow::Result<Self> {
        let wires = Wires::start().await?;
        let make = |number: usize| {
            let log = home.join(format!("{}.log", name(number)));
            Server::new(nexo, &home.join(name(number)), &log)
        };
        let mut all = [make(0)?, make(1)?, make(2)?];
        for (number, server) in all.iter_mut().enumerate() {
            let listen = ["--cluster-listen".to_owned(), wires.node(number).to_string()];
            let kept = ["--cluster-log-kept".to_owned(), LOG_KEPT[number].to_owned()];
            let always = SAY_MORE.map(str::to_owned).into_iter().chain(listen).chain(kept);
            let always: Vec<String> = always.collect();
            let mut arguments = vec!["--node".to_owned(), name(number), "--cluster".to_owned()];
            arguments.push(wires.front(number).to_string());
            if number > 0 {
                arguments.extend(["--join".to_owned(), wires.front(0).to_string()]);
            }
            arguments.extend_from_slice(&always);
            server.set_arguments(arguments);
            server.start().await.with_context(|| format!("node {}", name(number)))?;
            // What a node is in its cluster it knows from its data.
            server.set_arguments(always);
        }
        Ok(Self { all, wires })
    }

    pub(super) fn doors(&self) -> Doors {
        let [first, others @ ..] = &self.all;
        Doors::new(first.door(), others.iter().map(Server::door).collect())
    }

    pub(super) const fn get(&mut self, number: usize) -> &mut Server {
        &mut self.all[number]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Server> {
        self.all.iter()
    }

    /// What a node says, if it does.
    pub(super) async fn figures(&self, number: usize) -> Option<Figures> {
        timeout(ANSWER_MAX, ask(&self.all[number])).await.ok()?
    }

    /// Who leads, if one of these says so, in the latest term.
    pub(super) async fn leader(&self, among: &[usize]) -> Option<(usize, u64)> {
        let mut found = None;
        for number in among {
            let Some(figures) = self.figures(*number).await.filter(|figures| figures.is_leading) else {
                continue;
            };
            if found.is_none_or(|(_, term)| term < figures.term) {
                found = Some((*number, figures.term));
            }
        }
        found
    }

    /// Waits until one of these leads.
    pub(super) async fn until_led(&self, among: &[usize]) -> anyhow::Result<(usize, u64)> {
        let begun = Instant::now();
        loop {
            if let Some(leader) = self.leader(among).await {
                return Ok(leader);
            }
            if begun.elapsed() > TOGETHER_MAX {
                bail!("none of {among:?} leads after {TOGETHER_MAX:?}");
            }
            sleep(AGAIN).await;
        }
    }

    /// Whether all nodes answer, know the same term and leader, and lack no more than so many entries.
    pub(super) async fn are_in_step(&self, within: u64) -> bool {
        let mut all = Vec::new();
        for number in 0..NODES {
            let Some(figures) = self.figures(number).await else { return false };
            all.push(figures);
        }
        let leader = all.iter().find(|figures| figures.is_leading);
        leader.is_some_and(|leader| {
            all.iter().all(|figures| {
                figures.has_leader
                    && figures.term == leader.term
                    && figures.applied + within >= leader.applied
            })
        })
    }

    /// Has a node lead, through any of them.
    pub(super) async fn transfer(&self, to: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut said = String::new();
        while begun.elapsed() < TOGETHER_MAX {
            if self.leader(&[to]).await.is_some() {
                return Ok(());
            }
            let mut wire = match Http::connect(self.all[to].door().http).await {
                Ok(wire) => wire,
                Err(_) => continue,
            };
            let body = json!({ "to": name(to) });
            match timeout(
                Duration::from_secs(10),
                wire.call("POST", "/api/nexo/cluster/transfer", Some(&body)),
            )
            .await
            {
                Ok(Ok(replied)) if replied.is_ok() => {}
                Ok(Ok(replied)) => said = format!("{} {}", replied.status, replied.body),
                Ok(Err(_)) | Err(_) => "no answer".clone_into(&mut said),
            }
            sleep(AGAIN).await;
        }
        bail!("node {} does not lead although it was asked to; it said last: {said}", name(to))
    }
}

/// Reads the metrics, which every node tells by itself and at once.
async fn ask(server: &Server) -> Option<Figures> {
    let mut stream = TcpStream::connect(server.door().http).await.ok()?;
    let request =
        format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.door().http);
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let figure = |name: &str| {
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    Some(Figures {
        is_leading: figure("nexo_cluster_leading")? == 1,
        has_leader: figure("nexo_cluster_has_leader")? == 1,
        term: figure("nexo_cluster_term")?,
        applied: figure("nexo_cluster_applied_index")?,
        last: figure("nexo_cluster_last_index")?,
        snapshots_received: figure("nexo_cluster_snapshots_received_total")?,
    })
}
