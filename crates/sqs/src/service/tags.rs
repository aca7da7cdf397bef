//! Tags of queues: stored and shown.

use super::access::Need;
use super::{Context, Service};
use crate::fault::Fault;
use crate::request::{ListQueueTags, TagQueue, TextMap, UntagQueue};
use crate::response::{QueueTags, Response};
use crate::settings::Settings;

/// Characters of a key and of a value, as AWS has it.
const KEY_MAX: usize = 128;
const VALUE_MAX: usize = 256;

impl Service {
    pub(super) async fn tag_queue(
        &self,
        context: &Context,
        request: TagQueue<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Configure)?;
        let tags = request.tags.filter(|tags| !tags.is_empty()).ok_or_else(|| Fault::missing("Tags"))?;
        let others = queue.settings.tags.keys().filter(|key| !tags.keys().any(|new| **new == ***key)).count();
        self.check_tags(&tags, others)?;
        let add = |settings: &mut Settings| {
            settings.tags.extend(tags.iter().map(|(key, value)| (key.to_string(), value.to_string())));
        };
        let mut settings = (*queue.settings).clone();
        add(&mut settings);
        settings.check_size()?;
        self.change_kept(queue.name(), |kept| add(&mut kept.settings)).await?;
        Ok(Response::Done)
    }

    pub(super) async fn untag_queue(
        &self,
        context: &Context,
        request: UntagQueue<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Configure)?;
        let keys = request.tag_keys.ok_or_else(|| Fault::missing("TagKeys"))?;
        if keys.is_empty() {
            return Err(Fault::invalid("Tag keys must be between 1 and 128 characters in length."));
        }
        self.change_kept(queue.name(), |kept| {
            for key in &keys {
                kept.settings.tags.remove(&**key);
            }
        })
        .await?;
        Ok(Response::Done)
    }

    pub(super) fn list_queue_tags(
        &self,
        context: &Context,
        request: &ListQueueTags<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::See)?;
        Ok(Response::QueueTags(QueueTags { tags: queue.settings.tags.clone() }))
    }

    /// Checks new tags of a queue that has `others` already.
    pub(super) fn check_tags(&self, tags: &TextMap<'_>, others: usize) -> Result<(), Fault> {
        for (key, value) in tags {
            if key.is_empty() || key.chars().count() > KEY_MAX {
                return Err(Fault::value("Tags", key, "A tag key must have 1 to 128 characters."));
            }
            if value.chars().count() > VALUE_MAX {
                return Err(Fault::value("Tags", value, "A tag value must have at most 256 characters."));
            }
        }
        let (count, max) = (tags.len() + others, self.limits().tags);
        if count > max {
            return Err(Fault::invalid(format!(
                "Too many tags added for queue: {count}, and {max} are allowed."
            )));
        }
        Ok(())
    }
}
