//! Queues: created, found, listed, purged, deleted.

use nexo_broker::{Declaration, Durability, ListRequest};
use nexo_types::QueueName;

use super::access::Need;
use super::listing::Page;
use super::queue_attributes::may_dead_letter;
use super::{Context, Service, create_fault, required};
use crate::attributes::{Kept, QueueAttribute};
use crate::clock::now;
use crate::fault::{Fault, FaultCode};
use crate::request::*;
use crate::response::{DeadLetterSources, QueueUrl, Queues, Response};
use crate::settings::Settings;

/// Characters of a name, as AWS has it.
const NAME_MAX: usize = 80;
const FIFO_SUFFIX: &str = ".fifo";

impl Service {
    pub(super) async fn create_queue(
        &self,
        context: &Context,
        request: CreateQueue<'_>,
    ) -> Result<Response, Fault> {
        let name = required(request.queue_name, "QueueName")?;
        let attributes = request.attributes.unwrap_or_default();
        let attributes = named_attributes(&attributes)?;
        let mut kept = Kept::new();
        // Whether other attributes make sense depends on this one.
        let (fifo, others): (Vec<_>, Vec<_>) =
            attributes.iter().partition(|(attribute, _)| *attribute == QueueAttribute::FifoQueue);
        for (attribute, value) in fifo.into_iter().chain(others) {
            kept.set(attribute, value, &context.vhost, self.limits())?;
        }
        let name = self.check_name(context, &name, &kept.settings)?;
        context.may(Need::Configure, &name)?;
        may_dead_letter(context, &name, &kept)?;
        self.check_dead_letters(context, &name, &kept)?;
        let tags = request.tags.unwrap_or_default();
        self.check_tags(&tags, 0)?;
        kept.settings.tags = tags.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        kept.settings.modified_s = now().0 / 1000;
        kept.check()?;
        if self.limits().is_strict() {
            self.recent.create(&name)?;
        }
        let declaration =
            Declaration { config: kept.clone().into_config(), durability: Durability::Durable, owner: None };
        let (queue, is_new) = self.broker.declare_queue(&name, declaration).await.map_err(create_fault)?;
        if !is_new {
            let existing = Kept::of(&name, queue.base_config())?;
            let seen = self.seen(context, &name);
            let differs = |(attribute, _): &&(QueueAttribute, &str)| {
                kept.get(*attribute, &seen) != existing.get(*attribute, &seen)
            };
            if let Some((attribute, _)) = attributes.iter().find(differs) {
                let attribute = attribute.name();
                return Err(Fault::new(
                    FaultCode::QueueNameExists,
                    format!(
                        "A queue already exists with the same name and a different value for attribute {attribute}"
                    ),
                ));
            }
        }
        Ok(Response::QueueUrl(QueueUrl { queue_url: self.url_of(context, &name) }))
    }

    /// Checks the name of a new queue. AWS's rules hold with strict limits; beyond them a name must only say whether the
    /// queue is a FIFO one.
    fn check_name(&self, context: &Context, text: &str, settings: &Settings) -> Result<QueueName, Fault> {
        let is_fifo = settings.fifo.is_some();
        let stem = text.strip_suffix(FIFO_SUFFIX);
        let plain =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        let strict = self.limits().is_strict();
        let long = strict && text.len() > NAME_MAX;
        let fits = match (stem, is_fifo) {
            (Some(stem), true) => !long && !stem.is_empty() && (!strict || plain(stem)),
            (None, false) => !long && !text.is_empty() && (!strict || plain(text)),
            (Some(_), false) | (None, true) => false,
        };
        if !fits {
            // The words are AWS's, as is the full stop that only one of them has.
            return Err(Fault::invalid(if is_fifo {
                "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end \
                 with .fifo suffix and be 1 to 80 in length."
            } else {
                "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
            }));
        }
        QueueName::at(&context.vhost, text)
            .map_err(|error| Fault::value("QueueName", text, &error.to_string()))
    }

