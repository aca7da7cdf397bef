//! The codec of all calls: protobuf, but a request is looked through before it is decoded.
//!
//! Decoding makes a struct of every item of a list, and an empty item has two bytes on the wire: a request of the
//! largest size could take seventy times as much memory. So the lists of a request are counted first, from its bytes
//! alone. What to count follows from the descriptions of the services, so a new method is covered as it is added.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::LazyLock;

use bytes::Buf;
use prost::{Message, Name};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

use crate::limits::{LIST_ITEMS_MAX, REQUEST_FIELDS_MAX, REQUEST_HEADERS_MAX};
use crate::proto;

/// Protobuf with bounded requests.
#[derive(Debug)]
pub(crate) struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(PhantomData)
    }
}

/// Decodes `U`; if it is a request, only after it was looked through.
#[derive(Debug)]
pub(crate) struct BoundedDecoder<U>(PhantomData<U>);

impl<U: Message + Name + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if let Some(shape) = SHAPES.request(U::NAME) {
            let whole = buf.chunk();
            if whole.len() == buf.remaining() {
                SHAPES.check(shape, whole)?;
            } else {
                // It lies in one piece, as things are.
                return Err(Status::internal("a request lies in pieces"));
            }
        }
        let decoded = U::decode(buf).map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Some(decoded))
    }
}

static SHAPES: LazyLock<Shapes> = LazyLock::new(|| {
    let files = FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).expect("the compiler wrote it");
    Shapes::new(&files)
});

/// What the messages of all requests look like.
#[derive(Debug)]
struct Shapes {
    messages: Vec<Shape>,
    requests: HashMap<String, usize>,
    /// How many lists there are, in all messages.
    lists: usize,
}

/// One kind of message: what is known of each field, by its number.
#[derive(Debug, Default)]
struct Shape {
    fields: Vec<Option<Field>>,
}

#[derive(Debug)]
struct Field {
    name: String,
    /// Its place among the counters and how many items a request may have of it, if it is a list.
    list: Option<(usize, u64)>,
    content: Content,
}

#[derive(Clone, Copy, Debug)]
enum Content {
    /// A message of this kind.
    Message(usize),
    /// Numbers that may be packed, of this width; 0 if it varies.
    Number(usize),
    /// A text or bytes.
    Bytes,
}

impl Shapes {
    fn new(files: &FileDescriptorSet) -> Self {
        let descriptors: Vec<(String, &DescriptorProto)> = files
            .file
            .iter()
            .flat_map(|file| {
                file.message_type
                    .iter()
                    .map(|message| (format!(".{}.{}", file.package(), message.name()), message))
            })
            .collect();
        let places: HashMap<&str, usize> =
            descriptors.iter().enumerate().map(|(place, (name, _))| (name.as_str(), place)).collect();
        let mut lists = 0;
        let messages = descriptors.iter().map(|(_, message)| {
            debug_assert!(message.nested_type.is_empty(), "nested messages are not in the list");
            let mut shape = Shape::default();
            for field in &message.field {
                let number = usize::try_from(field.number()).unwrap_or(0);
                if shape.fields.len() <= number {
                    shape.fields.resize_with(number + 1, || None);
                }
                shape.fields[number] = Some(Field::new(message.name(), field, &places, &mut lists));
            }
            shape
        });
        let messages: Vec<Shape> = messages.collect();
        let methods = files.file.iter().flat_map(|file| &file.service).flat_map(|service| &service.method);
        let requests = methods.filter_map(|method| {
            let name = method.input_type();
            Some((name.rsplit('.').next()?.to_owned(), *places.get(name)?))
        });
        Self { messages, requests: requests.collect(), lists }
    }

    fn request(&self, name: &str) -> Option<usize> {
        self.requests.get(name).copied()
    }

    /// Refuses a request with too many items or fields.
    fn check(&self, shape: usize, bytes: &[u8]) -> Result<(), Status> {
        let mut scan = Scan { shapes: self, items: vec![0; self.lists], fields: 0 };
        scan.message(&self.messages[shape], bytes)
    }
}

