//! Who is connected: how many connections and channels a user has, and how they are told to end when the user is deleted.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nexo_broker::access::UserName;
use parking_lot::Mutex;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::identity::Identity;

/// A limit of a user was met, in RabbitMQ's words.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LimitReached {
    /// As many connections as there may be.
    #[error("connection refused for user '{user}': user connection limit ({max}) is reached")]
    Connections {
        /// The user whose connections they are.
        user: UserName,
        /// Connections at the same time, of this user.
        max: u32,
    },
    /// As many channels as there may be.
    #[error(
        "number of channels opened for user '{user}' has reached the maximum allowed user limit of ({max})"
    )]
    Channels {
        /// The user whose channels they are.
        user: UserName,
        /// Channels of all connections of this user.
        max: u32,
    },
}

/// Everybody who is connected.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    users: Mutex<HashMap<UserName, OfUser>>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct OfUser {
    /// What tells them to end, and whether they count as connections.
    present: HashMap<u64, (CancellationToken, Counted)>,
    channels: usize,
}

/// Whether something counts as a connection of its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Connection,
    /// A stream or a call: its connection may be shared by many users.
    Nothing,
}

/// Somebody is connected, as long as this is there.
#[derive(Debug)]
pub struct Presence {
    sessions: Arc<Sessions>,
    identity: Identity,
    id: u64,
    ended: CancellationToken,
}

/// A channel of somebody who is connected, as long as this is there.
#[derive(Debug)]
pub struct ChannelPresence(Arc<Presence>);

/// Resolves when a connection is to end because its user is gone.
#[derive(Clone, Debug)]
pub struct Ended(CancellationToken);

impl Ended {
    /// Waits for it.
    pub async fn wait(&self) {
        self.0.cancelled().await;
    }

    /// Whether it is so.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.0.is_cancelled()
    }
}

impl Sessions {
    pub(crate) fn enter(
        self: &Arc<Self>,
        identity: &Identity,
        counted: Counted,
    ) -> Result<Presence, LimitReached> {
        let max = identity.limits().max_connections.filter(|_| counted == Counted::Connection);
        let user = identity.name();
        let mut users = self.users.lock();
        let of_user = users.entry(user.clone()).or_default();
        let connections =
            of_user.present.values().filter(|(_, counted)| *counted == Counted::Connection).count();
        if let Some(max) = max
            && connections >= max as usize
        {
            if of_user.present.is_empty() {
                users.remove(user);
            }
            return Err(LimitReached::Connections { user: user.clone(), max });
        }
        let (id, ended) = (self.next.fetch_add(1, Ordering::Relaxed), CancellationToken::new());
        of_user.present.insert(id, (ended.clone(), counted));
        drop(users);
        // Deleted in between: whoever deleted it did not see this one.
        if !identity.is_known() {
            ended.cancel();
        }
        Ok(Presence { sessions: Arc::clone(self), identity: identity.clone(), id, ended })
    }

    /// Tells everything of a user to end.
    pub(crate) fn end(&self, user: &UserName) {
        let users = self.users.lock();
        for (ended, _) in users.get(user).into_iter().flat_map(|of_user| of_user.present.values()) {
            ended.cancel();
        }
    }
}

impl Presence {
    /// Who it is.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What tells it to end.
    #[must_use]
    pub fn ended(&self) -> Ended {
        Ended(self.ended.clone())
    }

    /// One more channel.
    ///
    /// # Errors
    /// If the user has as many as it may have.
    pub fn open_channel(self: &Arc<Self>) -> Result<ChannelPresence, LimitReached> {
        let user = self.identity.name();
        let max = self.identity.limits().max_channels;
        let mut users = self.sessions.users.lock();
        let of_user = users.entry(user.clone()).or_default();
        if let Some(max) = max
            && of_user.channels >= max as usize
        {
            return Err(LimitReached::Channels { user: user.clone(), max });
        }
        of_user.channels += 1;
        Ok(ChannelPresence(Arc::clone(self)))
    }
}

impl Drop for ChannelPresence {
    fn drop(&mut self) {
        // The connection is there as long as its channels are, and the entry of its user with it.
        if let Some(of_user) = self.0.sessions.users.lock().get_mut(self.0.identity.name()) {
            of_user.channels = of_user.channels.saturating_sub(1);
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut users = self.sessions.users.lock();
        let user = self.identity.name();
        if let Some(of_user) = users.get_mut(user) {
            of_user.present.remove(&self.id);
            if of_user.present.is_empty() {
                users.remove(user);
            }
        }
    }
}
