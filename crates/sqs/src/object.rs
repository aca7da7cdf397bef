//! JSON objects, and nothing else: left to itself, serde would take a list for the fields of a structure in their order.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::text::Text;

/// Something that was an object.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_map(Reader(PhantomData)).map(Object)
    }
}

/// A list of objects, if there is one.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    let objects: Option<Vec<Object<T>>> = Deserialize::deserialize(deserializer)?;
    Ok(objects.map(|objects| objects.into_iter().map(|object| object.0).collect()))
}

/// Objects by name, if there are any.
pub(crate) fn map<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<Text<'de>, T>>, D::Error> {
    let objects: Option<BTreeMap<Text<'de>, Object<T>>> = Deserialize::deserialize(deserializer)?;
    Ok(objects.map(|objects| objects.into_iter().map(|(name, object)| (name, object.0)).collect()))
}
