//! What all methods have in common, and the macro that makes structs of a class's table.

use super::fields::FieldsWriter;
use super::{
    AccessMethod, BasicMethod, ChannelMethod, ConfirmMethod, ConnectionMethod, ExchangeMethod, QueueMethod,
    TxMethod, basic,
};
use crate::codec::constants::{
    CLASS_ACCESS, CLASS_BASIC, CLASS_CHANNEL, CLASS_CONFIRM, CLASS_CONNECTION, CLASS_EXCHANGE, CLASS_QUEUE,
    CLASS_TX, FRAME_END, FRAME_HEAD_BYTES, FRAME_OVERHEAD_BYTES,
};
use crate::codec::error::MethodError;
use crate::codec::frame::{FrameKind, frame_head};

/// Bytes before a method's fields: the class and the method.
const METHOD_ID_BYTES: usize = 4;

/// A method's class and its number within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MethodId {
    /// The class.
    pub class_id: u16,
    /// The method.
    pub method_id: u16,
}

/// A method that can be sent.
pub trait AmqpMethod {
    /// Its class and number.
    const ID: MethodId;
    /// Its name as the specification has it, such as `queue.declare-ok`.
    const NAME: &'static str;

    /// Appends the fields.
    fn put_fields(&self, writer: &mut FieldsWriter<'_>);

    /// At least as many bytes as [`put_fields`](Self::put_fields) appends.
    fn fields_bytes_max(&self) -> usize;
}

/// A method that is followed by a content header and a body.
pub trait ContentMethod: AmqpMethod {}

impl ContentMethod for basic::Publish<'_> {}
impl ContentMethod for basic::Return<'_> {}
impl ContentMethod for basic::Deliver<'_> {}
impl ContentMethod for basic::GetOk<'_> {}

macro_rules! every_class {
    ($($(#[$doc:meta])* $class:ident($methods:ident $(<$lt:lifetime>)?) = $id:ident;)*) => {
        /// Any method of any class.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Method<'a> { $($(#[$doc])* $class($methods $(<$lt>)?)),* }

        impl<'a> Method<'a> {
            /// Decodes the payload of a method frame.
            ///
            /// # Errors
            /// If there is no such method, or if its fields are not exactly what the payload holds.
            #[inline]
            pub fn decode(payload: &'a [u8]) -> Result<Self, MethodError> {
                let Some((&[c0, c1, m0, m1], fields)) = payload.split_first_chunk::<METHOD_ID_BYTES>() else {
                    return Err(MethodError::Unnamed { payload_bytes: payload.len() });
                };
                let class_id = u16::from_be_bytes([c0, c1]);
                let method_id = u16::from_be_bytes([m0, m1]);
                match class_id {
                    $($id => $methods::decode(method_id, fields).map(Self::$class),)*
                    _ => Err(MethodError::Unknown { id: MethodId { class_id, method_id } }),
                }
            }

            /// Its class and number.
            #[must_use]
            pub const fn id(&self) -> MethodId {
                match self { $(Self::$class(method) => method.id()),* }
            }

            /// Its name as the specification has it, such as `queue.declare-ok`.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$class(method) => method.name()),* }
            }

            /// Appends it as a frame.
            pub fn encode(&self, out: &mut Vec<u8>, channel: u16) {
                match self { $(Self::$class(method) => method.encode(out, channel)),* }
            }
        }

        $(impl<'a> From<$methods $(<$lt>)?> for Method<'a> {
            #[inline]
            fn from(method: $methods $(<$lt>)?) -> Self {
                Self::$class(method)
            }
        })*
    };
}

every_class! {
    /// The connection as a whole.
    Connection(ConnectionMethod<'a>) = CLASS_CONNECTION;
    /// One channel.
    Channel(ChannelMethod<'a>) = CLASS_CHANNEL;
    /// Access tickets, which are history.
    Access(AccessMethod<'a>) = CLASS_ACCESS;
    /// Exchanges and what binds them to each other.
    Exchange(ExchangeMethod<'a>) = CLASS_EXCHANGE;
    /// Queues and what binds them to exchanges.
    Queue(QueueMethod<'a>) = CLASS_QUEUE;
    /// Messages.
    Basic(BasicMethod<'a>) = CLASS_BASIC;
    /// Publisher confirms.
    Confirm(ConfirmMethod) = CLASS_CONFIRM;
    /// Transactions.
    Tx(TxMethod) = CLASS_TX;
}

/// Appends `method` as a frame.
#[inline]
pub fn encode_method<M: AmqpMethod>(out: &mut Vec<u8>, channel: u16, method: &M) {
    out.reserve(FRAME_OVERHEAD_BYTES + METHOD_ID_BYTES + method.fields_bytes_max());
    encode_method_unreserved(out, channel, method);
}

/// As [`encode_method`], for a caller that reserved for more than the method.
#[inline]
pub(crate) fn encode_method_unreserved<M: AmqpMethod>(out: &mut Vec<u8>, channel: u16, method: &M) {
    let start = out.len();
    let [k, c0, c1, ..] = frame_head(FrameKind::Method, channel, 0);
    let [i0, i1] = M::ID.class_id.to_be_bytes();
    let [m0, m1] = M::ID.method_id.to_be_bytes();
    out.extend_from_slice(&[k, c0, c1, 0, 0, 0, 0, i0, i1, m0, m1]);
    method.put_fields(&mut FieldsWriter::new(out));
    // The size is known only now, since truth values share octets.
    let payload_bytes = (out.len() - start - FRAME_HEAD_BYTES) as u32;
    out[start + 3..start + FRAME_HEAD_BYTES].copy_from_slice(&payload_bytes.to_be_bytes());
    out.push(FRAME_END);
}

/// Makes a struct of every method in a class's table, and one enum of them all.
macro_rules! class {
    (
        $(#[$class_doc:meta])*
        $class:ident $(<$class_lt:lifetime>)? = $class_id:ident;
        $(
            $(#[$doc:meta])*
            $name:ident $(<$lt:lifetime>)? = $method_id:literal, $text:literal {
                $($(#[$field_doc:meta])* $field:ident: $ty:ty),* $(,)?
            }
        )*
    ) => {
        $(#[$class_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $class $(<$class_lt>)? { $($(#[$doc])* $name($name $(<$lt>)?)),* }

        impl $(<$class_lt>)? $class $(<$class_lt>)? {
            /// Decodes the fields of the method with this number.
            ///
            /// # Errors
            /// If there is no such method, or if its fields are not exactly what `fields` holds.
            #[inline]
            pub fn decode(
                method_id: u16,
                fields: &$($class_lt)? [u8],
            ) -> Result<Self, $crate::codec::MethodError> {
                match method_id {
                    $($method_id => $name::decode(fields).map(Self::$name),)*
                    _ => {
                        let id = $crate::codec::MethodId { class_id: $class_id, method_id };
                        Err($crate::codec::MethodError::Unknown { id })
                    }
                }
            }

            /// Its class and number.
            #[must_use]
            pub const fn id(&self) -> $crate::codec::MethodId {
                match self { $(Self::$name(_) => <$name as $crate::codec::AmqpMethod>::ID),* }
            }

            /// Its name as the specification has it.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $text),* }
            }

            /// Appends it as a frame.
            pub fn encode(&self, out: &mut Vec<u8>, channel: u16) {
                match self { $(Self::$name(method) => $crate::codec::encode_method(out, channel, method)),* }
            }
        }

        $(
            $(#[$doc])*
            // The names of the fields are the specification's and say all that it says.
            #[allow(missing_docs)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name $(<$lt>)? { $($(#[$field_doc])* pub $field: $ty),* }

            impl $(<$lt>)? $name $(<$lt>)? {
                /// Decodes the fields, which follow the class and the method in a frame.
                ///
                /// # Errors
                /// If they are not exactly what `fields` holds.
                #[inline]
                pub fn decode(fields: &$($lt)? [u8]) -> Result<Self, $crate::codec::MethodError> {
                    let mut reader = super::fields::FieldsReader::new(fields);
                    $(let $field = reader.field($text, stringify!($field))?;)*
                    reader.finish($text)?;
                    Ok(Self { $($field),* })
                }
            }

            impl $(<$lt>)? $crate::codec::AmqpMethod for $name $(<$lt>)? {
                const ID: $crate::codec::MethodId =
                    $crate::codec::MethodId { class_id: $class_id, method_id: $method_id };
                const NAME: &'static str = $text;

                #[inline]
                fn put_fields(&self, _writer: &mut super::fields::FieldsWriter<'_>) {
                    $(super::fields::Field::put(&self.$field, _writer);)*
                }

                #[inline]
                fn fields_bytes_max(&self) -> usize {
                    0 $(+ super::fields::Field::bytes_max(&self.$field))*
                }
            }

            impl<'m $(, $lt)?> From<$name $(<$lt>)?> for $crate::codec::Method<'m>
            $(where $lt: 'm)?
            {
                #[inline]
                fn from(method: $name $(<$lt>)?) -> Self {
                    $class::$name(method).into()
                }
            }
        )*
    };
}

pub(super) use class;
