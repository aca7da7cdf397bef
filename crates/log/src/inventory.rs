//! Which segments there are: the list that tells a lost file from one that was given up.
//!
//! A number is added when its file is in `segments/` and taken off before the file leaves it, so a number on the
//! list whose file is not there is a loss. The list is kept twice in one file and both copies are rewritten in place:
//! taking a number off needs no space, which matters on a full disk.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use nexo_types::SegmentId;
use parking_lot::Mutex;

use crate::disk::{Disk, DiskFile};
use crate::layout::INVENTORY;

const INVENTORY_NEW: &str = "INVENTORY.new";
const MAGIC: [u8; 8] = *b"NEXOINV\0";
const VERSION: u32 = 1;
/// Magic, version, sequence number and number of segments; and the checksum.
const FIXED_BYTES: usize = 8 + 4 + 8 + 4 + 4;
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
    ids: BTreeSet<SegmentId>,
}

/// What the file says.
#[derive(Debug)]
pub(crate) enum Listed {
    /// These segments must be there.
    Known(BTreeSet<SegmentId>),
    /// The list cannot be read.
    Unreadable(&'static str),
}

/// Writes an empty list into a directory that is being set up.
pub(crate) fn set_up(disk: &dyn Disk) -> io::Result<()> {
    let file = disk.create(INVENTORY)?;
    write_both(&*file, &encode(1, &BTreeSet::new()), COPY_BYTES_MIN)
}

impl Inventory {
    /// Reads the list.
    pub(crate) fn open(disk: &Arc<dyn Disk>) -> io::Result<(Self, Listed)> {
        let empty = State { file: None, copy_bytes: 0, sequence: 0, ids: BTreeSet::new() };
        let inventory = |state| Self { disk: disk.clone(), state: Mutex::new(state) };
        let file = match disk.open(INVENTORY) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((inventory(empty), Listed::Unreadable("the file INVENTORY is missing")));
            }
            Err(error) => return Err(error),
        };
        let copy_bytes = (file.len()? / 2).min(COPY_BYTES_MAX) as usize;
        let mut best: Option<(u64, BTreeSet<SegmentId>)> = None;
        for copy in 0..2 {
            let mut bytes = vec![0; copy_bytes];
            let len = file.read_at(&mut bytes, (copy * copy_bytes) as u64)?;
            if let Some(found) = decode(&bytes[..len])
                && best.as_ref().is_none_or(|best| best.0 < found.0)
            {
                best = Some(found);
            }
        }
        let Some((sequence, ids)) = best else {
            return Ok((inventory(empty), Listed::Unreadable("the file INVENTORY is damaged")));
        };
        let state = State { file: Some(file), copy_bytes, sequence, ids: ids.clone() };
        Ok((inventory(state), Listed::Known(ids)))
    }

    /// Makes the list say exactly this.
    pub(crate) fn set(&self, ids: BTreeSet<SegmentId>) -> io::Result<()> {
        self.change(|list| *list = ids)
    }

    /// Adds a segment whose file is in its place.
    pub(crate) fn add(&self, id: SegmentId) -> io::Result<()> {
        self.change(|list| {
            list.insert(id);
        })
    }

    /// Takes a segment off before its file leaves its place.
    pub(crate) fn remove(&self, id: SegmentId) -> io::Result<()> {
        self.change(|list| {
            list.remove(&id);
        })
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<SegmentId>)) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut ids = state.ids.clone();
        change(&mut ids);
        if ids == state.ids && state.file.is_some() {
            return Ok(());
        }
        let sequence = state.sequence + 1;
        let bytes = encode(sequence, &ids);
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
        state.ids = ids;
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

fn encode(sequence: u64, ids: &BTreeSet<SegmentId>) -> Vec<u8> {
    let mut out = Vec::with_capacity(FIXED_BYTES + ids.len() * 4);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&(ids.len() as u32).to_le_bytes());
    for id in ids {
        out.extend_from_slice(&id.0.to_le_bytes());
    }
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

fn decode(bytes: &[u8]) -> Option<(u64, BTreeSet<SegmentId>)> {
    let mut rest = bytes.strip_prefix(&MAGIC)?;
    if u32::from_le_bytes(take(&mut rest)?) != VERSION {
        return None;
    }
    let sequence = u64::from_le_bytes(take(&mut rest)?);
    let count = u32::from_le_bytes(take(&mut rest)?) as usize;
    let listed = rest.get(..count.checked_mul(4)?)?;
    let crc = rest.get(listed.len()..)?.first_chunk::<4>()?;
    let summed = bytes.get(..FIXED_BYTES - 4 + listed.len())?;
    if crc32c::crc32c(summed) != u32::from_le_bytes(*crc) {
        return None;
    }
    let (ids, _) = listed.as_chunks::<4>();
    Some((sequence, ids.iter().map(|id| SegmentId(u32::from_le_bytes(*id))).collect()))
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
            Listed::Known(ids) => Some(ids.into_iter().map(|id| id.0).collect()),
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
        inventory.remove(SegmentId(3)).unwrap();
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
}
