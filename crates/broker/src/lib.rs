//! The one API that every way into Nexo uses: queues, messages, consumers, health.
//!
//! A [`Broker`] owns the log and all queues. Each queue has a lock of its own and is a state machine from
//! `nexo-core`; this crate decides nothing about messages, it brings time, disk and threads to the rules.
//!
//! - [`Broker`] (`broker.rs`, `push.rs`, `messages.rs`, `peek.rs`): the calls.
//! - `declare.rs`, `lifecycle.rs`: how queues come and go.
//! - `shared.rs`: the parts of a broker, and the way every change takes: lock, decide, write down and apply (`commit.rs`), see
//!   what follows and hand out (`follow_up.rs`). `journal`: where changes are written down. `rebuild.rs`: what is done when it
//!   has lost some. `stored.rs`: what is stored and counts.
//! - `mailbox.rs`, `subscription.rs`: consumers. `flow.rs`: publishers that would starve them are slowed.
//!   `owed.rs`: for how long a consumer has waited for the broker.
//! - `share.rs`: messages for several queues, stored once. `frame_batches.rs`: reading them.
//! - `placement`: where the messages of a queue lie in the log of this node. `transplant.rs`: taking a queue to another broker.
//! - `timer.rs`: deadlines. `workers.rs`, `paging.rs`, `fetch.rs`: reading messages back. `transfer.rs`: dead letters. `snapshots.rs`: what
//!   a checkpoint writes. `threads.rs`: which threads are well.
//! - [`replication`]: the broker as one of several replicas.
//! - `maintenance.rs`, `manifest.rs`, `recovery.rs`: checkpoints, space on disk, coming back after a crash.
//!   `alarms.rs`: when publishers must wait, with `memory_high.rs` and `memory_total.rs`: how much memory the process may
//!   take; `disk_room.rs`: how much of the disk is left to others. `intake.rs`: memory for what is on its way in;
//!   `buffers.rs`: memory of connections' buffers.
//! - `machine_cell.rs`, `machines.rs`: state machines that are not queues. `access_cell.rs`: users and permissions. `policies.rs`: policies,
//!   parameters, and how they take effect. `schedules.rs`, `schedule_firing.rs`: schedules, and what they send.
//!   `nodes.rs`: the nodes of a cluster.
//! - `connections.rs`: how many clients may be connected. `open_connections.rs`: who they are. `listing.rs`: queues, exchanges and
//!   bindings for those who look after them.
//! - `traffic.rs`: counters of each protocol. `system.rs`: what the operating system says about the process.

mod access_cell;
mod alarms;
mod broker;
mod buffers;
#[cfg(test)]
mod busy_tests;
mod catalog;
mod clock;
mod codecs;
mod commit;
mod connections;
mod dead_letter_exchange;
mod dead_letter_move;
mod declare;
mod delivery;
mod describe;
mod difference;
mod disk_room;
mod dispatch;
mod error;
mod event_kinds;
mod events;
mod exchanges;
mod fetch;
mod firehose;
mod flow;
mod follow_up;
mod followed;
mod frame_batches;
mod handle;
mod headers;
mod intake;
mod jobs;
mod journal;
mod late;
mod lifecycle;
mod listing;
mod machine_cell;
mod machines;
mod mailbox;
mod maintenance;
mod manifest;
mod memory_high;
mod memory_total;
mod messages;
mod missing;
mod nodes;
mod open_connections;
mod options;
mod ordered_mutex;
mod owed;
mod page_out_pace;
mod paging;
mod peek;
mod placement;
mod policies;
#[cfg(test)]
mod policies_tests;
mod property_codec;
mod push;
mod push_order;
mod push_packed;
mod queue_cell;
mod rebuild;
mod receipt;
mod recovery;
pub mod replication;
mod request;
mod schedule_firing;
mod schedules;
mod share;
mod shared;
mod shared_configs;
mod snapshots;
mod stats;
mod stored;
mod subscription;
mod system;
mod tell;
mod threads;
mod timer;
mod traffic;
mod transfer;
mod transplant;
#[cfg(test)]
mod transplant_tests;
mod uncounted;
mod unread;
mod unreadable;
mod unsettled;
mod vhosts;
mod workers;

