//! Attributes of queues: what clients call them, what they may be, and where each is kept.

use nexo_broker::{DeadLetters, GroupMode, QueueConfig};
use nexo_types::{Millis, QueueName, VhostName};

use crate::fault::{Fault, FaultCode};
use crate::limits::Limits;
use crate::policy;
use crate::redrive::{RedriveAllowPolicy, RedrivePolicy};
use crate::settings::{DeduplicationScope, Fifo, Settings, ThroughputLimit};

/// How long SQS keeps a message if nobody says.
const RETENTION_DEFAULT: Millis = Millis::from_secs(4 * 24 * 3600);
/// What a queue without an end for its messages says when it is asked in SQS's words: the longest that AWS knows.
const RETENTION_SHOWN_S: u64 = 1_209_600;

/// The largest message that AWS takes. A queue that was not told otherwise says so, although with relaxed limits it takes
/// larger ones: clients compare it.
const MESSAGE_BYTES_SHOWN: u64 = 1024 * 1024;
/// How long a data key is used again if nobody says.
const KMS_REUSE_DEFAULT_S: u64 = 300;

/// How the broker keeps a visibility of no time at all, which it does not know.
pub(crate) const NO_VISIBILITY: Millis = Millis(1);

macro_rules! attributes {
    ($($name:ident),+ $(,)?) => {
        /// An attribute of a queue.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum QueueAttribute {
            $(#[doc = stringify!($name)] $name,)+
        }

        impl QueueAttribute {
            /// All of them.
            pub(crate) const ALL: &[Self] = &[$(Self::$name),+];

            /// The attribute of this name.
            pub(crate) fn named(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($name) => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// What AWS calls it.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }
        }
    };
}

attributes! {
    Policy, VisibilityTimeout, MaximumMessageSize, MessageRetentionPeriod, ApproximateNumberOfMessages,
    ApproximateNumberOfMessagesNotVisible, CreatedTimestamp, LastModifiedTimestamp, QueueArn,
    ApproximateNumberOfMessagesDelayed, DelaySeconds, ReceiveMessageWaitTimeSeconds, RedrivePolicy, FifoQueue,
    ContentBasedDeduplication, KmsMasterKeyId, KmsDataKeyReusePeriodSeconds, DeduplicationScope,
    FifoThroughputLimit, RedriveAllowPolicy, SqsManagedSseEnabled,
}

/// Where the attributes of a queue are kept: some with the broker, some with SQS.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) config: QueueConfig,
    pub(crate) settings: Settings,
}

impl Kept {
    /// What a new queue has.
    pub(crate) fn new() -> Self {
        let config = QueueConfig {
            max_attempts: None,
            dead_letters: DeadLetters::Nowhere,
            ttl: Some(RETENTION_DEFAULT),
            groups: GroupMode::Fair,
            ..QueueConfig::default()
        };
        Self { config, settings: Settings { fair_groups: true, ..Settings::default() } }
    }

    /// What a queue has.
    ///
    /// # Errors
    /// If what SQS keeps with it cannot be read.
    pub(crate) fn of(name: &QueueName, config: QueueConfig) -> Result<Self, Fault> {
        let settings = Settings::of(&config).map_err(|error| error.fault(name))?;
        Ok(Self { config, settings })
    }

    /// Both as one.
    pub(crate) fn into_config(self) -> QueueConfig {
        let mut config = self.config;
        self.settings.write_to(&mut config);
        config
    }

