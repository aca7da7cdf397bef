//! `exchange.*`: declaring, deleting and binding exchanges.

use bytes::Bytes;
use nexo_access::Permission;
use nexo_broker::Durability;
use nexo_broker::topology::{Binding, DeleteIf, Destination, ExchangeKind, ExchangeSpec, HeaderValue};
use nexo_types::ExchangeName;

use super::error::{self, Refusal, exchange_name};
use super::session::Session;
use crate::codec::method::{ExchangeMethod, exchange};
use crate::codec::{Table, Value};
use crate::headers::{ArgumentHeaders, owned_value};

impl Session {
    pub(super) fn exchange_method(
        &mut self,
        number: u16,
        method: &ExchangeMethod<'_>,
    ) -> Result<(), Refusal> {
        match method {
            ExchangeMethod::Declare(declare) => self.declare_exchange(number, declare),
            ExchangeMethod::Delete(delete) => {
                let name = exchange_name(&self.vhost, &delete.exchange)?;
                if !name.is_default() && !name.is_reserved() {
                    self.rights().may_exchange(Permission::Configure, &name)?;
                }
                let only_if = if delete.if_unused { DeleteIf::Unused } else { DeleteIf::Always };
                let deleted = self.shared.broker.try_delete_exchange(&name, only_if);
                self.answer_change(deleted, Refusal::from, delete.nowait, number, &exchange::DeleteOk {})
            }
            ExchangeMethod::Bind(bind) => {
                let ends = (&bind.source[..], &bind.destination[..]);
                let binding = self.binding(ends, &bind.routing_key, bind.arguments)?;
                self.rights().may_change_binding(&binding)?;
                let bound = self.shared.broker.try_bind(binding);
                let refusal = |error| error::bind_refusal(error, bind.arguments);
                self.answer_change(bound, refusal, bind.nowait, number, &exchange::BindOk {})
            }
            ExchangeMethod::Unbind(unbind) => {
                let ends = (&unbind.source[..], &unbind.destination[..]);
                let binding = self.binding(ends, &unbind.routing_key, unbind.arguments)?;
                self.rights().may_change_binding(&binding)?;
                let unbound = self.shared.broker.try_unbind(&binding);
                self.answer_change(unbound, Refusal::from, unbind.nowait, number, &exchange::UnbindOk {})
            }
            ExchangeMethod::DeclareOk(_)
            | ExchangeMethod::DeleteOk(_)
            | ExchangeMethod::BindOk(_)
            | ExchangeMethod::UnbindOk(_) => Err(error::unimplemented()),
        }
    }

    fn declare_exchange(&mut self, number: u16, declare: &exchange::Declare<'_>) -> Result<(), Refusal> {
        let name = exchange_name(&self.vhost, &declare.exchange)?;
        let declared = if declare.passive {
            Ok(self.shared.broker.check_exchange(&name)?)
        } else {
            let spec = exchange_spec(declare, &name)?;
            self.rights().may_declare_exchange(&name, &spec)?;
            self.shared.broker.try_declare_exchange(&name, spec)
        };
        self.answer_change(declared, Refusal::from, declare.nowait, number, &exchange::DeclareOk {})
    }

    /// A binding between two exchanges.
    fn binding(
        &self,
        (source, destination): (&[u8], &[u8]),
        key: &[u8],
        arguments: Table<'_>,
    ) -> Result<Binding, Refusal> {
        let source = exchange_name(&self.vhost, source)?;
        let destination = exchange_name(&self.vhost, destination)?;
        let key = Bytes::copy_from_slice(key);
        Ok(Binding::new(source, Destination::Exchange(destination), key, binding_arguments(arguments)))
    }
}

/// What a declaration asks for.
pub(super) fn exchange_spec(
    declare: &exchange::Declare<'_>,
    name: &ExchangeName,
) -> Result<ExchangeSpec, Refusal> {
    let kind = error::text(&declare.kind)?.as_bytes();
    let kind = ExchangeKind::parse(kind, &ArgumentHeaders(declare.arguments))?;
    let alternate = match declare.arguments.get("alternate-exchange") {
        None => None,
        Some(Value::LongStr(bytes)) => Some(exchange_name(&name.vhost(), bytes)?),
        Some(value) => {
            return Err(Refusal::precondition(format!(
                "invalid type '{}' for arg 'alternate-exchange' in exchange '{name}' in vhost '{}'",
                value.type_name(),
                name.vhost_str()
            )));
        }
    };
    Ok(ExchangeSpec {
        kind,
        durability: if declare.durable { Durability::Durable } else { Durability::Transient },
        auto_delete: declare.auto_delete,
        internal: declare.internal,
        alternate,
        arguments: Bytes::copy_from_slice(declare.arguments.as_raw()),
    })
}

/// The arguments of a binding, as routing keeps them.
pub(super) fn binding_arguments(table: Table<'_>) -> Vec<(Bytes, HeaderValue)> {
    table.iter().map(|(name, value)| (Bytes::copy_from_slice(&name), owned_value(value))).collect()
}
