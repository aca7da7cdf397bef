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
        /// What the broker says against it.
        reason: String,
    },
    /// See there.
    #[error("the default user cannot be made: {0}")]
    Change(#[from] UserChangeError),
}

impl FirstUser {
    /// Whether it is the one whose password everybody knows.
    fn is_guest(&self) -> bool {
        self.name == GUEST && self.password == GUEST
    }
}

/// What is said where users may have been lost.
const LOST: &str = "users may have been lost with a part of the data, so guest with the password that everybody knows is gone; \
    if nobody else can log in, start with NEXO_DEFAULT_USER and NEXO_DEFAULT_PASSWORD: they make an administrator as long as \
    there is no user";

impl Logins {
    /// Takes away the user whose password everybody knows, if there is one, and sees to it that no later start makes it:
    /// somebody may have deleted it, or given it another password, in what was lost.
    async fn distrust_guest(&self) -> Result<(), FirstUserError> {
        let user = UserName::new(GUEST)?;
        let delete = AccessRecord::Delete { user: user.clone() };
        let is_guest_as_ever = self.anonymous(std::net::Ipv4Addr::LOCALHOST.into()).await.is_ok();
        if is_guest_as_ever {
            self.change(&[delete]).await?;
        } else if !self.broker().access().had_users() {
            let added = AccessRecord::Add { user, password: None, tags: BTreeSet::new() };
            self.change(&[added, delete]).await?;
        } else {
            return Ok(());
        }
        tracing::error!("{LOST}");
        Ok(())
    }

    /// The users of a broker. One that never had any gets its first: an administrator who may do everything. Who was deleted does
    /// not come back. But guest is made once, and never where users may have been lost; a user that somebody has configured is
    /// also made if there is nobody else, because there would be no way in.
    ///
    /// # Errors
    /// If that user cannot be made.
    pub async fn open(broker: &Broker, first: &FirstUser) -> Result<Self, FirstUserError> {
        let logins = Self::new(broker);
        if broker.has_lost_users() {
            logins.distrust_guest().await?;
        }
        let has_users = broker.access().users().len() > 0;
        if has_users || (broker.access().had_users() && first.is_guest()) {
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
