//! The life of a broker: settings, ports, data, ready; and in the end, everything in the other order.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nexo_access::{FirstUser, Logins, OAuth, OAuthOptions};
use nexo_admin::{AdminOptions, ClusterControl, Listener};
use nexo_broker::{Broker, BrokerOptions, Codecs, OpenError};
use nexo_net::{Listeners, TlsOptions, TlsServer, Tunnels};
use nexo_types::Protocol;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::cluster::{ClusterNode, Control, Prepared};
use super::config::{Config, Layer};
use super::listen::Listen;
use super::{descriptors, logging};
use crate::signals::{Hangups, Signals};

/// How long calls that have begun may take to finish once the broker was asked to end.
const DRAIN: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Each option is also an environment variable (--data-dir: NEXO_DATA_DIR) and a key of the file
(data_dir). A flag goes before the environment, the environment before the file.

When the broker is ready it prints one line:
  ready amqp=127.0.0.1:5672,[::1]:5672 grpc=127.0.0.1:7654,[::1]:7654 ... data=./nexo-data

SIGTERM and SIGINT let it finish what is in flight, sync and exit with 0; a second one ends it.
SIGHUP has it read disk_free_min and memory_high again from the file, the files of TLS and the keys of signed tokens;
everything else needs a restart.

Examples:
  nexo serve
  nexo serve --data-dir /var/lib/nexo --log info
  nexo serve --config /etc/nexo.toml --http off
  nexo serve --tls-cert cert.pem --tls-key key.pem
  nexo serve --node mq1 --cluster 127.0.0.1:7655
  nexo serve --node mq2 --cluster 127.0.0.1:7656 --join 127.0.0.1:7655 --data-dir data2 --amqp 127.0.0.1:5682 ...";

/// Run a broker.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// A TOML file with settings
    #[arg(long, value_name = "FILE", env = "NEXO_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    layer: Layer,
}

impl ServeArgs {
    /// Serves until a signal says otherwise.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let config = self.settings()?;
        logging::start(&config)?;
        let mut signals = Signals::new().context("cannot listen for signals")?;
        let mut hangups = Hangups::new().context("cannot listen for signals")?;
        let mut serving = tokio::select! {
            started = Serving::start(&config) => started?,
            // It may wait for other nodes for long, and serves nobody yet.
            (name, _) = signals.next() => {
                tracing::info!(signal = name, "ended before it was ready");
                return Ok(ExitCode::SUCCESS);
            }
        };
        serving.print_ready(&config);
        let node = serving.cluster.clone();
        let outcome = loop {
            tokio::select! {
                (name, _) = signals.next() => {
                    tracing::info!(signal = name, "ending");
                    break Ok(Ending::Stop);
                }
                () = until_to_be_restarted(node.as_ref()) => break Ok(Ending::Anew),
                () = hangups.next() => self.read_again(&serving),
                failed = serving.failed() => break Err(failed),
            }
        };
        signals.force_next();
        serving.end().await;
        match outcome? {
            Ending::Stop => Ok(ExitCode::SUCCESS),
            Ending::Anew => Err(start_anew()),
        }
    }

    fn settings(&self) -> anyhow::Result<Config> {
        let file = self.config.as_deref().map(Layer::from_file).transpose()?.unwrap_or_default();
        self.layer.clone().over(file).decide()
    }

    /// Takes over what can change while the broker runs.
    fn read_again(&self, serving: &Serving) {
        match self.settings() {
            Ok(config) => {
                let (disk_free_min, memory_high) = (config.broker.disk_free_min, config.broker.memory_high);
                tracing::info!(disk_free_min, ?memory_high, "the settings were read again");
                serving.broker.set_disk_free_min(disk_free_min);
                serving.broker.set_memory_high(memory_high);
                serving.read_certificates(config.tls.as_ref());
                serving.read_oauth_keys(config.oauth.as_ref());
            }
            Err(error) => tracing::error!("the settings stay as they are: {error:#}"),
        }
    }
}

/// How it comes to an end.
enum Ending {
    /// Somebody asked for it.
    Stop,
    /// The data of this node is damaged, and is to come from the others.
    Anew,
}

async fn until_to_be_restarted(node: Option<&Arc<ClusterNode>>) {
    match node {
        Some(node) => node.until_to_be_restarted().await,
        None => std::future::pending().await,
    }
}

/// Has this process begin again, with nothing left in its memory. Returns if that fails.
fn start_anew() -> anyhow::Error {
    let begun = std::env::current_exe()
        .map(|path| std::process::Command::new(path).args(std::env::args_os().skip(1)).exec());
    let (Ok(error) | Err(error)) = begun;
    anyhow::Error::new(error).context("the node has to be started again, and cannot do so itself")
}

