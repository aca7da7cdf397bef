//! Which segments there are: the list that tells a lost file from one that was given up.
//!
//! A number is added when its file is in `segments/` and taken off before the file leaves it, so a number on the
//! list whose file is not there is a loss. The list is kept twice in one file and both copies are rewritten in place:
//! taking a number off needs no space, which matters on a full disk.
//!
//! It also tells what is missing and was used once: up to which number segments were retired, and which ones were lost.
//! Numbers alone do not tell that, because many are never used: one that was prepared and not needed, for example.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use nexo_types::SegmentId;
use parking_lot::Mutex;

use crate::disk::{Disk, DiskFile};
use crate::layout::INVENTORY;

const INVENTORY_NEW: &str = "INVENTORY.new";
const MAGIC: [u8; 8] = *b"NEXOINV\0";
const VERSION: u32 = 2;
/// The version before, which tells nothing of what is missing.
const VERSION_1: u32 = 1;
/// Lost segments that are remembered. Of more than that the oldest are forgotten: they were reported when they were
/// found, and checkpoints since then do not need them.
const LOST_MAX: usize = 4096;
/// Room for one copy at first.
const COPY_BYTES_MIN: usize = 4096;
/// More than a copy for every segment number a disk could hold files of.
const COPY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The list, and its file.
#[derive(Debug)]
pub(crate) struct Inventory {
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: Option<Arc<dyn DiskFile>>,
    copy_bytes: usize,
    sequence: u64,
    list: List,
    /// One of the two copies could not be read.
    lost_copy: bool,
}

/// What is on the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    /// These segments must be there.
    pub(crate) ids: BTreeSet<SegmentId>,
    /// The highest segment that was retired, 0 if none was; `None` if that is not known.
    pub(crate) retired_to: Option<SegmentId>,
    /// Segments behind that which were lost.
    pub(crate) lost: BTreeSet<SegmentId>,
}

/// Why a segment leaves the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// There is nothing in it that anybody was promised.
    Unused,
    /// Nothing in it is needed any more.
    Retired,
    /// Nothing in it can be read.
    Lost,
}

