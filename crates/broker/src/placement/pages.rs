//! Pages of a backlog as they lie in the log: a queue asks for messages of a lane, and one segment is read at a time.

use nexo_core::offsets::OffsetSet;
use nexo_core::queue::{PageRequest, Queue};
use nexo_types::SegmentId;

use super::{NOWHERE, Placement};

/// A page, or the first part of one, that lies in one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacedPage {
    pub(crate) segment: SegmentId,
    pub(crate) request: PageRequest,
}

/// Pages of several lanes that are read together. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacedPages {
    pub(crate) segment: SegmentId,
    pub(crate) requests: Vec<PageRequest>,
}

impl From<PlacedPage> for PlacedPages {
    fn from(PlacedPage { segment, request }: PlacedPage) -> Self {
        Self { segment, requests: vec![request] }
    }
}

impl Placement {
    /// The first messages of a page, as far as they lie in one segment.
    pub(crate) fn place(&self, request: &PageRequest) -> PlacedPage {
        let mut segment = None;
        let offsets = self.first_together(&mut segment, &mut request.offsets.ranges().iter().copied());
        PlacedPage {
            segment: segment.unwrap_or(NOWHERE),
            request: PageRequest { lane: request.lane, offsets },
        }
    }

    /// What a queue wants to have read for its consumers: of all lanes what lies where the most urgent messages do.
    pub(crate) fn wanted_pages(&self, queue: &Queue) -> Option<PlacedPages> {
        let mut segment = None;
        let requests = queue.wanted_pages(|ranges| self.first_together(&mut segment, ranges));
        segment.filter(|_| !requests.is_empty()).map(|segment| PlacedPages { segment, requests })
    }

    /// The first of these messages, up to the first that does not lie in this segment; in that of the first, if none is named.
    fn first_together(
        &self,
        segment: &mut Option<SegmentId>,
        ranges: &mut dyn Iterator<Item = (u64, u64)>,
    ) -> OffsetSet {
        let mut together = OffsetSet::default();
        // Up to here everything is where the message before was.
        let mut known_until = 0;
        for (first, len) in ranges {
            let (mut at, end) = (first, first + len);
            while at < end {
                if at >= known_until {
                    let (place, until) = self.locate(at, u64::MAX);
                    let here = self.segment_at(place);
                    if *segment.get_or_insert(here) != here {
                        return together;
                    }
                    known_until = until;
                }
                let until = end.min(known_until);
                together.push_range(at, until - at);
                at = until;
            }
        }
        together
    }
}
