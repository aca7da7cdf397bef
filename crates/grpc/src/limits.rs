//! The limits of the native API, each with its reason. What the broker itself limits is in `nexo_types::limits`.

use std::time::Duration;

use nexo_types::limits::{BODY_BYTES_MAX, JOB_RESULT_BYTES_MAX, PROPERTIES_BYTES_MAX};

/// One message of the largest size, with its properties and room for the rest of a request.
pub(crate) const REQUEST_BYTES_MAX: usize = BODY_BYTES_MAX + PROPERTIES_BYTES_MAX + 1024 * 1024;
/// A request that holds no messages: settings of a queue, or ten thousand ids.
pub(crate) const SMALL_REQUEST_BYTES_MAX: usize = 1024 * 1024;
/// A result of a job of the largest size, and room for the rest of a request.
pub(crate) const JOB_REQUEST_BYTES_MAX: usize = JOB_RESULT_BYTES_MAX + 1024 * 1024;
/// A question to the health or reflection service: a name.
pub(crate) const NAME_REQUEST_BYTES_MAX: usize = 64 * 1024;

/// Items of one list that are decoded. An empty item has two bytes on its way and some two hundred in memory, so a
/// request is looked through before it is decoded. Above the limits that a user is told of, so that those are named.
pub(crate) const LIST_ITEMS_MAX: u64 = 65_536;
/// Headers of all messages of a request that are decoded: 26 for each of the ten thousand messages of the largest push.
pub(crate) const REQUEST_HEADERS_MAX: u64 = 262_144;
/// Fields of all kinds in one request: the largest push with those headers has some 900,000. Bounds the time that a
/// thread spends on one request.
pub(crate) const REQUEST_FIELDS_MAX: u64 = 2_000_000;

/// What a message takes in memory beside its body, near enough, while it is on its way to its queue.
pub(crate) const MESSAGE_OVERHEAD_BYTES: usize = 256;

/// Calls of one connection that may run at the same time. Each holds a task and some buffers.
pub(crate) const STREAMS_MAX: u32 = 256;
/// Metadata of one call.
pub(crate) const METADATA_BYTES_MAX: u32 = 16 * 1024;

/// The first words of HTTP/2.
pub(crate) const PREFACE_BYTES: usize = 24;
/// How long a peer may take for them; as on the AMQP port.
pub(crate) const PREFACE_MAX: Duration = Duration::from_secs(10);
/// How long a peer may take no byte of what is written to it. A peer that does not even answer pings goes earlier.
pub(crate) const WRITE_STALL_MAX: Duration = Duration::from_secs(60);
/// How long a call may take to begin its request, or to end it.
pub(crate) const REQUEST_PAUSE_MAX: Duration = Duration::from_secs(30);
/// A request that has begun holds memory for its whole size. So it must come at least as fast as this.
pub(crate) const REQUEST_BYTES_PER_SEC_MIN: u64 = 256 * 1024;
/// A request up to this size does not ask for memory: what a connection can hold that way is bounded by the number of
/// its calls, and a large request that waits must not keep small ones waiting.
pub(crate) const UNASKED_BYTES_MAX: usize = 64 * 1024;
/// How long a request waits for memory that others hold before it is refused.
pub(crate) const INTAKE_WAIT_MAX: Duration = Duration::from_secs(30);
