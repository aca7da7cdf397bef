//! Where a message goes from one point of a routing table: queues and further exchanges, each once.

use nexo_types::{ExchangeName, QueueId};

/// One end of a binding, as routing sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Queue(QueueId),
    Exchange(ExchangeName),
}

/// Sorted sets of targets. Several bindings may lead to the same one, so each is counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Targets {
    queues: Vec<(QueueId, u32)>,
    exchanges: Vec<(ExchangeName, u32)>,
}

impl Targets {
    pub(super) fn add(&mut self, target: &Target) {
        match target {
            Target::Queue(id) => add(&mut self.queues, id),
            Target::Exchange(name) => add(&mut self.exchanges, name),
        }
    }

    pub(super) fn remove(&mut self, target: &Target) {
        match target {
            Target::Queue(id) => remove(&mut self.queues, id),
            Target::Exchange(name) => remove(&mut self.exchanges, name),
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.exchanges.is_empty()
    }
}

/// What the bindings of one exchange matched for one message. Targets may come twice.
#[derive(Debug)]
pub(super) struct Matched<'a, 'out> {
    pub(super) queues: &'out mut Vec<QueueId>,
    pub(super) exchanges: Vec<&'a ExchangeName>,
}

impl<'a> Matched<'a, '_> {
    pub(super) fn add_all(&mut self, targets: &'a Targets) {
        self.queues.extend(targets.queues.iter().map(|&(id, _)| id));
        self.exchanges.extend(targets.exchanges.iter().map(|(name, _)| name));
    }

    pub(super) fn add(&mut self, target: &'a Target) {
        match target {
            Target::Queue(id) => self.queues.push(*id),
            Target::Exchange(name) => self.exchanges.push(name),
        }
    }
}

fn add<T: Clone + Ord>(list: &mut Vec<(T, u32)>, item: &T) {
    match list.binary_search_by(|(held, _)| held.cmp(item)) {
        Ok(at) => list[at].1 += 1,
        Err(at) => list.insert(at, (item.clone(), 1)),
    }
}

fn remove<T: Ord>(list: &mut Vec<(T, u32)>, item: &T) {
    if let Ok(at) = list.binary_search_by(|(held, _)| held.cmp(item)) {
        list[at].1 -= 1;
        if list[at].1 == 0 {
            list.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_stays_until_its_last_binding_is_gone() {
        let target = Target::Queue(QueueId(3));
        let mut targets = Targets::default();
        targets.add(&target);
        targets.add(&target);
        targets.remove(&target);
        assert_eq!(targets.queues, [(QueueId(3), 1)]);
        targets.remove(&target);
        targets.remove(&target);
        assert!(targets.is_empty());
    }
}
