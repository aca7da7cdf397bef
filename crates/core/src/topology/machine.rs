//! Exchanges and bindings as a [`Machine`]: what can be asked of them, in one list.

use std::convert::Infallible;

use bytes::Bytes;
use nexo_types::{ExchangeName, QueueName, Timestamp, VhostName};

use super::{
    BindError, Binding, DeclareError, DeleteError, DeleteIf, ExchangeSpec, Outline, Plan, Topology,
    TopologyRecord, UnbindError, VhostError, VhostSpec,
};
use crate::machine::{Decision, Machine};
use crate::message::Durability;
use crate::queue::{ChunkId, ChunkSlice};
use crate::wire::WireError;

/// What can be asked of exchanges and bindings.
#[derive(Clone, Debug)]
pub enum TopologyCommand {
    /// There is to be such an exchange.
    Declare(ExchangeName, ExchangeSpec),
    /// An exchange is to go.
    Delete(ExchangeName, DeleteIf),
    /// There is to be such a binding.
    Bind(Binding),
    /// A binding is to go.
    Unbind(Binding),
    /// A queue has gone.
    QueueRemoved(QueueName),
    /// There is to be such a virtual host.
    PutVhost(VhostName, VhostSpec),
    /// A virtual host is to go.
    DeleteVhost(VhostName),
    /// The queues of a virtual host that is on its way out have gone.
    VhostEmptied(VhostName),
}

/// Why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopologyRefusal {
    /// An exchange is not as it was declared.
    Declare(DeclareError),
    /// An exchange cannot go.
    Delete(DeleteError),
    /// A binding cannot be.
    Bind(BindError),
    /// A binding cannot go.
    Unbind(UnbindError),
    /// A virtual host cannot be so, or cannot go.
    Vhost(VhostError),
}

impl Machine for Topology {
    type Command = TopologyCommand;
    type Answer = Result<(), TopologyRefusal>;
    type Record = TopologyRecord;
    type Applied = ();
    type Missing = Infallible;
    type Outline = Outline;

    fn decide(
        &self,
        _: Timestamp,
        command: &TopologyCommand,
    ) -> Decision<TopologyRecord, Result<(), TopologyRefusal>> {
        let plan = match command {
            TopologyCommand::Declare(name, spec) => {
                self.decide_declare(name, spec.clone()).map_err(TopologyRefusal::Declare)
            }
            TopologyCommand::Delete(name, condition) => {
                self.decide_delete(name, *condition).map_err(TopologyRefusal::Delete)
            }
            TopologyCommand::Bind(binding) => {
                self.decide_bind(binding.clone()).map_err(TopologyRefusal::Bind)
            }
            TopologyCommand::Unbind(binding) => self.decide_unbind(binding).map_err(TopologyRefusal::Unbind),
            TopologyCommand::QueueRemoved(name) => Ok(self.decide_queue_removed(name)),
            TopologyCommand::PutVhost(name, spec) => {
                self.decide_put_vhost(name, spec.clone()).map_err(TopologyRefusal::Vhost)
            }
            TopologyCommand::DeleteVhost(name) => {
                self.decide_delete_vhost(name).map_err(TopologyRefusal::Vhost)
            }
            TopologyCommand::VhostEmptied(name) => Ok(self.decide_vhost_gone(name)),
        };
        match plan {
            Ok(Plan { steps }) => Decision { steps, answer: Ok(()) },
            Err(refusal) => Decision { steps: Vec::new(), answer: Err(refusal) },
        }
    }

    fn apply(&mut self, record: &TopologyRecord, durability: Durability) -> Result<(), Infallible> {
        self.apply_record(record, durability);
        Ok(())
    }

    fn encode(record: &TopologyRecord) -> Bytes {
        record.encode()
    }

    fn decode(bytes: &[u8]) -> Result<TopologyRecord, WireError> {
        TopologyRecord::decode(bytes)
    }

    fn begin_snapshot(&mut self, _: impl Iterator<Item = ChunkId>, _: &[ChunkId]) -> Bytes {
        self.snapshot()
    }

    /// All of it is in the head.
    fn next_chunks(&mut self, _: usize, _: usize) -> Option<ChunkSlice> {
        Some(ChunkSlice::default())
    }

    fn restore<'a>(head: &[u8], _: impl Iterator<Item = &'a [u8]>) -> Result<Self, WireError> {
        Self::restore(head).map_err(|error| error.0)
    }

    fn outline(&self, _: Timestamp) -> Outline {
        Self::outline(self)
    }
}

#[cfg(test)]
mod tests {
    use nexo_types::{Millis, QueueId};
    use proptest::prelude::*;

    use super::*;
    use crate::machine::check::{Checked, check};
    use crate::topology::model::{a_binding, a_declaration, a_queue, a_vhost, a_vhost_spec, an_exchange};

    impl Checked for Topology {
        fn read_back(_: &TopologyRecord, bytes: Bytes) -> TopologyRecord {
            <Self as Machine>::decode(&bytes).unwrap()
        }

        fn supply(&mut self, missing: Infallible, _: &[TopologyRecord]) {
            match missing {}
        }

        /// Queues come from outside. Those that have gone come back here, and are not bound.
        fn prepare(&mut self) {
            for (id, name) in ["p", "q", "r", "s"].into_iter().enumerate() {
                let durability = if id < 2 { Durability::Durable } else { Durability::Transient };
                self.queue_added(&QueueName::new(name).unwrap(), QueueId(id as u64 + 1), durability);
            }
        }
    }

    fn command() -> impl Strategy<Value = TopologyCommand> {
        let condition = prop_oneof![Just(DeleteIf::Always), Just(DeleteIf::Unused)];
        prop_oneof![
            4 => a_declaration().prop_map(|(name, spec)| TopologyCommand::Declare(name, spec)),
            1 => (an_exchange(), condition).prop_map(|(name, when)| TopologyCommand::Delete(name, when)),
            10 => a_binding().prop_map(TopologyCommand::Bind),
            2 => a_binding().prop_map(TopologyCommand::Unbind),
            1 => a_queue().prop_map(TopologyCommand::QueueRemoved),
            3 => (a_vhost(), a_vhost_spec()).prop_map(|(name, spec)| TopologyCommand::PutVhost(name, spec)),
            1 => a_vhost().prop_map(TopologyCommand::DeleteVhost),
            2 => a_vhost().prop_map(TopologyCommand::VhostEmptied),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

        #[test]
        fn exchanges_and_bindings_are_a_machine(commands in prop::collection::vec(command(), 1..60)) {
            check(Topology::new, commands.into_iter().map(|command| (Millis::ZERO, command)).collect());
        }
    }
}
