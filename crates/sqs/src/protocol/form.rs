//! The parameters of a Query request: names with dots and numbers, which stand for lists and maps
//! (`Attribute.1.Name`, `Attribute.1.Value`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use percent_encoding::percent_decode;

use crate::fault::{Fault, FaultCode};
use crate::limits::VALUES_MAX;
use crate::request::TextMap;
use crate::text::Text;

/// All parameters of a request.
#[derive(Debug, Default)]
pub(crate) struct Form<'a>(BTreeMap<Cow<'a, str>, Cow<'a, str>>);

/// Those below one name.
#[derive(Clone, Debug)]
pub(crate) struct Part<'f, 'a> {
    form: &'f Form<'a>,
    prefix: String,
}

impl<'a> Form<'a> {
    /// The parameters in the query of an address and in a body.
    pub(crate) fn parse(query: &'a str, body: &'a [u8]) -> Result<Self, Fault> {
        let pairs = query.as_bytes().split(|byte| *byte == b'&').chain(body.split(|byte| *byte == b'&'));
        let mut form = Self::default();
        for (index, pair) in pairs.filter(|pair| !pair.is_empty()).enumerate() {
            if index == VALUES_MAX {
                let message = format!("A request has at most {VALUES_MAX} parameters.");
                return Err(Fault::new(FaultCode::MalformedQueryString, message));
            }
            let equals = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
            let (name, value) = (&pair[..equals], pair.get(equals + 1..).unwrap_or_default());
            form.0.insert(decoded(name)?, decoded(value)?);
        }
        Ok(form)
    }

    /// One parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| &**value)
    }

    /// All of them.
    pub(crate) fn whole(&self) -> Part<'_, 'a> {
        Part { form: self, prefix: String::new() }
    }
}

impl<'f, 'a> Part<'f, 'a> {
    /// A text.
    pub(crate) fn text(&self, name: &str) -> Option<Text<'a>> {
        self.form.0.get(&*self.name(name)).map(|value| Text(value.clone()))
    }

    /// A whole number.
    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, Fault> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.parse().map_err(|_| Fault::value(name, &text, "Must be an integer."))?;
        Ok(Some(number))
    }

    /// The texts of a list, in order; `None` if there is none of them. A list of one may come without its number.
    pub(crate) fn list(&self, name: &str) -> Option<Vec<Text<'a>>> {
        let items = self.items(name);
        let texts = items.iter().filter_map(|item| self.form.0.get(&*item.prefix));
        let mut texts: Vec<Text<'a>> = texts.map(|value| Text(value.clone())).collect();
        if texts.is_empty() {
            texts.extend(self.text(name));
        }
        (!texts.is_empty()).then_some(texts)
    }

    /// Names and values; `None` if there is none of them.
    pub(crate) fn map(&self, name: &str, key: &str, value: &str) -> Option<TextMap<'a>> {
        let items = self.items(name);
        let pairs =
            items.iter().filter_map(|item| Some((item.text(key)?, item.text(value).unwrap_or_default())));
        let map: TextMap<'a> = pairs.collect();
        (!map.is_empty()).then_some(map)
    }

    /// The items of a list, in the order of their numbers. Without any number, what is there is the one item.
    pub(crate) fn items(&self, name: &str) -> Vec<Part<'f, 'a>> {
        let prefix = self.name(name) + ".";
        let below = self.form.0.range::<str, _>((Bound::Included(&*prefix), Bound::Unbounded));
        let mut below = below.take_while(|(key, _)| key.starts_with(&prefix)).peekable();
        let is_empty = below.peek().is_none();
        let numbers: BTreeSet<u32> =
            below.filter_map(|(key, _)| key[prefix.len()..].split('.').next()?.parse().ok()).collect();
        if numbers.is_empty() && !is_empty {
            return vec![self.part(name)];
        }
        let part = |number: u32| Part { form: self.form, prefix: format!("{prefix}{number}") };
        numbers.into_iter().map(part).collect()
    }

    /// What is below one name.
    pub(crate) fn part(&self, name: &str) -> Part<'f, 'a> {
        Part { form: self.form, prefix: self.name(name) }
    }

    fn name(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}.{name}", self.prefix) }
    }
}

/// A part of a form as text. Bytes that are no text are refused: replaced, they would be another message.
fn decoded(bytes: &[u8]) -> Result<Cow<'_, str>, Fault> {
    let bytes = if bytes.contains(&b'+') {
        let spaced: Vec<u8> = bytes.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
        Cow::Owned(percent_decode(&spaced).collect())
    } else {
        Cow::from(percent_decode(bytes))
    };
    let malformed = || Fault::new(FaultCode::MalformedQueryString, "The parameters are not UTF-8.");
    match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| malformed()),
        Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_maps_are_read_in_the_order_of_their_numbers() {
        let body = b"A.10=j&A.2=b&A.1=a%20+c&A.x=no&M.1.Name=k&M.1.Value=v&M.2.Name=e&M.3.Value=lost&A=whole";
        let form = Form::parse("Action=Go&N=5", body).unwrap();
        let whole = form.whole();
        let texts: Vec<String> = whole.list("A").unwrap().iter().map(|text| text.to_string()).collect();
        assert_eq!(texts, ["a  c", "b", "j"]);
        let map = whole.map("M", "Name", "Value").unwrap();
        assert_eq!(map.len(), 2);
        assert_eq!(map.get(&Text::from("k")), Some(&Text::from("v")));
        assert_eq!(whole.integer("N"), Ok(Some(5)));
        assert!(whole.integer("Action").is_err());
        assert_eq!(whole.list("Z"), None);
    }

    #[test]
    fn a_list_of_one_may_come_without_its_number() {
        let form = Form::parse("A=one&M.Name=k&M.Value=v&B.1=b&B=no&E.Id=e", b"").unwrap();
        let whole = form.whole();
        assert_eq!(whole.list("A"), Some(vec![Text::from("one")]));
        assert_eq!(whole.list("B"), Some(vec![Text::from("b")]));
        let map = whole.map("M", "Name", "Value").unwrap();
        assert_eq!(map.get(&Text::from("k")), Some(&Text::from("v")));
        assert_eq!(whole.items("E")[0].text("Id"), Some(Text::from("e")));
        assert_eq!((whole.list("M"), whole.items("Z").len()), (None, 0));
    }

    #[test]
    fn more_parameters_than_anybody_needs_are_refused() {
        assert!(Form::parse("", "a&".repeat(VALUES_MAX).as_bytes()).is_ok());
        assert!(Form::parse("b", "a&".repeat(VALUES_MAX).as_bytes()).is_err());
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        for body in [&b"a=%ff"[..], b"a=\xff", b"%c3=1", b"a=+%ff"] {
            assert!(Form::parse("", body).is_err());
        }
        assert!(Form::parse("&&=&a&b==", b"").is_ok());
    }
}