/// Opens the data. A node of a cluster whose data is damaged comes back as another one, with what the others have.
async fn open_data(config: &Config, connections_max: usize) -> anyhow::Result<(Option<Prepared>, Broker)> {
    let mut may_mend = true;
    loop {
        let prepared = Prepared::new(&config.cluster, &config.broker).await?;
        // SQS first: it knows its own queues for certain.
        let codecs = nexo_amqp::register(nexo_sqs::register(Codecs::default()));
        let cluster = prepared.as_ref().map(Prepared::options);
        let options = BrokerOptions { codecs, connections_max, cluster, ..config.broker.clone() };
        let opened = tokio::task::spawn_blocking(move || Broker::open(options))
            .await
            .context("the broker failed while it opened its data")?;
        match (opened, prepared) {
            (Err(error @ OpenError::Damaged { .. }), Some(prepared)) if may_mend => {
                prepared.note_damaged(&error, &config.cluster).await?;
                may_mend = false;
            }
            (opened, prepared) => return Ok((prepared, opened?)),
        }
    }
}

/// What an open address means for a broker that has no users but guest.
const ONLY_GUEST: &str = "there is no user but guest, who may come from this machine only, so nobody else can log in; \
    'nexo user add' makes one";

/// Whether other machines can reach an address.
fn is_open(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// Imports a file of definitions before anybody can come in. A new broker has its first users from there.
async fn load_definitions(broker: &Broker, path: &Path) -> anyhow::Result<()> {
    let name = path.display();
    let text =
        tokio::fs::read(path).await.with_context(|| format!("cannot read the definitions '{name}'"))?;
    let imported = nexo_admin::import_definitions(broker, &Logins::new(broker), text).await;
    imported.map_err(|reason| anyhow::anyhow!("the definitions '{name}' cannot be imported: {reason}"))
}

async fn make_event_exchange(broker: &Broker) {
    if let Err(error) = broker.ensure_event_exchange().await {
        tracing::warn!(%error, "the exchange of events could not be made");
    }
}

/// Whenever this node begins to lead: what every broker has is there, also if the leader before was lost before it had made it.
async fn see_to_basics(node: Arc<ClusterNode>, broker: Broker, first_user: FirstUser) {
    let mut leading = node.watch_role();
    loop {
        if leading.borrow_and_update().is_leading() {
            make_event_exchange(&broker).await;
            if let Err(error) = Logins::open(&broker, &first_user).await {
                tracing::warn!(%error, "the first user could not be made");
            }
        }
        if leading.changed().await.is_err() {
            return;
        }
    }
}

/// The ports of one way in.
struct Ports {
    listeners: Listeners,
    /// By the name of the setting.
    addresses: Vec<(&'static str, Vec<SocketAddr>)>,
}

impl Ports {
    /// Opens the plain ones, and those on which TLS is spoken. `what` is who will use them.
    async fn open(
        what: &str,
        plain: (&'static str, &Listen),
        secure: (&'static str, &Listen),
        tls: Option<&Arc<TlsServer>>,
    ) -> anyhow::Result<Self> {
        let mut ports = Self { listeners: Listeners::default(), addresses: Vec::new() };
        ports.add(plain.0, plain.1.bind(what).await?)?;
        if let Some(tls) = tls {
            ports.add(secure.0, secure.1.bind(what).await?.over_tls(tls))?;
        }
        Ok(ports)
    }

    fn add(&mut self, name: &'static str, listeners: Listeners) -> anyhow::Result<()> {
        if !listeners.is_empty() {
            let addresses =
                listeners.addresses().with_context(|| format!("cannot tell the addresses of {name}"))?;
            self.addresses.push((name, addresses));
            self.listeners.join(listeners);
        }
        Ok(())
    }
}

/// What has come of something that was to run for as long as the broker.
struct Ended {
    what: &'static str,
    result: anyhow::Result<()>,
}

/// A broker with its ways in open.
struct Serving {
    broker: Broker,
    servers: JoinSet<Ended>,
    /// What runs as one of these.
    running: Vec<&'static str>,
    stop: CancellationToken,
    addresses: Vec<(&'static str, Vec<SocketAddr>)>,
    tls: Option<Arc<TlsServer>>,
    logins: Logins,
    cluster: Option<Arc<ClusterNode>>,
}

impl Serving {
    /// Opens the ports first: if one is taken, the data is not touched.
    async fn start(config: &Config) -> anyhow::Result<Self> {
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            data_dir = %config.broker.data_dir.display(),
            pid = std::process::id(),
            "starting"
        );
        let connections_max = descriptors::connections_max();
        let tls = config.tls.as_ref().map(TlsServer::load).transpose()?.map(Arc::new);
        let oauth = config.oauth.as_ref().map(OAuth::load).transpose()?;
        let by = tls.as_ref();
        let mut amqp = Ports::open("AMQP", ("amqp", &config.amqp), ("amqps", &config.amqps), by).await?;
        let mut grpc =
            Ports::open("the native API", ("grpc", &config.grpc), ("grpc-tls", &config.grpc_tls), by).await?;
        let mut sqs =
            Ports::open("the SQS API", ("sqs", &config.sqs), ("sqs-tls", &config.sqs_tls), by).await?;
        let mut http =
            Ports::open("health and metrics", ("http", &config.http), ("https", &config.https), by).await?;
        let (prepared, broker) = open_data(config, connections_max).await?;
        let (stop, mut addresses) = (CancellationToken::new(), Vec::new());
        let cluster = match prepared {
            None => None,
            Some(prepared) => {
                addresses.push(("cluster", prepared.addresses().to_vec()));
                let mut tunnels = Tunnels::default();
                tunnels.attach(Protocol::Amqp, &mut amqp.listeners);
                tunnels.attach(Protocol::Grpc, &mut grpc.listeners);
                tunnels.attach(Protocol::Sqs, &mut sqs.listeners);
                tunnels.attach(Protocol::Http, &mut http.listeners);
                let node = prepared.begin(&broker, tunnels, stop.clone()).await?;
                for ports in [&mut amqp, &mut grpc, &mut sqs] {
                    ports.listeners.set_gate(node.gate());
                }
                Some(node)
            }
        };
        let logins = match &cluster {
            // What is there, the leader sees to.
            Some(node) if !node.is_leading() => Logins::new(&broker),
            Some(_) | None => {
                if let Some(path) = &config.load_definitions {
                    load_definitions(&broker, path).await?;
                }
                Logins::open(&broker, &config.first_user).await?
            }
        };
        logins.set_oauth(oauth);
        let only_guest = logins.has_only_guest().then_some(ONLY_GUEST);
        let (servers, running) = (JoinSet::new(), Vec::new());
        let mut serving =
            Self { broker, servers, running, stop, addresses, tls, logins: logins.clone(), cluster };
        match serving.cluster.clone() {
            None => make_event_exchange(&serving.broker).await,
            Some(node) => {
                let first_user = config.first_user.clone();
                serving.run("leadership", see_to_basics(node, serving.broker.clone(), first_user));
            }
        }
        serving.run("events", nexo_amqp::publish_events(serving.broker.clone()));
        if let Some(listeners) = serving.note(amqp, only_guest) {
            let (broker, stop) = (serving.broker.clone(), serving.stop.clone().cancelled_owned());
            let server = nexo_amqp::serve(broker, logins.clone(), listeners, config.amqp_options, stop);
            serving.spawn("amqp", async move { server.await.context("the AMQP port failed") });
        }
        if let Some(listeners) = serving.note(grpc, only_guest) {
            let stop = serving.stop.clone().cancelled_owned();
            let server = nexo_grpc::serve(serving.broker.clone(), logins.clone(), listeners, stop);
            serving.spawn("grpc", async move { Ok(server.await?) });
        }
        let has_keys = !config.sqs_options.access_keys.is_empty();
        if let Some(listeners) = serving.note(sqs, only_guest.filter(|_| !has_keys)) {
            let (broker, stop) = (serving.broker.clone(), serving.stop.clone().cancelled_owned());
            let options = config.sqs_options.clone();
            let server = nexo_sqs::serve(broker, logins.clone(), listeners, options, stop);
            serving.spawn("sqs", async move { server.await.context("the SQS port failed") });
        }
        if let Some(listeners) = serving.note(http, Some("whoever reaches it can read health and metrics")) {
            let stop = serving.stop.clone().cancelled_owned();
            let options = AdminOptions {
                listeners: serving.listeners(),
                tls: serving.tls.clone(),
                gate: serving.cluster.as_ref().map(|node| node.gate()),
                cluster: serving
                    .cluster
                    .clone()
                    .map(|node| Arc::new(Control(node)) as Arc<dyn ClusterControl>),
                ..config.admin_options.clone()
            };
            let server = nexo_admin::serve(serving.broker.clone(), logins, listeners, options, stop);
            serving.spawn("http", async move { server.await.context("the management port failed") });
        }
        Ok(serving)
    }

    /// Has something run until it ends, which it does when the broker is asked to.
    fn spawn(&mut self, what: &'static str, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.running.push(what);
        self.servers.spawn(async move { Ended { what, result: task.await } });
    }

    /// The same for what would never end by itself.
    fn run(&mut self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let stopped = self.stop.clone();
        self.spawn(what, async move {
            stopped.run_until_cancelled(task).await;
            Ok(())
        });
    }

    /// Notes where a way in is, and gives its sockets if it has any. `fact` is what it means that others can reach it.
    fn note(&mut self, ports: Ports, fact: Option<&str>) -> Option<Listeners> {
        for (protocol, addresses) in &ports.addresses {
            for address in addresses {
                tracing::info!(protocol, %address, "listening");
                if let Some(fact) = fact.filter(|_| is_open(*address)) {
                    tracing::warn!(
                        protocol,
                        %address,
                        "listening on an address that other machines can reach: {fact}"
                    );
                }
            }
        }
        self.addresses.extend(ports.addresses);
        (!ports.listeners.is_empty()).then_some(ports.listeners)
    }

    /// Where all ways in are, for those who ask.
    fn listeners(&self) -> Vec<Listener> {
        let all = self.addresses.iter();
        let of = |(protocol, addresses): &(&'static str, Vec<SocketAddr>)| {
            let protocol = *protocol;
            addresses.iter().map(move |address| Listener { protocol, address: *address }).collect::<Vec<_>>()
        };
        all.flat_map(of).collect()
    }

    /// Reads the files of TLS again. What cannot be used changes nothing.
    fn read_certificates(&self, options: Option<&TlsOptions>) {
        match (&self.tls, options) {
            (Some(tls), Some(options)) => match tls.reload(options) {
                Ok(()) => tracing::info!("new connections have the certificates that were read again"),
                Err(error) => tracing::error!("the certificates stay as they are: {error}"),
            },
            (None, Some(_)) => tracing::warn!("TLS was off at the start; it needs a restart"),
            (Some(_), None) => tracing::warn!("TLS was on at the start; the certificates stay as they are"),
            (None, None) => {}
        }
    }

    /// Reads the keys of signed tokens again. Those that cannot be used change nothing.
    fn read_oauth_keys(&self, options: Option<&OAuthOptions>) {
        match options.map(OAuth::load).transpose() {
            Ok(oauth) => self.logins.set_oauth(oauth),
            Err(error) => tracing::error!("the keys of signed tokens stay as they are: {error}"),
        }
    }

    fn print_ready(&self, config: &Config) {
        let mut line = "ready".to_owned();
        for (name, addresses) in &self.addresses {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            line.push_str(&format!(" {name}={}", addresses.join(",")));
        }
        let mut out = io::stdout().lock();
        // A broker whose output nobody reads is as good as any other.
        let _ = writeln!(out, "{line} data={}", config.broker.data_dir.display());
        let _ = out.flush();
    }

    /// Why one of the ways in ended although nobody asked it to.
    async fn failed(&mut self) -> anyhow::Error {
        match self.servers.join_next().await {
            Some(Ok(Ended { result: Err(error), .. })) => error,
            Some(Ok(Ended { what, result: Ok(()) })) => {
                anyhow::anyhow!("{what} ended although nobody asked it to")
            }
            Some(Err(error)) => anyhow::Error::new(error).context("a server failed"),
            None => anyhow::anyhow!("there is nothing left to serve"),
        }
    }

    /// Lets no one in any more, lets those inside finish, then syncs and closes the data.
    async fn end(mut self) {
        if let Some(node) = &self.cluster {
            // Clients of this node, and all others, go on with another leader.
            node.step_down().await;
        }
        self.stop.cancel();
        let drained = tokio::time::timeout(DRAIN, async {
            while let Some(ended) = self.servers.join_next().await {
                let Ok(Ended { what, result }) = ended else { continue };
                self.running.retain(|running| *running != what);
                if let Err(error) = result {
                    tracing::error!("{error:#}");
                }
            }
        });
        if drained.await.is_err() {
            let (left, seconds) = (self.running.join(", "), DRAIN.as_secs());
            tracing::warn!(left, "some calls did not finish within {seconds} s and are cut off");
            self.servers.abort_all();
        }
        self.broker.shutdown().await;
        if let Some(node) = &self.cluster {
            node.close().await;
        }
        tracing::info!("stopped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_closed_to_other_machines() {
        for (address, open) in [
            ("127.0.0.1:1", false),
            ("127.1.2.3:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("192.0.2.1:1", true),
        ] {
            assert_eq!(is_open(address.parse().unwrap()), open, "{address}");
        }
    }
}
