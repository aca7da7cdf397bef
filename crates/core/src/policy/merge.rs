//! A policy and an operator policy together: of two bounds the smaller counts, and of anything else what the operator says.

use serde_json::{Map, Value};

use super::definition::Definition;

/// Keys whose values are bounds.
const BOUNDS: [&str; 7] = [
    "delivery-limit",
    "expires",
    "max-in-memory-bytes",
    "max-in-memory-length",
    "max-length",
    "max-length-bytes",
    "message-ttl",
];

impl Definition {
    /// This definition of a policy together with that of an operator policy.
    #[must_use]
    pub fn merged(&self, operator: &Self) -> Self {
        let mut terms: Map<String, Value> = self.terms().clone();
        for (key, bound) in operator.terms() {
            let smaller = |own: &Value| {
                let is_smaller = own.as_u64().zip(bound.as_u64()).is_some_and(|(own, bound)| own < bound);
                BOUNDS.contains(&key.as_str()) && is_smaller
            };
            if !terms.get(key).is_some_and(smaller) {
                terms.insert(key.clone(), bound.clone());
            }
        }
        Self::of_checked(terms)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::PolicyKind;

    fn definition(kind: PolicyKind, value: Value) -> Definition {
        match value {
            Value::Object(terms) => Definition::new(kind, terms).unwrap(),
            other => panic!("{other} is no object"),
        }
    }

    #[test]
    fn of_two_bounds_the_smaller_counts() {
        let policy = definition(
            PolicyKind::Regular,
            json!({"message-ttl": 100, "max-length": 5, "overflow": "drop-head", "dead-letter-exchange": "x"}),
        );
        let operator = definition(
            PolicyKind::Operator,
            json!({"message-ttl": 50, "max-length": 9, "overflow": "reject-publish", "expires": 7}),
        );
        let merged = policy.merged(&operator);
        let expected = json!({
            "message-ttl": 50, "max-length": 5, "overflow": "reject-publish", "dead-letter-exchange": "x", "expires": 7,
        });
        assert_eq!(Value::Object(merged.terms().clone()), expected);
        assert_eq!(merged.settings().message_ttl, Some(nexo_types::Millis(50)));
    }
}
