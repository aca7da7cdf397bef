//! No byte from a peer panics the codec or makes it contradict itself.

mod common;

use common::exercise;
use common::values::method_payload;
use nexo_amqp::codec::{
    ContentHeader, Frame, FrameKind, FrameMax, PropertiesBuilder, ShortStr, Table, TableBuf, Value,
    encode_frame, encode_heartbeat, encode_message,
};
use nexo_amqp_client::methods;
use proptest::collection::vec;
use proptest::prelude::*;

/// A publish with headers: what most of the codec is there for.
fn publish(body: &[u8]) -> Vec<u8> {
    let mut inner = TableBuf::new();
    inner.put(ShortStr::from_static("L"), Value::I64(-1)).put(ShortStr::from_static("V"), Value::Void);
    let mut headers = TableBuf::new();
    headers.put(ShortStr::from_static("t"), inner.as_table()).put(ShortStr::from_static("s"), "text");
    let properties = PropertiesBuilder::new()
        .content_type(ShortStr::from_static("text/plain"))
        .headers(headers.as_table())
        .delivery_mode(2)
        .expiration(ShortStr::from_static("1000"))
        .timestamp(1)
        .to_vec();
    let publish = methods::publish(ShortStr::from_static("e"), ShortStr::from_static("k"));
    let mut out = Vec::new();
    encode_message(&mut out, 1, &publish, &properties, body, FrameMax::BEFORE_TUNE);
    out
}

#[derive(Clone, Debug)]
enum Mutation {
    Set(prop::sample::Index, u8),
    Insert(prop::sample::Index, u8),
    Remove(prop::sample::Index),
    Cut(prop::sample::Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        1 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        1 => at().prop_map(Mutation::Remove),
        1 => at().prop_map(Mutation::Cut),
    ]
}

fn mutate(bytes: &mut Vec<u8>, mutations: Vec<Mutation>) {
    for mutation in mutations {
        if bytes.is_empty() {
            return;
        }
        match mutation {
            Mutation::Set(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            Mutation::Insert(at, byte) => bytes.insert(at.index(bytes.len()), byte),
            Mutation::Remove(at) => {
                bytes.remove(at.index(bytes.len()));
            }
            Mutation::Cut(at) => bytes.truncate(at.index(bytes.len())),
        }
    }
}

#[test]
fn what_the_fuzzer_starts_from_and_has_found_passes() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds");
    let mut count = 0;
    for seed in std::fs::read_dir(seeds).unwrap() {
        exercise::anything(&std::fs::read(seed.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= 7, "there are {count} seeds");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        exercise::anything(&bytes);
    }

    #[test]
    fn mutated_publishes_never_panic(
        body in vec(any::<u8>(), 0..40),
        mutations in vec(mutation(), 0..6),
    ) {
        let mut bytes = publish(&body);
        encode_heartbeat(&mut bytes);
        bytes.extend(publish(b""));
        mutate(&mut bytes, mutations);
        exercise::stream(&bytes);
    }

    #[test]
    fn mutated_methods_never_panic(
        (_, mut payload) in method_payload(&[]),
        mutations in vec(mutation(), 0..4),
    ) {
        mutate(&mut payload, mutations);
        exercise::method(&payload);
        let mut bytes = Vec::new();
        encode_frame(&mut bytes, &Frame { kind: FrameKind::Method, channel: 1, payload: &payload });
        exercise::stream(&bytes);
    }

    #[test]
    fn mutated_properties_never_panic(mutations in vec(mutation(), 0..5)) {
        let bytes = publish(b"x");
        let header = nexo_amqp::codec::Frames::new(&bytes, FrameMax::BEFORE_TUNE).nth(1).unwrap().unwrap();
        let mut raw = ContentHeader::decode(header.payload).unwrap().properties.to_vec();
        mutate(&mut raw, mutations);
        exercise::properties(&raw);
        if let Ok(table) = Table::parse(&raw) {
            exercise::table(table);
        }
    }
}
