//! A bounded memory of directories and sections that were read, the least recently used leaving first.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use nexo_types::SegmentId;

use super::LaneKey;
use super::footer::Directory;
use super::section::Section;

/// What one cached thing is about: a lane's section, or the segment's directory.
type Key = (SegmentId, Option<LaneKey>);

/// Something read from a footer.
#[derive(Clone, Debug)]
pub(crate) enum Cached {
    /// A segment's directory.
    Directory(Arc<Directory>),
    /// A lane's section; `None` if the segment has nothing of the lane.
    Section(Arc<Section>),
}

/// The cache. Its owner locks it.
#[derive(Debug)]
pub(crate) struct FooterCache {
    items: HashMap<Key, Item, RandomState>,
    by_use: BTreeMap<u64, Key>,
    bytes: usize,
    bytes_max: usize,
    uses: u64,
}

#[derive(Debug)]
struct Item {
    value: Cached,
    bytes: usize,
    used: u64,
}

impl FooterCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { items: HashMap::default(), by_use: BTreeMap::new(), bytes: 0, bytes_max, uses: 0 }
    }

    pub(crate) fn directory(&mut self, segment: SegmentId) -> Option<Arc<Directory>> {
        match self.get((segment, None))? {
            Cached::Directory(directory) => Some(directory),
            Cached::Section(_) => None,
        }
    }

    pub(crate) fn section(&mut self, segment: SegmentId, lane: LaneKey) -> Option<Arc<Section>> {
        match self.get((segment, Some(lane)))? {
            Cached::Section(section) => Some(section),
            Cached::Directory(_) => None,
        }
    }

    fn get(&mut self, key: Key) -> Option<Cached> {
        let item = self.items.get_mut(&key)?;
        self.uses += 1;
        self.by_use.remove(&item.used);
        self.by_use.insert(self.uses, key);
        item.used = self.uses;
        Some(item.value.clone())
    }

    pub(crate) fn put(&mut self, segment: SegmentId, lane: Option<LaneKey>, value: Cached) {
        let key = (segment, lane);
        let bytes = size_of::<Item>()
            + match &value {
                Cached::Directory(directory) => directory.memory_bytes(),
                Cached::Section(section) => section.memory_bytes(),
            };
        self.remove(&key);
        self.uses += 1;
        self.by_use.insert(self.uses, key);
        self.items.insert(key, Item { value, bytes, used: self.uses });
        self.bytes += bytes;
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.remove(&oldest);
        }
    }

    /// Forgets everything about a segment.
    pub(crate) fn forget(&mut self, segment: SegmentId) {
        let gone: Vec<Key> = self.items.keys().filter(|(of, _)| *of == segment).copied().collect();
        for key in gone {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(item) = self.items.remove(key) {
            self.by_use.remove(&item.used);
            self.bytes -= item.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use nexo_types::{Priority, QueueId};

    use super::*;

    #[test]
    fn the_least_recently_used_leaves_first() {
        let mut cache = FooterCache::new(1000);
        let section = Arc::new(Section::decode(&[0; 200], 0).unwrap());
        let lane = |queue| (QueueId(queue), Priority(0));
        for queue in 0..3 {
            cache.put(SegmentId(1), Some(lane(queue)), Cached::Section(section.clone()));
            assert!(cache.section(SegmentId(1), lane(0)).is_some());
        }
        cache.put(SegmentId(1), Some(lane(3)), Cached::Section(section));
        assert!(cache.section(SegmentId(1), lane(0)).is_some());
        assert!(cache.section(SegmentId(1), lane(1)).is_none());
        assert!(cache.bytes <= 1000);

        cache.forget(SegmentId(1));
        assert_eq!(cache.bytes, 0);
    }
}
