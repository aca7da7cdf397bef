//! Another implementation of the protocol reads what we write, and writes the same bytes.

mod common;

use amq_protocol::frame::{gen_frame, parse_frame};
use common::values::{entries, method_payload, table_raw};
use nexo_amqp::codec::{
    FrameMax, Frames, Method, Properties, PropertiesBuilder, ShortStr, Table, encode_message, method::basic,
};
use proptest::prelude::*;

/// Fields that 0-9-1 does not use; the other implementation writes them blank whatever it has read.
const RESERVED: &[&str] = &[
    "ticket",
    "capabilities",
    "insist",
    "out-of-band",
    "channel-id",
    "known-hosts",
    "cluster-id",
    "prefetch-size",
];

/// Reads `bytes` as frames with the other implementation and writes them again with it.
fn through_the_other(bytes: &[u8]) -> Vec<u8> {
    let mut rest = bytes;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let (left, frame) = parse_frame(rest).expect("the other implementation reads the frame");
        let mut buffer = vec![0; 64 * 1024];
        let cursor = std::io::Cursor::new(buffer.as_mut_slice());
        let written = gen_frame(&frame)(cursor.into()).expect("the other implementation writes the frame");
        let len = written.into_inner().1 as usize;
        out.extend_from_slice(&buffer[..len]);
        rest = left;
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn methods_are_understood_by_another_implementation((spec, payload) in method_payload(RESERVED)) {
        // The other implementation has one ticket for everybody, and it is not blank.
        prop_assume!(spec.name != "access.request-ok");
        let mut bytes = Vec::new();
        Method::decode(&payload).unwrap().encode(&mut bytes, 1);
        prop_assert_eq!(through_the_other(&bytes), bytes, "{}", spec.name);
    }

    #[test]
    fn messages_are_understood_by_another_implementation(
        entries in entries(),
        key in "[ -~äöü]{0,60}",
        body in proptest::collection::vec(any::<u8>(), 0..9000),
        delivery_mode: u8,
        timestamp: u64,
    ) {
        let raw = table_raw(&entries);
        let key = ShortStr::new(key.as_bytes()).unwrap();
        let properties = PropertiesBuilder::new()
            .headers(Table::parse(&raw).unwrap())
            .delivery_mode(delivery_mode)
            .correlation_id(key)
            .timestamp(timestamp)
            .kind(key)
            .app_id(key)
            .to_vec();
        prop_assert!(Properties::parse(&properties).is_ok());
        let deliver = basic::Deliver {
            consumer_tag: key,
            delivery_tag: timestamp,
            redelivered: true,
            exchange: ShortStr::EMPTY,
            routing_key: key,
        };
        let mut bytes = Vec::new();
        encode_message(&mut bytes, 1, &deliver, &properties, &body, FrameMax::new(4096).unwrap());
        prop_assert!(Frames::new(&bytes, FrameMax::new(4096).unwrap()).all(|frame| frame.is_ok()));
        prop_assert_eq!(through_the_other(&bytes), bytes);
    }
}
