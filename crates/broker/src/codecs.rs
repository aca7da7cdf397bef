//! The codecs of all protocols, as they were registered when the broker was made. Messages may die while it starts, so they are
//! known from the beginning.

use std::sync::Arc;

use nexo_core::config::QueueConfig;
use nexo_core::message::{NewMessage, PriorityCap, Properties, PropertyFormat, StoredMessage};
use nexo_core::topology::{HeaderSource, NoHeaders};
use nexo_types::{QueueKind, QueueName};

use crate::headers::{HeaderValue, Headers, HeadersError, NativeHeaders};
use crate::property_codec::{
    DeadLetter, DeadLetterCodec, DeathInfo, PropertyCodec, Publication, PublishCodec, QueueCodec,
};
use crate::queue_cell::QueueCell;

/// Who knows what of messages and queues. The broker itself knows native headers.
#[derive(Clone, Debug)]
pub struct Codecs {
    properties: Vec<(PropertyFormat, &'static dyn PropertyCodec)>,
    queues: Vec<&'static dyn QueueCodec>,
    dead_letters: Option<&'static dyn DeadLetterCodec>,
    publications: Option<&'static dyn PublishCodec>,
}

impl Default for Codecs {
    fn default() -> Self {
        Self { properties: Vec::new(), queues: Vec::new(), dead_letters: None, publications: None }
            .with_properties(&NativeHeaders)
    }
}

impl Codecs {
    /// With one that reads properties of its format.
    #[must_use]
    pub fn with_properties(mut self, codec: &'static dyn PropertyCodec) -> Self {
        let format = codec.format();
        debug_assert!(self.of(format).is_none(), "a format has one codec");
        self.properties.push((format, codec));
        self
    }

    /// With one that knows queues of its protocol. Those that were registered before are asked first.
    #[must_use]
    pub fn with_queues(mut self, codec: &'static dyn QueueCodec) -> Self {
        self.queues.push(codec);
        self
    }

    /// With one that addresses dead letters which go to an exchange.
    #[must_use]
    pub fn with_dead_letters(mut self, codec: &'static dyn DeadLetterCodec) -> Self {
        self.dead_letters = Some(codec);
        self
    }

    /// With one that gives messages of the broker itself their form.
    #[must_use]
    pub fn with_publications(mut self, codec: &'static dyn PublishCodec) -> Self {
        self.publications = Some(codec);
        self
    }

    /// Who reads properties of this format.
    #[must_use]
    pub fn of(&self, format: PropertyFormat) -> Option<&'static dyn PropertyCodec> {
        self.properties.iter().find(|(own, _)| *own == format).map(|(_, codec)| *codec)
    }

    /// The headers that a message is stored with, as all protocols can read them.
    ///
    /// # Errors
    /// If nobody can read them.
    pub fn headers(&self, properties: &Properties) -> Result<Headers, HeadersError> {
        self.of(properties.format).ok_or(HeadersError::Unreadable)?.headers(properties)
    }

