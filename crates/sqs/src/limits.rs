//! How much is too much: as AWS has it, or as far as the engine goes. Figures that both share are constants.

use nexo_types::limits;

/// Entries in one batch, and messages in one answer.
pub(crate) const BATCH_MAX: usize = 10;
/// Characters of the id of a batch entry.
pub(crate) const ENTRY_ID_MAX: usize = 80;
/// Queues in one page of a listing.
pub(crate) const PAGE_MAX: usize = 1000;
/// Bytes of messages in one answer, but at least one message: what a client must hold at once.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// An answer of no more than this is not counted: the number of connections bounds their sum.
pub(crate) const ANSWER_UNCOUNTED_BYTES: usize = 64 * 1024;
/// Characters of an attribute's name or of its type.
pub(crate) const ATTRIBUTE_NAME_MAX: usize = 256;

/// Bytes of policies and tags of one queue: it carries them along with every change of it.
pub(crate) const SETTINGS_BYTES_MAX: usize = 1024 * 1024;
/// Values in a body of JSON, and parameters of a form. Each may be two bytes there and takes some hundred in memory.
pub(crate) const VALUES_MAX: usize = 100_000;

/// Which limits hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitMode {
    /// As AWS documents them.
    Strict,
    /// As far as the engine goes.
    #[default]
    Relaxed,
}

/// The limits that differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) mode: LimitMode,
    /// Body and attributes of one message; all messages of a batch together where AWS counts.
    pub(crate) message_bytes: u64,
    /// The smallest that a queue may be set to.
    pub(crate) message_bytes_min: u64,
    pub(crate) message_attributes: usize,
    pub(crate) delay_s: u64,
    pub(crate) visibility_s: u64,
    pub(crate) wait_s: u64,
    pub(crate) retention_s_min: u64,
    pub(crate) retention_s: u64,
    pub(crate) receive_count: u64,
    pub(crate) in_flight_standard: usize,
    pub(crate) in_flight_fifo: usize,
    pub(crate) tags: usize,
    /// Characters of message group and deduplication ids.
    pub(crate) id_chars: usize,
    /// Actions in one statement of a policy.
    pub(crate) permission_actions: usize,
    pub(crate) policy_bytes: usize,
    pub(crate) move_rate: u64,
    /// Bytes of one request. JSON may escape each byte of a body with six, forms with three.
    pub(crate) request_bytes: usize,
}

const STRICT: Limits = Limits {
    mode: LimitMode::Strict,
    message_bytes: 1024 * 1024,
    message_bytes_min: 1024,
    message_attributes: 10,
    delay_s: 900,
    visibility_s: 43_200,
    wait_s: 20,
    retention_s_min: 60,
    retention_s: 1_209_600,
    receive_count: 1000,
    in_flight_standard: 120_000,
    in_flight_fifo: 20_000,
    tags: 50,
    id_chars: 128,
    permission_actions: 7,
    policy_bytes: 8192,
    move_rate: 500,
    request_bytes: 8 * 1024 * 1024,
};

const RELAXED: Limits = Limits {
    mode: LimitMode::Relaxed,
    message_bytes: limits::BODY_BYTES_MAX as u64,
    message_bytes_min: 1,
    // Some headers carry what SQS knows of a message beside its attributes.
    message_attributes: limits::HEADERS_MAX / 4,
    delay_s: limits::DELAY_MAX.0 / 1000,
    visibility_s: limits::VISIBILITY_MAX.0 / 1000,
    wait_s: limits::POP_WAIT_MAX.0 / 1000,
    retention_s_min: 1,
    retention_s: limits::DELAY_MAX.0 / 1000,
    receive_count: limits::MAX_ATTEMPTS_MAX as u64,
    in_flight_standard: usize::MAX,
    in_flight_fifo: usize::MAX,
    tags: usize::MAX,
    id_chars: 128,
    permission_actions: usize::MAX,
    policy_bytes: SETTINGS_BYTES_MAX,
    move_rate: 1_000_000,
    request_bytes: limits::BODY_BYTES_MAX + limits::BODY_BYTES_MAX / 2,
};

impl LimitMode {
    pub(crate) const fn limits(self) -> &'static Limits {
        match self {
            Self::Strict => &STRICT,
            Self::Relaxed => &RELAXED,
        }
    }
}

impl Limits {
    /// The same, for a broker that takes bodies of so many bytes.
    pub(crate) fn within(self, body_bytes_max: u64) -> Self {
        Self {
            message_bytes: self.message_bytes.min(body_bytes_max),
            message_bytes_min: self.message_bytes_min.min(body_bytes_max),
            ..self
        }
    }

    pub(crate) const fn is_strict(&self) -> bool {
        matches!(self.mode, LimitMode::Strict)
    }
}
