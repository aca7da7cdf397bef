//! The settings of a broker and where each comes from: a flag, else the environment, else the file, else its
//! default. The same names everywhere: `--data-dir`, `NEXO_DATA_DIR`, `data_dir`.

use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use nexo_access::{FirstUser, OAuthOptions};
use nexo_admin::AdminOptions;
use nexo_broker::{BrokerOptions, SyncMode};
use nexo_net::TlsOptions;
use nexo_sqs::{AccessKey, LimitMode, SqsOptions};
use nexo_types::limits;
use serde::Deserialize;

use super::cluster::ClusterSettings;
use super::listen::Listen;
use super::tls::{TlsLoginFrom, TlsSettings, TlsVerify};
use crate::units::{Size, Watermark};

/// As clap wants it.
const QUEUES_MAX: u64 = limits::QUEUES_MAX as u64;

/// What one source says. On the command line the environment is asked for what no flag gives.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Layer {
    /// Where the data lies [default: ./nexo-data]
    #[arg(long, value_name = "DIR", env = "NEXO_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Addresses of AMQP 0-9-1 for RabbitMQ's clients, or off [default: 127.0.0.1:5672,[::1]:5672]
    #[arg(long, value_name = "HOST:PORT,...", env = "NEXO_AMQP")]
    pub(crate) amqp: Option<Listen>,
    /// Addresses of AMQP 0-9-1, with TLS, or off [default with --tls-cert: 127.0.0.1:5671,[::1]:5671]
    #[arg(long, value_name = "HOST:PORT,...", env = "NEXO_AMQPS")]
    pub(crate) amqps: Option<Listen>,
    /// Addresses of the native API, or off [default: 127.0.0.1:7654,[::1]:7654]
    #[arg(long, value_name = "HOST:PORT,...", env = "NEXO_GRPC")]
    pub(crate) grpc: Option<Listen>,
    /// Addresses of the native API, with TLS, or off [default with --tls-cert: 127.0.0.1:7653,[::1]:7653]
    #[arg(long, value_name = "HOST:PORT,...", env = "NEXO_GRPC_TLS")]
    pub(crate) grpc_tls: Option<Listen>,
    /// Addresses of the SQS API, or off [default: 127.0.0.1:9324,[::1]:9324]
    #[arg(long, value_name = "HOST:PORT,...", env = "NEXO_SQS")]
    pub(crate) sqs: Option<Listen>,
    /// Addresses of the SQS API, with TLS, or off [default with --tls-cert: 127.0.0.1:9325,[::1]:9325]
    #[arg(long, value_name = "HOST:PORT,...", env = "NEXO_SQS_TLS")]
    pub(crate) sqs_tls: Option<Listen>,
    /// Which limits the SQS API has: those of AWS, or those of the engine [default: relaxed]
    #[arg(long, value_enum, value_name = "LIMITS", env = "NEXO_SQS_LIMITS")]
    pub(crate) sqs_limits: Option<SqsLimits>,
    /// Keys that may use the SQS API, as ID:SECRET with commas between them; without any, this machine may. Others can
    /// read the command line: the file and the environment are the places for secrets
    #[arg(
        long,
        value_name = "KEYS",
        env = "NEXO_SQS_ACCESS_KEYS",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) sqs_access_keys: Option<Vec<String>>,
    /// The first user of a new broker, an administrator; without one it is guest, who may come from this machine only
    #[arg(long, value_name = "NAME", env = "NEXO_DEFAULT_USER")]
    pub(crate) default_user: Option<String>,
    /// The first user's password. Others can read the command line: the file and the environment are the places for secrets
    #[arg(long, value_name = "PASSWORD", env = "NEXO_DEFAULT_PASSWORD", hide_env_values = true)]
    pub(crate) default_password: Option<String>,
    /// The virtual host in which the first user may do everything [default: /]
    #[arg(long, value_name = "NAME", env = "NEXO_DEFAULT_VHOST")]
    pub(crate) default_vhost: Option<String>,
    /// A file of definitions (JSON), as RabbitMQ or Nexo export them, that is imported at every start. What is there already
    /// stays, but for users: they get what the file says. A new broker whose file has users makes no other
    #[arg(long, alias = "definitions", value_name = "FILE", env = "NEXO_LOAD_DEFINITIONS")]
    pub(crate) load_definitions: Option<PathBuf>,
    /// Addresses of health and metrics, or off [default: 127.0.0.1:15672,[::1]:15672]
    #[arg(long, value_name = "HOST:PORT,...", env = "NEXO_HTTP")]
    pub(crate) http: Option<Listen>,
    /// Addresses of health and metrics, with TLS, or off [default with --tls-cert: 127.0.0.1:15671,[::1]:15671]
    #[arg(long, value_name = "HOST:PORT,...", env = "NEXO_HTTPS")]
    pub(crate) https: Option<Listen>,
    /// Names, besides those of this machine, by which health and metrics may be asked for, with commas between them
    #[arg(long, value_name = "NAMES", env = "NEXO_HTTP_HOSTS", value_delimiter = ',')]
    pub(crate) http_hosts: Option<Vec<String>>,
    /// What this node is called in its cluster. A node by itself needs no name
    #[arg(long, value_name = "NAME", env = "NEXO_NODE")]
    pub(crate) node: Option<String>,
    /// The address at which the other nodes of a cluster reach this one; without --join it begins a cluster of one
    #[arg(long, value_name = "HOST:PORT", env = "NEXO_CLUSTER")]
    pub(crate) cluster: Option<String>,
    /// Nodes of a cluster that this node is to join; any of them will do, and a node that is in a cluster already ignores it
    #[arg(long, value_name = "HOST:PORT,...", env = "NEXO_JOIN", value_delimiter = ',')]
    pub(crate) join: Option<Vec<String>>,
    /// Begin a cluster if all nodes that --join names, the same ones on each of them, are new; the first of them does
    #[arg(long, env = "NEXO_BOOTSTRAP", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) bootstrap: Option<bool>,
    /// Addresses to listen on for other nodes [default: the address of --cluster]
    #[arg(long, value_name = "HOST:PORT,...", env = "NEXO_CLUSTER_LISTEN", value_delimiter = ',')]
    pub(crate) cluster_listen: Option<Vec<String>>,
    /// A file with the secret that all nodes of a cluster share
    #[arg(long, value_name = "FILE", env = "NEXO_CLUSTER_SECRET_FILE")]
    pub(crate) cluster_secret_file: Option<PathBuf>,
    /// This node's certificate (PEM), which other nodes check: for its address, as a server and as a client
    #[arg(long, value_name = "FILE", env = "NEXO_CLUSTER_TLS_CERT")]
    pub(crate) cluster_tls_cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", env = "NEXO_CLUSTER_TLS_KEY")]
    pub(crate) cluster_tls_key: Option<PathBuf>,
    /// Certificates (PEM) by which those of other nodes are checked
    #[arg(long, value_name = "FILE", env = "NEXO_CLUSTER_TLS_CA")]
    pub(crate) cluster_tls_ca: Option<PathBuf>,
    /// How much of the log each node keeps for nodes that were away; who misses more gets a copy of everything [default: 256MiB]
    #[arg(long, value_name = "BYTES", env = "NEXO_CLUSTER_LOG_KEPT")]
    pub(crate) cluster_log_kept: Option<Size>,
    /// The broker's certificate (PEM), followed by those that lead to one that clients know. With it and its key all
    /// ports with TLS are open that are not off. It and the other files of TLS are read again on SIGHUP
    #[arg(long, value_name = "FILE", env = "NEXO_TLS_CERT")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", env = "NEXO_TLS_KEY")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Certificates (PEM) by which those of clients are checked
    #[arg(long, value_name = "FILE", env = "NEXO_TLS_CLIENT_CA")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Whether clients show a certificate [default: require with tls_client_ca, otherwise none]
    #[arg(long, value_enum, value_name = "WHETHER", env = "NEXO_TLS_VERIFY")]
    pub(crate) tls_verify: Option<TlsVerify>,
    /// What in a client's certificate is the name of its user, for AMQP's EXTERNAL [default: distinguished_name]
    #[arg(long, value_enum, value_name = "WHAT", env = "NEXO_TLS_LOGIN_FROM")]
    pub(crate) tls_login_from: Option<TlsLoginFrom>,
    /// Public keys (PEM or JWKS) of those whose signed tokens (JWT, OAuth 2) are taken in place of a password. Read again on
    /// SIGHUP
    #[arg(long, value_name = "FILE", env = "NEXO_OAUTH_KEYS")]
    pub(crate) oauth_keys: Option<PathBuf>,
    /// What such a token must be for (aud), and its scopes begin with: RabbitMQ's resource_server_id
    #[arg(long, value_name = "NAME", env = "NEXO_OAUTH_AUDIENCE")]
    pub(crate) oauth_audience: Option<String>,
    /// Who must have issued such a token (iss) [default: anybody with one of the keys]
    #[arg(long, value_name = "NAME", env = "NEXO_OAUTH_ISSUER")]
    pub(crate) oauth_issuer: Option<String>,
    /// What a confirmed push survives: always a power cut, or the end of the process [default: always]
    #[arg(long, value_enum, value_name = "MODE", env = "NEXO_SYNC")]
    pub(crate) sync: Option<Sync>,
    /// How often the mode `interval` syncs, in milliseconds [default: 200]
    #[arg(long, value_name = "MS", env = "NEXO_SYNC_INTERVAL_MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub(crate) sync_interval_ms: Option<u64>,
    /// Size of one file of the log [default: 64MiB]
    #[arg(long, value_name = "BYTES", env = "NEXO_SEGMENT_BYTES")]
    pub(crate) segment_bytes: Option<Size>,
    /// Memory for messages; beyond it they are left on disk [default: 256MiB]
    #[arg(long, value_name = "BYTES", env = "NEXO_MEMORY_BYTES_MAX")]
    pub(crate) memory_bytes_max: Option<Size>,
    /// Memory for jobs and their results, of all job queues together; at most half of what the process may take
    /// [default: 1GiB]
    #[arg(long, value_name = "BYTES", env = "NEXO_JOBS_BYTES_MAX")]
    pub(crate) jobs_bytes_max: Option<Size>,
    /// Memory of the whole process above which publishers wait: a part of what the machine or its cgroup has, or a size.
    /// Read again on SIGHUP [default: 0.6]
    #[arg(long, value_name = "PART|BYTES", env = "NEXO_MEMORY_HIGH")]
    pub(crate) memory_high: Option<Watermark>,
    /// Connections of clients over AMQP, the native API and SQS together [default: what the limit of open files allows]
    #[arg(long, value_name = "N", env = "NEXO_CONNECTIONS_MAX", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) connections_max: Option<u64>,
    /// Channels of one AMQP connection [default: 2047]
    #[arg(long, value_name = "N", env = "NEXO_CHANNEL_MAX", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) channel_max: Option<u16>,
    /// The largest body of a message, up to 128MiB [default: 128MiB]
    #[arg(long, value_name = "BYTES", env = "NEXO_MESSAGE_BYTES_MAX")]
    pub(crate) message_bytes_max: Option<Size>,
    /// Queues of all virtual hosts together, up to a million [default: 1000000]
    #[arg(long, value_name = "N", env = "NEXO_QUEUES_MAX", value_parser = clap::value_parser!(u64).range(1..=QUEUES_MAX))]
    pub(crate) queues_max: Option<u64>,
    /// How long an AMQP client may hold a message, in milliseconds; 0 for any time [default: 1800000]
    #[arg(long, value_name = "MS", env = "NEXO_AMQP_CONSUMER_TIMEOUT_MS")]
    pub(crate) amqp_consumer_timeout_ms: Option<u64>,
    /// Disk that must stay free: below it nothing is pushed; 0 for no limit. Read again on SIGHUP [default: 0]
    #[arg(long, value_name = "BYTES", env = "NEXO_DISK_FREE_MIN")]
    pub(crate) disk_free_min: Option<Size>,
    /// Start although files of the log are missing or no checkpoint can be read, without what was in them
    #[arg(long, env = "NEXO_ACCEPT_LOSS", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) accept_loss: Option<bool>,
    /// What to log: a level from error to trace, or a filter like warn,nexo_broker=debug [default: warn]
    #[arg(long, value_name = "FILTER", env = "NEXO_LOG")]
    pub(crate) log: Option<String>,
    /// How to log [default: text]
    #[arg(long, value_enum, value_name = "FORMAT", env = "NEXO_LOG_FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
}

