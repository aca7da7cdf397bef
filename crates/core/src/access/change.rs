//! Whether a change can be made.

use nexo_types::{Timestamp, limits};

use super::error::AccessError;
use super::name::{UserName, check, check_vhost};
use super::pattern::Pattern;
use super::record::AccessRecord;
use super::state::Access;
use super::user::User;

impl Access {
    /// What changes come to, all of them or none: those that change something. They are decided one after the other, so that
    /// permissions may be given to a user that is made by the same changes. Keys and tokens are as old as their records,
    /// whatever the changes say.
    ///
    /// # Errors
    /// Says what is wrong with the first that cannot be made.
    pub fn decide_changes(
        &self,
        now: Timestamp,
        changes: &[AccessRecord],
    ) -> Result<Vec<AccessRecord>, AccessError> {
        let mut trial = self.clone();
        let mut decided = Vec::with_capacity(changes.len());
        for change in changes {
            trial.check(change)?;
            if trial.is_already(change) {
                continue;
            }
            let change = change.clone().decided_at(now);
            trial.apply_record(&change);
            decided.push(change);
        }
        Ok(decided)
    }

    fn check(&self, change: &AccessRecord) -> Result<(), AccessError> {
        match change {
            AccessRecord::Add { user, password, tags } => {
                if self.users.contains_key(user) {
                    return Err(AccessError::Exists { name: user.clone() });
                }
                at_most("users", limits::USERS_MAX, self.users.len() + 1)?;
                at_most("tags of a user", limits::USER_TAGS_MAX, tags.len())?;
                check_hash_len(password.as_ref().map(|hash| hash.hash.len()))
            }
            AccessRecord::SetPassword { user, password } => {
                self.known(user)?;
                check_hash_len(password.as_ref().map(|hash| hash.hash.len()))
            }
            AccessRecord::SetTags { user, tags } => {
                self.known(user)?;
                at_most("tags of a user", limits::USER_TAGS_MAX, tags.len())
            }
            AccessRecord::Delete { user } | AccessRecord::SetLimits { user, .. } => {
                self.known(user).map(drop)
            }
            AccessRecord::SetPermissions { user, vhost, permissions } => {
                let known = self.known(user)?;
                check_vhost(vhost)?;
                permissions.compile()?;
                let is_new = !known.permissions.contains_key(vhost);
                let what = "virtual hosts with permissions of a user";
                at_most(what, limits::USER_PERMISSIONS_MAX, known.permissions.len() + usize::from(is_new))
            }
            AccessRecord::ClearPermissions { user, .. } | AccessRecord::ClearTopics { user, .. } => {
                self.known(user).map(drop)
            }
            AccessRecord::SetTopics { user, vhost, exchange, write, read } => {
                let known = self.known(user)?;
                check_vhost(vhost)?;
                check(exchange, "exchange name", limits::EXCHANGE_NAME_BYTES_MAX)?;
                for text in [write, read] {
                    Pattern::for_topics(text, user.as_str(), vhost)?;
                }
                let is_new = !known.topics.contains_key(&(vhost.clone(), exchange.clone()));
                let what = "topic permissions of a user";
                at_most(what, limits::USER_PERMISSIONS_MAX, known.topics.len() + usize::from(is_new))
            }
            AccessRecord::SetDefaultVhost { user, vhost } => {
                self.known(user)?;
                vhost.as_deref().map_or(Ok(()), |vhost| Ok(check_vhost(vhost)?))
            }
            AccessRecord::AddKey { user, id, key } => {
                let known = self.known(user)?;
                check(id, "access key's id", limits::SECRET_BYTES_MAX)?;
                check(&key.secret, "secret of an access key", limits::SECRET_BYTES_MAX)?;
                if self.keys.contains_key(id) {
                    return Err(AccessError::IdTaken { what: "access key", id: id.to_string() });
                }
                at_most("access keys of a user", limits::USER_KEYS_MAX, known.keys.len() + 1)
            }
            AccessRecord::AddToken { user, id, token } => {
                let known = self.known(user)?;
                check(id, "token's id", limits::SECRET_BYTES_MAX)?;
                if !token.description.is_empty() {
                    check(&token.description, "token's description", limits::SECRET_BYTES_MAX)?;
                }
                if self.tokens.contains_key(id) {
                    return Err(AccessError::IdTaken { what: "token", id: id.to_string() });
                }
                at_most("tokens of a user", limits::USER_KEYS_MAX, known.tokens.len() + 1)
            }
            AccessRecord::RemoveKey { user, id } => {
                let has = self.known(user)?.keys.contains_key(id);
                has.then_some(()).ok_or_else(|| no_such_id(user, "access key", id))
            }
            AccessRecord::RemoveToken { user, id } => {
                let has = self.known(user)?.tokens.contains_key(id);
                has.then_some(()).ok_or_else(|| no_such_id(user, "token", id))
            }
            AccessRecord::ForgetVhost { .. } => Ok(()),
        }
    }

    /// Whether everything is as this change would make it.
    fn is_already(&self, change: &AccessRecord) -> bool {
        let user = |name: &UserName| self.users.get(name);
        match change {
            AccessRecord::SetPermissions { user: name, vhost, permissions } => user(name)
                .and_then(|user| user.permissions.get(vhost))
                .is_some_and(|held| held.texts() == *permissions),
            AccessRecord::ClearPermissions { user: name, vhost } => {
                user(name).is_some_and(|user| !user.permissions.contains_key(vhost))
            }
            AccessRecord::SetTags { user: name, tags } => user(name).is_some_and(|user| user.tags == *tags),
            AccessRecord::SetLimits { user: name, limits } => {
                user(name).is_some_and(|user| user.limits == *limits)
            }
            AccessRecord::SetDefaultVhost { user: name, vhost } => {
                user(name).is_some_and(|user| user.default_vhost == *vhost)
            }
            AccessRecord::ForgetVhost { vhost } => !self.users.values().any(|user| user.knows(vhost)),
            AccessRecord::Add { .. }
            | AccessRecord::SetPassword { .. }
            | AccessRecord::Delete { .. }
            | AccessRecord::SetTopics { .. }
            | AccessRecord::ClearTopics { .. }
            | AccessRecord::AddKey { .. }
            | AccessRecord::RemoveKey { .. }
            | AccessRecord::AddToken { .. }
            | AccessRecord::RemoveToken { .. } => false,
        }
    }

    fn known(&self, name: &UserName) -> Result<&User, AccessError> {
        let user = self.users.get(name).map(|user| &**user);
        user.ok_or_else(|| AccessError::NoSuchUser { name: name.clone() })
    }
}

fn no_such_id(name: &UserName, what: &'static str, id: &str) -> AccessError {
    AccessError::NoSuchId { name: name.clone(), what, id: id.to_owned() }
}

fn check_hash_len(len: Option<usize>) -> Result<(), AccessError> {
    at_most("bytes of a password's hash", limits::SECRET_BYTES_MAX, len.unwrap_or(0))
}

fn at_most(what: &'static str, max: usize, count: usize) -> Result<(), AccessError> {
    if count > max { Err(AccessError::TooMany { what, max }) } else { Ok(()) }
}
