//! Whether a change can be made. That there is such a virtual host, others know.

use nexo_types::{VhostName, check_name, limits};

use super::error::PolicyError;
use super::policy::PolicyKind;
use super::record::PolicyRecord;
use super::state::{Policies, VhostPolicies};

impl Policies {
    /// What changes come to, all of them or none: those that change something. They are decided one after the other.
    ///
    /// # Errors
    /// Says what is wrong with the first that cannot be made.
    pub fn decide_changes(&self, changes: &[PolicyRecord]) -> Result<Vec<PolicyRecord>, PolicyError> {
        let mut trial = self.clone();
        let mut decided = Vec::with_capacity(changes.len());
        for change in changes {
            trial.check(change)?;
            if trial.is_already(change) {
                continue;
            }
            trial.apply_record(change);
            decided.push(change.clone());
        }
        Ok(decided)
    }

    fn check(&self, change: &PolicyRecord) -> Result<(), PolicyError> {
        match change {
            PolicyRecord::Put { kind, vhost, policy } => {
                if self.policy(*kind, vhost, &policy.name).is_some() {
                    return Ok(());
                }
                let own = self.count_in(vhost, |own| own.of(*kind).by_name.len());
                at_most("policies in a virtual host", limits::VHOST_POLICIES_MAX, own + 1)?;
                let all =
                    self.policies(PolicyKind::Regular).count() + self.policies(PolicyKind::Operator).count();
                at_most("policies", limits::POLICIES_MAX, all + 1)
            }
            PolicyRecord::Delete { kind, vhost, name } => {
                let missing = || PolicyError::NoSuchPolicy {
                    kind: *kind,
                    vhost: vhost.clone(),
                    name: name.to_string(),
                };
                self.policy(*kind, vhost, name).map(|_| ()).ok_or_else(missing)
            }
            PolicyRecord::PutParameter { vhost, component, name, value } => {
                check_name(component, "component name", limits::PARAMETER_NAME_BYTES_MAX)?;
                check_parameter(name, value)?;
                let is_new = self.parameter(vhost, component, name).is_none();
                let own = self.count_in(vhost, |own| own.parameters.len());
                let what = "parameters in a virtual host";
                at_most(what, limits::VHOST_PARAMETERS_MAX, own + usize::from(is_new))?;
                at_most("parameters", limits::PARAMETERS_MAX, self.parameters().count() + usize::from(is_new))
            }
            PolicyRecord::DeleteParameter { vhost, component, name } => {
                let missing = || PolicyError::NoSuchParameter { name: format!("{component}/{name}") };
                self.parameter(vhost, component, name).map(|_| ()).ok_or_else(missing)
            }
            PolicyRecord::PutGlobal { name, value } => {
                check_parameter(name, value)?;
                let is_new = !self.globals().contains_key(name);
                let count = self.globals().len() + usize::from(is_new);
                at_most("global parameters", limits::VHOST_PARAMETERS_MAX, count)
            }
            PolicyRecord::DeleteGlobal { name } => {
                let missing = || PolicyError::NoSuchParameter { name: name.to_string() };
                self.globals().get(name).map(|_| ()).ok_or_else(missing)
            }
            PolicyRecord::ForgetVhost { .. } => Ok(()),
        }
    }

    /// Whether everything is as this change would make it.
    fn is_already(&self, change: &PolicyRecord) -> bool {
        match change {
            PolicyRecord::Put { kind, vhost, policy } => {
                self.policy(*kind, vhost, &policy.name).is_some_and(|held| held == policy)
            }
            PolicyRecord::PutParameter { vhost, component, name, value } => {
                self.parameter(vhost, component, name) == Some(value)
            }
            PolicyRecord::PutGlobal { name, value } => self.globals().get(name) == Some(value),
            PolicyRecord::ForgetVhost { vhost } => !self.vhosts.contains_key(vhost),
            PolicyRecord::Delete { .. }
            | PolicyRecord::DeleteParameter { .. }
            | PolicyRecord::DeleteGlobal { .. } => false,
        }
    }

    fn count_in(&self, vhost: &VhostName, count: impl FnOnce(&VhostPolicies) -> usize) -> usize {
        self.vhosts.get(vhost).map_or(0, |own| count(own))
    }
}

fn check_parameter(name: &str, value: &str) -> Result<(), PolicyError> {
    check_name(name, "parameter name", limits::PARAMETER_NAME_BYTES_MAX)?;
    let (max, bytes) = (limits::PARAMETER_BYTES_MAX, value.len());
    if bytes > max {
        return Err(PolicyError::TooLarge { what: "a parameter's value", max, bytes });
    }
    Ok(())
}

fn at_most(what: &'static str, max: usize, count: usize) -> Result<(), PolicyError> {
    if count > max { Err(PolicyError::TooMany { what, max }) } else { Ok(()) }
}
