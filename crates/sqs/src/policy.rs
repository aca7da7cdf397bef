//! The attribute `Policy`: who may do what. It is stored and shown; access is decided by the keys of the broker.

use serde_json::{Value, json};

use crate::fault::Fault;

/// A policy with one more statement.
pub(crate) fn with_statement(
    policy: Option<&str>,
    arn: &str,
    label: &str,
    accounts: &[impl AsRef<str>],
    actions: &[impl AsRef<str>],
) -> Result<String, Fault> {
    let mut policy = policy.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_else(
        || json!({ "Version": "2012-10-17", "Id": format!("{arn}/SQSDefaultPolicy"), "Statement": [] }),
    );
    if statements(&mut policy).iter().any(|statement| is_labelled(statement, label)) {
        return Err(Fault::value("Label", label, "Already exists."));
    }
    let principals: Vec<String> =
        accounts.iter().map(|account| format!("arn:aws:iam::{}:root", account.as_ref())).collect();
    let actions: Vec<String> = actions.iter().map(|action| format!("SQS:{}", action.as_ref())).collect();
    statements(&mut policy).push(json!({
        "Sid": label,
        "Effect": "Allow",
        "Principal": { "AWS": principals },
        "Action": actions,
        "Resource": arn,
    }));
    Ok(policy.to_string())
}

/// A policy without the statement of this label; `None` if nothing is left of it.
pub(crate) fn without_statement(policy: Option<&str>, label: &str) -> Result<Option<String>, Fault> {
    let missing = || Fault::value("Label", label, "can't find label on existing policy.");
    let mut policy: Value = policy.and_then(|text| serde_json::from_str(text).ok()).ok_or_else(missing)?;
    let list = statements(&mut policy);
    let before = list.len();
    list.retain(|statement| !is_labelled(statement, label));
    if list.len() == before {
        return Err(missing());
    }
    Ok((!list.is_empty()).then(|| policy.to_string()))
}

/// Whether a text can be a policy at all.
pub(crate) fn is_policy(text: &str) -> bool {
    matches!(serde_json::from_str::<Value>(text), Ok(Value::Object(_)))
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
