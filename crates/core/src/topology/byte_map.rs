//! A map from byte strings that is copied in no time: copies share what neither has changed since.
//!
//! The routing snapshot is made of these. A change after a copy touches a few small nodes on the way to
//! its key, however large the map is, so that a snapshot can follow every single change; and a reader of a
//! copy meets no lock.
//!
//! It is a tree over the bits of the key's hash: five bits a level, with a short list of entries where the
//! tree has not branched yet. Nothing shows the order of the entries.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;

/// Bits of the hash that choose a branch.
const BITS: u32 = 5;
/// Entries in a list before it becomes a branch.
const LIST_MAX: usize = 12;
/// Levels until the bits of the hash are used up; keys that collide so far stay in a list of any length.
const DEPTH_MAX: u32 = u64::BITS / BITS;

/// Byte strings and a value for each.
#[derive(Clone, Debug)]
pub(super) struct ByteMap<V> {
    root: Node<V>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Node<V> {
    List(Vec<Leaf<V>>),
    /// The bits of `present` say which branches there are; `nodes` holds those, in order.
    Branch {
        present: u32,
        nodes: Vec<Arc<Node<V>>>,
    },
}

#[derive(Clone, Debug)]
struct Leaf<V> {
    hash: u64,
    key: Arc<[u8]>,
    value: V,
}

impl<V> Default for ByteMap<V> {
    fn default() -> Self {
        Self { root: Node::List(Vec::new()), len: 0 }
    }
}

impl<V: Clone> ByteMap<V> {
    /// The value of `key`, put there by `make` if there was none.
    pub(super) fn get_or_insert_with(&mut self, key: &[u8], make: impl FnOnce() -> V) -> &mut V {
        let hash = hash_of(key);
        // Asked first, because a list that is about to grow may have to become a branch before.
        if find(&self.root, hash, key).is_none() {
            self.len += 1;
            insert(&mut self.root, 0, Leaf { hash, key: key.into(), value: make() });
        }
        find_mut(&mut self.root, 0, hash, key).expect("the key was there or has just been put there")
    }

    /// Puts a value in the place of the one that `key` may have had.
    pub(super) fn insert(&mut self, key: &[u8], value: V) {
        self.remove(key);
        self.get_or_insert_with(key, || value);
    }

    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        let hash = hash_of(key);
        // Asked first: the way down to a key that is not there must not be copied.
        find(&self.root, hash, key)?;
        find_mut(&mut self.root, 0, hash, key)
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        let hash = hash_of(key);
        if find(&self.root, hash, key).is_some() {
            self.len -= 1;
            remove(&mut self.root, 0, hash, key);
        }
    }
}

impl<V> ByteMap<V> {
    pub(super) fn get(&self, key: &[u8]) -> Option<&V> {
        // Most nodes of a topic tree have one child or a few; hashing would be most of the work there.
        if let Node::List(entries) = &self.root
            && entries.len() <= 2
        {
            return entries.iter().find(|entry| *entry.key == *key).map(|entry| &entry.value);
        }
        find(&self.root, hash_of(key), key)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn hash_of(key: &[u8]) -> u64 {
    FixedState::default().hash_one(key)
}

const fn bit_of(hash: u64, depth: u32) -> u32 {
    1 << ((hash >> (depth * BITS)) & ((1 << BITS) - 1))
}

const fn place_of(present: u32, bit: u32) -> usize {
    (present & (bit - 1)).count_ones() as usize
}

fn find<'a, V>(root: &'a Node<V>, hash: u64, key: &[u8]) -> Option<&'a V> {
    let mut node = root;
    let mut depth = 0;
    loop {
        match node {
            Node::List(entries) => {
                return entries
                    .iter()
                    .find(|entry| entry.hash == hash && *entry.key == *key)
                    .map(|entry| &entry.value);
            }
            Node::Branch { present, nodes } => {
                let bit = bit_of(hash, depth);
                if present & bit == 0 {
                    return None;
                }
                node = &nodes[place_of(*present, bit)];
                depth += 1;
            }
        }
    }
}

