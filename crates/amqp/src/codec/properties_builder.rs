//! Writes basic properties: from nothing, or from those of a message with some of them changed. What is not
//! changed keeps its bytes as they came.

use super::properties::{Properties, Property};
use super::short_str::ShortStr;
use super::table::Table;
use super::value::put_long_bytes;

#[derive(Clone, Copy)]
enum Edit<'a> {
    Keep,
    Remove,
    Octet(u8),
    Timestamp(u64),
    ShortStr(ShortStr<'a>),
    Table(Table<'a>),
}

/// Properties in the making.
#[derive(Clone)]
pub struct PropertiesBuilder<'a> {
    base: Properties<'a>,
    edits: [Edit<'a>; Property::COUNT],
}

impl<'a> PropertiesBuilder<'a> {
    /// Starts without properties.
    #[must_use]
    pub const fn new() -> Self {
        Self::from_base(Properties::EMPTY)
    }

    /// Starts with all properties of `base`.
    #[must_use]
    pub const fn from_base(base: Properties<'a>) -> Self {
        Self { base, edits: [Edit::Keep; Property::COUNT] }
    }

    /// Takes the property out.
    #[must_use]
    pub const fn without(self, property: Property) -> Self {
        self.edit(property, Edit::Remove)
    }

    /// Sets the MIME type.
    #[must_use]
    pub const fn content_type(self, text: ShortStr<'a>) -> Self {
        self.edit(Property::ContentType, Edit::ShortStr(text))
    }

    /// Sets the MIME encoding.
    #[must_use]
    pub const fn content_encoding(self, text: ShortStr<'a>) -> Self {
        self.edit(Property::ContentEncoding, Edit::ShortStr(text))
    }

    /// Sets the headers as a whole; [`TableBuf`](super::TableBuf) changes one of them.
    #[must_use]
    pub const fn headers(self, table: Table<'a>) -> Self {
        self.edit(Property::Headers, Edit::Table(table))
    }

    /// Sets the delivery mode: 1 for transient, 2 for persistent.
    #[must_use]
    pub const fn delivery_mode(self, mode: u8) -> Self {
        self.edit(Property::DeliveryMode, Edit::Octet(mode))
    }

    /// Sets the priority.
    #[must_use]
    pub const fn priority(self, priority: u8) -> Self {
        self.edit(Property::Priority, Edit::Octet(priority))
    }

    /// Sets what an answer belongs to.
    #[must_use]
    pub const fn correlation_id(self, text: ShortStr<'a>) -> Self {
        self.edit(Property::CorrelationId, Edit::ShortStr(text))
    }

    /// Sets where an answer goes.
    #[must_use]
    pub const fn reply_to(self, text: ShortStr<'a>) -> Self {
        self.edit(Property::ReplyTo, Edit::ShortStr(text))
    }

    /// Sets how long the message lives, in milliseconds as text.
    #[must_use]
    pub const fn expiration(self, text: ShortStr<'a>) -> Self {
        self.edit(Property::Expiration, Edit::ShortStr(text))
    }

    /// Sets the application's name for the message.
    #[must_use]
    pub const fn message_id(self, text: ShortStr<'a>) -> Self {
        self.edit(Property::MessageId, Edit::ShortStr(text))
    }

    /// Sets when it was sent.
    #[must_use]
    pub const fn timestamp(self, seconds: u64) -> Self {
        self.edit(Property::Timestamp, Edit::Timestamp(seconds))
    }

    /// Sets the application's kind of message, the property `type`.
    #[must_use]
    pub const fn kind(self, text: ShortStr<'a>) -> Self {
        self.edit(Property::Type, Edit::ShortStr(text))
    }

    /// Sets who sent it.
    #[must_use]
    pub const fn user_id(self, text: ShortStr<'a>) -> Self {
        self.edit(Property::UserId, Edit::ShortStr(text))
    }

    /// Sets what sent it.
    #[must_use]
    pub const fn app_id(self, text: ShortStr<'a>) -> Self {
        self.edit(Property::AppId, Edit::ShortStr(text))
    }

    /// Sets the property that nobody uses.
    #[must_use]
    pub const fn cluster_id(self, text: ShortStr<'a>) -> Self {
        self.edit(Property::ClusterId, Edit::ShortStr(text))
    }

    const fn edit(mut self, property: Property, edit: Edit<'a>) -> Self {
        self.edits[property as usize] = edit;
        self
    }

    /// Appends the flags and the properties.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut flags = 0;
        for property in Property::ALL {
            let present = match self.edits[property as usize] {
                Edit::Keep => self.base.has(property),
                Edit::Remove => false,
                Edit::Octet(_) | Edit::Timestamp(_) | Edit::ShortStr(_) | Edit::Table(_) => true,
            };
            flags |= if present { property.flag() } else { 0 };
        }
        out.extend_from_slice(&flags.to_be_bytes());
        for property in Property::ALL {
            match self.edits[property as usize] {
                Edit::Keep => out.extend_from_slice(self.base.raw_of(property).unwrap_or_default()),
                Edit::Remove => {}
                Edit::Octet(octet) => out.push(octet),
                Edit::Timestamp(seconds) => out.extend_from_slice(&seconds.to_be_bytes()),
                Edit::ShortStr(text) => text.put(out),
                Edit::Table(table) => put_long_bytes(out, table.as_raw()),
            }
        }
    }

    /// The flags and the properties in a buffer of their own.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.base.as_raw().len() + 64);
        self.encode(&mut out);
        out
    }
}

