//! Pages of a backlog as they lie in the log: a queue asks for messages of a lane, and one segment is read at a time.

use nexo_core::offsets::OffsetSet;
use nexo_core::queue::{PageRequest, Queue};
use nexo_types::{Offset, SegmentId};

use super::Placement;

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
    pub(crate) fn place(&self, request: PageRequest) -> PlacedPage {
        let segment = self.segment_of(request.offsets.first().unwrap_or(Offset(0)));
        let request = self.part_in(segment, request);
        PlacedPage { segment, request }
    }

    /// What a queue wants to have read for its consumers: of all lanes what lies where the most urgent messages do.
    pub(crate) fn wanted_pages(&self, queue: &Queue) -> Option<PlacedPages> {
        let mut segment = None;
        let requests = queue.wanted_pages(|request| {
            let here = self.segment_of(request.offsets.first()?);
            (*segment.get_or_insert(here) == here).then(|| self.part_in(here, request))
        });
        segment.filter(|_| !requests.is_empty()).map(|segment| PlacedPages { segment, requests })
    }

    /// The first messages of a page, up to the first that does not lie in this segment.
    fn part_in(&self, segment: SegmentId, request: PageRequest) -> PageRequest {
        let mut part = OffsetSet::default();
        for (first, len) in request.offsets.ranges() {
            let (mut at, end) = (*first, first + len);
            while at < end {
                let (place, until) = self.locate(at, end);
                if self.segment_at(place) != segment {
                    return PageRequest { offsets: part, ..request };
                }
                part.push_range(at, until - at);
                at = until;
            }
        }
        request
    }
}
