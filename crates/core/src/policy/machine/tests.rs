//! Policies over any changes: the same records give the same policies, and the one with the highest priority applies.

use nexo_types::{Millis, QueueKind, limits};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::machine::check::{Checked, check};
use crate::policy::{ApplyTo, Policy, PolicyKind, Subject};

impl Checked for Policies {
    fn read_back(_: &PolicyRecord, bytes: Bytes) -> PolicyRecord {
        <Self as Machine>::decode(&bytes).unwrap()
    }

    fn supply(&mut self, missing: Infallible, _: &[PolicyRecord]) {
        match missing {}
    }

    fn prepare(&mut self) {}
}

fn terms(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(terms) => terms,
        other => panic!("{other} is no object"),
    }
}

fn vhost(text: &str) -> VhostName {
    VhostName::new(text).unwrap()
}

fn policy(name: &str, pattern: &str, priority: i64, apply_to: ApplyTo, definition: Value) -> Policy {
    Policy::new(PolicyKind::Regular, name, pattern, priority, apply_to, terms(definition)).unwrap()
}

fn put(policy: Policy) -> PolicyRecord {
    PolicyRecord::Put { kind: PolicyKind::Regular, vhost: vhost("/"), policy: Arc::new(policy) }
}

/// The changes are made, all of them.
fn after(changes: impl IntoIterator<Item = PolicyRecord>) -> Policies {
    let mut policies = Policies::new();
    for change in changes {
        let decided = policies.decide_changes(&[change]).unwrap();
        decided.iter().for_each(|record| policies.apply_record(record));
    }
    policies
}

fn a_vhost() -> impl Strategy<Value = VhostName> {
    prop::sample::select(vec!["/", "shop"]).prop_map(vhost)
}

fn a_name() -> impl Strategy<Value = Arc<str>> {
    prop::sample::select(vec!["one", "two", "three"]).prop_map(Arc::from)
}

fn a_kind() -> impl Strategy<Value = PolicyKind> {
    prop::sample::select(vec![PolicyKind::Regular, PolicyKind::Operator])
}

fn a_policy() -> impl Strategy<Value = (PolicyKind, Policy)> {
    let pattern = prop::sample::select(vec!["", "^a", "b$", r"^(?!amq\.).*"]);
    let apply_to = prop::sample::select(ApplyTo::ALL.to_vec());
    let definition = prop::sample::select(vec![
        json!({"message-ttl": 5}),
        json!({"max-length": 1, "overflow": "reject-publish"}),
        json!({"delivery-limit": 3, "ha-mode": "all"}),
    ]);
    (a_kind(), a_name(), pattern, -2..2i64, apply_to, definition).prop_map(
        |(kind, name, pattern, priority, apply_to, definition)| {
            let policy = Policy::new(kind, &name, pattern, priority, apply_to, terms(definition));
            (kind, policy.unwrap())
        },
    )
}

fn a_change() -> impl Strategy<Value = PolicyRecord> {
    let value = || prop::sample::select(vec!["1", "{\"a\":[null]}"]).prop_map(Arc::from);
    prop_oneof![
        6 => (a_policy(), a_vhost()).prop_map(|((kind, policy), vhost)| {
            PolicyRecord::Put { kind, vhost, policy: Arc::new(policy) }
        }),
        2 => (a_kind(), a_vhost(), a_name())
            .prop_map(|(kind, vhost, name)| PolicyRecord::Delete { kind, vhost, name }),
        2 => (a_vhost(), a_name(), a_name(), value()).prop_map(|(vhost, component, name, value)| {
            PolicyRecord::PutParameter { vhost, component, name, value }
        }),
        1 => (a_vhost(), a_name(), a_name()).prop_map(|(vhost, component, name)| {
            PolicyRecord::DeleteParameter { vhost, component, name }
        }),
        1 => (a_name(), value()).prop_map(|(name, value)| PolicyRecord::PutGlobal { name, value }),
        1 => a_name().prop_map(|name| PolicyRecord::DeleteGlobal { name }),
        1 => a_vhost().prop_map(|vhost| PolicyRecord::ForgetVhost { vhost }),
    ]
}

