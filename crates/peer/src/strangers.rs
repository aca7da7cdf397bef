//! Connections that have not proven yet whose they are: a bounded number, of which the oldest makes room. A node needs some
//! round trips for its hello; who only holds connections open is gone before that keeps anybody out.

use std::collections::VecDeque;
use std::sync::Arc;

use nexo_types::limits::PEER_STRANGERS_MAX;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// By number, the oldest first.
    tokens: VecDeque<(u64, CancellationToken)>,
}

/// One of them, as long as it is there.
#[derive(Debug)]
pub(crate) struct Stranger {
    all: Arc<Strangers>,
    number: u64,
    sent_away: CancellationToken,
}

impl Strangers {
    /// Takes one more in.
    pub(crate) fn admit(self: &Arc<Self>) -> Stranger {
        let sent_away = CancellationToken::new();
        let mut waiting = self.waiting.lock();
        let number = waiting.next;
        waiting.next += 1;
        if waiting.tokens.len() >= PEER_STRANGERS_MAX
            && let Some((_, oldest)) = waiting.tokens.pop_front()
        {
            oldest.cancel();
        }
        waiting.tokens.push_back((number, sent_away.clone()));
        drop(waiting);
        Stranger { all: Arc::clone(self), number, sent_away }
    }
}

impl Stranger {
    /// Resolves when it has to make room.
    pub(crate) async fn sent_away(&self) {
        self.sent_away.cancelled().await;
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut waiting = self.all.waiting.lock();
        if let Ok(at) = waiting.tokens.binary_search_by_key(&self.number, |(number, _)| *number) {
            waiting.tokens.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_room_and_who_is_known_takes_none() {
        let strangers = Arc::new(Strangers::default());
        let mut all: Vec<Stranger> = (0..PEER_STRANGERS_MAX).map(|_| strangers.admit()).collect();
        // The first has said who it is.
        drop(all.remove(0));
        let one_more = strangers.admit();
        assert!(all.iter().all(|stranger| !stranger.sent_away.is_cancelled()));
        let another = strangers.admit();
        let gone: Vec<bool> = all.iter().map(|stranger| stranger.sent_away.is_cancelled()).collect();
        assert!(gone[0] && !gone[1..].contains(&true));
        assert!(!one_more.sent_away.is_cancelled() && !another.sent_away.is_cancelled());
        drop((all, one_more, another));
        assert!(strangers.waiting.lock().tokens.is_empty());
    }
}
