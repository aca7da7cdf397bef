//! What a queue is, for people to look at: who made it, what it was declared with, and what leads to it.

use nexo_core::message::Durability;
use nexo_core::policy::PolicyPair;
use nexo_core::topology::{Destination, HeaderValue as Argument};
use nexo_types::{QueueKind, QueueName, limits};

use crate::broker::Broker;
use crate::error::QueueError;
use crate::headers::{HeaderValue, Headers};
use crate::shared::not_found;
use crate::stats::QueueStats;

/// All that can be told about one queue.
#[derive(Clone, Debug)]
pub struct QueueDetails {
    /// Its settings and figures.
    pub stats: QueueStats,
    /// In whose words it was asked for.
    pub kind: QueueKind,
    /// Whether it survives a restart.
    pub durability: Durability,
    /// Whether only the connection that made it may use it.
    pub exclusive: bool,
    /// What it was declared with, by name.
    pub arguments: Headers,
    /// Bindings that lead to it, by source; that of the default exchange is not among them.
    pub bindings: Vec<BindingShown>,
    /// How many bindings there are; more than are listed if it has very many.
    pub bindings_total: u64,
    /// The policies that apply to it.
    pub policies: PolicyPair,
}

/// One binding that leads to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingShown {
    /// The exchange.
    pub exchange: String,
    /// The binding key. Bytes that are no text are replaced.
    pub routing_key: String,
    /// Its arguments.
    pub arguments: Headers,
}

impl Broker {
    /// All that can be told about one queue.
    ///
    /// # Errors
    /// If there is no such queue.
    pub fn queue_details(&self, name: &QueueName) -> Result<QueueDetails, QueueError> {
        let cell = self.cell(name)?;
        let now = self.shared.clock.now();
        let stats = {
            let state = cell.state.lock();
            if state.deleted {
                return Err(not_found(name));
            }
            QueueStats::new(&state.queue, now)
        };
        let codecs = &self.shared.options.codecs;
        let (bindings, bindings_total) = self.bindings_to(name);
        let kind = codecs.kind(name, stats.config.base());
        Ok(QueueDetails {
            policies: self.policies_of_queue(name, kind),
            kind,
            durability: cell.durability,
            exclusive: cell.owner.is_some(),
            arguments: codecs.arguments(&stats.config),
            bindings,
            bindings_total,
            stats,
        })
    }

    fn bindings_to(&self, name: &QueueName) -> (Vec<BindingShown>, u64) {
        self.shared.catalog.exchanges.look(|topology| {
            let mut shown = Vec::new();
            let mut total = 0;
            for binding in topology.bindings_to(&Destination::Queue(name.clone())) {
                total += 1;
                if shown.len() < limits::BINDINGS_SHOWN_MAX {
                    let arguments = binding.arguments().iter();
                    shown.push(BindingShown {
                        exchange: binding.source().as_str().to_owned(),
                        routing_key: String::from_utf8_lossy(binding.key()).into_owned(),
                        arguments: Headers(
                            arguments
                                .map(|(name, value)| {
                                    (String::from_utf8_lossy(name).into_owned(), argument(value))
                                })
                                .collect(),
                        ),
                    });
                }
            }
            (shown, total)
        })
    }
}

/// The argument of a binding as native clients have values.
fn argument(value: &Argument) -> HeaderValue {
    match value {
        Argument::Bool(truth) => HeaderValue::Json(truth.to_string()),
        Argument::Signed(number) => HeaderValue::Number(number.to_string()),
        Argument::Unsigned(number) => HeaderValue::Number(number.to_string()),
        Argument::Float(bits) => HeaderValue::Text(f64::from_bits(*bits).to_string()),
        Argument::Timestamp(seconds) => HeaderValue::Number(seconds.to_string()),
        Argument::Void => HeaderValue::Json("null".into()),
        Argument::Text(bytes) | Argument::Other(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => HeaderValue::Text(text.to_owned()),
            Err(_) => HeaderValue::Bytes(bytes.clone()),
        },
    }
}