/// What a confirmed push has survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sync {
    Always,
    Interval,
    Os,
}

/// Which limits the SQS API has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SqsLimits {
    Strict,
    Relaxed,
}

/// How to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The settings, each decided.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) amqp: Listen,
    pub(crate) amqps: Listen,
    pub(crate) grpc: Listen,
    pub(crate) grpc_tls: Listen,
    pub(crate) sqs: Listen,
    pub(crate) sqs_tls: Listen,
    pub(crate) sqs_options: SqsOptions,
    pub(crate) http: Listen,
    pub(crate) https: Listen,
    pub(crate) tls: Option<TlsOptions>,
    pub(crate) admin_options: AdminOptions,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    pub(crate) amqp_options: nexo_amqp::Options,
    pub(crate) first_user: FirstUser,
    pub(crate) oauth: Option<OAuthOptions>,
    pub(crate) load_definitions: Option<PathBuf>,
    pub(crate) cluster: ClusterSettings,
    pub(crate) broker: BrokerOptions,
}

impl Layer {
    /// What the file at `path` says.
    pub(crate) fn from_file(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration '{name}'"))?;
        Self::from_toml(&text).with_context(|| format!("the configuration '{name}' cannot be used"))
    }

    fn from_toml(text: &str) -> anyhow::Result<Self> {
        let layer: Self = toml::from_str(text).map_err(|error| {
            let reason = error.message().replace('\n', ", ");
            match error.span() {
                Some(span) => {
                    let number = text[..span.start].matches('\n').count() + 1;
                    if is_in(text, number, "sqs_access_keys") {
                        let demand = "sqs_access_keys must be a list of texts, as in [\"ID:SECRET\"]";
                        return anyhow::anyhow!("line {number}: {demand}");
                    }
                    if is_in(text, number, "default_password") {
                        return anyhow::anyhow!("line {number}: default_password must be a text");
                    }
                    let mut line = text.lines().nth(number - 1).unwrap_or_default().trim();
                    if reason.starts_with("unknown field") {
                        // It may be a name for secrets that was written wrong.
                        line = line.split('=').next().unwrap_or_default().trim_end();
                    }
                    anyhow::anyhow!("line {number} ({line}): {reason}")
                }
                None => anyhow::anyhow!(reason),
            }
        })?;
        if let Some(interval) = layer.sync_interval_ms
            && !(1..=3_600_000).contains(&interval)
        {
            bail!("sync_interval_ms must be between 1 and 3600000; it is {interval}");
        }
        Ok(layer)
    }