fn find_mut<'a, V: Clone>(node: &'a mut Node<V>, depth: u32, hash: u64, key: &[u8]) -> Option<&'a mut V> {
    match node {
        Node::List(entries) => entries
            .iter_mut()
            .find(|entry| entry.hash == hash && *entry.key == *key)
            .map(|entry| &mut entry.value),
        Node::Branch { present, nodes } => {
            let bit = bit_of(hash, depth);
            if *present & bit == 0 {
                return None;
            }
            let below = Arc::make_mut(&mut nodes[place_of(*present, bit)]);
            find_mut(below, depth + 1, hash, key)
        }
    }
}

/// Adds an entry whose key is not there.
fn insert<V: Clone>(node: &mut Node<V>, depth: u32, entry: Leaf<V>) {
    match node {
        Node::List(entries) if entries.len() < LIST_MAX || depth == DEPTH_MAX => entries.push(entry),
        Node::List(entries) => {
            let entries = std::mem::take(entries);
            *node = Node::Branch { present: 0, nodes: Vec::new() };
            for entry in entries {
                insert(node, depth, entry);
            }
            insert(node, depth, entry);
        }
        Node::Branch { present, nodes } => {
            let bit = bit_of(entry.hash, depth);
            let place = place_of(*present, bit);
            if *present & bit == 0 {
                *present |= bit;
                nodes.insert(place, Arc::new(Node::List(vec![entry])));
            } else {
                insert(Arc::make_mut(&mut nodes[place]), depth + 1, entry);
            }
        }
    }
}

/// Takes out an entry that is there. Branches that are left empty go with it.
fn remove<V: Clone>(node: &mut Node<V>, depth: u32, hash: u64, key: &[u8]) {
    match node {
        Node::List(entries) => entries.retain(|entry| entry.hash != hash || *entry.key != *key),
        Node::Branch { present, nodes } => {
            let bit = bit_of(hash, depth);
            let place = place_of(*present, bit);
            let below = Arc::make_mut(&mut nodes[place]);
            remove(below, depth + 1, hash, key);
            if below.is_empty() {
                *present &= !bit;
                nodes.remove(place);
            }
            if nodes.is_empty() {
                *node = Node::List(Vec::new());
            }
        }
    }
}

impl<V> Node<V> {
    const fn is_empty(&self) -> bool {
        match self {
            Self::List(entries) => entries.is_empty(),
            Self::Branch { present, .. } => *present == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_whose_hashes_collide_are_told_apart() {
        let mut node = Node::List(Vec::new());
        for i in 0..100u8 {
            insert(&mut node, 0, Leaf { hash: 7, key: [i].as_slice().into(), value: i });
        }
        for i in 0..100u8 {
            assert_eq!(find(&node, 7, &[i]), Some(&i));
        }
        for i in 0..100u8 {
            remove(&mut node, 0, 7, &[i]);
            assert_eq!(find(&node, 7, &[i]), None);
        }
        assert!(node.is_empty());
    }

    proptest! {
        #[test]
        fn it_behaves_as_a_map_and_copies_stay_as_they_were(
            steps in prop::collection::vec((0u16..400, any::<Option<u8>>()), 1..1500)
        ) {
            let mut map = ByteMap::default();
            let mut model = BTreeMap::new();
            let mut copies = Vec::new();
            for (i, (key, value)) in steps.into_iter().enumerate() {
                let bytes = key.to_be_bytes();
                match value {
                    Some(value) => {
                        map.insert(&bytes, value);
                        model.insert(key, value);
                    }
                    None => {
                        map.remove(&bytes);
                        model.remove(&key);
                    }
                }
                prop_assert_eq!(map.is_empty(), model.is_empty());
                if i % 300 == 0 {
                    copies.push((map.clone(), model.clone()));
                }
            }
            copies.push((map, model));
            for (mut map, model) in copies {
                for key in 0..400u16 {
                    prop_assert_eq!(map.get(&key.to_be_bytes()), model.get(&key));
                    prop_assert_eq!(map.get_mut(&key.to_be_bytes()).copied(), model.get(&key).copied());
                }
            }
        }
    }
}
