//! Basic properties: two octets of flags, then the properties that they announce, in a fixed order. The bytes
//! stay as they came; this finds where each property begins. [`PropertiesBuilder`](super::PropertiesBuilder)
//! writes them anew.

use std::fmt;

use super::error::PropertiesError;
use super::read::Reader;
use super::short_str::ShortStr;
use super::table::Table;

/// One of the fourteen properties, in their order on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Property {
    /// MIME type of the body.
    ContentType,
    /// MIME encoding of the body.
    ContentEncoding,
    /// The application's own table, which routing may look at.
    Headers,
    /// 1 for transient, 2 for persistent.
    DeliveryMode,
    /// 0 to 255.
    Priority,
    /// What an answer belongs to.
    CorrelationId,
    /// Where an answer goes.
    ReplyTo,
    /// How long the message lives, in milliseconds as text.
    Expiration,
    /// The application's name for the message.
    MessageId,
    /// When it was sent, in seconds.
    Timestamp,
    /// The application's kind of message.
    Type,
    /// Who sent it.
    UserId,
    /// What sent it.
    AppId,
    /// Unused by anyone, carried nevertheless.
    ClusterId,
}

#[derive(Clone, Copy)]
enum Kind {
    Octet,
    Timestamp,
    ShortStr,
    Table,
}

impl Property {
    /// How many there are.
    pub(crate) const COUNT: usize = 14;

    /// All of them, in their order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::ContentType,
        Self::ContentEncoding,
        Self::Headers,
        Self::DeliveryMode,
        Self::Priority,
        Self::CorrelationId,
        Self::ReplyTo,
        Self::Expiration,
        Self::MessageId,
        Self::Timestamp,
        Self::Type,
        Self::UserId,
        Self::AppId,
        Self::ClusterId,
    ];

    /// The bit that announces it: the first property has the highest.
    #[inline]
    pub(crate) const fn flag(self) -> u16 {
        0x8000 >> self as u8
    }

    const fn kind(self) -> Kind {
        match self {
            Self::DeliveryMode | Self::Priority => Kind::Octet,
            Self::Timestamp => Kind::Timestamp,
            Self::Headers => Kind::Table,
            Self::ContentType
            | Self::ContentEncoding
            | Self::CorrelationId
            | Self::ReplyTo
            | Self::Expiration
            | Self::MessageId
            | Self::Type
            | Self::UserId
            | Self::AppId
            | Self::ClusterId => Kind::ShortStr,
        }
    }

    /// The specification's name for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ContentType => "content-type",
            Self::ContentEncoding => "content-encoding",
            Self::Headers => "headers",
            Self::DeliveryMode => "delivery-mode",
            Self::Priority => "priority",
            Self::CorrelationId => "correlation-id",
            Self::ReplyTo => "reply-to",
            Self::Expiration => "expiration",
            Self::MessageId => "message-id",
            Self::Timestamp => "timestamp",
            Self::Type => "type",
            Self::UserId => "user-id",
            Self::AppId => "app-id",
            Self::ClusterId => "cluster-id",
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The flags that announce a property. RabbitMQ ignores the two lowest, although the specification lets the
/// last one announce more flags; no client sets them.
const FLAGS: u16 = !0b11;

/// Properties, borrowed from a content header. They were checked in full when they were parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Properties<'a> {
    raw: &'a [u8],
    flags: u16,
    /// Where each announced property begins in `raw`; 0 for the others.
    starts: [u32; Property::COUNT],
}

impl<'a> Properties<'a> {
    /// No properties.
    pub const EMPTY: Properties<'static> =
        Properties { raw: &[0, 0], flags: 0, starts: [0; Property::COUNT] };

