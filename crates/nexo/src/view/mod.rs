//! How the answers of a broker are shown. Each view is a value that serde turns into JSON and that has a text for
//! people.

mod header;
mod job;
mod job_queue;
mod json;
mod message;
mod queue;
mod queue_details;
mod queue_list;
mod table;
mod vhost;

pub(crate) use job::{
    answer_value, job_figures, job_value, pending_table, taken_table, taken_value, use_table, use_value,
};
pub(crate) use job_queue::{
    budget_figures, budget_table, budget_value, job_queue_figures, job_queue_table, job_queue_value,
};
pub(crate) use json::{json_figures, json_text};
pub(crate) use message::MessageView;
pub(crate) use queue::QueueView;
pub(crate) use queue_list::{SortBy, Total, queue_table};
pub(crate) use table::{Figures, columns};
pub(crate) use vhost::{VhostView, vhost_table};

use nexo_types::Timestamp;

/// A moment for people.
pub(crate) fn moment(ms: u64) -> String {
    let millis = i64::try_from(Timestamp(ms).0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| format!("{ms} ms"), |moment| moment.to_string())
}
