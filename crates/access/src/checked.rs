//! Passwords that were checked and were right, so that the next connection with the same one costs no argon2.
//!
//! Only a keyed hash of the user, the stored hash and the password is kept; the key is made at every start and leaves the
//! process nowhere. A password that was changed has another stored hash, so what was remembered of the old one is never
//! asked for again.

use std::collections::HashSet;

use hmac::{Hmac, KeyInit, Mac};
use nexo_broker::access::{PasswordHash, UserName};
use parking_lot::Mutex;
use sha2::Sha256;

use crate::limits::CHECKED_MAX;

type Mark = [u8; 32];

/// What was checked.
pub(crate) struct CheckedPasswords {
    key: [u8; 32],
    seen: Mutex<Seen>,
}

/// Two sets: when the first is full, it becomes the second, and what nobody asks for again goes with that.
#[derive(Default)]
struct Seen {
    latest: HashSet<Mark>,
    before: HashSet<Mark>,
}

impl CheckedPasswords {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self { key, seen: Mutex::default() }
    }

    /// What stands for a password here.
    pub(crate) fn mark(&self, user: &UserName, hash: &PasswordHash, password: &[u8]) -> Mark {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("a key of HMAC may be of any length");
        for part in [user.as_str().as_bytes(), &hash.hash, password] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// Whether it was right before.
    pub(crate) fn knows(&self, mark: &Mark) -> bool {
        let mut seen = self.seen.lock();
        if seen.latest.contains(mark) {
            return true;
        }
        let is_known = seen.before.contains(mark);
        if is_known {
            seen.insert(*mark);
        }
        is_known
    }

    /// It was right.
    pub(crate) fn note(&self, mark: Mark) {
        self.seen.lock().insert(mark);
    }
}

impl Seen {
    fn insert(&mut self, mark: Mark) {
        if self.latest.len() >= CHECKED_MAX {
            self.before = std::mem::take(&mut self.latest);
        }
        self.latest.insert(mark);
    }
}

#[cfg(test)]
mod tests {
    use nexo_broker::access::HashAlgorithm;

    use super::*;

    #[test]
    fn only_the_same_password_of_the_same_user_is_known() {
        let checked = CheckedPasswords::new([7; 32]);
        let hash =
            |text: &str| PasswordHash { algorithm: HashAlgorithm::Argon2id, hash: text.as_bytes().into() };
        let (ann, bob) = (UserName::new("ann").unwrap(), UserName::new("bob").unwrap());
        checked.note(checked.mark(&ann, &hash("h"), b"secret"));
        assert!(checked.knows(&checked.mark(&ann, &hash("h"), b"secret")));
        assert!(!checked.knows(&checked.mark(&ann, &hash("h"), b"Secret")));
        assert!(!checked.knows(&checked.mark(&bob, &hash("h"), b"secret")));
        assert!(!checked.knows(&checked.mark(&ann, &hash("changed"), b"secret")));
        assert!(
            !checked.knows(&checked.mark(&ann, &hash("hs"), b"ecret")),
            "parts do not run into each other"
        );
        let elsewhere = CheckedPasswords::new([8; 32]);
        assert_ne!(elsewhere.mark(&ann, &hash("h"), b"secret"), checked.mark(&ann, &hash("h"), b"secret"));
    }

    #[test]
    fn only_so_many_are_remembered_and_those_in_use_stay() {
        let checked = CheckedPasswords::new([7; 32]);
        let mark = |number: usize| {
            let mut mark = [0; 32];
            mark[..8].copy_from_slice(&number.to_le_bytes());
            mark
        };
        for number in 0..10 * CHECKED_MAX {
            checked.note(mark(number));
            assert!(checked.knows(&mark(0)), "it is asked for again and again");
        }
        let seen = checked.seen.lock();
        assert!(seen.latest.len() + seen.before.len() <= 2 * CHECKED_MAX);
    }
}
