//! What a broker is told when it starts.

use std::path::PathBuf;
use std::time::Duration;

use nexo_core::config::SyncMode;
use nexo_types::limits;

use crate::codecs::Codecs;
use crate::memory_high::MemoryHigh;
use crate::replication::ClusterOptions;

/// Settings of one broker. Everything has a default but the place of the data.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    /// Where the data lies.
    pub data_dir: PathBuf,
    /// What a reply to a push promises, where the queue does not say.
    pub sync: SyncMode,
    /// How often unsynced bytes are synced in the mode `interval`.
    pub sync_interval: Duration,
    /// Size of one log segment.
    pub segment_bytes: u32,
    /// Memory for messages; past it, bodies are left on disk and transient messages are written there.
    pub memory_bytes_max: u64,
    /// What the process may take before publishers must wait. Only where it is this broker's alone.
    pub memory_high: MemoryHigh,
    /// Whether the process is this broker's alone. Then all of its memory counts, not only what messages are known to take.
    pub owns_process: bool,
    /// Who knows messages and queues of each protocol.
    pub codecs: Codecs,
    /// Bytes of the disk that must stay free; below it pushes are refused. 0 for no limit but the disk's end.
    pub disk_free_min: u64,
    /// Connections of all ports together; one more is closed at once. The log's descriptors are not among them.
    pub connections_max: usize,
    /// Of them, connections of clients; the rest is for those who look after the broker.
    pub clients_max: usize,
    /// Queues of all virtual hosts together.
    pub queues_max: usize,
    /// The largest body of a message.
    pub body_bytes_max: usize,
    /// Memory that jobs and their results may take; past it, finished jobs are forgotten early and new ones refused.
    pub jobs_bytes_max: u64,
    /// How it takes part in a cluster; a node by itself if it does not.
    pub cluster: Option<ClusterOptions>,
    /// Whether to start although files of the log are missing, without what was in them.
    pub accept_loss: bool,
}

impl BrokerOptions {
    /// The defaults, with data in `data_dir`.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            sync: SyncMode::Always,
            sync_interval: Duration::from_millis(200),
            segment_bytes: 64 * 1024 * 1024,
            memory_bytes_max: 256 * 1024 * 1024,
            memory_high: MemoryHigh::DEFAULT,
            owns_process: false,
            codecs: Codecs::default(),
            disk_free_min: 0,
            connections_max: usize::MAX,
            clients_max: usize::MAX,
            queues_max: limits::QUEUES_MAX,
            body_bytes_max: limits::BODY_BYTES_MAX,
            jobs_bytes_max: 1024 * 1024 * 1024,
            cluster: None,
            accept_loss: false,
        }
    }
}
