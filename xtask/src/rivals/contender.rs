//! The brokers that are compared, each running alone with its data on the same disk.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;

use crate::nats::Nats;
use crate::rabbitmq::RabbitMq;
use crate::run::{first_line, target};

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Contender {
    Nexo,
    RabbitClassic,
    RabbitQuorum,
    Nats,
}

impl Contender {
    pub(super) const ALL: [Self; 4] = [Self::Nexo, Self::RabbitClassic, Self::RabbitQuorum, Self::Nats];
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nexo => "Nexo",
            Self::RabbitClassic => "RabbitMQ classic",
            Self::RabbitQuorum => "RabbitMQ quorum",
            Self::Nats => "NATS JetStream",
        })
    }
}

/// A broker that was started, ended when dropped.
pub(super) struct Running {
    pub(super) url: String,
    /// Where it answers SQS, if it does.
    pub(super) sqs: Option<String>,
    pub(super) pid: u32,
    pub(super) version: String,
    process: Process,
}

/// What has to be ended, which dropping it does.
#[expect(dead_code, reason = "some are only held")]
enum Process {
    Nexo(Nexo),
    RabbitMq(RabbitMq),
    Nats(Nats),
}

impl Running {
    /// Starts the broker of a contender with nothing in it.
    pub(super) fn start(contender: Contender, nexo: &Path) -> anyhow::Result<Self> {
        match contender {
            Contender::Nexo => {
                let (started, url, sqs) = Nexo::start(nexo)?;
                let version = first_line(Command::new(nexo).arg("--version"))?;
                let pid = started.process.id();
                Ok(Self { url, sqs: Some(sqs), pid, version, process: Process::Nexo(started) })
            }
            Contender::RabbitClassic | Contender::RabbitQuorum => {
                let started = RabbitMq::start()?;
                let version = format!("RabbitMQ {}", started.version()?);
                Ok(Self {
                    url: started.url(),
                    sqs: None,
                    pid: started.pid()?,
                    version,
                    process: Process::RabbitMq(started),
                })
            }
            Contender::Nats => {
                let started = Nats::start()?;
                let version = started.version()?;
                Ok(Self {
                    url: started.url(),
                    sqs: None,
                    pid: started.pid(),
                    version,
                    process: Process::Nats(started),
                })
            }
        }
    }

    /// Whether this is the broker of that contender.
    pub(super) fn serves(&self, contender: Contender) -> bool {
        match &self.process {
            Process::Nexo(_) => contender == Contender::Nexo,
            Process::RabbitMq(_) => matches!(contender, Contender::RabbitClassic | Contender::RabbitQuorum),
            Process::Nats(_) => contender == Contender::Nats,
        }
    }

    /// Where its data is, for those of whom it is asked.
    pub(super) fn data(&self) -> Option<&Path> {
        match &self.process {
            Process::Nexo(nexo) => Some(&nexo.data),
            Process::RabbitMq(_) | Process::Nats(_) => None,
        }
    }
}

/// Nexo as it was built for release.
struct Nexo {
    process: Child,
    data: PathBuf,
}

impl Nexo {
    /// Its process, and where it answers AMQP and SQS.
    fn start(nexo: &Path) -> anyhow::Result<(Self, String, String)> {
        let data = target().join("rivals-data").join(std::process::id().to_string());
        let mut process = Command::new(nexo)
            .args([
                "serve",
                "--amqp",
                "127.0.0.1:0",
                "--grpc",
                "off",
                "--sqs",
                "127.0.0.1:0",
                "--http",
                "off",
                "--data-dir",
            ])
            .arg(&data)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start Nexo")?;
        let stdout = process.stdout.take().context("Nexo has an output")?;
        let started = Self { process, data };
        let mut ready = String::new();
        BufReader::new(stdout).read_line(&mut ready)?;
        let address = |protocol: &str| {
            let address = ready.split_whitespace().find_map(|word| word.strip_prefix(protocol));
            address.with_context(|| format!("Nexo did not get ready; it said {ready:?}"))
        };
        let (amqp, sqs) = (address("amqp=")?, address("sqs=")?);
        Ok((started, format!("amqp://guest:guest@{amqp}/%2F"), format!("sqs://{sqs}")))
    }
}

impl Drop for Nexo {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        std::fs::remove_dir_all(&self.data).ok();
    }
}
