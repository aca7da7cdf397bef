//! `nexo cluster`: how the nodes of a cluster are, who leads, and who belongs to it; and one to try out.

mod shown;
mod try_out;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Subcommand;
use nexo_admin::{ClusterHealth, ClusterReport};
use serde_json::json;

use super::queue::confirm;
use crate::cli::ServerArgs;
use crate::management::{ApiPath, Management, asked};
use crate::output::{Format, Printer};
use crate::serve::recover;
use crate::signals::Signals;
use crate::units::Span;

/// To the first line, with nothing below it.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

const EXAMPLES: &str = "\
Any node can be asked, over its management port; --management names another one.
A node joins with 'nexo serve --node NAME --cluster HOST:PORT --join HOST:PORT'.

Examples:
  nexo cluster try
  nexo cluster status
  nexo cluster status --watch
  nexo cluster transfer mq2
  nexo cluster drain mq1
  nexo cluster remove mq3 --yes";

/// Look after a cluster: its nodes, who leads, and what it can still lose
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// The cluster and its nodes, and what it can still lose; exit code 1 if nobody leads
    Status {
        #[command(flatten)]
        watch: Watch,
    },
    /// The nodes, with all that is known of each
    Nodes {
        #[command(flatten)]
        watch: Watch,
    },
    /// The Raft groups: who leads and who votes
    Groups {
        #[command(flatten)]
        watch: Watch,
    },
    /// Have another node lead
    Transfer {
        /// Which; without one, the node that has most of the log
        #[arg(value_name = "NODE")]
        to: Option<String>,
    },
    /// Have a node lead no more and be sent no clients, so that it can be stopped
    Drain {
        /// The node
        node: String,
        /// Have it take part again; a restart does that as well
        #[arg(long)]
        end: bool,
    },
    /// Take a node out of the cluster, for good. It can join again with an empty data directory
    Remove {
        /// The node
        node: String,
        /// Also if those that stay have no majority
        #[arg(long)]
        force: bool,
        /// Do not ask; needed where there is no terminal
        #[arg(long, short)]
        yes: bool,
    },
    /// Have the node of a data directory go on alone, when a majority is gone for good. It must not run; what only the others had is
    /// lost, and they must never be started again with their data
    Recover {
        /// The data directory
        #[arg(long, value_name = "DIR")]
        data_dir: PathBuf,
        /// Do not ask; needed where there is no terminal
        #[arg(long, short)]
        yes: bool,
    },
    /// Run three nodes on this machine, to try a cluster out; Ctrl-C ends them
    Try(try_out::TryArgs),
}

/// Whether something is shown once or again and again.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Watch {
    /// Show it again and again, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// How often
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "watch")]
    every: Span,
    /// Stop after so many times
    #[arg(long, value_name = "N", requires = "watch")]
    count: Option<u64>,
}

/// Which part of a report is shown.
#[derive(Clone, Copy, Debug)]
enum Part {
    All,
    Nodes,
    Groups,
}

impl ClusterArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut api = shared.management();
        let mut out = Printer::new(shared.output);
        match self.command {
            ClusterCommand::Status { watch } => return watch.show(&mut api, &mut out, Part::All).await,
            ClusterCommand::Nodes { watch } => return watch.show(&mut api, &mut out, Part::Nodes).await,
            ClusterCommand::Groups { watch } => return watch.show(&mut api, &mut out, Part::Groups).await,
            ClusterCommand::Transfer { to } => {
                let body = to.as_ref().map_or_else(|| json!({}), |to| json!({ "to": to }));
                let path = ApiPath::of(&["nexo", "cluster", "transfer"]);
                let answer = asked("hand leadership over", api.post(&path, &body).await)?;
                let leader = answer["leader"].as_str().unwrap_or_default();
                out.show(&answer, format_args!("node '{leader}' leads"))?;
            }
            ClusterCommand::Drain { node, end } => {
                let path = ApiPath::of(&["nexo", "cluster", "nodes", &node, "drain"]);
                asked(format!("drain node '{node}'"), api.post(&path, &json!({ "drain": !end })).await)?;
                let text = if end { "takes part again" } else { "is drained: it can be stopped" };
                out.show(&json!({ "node": node, "drained": !end }), format_args!("node '{node}' {text}"))?;
            }
            ClusterCommand::Remove { node, force, yes } => {
                confirm(yes, &format!("take node '{node}' out of its cluster, for good"))?;
                let mut path = ApiPath::of(&["nexo", "cluster", "nodes", &node]);
                if force {
                    path = path.with("force", "true");
                }
                asked(format!("remove node '{node}'"), api.delete(&path).await)?;
                out.show(&json!({ "node": node, "removed": true }), format_args!("removed node '{node}'"))?;
            }
            ClusterCommand::Recover { data_dir, yes } => {
                let what = "go on with this node alone, and lose what only the other nodes have";
                confirm(yes, what)?;
                let node = recover(&data_dir)?;
                let text = format!(
                    "node '{node}' is alone from its next start on; let others join it with empty data directories"
                );
                out.show(&json!({ "node": node, "alone": true }), text)?;
            }
            ClusterCommand::Try(args) => return args.run().await,
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Watch {
    async fn show(self, api: &mut Management, out: &mut Printer, part: Part) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::new()?;
        let mut shown = 0;
        loop {
            let report = report(api).await?;
            if self.watch && out.format == Format::Text && io::stdout().is_terminal() {
                out.raw(CLEAR)?;
            }
            match (part, out.format) {
                (Part::All, Format::Json) => out.json(&report)?,
                (Part::Nodes, Format::Json) => report.nodes.iter().try_for_each(|node| out.json(node))?,
                (Part::Groups, Format::Json) => report.groups.iter().try_for_each(|group| out.json(group))?,
                (Part::All, Format::Text) => out.line(shown::status(&report))?,
                (Part::Nodes, Format::Text) => out.line(shown::nodes(&report))?,
                (Part::Groups, Format::Text) => out.line(shown::groups(&report))?,
            }
            out.flush()?;
            shown += 1;
            if !self.watch || self.count.is_some_and(|count| shown >= count) {
                let is_down = report.health == ClusterHealth::Down;
                return Ok(if is_down { ExitCode::FAILURE } else { ExitCode::SUCCESS });
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(self.every.millis().max(10))) => {}
                _ = signals.next() => return Ok(ExitCode::SUCCESS),
            }
        }
    }
}

async fn report(api: &mut Management) -> anyhow::Result<ClusterReport> {
    let answer = asked("look at the cluster", api.get(&ApiPath::of(&["nexo", "cluster"])).await)?;
    serde_json::from_value(answer).context("the broker's answer means nothing to this version of Nexo")
}