    /// Checks `raw`, the part of a content header after the body size, the headers within it included.
    ///
    /// # Errors
    /// If it is not exactly what its flags announce.
    #[inline]
    pub fn parse(raw: &'a [u8]) -> Result<Self, PropertiesError> {
        let mut reader = Reader::new(raw);
        let flags = reader.u16().ok_or(PropertiesError::NoFlags)? & FLAGS;
        let mut starts = [0; Property::COUNT];
        let mut left = flags;
        while left != 0 {
            let property = Property::ALL[left.leading_zeros() as usize];
            left &= !property.flag();
            starts[property as usize] = (raw.len() - reader.rest().len()) as u32;
            step_over(&mut reader, property)?;
        }
        match reader.rest().len() {
            0 => Ok(Self { raw, flags, starts }),
            bytes => Err(PropertiesError::Trailing { bytes }),
        }
    }

    /// The bytes as they came, flags included.
    #[inline]
    #[must_use]
    pub const fn as_raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Whether the message has this property.
    #[inline]
    #[must_use]
    pub const fn has(&self, property: Property) -> bool {
        self.flags & property.flag() != 0
    }

    /// MIME type of the body.
    #[must_use]
    pub fn content_type(&self) -> Option<ShortStr<'a>> {
        self.short_str(Property::ContentType)
    }

    /// MIME encoding of the body.
    #[must_use]
    pub fn content_encoding(&self) -> Option<ShortStr<'a>> {
        self.short_str(Property::ContentEncoding)
    }

    /// The application's own table.
    #[inline]
    #[must_use]
    pub fn headers(&self) -> Option<Table<'a>> {
        self.reader_at(Property::Headers)?.long_bytes().map(Table::unchecked)
    }

    /// 1 for transient, 2 for persistent.
    #[inline]
    #[must_use]
    pub fn delivery_mode(&self) -> Option<u8> {
        self.reader_at(Property::DeliveryMode)?.u8()
    }

    /// The priority.
    #[inline]
    #[must_use]
    pub fn priority(&self) -> Option<u8> {
        self.reader_at(Property::Priority)?.u8()
    }

    /// What an answer belongs to.
    #[must_use]
    pub fn correlation_id(&self) -> Option<ShortStr<'a>> {
        self.short_str(Property::CorrelationId)
    }

    /// Where an answer goes.
    #[must_use]
    pub fn reply_to(&self) -> Option<ShortStr<'a>> {
        self.short_str(Property::ReplyTo)
    }

    /// How long the message lives, in milliseconds as text.
    #[must_use]
    pub fn expiration(&self) -> Option<ShortStr<'a>> {
        self.short_str(Property::Expiration)
    }

    /// The application's name for the message.
    #[must_use]
    pub fn message_id(&self) -> Option<ShortStr<'a>> {
        self.short_str(Property::MessageId)
    }

    /// When it was sent, in seconds.
    #[must_use]
    pub fn timestamp(&self) -> Option<u64> {
        self.reader_at(Property::Timestamp)?.u64()
    }

    /// The application's kind of message, the property `type`.
    #[must_use]
    pub fn kind(&self) -> Option<ShortStr<'a>> {
        self.short_str(Property::Type)
    }

    /// Who sent it.
    #[must_use]
    pub fn user_id(&self) -> Option<ShortStr<'a>> {
        self.short_str(Property::UserId)
    }

    /// What sent it.
    #[must_use]
    pub fn app_id(&self) -> Option<ShortStr<'a>> {
        self.short_str(Property::AppId)
    }

    /// A property that nobody uses.
    #[must_use]
    pub fn cluster_id(&self) -> Option<ShortStr<'a>> {
        self.short_str(Property::ClusterId)
    }

    /// The bytes of one property as they came, length included.
    pub(crate) fn raw_of(&self, property: Property) -> Option<&'a [u8]> {
        let mut reader = self.reader_at(property)?;
        let from = reader.rest();
        step_over(&mut reader, property).ok()?;
        from.get(..from.len() - reader.rest().len())
    }

    #[inline]
    fn short_str(&self, property: Property) -> Option<ShortStr<'a>> {
        self.reader_at(property)?.short_str()
    }

    #[inline]
    fn reader_at(&self, property: Property) -> Option<Reader<'a>> {
        if !self.has(property) {
            return None;
        }
        self.raw.get(self.starts[property as usize] as usize..).map(Reader::new)
    }
}

