//! Runs bytes through every door of the codec, and checks what must hold whatever they are. The fuzz target
//! does the same with more bytes.

use nexo_amqp::codec::{
    ContentHeader, Frame, FrameKind, FrameMax, Frames, Method, Properties, PropertiesBuilder, Property,
    ProtocolHeader, PublishedMessage, ShortStr, Table, TableBuf, Value, encode_frame, method::BasicMethod,
};

const MAX: FrameMax = FrameMax::BEFORE_TUNE;

/// Takes `bytes` for anything they could be.
pub(crate) fn anything(bytes: &[u8]) {
    let _ = ProtocolHeader::parse(bytes);
    stream(bytes);
    method(bytes);
    header(bytes);
    properties(bytes);
    if let Ok(parsed) = Table::parse(bytes) {
        table(parsed);
    }
}

/// Walks frames, and at each compares a publish in one step with the same publish frame by frame.
pub(crate) fn stream(bytes: &[u8]) {
    let mut frames = Frames::new(bytes, MAX);
    loop {
        let rest = frames.rest();
        assert_eq!(PublishedMessage::parse(rest, MAX), publish_by_frames(rest));
        let Some(Ok(frame)) = frames.next() else { break };
        let mut written = Vec::new();
        encode_frame(&mut written, &frame);
        assert!(rest.starts_with(&written), "a frame is written as it was read");
        match frame.kind {
            FrameKind::Method => method(frame.payload),
            FrameKind::Header => header(frame.payload),
            FrameKind::Body | FrameKind::Heartbeat => {}
        }
    }
    assert!(frames.consumed_bytes() <= bytes.len());
}

fn publish_by_frames(bytes: &[u8]) -> Option<PublishedMessage<'_>> {
    let mut frames = Frames::new(bytes, MAX);
    let mut next = |kind| frames.next()?.ok().filter(|frame: &Frame<'_>| frame.kind == kind);
    let first = next(FrameKind::Method)?;
    let Ok(Method::Basic(BasicMethod::Publish(publish))) = Method::decode(first.payload) else { return None };
    let second = next(FrameKind::Header)?;
    let header = ContentHeader::decode(second.payload).ok()?;
    let body = match header.body_bytes {
        0 => Frame { kind: FrameKind::Body, channel: first.channel, payload: &[] },
        _ => next(FrameKind::Body)?,
    };
    let sound = header.class_id == 60
        && header.weight == 0
        && header.body_bytes == body.payload.len() as u64
        && [second.channel, body.channel] == [first.channel; 2];
    let (properties, body) = (header.properties, body.payload);
    let bytes = frames.consumed_bytes();
    sound.then_some(PublishedMessage { channel: first.channel, publish, properties, body, bytes })
}

/// A method that decodes is the same after it was written and decoded again.
pub(crate) fn method(payload: &[u8]) {
    let Ok(method) = Method::decode(payload) else { return };
    let mut written = Vec::new();
    method.encode(&mut written, 7);
    let all = FrameMax::new(u32::MAX).unwrap();
    let frame = Frame::parse(&written, all).unwrap().unwrap();
    assert_eq!(frame.bytes(), written.len());
    assert_eq!(Method::decode(frame.payload), Ok(method));
    // Tables are walked by printing them.
    let _ = format!("{method:?}");
}

/// A content header that decodes is the same after it was written.
pub(crate) fn header(payload: &[u8]) {
    let Ok(header) = ContentHeader::decode(payload) else { return };
    let mut written = Vec::new();
    header.encode(&mut written, 7);
    assert_eq!(&written[7..written.len() - 1], payload);
    properties(header.properties);
}

/// Properties that parse are the same after they were copied, and can be changed.
pub(crate) fn properties(raw: &[u8]) {
    let Ok(parsed) = Properties::parse(raw) else { return };
    let _ = format!("{parsed:?}");
    let copy = PropertiesBuilder::from_base(parsed).to_vec();
    assert_eq!(copy[2..], raw[2..], "what is not changed keeps its bytes");
    assert_eq!(copy[..2], [raw[0], raw[1] & !3], "flags without meaning go");
    for property in Property::ALL {
        let without = PropertiesBuilder::from_base(parsed).without(property).to_vec();
        let without = Properties::parse(&without).unwrap();
        assert!(!without.has(property));
        assert!(
            Property::ALL.iter().all(|&other| other == property || without.has(other) == parsed.has(other))
        );
    }
    if let Some(headers) = parsed.headers() {
        table(headers);
        let mut changed = TableBuf::from(headers);
        changed.set(ShortStr::from_static("x-death"), Value::Void);
        let written = PropertiesBuilder::from_base(parsed).headers(changed.as_table()).to_vec();
        let written = Properties::parse(&written).unwrap();
        assert_eq!(written.headers().unwrap().get("x-death"), Some(Value::Void));
    }
}

/// A table that parses can be rebuilt, and each of its entries replaced and removed.
pub(crate) fn table(table: Table<'_>) {
    let mut rebuilt = TableBuf::new();
    for (name, value) in table.iter() {
        rebuilt.put(name, value);
    }
    // `L` is written as `l` and any truth as 1, so the bytes may differ, but never their number.
    assert_eq!(rebuilt.as_raw().len(), table.as_raw().len());
    for (name, _) in table.iter().take(8) {
        let mut changed = TableBuf::from(table);
        changed.set(name, Value::U32(7));
        let checked = Table::parse(changed.as_raw()).unwrap();
        assert_eq!(checked.iter().filter(|(other, _)| *other == name).count(), 1);
        assert_eq!(checked.iter().find(|(other, _)| *other == name), Some((name, Value::U32(7))));
        changed.remove(name);
        let checked = Table::parse(changed.as_raw()).unwrap();
        assert!(checked.iter().all(|(other, _)| other != name));
        let others = table.iter().filter(|(other, _)| *other != name).count();
        assert_eq!(checked.iter().count(), others);
    }
}
