//! The books: what was sent, what the broker promised, what came, and what that proves.
//!
//! The ledger is pure: moments come in as arguments, and clients tell it what they do *before* they do it. A copy of a
//! message is forgotten once its acknowledgement is known to be durable, so an hour's run takes no more memory than what
//! is under way; whatever was sent and is not in the books is done, and must never come again.
//!
//! The rules, and why they are fair to the broker:
//!
//! - *Life.* The broker lives from one start to its next end. Whoever ends it says so first; what a connection of an
//!   earlier life still brings is not judged, apart from confirms, which count whenever they are read.
//! - *Horizon.* The log is one sequence. If something sent at a moment was confirmed as durable, then all the broker
//!   wrote before that moment is durable, in that life: the lease of a delivery that had been seen by then, an
//!   acknowledgement that the same connection had sent before.
//! - *Custody.* While a connection holds a message, and after it has acknowledged it, nobody gets the message, unless
//!   the connection, its lease or the broker's life ended in between.
//! - *Doors.* Nodes of a cluster are one broker, whose life is the time of one leader. What goes through a node ends with it;
//!   while nobody can say which node serves, as when a leader hands over, what begins is not judged.
//! - *Groups.* In a FIFO queue a message comes when all before it in its group are done. So one that is done for certain
//!   proves that those before it are.
//! - *Attempts* count up: always within a life, and across lives from what lies before the horizon. Leases are written
//!   without anybody waiting for them, so a kill may take back the last few.
//! - *Damage* excuses the loss of a copy that was hit, if the broker has counted it, and gaps where it should have come;
//!   nothing that is about another copy.

mod books;
mod cause;
mod damage;
mod groups;
mod order;
mod outage;
mod record;
#[cfg(test)]
mod tests;
mod totals;
mod violation;

pub(crate) use books::{Delivery, Ledger, Reception, SLACK, SessionId};
pub(crate) use cause::Cause;
pub(crate) use record::Attempt;
pub(crate) use totals::Share;
pub(crate) use violation::{Violation, What};
