//! Random fields and tables, with a plain encoder of their own to hold the codec against.

use proptest::collection::vec;
use proptest::prelude::*;

use super::spec::{Kind, METHODS, MethodSpec};

/// A table value that owns its parts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Owned {
    Bool(bool),
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    F32(f32),
    F64(f64),
    Decimal(u8, u32),
    Timestamp(u64),
    LongStr(Vec<u8>),
    Bytes(Vec<u8>),
    Array(Vec<Owned>),
    Table(Vec<(String, Owned)>),
    Void,
}

impl Owned {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let mut fixed = |letter: u8, bytes: &[u8]| {
            out.push(letter);
            out.extend(bytes);
        };
        match self {
            Self::Bool(truth) => fixed(b't', &[u8::from(*truth)]),
            Self::I8(n) => fixed(b'b', &n.to_be_bytes()),
            Self::U8(n) => fixed(b'B', &n.to_be_bytes()),
            Self::I16(n) => fixed(b's', &n.to_be_bytes()),
            Self::U16(n) => fixed(b'u', &n.to_be_bytes()),
            Self::I32(n) => fixed(b'I', &n.to_be_bytes()),
            Self::U32(n) => fixed(b'i', &n.to_be_bytes()),
            Self::I64(n) => fixed(b'l', &n.to_be_bytes()),
            Self::F32(n) => fixed(b'f', &n.to_be_bytes()),
            Self::F64(n) => fixed(b'd', &n.to_be_bytes()),
            Self::Decimal(scale, digits) => fixed(b'D', &[&[*scale][..], &digits.to_be_bytes()].concat()),
            Self::Timestamp(n) => fixed(b'T', &n.to_be_bytes()),
            Self::LongStr(bytes) => fixed(b'S', &long(bytes)),
            Self::Bytes(bytes) => fixed(b'x', &long(bytes)),
            Self::Array(values) => {
                let mut inside = Vec::new();
                values.iter().for_each(|value| value.put(&mut inside));
                fixed(b'A', &long(&inside));
            }
            Self::Table(entries) => fixed(b'F', &long(&table_raw(entries))),
            Self::Void => fixed(b'V', &[]),
        }
    }
}

fn long(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u32).to_be_bytes().to_vec();
    out.extend(bytes);
    out
}

/// The inside of a table.
pub(crate) fn table_raw(entries: &[(String, Owned)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in entries {
        out.push(name.len() as u8);
        out.extend(name.as_bytes());
        value.put(&mut out);
    }
    out
}

pub(crate) fn value() -> impl Strategy<Value = Owned> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Owned::Bool),
        any::<i8>().prop_map(Owned::I8),
        any::<u8>().prop_map(Owned::U8),
        any::<i16>().prop_map(Owned::I16),
        any::<u16>().prop_map(Owned::U16),
        any::<i32>().prop_map(Owned::I32),
        any::<u32>().prop_map(Owned::U32),
        any::<i64>().prop_map(Owned::I64),
        any::<f32>().prop_map(Owned::F32),
        any::<f64>().prop_map(Owned::F64),
        any::<(u8, u32)>().prop_map(|(scale, digits)| Owned::Decimal(scale, digits)),
        any::<u64>().prop_map(Owned::Timestamp),
        vec(any::<u8>(), 0..20).prop_map(Owned::LongStr),
        vec(any::<u8>(), 0..20).prop_map(Owned::Bytes),
        Just(Owned::Void),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Owned::Array),
            entries_of(inner).prop_map(Owned::Table),
        ]
    })
}

/// Entries with different names in alphabetical order, which any implementation keeps.
fn entries_of(value: impl Strategy<Value = Owned>) -> impl Strategy<Value = Vec<(String, Owned)>> {
    proptest::collection::btree_map("[a-z]{1,6}", value, 0..4).prop_map(|map| map.into_iter().collect())
}

pub(crate) fn entries() -> impl Strategy<Value = Vec<(String, Owned)>> {
    entries_of(value())
}

/// The bytes of one field; a bit is one byte here and finds its place later.
fn field(kind: Kind) -> BoxedStrategy<Vec<u8>> {
    match kind {
        Kind::Bit => any::<bool>().prop_map(|bit| vec![u8::from(bit)]).boxed(),
        Kind::Octet => vec(any::<u8>(), 1).boxed(),
        Kind::Short => vec(any::<u8>(), 2).boxed(),
        Kind::Long => vec(any::<u8>(), 4).boxed(),
        Kind::LongLong => vec(any::<u8>(), 8).boxed(),
        Kind::ShortStr => {
            "[ -~äöü]{0,60}".prop_map(|text| [&[text.len() as u8], text.as_bytes()].concat()).boxed()
        }
        Kind::LongStr => vec(any::<u8>(), 0..300).prop_map(|bytes| long(&bytes)).boxed(),
        Kind::Table => entries().prop_map(|entries| long(&table_raw(&entries))).boxed(),
    }
}

/// What a field is if nobody sets it.
fn blank(kind: Kind) -> Vec<u8> {
    match kind {
        Kind::Bit | Kind::Octet | Kind::ShortStr => vec![0],
        Kind::Short => vec![0; 2],
        Kind::Long | Kind::LongStr | Kind::Table => vec![0; 4],
        Kind::LongLong => vec![0; 8],
    }
}

/// The payload of a method frame for `spec`; fields whose name is in `reserved` stay blank.
pub(crate) fn payload_of(
    spec: &'static MethodSpec,
    reserved: &'static [&'static str],
) -> impl Strategy<Value = Vec<u8>> {
    let fields: Vec<_> = spec
        .fields
        .iter()
        .map(|&(name, kind)| if reserved.contains(&name) { Just(blank(kind)).boxed() } else { field(kind) })
        .collect();
    fields.prop_map(|fields| {
        let mut out = [spec.class_id.to_be_bytes(), spec.method_id.to_be_bytes()].concat();
        let mut bits_taken = 0;
        for (bytes, (_, kind)) in fields.iter().zip(spec.fields) {
            if *kind != Kind::Bit {
                bits_taken = 0;
                out.extend(bytes);
            } else if bits_taken == 0 {
                bits_taken = 1;
                out.extend(bytes);
            } else {
                *out.last_mut().unwrap() |= bytes[0] << bits_taken;
                bits_taken += 1;
            }
        }
        out
    })
}

/// Any method, with its payload.
pub(crate) fn method_payload(
    reserved: &'static [&'static str],
) -> impl Strategy<Value = (&'static MethodSpec, Vec<u8>)> {
    (0..METHODS.len()).prop_flat_map(move |i| (Just(&METHODS[i]), payload_of(&METHODS[i], reserved)))
}
