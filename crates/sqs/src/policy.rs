//! The attribute `Policy`: who may do what. It is stored and shown; access is decided by the keys of the broker.

use serde_json::{Value, json};

use crate::fault::{Fault, FaultCode};
use crate::limits::Limits;

/// A policy with one more statement.
pub(crate) fn with_statement(
    policy: Option<&str>,
    arn: &str,
    label: &str,
    accounts: &[impl AsRef<str>],
    actions: &[impl AsRef<str>],
) -> Result<String, Fault> {
    let mut policy = policy.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_else(
        || json!({ "Version": "2008-10-17", "Id": format!("{arn}/SQSDefaultPolicy"), "Statement": [] }),
    );
    if statements(&mut policy).iter().any(|statement| is_labelled(statement, label)) {
        return Err(Fault::value("Label", label, "Already exists."));
    }
    let principals = accounts.iter().map(|account| format!("arn:aws:iam::{}:root", account.as_ref()));
    let actions = actions.iter().map(|action| format!("SQS:{}", action.as_ref()));
    statements(&mut policy).push(json!({
        "Sid": label,
        "Effect": "Allow",
        "Principal": { "AWS": one_or_list(principals) },
        "Action": one_or_list(actions),
        "Resource": arn,
    }));
    Ok(policy.to_string())
}

/// One text for itself, several as a list: as AWS writes policies.
fn one_or_list(texts: impl Iterator<Item = String>) -> Value {
    let mut texts: Vec<Value> = texts.map(Value::String).collect();
    if texts.len() == 1 { texts.remove(0) } else { Value::Array(texts) }
}

/// A policy without the statement of this label; `None` if nothing is left of it.
pub(crate) fn without_statement(policy: Option<&str>, label: &str) -> Result<Option<String>, Fault> {
    let missing = |reason| Fault::value("Label", label, reason);
    let policy = policy.and_then(|text| serde_json::from_str(text).ok());
    let mut policy: Value = policy.ok_or_else(|| missing("can't find label."))?;
    let list = statements(&mut policy);
    let before = list.len();
    list.retain(|statement| !is_labelled(statement, label));
    if list.len() == before {
        return Err(missing("can't find label on existing policy."));
    }
    Ok((!list.is_empty()).then(|| policy.to_string()))
}

/// Checks that a text can be a policy, and one that is not too large.
pub(crate) fn check(text: &str, limits: &Limits) -> Result<(), Fault> {
    let over = |message: String| Err(Fault::new(FaultCode::OverLimit, message));
    if text.len() > limits.policy_bytes {
        return over("Submitted policy is over max allowed size.".into());
    }
    let Ok(mut policy @ Value::Object(_)) = serde_json::from_str::<Value>(text) else {
        return Err(Fault::attribute_value("Policy"));
    };
    let max = limits.permission_actions;
    let actions = |statement: &Value| statement["Action"].as_array().map_or(1, Vec::len);
    let count = statements(&mut policy).iter().map(actions).max().unwrap_or(0);
    if count > max {
        return over(format!(
            "{count} actions were found in a statement from the submitted policy, max allowed is {max}"
        ));
    }
    Ok(())
}

fn is_labelled(statement: &Value, label: &str) -> bool {
    statement.get("Sid").and_then(Value::as_str) == Some(label)
}

/// The statements of a policy. One that a client wrote may have a single statement without a list around it.
fn statements(policy: &mut Value) -> &mut Vec<Value> {
    if !policy.is_object() {
        *policy = json!({});
    }
    let list = &mut policy["Statement"];
    if !list.is_array() {
        let only = list.take();
        *list = if only.is_null() { json!([]) } else { json!([only]) };
    }
    list.as_array_mut().expect("it has just been made a list")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LimitMode;

    #[test]
    fn a_policy_is_an_object_of_some_length_with_few_actions_in_each_statement() {
        let code = |text: &str| check(text, LimitMode::Strict.limits()).map_err(|fault| fault.code);
        let actions = |count| format!("{{\"Statement\":[1,{{}},{{\"Action\":{:?}}}]}}", vec!["a"; count]);
        for text in ["{}", "{\"Statement\":null}", "{\"Statement\":{\"Action\":\"a\"}}", &actions(7)] {
            assert_eq!(code(text), Ok(()), "{text}");
        }
        for text in ["", "[]", "x", "null"] {
            assert_eq!(code(text), Err(FaultCode::InvalidAttributeValue), "{text}");
        }
        for text in [&actions(8), &format!("{{\"Id\":\"{}\"}}", "x".repeat(8192))] {
            assert_eq!(code(text), Err(FaultCode::OverLimit), "{text}");
            assert_eq!(check(text, LimitMode::Relaxed.limits()), Ok(()), "{text}");
        }
    }

    #[test]
    fn statements_come_and_go_by_their_labels() {
        let arn = "arn:aws:sqs:r:0:q";
        let one = with_statement(None, arn, "a", &["123"], &["SendMessage"]).unwrap();
        assert!(one.contains("\"SQS:SendMessage\"") && one.contains("arn:aws:iam::123:root"), "{one}");
        assert!(with_statement(Some(&one), arn, "a", &["1"], &["*"]).is_err());
        let two = with_statement(Some(&one), arn, "b", &["1"], &["*"]).unwrap();
        let rest = without_statement(Some(&two), "a").unwrap().unwrap();
        assert!(!rest.contains("SendMessage"), "{rest}");
        assert_eq!(without_statement(Some(&rest), "b"), Ok(None));
        assert!(without_statement(Some(&rest), "a").is_err());
        assert!(without_statement(None, "a").is_err());
    }
}
