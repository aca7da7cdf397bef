//! What a result is to waiters with filters. It is read once and filtered once for all who have the same filter, as far as they are
//! answered one soon after the other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use nexo_core::jobs::{Filter, FilterError};
use nexo_types::limits;
use serde_json::Value;

/// Results that are kept as they were read: bytes of them, as their workers wrote them.
const READ_BYTES_MAX: usize = limits::JOB_RESULT_BYTES_MAX;
/// Filters of one result whose items are kept, and bytes of these.
const FILTERS_MAX: usize = 64;
const FILTERED_BYTES_MAX: usize = 1024 * 1024;

/// The items that a filter lets through, as JSON, and why others could not be judged.
pub(super) type Filtered = (Bytes, Option<String>);

/// Results that were read lately.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// The latest is the last.
    read: VecDeque<Read>,
    bytes: usize,
}

#[derive(Debug)]
struct Read {
    /// As long as it is held, nothing else lies at its place in memory.
    result: Bytes,
    items: Result<Value, String>,
    filtered: BTreeMap<Arc<str>, Filtered>,
    filtered_bytes: usize,
}

impl Results {
    /// The items of a result that a filter lets through.
    pub(super) fn filtered(&mut self, result: &Bytes, filter: &Arc<str>) -> Filtered {
        let mut read = self.take(result).unwrap_or_else(|| Read::new(result));
        let filtered = read.filtered(filter);
        self.bytes += result.len();
        self.read.push_back(read);
        // The latest is kept however large it is.
        while self.bytes > READ_BYTES_MAX && self.read.len() > 1 {
            self.bytes -= self.read.pop_front().map_or(0, |oldest| oldest.result.len());
        }
        filtered
    }

    fn take(&mut self, result: &Bytes) -> Option<Read> {
        let is_same =
            |read: &Read| read.result.as_ptr() == result.as_ptr() && read.result.len() == result.len();
        let at = self.read.iter().position(is_same)?;
        self.bytes -= result.len();
        self.read.remove(at)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Read {
    fn new(result: &Bytes) -> Self {
        let items = serde_json::from_slice(result).map_err(|error| format!("the result is no JSON: {error}"));
        Self { result: result.clone(), items, filtered: BTreeMap::new(), filtered_bytes: 0 }
    }

    fn filtered(&mut self, filter: &Arc<str>) -> Filtered {
        if let Some(known) = self.filtered.get(filter) {
            return known.clone();
        }
        let filtered = match (&self.items, Filter::new(filter)) {
            (Ok(items), Ok(filter)) => filtered(&filter, items),
            (Err(error), _) => (Bytes::from_static(b"null"), Some(error.clone())),
            (_, Err(error)) => (Bytes::from_static(b"null"), Some(error.to_string())),
        };
        self.filtered_bytes += filtered.0.len();
        if self.filtered.len() >= FILTERS_MAX || self.filtered_bytes > FILTERED_BYTES_MAX {
            self.filtered.clear();
            self.filtered_bytes = filtered.0.len();
        }
        self.filtered.insert(Arc::clone(filter), filtered.clone());
        filtered
    }
}

/// The items that a filter lets through, and why some could not be judged, which are left out. The same result and the same filter
/// give the same items whenever they are asked for: what bounds the work is counted, and no clock is looked at.
fn filtered(filter: &Filter, result: &Value) -> Filtered {
    let items = result.as_array().map_or(std::slice::from_ref(result), Vec::as_slice);
    let mut steps_left = limits::JOB_FILTER_STEPS_MAX;
    let (mut kept, mut failed, mut first, mut spent) = (Vec::new(), 0u64, None, None);
    for (number, item) in items.iter().enumerate() {
        match filter.lets(item, &mut steps_left) {
            Ok(true) => kept.push(item),
            Ok(false) => {}
            Err(FilterError::Item(reason)) => {
                failed += 1;
                first.get_or_insert_with(|| format!("item {number}: {reason}"));
            }
            Err(error @ FilterError::Spent) => {
                spent = Some(format!("{error}; items from {number} on are left out, of {}", items.len()));
                break;
            }
        }
    }
    let failed =
        first.map(|first| format!("the filter failed on {failed} of {} items; {first}", items.len()));
    let errors: Vec<String> = failed.into_iter().chain(spent).collect();
    let error = (!errors.is_empty()).then(|| errors.join("; "));
    // Values can always be written.
    (serde_json::to_vec(&kept).unwrap_or_default().into(), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_once_and_old_ones_make_room() {
        let mut results = Results::default();
        let (small, large) =
            (Bytes::from("[1, 2]"), Bytes::from(format!("[\"{}\"]", "x".repeat(READ_BYTES_MAX))));
        let filter: Arc<str> = "item != 1".into();
        assert_eq!(results.filtered(&small, &filter), (Bytes::from("[2]"), None));
        assert_eq!(results.filtered(&small, &"item == 1".into()).0, "[1]");
        assert_eq!((results.read.len(), results.read[0].filtered.len()), (1, 2));
        assert_eq!(results.filtered(&large, &"false".into()).0, "[]");
        assert_eq!((results.read.len(), results.bytes), (1, large.len()));
        assert_eq!(results.filtered(&small, &filter).0, "[2]");
        assert_eq!((results.read.len(), results.bytes), (1, small.len()));
    }

    #[test]
    fn a_filter_whose_steps_are_spent_says_which_items_are_left_out() {
        let filter = Filter::new("item.matches('[a-h]{1,300}z') || item == 'kept'").unwrap();
        let mut items = vec![Value::from("a".repeat(2_000)); 100];
        items[0] = "kept".into();
        let (kept, error) = filtered(&filter, &Value::Array(items.clone()));
        assert_eq!(kept, "[\"kept\"]");
        let error = error.unwrap();
        assert!(
            error.starts_with("the filter has taken the 50000000 steps that there are for one answer"),
            "{error}"
        );
        assert!(error.ends_with(" on are left out, of 100"), "{error}");
        assert_eq!(
            filtered(&filter, &Value::Array(items)).1,
            Some(error),
            "it is the same whenever it is asked for"
        );
    }
}