impl Field {
    fn new(
        message: &str,
        field: &FieldDescriptorProto,
        places: &HashMap<&str, usize>,
        lists: &mut usize,
    ) -> Self {
        let content = match field.r#type() {
            Type::Message => {
                places.get(field.type_name()).map_or(Content::Bytes, |place| Content::Message(*place))
            }
            Type::String | Type::Bytes | Type::Group => Content::Bytes,
            Type::Double | Type::Fixed64 | Type::Sfixed64 => Content::Number(8),
            Type::Float | Type::Fixed32 | Type::Sfixed32 => Content::Number(4),
            Type::Int64
            | Type::Uint64
            | Type::Int32
            | Type::Uint32
            | Type::Bool
            | Type::Enum
            | Type::Sint32
            | Type::Sint64 => Content::Number(0),
        };
        let items_max = match (message, field.name()) {
            ("NewMessage", "headers") => REQUEST_HEADERS_MAX,
            _ => LIST_ITEMS_MAX,
        };
        let list = (field.label() == Label::Repeated).then(|| {
            *lists += 1;
            (*lists - 1, items_max)
        });
        Self { name: field.name().to_owned(), list, content }
    }
}

/// One look through a request.
struct Scan<'s> {
    shapes: &'s Shapes,
    /// Items of each list so far, in all messages of its kind together.
    items: Vec<u64>,
    fields: u64,
}

impl Scan<'_> {
    /// Goes no deeper than the descriptions do, which do not refer to themselves.
    fn message(&mut self, shape: &Shape, mut rest: &[u8]) -> Result<(), Status> {
        while !rest.is_empty() {
            self.fields += 1;
            if self.fields > REQUEST_FIELDS_MAX {
                let text = format!("a request has at most {REQUEST_FIELDS_MAX} fields");
                return Err(Status::resource_exhausted(text));
            }
            let key = varint(&mut rest)?;
            let number = usize::try_from(key >> 3).map_err(|_| malformed())?;
            let field = shape.fields.get(number).and_then(Option::as_ref);
            match key & 7 {
                0 => {
                    varint(&mut rest)?;
                    self.count(field, 1)?;
                }
                1 => {
                    take(&mut rest, 8)?;
                    self.count(field, 1)?;
                }
                5 => {
                    take(&mut rest, 4)?;
                    self.count(field, 1)?;
                }
                2 => {
                    let len = usize::try_from(varint(&mut rest)?).map_err(|_| malformed())?;
                    let value = take(&mut rest, len)?;
                    let Some(found) = field else { continue };
                    match found.content {
                        Content::Bytes => self.count(field, 1)?,
                        Content::Number(0) => {
                            self.count(field, value.iter().filter(|byte| **byte < 0x80).count())?;
                        }
                        Content::Number(width) => self.count(field, value.len() / width)?,
                        Content::Message(place) => {
                            self.count(field, 1)?;
                            let shapes = self.shapes;
                            self.message(&shapes.messages[place], value)?;
                        }
                    }
                }
                // Groups are of another age; nobody sends them.
                _ => return Err(malformed()),
            }
        }
        Ok(())
    }

    fn count(&mut self, field: Option<&Field>, items: usize) -> Result<(), Status> {
        let Some((field, (list, max))) = field.and_then(|field| Some((field, field.list?))) else {
            return Ok(());
        };
        self.items[list] += items as u64;
        if self.items[list] > max {
            let text = format!("{} must hold at most {max} items in one request; it holds more", field.name);
            return Err(Status::resource_exhausted(text));
        }
        Ok(())
    }
}

fn varint(rest: &mut &[u8]) -> Result<u64, Status> {
    let mut value = 0;
    for (place, byte) in rest.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * place as u32).unwrap_or(0);
        if *byte < 0x80 {
            *rest = &rest[place + 1..];
            return Ok(value);
        }
    }
    Err(malformed())
}

fn take<'b>(rest: &mut &'b [u8], len: usize) -> Result<&'b [u8], Status> {
    let (value, after) = rest.split_at_checked(len).ok_or_else(malformed)?;
    *rest = after;
    Ok(value)
}