/// What the file says.
#[derive(Debug)]
pub(crate) enum Listed {
    Known(List),
    /// The list cannot be read.
    Unreadable(&'static str),
}

impl List {
    fn take_off(&mut self, id: SegmentId, why: Leaves) {
        self.ids.remove(&id);
        match why {
            Leaves::Unused => {}
            Leaves::Retired => {
                let to = self.retired_to.map_or(id, |before| before.max(id));
                self.retired_to = Some(to);
                // Whoever needs one of these needs a retired one too.
                self.lost = self.lost.split_off(&SegmentId(to.0 + 1));
            }
            Leaves::Lost => {
                self.lost.insert(id);
                while self.lost.len() > LOST_MAX {
                    self.lost.pop_first();
                }
            }
        }
    }
}

/// Writes an empty list into a directory that is being set up.
pub(crate) fn set_up(disk: &dyn Disk) -> io::Result<()> {
    let file = disk.create(INVENTORY)?;
    let list = List { retired_to: Some(SegmentId(0)), ..List::default() };
    write_both(&*file, &encode(1, &list), COPY_BYTES_MIN)
}

impl Inventory {
    /// Reads the list.
    pub(crate) fn open(disk: &Arc<dyn Disk>) -> io::Result<(Self, Listed)> {
        let empty = State { file: None, copy_bytes: 0, sequence: 0, list: List::default(), lost_copy: false };
        let inventory = |state| Self { disk: disk.clone(), state: Mutex::new(state) };
        let file = match disk.open(INVENTORY) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((inventory(empty), Listed::Unreadable("the file INVENTORY is missing")));
            }
            Err(error) => return Err(error),
        };
        let copy_bytes = (file.len()? / 2).min(COPY_BYTES_MAX) as usize;
        let mut best: Option<(u64, List)> = None;
        let mut lost_copy = false;
        for copy in 0..2 {
            let mut bytes = vec![0; copy_bytes];
            let len = file.read_at(&mut bytes, (copy * copy_bytes) as u64)?;
            match decode(&bytes[..len]) {
                Some(found) if best.as_ref().is_none_or(|best| best.0 < found.0) => best = Some(found),
                Some(_) => {}
                None => lost_copy = true,
            }
        }
        let Some((sequence, list)) = best else {
            return Ok((inventory(empty), Listed::Unreadable("the file INVENTORY is damaged")));
        };
        let state = State { file: Some(file), copy_bytes, sequence, list: list.clone(), lost_copy };
        Ok((inventory(state), Listed::Known(list)))
    }

    /// Whether one of the two copies could not be read when the list was opened.
    pub(crate) fn lost_copy(&self) -> bool {
        self.state.lock().lost_copy
    }

    /// Makes the list say that exactly these segments are there. What else was on it is lost.
    pub(crate) fn set(&self, ids: BTreeSet<SegmentId>, lost: &[SegmentId]) -> io::Result<()> {
        self.change(|list| {
            if list.retired_to.is_none() {
                // The best that can be said: what comes before the first was retired.
                list.retired_to = ids.first().map(|first| SegmentId(first.0.saturating_sub(1)));
            }
            for id in lost {
                list.take_off(*id, Leaves::Lost);
            }
            list.lost.retain(|id| !ids.contains(id));
            list.ids = ids;
        })
    }

    /// Adds a segment whose file is in its place.
    pub(crate) fn add(&self, id: SegmentId) -> io::Result<()> {
        self.change(|list| {
            list.ids.insert(id);
        })
    }

    /// Takes a segment off before its file leaves its place.
    pub(crate) fn remove(&self, id: SegmentId, why: Leaves) -> io::Result<()> {
        self.change(|list| list.take_off(id, why))
    }

    fn change(&self, change: impl FnOnce(&mut List)) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut list = state.list.clone();
        change(&mut list);
        if list == state.list && state.file.is_some() && !state.lost_copy {
            return Ok(());
        }
        let sequence = state.sequence + 1;
        let bytes = encode(sequence, &list);
        match &state.file {
            Some(file) if bytes.len() <= state.copy_bytes => write_both(&**file, &bytes, state.copy_bytes)?,
            Some(_) | None => {
                // Twice what is needed now, so that this is rare.
                let copy_bytes = (bytes.len() * 2).max(COPY_BYTES_MIN);
                let file = self.disk.create(INVENTORY_NEW)?;
                write_both(&*file, &bytes, copy_bytes)?;
                self.disk.rename(INVENTORY_NEW, INVENTORY)?;
                self.disk.sync_dir("")?;
                state.file = Some(file);
                state.copy_bytes = copy_bytes;
            }
        }
        state.sequence = sequence;
        state.list = list;
        state.lost_copy = false;
        Ok(())
    }
}

/// Writes one copy after the other: at any time one of them is whole.
fn write_both(file: &dyn DiskFile, bytes: &[u8], copy_bytes: usize) -> io::Result<()> {
    let mut copy = bytes.to_vec();
    copy.resize(copy_bytes, 0);
    for at in [0, copy_bytes as u64] {
        file.write_at(&copy, at)?;
        file.sync_data()?;
    }
    Ok(())
}

fn encode(sequence: u64, list: &List) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + (list.ids.len() + list.lost.len()) * 4);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    put_ids(&mut out, &list.ids);
    out.push(list.retired_to.is_some().into());
    out.extend_from_slice(&list.retired_to.unwrap_or_default().0.to_le_bytes());
    put_ids(&mut out, &list.lost);
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

fn decode(bytes: &[u8]) -> Option<(u64, List)> {
    let mut rest = bytes.strip_prefix(&MAGIC)?;
    let version = u32::from_le_bytes(take(&mut rest)?);
    if version != VERSION && version != VERSION_1 {
        return None;
    }
    let sequence = u64::from_le_bytes(take(&mut rest)?);
    let mut list = List { ids: take_ids(&mut rest)?, ..List::default() };
    if version == VERSION {
        let [is_known] = take(&mut rest)?;
        let retired_to = SegmentId(u32::from_le_bytes(take(&mut rest)?));
        list.retired_to = (is_known == 1).then_some(retired_to);
        list.lost = take_ids(&mut rest)?;
    }
    let summed = &bytes[..bytes.len() - rest.len()];
    (crc32c::crc32c(summed) == u32::from_le_bytes(take(&mut rest)?)).then_some((sequence, list))
}

fn put_ids(out: &mut Vec<u8>, ids: &BTreeSet<SegmentId>) {
    out.extend_from_slice(&(ids.len() as u32).to_le_bytes());
    for id in ids {
        out.extend_from_slice(&id.0.to_le_bytes());
    }
}

