//! Policies about dead letters: where a queue's go, and whose a queue takes.

use nexo_types::{QueueName, VhostName};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::arn;
use crate::fault::Fault;
use crate::limits::Limits;

/// The attribute `RedrivePolicy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedrivePolicy {
    pub(crate) target: QueueName,
    pub(crate) max_receive_count: u32,
}

impl RedrivePolicy {
    /// Reads the attribute of a queue in a virtual host.
    pub(crate) fn parse(vhost: &VhostName, text: &str, limits: &Limits) -> Result<Self, Fault> {
        let wrong = |reason: &str| Fault::value("RedrivePolicy", text, reason);
        let value: Value =
            serde_json::from_str(text).map_err(|_| wrong("Redrive policy is not a valid JSON map."))?;
        let Value::Object(fields) = value else {
            return Err(wrong("Redrive policy is not a valid JSON map."));
        };
        if let Some(key) =
            fields.keys().find(|key| !["deadLetterTargetArn", "maxReceiveCount"].contains(&key.as_str()))
        {
            return Err(wrong(&format!("Redrive policy contains an unknown key: {key}.")));
        }
        let target = fields.get("deadLetterTargetArn").and_then(Value::as_str);
        let target = target.ok_or_else(|| {
            wrong("Redrive policy does not contain mandatory attribute: deadLetterTargetArn.")
        })?;
        let target =
            arn::queue_name(vhost, target).ok_or_else(|| wrong("Invalid value for deadLetterTargetArn."))?;
        let count = fields
            .get("maxReceiveCount")
            .ok_or_else(|| wrong("Redrive policy does not contain mandatory attribute: maxReceiveCount."))?;
        // Clients have always sent it either way.
        let number = count.as_u64().or_else(|| count.as_str()?.parse().ok());
        let number = number.filter(|number| (1..=limits.receive_count).contains(number));
        let number = number.and_then(|number| u32::try_from(number).ok()).ok_or_else(|| {
            let (given, max) =
                (count.as_str().map_or_else(|| count.to_string(), str::to_owned), limits.receive_count);
            wrong(&format!(
                "Invalid value for maxReceiveCount: {given}, valid values are from 1 to {max} both inclusive."
            ))
        })?;
        Ok(Self { target, max_receive_count: number })
    }

    /// The attribute as clients see it.
    pub(crate) fn to_text(&self, region: &str, account: &str) -> String {
        let target = arn::of_queue(region, account, self.target.as_str());
        serde_json::json!({ "deadLetterTargetArn": target, "maxReceiveCount": self.max_receive_count })
            .to_string()
    }
}

/// The attribute `RedriveAllowPolicy`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RedriveAllowPolicy {
    redrive_permission: RedrivePermission,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    source_queue_arns: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum RedrivePermission {
    AllowAll,
    DenyAll,
    ByQueue,
}

impl RedriveAllowPolicy {
    /// Reads the attribute.
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        let wrong = |reason: &str| Fault::value("RedriveAllowPolicy", text, reason);
        let policy: Self = serde_json::from_str(text)
            .map_err(|error| wrong(&format!("Redrive allow policy cannot be read: {error}.")))?;
        let by_queue = policy.redrive_permission == RedrivePermission::ByQueue;
        match (by_queue, policy.source_queue_arns.len()) {
            (true, 1..=10) | (false, 0) => {}
            (true, _) => return Err(wrong("It must name between 1 and 10 sourceQueueArns with byQueue.")),
            (false, _) => return Err(wrong("sourceQueueArns is only valid with byQueue.")),
        }
        if policy.source_queue_arns.iter().any(|text| arn::queue_name(&VhostName::DEFAULT, text).is_none()) {
            return Err(wrong("sourceQueueArns holds something that is not the ARN of a queue."));
        }
        Ok(policy)
    }

    /// Whether this queue's dead letters may come.
    pub(crate) fn allows(&self, source: &QueueName) -> bool {
        match self.redrive_permission {
            RedrivePermission::AllowAll => true,
            RedrivePermission::DenyAll => false,
            RedrivePermission::ByQueue => {
                let vhost = source.vhost();
                self.source_queue_arns
                    .iter()
                    .any(|text| arn::queue_name(&vhost, text).as_ref() == Some(source))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LimitMode;

    #[test]
    fn a_policy_is_read_with_its_count_as_number_or_text() {
        for count in ["5", "\"5\""] {
            let text =
                format!("{{\"deadLetterTargetArn\":\"arn:aws:sqs:r:a:dead\",\"maxReceiveCount\":{count}}}");
            let policy =
                RedrivePolicy::parse(&VhostName::DEFAULT, &text, LimitMode::Strict.limits()).unwrap();
            assert_eq!((policy.target.as_str(), policy.max_receive_count), ("dead", 5));
        }
        for text in [
            "",
            "[]",
            "{}",
            "{\"maxReceiveCount\":5}",
            "{\"deadLetterTargetArn\":\"arn:aws:sqs:r:a:dead\"}",
            "{\"deadLetterTargetArn\":\"dead\",\"maxReceiveCount\":5}",
            "{\"deadLetterTargetArn\":\"arn:aws:sqs:r:a:dead\",\"maxReceiveCount\":0}",
            "{\"deadLetterTargetArn\":\"arn:aws:sqs:r:a:dead\",\"maxReceiveCount\":1001}",
            "{\"deadLetterTargetArn\":\"arn:aws:sqs:r:a:dead\",\"maxReceiveCount\":5,\"x\":1}",
        ] {
            assert!(
                RedrivePolicy::parse(&VhostName::DEFAULT, text, LimitMode::Strict.limits()).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn an_allow_policy_says_whose_dead_letters_may_come() {
        let allows =
            |text: &str| RedriveAllowPolicy::parse(text).unwrap().allows(&QueueName::new("a").unwrap());
        assert!(allows("{\"redrivePermission\":\"allowAll\"}"));
        assert!(!allows("{\"redrivePermission\":\"denyAll\"}"));
        let by = |arn| format!("{{\"redrivePermission\":\"byQueue\",\"sourceQueueArns\":[\"{arn}\"]}}");
        assert!(allows(&by("arn:aws:sqs:r:0:a")));
        assert!(!allows(&by("arn:aws:sqs:r:0:b")));
        for text in
            ["", "{}", "{\"redrivePermission\":\"byQueue\"}", "{\"redrivePermission\":\"maybe\"}", &by("b")]
        {
            assert!(RedriveAllowPolicy::parse(text).is_err(), "{text}");
        }
    }
}