    /// This, and `below` where this says nothing.
    pub(crate) fn over(self, below: Self) -> Self {
        Self {
            data_dir: self.data_dir.or(below.data_dir),
            amqp: self.amqp.or(below.amqp),
            amqps: self.amqps.or(below.amqps),
            grpc: self.grpc.or(below.grpc),
            grpc_tls: self.grpc_tls.or(below.grpc_tls),
            sqs: self.sqs.or(below.sqs),
            sqs_tls: self.sqs_tls.or(below.sqs_tls),
            sqs_limits: self.sqs_limits.or(below.sqs_limits),
            sqs_access_keys: self.sqs_access_keys.or(below.sqs_access_keys),
            default_user: self.default_user.or(below.default_user),
            default_password: self.default_password.or(below.default_password),
            default_vhost: self.default_vhost.or(below.default_vhost),
            load_definitions: self.load_definitions.or(below.load_definitions),
            http: self.http.or(below.http),
            https: self.https.or(below.https),
            http_hosts: self.http_hosts.or(below.http_hosts),
            node: self.node.or(below.node),
            cluster: self.cluster.or(below.cluster),
            join: self.join.or(below.join),
            bootstrap: self.bootstrap.or(below.bootstrap),
            cluster_listen: self.cluster_listen.or(below.cluster_listen),
            cluster_secret_file: self.cluster_secret_file.or(below.cluster_secret_file),
            cluster_tls_cert: self.cluster_tls_cert.or(below.cluster_tls_cert),
            cluster_tls_key: self.cluster_tls_key.or(below.cluster_tls_key),
            cluster_tls_ca: self.cluster_tls_ca.or(below.cluster_tls_ca),
            cluster_log_kept: self.cluster_log_kept.or(below.cluster_log_kept),
            tls_cert: self.tls_cert.or(below.tls_cert),
            tls_key: self.tls_key.or(below.tls_key),
            tls_client_ca: self.tls_client_ca.or(below.tls_client_ca),
            tls_verify: self.tls_verify.or(below.tls_verify),
            tls_login_from: self.tls_login_from.or(below.tls_login_from),
            oauth_keys: self.oauth_keys.or(below.oauth_keys),
            oauth_audience: self.oauth_audience.or(below.oauth_audience),
            oauth_issuer: self.oauth_issuer.or(below.oauth_issuer),
            sync: self.sync.or(below.sync),
            sync_interval_ms: self.sync_interval_ms.or(below.sync_interval_ms),
            segment_bytes: self.segment_bytes.or(below.segment_bytes),
            memory_bytes_max: self.memory_bytes_max.or(below.memory_bytes_max),
            jobs_bytes_max: self.jobs_bytes_max.or(below.jobs_bytes_max),
            memory_high: self.memory_high.or(below.memory_high),
            connections_max: self.connections_max.or(below.connections_max),
            channel_max: self.channel_max.or(below.channel_max),
            message_bytes_max: self.message_bytes_max.or(below.message_bytes_max),
            queues_max: self.queues_max.or(below.queues_max),
            amqp_consumer_timeout_ms: self.amqp_consumer_timeout_ms.or(below.amqp_consumer_timeout_ms),
            disk_free_min: self.disk_free_min.or(below.disk_free_min),
            accept_loss: self.accept_loss.or(below.accept_loss),
            log: self.log.or(below.log),
            log_format: self.log_format.or(below.log_format),
        }
    }

