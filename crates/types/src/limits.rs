//! Every limit in one place, each with its reason. A limit that a user meets is named in the error.

use crate::Millis;

/// RabbitMQ's limit for a short string, so that every name fits into an AMQP method.
pub const QUEUE_NAME_BYTES_MAX: usize = 255;
/// As for queues.
pub const EXCHANGE_NAME_BYTES_MAX: usize = 255;
/// As for queues: `connection.open` names a virtual host in a short string.
pub const VHOST_NAME_BYTES_MAX: usize = 255;
/// SQS allows 128 characters for a message group id; room for four-byte ones.
pub const GROUP_ID_BYTES_MAX: usize = 512;
/// SQS allows 128 characters for a deduplication id; room for four-byte ones.
pub const DEDUP_ID_BYTES_MAX: usize = 512;

/// RabbitMQ's default maximum for one message.
pub const BODY_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Properties travel with every delivery and are kept in memory while a message is near the head. SQS allows a message of
/// 1 MiB to be nothing but attributes; room for their types as well.
pub const PROPERTIES_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Messages that have not come whole and uncommitted transactions of one AMQP connection, together: one message of the
/// largest size passes, or many smaller ones. The sum over all connections is bounded besides.
pub const CONNECTION_INTAKE_BYTES_MAX: usize = BODY_BYTES_MAX + PROPERTIES_BYTES_MAX;
/// Headers of one native message: enough for tracing and routing, too few to be a body.
pub const HEADERS_MAX: usize = 256;

/// Messages in one push: bounds the time a queue's lock is held for it.
pub const PUSH_BATCH_MAX: usize = 10_000;
/// Messages in one pop: as above.
pub const POP_BATCH_MAX: usize = 10_000;
/// Ids in one acknowledgement call: as above.
pub const SETTLE_BATCH_MAX: usize = 10_000;
/// Messages in one peek: they are copied into one answer.
pub const PEEK_MAX: usize = 1_000;
/// Bytes of messages in one peek, unless one message has more: gRPC clients refuse answers above 4 MiB unless they are told
/// otherwise, and an answer is in memory as a whole.
pub const PEEK_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Bindings listed for one queue: a queue may have hundreds of thousands, and nobody reads so many.
pub const BINDINGS_SHOWN_MAX: usize = 1_000;
/// Credit that one subscription may hold: bounds what a dead worker can keep from others.
pub const CREDIT_MAX: u32 = 1_000_000;

/// Bytes that one consumer is handed before it has passed them on to its client: enough to keep a fast connection busy
/// while the queue is asked for more. One message may go over it.
pub const CONSUMER_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Virtual hosts on one node: each has exchanges of its own from the beginning.
pub const VHOSTS_MAX: usize = 10_000;
/// What is said about a virtual host is read by people.
pub const VHOST_DESCRIPTION_BYTES_MAX: usize = 4_096;
/// Tags of one virtual host: as above.
pub const VHOST_TAGS_MAX: usize = 64;
/// One tag: as long as a name.
pub const VHOST_TAG_BYTES_MAX: usize = 255;

/// Queues on one node.
pub const QUEUES_MAX: usize = 1_000_000;
/// Exchanges on one node: far above any sensible number, so that a client in a loop meets an end.
pub const EXCHANGES_MAX: usize = 100_000;
/// Bindings on one node: each is kept in memory, some hundred bytes.
pub const BINDINGS_MAX: usize = 10_000_000;
/// Attempts before a message is a dead letter, if the queue does not say.
pub const MAX_ATTEMPTS_DEFAULT: u32 = 5;
/// A sane ceiling: above it, "unlimited" is meant.
pub const MAX_ATTEMPTS_MAX: u32 = 1_000_000;
/// How long a consumer may work on a message, if the queue does not say.
pub const VISIBILITY_DEFAULT: Millis = Millis::from_secs(30);
/// A lease longer than a year is a mistake in units.
pub const VISIBILITY_MAX: Millis = Millis::from_secs(366 * 24 * 3600);
/// Delays and lifetimes of any sensible length: a hundred years, so that sums never overflow a calendar.
pub const DELAY_MAX: Millis = Millis::from_secs(100 * 366 * 24 * 3600);
/// How long a deduplication id is remembered, if the queue does not say (SQS: five minutes).
pub const DEDUP_WINDOW_DEFAULT: Millis = Millis::from_secs(300);
/// Remembered ids cost memory; a week is beyond any retry of a sender.
pub const DEDUP_WINDOW_MAX: Millis = Millis::from_secs(7 * 24 * 3600);
/// A waiting pop holds a connection; an hour is longer than any proxy lets it live.
pub const POP_WAIT_MAX: Millis = Millis::from_secs(3600);
/// Largest back-off factor, in thousandths: beyond it the second retry is already at the cap.
pub const BACKOFF_FACTOR_PERMILLE_MAX: u32 = 1_000_000;
/// Deliveries that a rate limit may allow in its period; more is no limit at all.
pub const RATE_DELIVERIES_MAX: u32 = 1_000_000_000;
/// Periods over which a rate limit counts: up to a day.
pub const RATE_PERIOD_MAX: Millis = Millis::from_secs(24 * 3600);

