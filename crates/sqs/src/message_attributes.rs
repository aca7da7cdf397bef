//! Attributes of messages: text, numbers and bytes with a type that may carry a label, as in `Number.price`.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use md5::{Digest, Md5};
use nexo_broker::HeaderValue;

use crate::fault::{Fault, FaultCode};
use crate::ids::hex;
use crate::limits::ATTRIBUTE_NAME_MAX;
use crate::protocol::xml::has_forbidden;
use crate::request::AttributeValue;
use crate::response;
use crate::text::Text;

/// One attribute, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attribute {
    /// `String`, `Number` or `Binary`, perhaps with a label.
    pub(crate) data_type: String,
    pub(crate) data: Data,
}

/// What an attribute says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Text(String),
    Binary(Bytes),
}

/// Attributes by name, in the order in which their digest is made.
pub(crate) type Attributes = BTreeMap<String, Attribute>;

/// Checks the attributes of a message.
pub(crate) fn parse(
    given: Option<BTreeMap<Text<'_>, AttributeValue<'_>>>,
    max: usize,
) -> Result<Attributes, Fault> {
    let given = given.unwrap_or_default();
    if given.len() > max {
        let count = given.len();
        return Err(Fault::invalid(format!(
            "Number of message attributes [{count}] exceeds the allowed maximum [{max}]."
        )));
    }
    given
        .into_iter()
        .map(|(name, value)| {
            check_name(&name)?;
            Ok((name.to_string(), Attribute::parse(&name, &value)?))
        })
        .collect()
}

/// What attributes count for in the size of a message: names, types and values.
pub(crate) fn bytes_of(given: Option<&BTreeMap<Text<'_>, AttributeValue<'_>>>) -> u64 {
    let text = |text: &Option<Text<'_>>| text.as_ref().map_or(0, |text| text.len());
    // Four characters of base64 are three bytes, less those that only fill up.
    let binary = |text: &str| {
        (text.len() / 4 * 3)
            .saturating_sub(text.bytes().rev().take_while(|byte| *byte == b'=').take(2).count())
    };
    let bytes = given.into_iter().flatten().map(|(name, value)| {
        let value_bytes = text(&value.string_value) + value.binary_value.as_deref().map_or(0, binary);
        name.len() + text(&value.data_type) + value_bytes
    });
    bytes.sum::<usize>() as u64
}

fn check_name(name: &str) -> Result<(), Fault> {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let lower = name.to_ascii_lowercase();
    let dots = name.starts_with('.') || name.ends_with('.') || name.contains("..");
    let fault = if name.is_empty() {
        "The request must contain non-empty message (user) attribute names."
    } else if name.len() > ATTRIBUTE_NAME_MAX {
        "Message (user) attribute names must be shorter than 256 Bytes"
    } else if !name.chars().all(allowed) {
        // The words, and the space at the end, are AWS's.
        "Message (user) attributes name can only contain upper and lower score characters, digits, periods, hyphens \
         and underscores. "
    } else if dots || lower.starts_with("aws.") || lower.starts_with("amazon.") {
        "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved for \
         internal use. Additionally, they cannot start or end with '.'."
    } else {
        return Ok(());
    };
    Err(Fault::invalid(fault))
}