    pub(crate) fn header_source<'a>(&self, properties: &'a Properties) -> Box<dyn HeaderSource + 'a> {
        match self.of(properties.format) {
            Some(codec) => codec.header_source(properties),
            None => Box::new(NoHeaders),
        }
    }

    pub(crate) fn dead_letter(&self, message: StoredMessage, note: &DeathInfo<'_>) -> DeadLetter {
        match self.dead_letters {
            Some(codec) => codec.dead_letter(message, note),
            None => DeadLetter {
                message: message.into_moved(None),
                routing_keys: vec![bytes::Bytes::copy_from_slice(note.queue.as_str().as_bytes())],
            },
        }
    }

    /// A message that the broker sends by itself; if no protocol gives it a form, with native headers.
    pub(crate) fn publication(&self, publication: &Publication<'_>) -> NewMessage {
        if let Some(codec) = self.publications {
            return codec.publication(publication);
        }
        let text =
            |(name, value): &(Arc<str>, Arc<str>)| (name.to_string(), HeaderValue::Text(value.to_string()));
        let headers = Headers(publication.headers.iter().map(text).collect());
        // Schedules have fewer headers than a message may have.
        let properties = headers.to_properties().unwrap_or_default();
        NewMessage { properties, priority: publication.priority, ..NewMessage::new(publication.body.clone()) }
    }

    pub(crate) fn for_queue(&self, dead_letter: &NewMessage, queue: &QueueConfig) -> NewMessage {
        self.dead_letters.map_or_else(|| dead_letter.clone(), |codec| codec.for_queue(dead_letter, queue))
    }

    /// A message that the broker sends by itself, as a queue takes it. Where no protocol says how high a priority may be, it is as
    /// high as it likes.
    pub(crate) fn publication_for(
        &self,
        message: &NewMessage,
        name: &QueueName,
        queue: &QueueConfig,
    ) -> NewMessage {
        let fitted = self.for_queue(message, queue);
        match self.knows(name, queue) {
            true => fitted,
            false => NewMessage { priority: message.priority, priority_cap: PriorityCap::None, ..fitted },
        }
    }

    pub(crate) fn is_cycle(&self, dead_letter: &NewMessage, queue: &QueueName) -> bool {
        self.dead_letters.is_some_and(|codec| codec.is_cycle(dead_letter, queue))
    }

    /// In whose words a queue was asked for.
    pub(crate) fn kind(&self, name: &QueueName, queue: &QueueConfig) -> QueueKind {
        self.queues.iter().find_map(|codec| codec.kind(name, queue)).unwrap_or_default()
    }

    /// Whether a protocol knows this queue as its own.
    fn knows(&self, name: &QueueName, queue: &QueueConfig) -> bool {
        self.queues.iter().any(|codec| codec.kind(name, queue).is_some())
    }

    /// What a queue was declared with, by name.
    pub(crate) fn arguments(&self, queue: &QueueConfig) -> Headers {
        let mut all = self.queues.iter().map(|codec| codec.arguments(queue));
        all.find(|arguments| !arguments.0.is_empty()).unwrap_or_default()
    }

    /// Whether a queue was told what it does when it is full. Where arguments are given, only they tell whether a client asked
    /// for what is the default.
    pub(crate) fn names_overflow(&self, name: &QueueName, queue: &QueueConfig) -> bool {
        if self.knows(name, queue) {
            self.queues.iter().any(|codec| codec.names_overflow(queue))
        } else {
            queue.overflow != QueueConfig::default().overflow
        }
    }

    /// Completes the settings of queues that an earlier release wrote.
    pub(crate) fn read_arguments(&self, cells: &[Arc<QueueCell>]) {
        if self.queues.is_empty() {
            return;
        }
        for cell in cells {
            cell.state.lock().queue.read_arguments(|config| {
                for codec in &self.queues {
                    codec.read_arguments(config);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use nexo_core::config::Overflow;
    use nexo_types::{ExchangeName, Priority, Timestamp};

    use super::*;

    /// Reads a block as one header that is called like the codec.
    #[derive(Debug)]
    struct Whole(&'static str);

    impl PropertyCodec for Whole {
        fn format(&self) -> PropertyFormat {
            PropertyFormat::Amqp
        }

        fn headers(&self, properties: &Properties) -> Result<Headers, HeadersError> {
            Ok(Headers(vec![(self.0.to_owned(), HeaderValue::Bytes(properties.bytes.clone()))]))
        }
    }

    impl QueueCodec for Whole {
        fn kind(&self, name: &QueueName, _: &QueueConfig) -> Option<QueueKind> {
            (name.as_str() == self.0).then_some(QueueKind::Classic)
        }
    }

    fn stored(format: PropertyFormat) -> Properties {
        Properties { format, bytes: Bytes::from_static(b"\x01a\x00\x01b") }
    }

    #[test]
    fn whoever_reads_asks_the_codec_of_the_stored_format() {
        let native = Headers(vec![("a".to_owned(), HeaderValue::Text("b".to_owned()))]);
        let alone = Codecs::default();
        assert_eq!(alone.headers(&stored(PropertyFormat::Native)), Ok(native.clone()));
        assert_eq!(alone.headers(&stored(PropertyFormat::Amqp)), Err(HeadersError::Unreadable));
        let both = Codecs::default().with_properties(&Whole("whole"));
        assert_eq!(both.headers(&stored(PropertyFormat::Native)), Ok(native));
        let read = both.headers(&stored(PropertyFormat::Amqp)).unwrap();
        assert_eq!(read.0[0].0, "whole");
    }

    #[test]
    fn the_first_that_knows_a_queue_says_what_it_is() {
        let codecs = Codecs::default().with_queues(&Whole("one")).with_queues(&Whole("two"));
        let kind = |name| codecs.kind(&QueueName::new(name).unwrap(), &QueueConfig::default());
        assert_eq!([kind("one"), kind("two")], [QueueKind::Classic; 2]);
        assert_eq!(kind("three"), QueueKind::Native);
    }

    /// Ranks all messages last, and was never told of an overflow.
    impl DeadLetterCodec for Whole {
        fn dead_letter(&self, message: StoredMessage, _: &DeathInfo<'_>) -> DeadLetter {
            DeadLetter { message: message.into_moved(None), routing_keys: Vec::new() }
        }

        fn for_queue(&self, message: &NewMessage, _: &QueueConfig) -> NewMessage {
            NewMessage { priority: Priority(0), ..message.clone() }
        }

        fn is_cycle(&self, _: &NewMessage, _: &QueueName) -> bool {
            false
        }
    }

    #[test]
    fn a_queue_of_nobody_ranks_as_it_is_told_and_its_settings_say_what_it_was_told() {
        let codecs = Codecs::default().with_queues(&Whole("own")).with_dead_letters(&Whole("own"));
        let (own, native) = (QueueName::new("own").unwrap(), QueueName::new("native").unwrap());
        let told = QueueConfig { overflow: Overflow::DropOldest, ..QueueConfig::default() };
        let message = NewMessage { priority: Priority(7), ..NewMessage::new("x") };
        let priority = |name| codecs.publication_for(&message, name, &told).priority.0;
        assert_eq!((priority(&own), priority(&native)), (0, 7));
        assert!(codecs.names_overflow(&native, &told));
        assert!(!codecs.names_overflow(&native, &QueueConfig::default()));
        assert!(!codecs.names_overflow(&own, &told), "nobody says so in its arguments");
    }

    #[test]
    fn without_exchanges_a_dead_letter_goes_by_the_name_of_its_queue() {
        let codecs = Codecs::default();
        let (queue, exchange) = (QueueName::new("q").unwrap(), ExchangeName::default_exchange());
        let reason = nexo_core::message::DeathReason::Rejected;
        let (at, routing_key) = (Timestamp(1), None);
        let note = DeathInfo { queue: &queue, reason, at, exchange: &exchange, routing_key, codecs: &codecs };
        let message = StoredMessage::parse(&Bytes::from_static(b"\x00\x07body")).unwrap();
        let dead_letter = codecs.dead_letter(message, &note);
        assert_eq!(
            (&dead_letter.routing_keys[..], dead_letter.message.priority.0),
            (&[Bytes::from_static(b"q")][..], 7)
        );
        assert!(!codecs.is_cycle(&dead_letter.message, &queue));
        assert_eq!(codecs.for_queue(&dead_letter.message, &QueueConfig::default()), dead_letter.message);
    }
}