/// Steps over one property, and checks it.
#[inline]
fn step_over(reader: &mut Reader<'_>, property: Property) -> Result<(), PropertiesError> {
    let stepped = match property.kind() {
        Kind::Octet => reader.bytes(1),
        Kind::Timestamp => reader.bytes(8),
        Kind::ShortStr => reader.short_str().map(ShortStr::as_bytes),
        Kind::Table => {
            let inside = reader.long_bytes().ok_or(PropertiesError::Short { property })?;
            Table::parse(inside).map_err(PropertiesError::Headers)?;
            return Ok(());
        }
    };
    stepped.map(drop).ok_or(PropertiesError::Short { property })
}

impl fmt::Debug for Properties<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for property in Property::ALL.into_iter().filter(|&property| self.has(property)) {
            map.key(&property.name());
            match property.kind() {
                Kind::Octet => map.value(&self.reader_at(property).and_then(|mut reader| reader.u8())),
                Kind::Timestamp => map.value(&self.timestamp()),
                Kind::ShortStr => map.value(&self.short_str(property)),
                Kind::Table => map.value(&self.headers()),
            };
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flags_mean_no_properties() {
        let properties = Properties::parse(&[0, 0]).unwrap();
        assert_eq!(properties, Properties::EMPTY);
        assert!(Property::ALL.iter().all(|&property| !properties.has(property)));
    }

    #[test]
    fn a_property_is_found_behind_others() {
        let raw = b"\xb8\x00\x04text\x00\x00\x00\x05\x01kt\x01V\x02\x09";
        assert_eq!(Properties::parse(raw), Err(PropertiesError::Headers(crate::codec::TableError::Short)));

        let raw = b"\xb8\x00\x04text\x00\x00\x00\x04\x01kt\x01\x02\x09";
        let properties = Properties::parse(raw).unwrap();
        assert_eq!(properties.content_type(), ShortStr::new(b"text").ok());
        assert_eq!(properties.headers().unwrap().get("k").unwrap().as_bool(), Some(true));
        assert_eq!(properties.delivery_mode(), Some(2));
        assert_eq!(properties.priority(), Some(9));
        assert_eq!(properties.expiration(), None);
        assert_eq!(properties.as_raw(), raw);
    }

    #[test]
    fn cut_properties_name_the_one_that_is_cut() {
        assert_eq!(Properties::parse(&[]), Err(PropertiesError::NoFlags));
        assert_eq!(Properties::parse(&[0]), Err(PropertiesError::NoFlags));
        let cut = |property| Err(PropertiesError::Short { property });
        assert_eq!(Properties::parse(&[0x80, 0]), cut(Property::ContentType));
        assert_eq!(Properties::parse(&[0x20, 0, 0, 0, 0, 9]), cut(Property::Headers));
        assert_eq!(Properties::parse(&[0x10, 0]), cut(Property::DeliveryMode));
        assert_eq!(Properties::parse(&[0x00, 0x40, 1, 2, 3]), cut(Property::Timestamp));
    }

    #[test]
    fn more_than_the_flags_announce_is_refused() {
        assert_eq!(Properties::parse(&[0x10, 0, 2, 7]), Err(PropertiesError::Trailing { bytes: 1 }));
        assert_eq!(Properties::parse(&[0, 0, 0]), Err(PropertiesError::Trailing { bytes: 1 }));
    }

    #[test]
    fn the_two_lowest_flags_are_ignored_as_rabbitmq_does() {
        let properties = Properties::parse(&[0x10, 3, 2]).unwrap();
        assert_eq!(properties.delivery_mode(), Some(2));
    }
}
