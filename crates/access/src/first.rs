//! The first user of a broker that never had one.

use std::collections::BTreeSet;

use nexo_broker::AccessChangeError;
use nexo_broker::Broker;
use nexo_broker::access::{AccessError, AccessRecord, PermissionTexts, Tag, UserName};
use nexo_broker::topology::VhostSpec;
use nexo_types::{NameError, VhostName};
use thiserror::Error;

use crate::identity::DEFAULT_VHOST;
use crate::logins::{GUEST, Logins};
use crate::users::{NewPassword, UserChangeError};

/// Whom a new broker lets in.
#[derive(Clone, PartialEq, Eq)]
pub struct FirstUser {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
    /// Where this user may do everything.
    pub vhost: String,
}

impl Default for FirstUser {
    fn default() -> Self {
        Self { name: GUEST.to_owned(), password: GUEST.to_owned(), vhost: DEFAULT_VHOST.to_owned() }
    }
}

impl std::fmt::Debug for FirstUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FirstUser")
            .field("name", &self.name)
            .field("vhost", &self.vhost)
            .finish_non_exhaustive()
    }
}

/// A first user that could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FirstUserError {
    /// A name that is none.
    #[error("the default user cannot be made: {0}")]
    Name(#[from] NameError),
    /// A virtual host that could not be made.
    #[error("the default virtual host '{name}' cannot be made: {reason}")]
    Vhost {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// See there.
    #[error("the default user cannot be made: {0}")]
    Change(#[from] UserChangeError),
}

impl Logins {
    /// The users of a broker. One that never had any gets its first: an administrator who may do everything. A user that was
    /// deleted does not come back.
    ///
    /// # Errors
    /// If that user cannot be made.
    pub async fn open(broker: &Broker, first: &FirstUser) -> Result<Self, FirstUserError> {
        let logins = Self::new(broker);
        if broker.access().had_users() {
            return Ok(logins);
        }
        let user = UserName::new(&first.name)?;
        let password = logins.hashed(NewPassword::Plain(first.password.clone().into_bytes())).await?;
        let tags: BTreeSet<Tag> = [Tag::new(Tag::ADMINISTRATOR)?].into();
        let changes = [
            AccessRecord::Add { user: user.clone(), password, tags },
            AccessRecord::SetPermissions {
                user: user.clone(),
                vhost: first.vhost.as_str().into(),
                permissions: PermissionTexts::all(),
            },
        ];
        // It is to be there before anybody may do anything in it.
        let vhost = VhostName::new(&first.vhost)?;
        if broker.vhost(&vhost).is_none() {
            let made = broker.put_vhost(&vhost, VhostSpec::default()).await;
            made.map_err(|error| FirstUserError::Vhost {
                name: first.vhost.clone(),
                reason: error.to_string(),
            })?;
        }
        match logins.change(&changes).await {
            // Somebody else was faster: two ports of a test that open the same broker.
            Ok(()) | Err(UserChangeError::Change(AccessChangeError::Refused(AccessError::Exists { .. }))) => {
            }
            Err(error) => return Err(error.into()),
        }
        tracing::info!(user = user.as_str(), vhost = first.vhost, "the first user was made");
        Ok(logins)
    }
}
