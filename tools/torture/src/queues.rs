//! The queues that are put under load, and what each is there for.

use std::time::Duration;

/// How long a message lives in `expiring`.
pub(crate) const EXPIRY: Duration = Duration::from_millis(900);
/// Deliveries in `limited` and `rejects` before a message is a dead letter.
pub(crate) const ATTEMPTS_MAX: u32 = 3;
/// The exchange that copies to `fan.a`, `fan.b` and `fan.c`.
pub(crate) const FANOUT: &str = "fan";
/// The highest priority of `priorities`.
pub(crate) const PRIORITY_MAX: u8 = 9;

/// A queue and the one that its dead letters go to: a message is in one of the two, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Family(u8);

/// Several families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Families(u16);

/// One queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u8);

/// How a queue is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    /// Declared by AMQP as a quorum queue, which tells how often a message came.
    Quorum,
    /// Declared by AMQP as a classic queue.
    Classic,
    /// Created by the native API.
    Native,
    /// Created by the SQS API.
    Sqs,
    /// Made by the broker when the first dead letter comes.
    ByItself,
}

/// What a queue is to its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Messages are published to it.
    Origin,
    /// Dead letters go there.
    Dead,
}

/// What is known of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    pub(crate) role: Role,
    pub(crate) make: Make,
}

const fn queue(name: &'static str, family: Family, role: Role, make: Make) -> Queue {
    Queue { name, family, role, make }
}

const QUEUES: [Queue; 17] = [
    queue("work.a", Family::WORK_A, Role::Origin, Make::Quorum),
    queue("work.b", Family::WORK_B, Role::Origin, Make::Classic),
    queue("native", Family::NATIVE, Role::Origin, Make::Native),
    queue("ordered", Family::ORDERED, Role::Origin, Make::Classic),
    queue("limited", Family::LIMITED, Role::Origin, Make::Native),
    queue("rejects", Family::REJECTS, Role::Origin, Make::Quorum),
    queue("expiring", Family::EXPIRING, Role::Origin, Make::Classic),
    queue("fan.a", Family::FAN_A, Role::Origin, Make::Quorum),
    queue("fan.b", Family::FAN_B, Role::Origin, Make::Classic),
    queue("fan.c", Family::FAN_C, Role::Origin, Make::Quorum),
    queue("priorities", Family::PRIORITIES, Role::Origin, Make::Classic),
    queue("places", Family::PLACES, Role::Origin, Make::Quorum),
    queue("tasks", Family::TASKS, Role::Origin, Make::Sqs),
    queue("groups.fifo", Family::GROUPS, Role::Origin, Make::Sqs),
    queue("limited_dlq", Family::LIMITED, Role::Dead, Make::ByItself),
    queue("rejects.dead", Family::REJECTS, Role::Dead, Make::Quorum),
    queue("expired", Family::EXPIRING, Role::Dead, Make::Quorum),
];

impl Place {
    pub(crate) const WORK_A: Self = Self(0);
    pub(crate) const WORK_B: Self = Self(1);
    pub(crate) const NATIVE: Self = Self(2);
    pub(crate) const ORDERED: Self = Self(3);
    pub(crate) const LIMITED: Self = Self(4);
    pub(crate) const REJECTS: Self = Self(5);
    pub(crate) const EXPIRING: Self = Self(6);
    pub(crate) const FAN_A: Self = Self(7);
    pub(crate) const FAN_B: Self = Self(8);
    pub(crate) const FAN_C: Self = Self(9);
    pub(crate) const PRIORITIES: Self = Self(10);
    pub(crate) const PLACES: Self = Self(11);
    pub(crate) const TASKS: Self = Self(12);
    pub(crate) const GROUPS: Self = Self(13);
    pub(crate) const LIMITED_DEAD: Self = Self(14);
    pub(crate) const REJECTS_DEAD: Self = Self(15);
    pub(crate) const EXPIRED: Self = Self(16);

    /// All there are.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..QUEUES.len() as u8).map(Self)
    }

    /// What is known of it.
    pub(crate) const fn queue(self) -> &'static Queue {
        &QUEUES[self.0 as usize]
    }

    pub(crate) const fn name(self) -> &'static str {
        self.queue().name
    }

    pub(crate) const fn family(self) -> Family {
        self.queue().family
    }

    pub(crate) fn is_dead(self) -> bool {
        self.queue().role == Role::Dead
    }
}

impl Family {
    pub(crate) const WORK_A: Self = Self(0);
    pub(crate) const WORK_B: Self = Self(1);
    pub(crate) const NATIVE: Self = Self(2);
    /// One consumer at a time, so that order can be told.
    pub(crate) const ORDERED: Self = Self(3);
    /// Dead letters by the native rules.
    pub(crate) const LIMITED: Self = Self(4);
    /// Dead letters by RabbitMQ's rules.
    pub(crate) const REJECTS: Self = Self(5);
    /// Nobody consumes it; messages die of age.
    pub(crate) const EXPIRING: Self = Self(6);
    pub(crate) const FAN_A: Self = Self(7);
    pub(crate) const FAN_B: Self = Self(8);
    pub(crate) const FAN_C: Self = Self(9);
    pub(crate) const PRIORITIES: Self = Self(10);
    /// Messages are taken and given back, and must return to their places.
    pub(crate) const PLACES: Self = Self(11);
    /// A standard queue that SQS made.
    pub(crate) const TASKS: Self = Self(12);
    /// A FIFO queue: each group is in order, whoever consumes it.
    pub(crate) const GROUPS: Self = Self(13);
    const COUNT: u8 = 14;

    /// The name of the queue that messages are published to.
    pub(crate) const fn name(self) -> &'static str {
        // The origins stand first, in the order of their families.
        QUEUES[self.0 as usize].name
    }
}

impl Families {
    pub(crate) const FAN: Self = Self(1 << 7 | 1 << 8 | 1 << 9);

    pub(crate) const fn one(family: Family) -> Self {
        Self(1 << family.0)
    }

    pub(crate) const fn from_bits(bits: u16) -> Option<Self> {
        if bits == 0 || bits >> Family::COUNT != 0 { None } else { Some(Self(bits)) }
    }

    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    pub(crate) const fn contains(self, family: Family) -> bool {
        self.0 & (1 << family.0) != 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Family> {
        (0..Family::COUNT).map(Family).filter(move |family| self.contains(*family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_and_places_name_the_queues_they_mean() {
        assert_eq!((Place::EXPIRED.name(), Place::PRIORITIES.name()), ("expired", "priorities"));
        assert_eq!((Family::LIMITED.name(), Family::FAN_C.name()), ("limited", "fan.c"));
        assert_eq!(Place::LIMITED_DEAD.family(), Family::LIMITED);
        assert!(Place::REJECTS_DEAD.is_dead() && !Place::REJECTS.is_dead());
        assert_eq!(Families::FAN.iter().count(), 3);
        assert!(Place::all().take(14).all(|place| place.name() == place.family().name()));
    }
}
