//! The cast: who publishes, who consumes, and over which protocol. All are at work on the same queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::amqp::{self, Role};
use crate::native::{self, Pull};
use crate::places;
use crate::plan::Clients;
use crate::priorities;
use crate::queues::Place;
use crate::sqs;
use crate::stats;
use crate::workload::Workload;
use crate::world::{Ear, RunPhase, World};

/// Consumers publish a little: the confirms prove that their acknowledgements are durable.
const AMQP: [Role; 4] = [
    Role { publishes: 350, consumes: &[], prefetch: 0 },
    Role { publishes: 350, consumes: &[Place::FAN_C], prefetch: 0 },
    Role {
        publishes: 60,
        consumes: &[
            Place::WORK_A,
            Place::WORK_B,
            Place::NATIVE,
            Place::FAN_A,
            Place::LIMITED,
            Place::REJECTS,
            Place::TASKS,
        ],
        prefetch: 40,
    },
    Role {
        publishes: 60,
        consumes: &[
            Place::WORK_A,
            Place::FAN_B,
            Place::REJECTS,
            Place::REJECTS_DEAD,
            Place::EXPIRED,
            Place::GROUPS,
        ],
        prefetch: 150,
    },
];
const SUBSCRIBED: [Place; 7] =
    [Place::WORK_A, Place::WORK_B, Place::NATIVE, Place::LIMITED, Place::FAN_A, Place::FAN_C, Place::TASKS];
const PULLED: [Pull; 2] = [
    Pull { places: &[Place::WORK_B, Place::NATIVE, Place::REJECTS, Place::FAN_B, Place::GROUPS], max: 20 },
    Pull { places: &[Place::EXPIRED, Place::LIMITED_DEAD, Place::REJECTS_DEAD, Place::LIMITED], max: 60 },
];
const STREAM_RATES: [u32; 2] = [350, 350];
const SENDER_RATES: [u32; 5] = [150; 5];
/// How many receive from each queue: who waits longest is served first, so a few have a fair part of the messages.
const RECEIVED: [(Place, usize); 13] = [
    (Place::WORK_A, 3),
    (Place::WORK_B, 3),
    (Place::NATIVE, 2),
    (Place::TASKS, 3),
    (Place::GROUPS, 2),
    (Place::LIMITED, 2),
    (Place::REJECTS, 2),
    (Place::FAN_A, 1),
    (Place::FAN_B, 1),
    (Place::FAN_C, 1),
    (Place::LIMITED_DEAD, 1),
    (Place::REJECTS_DEAD, 1),
    (Place::EXPIRED, 1),
];
/// Between a connection that ended and the next.
const PAUSE: Duration = Duration::from_millis(40);

/// What one client does.
#[derive(Clone, Copy, Debug)]
enum Part {
    Amqp(Role),
    Transactions,
    /// Pushes on a stream, this many a second.
    Stream(u32),
    /// Pushes that are repeated until they are answered.
    Repeating,
    /// The same over AMQP.
    RepeatingAmqp,
    Subscriber(Place),
    Puller(Pull),
    /// The only consumer of the ordered queue.
    InOrder,
    Priorities,
    Places,
    /// Sends over SQS, this many a second.
    Sender(u32),
    /// Sends to the FIFO queue, again and again until it is answered.
    GroupSender,
    Receiver(Place),
}

impl Part {
    fn consumes(self) -> bool {
        match self {
            Self::Amqp(role) => !role.consumes.is_empty(),
            Self::Subscriber(_) | Self::InOrder | Self::Receiver(_) => true,
            // These publish, or have a queue of their own and no ear for it, or take little.
            Self::Transactions
            | Self::Stream(_)
            | Self::Repeating
            | Self::RepeatingAmqp
            | Self::Puller(_)
            | Self::Priorities
            | Self::Places
            | Self::Sender(_)
            | Self::GroupSender => false,
        }
    }
}

/// Everybody, in the order of their numbers.
fn parts() -> impl Iterator<Item = Part> {
    let parts =
        AMQP.map(Part::Amqp).into_iter().chain([Part::Transactions, Part::Repeating, Part::RepeatingAmqp]);
    let parts = parts.chain(STREAM_RATES.map(Part::Stream)).chain(SUBSCRIBED.map(Part::Subscriber));
    let parts = parts.chain(PULLED.map(Part::Puller)).chain([Part::InOrder, Part::Priorities, Part::Places]);
    let parts = parts.chain(SENDER_RATES.map(Part::Sender)).chain([Part::GroupSender; 2]);
    let receivers =
        RECEIVED.iter().flat_map(|(place, count)| std::iter::repeat_n(Part::Receiver(*place), *count));
    parts.chain(receivers)
}

/// Those that consume, and stall when they are told to.
pub(crate) fn consumers() -> Clients {
    Clients::of(parts().enumerate().filter(|(_, part)| part.consumes()).map(|(number, _)| number))
}

/// Starts everybody; they end with the run.
pub(crate) fn start(world: &Arc<World>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for (number, part) in parts().enumerate() {
        let (workload, ear) = (Workload::new(world), world.ear(number));
        tasks.spawn(play(part, Arc::clone(world), workload, ear));
    }
    tasks
}

/// Works in sessions, one after the other, until the run is over.
async fn play(part: Part, world: Arc<World>, mut workload: Workload, mut ear: Ear) {
    let mut owed = VecDeque::new();
    let mut owed_in_order = Vec::new();
    let (world, workload, ear) = (&*world, &mut workload, &mut ear);
    while ear.phase() != RunPhase::Over {
        // Why a connection ended is the broker's business; what follows from it is in the books.
        match part {
            Part::Amqp(role) => drop(amqp::run(world, role, workload, ear, None).await),
            Part::Transactions => drop(amqp::transact(world, workload, ear).await),
            Part::Stream(rate) => native::push_stream(world, workload, ear, rate).await,
            Part::Repeating => native::push(world, workload, ear, &mut owed).await,
            Part::RepeatingAmqp => {
                drop(amqp::publish_until_confirmed(world, workload, ear, &mut owed).await);
            }
            Part::Subscriber(place) => native::subscribe(world, place, workload, ear, None).await,
            Part::Puller(pull) => native::pop(world, pull, workload, ear).await,
            Part::InOrder => consume_in_order(world, workload, ear).await,
            Part::Priorities => priorities::fill_and_drain(world, workload, ear).await,
            Part::Places => places::take_and_return(world, workload, ear).await,
            Part::Sender(rate) => sqs::send(world, workload, ear, rate).await,
            Part::GroupSender => {
                sqs::send_until_answered(world, workload, ear, &mut owed_in_order).await;
            }
            Part::Receiver(place) => sqs::receive(world, place, workload, ear, None).await,
        }
        sleep(PAUSE).await;
    }
}

/// Consumes over one protocol for a while; the next time, perhaps over another.
async fn consume_in_order(world: &World, workload: &mut Workload, ear: &mut Ear) {
    if !stats::wait_until_free(world, Place::ORDERED, ear).await {
        return;
    }
    let until = Some(Instant::now() + Duration::from_millis(workload.chances.u64(500..6_000)));
    match workload.chances.u8(..5) {
        0..2 => {
            let prefetch = workload.chances.u16(1..100);
            let role = Role { publishes: 20, consumes: &[Place::ORDERED], prefetch };
            let _ = amqp::run(world, role, workload, ear, until).await;
        }
        2..4 => native::subscribe(world, Place::ORDERED, workload, ear, until).await,
        _ => sqs::receive(world, Place::ORDERED, workload, ear, until).await,
    }
}