impl Attribute {
    /// Checks one attribute of a request.
    pub(crate) fn parse(name: &str, value: &AttributeValue<'_>) -> Result<Self, Fault> {
        let invalid = |fact: String| Fault::invalid(format!("Message (user) attribute '{name}' {fact}"));
        let lists = [&value.string_list_values, &value.binary_list_values];
        if lists.into_iter().flatten().any(|list| !list.is_empty()) {
            return Err(Fault::new(
                FaultCode::UnsupportedOperation,
                "Message attribute list values in SendMessage operation are not supported.",
            ));
        }
        let data_type = value.data_type.as_deref().unwrap_or_default();
        if data_type.is_empty() {
            return Err(invalid("must contain a non-empty attribute type.".into()));
        }
        if data_type.len() > ATTRIBUTE_NAME_MAX {
            return Err(Fault::invalid("Message (user) attribute types must be shorter than 256 Bytes"));
        }
        let empty = || invalid(format!("must contain a non-empty value of type '{data_type}'."));
        let data = match base_type(data_type) {
            Some(base @ (BaseType::Text | BaseType::Number)) => {
                if value.binary_value.is_some() {
                    return Err(empty());
                }
                let text = value.string_value.as_deref().filter(|text| !text.is_empty()).ok_or_else(empty)?;
                if has_forbidden(text) {
                    return Err(invalid("contains characters that are not allowed.".into()));
                }
                if base == BaseType::Number && !is_number(text) {
                    return Err(Fault::invalid(format!(
                        "Can't cast the value of message (user) attribute '{name}' to a number."
                    )));
                }
                Data::Text(text.to_owned())
            }
            Some(BaseType::Binary) => {
                let text = value.binary_value.as_deref().filter(|text| !text.is_empty()).ok_or_else(empty)?;
                let bytes = BASE64_STANDARD
                    .decode(text)
                    .map_err(|_| invalid("has a binary value that is not base64.".into()))?;
                Data::Binary(bytes.into())
            }
            None => {
                return Err(Fault::invalid(format!(
                    "The type of message (user) attribute '{name}' is invalid. You must use only the following \
                     supported type prefixes: Binary, Number, String."
                )));
            }
        };
        Ok(Self { data_type: data_type.to_owned(), data })
    }

    /// The header that carries it, and what must be remembered of its type, if that does not follow from the header.
    pub(crate) fn to_header(&self) -> (HeaderValue, Option<&str>) {
        let (header, plain) = match (base_type(&self.data_type), &self.data) {
            (Some(BaseType::Number), Data::Text(text)) => (HeaderValue::Number(text.clone()), "Number"),
            (_, Data::Text(text)) => (HeaderValue::Text(text.clone()), "String"),
            (_, Data::Binary(bytes)) => (HeaderValue::Bytes(bytes.clone()), "Binary"),
        };
        (header, (self.data_type != plain).then_some(&*self.data_type))
    }

    /// The attribute that a header carries.
    pub(crate) fn from_header(value: HeaderValue, data_type: Option<String>) -> Self {
        let (plain, data) = match value {
            // A list or a table of AMQP.
            HeaderValue::Text(text) | HeaderValue::Json(text) => ("String", Data::Text(text)),
            HeaderValue::Number(digits) => ("Number", Data::Text(digits)),
            HeaderValue::Bytes(bytes) => ("Binary", Data::Binary(bytes)),
        };
        Self { data_type: data_type.unwrap_or_else(|| plain.to_owned()), data }
    }

    /// The attribute as clients see it.
    pub(crate) fn into_response(self) -> response::MessageAttribute {
        let (string_value, binary_value) = match self.data {
            Data::Text(text) => (Some(text), None),
            Data::Binary(bytes) => (None, Some(BASE64_STANDARD.encode(bytes))),
        };
        response::MessageAttribute { string_value, binary_value, data_type: self.data_type }
    }
}

/// The digest by which clients check that attributes arrived as they were sent; `None` if there are none.
pub(crate) fn md5<'a>(attributes: impl IntoIterator<Item = (&'a String, &'a Attribute)>) -> Option<String> {
    let mut hash = Md5::new();
    let mut any = false;
    for (name, attribute) in attributes {
        any = true;
        put(&mut hash, name.as_bytes());
        put(&mut hash, attribute.data_type.as_bytes());
        match &attribute.data {
            Data::Text(text) => {
                hash.update([1]);
                put(&mut hash, text.as_bytes());
            }
            Data::Binary(bytes) => {
                hash.update([2]);
                put(&mut hash, bytes);
            }
        }
    }
    any.then(|| hex(&hash.finalize()))
}