    /// Sets one attribute. Whether the queue may have it depends on whether it is a FIFO queue, so `FifoQueue` goes
    /// first.
    pub(crate) fn set(
        &mut self,
        attribute: QueueAttribute,
        value: &str,
        vhost: &VhostName,
        limits: &Limits,
    ) -> Result<(), Fault> {
        use QueueAttribute as A;
        let settings = &mut self.settings;
        let number = |min: u64, max: u64| {
            let number = value.parse::<u64>().ok().filter(|number| (min..=max).contains(number));
            number.ok_or_else(|| Fault::attribute_value(attribute.name()))
        };
        match attribute {
            A::VisibilityTimeout => {
                let seconds = number(0, limits.visibility_s)?;
                self.config.visibility = Millis::from_secs(seconds).max(NO_VISIBILITY);
            }
            A::MessageRetentionPeriod => {
                let seconds = number(limits.retention_s_min, limits.retention_s)?;
                self.config.ttl = Some(Millis::from_secs(seconds));
            }
            A::MaximumMessageSize => {
                settings.message_bytes_max = Some(number(limits.message_bytes_min, limits.message_bytes)?);
            }
            A::DelaySeconds => settings.delay_s = number(0, limits.delay_s)?,
            A::ReceiveMessageWaitTimeSeconds => settings.wait_s = number(0, limits.wait_s)?,
            A::RedrivePolicy if value.is_empty() => {
                self.config.max_attempts = None;
                self.config.dead_letters = DeadLetters::Nowhere;
            }
            A::RedrivePolicy => {
                let policy = RedrivePolicy::parse(vhost, value, limits)?;
                self.config.max_attempts = Some(policy.max_receive_count);
                self.config.dead_letters = DeadLetters::Queue(policy.target);
            }
            A::RedriveAllowPolicy => {
                if !value.is_empty() {
                    RedriveAllowPolicy::parse(value)?;
                }
                settings.redrive_allow_policy = unless_empty(value);
            }
            A::Policy => {
                if !value.is_empty() {
                    policy::check(value, limits)?;
                }
                settings.policy = unless_empty(value);
            }
            A::KmsMasterKeyId => {
                settings.kms_master_key_id = unless_empty(value);
                // A key of one's own takes the place of the one that SQS has, unless the same request asks for both.
                if settings.sqs_managed_sse == Some(true) {
                    settings.sqs_managed_sse = None;
                }
            }
            A::KmsDataKeyReusePeriodSeconds => {
                settings.kms_data_key_reuse_period_s = Some(number(60, 86_400)?);
            }
            A::SqsManagedSseEnabled => settings.sqs_managed_sse = Some(truth(attribute, value)?),
            A::FifoQueue => match (truth(attribute, value)?, &settings.fifo) {
                (true, None) => {
                    settings.fifo = Some(Fifo::default());
                    settings.fair_groups = false;
                    self.config.groups = GroupMode::Ordered;
                }
                (true, Some(_)) => {}
                // AWS does not know the attribute unless it is true.
                (false, None) => return Err(Fault::unknown_attribute(attribute.name())),
                (false, Some(_)) => {
                    return Err(Fault::new(
                        FaultCode::InvalidAttributeValue,
                        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
                    ));
                }
            },
            A::ContentBasedDeduplication => {
                fifo(settings, attribute)?.content_based_deduplication = truth(attribute, value)?;
            }
            A::DeduplicationScope => {
                fifo_only(settings, attribute)?.deduplication_scope = match value {
                    "queue" => DeduplicationScope::Queue,
                    "messageGroup" => DeduplicationScope::MessageGroup,
                    _ => return Err(Fault::attribute_value(attribute.name())),
                }
            }
            A::FifoThroughputLimit => {
                fifo_only(settings, attribute)?.throughput_limit = match value {
                    "perQueue" => ThroughputLimit::PerQueue,
                    "perMessageGroupId" => ThroughputLimit::PerMessageGroupId,
                    _ => return Err(Fault::attribute_value(attribute.name())),
                }
            }
            A::ApproximateNumberOfMessages
            | A::ApproximateNumberOfMessagesNotVisible
            | A::ApproximateNumberOfMessagesDelayed
            | A::CreatedTimestamp
            | A::LastModifiedTimestamp
            | A::QueueArn => return Err(Fault::unknown_attribute(attribute.name())),
        }
        Ok(())
    }