fn malformed() -> Status {
    Status::invalid_argument("the request is no valid protobuf message")
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn check<M: Message + Name>(bytes: &[u8]) -> Result<(), Status> {
        SHAPES.check(SHAPES.request(M::NAME).expect("it is a request"), bytes)
    }

    fn refused<M: Message + Name>(bytes: &[u8]) -> String {
        let status = check::<M>(bytes).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        status.message().to_owned()
    }

    #[test]
    fn every_method_has_its_request_in_the_table() {
        let files = FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).unwrap();
        let methods = files.file.iter().flat_map(|file| &file.service).flat_map(|service| &service.method);
        let mut count = 0;
        for method in methods {
            let name = method.input_type().rsplit('.').next().unwrap();
            assert!(SHAPES.request(name).is_some(), "{name}");
            count += 1;
        }
        assert!(count >= 18, "{count}");
    }

    #[test]
    fn what_clients_send_passes() {
        let message = proto::NewMessage {
            body: vec![b'x'; 100].into(),
            headers: vec![proto::Header { name: "a".into(), value: None, ..Default::default() }; 20],
            ttl_ms: Some(u64::MAX),
            ..Default::default()
        };
        let push =
            proto::PushRequest { queue: "q".into(), messages: vec![message; 10_000], ..Default::default() };
        check::<proto::PushRequest>(&push.encode_to_vec()).unwrap();
        let redrive = proto::RedriveRequest { ids: (0..10_001).collect(), ..Default::default() };
        check::<proto::RedriveRequest>(&redrive.encode_to_vec()).unwrap();
        check::<proto::PushRequest>(&[]).unwrap();
    }

    #[test]
    fn empty_items_are_counted_before_they_are_made() {
        // Field 2, no bytes.
        let messages = [0x12, 0].repeat(65_537);
        assert_eq!(
            refused::<proto::PushRequest>(&messages),
            "messages must hold at most 65536 items in one request; it holds more"
        );
        let receipts = [0x0a, 0].repeat(65_537);
        assert!(refused::<proto::AckRequest>(&receipts).starts_with("receipts must"));
    }

    #[test]
    fn items_in_parts_of_a_message_are_counted_together() {
        // The parts of a message that is given several times are merged: field 4 is `ack`.
        let ack = proto::AckRequest { receipts: vec![String::new(); 60] }.encode_to_vec();
        let part: Vec<u8> = [&[0x22, ack.len() as u8][..], &ack].concat();
        assert!(refused::<proto::SubscribeRequest>(&part.repeat(1_100)).starts_with("receipts must"));
        // Headers of all messages together.
        let headers =
            proto::NewMessage { headers: vec![proto::Header::default(); 300], ..Default::default() };
        let push =
            proto::PushRequest { queue: "q".into(), messages: vec![headers; 1_000], ..Default::default() };
        assert!(refused::<proto::PushRequest>(&push.encode_to_vec()).starts_with("headers must"));
    }

    #[test]
    fn packed_numbers_are_counted() {
        let redrive = proto::RedriveRequest { ids: vec![1; 65_537], ..Default::default() };
        assert!(refused::<proto::RedriveRequest>(&redrive.encode_to_vec()).starts_with("ids must"));
    }

    #[test]
    fn a_request_of_nothing_but_fields_ends() {
        let unknown = [0xf8, 0x07, 0].repeat(2_000_001);
        assert_eq!(refused::<proto::PeekRequest>(&unknown), "a request has at most 2000000 fields");
    }

    #[test]
    fn what_is_no_protobuf_is_refused() {
        for bytes in [&[0x12][..], &[0x12, 5, 0], &[0x0b], &[0x0f], &[0xff; 11], &[0x09, 1]] {
            assert_eq!(check::<proto::PushRequest>(bytes).unwrap_err().code(), Code::InvalidArgument);
        }
    }

    /// Whatever the bytes: what passes is decoded into no more items than were counted.
    #[test]
    fn random_bytes_are_refused_or_bounded() {
        let mut state = 7_u64;
        for _ in 0..20_000 {
            let mut bytes = Vec::new();
            for _ in 0..40 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                bytes.push([0x12, 0x0a, 0, 2, (state >> 40) as u8, 0x3a][(state >> 33) as usize % 6]);
            }
            if check::<proto::PushRequest>(&bytes).is_err() {
                continue;
            }
            if let Ok(push) = proto::PushRequest::decode(&bytes[..]) {
                assert!(push.messages.len() <= bytes.len() / 2);
            }
        }
    }
}
