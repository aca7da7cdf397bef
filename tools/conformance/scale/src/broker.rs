//! The broker under trial, from outside: its address and its memory.

use std::net::SocketAddr;

use anyhow::Context;

use crate::client::Client;

/// The broker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broker {
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
    pub(crate) memory_bytes_max: u64,
}

impl Broker {
    /// A client without heartbeats, with channel 1 open.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        let mut client = Client::connect(self.address, 0).await?;
        client.open_channel(1).await?;
        Ok(client)
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
