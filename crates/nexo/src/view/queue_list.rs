//! Many queues as a table: one a line, in an order that can be chosen, with sums if asked for.

use std::cmp::Reverse;

use comfy_table::Table;
use serde::Serialize;

use super::{QueueView, columns};
use crate::units::Size;

/// The column that a list is ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SortBy {
    #[default]
    Name,
    Ready,
    Leased,
    Delayed,
    Grouped,
    Consumers,
    Bytes,
    /// Messages pushed a second
    In,
    /// Messages delivered a second
    Out,
    /// Messages acknowledged a second
    Ack,
}

impl SortBy {
    /// Puts queues in order: names as they are, figures from the largest down.
    pub(crate) fn apply(self, queues: &mut [QueueView]) {
        // Thousandths of a rate are near enough, and have an order.
        let rate = |rate: f64| (rate * 1000.0) as u64;
        let figure = |queue: &QueueView| {
            let stats = &queue.stats;
            match self {
                Self::Name => 0,
                Self::Ready => stats.ready,
                Self::Leased => stats.leased,
                Self::Delayed => stats.delayed,
                Self::Grouped => stats.grouped,
                Self::Consumers => stats.consumers,
                Self::Bytes => stats.bytes,
                Self::In => rate(stats.push_rate),
                Self::Out => rate(stats.deliver_rate),
                Self::Ack => rate(stats.ack_rate),
            }
        };
        let place = |queue: &QueueView| (Reverse(figure(queue)), queue.vhost.clone(), queue.name.clone());
        queues.sort_by_cached_key(place);
    }
}

/// The sums of a list.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Total {
    queues: u64,
    ready: u64,
    leased: u64,
    delayed: u64,
    grouped: u64,
    consumers: u64,
    bytes: u64,
    push_rate: f64,
    deliver_rate: f64,
    ack_rate: f64,
}

impl Total {
    pub(crate) fn of(queues: &[QueueView]) -> Self {
        let mut total = Self::default();
        for QueueView { stats, .. } in queues {
            total.queues += 1;
            total.ready += stats.ready;
            total.leased += stats.leased;
            total.delayed += stats.delayed;
            total.grouped += stats.grouped;
            total.consumers += stats.consumers;
            total.bytes += stats.bytes;
            total.push_rate += stats.push_rate;
            total.deliver_rate += stats.deliver_rate;
            total.ack_rate += stats.ack_rate;
        }
        total
    }
}

/// Many queues, one a line. Where some are not in "/", each says where it is.
pub(crate) fn queue_table(queues: &[QueueView], total: bool) -> Table {
    let apart = queues.iter().any(|queue| queue.vhost != "/");
    let shown = |queue: &QueueView| {
        if apart { format!("{} ({})", queue.name, queue.vhost) } else { queue.name.clone() }
    };
    let mut table = columns(&[
        if apart { "NAME (VHOST)" } else { "NAME" },
        "READY",
        "LEASED",
        "DELAYED",
        "GROUPED",
        "CONSUMERS",
        "BYTES",
        "IN/S",
        "OUT/S",
        "ACK/S",
        "STATE",
    ]);
    for queue in queues {
        let stats = &queue.stats;
        table.add_row([
            shown(queue),
            stats.ready.to_string(),
            stats.leased.to_string(),
            stats.delayed.to_string(),
            stats.grouped.to_string(),
            stats.consumers.to_string(),
            Size(stats.bytes).to_string(),
            format!("{:.1}", stats.push_rate),
            format!("{:.1}", stats.deliver_rate),
            format!("{:.1}", stats.ack_rate),
            if queue.config.paused { "paused" } else { "running" }.to_owned(),
        ]);
    }
    if total {
        let sum = Total::of(queues);
        table.add_row([
            format!("TOTAL ({})", sum.queues),
            sum.ready.to_string(),
            sum.leased.to_string(),
            sum.delayed.to_string(),
            sum.grouped.to_string(),
            sum.consumers.to_string(),
            Size(sum.bytes).to_string(),
            format!("{:.1}", sum.push_rate),
            format!("{:.1}", sum.deliver_rate),
            format!("{:.1}", sum.ack_rate),
            String::new(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use nexo_grpc::proto;

    use super::*;

    fn queue(name: &str, ready: u64, grouped: u64) -> QueueView {
        let stats = proto::QueueStats { ready, grouped, bytes: 10, push_rate: 0.5, ..Default::default() };
        let vhost = "/".into();
        proto::Queue { name: name.into(), vhost, stats: Some(stats), ..Default::default() }.into()
    }

    #[test]
    fn a_table_has_a_line_for_each_queue_and_grouped_is_not_delayed() {
        let text = queue_table(&[queue("mail", 2, 7)], false).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        let cells: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(cells, ["mail", "2", "0", "0", "7", "0", "10", "B", "0.5", "0.0", "0.0", "running"]);
    }

    #[test]
    fn figures_go_from_the_largest_down_and_names_decide_ties() {
        let mut queues = [queue("b", 1, 0), queue("c", 5, 0), queue("a", 1, 0)];
        let names = |queues: &[QueueView]| queues.iter().map(|queue| queue.name.clone()).collect::<Vec<_>>();
        SortBy::Ready.apply(&mut queues);
        assert_eq!(names(&queues), ["c", "a", "b"]);
        SortBy::Name.apply(&mut queues);
        assert_eq!(names(&queues), ["a", "b", "c"]);
    }

    #[test]
    fn the_last_line_has_the_sums() {
        let text = queue_table(&[queue("a", 2, 1), queue("b", 3, 1)], true).to_string();
        let last: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["TOTAL", "(2)", "5", "0", "0", "2", "0", "20", "B", "1.0", "0.0", "0.0"]);
    }
}
