//! Users and what they may do: the rules of RabbitMQ's permissions, and the state that they are read from.
//!
//! [`Access`] holds all users, with their passwords' hashes, tags, permissions, limits, access keys and tokens. Like a queue
//! it *decides* what a change comes to and then *applies* the records; the broker writes them down in between. A copy of it
//! costs nothing, because copies share what has not changed: that is what readers have.
//!
//! Whether somebody is who he says he is, is not decided here: hashes and keys are bytes. What he may do is
//! ([`User::may`], [`User::may_topic`]; for those who come with a signed token, [`Scopes`]). A virtual host is a text here; whether there is one of that name others know.

mod change;
mod error;
mod machine;
mod name;
mod pattern;
mod record;
mod rules;
mod scopes;
mod snapshot;
mod state;
mod user;

pub use error::AccessError;
pub use name::{Tag, UserName, check_vhost};
pub use pattern::{Pattern, PatternError};
pub use record::AccessRecord;
pub use rules::{Permission, Resource, ResourceKind};
pub use scopes::Scopes;
pub use state::Access;
pub use user::{
    AccessKey, ApiToken, HashAlgorithm, PasswordHash, PermissionTexts, Permissions, TokenHash,
    TopicPermissions, User, UserLimits,
};
