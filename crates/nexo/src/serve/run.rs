//! The life of a broker: settings, ports, data, ready; and in the end, everything in the other order.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use nexo_access::Logins;
use nexo_broker::{Broker, BrokerOptions, Codecs};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::config::{Config, Layer};
use super::{descriptors, logging};
use crate::signals::{Hangups, Signals};

/// How long calls that have begun may take to finish once the broker was asked to end.
const DRAIN: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Each option is also an environment variable (--data-dir: NEXO_DATA_DIR) and a key of the file
(data_dir). A flag goes before the environment, the environment before the file.

When the broker is ready it prints one line:
  ready amqp=127.0.0.1:5672 grpc=127.0.0.1:7654 sqs=127.0.0.1:9324 http=127.0.0.1:15672 data=./nexo-data

SIGTERM and SIGINT let it finish what is in flight, sync and exit with 0; a second one ends it.
SIGHUP has it read disk_free_min again from the file; everything else needs a restart.

Examples:
  nexo serve
  nexo serve --data-dir /var/lib/nexo --log info
  nexo serve --config /etc/nexo.toml --http off";

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
        let mut serving = Serving::start(&config).await?;
        serving.print_ready(&config);
        let outcome = loop {
            tokio::select! {
                (name, _) = signals.next() => {
                    tracing::info!(signal = name, "ending");
                    break Ok(ExitCode::SUCCESS);
                }
                () = hangups.next() => self.read_again(&serving.broker),
                failed = serving.failed() => break Err(failed),
            }
        };
        signals.force_next();
        serving.end().await;
        outcome
    }

    fn settings(&self) -> anyhow::Result<Config> {
        let file = self.config.as_deref().map(Layer::from_file).transpose()?.unwrap_or_default();
        self.layer.clone().over(file).decide()
    }

    /// Takes over what can change while the broker runs.
    fn read_again(&self, broker: &Broker) {
        match self.settings() {
            Ok(config) => {
                let disk_free_min = config.broker.disk_free_min;
                tracing::info!(disk_free_min, "the settings were read again");
                broker.set_disk_free_min(disk_free_min);
            }
            Err(error) => tracing::error!("the settings stay as they are: {error:#}"),
        }
    }
}

/// What an open address means for a broker that has no users but guest.
const ONLY_GUEST: &str = "there is no user but guest, who may come from this machine only, so nobody else can log in; \
    'nexo user add' makes one";

/// Says what it means that others can reach a port.
fn warn_if_open(protocol: &str, listener: &TcpListener, fact: &str) {
    if let Ok(address) = listener.local_addr()
        && is_open(address)
    {
        tracing::warn!(protocol, %address, "listening on an address that other machines can reach: {fact}");
    }
}

/// Whether other machines can reach an address.
fn is_open(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// A broker with its ways in open.
struct Serving {
    broker: Broker,
    servers: JoinSet<anyhow::Result<()>>,
    stop: CancellationToken,
    addresses: Vec<(&'static str, String)>,
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
        let amqp = config.amqp.bind("AMQP").await?;
        let grpc = config.grpc.bind("the native API").await?;
        let sqs = config.sqs.bind("the SQS API").await?;
        let http = config.http.bind("health and metrics").await?;
        // SQS first: it knows its own queues for certain.
        let codecs = nexo_amqp::register(nexo_sqs::register(Codecs::default()));
        let options = BrokerOptions { codecs, connections_max, ..config.broker.clone() };
        let broker = tokio::task::spawn_blocking(move || Broker::open(options))
            .await
            .context("the broker failed while it opened its data")??;
        let logins = Logins::open(&broker, &config.first_user).await?;
        let mut serving =
            Self { broker, servers: JoinSet::new(), stop: CancellationToken::new(), addresses: Vec::new() };
        if let Some(listener) = amqp {
            serving.note("amqp", &listener)?;
            if logins.has_only_guest() {
                warn_if_open("amqp", &listener, ONLY_GUEST);
            }
            let stop = serving.stop.clone().cancelled_owned();
            let server =
                nexo_amqp::serve(serving.broker.clone(), logins.clone(), listener, config.amqp_options, stop);
            serving.servers.spawn(async move { server.await.context("the AMQP port failed") });
        }
        if let Some(listener) = grpc {
            serving.note("grpc", &listener)?;
            if logins.has_only_guest() {
                warn_if_open("grpc", &listener, ONLY_GUEST);
            }
            let stop = serving.stop.clone().cancelled_owned();
            let server = nexo_grpc::serve(serving.broker.clone(), logins.clone(), listener, stop);
            serving.servers.spawn(async move { Ok(server.await?) });
        }
        if let Some(listener) = sqs {
            serving.note("sqs", &listener)?;
            if config.sqs_options.access_keys.is_empty() && logins.has_only_guest() {
                warn_if_open("sqs", &listener, ONLY_GUEST);
            }
            let stop = serving.stop.clone().cancelled_owned();
            let options = config.sqs_options.clone();
            let server = nexo_sqs::serve(serving.broker.clone(), logins.clone(), listener, options, stop);
            serving.servers.spawn(async move { server.await.context("the SQS port failed") });
        }
        if let Some(listener) = http {
            serving.note("http", &listener)?;
            warn_if_open("http", &listener, "whoever reaches it can read health and metrics");
            let stop = serving.stop.clone().cancelled_owned();
            let options = config.admin_options.clone();
            let server = nexo_admin::serve(serving.broker.clone(), listener, options, stop);
            serving.servers.spawn(async move { server.await.context("the management port failed") });
        }
        Ok(serving)
    }

    fn note(&mut self, name: &'static str, listener: &TcpListener) -> anyhow::Result<()> {
        let address = listener.local_addr().with_context(|| format!("cannot tell the address of {name}"))?;
        tracing::info!(protocol = name, %address, "listening");
        self.addresses.push((name, address.to_string()));
        Ok(())
    }

    fn print_ready(&self, config: &Config) {
        let mut line = "ready".to_owned();
        for (name, address) in &self.addresses {
            line.push_str(&format!(" {name}={address}"));
        }
        let mut out = io::stdout().lock();
        // A broker whose output nobody reads is as good as any other.
        let _ = writeln!(out, "{line} data={}", config.broker.data_dir.display());
        let _ = out.flush();
    }

    /// Why one of the ways in ended although nobody asked it to.
    async fn failed(&mut self) -> anyhow::Error {
        match self.servers.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => anyhow::Error::new(error).context("a server failed"),
            Some(Ok(Ok(()))) | None => anyhow::anyhow!("a server ended although nobody asked it to"),
        }
    }

    /// Lets no one in any more, lets those inside finish, then syncs and closes the data.
    async fn end(mut self) {
        self.stop.cancel();
        let drained = tokio::time::timeout(DRAIN, async {
            while let Some(result) = self.servers.join_next().await {
                if let Ok(Err(error)) = result {
                    tracing::error!("{error:#}");
                }
            }
        });
        if drained.await.is_err() {
            tracing::warn!("some calls did not finish within {} s and are cut off", DRAIN.as_secs());
            self.servers.abort_all();
        }
        self.broker.shutdown().await;
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
