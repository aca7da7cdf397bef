//! Consistent hashing: each destination has as many buckets as its binding's key says, and a message goes to
//! the bucket that its hash falls on.
//!
//! Buckets are numbered in the order of the bindings, and the hash jumps to one of them (Lamping and Veach, "A
//! Fast, Minimal Memory, Consistent Hash Algorithm"), so that a destination more moves few hashes. The numbers
//! depend on nothing but bindings and message: they are the same after a restart and on every node.

use super::error::BindError;
use super::header::HeaderValue;
use super::targets::Target;

/// The buckets of one exchange.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    targets: Vec<WeightedTarget>,
    /// For each target that counts, the number of the first bucket after its own, and its place in `targets`.
    ends: Vec<(u64, usize)>,
}

#[derive(Clone, Debug)]
struct WeightedTarget {
    order: u64,
    weight: u32,
    target: Target,
    /// RabbitMQ too lets only the first binding to a destination count.
    first: bool,
}

impl Ring {
    /// Adds a binding. `order` is above that of all others.
    pub(super) fn add(&mut self, order: u64, weight: u32, target: &Target) {
        let first = !self.targets.iter().any(|known| known.target == *target);
        self.targets.push(WeightedTarget { order, weight, target: target.clone(), first });
        self.give_buckets(self.targets.len() - 1);
    }

    pub(super) fn remove(&mut self, order: u64) {
        let Some(at) = self.targets.iter().position(|target| target.order == order) else { return };
        let removed = self.targets.remove(at);
        if removed.first
            && let Some(next) = self.targets.iter_mut().find(|target| target.target == removed.target)
        {
            next.first = true;
        }
        self.ends.clear();
        for at in 0..self.targets.len() {
            self.give_buckets(at);
        }
    }

    fn give_buckets(&mut self, at: usize) {
        if self.targets[at].first {
            let start = self.ends.last().map_or(0, |&(end, _)| end);
            self.ends.push((start + u64::from(self.targets[at].weight), at));
        }
    }

    /// Where a message with this hash goes.
    pub(super) fn pick(&self, hash: u64) -> Option<&Target> {
        let &(buckets, _) = self.ends.last()?;
        let bucket = jump(hash, buckets);
        let target = self.ends.partition_point(|&(end, _)| end <= bucket);
        self.ends.get(target).map(|&(_, at)| &self.targets[at].target)
    }
}

/// How many buckets a binding key asks for.
pub(super) fn weight(key: &[u8]) -> Result<u32, BindError> {
    let text = String::from_utf8_lossy(key);
    let bad = || BindError::WeightIsNoNumber { key: text.clone().into_owned() };
    match text.parse::<i128>().map_err(|_| bad())? {
        ..=0 => Err(BindError::WeightTooSmall { key: text.into_owned() }),
        weight => u32::try_from(weight).map_err(|_| bad()),
    }
}

/// Hashes the value that chooses the bucket; a value that is missing is a value too.
pub(super) fn hash_value(value: Option<HeaderValue<&[u8]>>) -> u64 {
    match value {
        None => hash_bytes(0, b""),
        Some(HeaderValue::Text(bytes)) => hash_bytes(1, bytes),
        Some(HeaderValue::Bool(value)) => hash_bytes(2, &[u8::from(value)]),
        Some(HeaderValue::Signed(value)) => hash_bytes(3, &i128::from(value).to_le_bytes()),
        Some(HeaderValue::Unsigned(value)) => hash_bytes(3, &i128::from(value).to_le_bytes()),
        Some(HeaderValue::Timestamp(value)) => hash_bytes(4, &value.to_le_bytes()),
        Some(HeaderValue::Float(bits)) => hash_bytes(5, &bits.to_le_bytes()),
        Some(HeaderValue::Void) => hash_bytes(6, b""),
        Some(HeaderValue::Other(bytes)) => hash_bytes(7, bytes),
    }
}

/// FNV-1a and a final mix. Written out here because where messages go must never change with a library.
fn hash_bytes(kind: u8, bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in std::iter::once(&kind).chain(bytes) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// The bucket below `buckets` that `hash` jumps to.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn jump(mut hash: u64, buckets: u64) -> u64 {
    let mut bucket = 0;
    let mut next = 0;
    while next < buckets {
        bucket = next;
        hash = hash.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let stride = (1u64 << 31) as f64 / ((hash >> 33) + 1) as f64;
        next = ((bucket + 1) as f64 * stride) as u64;
    }
    bucket
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nexo_types::QueueId;

    use super::*;

    fn queue(id: u64) -> Target {
        Target::Queue(QueueId(id))
    }

    fn spread(ring: &Ring, messages: u32) -> BTreeMap<u32, Target> {
        (0..messages)
            .map(|i| {
                let key = i.to_string();
                let hash = hash_value(Some(HeaderValue::Text(key.as_bytes())));
                (i, ring.pick(hash).unwrap().clone())
            })
            .collect()
    }

    #[test]
    fn messages_are_spread_by_weight() {
        let mut ring = Ring::default();
        assert!(ring.pick(1).is_none());
        ring.add(0, 1, &queue(0));
        ring.add(1, 3, &queue(1));
        let heavy = spread(&ring, 10_000).values().filter(|target| **target == queue(1)).count();
        assert!((7_200..7_800).contains(&heavy), "{heavy}");
    }

    #[test]
    fn another_destination_takes_its_share_and_moves_nothing_else() {
        let mut ring = Ring::default();
        for id in 0..4 {
            ring.add(id, 1, &queue(id));
        }
        let before = spread(&ring, 10_000);
        ring.add(4, 1, &queue(4));
        let after = spread(&ring, 10_000);
        let moved = before.iter().filter(|(i, target)| after[i] != **target);
        assert!(moved.clone().all(|(i, _)| after[i] == queue(4)));
        assert!((1_700..2_300).contains(&moved.count()));
        ring.remove(4);
        assert_eq!(spread(&ring, 10_000), before);
    }

    #[test]
    fn only_the_first_binding_of_a_destination_counts() {
        let mut ring = Ring::default();
        ring.add(0, 1, &queue(0));
        ring.add(1, 1, &queue(1));
        let before = spread(&ring, 1_000);
        ring.add(2, 1_000_000, &queue(0));
        assert_eq!(spread(&ring, 1_000), before);
        ring.remove(0);
        assert!(spread(&ring, 1_000).values().filter(|target| **target == queue(0)).count() > 990);
    }

    #[test]
    fn a_weight_is_a_number_above_zero() {
        assert_eq!(weight(b"7"), Ok(7));
        assert_eq!(weight(b"0"), Err(BindError::WeightTooSmall { key: "0".to_owned() }));
        assert_eq!(weight(b"-3"), Err(BindError::WeightTooSmall { key: "-3".to_owned() }));
        for key in [b"".as_slice(), b"a", b"1.5", b"99999999999", b"\xff"] {
            assert!(matches!(weight(key), Err(BindError::WeightIsNoNumber { .. })));
        }
    }

    #[test]
    fn where_messages_go_never_changes() {
        let picks: Vec<u64> = ["", "a", "order-42"]
            .map(|key| jump(hash_value(Some(HeaderValue::Text(key.as_bytes()))), 1000))
            .into();
        assert_eq!(picks, [506, 141, 334]);
    }
}
