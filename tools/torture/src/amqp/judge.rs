//! What a delivery is to the ledger: how often it came, and what RabbitMQ's `x-death` must say of a dead letter.

use super::wire::Delivered;
use crate::clock;
use crate::ledger::{Attempt, Cause, Delivery, SessionId, Violation, What};
use crate::queues::{Make, Place, Role};
use crate::stamp::Stamp;
use crate::world::World;

/// One entry of `x-death`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Death {
    pub(super) queue: String,
    pub(super) reason: String,
    pub(super) times: i64,
}

/// What came from `place`; `None` if it carries no stamp of ours, which is told.
pub(crate) fn judge(
    world: &World,
    session: SessionId,
    delivered: &Delivered,
    place: Place,
) -> Option<Delivery> {
    let Some(stamp) = delivered.stamp else {
        let fact = format!("a message without a stamp came from '{}'", place.name());
        world.ledger().report(Violation::new(What::Invented, fact));
        return None;
    };
    let attempt = match (place.queue().make, delivered.count) {
        (Make::Quorum, count) => Attempt::exact(count.unwrap_or(0) + 1),
        (Make::Classic | Make::Native | Make::Sqs | Make::ByItself, _) => {
            Attempt::redelivered(delivered.redelivered)
        }
    };
    let cause = cause(world, &stamp, place, delivered.deaths.as_deref());
    Some(Delivery { session, stamp, place, attempt, until: None, cause, at: clock::now() })
}

/// Why a message that came from `place` died, by its own word; a word that cannot be is told. Nothing dies twice here, so
/// there is one entry, it counts one, and it names the queue that the message was published to.
fn cause(world: &World, stamp: &Stamp, place: Place, deaths: Option<&[Death]>) -> Option<Cause> {
    let found = read(place, deaths);
    if let Err(fact) = &found {
        let copy = stamp.copy_in(place.family());
        world.ledger().tell(What::DeadLetter, format!("{copy} came from '{}': {fact}", place.name()), copy);
    }
    found.ok().flatten()
}

fn read(place: Place, deaths: Option<&[Death]>) -> Result<Option<Cause>, String> {
    match (place.queue().role, deaths) {
        (Role::Origin, None) => Ok(None),
        (Role::Origin, Some(deaths)) => Err(format!("it never died, and says {deaths:?}")),
        (Role::Dead, Some([Death { queue, reason, times: 1 }])) if queue == place.family().name() => {
            match reason.as_str() {
                "rejected" => Ok(Some(Cause::Rejected)),
                "delivery_limit" => Ok(Some(Cause::Failed { attempts: None })),
                "expired" => Ok(Some(Cause::Expired)),
                other => Err(format!("it died of '{other}'")),
            }
        }
        (Role::Dead, deaths) => Err(format!("it died once, and says {deaths:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(queue: &str, reason: &str, times: i64) -> Death {
        Death { queue: queue.to_owned(), reason: reason.to_owned(), times }
    }

    #[test]
    fn a_dead_letter_says_once_why_it_died_and_where() {
        let read = |deaths: &[Death]| read(Place::REJECTS_DEAD, Some(deaths));
        assert_eq!(read(&[death("rejects", "rejected", 1)]), Ok(Some(Cause::Rejected)));
        let failed = Cause::Failed { attempts: None };
        assert_eq!(read(&[death("rejects", "delivery_limit", 1)]), Ok(Some(failed)));
        let twice = [death("rejects", "rejected", 1), death("rejects.dead", "expired", 1)];
        for wrong in [&[][..], &twice, &[death("rejects", "rejected", 2)], &[death("limited", "rejected", 1)]]
        {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        assert!(read(&[death("rejects", "maxlen", 1)]).is_err());
    }

    #[test]
    fn only_dead_letters_speak_of_death() {
        assert_eq!(read(Place::REJECTS, None), Ok(None));
        assert!(read(Place::REJECTS_DEAD, None).is_err());
        assert!(read(Place::REJECTS, Some(&[death("rejects", "rejected", 1)])).is_err());
    }
}
