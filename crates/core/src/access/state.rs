//! All users, and what applying a record makes of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::name::UserName;
use super::pattern::Pattern;
use super::record::AccessRecord;
use super::user::{Permissions, TopicPermissions, User};

/// All users. A copy costs nothing: it shares what has not changed.
#[derive(Clone, Debug, Default)]
pub struct Access {
    pub(super) users: Arc<BTreeMap<UserName, Arc<User>>>,
    /// Whose a key of SQS is.
    pub(super) keys: Arc<BTreeMap<Arc<str>, UserName>>,
    /// Whose a token is.
    pub(super) tokens: Arc<BTreeMap<Arc<str>, UserName>>,
    /// Whether there ever was a user. A broker makes its first one once: who deletes it does not want it back.
    pub(super) had_users: bool,
}

impl Access {
    /// Nobody.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there ever was a user.
    #[must_use]
    pub const fn had_users(&self) -> bool {
        self.had_users
    }

    /// A user.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<&Arc<User>> {
        self.users.get(name)
    }

    /// All users, by name.
    pub fn users(&self) -> impl ExactSizeIterator<Item = &Arc<User>> {
        self.users.values()
    }

    /// Whose this key of SQS is.
    #[must_use]
    pub fn owner_of_key(&self, id: &str) -> Option<&Arc<User>> {
        self.keys.get(id).and_then(|name| self.users.get(name))
    }

    /// Whose this token is.
    #[must_use]
    pub fn owner_of_token(&self, id: &str) -> Option<&Arc<User>> {
        self.tokens.get(id).and_then(|name| self.users.get(name))
    }

    /// Applies a record that was decided, or was read from the log.
    pub fn replay(&mut self, record: &AccessRecord) {
        self.apply_record(record);
    }

    pub(super) fn apply_record(&mut self, record: &AccessRecord) {
        match record {
            AccessRecord::Add { user, password, tags } => {
                self.had_users = true;
                let new = User::new(user.clone(), password.clone(), tags.clone());
                Arc::make_mut(&mut self.users).insert(user.clone(), Arc::new(new));
            }
            AccessRecord::Delete { user } => self.delete(user),
            AccessRecord::SetPassword { user, password } => {
                self.change(user, |user| user.password.clone_from(password));
            }
            AccessRecord::SetTags { user, tags } => self.change(user, |user| user.tags.clone_from(tags)),
            AccessRecord::SetPermissions { user, vhost, permissions } => {
                let compiled = permissions.compile().unwrap_or_else(|_| Permissions {
                    configure: Pattern::nothing(&permissions.configure),
                    write: Pattern::nothing(&permissions.write),
                    read: Pattern::nothing(&permissions.read),
                });
                self.change(user, |user| drop(user.permissions.insert(Arc::clone(vhost), compiled)));
            }
            AccessRecord::ClearPermissions { user, vhost } => {
                self.change(user, |user| drop(user.permissions.remove(vhost)));
            }
            AccessRecord::SetTopics { user, vhost, exchange, write, read } => {
                let name = user.as_str().to_owned();
                let compiled = |text: &str| {
                    Pattern::for_topics(text, &name, vhost).unwrap_or_else(|_| Pattern::nothing(text))
                };
                let topics = TopicPermissions { write: compiled(write), read: compiled(read) };
                let key = (Arc::clone(vhost), Arc::clone(exchange));
                self.change(user, |user| drop(user.topics.insert(key, topics)));
            }
            AccessRecord::ClearTopics { user, vhost, exchange } => self.change(user, |user| {
                let is_kept = |of: &Arc<str>| exchange.as_ref().is_some_and(|exchange| exchange != of);
                user.topics.retain(|(at, of), _| at != vhost || is_kept(of));
            }),
            AccessRecord::SetLimits { user, limits } => self.change(user, |user| user.limits = *limits),
            AccessRecord::SetDefaultVhost { user, vhost } => {
                self.change(user, |user| user.default_vhost.clone_from(vhost));
            }
            AccessRecord::AddKey { user, id, key } => {
                self.change(user, |user| drop(user.keys.insert(Arc::clone(id), key.clone())));
                Arc::make_mut(&mut self.keys).insert(Arc::clone(id), user.clone());
            }
            AccessRecord::RemoveKey { user, id } => {
                self.change(user, |user| drop(user.keys.remove(id)));
                Arc::make_mut(&mut self.keys).remove(id);
            }
            AccessRecord::AddToken { user, id, token } => {
                self.change(user, |user| drop(user.tokens.insert(Arc::clone(id), token.clone())));
                Arc::make_mut(&mut self.tokens).insert(Arc::clone(id), user.clone());
            }
            AccessRecord::RemoveToken { user, id } => {
                self.change(user, |user| drop(user.tokens.remove(id)));
                Arc::make_mut(&mut self.tokens).remove(id);
            }
            AccessRecord::ForgetVhost { vhost } => self.forget_vhost(vhost),
        }
    }

    fn delete(&mut self, name: &UserName) {
        let Some(user) = Arc::make_mut(&mut self.users).remove(name) else { return };
        for id in user.keys.keys() {
            Arc::make_mut(&mut self.keys).remove(id);
        }
        for id in user.tokens.keys() {
            Arc::make_mut(&mut self.tokens).remove(id);
        }
    }

    /// Drops what belongs to a virtual host.
    fn forget_vhost(&mut self, vhost: &Arc<str>) {
        for user in Arc::make_mut(&mut self.users).values_mut().filter(|user| user.knows(vhost)) {
            let user = Arc::make_mut(user);
            user.permissions.remove(vhost);
            user.topics.retain(|(at, _), _| at != vhost);
            if user.default_vhost.as_ref() == Some(vhost) {
                user.default_vhost = None;
            }
        }
    }

    /// Changes a user, who is there if the record was decided.
    fn change(&mut self, name: &UserName, change: impl FnOnce(&mut User)) {
        if let Some(user) = Arc::make_mut(&mut self.users).get_mut(name) {
            change(Arc::make_mut(user));
        }
    }
}

impl User {
    /// Whether anything of the user belongs to a virtual host.
    pub(super) fn knows(&self, vhost: &Arc<str>) -> bool {
        self.permissions.contains_key(vhost)
            || self.default_vhost.as_ref() == Some(vhost)
            || self.topics.keys().any(|(at, _)| at == vhost)
    }
}
