//! All policies and parameters, which of them apply to a queue or an exchange, and what applying a record makes of them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use nexo_types::VhostName;

use super::definition::{Definition, PolicySettings};
use super::policy::{Policy, PolicyKind, Subject};
use super::record::PolicyRecord;

/// All policies and parameters. A copy costs nothing: it shares what has not changed.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    pub(super) vhosts: Arc<BTreeMap<VhostName, Arc<VhostPolicies>>>,
    /// Parameters of the whole broker, as JSON.
    pub(super) globals: Arc<BTreeMap<Arc<str>, Arc<str>>>,
}

/// What is said in one virtual host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VhostPolicies {
    pub(super) regular: Ranked,
    pub(super) operator: Ranked,
    /// By component and name, as JSON.
    pub(super) parameters: BTreeMap<(Arc<str>, Arc<str>), Arc<str>>,
}

/// Policies of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranked {
    pub(super) by_name: BTreeMap<Arc<str>, Arc<Policy>>,
    /// By falling priority; of the same priority by name.
    ranked: Vec<Arc<Policy>>,
}

/// The policy and the operator policy that apply to one queue or exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyPair {
    /// The policy.
    pub regular: Option<Arc<Policy>>,
    /// The operator policy.
    pub operator: Option<Arc<Policy>>,
}

impl PolicyPair {
    /// What the two say together.
    #[must_use]
    pub fn definition(&self) -> Option<Cow<'_, Definition>> {
        match (&self.regular, &self.operator) {
            (None, None) => None,
            (Some(one), None) | (None, Some(one)) => Some(Cow::Borrowed(&one.definition)),
            (Some(regular), Some(operator)) => {
                Some(Cow::Owned(regular.definition.merged(&operator.definition)))
            }
        }
    }

    /// What of that has a meaning here.
    #[must_use]
    pub fn settings(&self) -> Option<Cow<'_, PolicySettings>> {
        self.definition().map(|definition| match definition {
            Cow::Borrowed(one) => Cow::Borrowed(one.settings()),
            Cow::Owned(merged) => Cow::Owned(merged.settings().clone()),
        })
    }
}

impl Policies {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Which policies apply.
    #[must_use]
    pub fn of(&self, vhost: &VhostName, subject: Subject<'_>) -> PolicyPair {
        let Some(own) = self.vhosts.get(vhost) else { return PolicyPair::default() };
        PolicyPair { regular: own.regular.first_for(subject), operator: own.operator.first_for(subject) }
    }

    /// One policy.
    #[must_use]
    pub fn policy(&self, kind: PolicyKind, vhost: &VhostName, name: &str) -> Option<&Arc<Policy>> {
        self.vhosts.get(vhost)?.of(kind).by_name.get(name)
    }

    /// All policies of a kind, by virtual host and name.
    pub fn policies(&self, kind: PolicyKind) -> impl Iterator<Item = (&VhostName, &Arc<Policy>)> {
        self.vhosts
            .iter()
            .flat_map(move |(vhost, own)| own.of(kind).by_name.values().map(move |policy| (vhost, policy)))
    }

    /// The value of a parameter of a virtual host, as JSON.
    #[must_use]
    pub fn parameter(&self, vhost: &VhostName, component: &str, name: &str) -> Option<&Arc<str>> {
        self.vhosts.get(vhost)?.parameters.get(&(component.into(), name.into()))
    }

    /// All parameters of virtual hosts: where, whose, name and value as JSON.
    pub fn parameters(&self) -> impl Iterator<Item = (&VhostName, &Arc<str>, &Arc<str>, &Arc<str>)> {
        self.vhosts.iter().flat_map(|(vhost, own)| {
            own.parameters.iter().map(move |((component, name), value)| (vhost, component, name, value))
        })
    }

    /// Parameters of the whole broker, as JSON, by name.
    #[must_use]
    pub fn globals(&self) -> &BTreeMap<Arc<str>, Arc<str>> {
        &self.globals
    }

    /// Whether no policy says anything of any queue or exchange.
    #[must_use]
    pub fn is_without_policies(&self) -> bool {
        self.vhosts.values().all(|own| own.regular.ranked.is_empty() && own.operator.ranked.is_empty())
    }

    /// Applies a record that was decided, or was read from the log.
    pub fn replay(&mut self, record: &PolicyRecord) {
        self.apply_record(record);
    }

    pub(super) fn apply_record(&mut self, record: &PolicyRecord) {
        match record {
            PolicyRecord::Put { kind, vhost, policy } => {
                self.change(vhost, |own| own.of_mut(*kind).put(Arc::clone(policy)));
            }
            PolicyRecord::Delete { kind, vhost, name } => {
                self.change(vhost, |own| own.of_mut(*kind).remove(name));
            }
            PolicyRecord::PutParameter { vhost, component, name, value } => {
                let key = (Arc::clone(component), Arc::clone(name));
                self.change(vhost, |own| drop(own.parameters.insert(key, Arc::clone(value))));
            }
            PolicyRecord::DeleteParameter { vhost, component, name } => {
                let key = (Arc::clone(component), Arc::clone(name));
                self.change(vhost, |own| drop(own.parameters.remove(&key)));
            }
            PolicyRecord::PutGlobal { name, value } => {
                Arc::make_mut(&mut self.globals).insert(Arc::clone(name), Arc::clone(value));
            }
            PolicyRecord::DeleteGlobal { name } => drop(Arc::make_mut(&mut self.globals).remove(name)),
            PolicyRecord::ForgetVhost { vhost } => drop(Arc::make_mut(&mut self.vhosts).remove(vhost)),
        }
    }

    /// Changes what is said in a virtual host. One of which nothing is said any more is not kept.
    fn change(&mut self, vhost: &VhostName, change: impl FnOnce(&mut VhostPolicies)) {
        let vhosts = Arc::make_mut(&mut self.vhosts);
        let own = vhosts.entry(vhost.clone()).or_default();
        change(Arc::make_mut(own));
        if **own == VhostPolicies::default() {
            vhosts.remove(vhost);
        }
    }
}

impl VhostPolicies {
    pub(super) const fn of(&self, kind: PolicyKind) -> &Ranked {
        match kind {
            PolicyKind::Regular => &self.regular,
            PolicyKind::Operator => &self.operator,
        }
    }

    const fn of_mut(&mut self, kind: PolicyKind) -> &mut Ranked {
        match kind {
            PolicyKind::Regular => &mut self.regular,
            PolicyKind::Operator => &mut self.operator,
        }
    }
}

impl Ranked {
    fn first_for(&self, subject: Subject<'_>) -> Option<Arc<Policy>> {
        self.ranked.iter().find(|policy| policy.is_for(subject)).cloned()
    }

    fn put(&mut self, policy: Arc<Policy>) {
        self.by_name.insert(Arc::clone(&policy.name), policy);
        self.rank();
    }

    fn remove(&mut self, name: &str) {
        self.by_name.remove(name);
        self.rank();
    }

    fn rank(&mut self) {
        self.ranked = self.by_name.values().cloned().collect();
        // It keeps the order of names.
        self.ranked.sort_by_key(|policy| std::cmp::Reverse(policy.priority));
    }
}
