//! Finding jobs by key and waiters by id, without keeping a second copy of either: the indexes hold numbers, and the text is
//! compared with the job's own. Clients choose both, so each index hashes with a secret of its own; no order follows from it.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::table::JobTable;

/// Jobs by key: those that are pending or running, and the one whose result is cached.
#[derive(Debug, Default)]
pub(super) struct KeyIndex {
    hasher: RandomState,
    numbers: HashTable<u64>,
}

impl KeyIndex {
    /// The jobs of a key, in no order.
    pub(super) fn of<'a>(&'a self, jobs: &'a JobTable, key: &'a str) -> impl Iterator<Item = u64> + 'a {
        let is_it = move |number: &u64| jobs.get(*number).is_some_and(|job| job.key() == key);
        self.numbers.iter_hash(self.hasher.hash_one(key)).copied().filter(is_it)
    }

    pub(super) fn insert(&mut self, jobs: &JobTable, key: &str, number: u64) {
        let hasher = &self.hasher;
        let rehash = |other: &u64| jobs.get(*other).map_or(0, |job| hasher.hash_one(job.key()));
        self.numbers.insert_unique(hasher.hash_one(key), number, rehash);
    }

    pub(super) fn remove(&mut self, key: &str, number: u64) {
        if let Ok(entry) = self.numbers.find_entry(self.hasher.hash_one(key), |other| *other == number) {
            entry.remove();
        }
    }
}

/// Waiters by id: the job and the place there.
#[derive(Debug, Default)]
pub(super) struct WaiterIndex {
    hasher: RandomState,
    places: HashTable<(u64, u32)>,
}

impl WaiterIndex {
    pub(super) fn find(&self, jobs: &JobTable, id: &str) -> Option<(u64, u32)> {
        let is_it =
            |(number, place): &(u64, u32)| jobs.get(*number).is_some_and(|job| job.id_at(*place) == id);
        self.places.find(self.hasher.hash_one(id), is_it).copied()
    }

    pub(super) fn insert(&mut self, jobs: &JobTable, id: &str, number: u64, place: u32) {
        let hasher = &self.hasher;
        let rehash = |(number, place): &(u64, u32)| {
            jobs.get(*number).map_or(0, |job| hasher.hash_one(job.id_at(*place)))
        };
        self.places.insert_unique(hasher.hash_one(id), (number, place), rehash);
    }

    pub(super) fn remove(&mut self, id: &str, number: u64, place: u32) {
        if let Ok(entry) = self.places.find_entry(self.hasher.hash_one(id), |other| *other == (number, place))
        {
            entry.remove();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}