    /// Checks what attributes must be to each other.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.settings.kms_master_key_id.is_some() && self.settings.sqs_managed_sse == Some(true) {
            return Err(Fault::new(
                FaultCode::InvalidAttributeName,
                "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or \
                 SQS SSE.",
            ));
        }
        self.settings.check_size()?;
        let Some(fifo) = &self.settings.fifo else { return Ok(()) };
        let per_group = fifo.throughput_limit == ThroughputLimit::PerMessageGroupId;
        if per_group && fifo.deduplication_scope != DeduplicationScope::MessageGroup {
            return Err(Fault::new(
                FaultCode::InvalidAttributeValue,
                "The perMessageGroupId value for FifoThroughputLimit is allowed only when the value for \
                 DeduplicationScope is messageGroup.",
            ));
        }
        Ok(())
    }

    /// One attribute of those that can be set, as clients see it; `None` if the queue does not have it.
    pub(crate) fn get(&self, attribute: QueueAttribute, seen: &Seen<'_>) -> Option<String> {
        use QueueAttribute as A;
        let settings = &self.settings;
        let number = |number: u64| Some(number.to_string());
        match attribute {
            A::VisibilityTimeout => number(self.config.visibility.0 / 1000),
            A::MessageRetentionPeriod => {
                number(self.config.ttl.map_or(RETENTION_SHOWN_S, |ttl| ttl.0 / 1000))
            }
            A::MaximumMessageSize => number(settings.message_bytes_max.unwrap_or(MESSAGE_BYTES_SHOWN)),
            A::DelaySeconds => number(settings.delay_s),
            A::ReceiveMessageWaitTimeSeconds => number(settings.wait_s),
            A::RedrivePolicy => self.redrive_policy(seen.name).map(|p| p.to_text(seen.region, seen.account)),
            A::RedriveAllowPolicy => settings.redrive_allow_policy.clone(),
            A::Policy => settings.policy.clone(),
            A::KmsMasterKeyId => settings.kms_master_key_id.clone(),
            A::KmsDataKeyReusePeriodSeconds => {
                settings.kms_master_key_id.as_ref()?;
                number(settings.kms_data_key_reuse_period_s.unwrap_or(KMS_REUSE_DEFAULT_S))
            }
            // Nothing is encrypted here, so nothing says that it is unless somebody asked for that.
            A::SqsManagedSseEnabled => Some(settings.sqs_managed_sse.unwrap_or(false).to_string()),
            A::FifoQueue => settings.fifo.as_ref().map(|_| "true".to_owned()),
            A::ContentBasedDeduplication => {
                settings.fifo.as_ref().map(|fifo| fifo.content_based_deduplication.to_string())
            }
            A::DeduplicationScope => settings.fifo.as_ref().map(|fifo| {
                match fifo.deduplication_scope {
                    DeduplicationScope::Queue => "queue",
                    DeduplicationScope::MessageGroup => "messageGroup",
                }
                .to_owned()
            }),
            A::FifoThroughputLimit => settings.fifo.as_ref().map(|fifo| {
                match fifo.throughput_limit {
                    ThroughputLimit::PerQueue => "perQueue",
                    ThroughputLimit::PerMessageGroupId => "perMessageGroupId",
                }
                .to_owned()
            }),
            A::ApproximateNumberOfMessages
            | A::ApproximateNumberOfMessagesNotVisible
            | A::ApproximateNumberOfMessagesDelayed
            | A::CreatedTimestamp
            | A::LastModifiedTimestamp
            | A::QueueArn => None,
        }
    }

    /// Where the dead letters of this queue go, and after how many receives.
    pub(crate) fn redrive_policy(&self, own: &QueueName) -> Option<RedrivePolicy> {
        let max_receive_count = self.config.max_attempts?;
        let target = self.config.dead_letter_queue_of(own).ok()??;
        Some(RedrivePolicy { target, max_receive_count })
    }
}

/// By whose eyes attributes are seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) name: &'a QueueName,
    pub(crate) region: &'a str,
    pub(crate) account: &'a str,
}

fn fifo(settings: &mut Settings, attribute: QueueAttribute) -> Result<&mut Fifo, Fault> {
    settings.fifo.as_mut().ok_or_else(|| Fault::unknown_attribute(attribute.name()))
}