impl Default for PropertiesBuilder<'_> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::table_buf::TableBuf;
    use super::super::value::Value;
    use super::*;

    const TEXT: ShortStr<'static> = ShortStr::from_static("text");

    fn all() -> Vec<u8> {
        let mut headers = TableBuf::new();
        headers.put(ShortStr::from_static("k"), Value::U16(1));
        PropertiesBuilder::new()
            .content_type(TEXT)
            .content_encoding(TEXT)
            .headers(headers.as_table())
            .delivery_mode(2)
            .priority(9)
            .correlation_id(TEXT)
            .reply_to(TEXT)
            .expiration(ShortStr::from_static("60000"))
            .message_id(TEXT)
            .timestamp(1_700_000_000)
            .kind(TEXT)
            .user_id(ShortStr::from_static("guest"))
            .app_id(TEXT)
            .cluster_id(ShortStr::EMPTY)
            .to_vec()
    }

    #[test]
    fn all_fourteen_are_written_and_read() {
        let raw = all();
        let properties = Properties::parse(&raw).unwrap();
        assert!(Property::ALL.iter().all(|&property| properties.has(property)));
        for text in [
            properties.content_type(),
            properties.content_encoding(),
            properties.correlation_id(),
            properties.reply_to(),
            properties.message_id(),
            properties.kind(),
            properties.app_id(),
        ] {
            assert_eq!(text, Some(TEXT));
        }
        assert_eq!(properties.headers().unwrap().get("k"), Some(Value::U16(1)));
        assert_eq!((properties.delivery_mode(), properties.priority()), (Some(2), Some(9)));
        assert_eq!(properties.expiration().unwrap(), "60000");
        assert_eq!(properties.timestamp(), Some(1_700_000_000));
        assert_eq!(properties.user_id().unwrap(), "guest");
        assert_eq!(properties.cluster_id(), Some(ShortStr::EMPTY));
    }

    #[test]
    fn copying_changes_nothing() {
        let raw = all();
        assert_eq!(PropertiesBuilder::from_base(Properties::parse(&raw).unwrap()).to_vec(), raw);
    }

    #[test]
    fn a_dead_letter_loses_its_expiration_gains_a_header_and_keeps_the_rest_to_the_byte() {
        let raw = all();
        let before = Properties::parse(&raw).unwrap();
        let mut headers = TableBuf::from(before.headers().unwrap());
        headers.set(ShortStr::from_static("x-first-death-reason"), "rejected");

        let written = PropertiesBuilder::from_base(before)
            .without(Property::Expiration)
            .headers(headers.as_table())
            .to_vec();

        let after = Properties::parse(&written).unwrap();
        assert_eq!(after.expiration(), None);
        assert_eq!(after.headers().unwrap().get("x-first-death-reason").unwrap().as_str(), Some("rejected"));
        for property in Property::ALL {
            if !matches!(property, Property::Expiration | Property::Headers) {
                assert_eq!(after.raw_of(property), before.raw_of(property), "{property}");
            }
        }
    }

    #[test]
    fn headers_are_added_where_there_were_none() {
        let before = Properties::parse(&[0x18, 0, 2, 5]).unwrap();
        let written = PropertiesBuilder::from_base(before).headers(Table::EMPTY).to_vec();
        assert_eq!(written, [0x38, 0, 0, 0, 0, 0, 2, 5]);
    }
}