    /// The settings, with the defaults for what nobody says.
    pub(crate) fn decide(self) -> anyhow::Result<Config> {
        let mut broker = BrokerOptions::new(self.data_dir.unwrap_or_else(|| PathBuf::from("./nexo-data")));
        if let Some(sync) = self.sync {
            broker.sync = sync.into();
        }
        if let Some(interval) = self.sync_interval_ms {
            broker.sync_interval = Duration::from_millis(interval);
        }
        if let Some(Size(bytes)) = self.segment_bytes {
            broker.segment_bytes = u32::try_from(bytes)
                .with_context(|| format!("segment_bytes must be below {}; it is {bytes}", u32::MAX))?;
        }
        if let Some(Size(bytes)) = self.memory_bytes_max {
            broker.memory_bytes_max = bytes;
        }
        if let Some(Size(bytes)) = self.jobs_bytes_max {
            broker.jobs_bytes_max = bytes;
        }
        if let Some(Size(bytes)) = self.disk_free_min {
            broker.disk_free_min = bytes;
        }
        if let Some(Watermark(high)) = self.memory_high {
            broker.memory_high = high;
        }
        if let Some(clients) = self.connections_max {
            broker.clients_max = within("connections_max", clients, u64::MAX)?;
        }
        if let Some(Size(bytes)) = self.message_bytes_max {
            broker.body_bytes_max = within("message_bytes_max", bytes, limits::BODY_BYTES_MAX as u64)?;
        }
        if let Some(queues) = self.queues_max {
            broker.queues_max = within("queues_max", queues, QUEUES_MAX)?;
        }
        broker.owns_process = true;
        broker.accept_loss = self.accept_loss.unwrap_or(false);
        let mut amqp_options = nexo_amqp::Options::default();
        if let Some(timeout) = self.amqp_consumer_timeout_ms {
            amqp_options.consumer_timeout = Duration::from_millis(timeout);
        }
        if let Some(max) = self.channel_max {
            amqp_options.channel_max = NonZeroU16::new(max).context("channel_max must be at least 1")?;
        }
        let amqp = self.amqp.unwrap_or(Listen::Loopback(5672));
        let grpc = self.grpc.unwrap_or(Listen::Loopback(7654));
        let sqs = self.sqs.unwrap_or(Listen::Loopback(9324));
        let http = self.http.unwrap_or(Listen::Loopback(15672));
        // Whoever gives a certificate wants TLS, and not only where an address was named for it.
        let has_certificate = self.tls_cert.is_some() && self.tls_key.is_some();
        let usual = |port| if has_certificate { Listen::Loopback(port) } else { Listen::Off };
        let amqps = self.amqps.unwrap_or(usual(5671));
        let grpc_tls = self.grpc_tls.unwrap_or(usual(7653));
        let sqs_tls = self.sqs_tls.unwrap_or(usual(9325));
        let https = self.https.unwrap_or(usual(15671));
        let over_tls = [("amqps", &amqps), ("grpc_tls", &grpc_tls), ("sqs_tls", &sqs_tls), ("https", &https)];
        let over_tls: Vec<&str> = over_tls
            .into_iter()
            .filter(|(_, listen)| **listen != Listen::Off)
            .map(|(name, _)| name)
            .collect();
        let is_closed = [&amqp, &grpc, &sqs, &http].into_iter().all(|listen| *listen == Listen::Off);
        if is_closed && over_tls.is_empty() {
            bail!("amqp, grpc, sqs and http are all off; at least one way in must be open");
        }
        let tls = TlsSettings {
            cert: self.tls_cert,
            key: self.tls_key,
            client_ca: self.tls_client_ca,
            verify: self.tls_verify,
            login_from: self.tls_login_from,
        };
        let tls = tls.decide(&over_tls)?;
        let cluster = ClusterSettings {
            node: self.node,
            address: self.cluster,
            join: self.join.unwrap_or_default(),
            bootstrap: self.bootstrap.unwrap_or(false),
            listen: self.cluster_listen.unwrap_or_default(),
            secret_file: self.cluster_secret_file,
            tls_cert: self.cluster_tls_cert,
            tls_key: self.cluster_tls_key,
            tls_ca: self.cluster_tls_ca,
            log_kept: self.cluster_log_kept.map(|Size(bytes)| bytes),
        };
        cluster.check()?;
        let sqs_options = SqsOptions {
            limits: match self.sqs_limits {
                Some(SqsLimits::Strict) => LimitMode::Strict,
                Some(SqsLimits::Relaxed) | None => LimitMode::Relaxed,
            },
            access_keys: access_keys(&self.sqs_access_keys.unwrap_or_default())?,
            ..SqsOptions::default()
        };
        let admin_options =
            AdminOptions { hosts: self.http_hosts.unwrap_or_default(), ..AdminOptions::default() };
        let first_user = first_user(self.default_user, self.default_password, self.default_vhost)?;
        let oauth = oauth(self.oauth_keys, self.oauth_audience, self.oauth_issuer)?;
        let log = self.log.unwrap_or_else(|| "warn".into());
        let log_format = self.log_format.unwrap_or(LogFormat::Text);
        Ok(Config {
            amqp,
            amqps,
            grpc,
            grpc_tls,
            sqs,
            sqs_tls,
            sqs_options,
            http,
            https,
            tls,
            admin_options,
            log,
            log_format,
            amqp_options,
            first_user,
            oauth,
            load_definitions: self.load_definitions,
            cluster,
            broker,
        })
    }
}