/// The same, in the words that AWS has for the settings of high throughput.
fn fifo_only(settings: &mut Settings, attribute: QueueAttribute) -> Result<&mut Fifo, Fault> {
    settings.fifo.as_mut().ok_or_else(|| {
        let name = attribute.name();
        let message = format!("You can specify the {name} only when FifoQueue is set to true.");
        Fault::new(FaultCode::InvalidAttributeName, message)
    })
}

fn truth(attribute: QueueAttribute, value: &str) -> Result<bool, Fault> {
    // Clients write truth in whatever way their language does.
    value.to_ascii_lowercase().parse().map_err(|_| Fault::attribute_value(attribute.name()))
}

fn unless_empty(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LimitMode;

    #[test]
    fn what_is_set_is_what_is_seen() {
        let name = QueueName::new("q").unwrap();
        let limits = LimitMode::Strict.limits();
        let seen = Seen { name: &name, region: "r", account: "0" };
        let dead = "{\"deadLetterTargetArn\":\"arn:aws:sqs:r:0:dead\",\"maxReceiveCount\":3}";
        let mut kept = Kept::new();
        for (attribute, value) in [
            (QueueAttribute::FifoQueue, "true"),
            (QueueAttribute::VisibilityTimeout, "0"),
            (QueueAttribute::MessageRetentionPeriod, "60"),
            (QueueAttribute::MaximumMessageSize, "1024"),
            (QueueAttribute::DelaySeconds, "900"),
            (QueueAttribute::ReceiveMessageWaitTimeSeconds, "20"),
            (QueueAttribute::RedrivePolicy, dead),
            (QueueAttribute::Policy, "{}"),
            (QueueAttribute::ContentBasedDeduplication, "true"),
            (QueueAttribute::DeduplicationScope, "messageGroup"),
            (QueueAttribute::FifoThroughputLimit, "perMessageGroupId"),
            (QueueAttribute::KmsMasterKeyId, "key"),
            (QueueAttribute::KmsDataKeyReusePeriodSeconds, "60"),
            (QueueAttribute::SqsManagedSseEnabled, "false"),
            (QueueAttribute::RedriveAllowPolicy, "{\"redrivePermission\":\"denyAll\"}"),
        ] {
            kept.set(attribute, value, &VhostName::DEFAULT, limits).unwrap();
            let again = Kept::of(&name, kept.clone().into_config()).unwrap();
            assert_eq!(again.get(attribute, &seen).as_deref(), Some(value), "{attribute:?}");
        }
        assert_eq!(kept.check(), Ok(()));
    }

    #[test]
    fn values_out_of_range_and_attributes_of_the_other_kind_are_refused() {
        let code = |attribute, value, mode: LimitMode| {
            Kept::new().set(attribute, value, &VhostName::DEFAULT, mode.limits()).unwrap_err().code
        };
        let strict = |attribute, value| code(attribute, value, LimitMode::Strict);
        assert_eq!(strict(QueueAttribute::VisibilityTimeout, "43201"), FaultCode::InvalidAttributeValue);
        assert_eq!(strict(QueueAttribute::VisibilityTimeout, "-1"), FaultCode::InvalidAttributeValue);
        assert_eq!(strict(QueueAttribute::DelaySeconds, "901"), FaultCode::InvalidAttributeValue);
        assert_eq!(strict(QueueAttribute::MaximumMessageSize, "1023"), FaultCode::InvalidAttributeValue);
        assert_eq!(strict(QueueAttribute::FifoQueue, "false"), FaultCode::InvalidAttributeName);
        assert_eq!(
            strict(QueueAttribute::ContentBasedDeduplication, "true"),
            FaultCode::InvalidAttributeName
        );
        assert_eq!(strict(QueueAttribute::QueueArn, "x"), FaultCode::InvalidAttributeName);
        assert_eq!(strict(QueueAttribute::Policy, "x"), FaultCode::InvalidAttributeValue);
        let relaxed = LimitMode::Relaxed.limits();
        assert!(
            Kept::new().set(QueueAttribute::VisibilityTimeout, "86400", &VhostName::DEFAULT, relaxed).is_ok()
        );
        assert!(Kept::new().set(QueueAttribute::DelaySeconds, "86400", &VhostName::DEFAULT, relaxed).is_ok());
    }
}