fn put(hash: &mut Md5, bytes: &[u8]) {
    // Everything that is hashed has come in a request, which is shorter than that.
    hash.update((bytes.len() as u32).to_be_bytes());
    hash.update(bytes);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BaseType {
    Text,
    Number,
    Binary,
}

fn base_type(data_type: &str) -> Option<BaseType> {
    match data_type.split('.').next()? {
        "String" => Some(BaseType::Text),
        "Number" => Some(BaseType::Number),
        "Binary" => Some(BaseType::Binary),
        _ => None,
    }
}

/// Digits with a sign, a point and an exponent, each or not.
fn is_number(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
    text.chars().all(plain) && text.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(data_type: &'static str, value: &'static str) -> AttributeValue<'static> {
        AttributeValue {
            data_type: Some(data_type.into()),
            string_value: Some(value.into()),
            ..AttributeValue::default()
        }
    }

    #[test]
    fn the_digest_is_the_one_that_aws_documents_its_clients_to_make() {
        let one = Attribute::parse("a", &text("String", "b")).unwrap();
        // From the definition: lengths and bytes of name, type and value, with a byte for the kind of value.
        let bytes = b"\0\0\0\x01a\0\0\0\x06String\x01\0\0\0\x01b";
        assert_eq!(md5([(&"a".to_owned(), &one)]), Some(hex(&Md5::digest(bytes))));
        assert_eq!(md5([]), None);
    }

    #[test]
    fn attributes_count_with_their_names_and_types_and_the_bytes_that_they_stand_for() {
        let binary = |value: &'static str| AttributeValue {
            data_type: Some("Binary".into()),
            binary_value: Some(value.into()),
            ..AttributeValue::default()
        };
        let count = |value| bytes_of(Some(&BTreeMap::from([(Text::from("name"), value)])));
        assert_eq!(count(text("String", "value")), 4 + 6 + 5);
        for (value, bytes) in [("AAAA", 3), ("AAA=", 2), ("AA==", 1), ("", 0), ("====", 1), ("=", 0)] {
            assert_eq!(count(binary(value)), 4 + 6 + bytes, "{value}");
        }
        assert_eq!(bytes_of(None), 0);
    }

    #[test]
    fn an_attribute_survives_being_a_header() {
        for value in [
            text("String", "x"),
            text("String.url", "x"),
            text("Number", "1.50"),
            text("Number.int", "-7"),
            AttributeValue {
                data_type: Some("Binary.png".into()),
                binary_value: Some("AAH/".into()),
                ..AttributeValue::default()
            },
        ] {
            let attribute = Attribute::parse("a", &value).unwrap();
            let (header, label) = attribute.to_header();
            assert_eq!(Attribute::from_header(header, label.map(str::to_owned)), attribute);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |value: &AttributeValue<'_>| Attribute::parse("a", value).unwrap_err().code;
        let invalid = FaultCode::InvalidParameterValue;
        for value in [
            AttributeValue::default(),
            text("", "x"),
            text("Strange", "x"),
            text("String", ""),
            text("Number", "x"),
            text("Number", "inf"),
            text("Binary", "x"),
            text("String", "\u{1}"),
            AttributeValue {
                binary_value: Some("%".into()),
                data_type: Some("Binary".into()),
                ..Default::default()
            },
        ] {
            assert_eq!(refused(&value), invalid, "{value:?}");
        }
        let list = AttributeValue { string_list_values: Some(vec!["x".into()]), ..text("String", "x") };
        assert_eq!(refused(&list), FaultCode::UnsupportedOperation);
        for name in ["", "a b", ".a", "a.", "a..b", "AWS.x", "amazon.x", "☃", "a\u{ffff}", &"x".repeat(257)]
        {
            assert_eq!(check_name(name).unwrap_err().code, invalid, "{name}");
        }
        for name in ["Some_name-1.2", "größe", "名前"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
    }
}
