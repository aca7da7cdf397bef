//! What a queue was declared with, what leads to it, and where its dead letters go.

use std::fmt::{self, Display};

use nexo_grpc::proto;
use nexo_types::Millis;
use serde::Serialize;

use super::Figures;
use super::header::{HeaderView, header_text, header_views};
use crate::units::Span;

/// Bindings shown to people; a program gets all that the broker lists.
const BINDINGS_SHOWN: usize = 20;

/// Where dead letters go.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DeadLettersView {
    Queue(String),
    Exchange {
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        routing_key: Option<String>,
    },
    None,
}

impl DeadLettersView {
    pub(super) fn new(
        queue: &str,
        target: Option<proto::DeadLetterTarget>,
        config: &proto::QueueConfig,
    ) -> Self {
        use proto::dead_letter_target::Target;
        match target.and_then(|target| target.target) {
            Some(Target::Queue(name)) => Self::Queue(name),
            Some(Target::Exchange(exchange)) => {
                Self::Exchange { name: exchange.name, routing_key: exchange.routing_key }
            }
            Some(Target::None(_)) => Self::None,
            // A broker of an earlier version knows only of queues.
            None => match config.dead_letter_queue() {
                "" => Self::Queue(format!("{queue}_dlq")),
                named => Self::Queue(named.to_owned()),
            },
        }
    }
}

impl Display for DeadLettersView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(name) => write!(f, "queue '{name}'"),
            Self::Exchange { name, routing_key } => {
                if name.is_empty() {
                    f.write_str("the default exchange")?;
                } else {
                    write!(f, "exchange '{name}'")?;
                }
                match routing_key {
                    Some(key) => write!(f, " with routing key '{key}'"),
                    None => f.write_str(" with their own routing keys"),
                }
            }
            Self::None => f.write_str("nowhere: they are dropped"),
        }
    }
}

/// What a queue was declared with and what leads to it.
#[derive(Debug, Serialize)]
pub(super) struct DetailsView {
    kind: &'static str,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ms: Option<u64>,
    single_active_consumer: bool,
    arguments: Vec<HeaderView>,
    bindings: Vec<BindingView>,
    bindings_total: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    policy: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    operator_policy: String,
}

#[derive(Debug, Serialize)]
struct BindingView {
    exchange: String,
    routing_key: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    arguments: Vec<HeaderView>,
}

impl From<proto::QueueDetails> for DetailsView {
    fn from(details: proto::QueueDetails) -> Self {
        Self {
            kind: match details.kind() {
                proto::QueueKind::Unspecified => "unknown",
                proto::QueueKind::Native => "native",
                proto::QueueKind::Classic => "classic",
                proto::QueueKind::Quorum => "quorum",
                proto::QueueKind::SqsStandard => "sqs standard",
                proto::QueueKind::SqsFifo => "sqs fifo",
            },
            durable: details.durable,
            exclusive: details.exclusive,
            auto_delete: details.auto_delete,
            expires_ms: (details.expires_ms > 0).then_some(details.expires_ms),
            single_active_consumer: details.single_active_consumer,
            arguments: header_views(&details.arguments),
            bindings: details
                .bindings
                .iter()
                .map(|binding| BindingView {
                    exchange: binding.exchange.clone(),
                    routing_key: binding.routing_key.clone(),
                    arguments: header_views(&binding.arguments),
                })
                .collect(),
            bindings_total: details.bindings_total,
            policy: details.policy,
            operator_policy: details.operator_policy,
        }
    }
}

impl DetailsView {
    pub(super) fn add_to(&self, figures: &mut Figures) {
        let mut kind = self.kind.to_owned();
        let traits = [
            (!self.durable, "transient"),
            (self.exclusive, "exclusive"),
            (self.auto_delete, "auto-delete"),
            (self.single_active_consumer, "single active consumer"),
        ];
        for (_, name) in traits.iter().filter(|(is, _)| *is) {
            kind.push_str(", ");
            kind.push_str(name);
        }
        figures.add("kind", kind);
        if let Some(ms) = self.expires_ms {
            figures.add("goes when unused for", Span(Millis(ms)));
        }
        for (what, policy) in [("policy", &self.policy), ("operator policy", &self.operator_policy)] {
            if !policy.is_empty() {
                figures.add(what, policy);
            }
        }
        for argument in &self.arguments {
            figures.add("argument", header_text(argument));
        }
        for binding in self.bindings.iter().take(BINDINGS_SHOWN) {
            let arguments: Vec<String> = binding.arguments.iter().map(header_text).collect();
            let arguments =
                if arguments.is_empty() { String::new() } else { format!(" ({})", arguments.join(", ")) };
            figures.add(
                "binding",
                format_args!("'{}' from '{}'{arguments}", binding.routing_key, binding.exchange),
            );
        }
        let more = self.bindings_total.saturating_sub(BINDINGS_SHOWN as u64);
        if more > 0 {
            figures.add("binding", format_args!("and {more} more"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_of_dead_letters_is_told_as_it_is() {
        let exchange = |key: Option<&str>| DeadLettersView::Exchange {
            name: "dlx".into(),
            routing_key: key.map(str::to_owned),
        };
        assert_eq!(exchange(Some("late")).to_string(), "exchange 'dlx' with routing key 'late'");
        assert_eq!(exchange(None).to_string(), "exchange 'dlx' with their own routing keys");
        assert_eq!(DeadLettersView::None.to_string(), "nowhere: they are dropped");
        let own = DeadLettersView::new("mail", None, &proto::QueueConfig::default());
        assert_eq!(own.to_string(), "queue 'mail_dlq'");
    }

    #[test]
    fn very_many_bindings_are_counted_rather_than_shown() {
        let binding = |n: usize| proto::QueueBinding {
            exchange: "logs".into(),
            routing_key: n.to_string(),
            arguments: Vec::new(),
        };
        let details = proto::QueueDetails {
            bindings: (0..30).map(binding).collect(),
            bindings_total: 30,
            ..Default::default()
        };
        let mut figures = Figures::default();
        DetailsView::from(details).add_to(&mut figures);
        let text = figures.to_string();
        assert!(text.contains("'19' from 'logs'") && text.ends_with("and 10 more"), "{text}");
    }
}
