//! Attributes of queues: asked for and set.

use std::collections::BTreeMap;

use nexo_broker::DeadLetters;
use nexo_types::QueueName;

use super::access::Need;
use super::queues::named_attributes;
use super::{Context, Service, create_fault};
use crate::attributes::{Kept, QueueAttribute};
use crate::clock::now;
use crate::fault::Fault;
use crate::redrive::RedriveAllowPolicy;
use crate::request::{GetQueueAttributes, SetQueueAttributes};
use crate::response::{QueueAttributes, Response};

impl Service {
    pub(super) fn get_queue_attributes(
        &self,
        context: &Context,
        request: &GetQueueAttributes<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::See)?;
        let mut wanted = Vec::new();
        for name in request.attribute_names.iter().flatten() {
            match &**name {
                "All" => wanted.extend_from_slice(QueueAttribute::ALL),
                name => {
                    wanted.push(QueueAttribute::named(name).ok_or_else(|| Fault::unknown_attribute(name))?);
                }
            }
        }
        let stats = self.broker.queue_stats(queue.name())?;
        let kept = Kept { config: stats.config, settings: (*queue.settings).clone() };
        let seen = self.seen(context, queue.name());
        let created_s = stats.created_at.0 / 1000;
        let value = |attribute| match attribute {
            QueueAttribute::ApproximateNumberOfMessages => Some((stats.ready + stats.grouped).to_string()),
            QueueAttribute::ApproximateNumberOfMessagesNotVisible => Some(stats.leased.to_string()),
            QueueAttribute::ApproximateNumberOfMessagesDelayed => Some(stats.delayed.to_string()),
            QueueAttribute::CreatedTimestamp => Some(created_s.to_string()),
            QueueAttribute::LastModifiedTimestamp => {
                Some(kept.settings.modified_s.max(created_s).to_string())
            }
            QueueAttribute::QueueArn => Some(self.arn_of(context, queue.name())),
            settable => kept.get(settable, &seen),
        };
        let attributes: BTreeMap<&'static str, String> =
            wanted.into_iter().filter_map(|attribute| Some((attribute.name(), value(attribute)?))).collect();
        Ok(Response::QueueAttributes(QueueAttributes { attributes }))
    }

    pub(super) async fn set_queue_attributes(
        &self,
        context: &Context,
        request: SetQueueAttributes<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Configure)?;
        let attributes = request.attributes.filter(|attributes| !attributes.is_empty());
        let attributes = attributes.ok_or_else(|| Fault::missing("Attribute.Name"))?;
        let attributes = named_attributes(&attributes)?;
        let limits = self.limits();
        let change = |kept: &mut Kept| {
            for (attribute, value) in &attributes {
                let was_fifo = kept.settings.fifo.is_some();
                kept.set(*attribute, value, &context.vhost, limits)?;
                if kept.settings.fifo.is_some() != was_fifo {
                    return Err(Fault::unknown_attribute(attribute.name()));
                }
            }
            kept.check()
        };
        let mut kept = Kept::of(queue.name(), queue.handle.base_config())?;
        change(&mut kept)?;
        if attributes.iter().any(|(attribute, _)| *attribute == QueueAttribute::RedrivePolicy) {
            may_dead_letter(context, queue.name(), &kept)?;
        }
        self.check_dead_letters(context, queue.name(), &kept)?;
        self.change_kept(queue.name(), |kept| {
            // It has worked on a copy; whatever else changed meanwhile, these attributes still make sense.
            let _ = change(kept);
        })
        .await?;
        Ok(Response::Done)
    }

    /// Changes what is kept with a queue, and notes when.
    pub(super) async fn change_kept(
        &self,
        name: &QueueName,
        change: impl FnOnce(&mut Kept),
    ) -> Result<(), Fault> {
        let mut refused = None;
        let update = |config: &nexo_broker::QueueConfig| match Kept::of(name, config.clone()) {
            Ok(mut kept) => {
                change(&mut kept);
                kept.settings.modified_s = now().0 / 1000;
                kept.into_config()
            }
            // It could be read a moment ago; now it stays as it is.
            Err(fault) => {
                refused = Some(fault);
                config.clone()
            }
        };
        self.broker.update_queue(name, update).await.map_err(create_fault)?;
        refused.map_or(Ok(()), Err)
    }

    /// Checks where the dead letters of a queue are to go: the queue must be there, of the same kind, and take them.
    pub(super) fn check_dead_letters(
        &self,
        context: &Context,
        name: &QueueName,
        kept: &Kept,
    ) -> Result<(), Fault> {
        let DeadLetters::Queue(target) = &kept.config.dead_letters else { return Ok(()) };
        let wrong = |reason: &str| {
            let policy = kept.get(QueueAttribute::RedrivePolicy, &self.seen(context, name));
            Fault::value("RedrivePolicy", policy.as_deref().unwrap_or(target.as_str()), reason)
        };
        if target == name {
            return Err(wrong("Dead letter queue cannot be the same as the source queue."));
        }
        let Some(dead) = self.queue_if_there(target)? else {
            return Err(wrong("Dead letter target does not exist."));
        };
        if dead.is_fifo() != kept.settings.fifo.is_some() {
            return Err(wrong("Dead-letter queue must be same type of queue as the source."));
        }
        let allows = dead
            .settings
            .redrive_allow_policy
            .as_deref()
            .is_none_or(|text| RedriveAllowPolicy::parse(text).is_ok_and(|policy| policy.allows(name)));
        if !allows {
            return Err(wrong(
                "The dead-letter queue's redrive allow policy does not permit this source queue.",
            ));
        }
        Ok(())
    }
}

/// Whether whoever asks may have the dead letters of a queue go where they are to go: he reads from the one and writes to the
/// other.
pub(super) fn may_dead_letter(context: &Context, name: &QueueName, kept: &Kept) -> Result<(), Fault> {
    let DeadLetters::Queue(target) = &kept.config.dead_letters else { return Ok(()) };
    context.may(Need::Read, name)?;
    context.may(Need::Write, target)
}
