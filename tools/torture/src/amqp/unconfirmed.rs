//! What one connection has published and acknowledged, and what the confirms prove of both.

use std::collections::{BTreeMap, VecDeque};

use crate::clock::{self, Micros};
use crate::ledger::{SessionId, Violation, What};
use crate::stamp::{Copy, Durability, Stamp};
use crate::world::World;

/// A publish that waits for its confirm.
#[derive(Clone, Copy, Debug)]
enum Publish {
    Message {
        stamp: Stamp,
        sent_at: Micros,
    },
    /// It goes nowhere, and must come back first.
    Stray {
        is_back: bool,
    },
}

/// The books of one connection.
#[derive(Debug, Default)]
pub(super) struct Unconfirmed {
    last_tag: u64,
    publishes: BTreeMap<u64, Publish>,
    /// AMQP does not answer acknowledgements. Those that come with publishes are written behind them. But a confirm of a later
    /// publish means that they have come, so whatever is published after that lies behind them, and its sync covers them.
    acks: VecDeque<Ack>,
    /// Those of which it is known that they have come, each with the number of the publish before that was known.
    heard: VecDeque<Ack>,
}

/// An acknowledgement, and the number of the last publish that may lie before it.
#[derive(Clone, Copy, Debug)]
struct Ack {
    behind: u64,
    copy: Copy,
}

impl Unconfirmed {
    pub(super) fn published(&mut self, stamp: Stamp, sent_at: Micros) {
        self.last_tag += 1;
        self.publishes.insert(self.last_tag, Publish::Message { stamp, sent_at });
    }

    pub(super) fn published_stray(&mut self) {
        self.last_tag += 1;
        self.publishes.insert(self.last_tag, Publish::Stray { is_back: false });
    }

    pub(super) fn acked(&mut self, copy: Copy) {
        self.acks.push_back(Ack { behind: self.last_tag, copy });
    }

    pub(super) fn len(&self) -> usize {
        self.publishes.len()
    }

    /// A message came back. They come in the order of publishing, before their confirms.
    pub(super) fn returned(&mut self) {
        let strays = self.publishes.values_mut().filter_map(|publish| match publish {
            Publish::Stray { is_back } if !*is_back => Some(is_back),
            Publish::Stray { .. } | Publish::Message { .. } => None,
        });
        if let Some(is_back) = strays.into_iter().next() {
            *is_back = true;
        }
    }

    pub(super) fn confirmed(&mut self, world: &World, session: SessionId, tag: u64, multiple: bool) {
        let now = clock::now();
        let mut ledger = world.ledger();
        for (tag, publish) in self.take(tag, multiple) {
            match publish {
                Publish::Message { stamp, sent_at } => {
                    ledger.confirmed(&stamp, session, sent_at, now);
                    if stamp.durability == Durability::Transient {
                        continue;
                    }
                    take_before(&mut self.heard, tag).for_each(|ack| ledger.acked(ack.copy, now));
                    let behind = self.last_tag;
                    self.heard.extend(take_before(&mut self.acks, tag).map(|ack| Ack { behind, ..ack }));
                }
                Publish::Stray { is_back: true } => ledger.not_routed(),
                Publish::Stray { is_back: false } => {
                    let fact = format!("publish {tag} of {session} went nowhere and was only confirmed");
                    ledger.report(Violation::new(What::NotReturned, fact));
                }
            }
        }
    }

    pub(super) fn refused(&mut self, world: &World, tag: u64, multiple: bool) {
        let now = clock::now();
        for (_, publish) in self.take(tag, multiple) {
            if let Publish::Message { stamp, .. } = publish {
                world.ledger().refused(&stamp, now);
            }
        }
    }

    /// The connection is over: what became of the rest will never be known.
    pub(super) fn give_up(&mut self, world: &World) {
        let now = clock::now();
        let mut ledger = world.ledger();
        for publish in std::mem::take(&mut self.publishes).into_values() {
            if let Publish::Message { stamp, .. } = publish {
                ledger.uncertain(&stamp, now);
            }
        }
        for _ in self.acks.drain(..).chain(self.heard.drain(..)) {
            ledger.ack_unsure();
        }
    }

    fn take(&mut self, tag: u64, multiple: bool) -> Vec<(u64, Publish)> {
        if !multiple {
            return self.publishes.remove(&tag).map(|publish| (tag, publish)).into_iter().collect();
        }
        let rest = self.publishes.split_off(&(tag + 1));
        std::mem::replace(&mut self.publishes, rest).into_iter().collect()
    }
}

/// Those that lie before a publish.
fn take_before(acks: &mut VecDeque<Ack>, tag: u64) -> impl Iterator<Item = Ack> + '_ {
    let count = acks.partition_point(|ack| ack.behind < tag);
    acks.drain(..count)
}