/// Events that wait to be published: some seconds of a busy broker.
pub const EVENTS_WAITING_MAX: usize = 10_000;
/// What they may take: a client may give a queue arguments of 128 KiB, which an event tells.
pub const EVENTS_WAITING_BYTES_MAX: usize = 16 << 20;
/// Memory for messages on their way in that there is in any case, so that they can be read and refused where memory is short.
/// Without any, nobody would count them.
pub const INTAKE_BYTES_MIN: u64 = 1 << 20;
/// What events may bring to queues during one alarm, which stops all other messages: some thousand of them.
pub const EVENTS_IN_ALARM_BYTES_MAX: usize = 1 << 20;
/// Traced messages that wait to be published: as much as a slow reader of traces may cost the broker.
pub const TRACE_WAITING_BYTES_MAX: usize = 16 << 20;

/// RabbitMQ's limit for a short string.
pub const USER_NAME_BYTES_MAX: usize = 255;
/// Tags are words.
pub const USER_TAG_BYTES_MAX: usize = 64;
/// Tags of one user: RabbitMQ knows five, and nobody has many of his own.
pub const USER_TAGS_MAX: usize = 32;
/// Users on one node: each is kept in memory with its permissions, and a change copies the list of them.
pub const USERS_MAX: usize = 10_000;
/// Virtual hosts in which one user has permissions, and its topic permissions.
pub const USER_PERMISSIONS_MAX: usize = 1_000;
/// Access keys, and tokens, of one user: some programs with one each, and the next ones beside the old while they are changed.
pub const USER_KEYS_MAX: usize = 32;
/// Hashes, secrets, ids and descriptions: some times as long as any that is made.
pub const SECRET_BYTES_MAX: usize = 512;
/// A permission's pattern, which is written by hand.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// What a compiled pattern may take: enough for a list of names, too little to hurt with thousands of users.
pub const PATTERN_COMPILED_BYTES_MAX: usize = 256 * 1024;
/// Brackets within brackets of a pattern.
pub const PATTERN_NESTING_MAX: u32 = 32;

/// RabbitMQ's limit for a short string.
pub const POLICY_NAME_BYTES_MAX: usize = 255;
/// Policies of one kind in one virtual host: each is looked at for every queue that is declared.
pub const VHOST_POLICIES_MAX: usize = 1_000;
/// Policies of both kinds on one node: each has a compiled pattern in memory.
pub const POLICIES_MAX: usize = 10_000;
/// A policy's definition, which is written by hand.
pub const POLICY_DEFINITION_BYTES_MAX: usize = 16 * 1024;
/// RabbitMQ's limit for a short string.
pub const ROUTING_KEY_BYTES_MAX: usize = 255;
/// As for policies.
pub const PARAMETER_NAME_BYTES_MAX: usize = 255;
/// Parameters in one virtual host, and global ones: a handful for each tool that keeps some.
pub const VHOST_PARAMETERS_MAX: usize = 1_000;
/// Parameters of all virtual hosts on one node: they are kept in memory.
pub const PARAMETERS_MAX: usize = 10_000;
/// The value of one parameter, which is written by hand.
pub const PARAMETER_BYTES_MAX: usize = 16 * 1024;

