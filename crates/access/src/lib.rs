//! Who may come in, and what he may do there. Every way into the broker asks here, and nobody else decides.
//!
//! The rules are `nexo_core::access`'s, and the broker keeps users and permissions. Here is what needs a clock, randomness
//! and threads: checking passwords, keys and tokens ([`Logins`]), what somebody who came in may do ([`Identity`]), and
//! changing users.
//!
//! - `logins.rs`: from a password, a token or a key to an [`Identity`]. `throttle.rs`: wrong ones are slowed down;
//!   `checked.rs`: right ones are remembered. `password.rs`: hashes. `authorization.rs`: the header of HTTP and gRPC.
//!   `oauth/`: tokens that somebody else has signed.
//! - `identity.rs`: what somebody may do; `publishing.rs`: the same for every message, remembered; `moves.rs`: the same while
//!   messages are moved; `schedules.rs`: for messages that the broker sends by itself.
//! - `sessions.rs`: who is connected: limits of connections and channels, and the end of a user's connections.
//! - `users.rs`: making, changing and deleting users, keys and tokens. `first.rs`: the first user of a new broker.

mod authorization;
mod checked;
mod first;
mod identity;
mod limits;
mod logins;
mod moves;
mod oauth;
mod password;
mod publishing;
mod schedules;
mod sessions;
mod throttle;
mod users;

pub use authorization::claimed_user;
pub use first::{FirstUser, FirstUserError};
pub use identity::{Identity, Refused};
pub use logins::{LoginError, Logins};
pub use moves::MoveRight;
pub use nexo_broker::access::{Permission, PermissionTexts, Resource, Tag, User, UserLimits, UserName};
pub use oauth::{OAuth, OAuthError, OAuthOptions};
pub use password::{HashError, rabbitmq_algorithm, rabbitmq_hash, shown_hash};
pub use publishing::PublishRights;
pub use sessions::{ChannelPresence, Ended, LimitReached, Presence};
pub use users::{NewKey, NewPassword, NewToken, UserChangeError};