/// A limit that the file may have said as well, where nobody looked at it.
fn within(name: &str, value: u64, max: u64) -> anyhow::Result<usize> {
    let fits = usize::try_from(value).ok().filter(|_| (1..=max).contains(&value));
    fits.with_context(|| format!("{name} must be between 1 and {max}; it is {value}"))
}

/// Whether a line belongs to a setting that has secrets in it, and must not be shown, nor what was found there.
fn is_in(text: &str, number: usize, setting: &str) -> bool {
    let name = |line: &str| {
        let line = line.trim_start().trim_start_matches(['[', '"', '\'']);
        let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(line.len());
        line[..end].to_owned()
    };
    let begins = |line: &&str| {
        let line = line.trim_start();
        // A line that sets something, or begins a table. What is within a list begins with a quote or a brace.
        line.starts_with('[')
            || (line.contains('=') && line.starts_with(|c: char| c.is_ascii_alphabetic()))
            || name(line) == setting
    };
    let lines: Vec<&str> = text.lines().take(number).collect();
    lines.iter().rev().find(|line| begins(line)).is_some_and(|line| name(line) == setting)
}

/// The first user of a new broker. Who names one says the password as well: nobody wants another user with the password that
/// everybody knows.
fn first_user(
    name: Option<String>,
    password: Option<String>,
    vhost: Option<String>,
) -> anyhow::Result<FirstUser> {
    let guest = FirstUser::default();
    if name.as_ref().is_some_and(|name| *name != guest.name) && password.is_none() {
        bail!("default_user needs a default_password");
    }
    Ok(FirstUser {
        name: name.unwrap_or(guest.name),
        password: password.unwrap_or(guest.password),
        vhost: vhost.unwrap_or(guest.vhost),
    })
}