pub use access_cell::AccessChanges;
pub use alarms::{Alarm, Resource};
pub use broker::Broker;
pub use buffers::ConnectionBuffers;
pub use codecs::Codecs;
pub use connections::{ConnectionCounts, ConnectionPermit, Connections, Presence};
pub use declare::Declared;
pub use delivery::Delivery;
pub use describe::{BindingShown, QueueDetails};
pub use error::{
    AccessChangeError, CreateError, DeleteError, ExchangeError, NodeChangeError, OpenError,
    PolicyChangeError, PopError, PushError, QueueError, ScheduleChangeError, ScheduleRunError, SettleError,
    SubscribeError,
};
pub use event_kinds::LoginFacts;
pub use events::{Actor, EVENT_EXCHANGE, Event, EventValue, Events, OnBehalf, acting};
pub use firehose::{Firehose, TRACE_EXCHANGE, TracedMessage};
pub use flow::{Evenness, Pacing};
pub use handle::{QueueHandle, Settling};
pub use headers::{HeaderValue, Headers, HeadersError};
pub use intake::{Intake, IntakeHold};
pub use jobs::{JobCallError, JobRequest, WaiterAnswer, WaiterRequest};
pub use journal::Written;
pub use listing::{BindingsOf, MessageTotals, ObjectCounts, QueueRow};
pub use memory_high::{MemoryHigh, MemoryHighError, MemoryState};
pub use nexo_core::access;
pub use nexo_core::body_buffer::BodyBuffer;
pub use nexo_core::config::{
    Backoff, ConfigError, DeadLetters, Fate, GroupMode, Overflow, QueueConfig, RateLimit, SyncMode,
};
pub use nexo_core::draft::{Draft, PackedBatch};
pub use nexo_core::jobs as job_rules;
pub use nexo_core::message::{
    DeathReason, DedupScope, Durability, MessageView, NewMessage, Origin, PriorityCap, Properties,
    PropertyFormat, StoredMessage,
};
pub use nexo_core::nodes as cluster_nodes;
pub use nexo_core::policy;
pub use nexo_core::queue::QueueSnapshot;
pub use nexo_core::queue::{
    Access, GroupTake, Handed, InFlightLimit, LeaseTerms, LimitReached, Outgoing, SettleMode, SharedCredit,
    Terms,
};
pub use nexo_core::schedule;
pub use nexo_core::shared_messages::SharedMessages;
pub use nexo_core::topology;
/// The most files that the log has open at once.
pub use nexo_log::OPEN_FILES_MAX as LOG_FILES_MAX;
pub use nexo_types::{Protocol, QueueKind};
pub use open_connections::{
    ConnectionFacts, Figure, ListedChannel, ListedConnection, OpenChannel, OpenConnection, OpenConnections,
    OpenConsumer,
};
pub use options::BrokerOptions;
pub use owed::SocketState;
pub use peek::{BrowseState, Browsed};
pub use property_codec::{
    DeadLetter, DeadLetterCodec, DeathInfo, Envelope, PropertyCodec, Publication, PublishCodec, QueueCodec,
    ToldDeath,
};
pub use push_order::{PushOrder, PushTurn};
pub use push_packed::{PackedPushed, Refused};
pub use receipt::{Receipt, ReceiptError};
pub use request::{
    Declaration, DeleteIf, ListRequest, MoveGate, PopRequest, PopTerms, Pushed, Redrive, Redriven, SessionId,
    Settle, SubscribeRequest,
};
pub use schedules::{ScheduleInfo, ScheduleStats};
pub use share::{SHARE_BYTES_MIN, SharedPush, share_queues_max};
pub use stats::{BrokerStats, Health, QueueStats};
pub use subscription::Subscription;
pub use system::{ProcessStats, node_name};
pub use tell::Telling;
pub use traffic::{AllTraffic, Counted, Traffic, TrafficStats};
pub use transplant::{InstallError, QueueExport, QueueInstall, StoredBody};
pub use vhosts::{EnterError, VhostDeleted, VhostInfo, VhostStay};
