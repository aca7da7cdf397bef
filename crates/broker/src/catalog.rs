//! Which queues there are. Looking one up takes no lock; creating and deleting are one at a time.

use std::sync::Arc;

use nexo_types::{QueueId, QueueName};
use papaya::HashMap;

use crate::slot::Slot;

/// All queues, by name and by id.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    by_name: HashMap<QueueName, Arc<Slot>>,
    by_id: HashMap<QueueId, Arc<Slot>>,
}

impl Catalog {
    pub(crate) fn get(&self, name: &QueueName) -> Option<Arc<Slot>> {
        self.by_name.pin().get(name).cloned()
    }

    pub(crate) fn get_id(&self, id: QueueId) -> Option<Arc<Slot>> {
        self.by_id.pin().get(&id).cloned()
    }

    pub(crate) fn insert(&self, slot: &Arc<Slot>) {
        self.by_id.pin().insert(slot.id, Arc::clone(slot));
        let names = self.by_name.pin();
        let before = names.insert(slot.name.clone(), Arc::clone(slot));
        debug_assert!(before.is_none(), "there is one queue of a name, not two of '{}'", slot.name);
    }

    pub(crate) fn remove(&self, slot: &Slot) {
        self.by_name.pin().remove(&slot.name);
        self.by_id.pin().remove(&slot.id);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.pin().len()
    }

    /// Every queue there is at some moment during the call.
    pub(crate) fn all(&self) -> Vec<Arc<Slot>> {
        self.by_id.pin().values().cloned().collect()
    }
}