    pub(super) fn get_queue_url(
        &self,
        context: &Context,
        request: &GetQueueUrl<'_>,
    ) -> Result<Response, Fault> {
        let name = request.queue_name.as_ref().ok_or_else(|| Fault::missing("QueueName"))?;
        let name = QueueName::at(&context.vhost, name).map_err(|_| Fault::no_such_queue())?;
        context.may(Need::See, &name)?;
        self.queue_named(&name)?;
        Ok(Response::QueueUrl(QueueUrl { queue_url: self.url_of(context, &name) }))
    }

    pub(super) fn list_queues(&self, context: &Context, request: &ListQueues<'_>) -> Result<Response, Fault> {
        let page = Page::new(request.max_results, request.next_token.as_deref())?;
        let list = ListRequest {
            vhost: Some(context.vhost.clone()),
            prefix: request.queue_name_prefix.as_deref().unwrap_or_default().to_owned(),
            after: page.after.as_deref().and_then(|after| QueueName::at(&context.vhost, after).ok()),
            limit: page.max + 1,
        };
        // Pages are of what concerns whoever asks: the token names the last of them.
        let found = self.broker.list_queues_that(&list, |name| context.may(Need::See, name).is_ok());
        let (names, next_token) = page.cut(found.into_iter().map(|queue| queue.name.to_string()).collect());
        Ok(Response::Queues(Queues { queue_urls: self.urls_of(context, &names), next_token }))
    }

    pub(super) fn list_dead_letter_source_queues(
        &self,
        context: &Context,
        request: &ListDeadLetterSourceQueues<'_>,
    ) -> Result<Response, Fault> {
        let page = Page::new(request.max_results, request.next_token.as_deref())?;
        let queue = self.queue(context, request.queue_url.as_ref(), Need::See)?;
        let may_see = |name: &QueueName| context.may(Need::See, name).is_ok();
        let mut sources = self.dead_letter_sources(queue.name(), may_see);
        sources.retain(|name| page.after.as_ref().is_none_or(|after| name > after));
        sources.truncate(page.max + 1);
        let (names, next_token) = page.cut(sources);
        let queue_urls = self.urls_of(context, &names);
        Ok(Response::DeadLetterSources(DeadLetterSources { queue_urls, next_token }))
    }

    /// Queues of those that this is true of whose dead letters go to this one, in order.
    pub(super) fn dead_letter_sources(
        &self,
        target: &QueueName,
        may_see: impl FnMut(&QueueName) -> bool,
    ) -> Vec<String> {
        let list = ListRequest { vhost: Some(target.vhost()), limit: usize::MAX, ..ListRequest::default() };
        let all = self.broker.list_queues_that(&list, may_see);
        let goes_there = |queue: &nexo_broker::QueueStats| {
            queue.config.max_attempts.is_some()
                && queue
                    .config
                    .dead_letter_queue_of(&queue.name)
                    .is_ok_and(|name| name.as_ref() == Some(target))
        };
        all.into_iter().filter(goes_there).map(|queue| queue.name.to_string()).collect()
    }

    fn urls_of(&self, context: &Context, names: &[String]) -> Vec<String> {
        let names = names.iter().filter_map(|name| QueueName::at(&context.vhost, name).ok());
        names.map(|name| self.url_of(context, &name)).collect()
    }

    pub(super) async fn purge_queue(
        &self,
        context: &Context,
        request: PurgeQueue<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Read)?;
        if self.limits().is_strict() {
            self.recent.purge(queue.name())?;
        }
        self.broker.clear(queue.name()).await?;
        Ok(Response::Done)
    }

    pub(super) async fn delete_queue(
        &self,
        context: &Context,
        request: DeleteQueue<'_>,
    ) -> Result<Response, Fault> {
        let queue = self.queue(context, request.queue_url.as_ref(), Need::Configure)?;
        self.broker.delete_queue(queue.name()).await?;
        if self.limits().is_strict() {
            self.recent.deleted(queue.name());
        }
        Ok(Response::Done)
    }
}

/// Attributes by what they are.
pub(super) fn named_attributes<'a>(
    attributes: &'a TextMap<'_>,
) -> Result<Vec<(QueueAttribute, &'a str)>, Fault> {
    attributes
        .iter()
        .map(|(name, value)| {
            let attribute = QueueAttribute::named(name).ok_or_else(|| Fault::unknown_attribute(name))?;
            Ok((attribute, &**value))
        })
        .collect()
}
