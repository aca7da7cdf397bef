//! Every method and every table comes back from the wire as it went.

mod common;

use common::spec::METHODS;
use common::values::{Owned, entries, method_payload, table_raw};
use nexo_amqp::codec::{
    ArrayBuf, ContentHeader, Frame, FrameKind, FrameMax, Frames, Method, MethodError, MethodId, ShortStr,
    Table, TableBuf, Value, encode_frame, encode_message, method::basic,
};
use proptest::prelude::*;

/// Puts an owned value into a table by the codec's own means.
fn put(table: &mut TableBuf, name: &str, value: &Owned) {
    let name = ShortStr::clipped(name.as_bytes());
    with_value(value, &mut |value| {
        table.put(name, value);
    });
}

fn with_value(value: &Owned, then: &mut dyn FnMut(Value<'_>)) {
    match value {
        Owned::Bool(truth) => then(Value::Bool(*truth)),
        Owned::I8(n) => then(Value::I8(*n)),
        Owned::U8(n) => then(Value::U8(*n)),
        Owned::I16(n) => then(Value::I16(*n)),
        Owned::U16(n) => then(Value::U16(*n)),
        Owned::I32(n) => then(Value::I32(*n)),
        Owned::U32(n) => then(Value::U32(*n)),
        Owned::I64(n) => then(Value::I64(*n)),
        Owned::F32(n) => then(Value::F32(*n)),
        Owned::F64(n) => then(Value::F64(*n)),
        Owned::Decimal(scale, digits) => then(Value::Decimal { scale: *scale, digits: *digits }),
        Owned::Timestamp(n) => then(Value::Timestamp(*n)),
        Owned::LongStr(bytes) => then(Value::LongStr(bytes)),
        Owned::Bytes(bytes) => then(Value::Bytes(bytes)),
        Owned::Array(values) => {
            let mut array = ArrayBuf::new();
            values.iter().for_each(|value| {
                with_value(value, &mut |value| {
                    array.push(value);
                });
            });
            then(Value::Array(array.as_array()));
        }
        Owned::Table(entries) => {
            let mut table = TableBuf::new();
            entries.iter().for_each(|(name, value)| put(&mut table, name, value));
            then(Value::Table(table.as_table()));
        }
        Owned::Void => then(Value::Void),
    }
}

/// The owned form of what was read.
fn owned(value: Value<'_>) -> Owned {
    match value {
        Value::Bool(truth) => Owned::Bool(truth),
        Value::I8(n) => Owned::I8(n),
        Value::U8(n) => Owned::U8(n),
        Value::I16(n) => Owned::I16(n),
        Value::U16(n) => Owned::U16(n),
        Value::I32(n) => Owned::I32(n),
        Value::U32(n) => Owned::U32(n),
        Value::I64(n) => Owned::I64(n),
        Value::F32(n) => Owned::F32(n),
        Value::F64(n) => Owned::F64(n),
        Value::Decimal { scale, digits } => Owned::Decimal(scale, digits),
        Value::Timestamp(n) => Owned::Timestamp(n),
        Value::LongStr(bytes) => Owned::LongStr(bytes.to_vec()),
        Value::Bytes(bytes) => Owned::Bytes(bytes.to_vec()),
        Value::Array(array) => Owned::Array(array.iter().map(owned).collect()),
        Value::Table(table) => Owned::Table(owned_entries(table)),
        Value::Void => Owned::Void,
    }
}

fn owned_entries(table: Table<'_>) -> Vec<(String, Owned)> {
    table.iter().map(|(name, value)| (name.to_string(), owned(value))).collect()
}

#[test]
fn every_method_of_the_specification_is_known_by_its_name() {
    for spec in METHODS {
        let mut payload = [spec.class_id.to_be_bytes(), spec.method_id.to_be_bytes()].concat();
        // Nothing but zeros is a sound value for any field; how many it takes is found by trying.
        let found = (0..64).find_map(|_| {
            let name = Method::decode(&payload).map(|method| (method.name(), method.id())).ok();
            payload.push(0);
            name
        });
        let id = MethodId { class_id: spec.class_id, method_id: spec.method_id };
        assert_eq!(found, Some((spec.name, id)));
    }
}

#[test]
fn ids_that_no_method_has_are_refused_as_unknown() {
    for class_id in 0..=100 {
        for method_id in 0..=130 {
            if METHODS.iter().any(|spec| (spec.class_id, spec.method_id) == (class_id, method_id)) {
                continue;
            }
            let payload = [class_id.to_be_bytes(), method_id.to_be_bytes()].concat();
            let id = MethodId { class_id, method_id };
            assert_eq!(Method::decode(&payload), Err(MethodError::Unknown { id }));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn methods_are_written_byte_for_byte_as_they_were_read((spec, payload) in method_payload(&[])) {
        let method = Method::decode(&payload).unwrap();
        prop_assert_eq!(method.name(), spec.name);
        let mut written = Vec::new();
        method.encode(&mut written, 9);
        let mut expected = Vec::new();
        encode_frame(&mut expected, &Frame { kind: FrameKind::Method, channel: 9, payload: &payload });
        prop_assert_eq!(written, expected);
    }

    #[test]
    fn a_cut_method_and_one_with_a_tail_are_refused((spec, mut payload) in method_payload(&[])) {
        for len in 0..payload.len() {
            prop_assert!(Method::decode(&payload[..len]).is_err(), "{} of {} bytes", len, payload.len());
        }
        payload.push(0);
        let method = spec.name;
        prop_assert_eq!(Method::decode(&payload), Err(MethodError::Trailing { method, bytes: 1 }));
    }

    #[test]
    fn tables_are_written_and_read_as_they_were_meant(entries in entries()) {
        let mut table = TableBuf::new();
        entries.iter().for_each(|(name, value)| put(&mut table, name, value));
        prop_assert_eq!(table.as_raw(), table_raw(&entries));
        let read = Table::parse(table.as_raw()).unwrap();
        prop_assert_eq!(owned_entries(read), entries);
    }

    #[test]
    fn messages_are_put_together_again_from_their_frames(
        channel: u16,
        body in proptest::collection::vec(any::<u8>(), 0..20_000),
        key in proptest::collection::vec(any::<u8>(), 0..=255),
    ) {
        let max = FrameMax::new(4096).unwrap();
        let got = basic::GetOk {
            delivery_tag: 1,
            redelivered: false,
            exchange: ShortStr::EMPTY,
            routing_key: ShortStr::new(&key).unwrap(),
            message_count: 3,
        };
        let mut out = Vec::new();
        encode_message(&mut out, channel, &got, &[0, 0], &body, max);

        let frames: Vec<_> = Frames::new(&out, max).map(Result::unwrap).collect();
        prop_assert!(frames.iter().all(|frame| frame.channel == channel && frame.bytes() <= 4096));
        prop_assert_eq!(Method::decode(frames[0].payload), Ok(got.into()));
        prop_assert_eq!(ContentHeader::decode(frames[1].payload).unwrap().body_bytes, body.len() as u64);
        let joined: Vec<u8> = frames[2..].iter().flat_map(|frame| frame.payload).copied().collect();
        prop_assert_eq!(joined, body);
    }
}
