//! A look at messages that nobody can get now: those that are with a consumer, and those whose time has not come. A look takes
//! as many entries as it is asked for, however many there are, and changes nothing. Ready messages: `paging.rs`.

use nexo_types::Offset;

use super::Queue;
use super::compact::Delayed;
use super::paging::Peeked;

impl Queue {
    /// Leased messages behind `after` by offset, at most `max`. Those that may not be delivered again and wait to be moved are
    /// among them.
    #[must_use]
    pub fn leased_after(&self, after: Option<Offset>, max: usize) -> Vec<Peeked> {
        let leased = self.leased.range(first_behind(after), Offset(u64::MAX)).take(max);
        leased.map(|lease| Peeked { until: lease.until(), ..Peeked::from(&lease.entry) }).collect()
    }

    /// Delayed messages behind `after` by offset, at most `max`.
    #[must_use]
    pub fn delayed_after(&self, after: Option<Offset>, max: usize) -> Vec<Peeked> {
        let delayed = self.delayed.range(first_behind(after), Offset(u64::MAX)).take(max);
        let seen = delayed.map(|Delayed(entry)| {
            let entry = entry.entry();
            Peeked { until: Some(entry.ready_at), ..Peeked::from(&*entry) }
        });
        seen.collect()
    }
}

/// No message has the last offset of all, and whoever asks may name it.
fn first_behind(after: Option<Offset>) -> Offset {
    after.map_or(Offset(0), |after| Offset(after.0.saturating_add(1)))
}