/// As for queues.
pub const JOB_QUEUE_NAME_BYTES_MAX: usize = 255;
/// As for queues.
pub const BUDGET_NAME_BYTES_MAX: usize = 255;
/// Job queues on one node: each has settings, figures and an order of its own.
pub const JOB_QUEUES_MAX: usize = 10_000;
/// Budgets on one node: as above.
pub const BUDGETS_MAX: usize = 10_000;
/// The type of a job, the class and the user of a waiter: words.
pub const JOB_WORD_BYTES_MAX: usize = 128;
/// What a job is about: a word, a URL, or a hash of something longer.
pub const JOB_KEY_BYTES_MAX: usize = 1_024;
/// As long as a message's deduplication id.
pub const WAITER_ID_BYTES_MAX: usize = 512;
/// What a job says to its worker is in memory for as long as it waits. A larger one belongs into a store, with its key here.
pub const JOB_PAYLOAD_BYTES_MAX: usize = 256 * 1024;
/// A result is in memory for as long as it is cached.
pub const JOB_RESULT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What a worker tells of a job on its way.
pub const JOB_PROGRESS_BYTES_MAX: usize = 4 * 1024;
/// Why a job failed, in the words of its worker.
pub const JOB_ERROR_BYTES_MAX: usize = 4 * 1024;
/// Waiters of one job: each gets an answer of its own.
pub const JOB_WAITERS_MAX: usize = 100_000;
/// Jobs in one hand-out: bounds the time the lock is held for it.
pub const JOB_TAKE_MAX: usize = 1_000;
/// How long a worker may keep a job without a word: a job that takes longer is extended.
pub const JOB_LEASE_MAX: Millis = Millis::from_secs(12 * 3600);
/// Tokens: so that sums stay far from what a number holds.
pub const TOKENS_MAX: u64 = 1 << 48;
/// Tokens that are to come to one budget at set times.
pub const BUDGET_GRANTS_MAX: usize = 1_000;
/// Classes, types with a cost and bands of scores of one job queue: written by hand.
pub const JOB_QUEUE_ENTRIES_MAX: usize = 100;
/// Steps of the expression of a score, which is evaluated while all jobs are held, for up to a thousand jobs in a row.
pub const JOB_SCORE_STEPS_MAX: u64 = 10_000;
/// Steps of the expression of a cost, which is evaluated where other connections wait.
pub const JOB_COST_STEPS_MAX: u64 = 1_000_000;
/// Steps of a filter over one item of a result: nobody else has a turn meanwhile.
pub const JOB_FILTER_ITEM_STEPS_MAX: u64 = 5_000_000;
/// Steps of a filter over a whole result: what one waiter may have done for it.
pub const JOB_FILTER_STEPS_MAX: u64 = 50_000_000;
/// Types, and keys, of which figures are kept for each job queue; those that were seen least recently give way.
pub const JOB_FIGURES_MAX: usize = 1_000;
/// Jobs of one key that are looked at to say how many are pending: so that one key does not take what is for all.
pub const JOB_KEY_LOOK_MAX: usize = 1_000;
/// Jobs that are looked at to say of all keys how many are pending: bounds the time the lock is held for it.
pub const JOB_KEYS_LOOK_MAX: usize = 4_000;
/// The latest uses of tokens that are kept on one node, to be asked for.
pub const TOKEN_LOG_MAX: usize = 100_000;

/// As for policies.
pub const SCHEDULE_NAME_BYTES_MAX: usize = 255;
/// What is said about a schedule is read by people.
pub const SCHEDULE_DESCRIPTION_BYTES_MAX: usize = 4_096;
/// A cron expression, and the name of a time zone, are written by hand.
pub const CRON_BYTES_MAX: usize = 256;
/// The shortest interval of a schedule: each time is a record of its own that is synced. Whoever needs messages more often than ten
/// times in a second wants a producer.
pub const SCHEDULE_INTERVAL_MIN: Millis = Millis(100);
/// The latest start or end of a schedule: the last second of the year 9999, after which calendars need more digits.
pub const SCHEDULE_TIME_MAX: u64 = 253_402_300_799_000;
/// The body of a scheduled message: it is in memory, and in every snapshot of the schedules. AWS allows as much for its schedules.
pub const SCHEDULE_BODY_BYTES_MAX: usize = 256 * 1024;
/// Headers of a scheduled message: some are added when it is sent.
pub const SCHEDULE_HEADERS_MAX: usize = 64;
/// Their names and values together.
pub const SCHEDULE_HEADERS_BYTES_MAX: usize = 16 * 1024;
/// Schedules in one virtual host: one that is full leaves room for others.
pub const VHOST_SCHEDULES_MAX: usize = 1_000;
/// Schedules on one node: all of them may be due in the same second.
pub const SCHEDULES_MAX: usize = 10_000;
/// What all schedules take together: a checkpoint writes them as one snapshot.
pub const SCHEDULES_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Times that one schedule catches up with after a downtime, if it does not say.
pub const CATCH_UP_DEFAULT: u32 = 1_000;
/// The most that it may say: they come at once.
pub const CATCH_UP_MAX: u32 = 10_000;
/// Times that were missed are counted up to this for each downtime; counting all of a year's seconds would take too long.
pub const MISSED_COUNTED_MAX: u64 = 10_000;
/// A schedule that skips what it missed still fires a time that is late by no more than this: a start takes as long.
pub const SKIPPED_LATE: Millis = Millis::from_secs(10);

