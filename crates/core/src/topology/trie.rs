//! Topic patterns as a tree of words: `*` stands for one word, `#` for any number of them, also for none.
//!
//! Words are what the dots part; they may be empty, and they are bytes, not text. An empty key has no word at
//! all, as in RabbitMQ, so that `#` matches it and `*` does not.
//!
//! Down from words and `*` a key has one way to each node, and is taken there branch by branch. After a `#` that
//! more words follow it may get to a node in many ways; from there on it goes down all branches at once, word by
//! word. So the work is bounded by the nodes that fit at each word. Branch by branch it would grow with the
//! power of the number of `#` in a pattern, and a single client could stop the broker with one.

use std::ptr;
use std::sync::Arc;

use super::byte_map::ByteMap;
use super::targets::{Matched, Target, Targets};

/// All patterns of one exchange.
#[derive(Clone, Debug, Default)]
pub(super) struct Trie {
    root: Node,
}

#[derive(Clone, Debug, Default)]
struct Node {
    words: ByteMap<Arc<Node>>,
    star: Option<Arc<Node>>,
    hash: Option<Arc<Node>>,
    targets: Targets,
}

impl Trie {
    pub(super) fn add(&mut self, pattern: &[u8], target: &Target) {
        let mut node = &mut self.root;
        for word in Words::of(pattern) {
            node = Arc::make_mut(match word {
                b"*" => node.star.get_or_insert_default(),
                b"#" => node.hash.get_or_insert_default(),
                word => node.words.get_or_insert_with(word, Arc::default),
            });
        }
        node.targets.add(target);
    }

    pub(super) fn remove(&mut self, pattern: &[u8], target: &Target) {
        let words: Vec<&[u8]> = Words::of(pattern).collect();
        self.root.remove(&words, target);
    }

    /// Gives every target whose pattern fits `key`, some perhaps twice.
    pub(super) fn matches<'a>(&'a self, key: &[u8], out: &mut Matched<'a, '_>) {
        self.root.matches(Words::of(key), out);
    }
}

impl Node {
    /// Takes a target off the end of a pattern, and the branch with it if it is left bare.
    fn remove(&mut self, words: &[&[u8]], target: &Target) {
        let Some((&word, rest)) = words.split_first() else {
            self.targets.remove(target);
            return;
        };
        match word {
            b"*" => remove_below(&mut self.star, rest, target),
            b"#" => remove_below(&mut self.hash, rest, target),
            word => {
                if let Some(below) = self.words.get_mut(word) {
                    let below = Arc::make_mut(below);
                    below.remove(rest, target);
                    if below.is_bare() {
                        self.words.remove(word);
                    }
                }
            }
        }
    }

    /// Gives the targets of all patterns that go on from here with these words.
    fn matches<'a>(&'a self, mut rest: Words<'_>, out: &mut Matched<'a, '_>) {
        if let Some(hash) = &self.hash {
            if hash.has_branches() {
                Walk::from(hash, out).matches(rest.clone(), out);
            } else {
                // The pattern ends with `#`: whatever follows fits.
                out.add_all(&hash.targets);
            }
        }
        let Some(word) = rest.next() else {
            out.add_all(&self.targets);
            return;
        };
        if let Some(below) = self.words.get(word) {
            below.matches(rest.clone(), out);
        }
        if let Some(below) = &self.star {
            below.matches(rest, out);
        }
    }

    fn is_bare(&self) -> bool {
        self.targets.is_empty() && !self.has_branches()
    }

    const fn has_branches(&self) -> bool {
        self.star.is_some() || self.hash.is_some() || !self.words.is_empty()
    }
}

fn remove_below(below: &mut Option<Arc<Node>>, rest: &[&[u8]], target: &Target) {
    if let Some(node) = below {
        let node = Arc::make_mut(node);
        node.remove(rest, target);
        if node.is_bare() {
            *below = None;
        }
    }
}

/// The nodes below a `#` that fit the words so far.
#[derive(Default)]
struct Walk<'a> {
    /// Reached by a word or `*`: each has one way in, so none is here twice.
    passing: Vec<&'a Node>,
    /// Reached by `#`: they stay for any number of words.
    looping: Vec<&'a Node>,
}

impl<'a> Walk<'a> {
    /// Begins at a `#` that more words follow.
    fn from(hash: &'a Node, out: &mut Matched<'a, '_>) -> Self {
        let mut walk = Self { passing: Vec::new(), looping: vec![hash] };
        walk.skip_hashes(hash, out);
        walk
    }

    fn matches(mut self, words: Words<'_>, out: &mut Matched<'a, '_>) {
        let mut next = Walk::default();
        for word in words {
            for &node in &self.looping {
                next.looping.push(node);
                next.step(node, word, out);
            }
            for &node in &self.passing {
                next.step(node, word, out);
            }
            next.forget_repetitions();
            std::mem::swap(&mut self, &mut next);
            next.passing.clear();
            next.looping.clear();
        }
        for node in self.passing.into_iter().chain(self.looping) {
            out.add_all(&node.targets);
        }
    }

    /// Goes on from `node` by one word.
    fn step(&mut self, node: &'a Node, word: &[u8], out: &mut Matched<'a, '_>) {
        for below in node.words.get(word).into_iter().chain(&node.star) {
            self.passing.push(below);
            self.skip_hashes(below, out);
        }
    }

    /// A `#` may stand for no word, so whoever reaches the node before it has reached it as well.
    fn skip_hashes(&mut self, mut node: &'a Node, out: &mut Matched<'a, '_>) {
        while let Some(hash) = &node.hash {
            if hash.has_branches() {
                self.looping.push(hash);
            } else {
                out.add_all(&hash.targets);
            }
            node = hash;
        }
    }