/// Whose signed tokens are taken. Without an audience one that is meant for somebody else would do.
fn oauth(
    keys: Option<PathBuf>,
    audience: Option<String>,
    issuer: Option<String>,
) -> anyhow::Result<Option<OAuthOptions>> {
    match (keys, audience.filter(|audience| !audience.is_empty())) {
        (Some(keys), Some(audience)) => Ok(Some(OAuthOptions { keys, audience, issuer })),
        (Some(_), None) => bail!("oauth_keys needs oauth_audience: what tokens must be for"),
        (None, Some(_)) => bail!("oauth_audience needs oauth_keys: the keys that sign tokens"),
        (None, None) if issuer.is_some() => bail!("oauth_issuer needs oauth_keys and oauth_audience"),
        (None, None) => Ok(None),
    }
}

/// The keys of these texts. An error names the place of the wrong one, but not its text, which may be a secret.
fn access_keys(texts: &[String]) -> anyhow::Result<Vec<AccessKey>> {
    let parse = |(index, text): (usize, &String)| {
        text.parse().with_context(|| format!("sqs_access_keys cannot be used: key {} is wrong", index + 1))
    };
    texts.iter().enumerate().map(parse).collect()
}

impl From<Sync> for SyncMode {
    fn from(sync: Sync) -> Self {
        match sync {
            Sync::Always => Self::Always,
            Sync::Interval => Self::Interval,
            Sync::Os => Self::Os,
        }
    }
}

#[cfg(test)]
mod tests {
    use nexo_broker::MemoryHigh;

    use super::*;

    fn refused(text: &str) -> String {
        format!("{:#}", Layer::from_toml(text).unwrap_err())
    }

    #[test]
    fn a_higher_layer_wins_and_a_lower_one_fills_in() {
        let flags = Layer { grpc: Some(Listen::Off), ..Layer::default() };
        let file = Layer::from_toml("grpc = '0.0.0.0:1'\nsync = 'os'\nsegment_bytes = '8MiB'").unwrap();
        let config = flags.over(file).decide().unwrap();
        assert_eq!(config.grpc, Listen::Off);
        assert_eq!(config.broker.sync, SyncMode::Os);
        assert_eq!(config.broker.segment_bytes, 8 << 20);
        assert_eq!(config.http, Listen::Loopback(15672));
        assert_eq!(config.broker.data_dir, PathBuf::from("./nexo-data"));
        assert_eq!(config.log, "warn");
    }