/// The name of a node is typed by hand, and shown in tables.
pub const NODE_NAME_BYTES_MAX: usize = 64;
/// `HOST:PORT` of a node: a name in the DNS has at most 253 bytes.
pub const NODE_ADDRESS_BYTES_MAX: usize = 260;
/// Voters and learners of one Raft group. A majority of seven already outlives three losses; the rest is for nodes that come
/// while others go.
pub const RAFT_MEMBERS_MAX: usize = 16;
/// Terms and places in Raft logs. What a peer sends is refused beyond this, so that counting on never wraps around.
pub const RAFT_NUMBER_MAX: u64 = u64::MAX >> 8;
/// One message between nodes: the largest frame of a log (160 MiB) and room for what stands around it.
pub const RAFT_MESSAGE_BYTES_MAX: usize = 161 * 1024 * 1024;
/// Entries in one message between nodes: as many as bytes in a message of the usual size, so that no leader makes one that its
/// followers refuse. Memory is taken for entries that are there.
pub const RAFT_MESSAGE_ENTRIES_MAX: usize = 1024 * 1024;
/// Bytes of entries in one message between nodes, unless one entry has more: a slow link is not held up by one of them for
/// long, and heartbeats travel apart.
pub const RAFT_APPEND_BYTES_MAX: usize = 1024 * 1024;
/// Messages with entries on their way to one follower. With the size above it bounds what a link has to hold.
pub const RAFT_APPENDS_IN_FLIGHT_MAX: usize = 64;
/// Bytes that a leader has proposed in one group and that are not committed. Beyond it proposals are refused as busy. One of
/// any size passes.
pub const RAFT_UNCOMMITTED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Entries that a leader has proposed in one group and that are not committed: each takes some hundred bytes of memory besides what
/// it says.
pub const RAFT_UNCOMMITTED_ENTRIES_MAX: usize = 256 * 1024;
/// Bytes of entries that are committed and still in memory, in one group, for followers that are a little behind. What is
/// older is read from the disk.
pub const RAFT_TAIL_BYTES_MAX: usize = 4 * 1024 * 1024;

/// One envelope between nodes: appends on their way to one follower (64 MiB), and among them some as large as a message may
/// be. It is read as it comes, so nobody takes memory by announcing one.
pub const PEER_ENVELOPE_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Bytes of envelopes that wait to be sent to one node: what may be on its way to one follower, and room for heartbeats and
/// answers. Beyond it envelopes are dropped. One of any size passes if nothing waits.
pub const PEER_QUEUE_BYTES_MAX: usize = 80 * 1024 * 1024;
/// Bytes of one message before two nodes know each other: names, addresses, nonces.
pub const PEER_HELLO_BYTES_MAX: usize = 2 * 1024;
/// Connections to the cluster's port that have not proven yet whose they are. The oldest makes room for a new one, so silent
/// strangers keep no node out.
pub const PEER_STRANGERS_MAX: usize = 256;
/// Connections that a node opens to another at the same time, below what the other takes from strangers: after a change of
/// leader all clients come at once.
pub const PEER_DIALS_MAX: usize = 32;
/// A question of one node to another, or its answer: a list of all nodes and how each is.
pub const PEER_MESSAGE_BYTES_MAX: usize = 1024 * 1024;