    /// A node after `#` may have stayed and been reached again.
    fn forget_repetitions(&mut self) {
        if self.looping.len() > 1 {
            self.looping.sort_unstable_by_key(|node| ptr::from_ref(*node).addr());
            self.looping.dedup_by(|a, b| ptr::eq(*a, *b));
        }
    }
}

/// What the dots of a key part.
#[derive(Clone)]
struct Words<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Words<'a> {
    fn of(key: &'a [u8]) -> Self {
        Self { rest: if key.is_empty() { None } else { Some(key) } }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        let (word, later) = match rest.iter().position(|&byte| byte == b'.') {
            Some(dot) => (&rest[..dot], Some(&rest[dot + 1..])),
            None => (rest, None),
        };
        self.rest = later;
        Some(word)
    }
}

/// Whether `key` fits `pattern`, word by word: what the tree is held against.
#[cfg(test)]
pub(super) fn fits(pattern: &[u8], key: &[u8]) -> bool {
    fn fit(pattern: &[&[u8]], key: &[&[u8]]) -> bool {
        match (pattern.split_first(), key.split_first()) {
            (None, None) => true,
            (Some((&b"#", rest)), None) => fit(rest, key),
            (Some((&b"#", rest)), Some((_, later))) => fit(rest, key) || fit(pattern, later),
            (Some((word, rest)), Some((first, later))) => {
                (*word == b"*" || word == first) && fit(rest, later)
            }
            (None, Some(_)) | (Some(_), None) => false,
        }
    }
    fit(&Words::of(pattern).collect::<Vec<_>>(), &Words::of(key).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nexo_types::QueueId;
    use proptest::prelude::*;

    use super::*;

    fn matches(trie: &Trie, key: &[u8]) -> BTreeSet<u64> {
        let mut queues = Vec::new();
        trie.matches(key, &mut Matched { queues: &mut queues, exchanges: Vec::new() });
        queues.into_iter().map(|id| id.0).collect()
    }

    fn trie(patterns: &[&str]) -> Trie {
        let mut trie = Trie::default();
        for (i, pattern) in patterns.iter().enumerate() {
            trie.add(pattern.as_bytes(), &Target::Queue(QueueId(i as u64)));
        }
        trie
    }

    #[test]
    fn star_is_one_word_and_hash_is_any_number() {
        let trie = trie(&["a.*.c", "a.#", "#.c", "a.#.c", "*", "#", "a.*.#"]);
        assert_eq!(matches(&trie, b"a.b.c"), [0, 1, 2, 3, 5, 6].into());
        assert_eq!(matches(&trie, b"a.c"), [1, 2, 3, 5, 6].into());
        assert_eq!(matches(&trie, b"a"), [1, 4, 5].into());
        assert_eq!(matches(&trie, b"c"), [2, 4, 5].into());
    }

    #[test]
    fn an_empty_key_has_no_word_and_dots_make_empty_words() {
        let trie = trie(&["", "#", "*", "*.*", ".", "a..b"]);
        assert_eq!(matches(&trie, b""), [0, 1].into());
        assert_eq!(matches(&trie, b"."), [1, 3, 4].into());
        assert_eq!(matches(&trie, b"a..b"), [1, 5].into());
    }

    #[test]
    fn words_are_bytes_and_wildcards_in_keys_are_words() {
        let mut trie = trie(&["*.x", "#"]);
        trie.add(b"\xff\xfe.x", &Target::Queue(QueueId(9)));
        assert_eq!(matches(&trie, b"\xff\xfe.x"), [0, 1, 9].into());
        assert_eq!(matches(&trie, b"#.x"), [0, 1].into());
        assert_eq!(matches(&trie, b"*.x"), [0, 1].into());
    }

    #[test]
    fn many_hashes_in_a_pattern_do_not_multiply_the_work() {
        let pattern = ["#"; 60].join(".a.");
        let key = ["a"; 128].join(".");
        let trie = trie(&[&pattern, &format!("{pattern}.b")]);
        assert_eq!(matches(&trie, key.as_bytes()), [0].into());
    }

    #[test]
    fn removing_the_last_pattern_leaves_nothing_behind() {
        let patterns = ["a.b.c", "a.*", "#.x.#", "", "a.b"];
        let mut trie = trie(&patterns);
        for (i, pattern) in patterns.iter().enumerate() {
            trie.remove(pattern.as_bytes(), &Target::Queue(QueueId(i as u64)));
            assert!(!matches(&trie, pattern.as_bytes()).contains(&(i as u64)));
        }
        assert!(trie.root.is_bare());
    }

    fn some_words() -> impl Strategy<Value = Vec<u8>> {
        let word = prop::sample::select(vec!["a", "b", "c", "", "*", "#", "#"]);
        prop::collection::vec(word, 0..7).prop_map(|words| words.join(".").into_bytes())
    }

    proptest! {
        #[test]
        fn the_tree_matches_as_word_by_word_comparison_does(
            patterns in prop::collection::vec(some_words(), 0..40),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            keys in prop::collection::vec(some_words(), 1..20),
        ) {
            let mut trie = Trie::default();
            let mut kept = BTreeSet::new();
            for (i, pattern) in patterns.iter().enumerate() {
                trie.add(pattern, &Target::Queue(QueueId(i as u64)));
                kept.insert(i);
            }
            for index in removed {
                if !patterns.is_empty() {
                    let i = index.index(patterns.len());
                    trie.remove(&patterns[i], &Target::Queue(QueueId(i as u64)));
                    kept.remove(&i);
                }
            }
            for key in keys {
                let expected = kept.iter().filter(|&&i| fits(&patterns[i], &key)).map(|&i| i as u64);
                prop_assert_eq!(matches(&trie, &key), expected.collect(), "key {:?}", String::from_utf8_lossy(&key));
            }
        }
    }
}