    #[test]
    fn limits_are_set_like_everything_else() {
        let text = "memory_high = 0.4\nconnections_max = 7\nchannel_max = 3\nmessage_bytes_max = '1MiB'\nqueues_max = 5";
        let config = Layer::from_toml(text).unwrap().decide().unwrap();
        assert_eq!(config.broker.memory_high, MemoryHigh::Fraction(0.4));
        assert_eq!((config.broker.clients_max, config.broker.queues_max), (7, 5));
        assert_eq!((config.broker.body_bytes_max, config.amqp_options.channel_max.get()), (1 << 20, 3));
        let absolute = Layer::from_toml("memory_high = '2GiB'").unwrap().decide().unwrap();
        assert_eq!(absolute.broker.memory_high, MemoryHigh::Bytes(2 << 30));
        for (text, words) in [
            ("memory_high = '60%'", "neither a part of the memory"),
            ("queues_max = 0", "queues_max must be between 1 and 1000000; it is 0"),
            ("channel_max = 0", "channel_max must be at least 1"),
            ("connections_max = 0", "connections_max must be between 1"),
            ("message_bytes_max = '1GiB'", "message_bytes_max must be between 1 and 134217728"),
        ] {
            let refused = Layer::from_toml(text).and_then(Layer::decide).unwrap_err();
            assert!(format!("{refused:#}").contains(words), "{refused:#}");
        }
    }

    #[test]
    fn addresses_are_a_text_or_a_list() {
        let at = |text: &str| Layer::from_toml(text).unwrap().amqp.unwrap();
        let both = Listen::At(vec!["127.0.0.1:1".into(), "[::1]:1".into()]);
        assert_eq!(at("amqp = '127.0.0.1:1,[::1]:1'"), both);
        assert_eq!(at("amqp = ['127.0.0.1:1', '[::1]:1']"), both);
        assert_eq!(at("amqp = []"), Listen::Off);
        let text = refused("amqp = ['127.0.0.1:1', 'here']");
        assert!(text.contains("'here' is not an address; it must be HOST:PORT"), "{text}");
    }

    #[test]
    fn tls_is_set_like_everything_else() {
        let text = "amqps = '127.0.0.1:0'\ntls_cert = 'c.pem'\ntls_key = 'k.pem'\ntls_client_ca = 'ca.pem'
            tls_verify = 'request'\ntls_login_from = 'common_name'\n";
        let config = Layer::from_toml(text).unwrap().decide().unwrap();
        let tls = config.tls.unwrap();
        assert_eq!(tls.client_certificates, nexo_net::ClientCertificates::Requested);
        assert_eq!(tls.login_from, nexo_net::CertificateName::CommonName);
        assert_eq!(config.amqps, Listen::At(vec!["127.0.0.1:0".into()]));
        let error = refused("tls_verify = 'sometimes'");
        assert!(error.contains("tls_verify = 'sometimes'") && error.contains("require"), "{error}");
    }

    #[test]
    fn a_certificate_opens_all_ports_with_tls_that_are_not_off() {
        let decided = |text: &str| Layer::from_toml(text).unwrap().decide();
        let secure = |config: Config| [config.amqps, config.grpc_tls, config.sqs_tls, config.https];
        let files = "tls_cert = 'c.pem'\ntls_key = 'k.pem'\n";
        assert_eq!(secure(decided(files).unwrap()), [5671, 7653, 9325, 15671].map(Listen::Loopback));
        let config = decided(&format!("{files}grpc_tls = 'off'\nhttps = '127.0.0.1:1'")).unwrap();
        assert_eq!(config.amqp, Listen::Loopback(5672), "plain ports stay as they are");
        let named = Listen::At(vec!["127.0.0.1:1".into()]);
        assert_eq!(secure(config), [Listen::Loopback(5671), Listen::Off, Listen::Loopback(9325), named]);
        assert_eq!(secure(decided("").unwrap()), [const { Listen::Off }; 4]);
        let all_off = "amqp = 'off'\ngrpc = 'off'\nsqs = 'off'\nhttp = 'off'\n";
        assert!(decided(&format!("{files}{all_off}")).is_ok(), "those with TLS are left");
        let error = decided("tls_cert = 'c.pem'").unwrap_err().to_string();
        assert!(error.starts_with("tls_cert needs tls_key"), "{error}");
    }

    #[test]
    fn an_unknown_key_is_named() {
        let text = refused("data_dir = 'x'\ndatadir = 'y'\n");
        assert!(text.starts_with("line 2 (datadir): unknown field `datadir`"), "{text}");
    }

