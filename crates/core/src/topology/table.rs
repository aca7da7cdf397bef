//! The bindings of one exchange, arranged for finding those that match a message.

use std::sync::Arc;

use super::binding::Binding;
use super::byte_map::ByteMap;
use super::exchange::{HashOn, Matching};
use super::header::{HeaderSource, HeaderValue};
use super::header_rule::HeaderRule;
use super::ring::{self, Ring};
use super::targets::{Matched, Target, Targets};
use super::trie::Trie;

/// One arrangement for each way of matching.
#[derive(Clone, Debug)]
pub(super) enum Table {
    Direct(ByteMap<Targets>),
    Fanout(Targets),
    Topic(Trie),
    Headers(Vec<Arc<Ruled>>),
    ConsistentHash(HashOn, Ring),
}

/// A binding of a headers exchange.
#[derive(Debug)]
pub(super) struct Ruled {
    order: u64,
    rule: HeaderRule,
    target: Target,
}

impl Table {
    pub(super) fn new(matching: &Matching) -> Self {
        match matching {
            Matching::Direct => Self::Direct(ByteMap::default()),
            Matching::Fanout => Self::Fanout(Targets::default()),
            Matching::Topic => Self::Topic(Trie::default()),
            Matching::Headers => Self::Headers(Vec::new()),
            Matching::ConsistentHash(on) => Self::ConsistentHash(on.clone(), Ring::default()),
        }
    }

    /// Adds a binding. `order` is above that of all others. What was checked when the binding was made is not
    /// complained about: a binding that means nothing to this table matches nothing.
    pub(super) fn add(&mut self, order: u64, binding: &Binding, target: &Target) {
        match self {
            Self::Direct(keys) => keys.get_or_insert_with(binding.key(), Targets::default).add(target),
            Self::Fanout(targets) => targets.add(target),
            Self::Topic(trie) => trie.add(binding.key(), target),
            Self::Headers(rules) => {
                if let Ok(rule) = HeaderRule::new(binding.arguments()) {
                    rules.push(Arc::new(Ruled { order, rule, target: target.clone() }));
                }
            }
            Self::ConsistentHash(_, ring) => {
                if let Ok(weight) = ring::weight(binding.key()) {
                    ring.add(order, weight, target);
                }
            }
        }
    }

    pub(super) fn remove(&mut self, order: u64, binding: &Binding, target: &Target) {
        match self {
            Self::Direct(keys) => {
                if let Some(targets) = keys.get_mut(binding.key()) {
                    targets.remove(target);
                    if targets.is_empty() {
                        keys.remove(binding.key());
                    }
                }
            }
            Self::Fanout(targets) => targets.remove(target),
            Self::Topic(trie) => trie.remove(binding.key(), target),
            Self::Headers(rules) => rules.retain(|ruled| ruled.order != order),
            Self::ConsistentHash(_, ring) => ring.remove(order),
        }
    }

    /// Gives every target that a message matches, some perhaps twice.
    pub(super) fn matches<'a>(
        &'a self,
        routing_keys: &[&[u8]],
        headers: &dyn HeaderSource,
        out: &mut Matched<'a, '_>,
    ) {
        match self {
            Self::Direct(keys) => {
                for targets in routing_keys.iter().filter_map(|key| keys.get(key)) {
                    out.add_all(targets);
                }
            }
            Self::Fanout(targets) => out.add_all(targets),
            Self::Topic(trie) => {
                for key in routing_keys {
                    trie.matches(key, out);
                }
            }
            Self::Headers(rules) => {
                for ruled in rules.iter().filter(|ruled| ruled.rule.matches(headers)) {
                    out.add(&ruled.target);
                }
            }
            Self::ConsistentHash(on, ring) => {
                let value = match on {
                    HashOn::RoutingKey => routing_keys.first().map(|key| HeaderValue::Text(*key)),
                    HashOn::Header(name) => headers.header(name),
                    HashOn::Property(property) => headers.property(*property),
                };
                if let Some(target) = ring.pick(ring::hash_value(value)) {
                    out.add(target);
                }
            }
        }
    }

    /// Whether two messages with the same routing keys may go to different queues.
    pub(super) const fn looks_at_headers(&self) -> bool {
        match self {
            Self::Direct(_)
            | Self::Fanout(_)
            | Self::Topic(_)
            | Self::ConsistentHash(HashOn::RoutingKey, _) => false,
            Self::Headers(_) | Self::ConsistentHash(HashOn::Header(_) | HashOn::Property(_), _) => true,
        }
    }
}
