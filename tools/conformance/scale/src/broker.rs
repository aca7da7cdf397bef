//! The broker under trial, from outside: its address and its memory.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use nexo_amqp_client::{Client, Login};

/// Longest wait for anything. Far more than it takes; a trial that reaches it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The channel of whoever needs only one.
pub(crate) const CHANNEL: u16 = 1;

/// The broker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broker {
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
    pub(crate) memory_bytes_max: u64,
}

impl Broker {
    /// A client without heartbeats, with [`CHANNEL`] open.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let mut client = self.connect(0).await?;
        client.open_channel(CHANNEL).await?;
        Ok(client)
    }

    /// A client without channels; `heartbeat` is in seconds.
    pub(crate) async fn connect(&self, heartbeat: u16) -> anyhow::Result<Client> {
        let login = Login { heartbeat, ..Login::default() };
        Ok(Client::connect(self.address, &login, PATIENCE).await?)
    }

    /// Resident memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.pid);
        let status = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.context("the system does not tell the broker's memory")? << 10)
    }
}

/// What comes of it, if that is soon enough.
pub(crate) async fn within<T>(what: impl Future<Output = T>) -> anyhow::Result<T> {
    tokio::time::timeout(PATIENCE, what).await.with_context(|| format!("no answer within {PATIENCE:?}"))
}
