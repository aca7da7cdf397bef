//! Where the parts of a segment file lie. For tests that harm each of them by itself, and for whoever looks into a file.

use std::io;
use std::ops::Range;

use crate::disk::Disk;
use crate::frame::{self, Content};
use crate::header::{COPY_AT, TRAILER_SEAL_AT};
use crate::header::{HEADER_BYTES, HEADER_LEN, Header, SEAL_LEN, SEAL_SECTOR_AT, Seal, TRAILER_BYTES};
use crate::read;

/// A part of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Region {
    /// The first copy of the header.
    Header,
    /// The second copy of the header, in the same block.
    HeaderCopy,
    /// The seal in the first block. Zeros if the segment is not sealed.
    Seal,
    /// A commit marker.
    Marker,
    /// A frame with entries.
    Frame,
    /// The frame that ends a segment.
    End,
    /// The sections of the footer.
    Sections,
    /// The footer's directory.
    Directory,
    /// The copy of the header in the trailer.
    TrailerHeader,
    /// The copy of the seal in the trailer. Zeros if the segment is not sealed.
    TrailerSeal,
}

impl Region {
    /// Every kind of region.
    pub const ALL: [Self; 10] = [
        Self::Header,
        Self::HeaderCopy,
        Self::Seal,
        Self::Marker,
        Self::Frame,
        Self::End,
        Self::Sections,
        Self::Directory,
        Self::TrailerHeader,
        Self::TrailerSeal,
    ];
}

/// The regions of a segment file that is whole, in order of their place. None if it has no header.
///
/// # Errors
/// When the file cannot be read.
pub fn regions_of(disk: &dyn Disk, path: &str) -> io::Result<Vec<(Region, Range<u32>)>> {
    let file = disk.open(path)?;
    let file_bytes = u32::try_from(file.len()?).unwrap_or(u32::MAX);
    let bytes = read::whole_file(&*file, file_bytes)?;
    let Some((header, _)) = Header::read(&bytes) else { return Ok(Vec::new()) };
    let seal = Seal::read(&bytes).filter(|seal| seal.header.is_same_use(&header));
    let (header_len, seal_len) = (HEADER_LEN as u32, SEAL_LEN as u32);
    let [first, second] = COPY_AT.map(|at| at as u32..at as u32 + header_len);
    let seal_at = SEAL_SECTOR_AT as u32;
    let mut regions = vec![
        (Region::Header, first),
        (Region::HeaderCopy, second),
        (Region::Seal, seal_at..seal_at + seal_len),
    ];
    let mut at = HEADER_BYTES;
    while let Ok(checked) = frame::check(bytes.get(at as usize..).unwrap_or_default(), header.salt, at) {
        let range = at..at + checked.len as u32;
        at = range.end;
        match checked.content {
            Content::Entries(_) => regions.push((Region::Frame, range)),
            Content::Marker(_) => regions.push((Region::Marker, range)),
            Content::End => {
                regions.push((Region::End, range));
                break;
            }
        }
    }
    if let Some(seal) = seal {
        let directory = seal.directory_at..seal.directory_at + seal.directory_len;
        regions.extend([(Region::Sections, at..directory.start), (Region::Directory, directory)]);
    }
    let trailer = file_bytes.saturating_sub(TRAILER_BYTES);
    let trailer_seal = trailer + TRAILER_SEAL_AT;
    regions.push((Region::TrailerHeader, trailer..trailer + header_len));
    regions.push((Region::TrailerSeal, trailer_seal..trailer_seal + seal_len));
    Ok(regions)
}