    #[test]
    fn a_bad_value_is_named_with_its_key_and_the_demand() {
        let text = refused("sync = 'sometimes'");
        assert!(text.contains("sync = 'sometimes'") && text.contains("always"), "{text}");
        let text = refused("grpc = 'here'");
        assert!(text.contains("grpc = 'here'") && text.contains("must be HOST:PORT"), "{text}");
        let text = refused("sync_interval_ms = 0");
        assert_eq!(text, "sync_interval_ms must be between 1 and 3600000; it is 0");
        let text = refused("segment_bytes = -1");
        assert!(text.contains("segment_bytes = -1") && text.contains("a number of bytes"), "{text}");
    }

    #[test]
    fn keys_of_the_sqs_api_are_checked_and_never_shown() {
        let decided = |keys: &str| {
            Layer::from_toml(&format!("sqs_access_keys = [{keys}]\nsqs_limits = 'strict'")).unwrap().decide()
        };
        let config = decided("'one:hush', 'two:other'").unwrap();
        assert_eq!(config.sqs_options.access_keys.len(), 2);
        assert_eq!(config.sqs_options.limits, LimitMode::Strict);
        assert!(!format!("{config:?}").contains("hush"));
        let error = format!("{:#}", decided("'one:hush', 'hidden'").unwrap_err());
        assert!(error.starts_with("sqs_access_keys cannot be used: key 2 is wrong"), "{error}");
        assert!(!error.contains("hidden"), "{error}");
    }

    #[test]
    fn keys_that_are_written_wrong_are_not_shown_either() {
        for text in [
            "sqs_access_keys = 'AKID:hidden'",
            "log = 'info'\nsqs_access_keys = { AKID = 'hidden' }",
            "sqs_access_keys = [\n  'a:hidden',\n  { id = 'b', secret = 'hidden' },\n]",
            "sqs_access_keys = ['a:hidden'",
            "sqs_access_keys = ['a:b', 'c:hidden]",
            "\"sqs_access_keys\" = 'a:hidden'",
            "sqs_access_keys = ['a:b']\nsqs_access_keys = ['c:hidden']",
            "[sqs_access_keys]\na = 'hidden'",
            "[[sqs_access_keys]]\nid = 'a'\nsecret = 'hidden'",
        ] {
            let error = refused(text);
            assert!(!error.contains("hidden") && error.contains("sqs_access_keys"), "{error}");
        }
        let error = refused("sqs_acces_keys = ['AKID:hidden']");
        assert!(
            !error.contains("hidden") && error.contains("line 1 (sqs_acces_keys): unknown field"),
            "{error}"
        );
        let error = refused("sqs_access_keys = ['a:b']\ngrpc = 'here'");
        assert!(error.contains("line 2 (grpc = 'here')"), "{error}");
    }

    #[test]
    fn the_first_user_has_a_password_that_is_not_shown() {
        let decided = |text: &str| Layer::from_toml(text).unwrap().decide();
        assert_eq!(decided("").unwrap().first_user, FirstUser::default());
        let config =
            decided("default_user = 'ann'\ndefault_password = 'hidden'\ndefault_vhost = 'shop'").unwrap();
        assert_eq!((&*config.first_user.name, &*config.first_user.vhost), ("ann", "shop"));
        assert!(!format!("{config:?}").contains("hidden"));
        assert!(decided("default_user = 'ann'").unwrap_err().to_string().contains("default_password"));
        for text in [
            "default_password = ['hidden']",
            "default_password = 'hidden",
            "default_password = { a = 'hidden' }",
        ] {
            let error = refused(text);
            assert!(!error.contains("hidden") && error.contains("default_password"), "{error}");
        }
    }

    #[test]
    fn signed_tokens_need_keys_and_an_audience() {
        let decided = |text: &str| Layer::from_toml(text).unwrap().decide().map(|config| config.oauth);
        let all = "oauth_keys = 'k.pem'\noauth_audience = 'nexo'\noauth_issuer = 'https://id.example'";
        let expected = OAuthOptions {
            keys: "k.pem".into(),
            audience: "nexo".into(),
            issuer: Some("https://id.example".into()),
        };
        assert_eq!(decided(all).unwrap(), Some(expected));
        assert_eq!(decided("").unwrap(), None);
        for (text, needs) in [
            ("oauth_keys = 'k'", "oauth_audience"),
            ("oauth_keys = 'k'\noauth_audience = ''", "oauth_audience"),
            ("oauth_audience = 'a'", "oauth_keys"),
            ("oauth_issuer = 'i'", "oauth_keys"),
        ] {
            assert!(decided(text).unwrap_err().to_string().contains(needs), "{text}");
        }
    }

    #[test]
    fn a_broker_without_a_way_in_is_refused() {
        let off = Some(Listen::Off);
        let layer =
            Layer { amqp: off.clone(), grpc: off.clone(), sqs: off.clone(), http: off, ..Layer::default() };
        assert!(layer.decide().unwrap_err().to_string().contains("all off"));
    }
}