/// Looks at every policy, as nobody does who has many queues.
fn naive(policies: &Policies, kind: PolicyKind, at: &VhostName, subject: Subject<'_>) -> Option<Arc<Policy>> {
    let own = policies.policies(kind).filter(|(vhost, policy)| *vhost == at && policy.is_for(subject));
    let best = own.max_by_key(|(_, policy)| (policy.priority, std::cmp::Reverse(Arc::clone(&policy.name))));
    best.map(|(_, policy)| Arc::clone(policy))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn policies_are_a_machine(commands in prop::collection::vec(prop::collection::vec(a_change(), 1..4), 1..40)) {
        let mut policies = Policies::new();
        for command in &commands {
            for record in policies.decide_changes(command).unwrap_or_default() {
                let (before, copy) = (policies.snapshot(), policies.clone());
                policies.apply_record(&record);
                assert_eq!(copy.snapshot(), before, "a copy does not change");
                let bytes = record.encode();
                // Reading one compiles its pattern, so not all are tried.
                for cut in (0..bytes.len()).step_by(7) {
                    assert!(PolicyRecord::decode(&bytes[..cut]).is_err(), "a cut record was taken");
                }
            }
            for (kind, name) in [(QueueKind::Classic, "ab"), (QueueKind::Quorum, "amq.b"), (QueueKind::Native, "x")] {
                let (at, subject) = (vhost("/"), Subject::Queue { name, kind });
                let pair = policies.of(&at, subject);
                assert_eq!(pair.regular, naive(&policies, PolicyKind::Regular, &at, subject));
                assert_eq!(pair.operator, naive(&policies, PolicyKind::Operator, &at, subject));
            }
        }
        check(Policies::new, commands.into_iter().map(|command| (Millis::ZERO, command)).collect());
    }

    #[test]
    fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        _ = PolicyRecord::decode(&bytes);
        _ = Policies::from_snapshot(&bytes);
    }
}

#[test]
fn the_policy_with_the_highest_priority_applies_and_no_other() {
    let ttl = || json!({"message-ttl": 1});
    let policies = after([
        put(policy("all", "", 0, ApplyTo::All, ttl())),
        put(policy("mail", "^mail", 5, ApplyTo::Queues, ttl())),
        put(policy("also", "^mail", 5, ApplyTo::Queues, ttl())),
        put(policy("exchanges", "", 9, ApplyTo::Exchanges, json!({"alternate-exchange": "ae"}))),
    ]);
    let of = |subject| policies.of(&vhost("/"), subject).regular.map(|policy| policy.name.to_string());
    let queue = |name| of(Subject::Queue { name, kind: QueueKind::Classic });
    assert_eq!(queue("mail-1").as_deref(), Some("also"), "of the same priority, the first by name");
    assert_eq!(queue("other").as_deref(), Some("all"));
    assert_eq!(of(Subject::Exchange { name: "mail" }).as_deref(), Some("exchanges"));
    assert_eq!(
        policies.of(&vhost("shop"), Subject::Exchange { name: "mail" }),
        crate::policy::PolicyPair::default()
    );
}

#[test]
fn a_policy_is_not_for_queues_that_do_not_know_its_keys() {
    let limit = policy("limit", "", 0, ApplyTo::Queues, json!({"delivery-limit": 3}));
    let mirrors = policy("mirrors", "", 0, ApplyTo::Queues, json!({"ha-mode": "all"}));
    let queue = |kind| Subject::Queue { name: "q", kind };
    let is_for = |policy: &Policy| {
        [QueueKind::Classic, QueueKind::Quorum, QueueKind::Native].map(|kind| policy.is_for(queue(kind)))
    };
    assert_eq!(is_for(&limit), [false, true, true]);
    assert_eq!(is_for(&mirrors), [true, false, true]);
    let classic = policy("classic", "", 0, ApplyTo::ClassicQueues, json!({"message-ttl": 3}));
    assert_eq!(is_for(&classic), [true, false, true]);
    let quorum = policy("quorum", "", 0, ApplyTo::QuorumQueues, json!({"message-ttl": 3}));
    assert_eq!(is_for(&quorum), [false, true, false]);
}

#[test]
fn what_changes_nothing_is_not_written_and_what_is_not_there_cannot_go() {
    let one = put(policy("p", "", 0, ApplyTo::All, json!({"message-ttl": 1})));
    let policies = after([one.clone()]);
    assert_eq!(policies.decide_changes(&[one]), Ok(Vec::new()));
    assert_eq!(policies.decide_changes(&[PolicyRecord::ForgetVhost { vhost: vhost("x") }]), Ok(Vec::new()));
    let gone = PolicyRecord::Delete { kind: PolicyKind::Operator, vhost: vhost("/"), name: "p".into() };
    let refused = policies.decide_changes(&[gone]).unwrap_err();
    assert_eq!(refused.to_string(), "there is no operator policy 'p' in virtual host '/'");
}

#[test]
fn everything_has_a_bound() {
    let number =
        |number: usize| PolicyRecord::PutGlobal { name: number.to_string().into(), value: "1".into() };
    let policies = after((0..limits::VHOST_PARAMETERS_MAX).map(number));
    let refused = policies.decide_changes(&[number(limits::VHOST_PARAMETERS_MAX)]).unwrap_err();
    assert_eq!(refused.to_string(), "there are at most 1000 global parameters");
    let large = "x".repeat(limits::PARAMETER_BYTES_MAX + 1);
    let large = PolicyRecord::PutGlobal { name: "a".into(), value: large.into() };
    assert!(matches!(Policies::new().decide_changes(&[large]), Err(PolicyError::TooLarge { .. })));
    let long = "x".repeat(2_000);
    let long = Policy::new(PolicyKind::Regular, "p", &long, 0, ApplyTo::All, terms(json!({"expires": 1})));
    assert!(long.unwrap_err().to_string().contains("pattern should be regular expression but is invalid"));
}
