//! Policies and operator policies of the native API.

use nexo_access::{Identity, Tag};
use nexo_broker::policy::{ApplyTo, Policy, PolicyError, PolicyKind, PolicyRecord};
use nexo_broker::{Broker, PolicyChangeError};
use nexo_types::VhostName;
use serde_json::{Map, Value};
use tonic::Code;

use crate::fields;
use crate::proto;
use crate::status::Failure;

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        let code = match &error {
            PolicyError::Invalid { .. } | PolicyError::Name(_) | PolicyError::TooLarge { .. } => {
                Code::InvalidArgument
            }
            PolicyError::NoSuchPolicy { .. }
            | PolicyError::NoSuchParameter { .. }
            | PolicyError::NoSuchVhost { .. } => Code::NotFound,
            PolicyError::TooMany { .. } => Code::ResourceExhausted,
        };
        Self { code, message: error.to_string() }
    }
}

impl From<PolicyChangeError> for Failure {
    fn from(error: PolicyChangeError) -> Self {
        match error {
            PolicyChangeError::Refused(error) => error.into(),
            PolicyChangeError::Queue(error) => error.into(),
        }
    }
}

pub(crate) fn list(
    broker: &Broker,
    identity: &Identity,
    request: &proto::ListPoliciesRequest,
) -> Result<Vec<proto::Policy>, Failure> {
    let (kind, wanted) = (kind(request.kind)?, &request.vhost);
    if !wanted.is_empty() {
        may_look(identity, &fields::vhost(wanted)?)?;
    }
    let policies = broker.policies();
    let seen = policies.policies(kind).filter(|(vhost, _)| {
        (wanted.is_empty() || vhost.as_str() == wanted) && may_look(identity, vhost).is_ok()
    });
    Ok(seen.map(|(vhost, policy)| to_proto(kind, vhost, policy)).collect())
}

pub(crate) fn get(
    broker: &Broker,
    identity: &Identity,
    request: &proto::GetPolicyRequest,
) -> Result<proto::Policy, Failure> {
    let (kind, vhost) = (kind(request.kind)?, fields::vhost(&request.vhost)?);
    may_look(identity, &vhost)?;
    let policies = broker.policies();
    let found = policies.policy(kind, &vhost, &request.name);
    let missing = || PolicyError::NoSuchPolicy { kind, vhost: vhost.clone(), name: request.name.clone() };
    Ok(to_proto(kind, &vhost, found.ok_or_else(missing)?))
}

pub(crate) async fn put(
    broker: &Broker,
    identity: &Identity,
    asked: &proto::Policy,
) -> Result<bool, Failure> {
    let (kind, vhost) = (kind(asked.kind)?, fields::vhost(&asked.vhost)?);
    may_change(identity, kind, &vhost)?;
    let apply_to = if asked.apply_to.is_empty() { ApplyTo::All } else { ApplyTo::parse(&asked.apply_to)? };
    let definition = definition(&asked.definition)?;
    let policy = Policy::new(kind, &asked.name, &asked.pattern, asked.priority, apply_to, definition)?;
    let is_new = broker.policies().policy(kind, &vhost, &asked.name).is_none();
    broker.change_policies(&[PolicyRecord::Put { kind, vhost, policy: policy.into() }]).await?;
    Ok(is_new)
}

pub(crate) async fn delete(
    broker: &Broker,
    identity: &Identity,
    request: &proto::DeletePolicyRequest,
) -> Result<(), Failure> {
    let (kind, vhost) = (kind(request.kind)?, fields::vhost(&request.vhost)?);
    may_change(identity, kind, &vhost)?;
    let name = request.name.as_str().into();
    Ok(broker.change_policies(&[PolicyRecord::Delete { kind, vhost, name }]).await?)
}

/// Whoever may come in may know which policies there are.
fn may_look(identity: &Identity, vhost: &VhostName) -> Result<(), Failure> {
    if identity.is(Tag::ADMINISTRATOR) { Ok(()) } else { Ok(identity.may_enter(vhost.as_str())?) }
}

/// Policymakers set policies where they may come in. What bounds others, only administrators set.
fn may_change(identity: &Identity, kind: PolicyKind, vhost: &VhostName) -> Result<(), Failure> {
    let (tag, what) = match kind {
        PolicyKind::Regular => (Tag::POLICYMAKER, "no policymaker"),
        PolicyKind::Operator => (Tag::ADMINISTRATOR, "no administrator"),
    };
    if !identity.is(tag) && !identity.is(Tag::ADMINISTRATOR) {
        let message = format!("user '{}' is {what}, and only those may do this", identity.name());
        return Err(Failure { code: Code::PermissionDenied, message });
    }
    may_look(identity, vhost)
}

fn kind(number: i32) -> Result<PolicyKind, Failure> {
    match proto::PolicyKind::try_from(number) {
        Ok(proto::PolicyKind::Unspecified | proto::PolicyKind::Regular) => Ok(PolicyKind::Regular),
        Ok(proto::PolicyKind::Operator) => Ok(PolicyKind::Operator),
        Err(_) => Err(Failure::invalid(format!("kind must be one that is known; it is {number}"))),
    }
}

fn definition(text: &str) -> Result<Map<String, Value>, Failure> {
    match serde_json::from_str(text) {
        Ok(Value::Object(terms)) => Ok(terms),
        Ok(_) => Err(Failure::invalid("definition must be a JSON object")),
        Err(error) => Err(Failure::invalid(format!("definition must be a JSON object: {error}"))),
    }
}

fn to_proto(kind: PolicyKind, vhost: &VhostName, policy: &Policy) -> proto::Policy {
    let kind = match kind {
        PolicyKind::Regular => proto::PolicyKind::Regular,
        PolicyKind::Operator => proto::PolicyKind::Operator,
    };
    proto::Policy {
        vhost: vhost.as_str().to_owned(),
        name: policy.name.to_string(),
        kind: kind.into(),
        pattern: policy.pattern.as_str().to_owned(),
        apply_to: policy.apply_to.as_str().to_owned(),
        priority: policy.priority,
        definition: policy.definition.text(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_must_be_an_object() {
        assert_eq!(definition(r#"{"message-ttl": 5}"#).unwrap().len(), 1);
        for wrong in ["", "[]", "{", "5"] {
            let failure = definition(wrong).unwrap_err();
            assert!(failure.message.starts_with("definition must be a JSON object"), "{failure:?}");
        }
    }
}