fn take_ids(rest: &mut &[u8]) -> Option<BTreeSet<SegmentId>> {
    let count = u32::from_le_bytes(take(rest)?) as usize;
    let (listed, tail) = rest.split_at_checked(count.checked_mul(4)?)?;
    *rest = tail;
    let (ids, _) = listed.as_chunks::<4>();
    Some(ids.iter().map(|id| SegmentId(u32::from_le_bytes(*id))).collect())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::MemoryDisk;

    fn known(disk: &Arc<dyn Disk>) -> Option<Vec<u32>> {
        match Inventory::open(disk).unwrap().1 {
            Listed::Known(list) => Some(list.ids.into_iter().map(|id| id.0).collect()),
            Listed::Unreadable(_) => None,
        }
    }

    #[test]
    fn a_list_survives_the_loss_of_either_copy_but_not_of_both() {
        let memory = MemoryDisk::new();
        let disk: Arc<dyn Disk> = Arc::new(memory.clone());
        assert_eq!(known(&disk), None);
        set_up(&*disk).unwrap();
        assert_eq!(known(&disk), Some(vec![]));
        let (inventory, _) = Inventory::open(&disk).unwrap();
        inventory.add(SegmentId(3)).unwrap();
        inventory.add(SegmentId(5)).unwrap();
        inventory.remove(SegmentId(3), Leaves::Unused).unwrap();
        assert_eq!(known(&disk), Some(vec![5]));
        memory.flip_bit(INVENTORY, 20, 3);
        assert_eq!(known(&disk), Some(vec![5]));
        memory.flip_bit(INVENTORY, COPY_BYTES_MIN + 20, 3);
        assert_eq!(known(&disk), None);
    }

    #[test]
    fn a_long_list_gets_a_larger_file() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        set_up(&*disk).unwrap();
        let (inventory, _) = Inventory::open(&disk).unwrap();
        for id in 1..=3000 {
            inventory.add(SegmentId(id)).unwrap();
        }
        assert_eq!(known(&disk).map(|ids| ids.len()), Some(3000));
    }

    #[test]
    fn what_was_retired_and_what_was_lost_is_remembered() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        set_up(&*disk).unwrap();
        let list = || match Inventory::open(&disk).unwrap().1 {
            Listed::Known(list) => (list.retired_to.unwrap().0, list.lost.iter().map(|id| id.0).collect()),
            Listed::Unreadable(fact) => panic!("{fact}"),
        };
        assert_eq!(list(), (0, vec![]));
        let (inventory, _) = Inventory::open(&disk).unwrap();
        for id in 1..=9 {
            inventory.add(SegmentId(id)).unwrap();
        }
        inventory.remove(SegmentId(9), Leaves::Unused).unwrap();
        inventory.remove(SegmentId(5), Leaves::Lost).unwrap();
        inventory.remove(SegmentId(3), Leaves::Lost).unwrap();
        assert_eq!(list(), (0, vec![3, 5]));
        inventory.remove(SegmentId(4), Leaves::Retired).unwrap();
        inventory.remove(SegmentId(2), Leaves::Retired).unwrap();
        assert_eq!(list(), (4, vec![5]));
        // The file of one was put back, and that of another was not there.
        inventory.set([1, 5, 6, 7].map(SegmentId).into(), &[SegmentId(8)]).unwrap();
        assert_eq!(list(), (4, vec![8]));
        assert_eq!(known(&disk), Some(vec![1, 5, 6, 7]));
    }

    #[test]
    fn a_list_of_the_version_before_is_read_and_says_nothing_of_what_is_missing() {
        let mut old = MAGIC.to_vec();
        for number in [VERSION_1, 7, 0, 2, 5, 6] {
            old.extend_from_slice(&number.to_le_bytes());
        }
        let crc = crc32c::crc32c(&old);
        old.extend_from_slice(&crc.to_le_bytes());
        let ids = [5, 6].map(SegmentId).into();
        assert_eq!(decode(&old), Some((7, List { ids, ..List::default() })));
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        write_both(&*disk.create(INVENTORY).unwrap(), &old, COPY_BYTES_MIN).unwrap();
        let (inventory, _) = Inventory::open(&disk).unwrap();
        inventory.set([5, 6, 9].map(SegmentId).into(), &[]).unwrap();
        let Listed::Known(list) = Inventory::open(&disk).unwrap().1 else { panic!("it can be read") };
        assert_eq!(list.retired_to, Some(SegmentId(4)));
    }
}
