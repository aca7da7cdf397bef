//! Changing users: what an operator asks for, with hashes, keys and tokens made on the way.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nexo_broker::AccessChangeError;
use nexo_broker::access::{AccessKey, AccessRecord, ApiToken, PasswordHash, PermissionTexts, Tag, UserName};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::identity::Identity;
use crate::limits::PASSWORD_BYTES_MAX;
use crate::logins::{LoginError, Logins, TOKEN_PREFIX};
use crate::password::{self, HashError};

/// A change of a user that was not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UserChangeError {
    /// The broker refused it.
    #[error(transparent)]
    Change(#[from] AccessChangeError),
    /// A hash that is none.
    #[error(transparent)]
    Hash(#[from] HashError),
    /// A password that cannot be one.
    #[error("a password must have between 1 and {PASSWORD_BYTES_MAX} bytes")]
    PasswordLength,
    /// Too many passwords are being hashed.
    #[error("too many passwords are being hashed; try again")]
    Busy,
}

/// What a user is to log in with.
#[derive(Clone)]
pub enum NewPassword {
    /// A password, which is hashed.
    Plain(Vec<u8>),
    /// What another broker kept of it.
    Hashed(PasswordHash),
    /// Nothing: with a password nobody comes in.
    None,
}

/// A key for SQS. The secret is shown this once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    /// Its id.
    pub id: String,
    /// Its secret.
    pub secret: String,
}

/// A token for the native API. It is shown this once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// Its id.
    pub id: String,
    /// The token itself, with the id in it.
    pub token: String,
}

/// Has the connections of users end who are not there any more, when it is dropped.
struct EndDeleted<'a> {
    logins: &'a Logins,
    changes: &'a [AccessRecord],
}

impl Drop for EndDeleted<'_> {
    fn drop(&mut self) {
        for change in self.changes {
            if let AccessRecord::Delete { user } = change
                && self.logins.0.broker.access().user(user.as_str()).is_none()
            {
                self.logins.0.sessions.end(user);
            }
        }
    }
}

impl Logins {
    /// Makes changes that need nothing made for them. Those of users that are deleted are told to end.
    ///
    /// # Errors
    /// If one of them cannot be made; then none is.
    pub async fn change(&self, changes: &[AccessRecord]) -> Result<(), UserChangeError> {
        // Whoever asked for it may go away, or the disk fail, when it has been done already.
        let _ending = EndDeleted { logins: self, changes };
        self.0.broker.change_access(changes).await?;
        Ok(())
    }

    /// Makes a user.
    ///
    /// # Errors
    /// If there is one of that name, or the password cannot be one.
    pub async fn add_user(
        &self,
        user: &UserName,
        password: NewPassword,
        tags: BTreeSet<Tag>,
    ) -> Result<(), UserChangeError> {
        let password = self.hashed(password).await?;
        self.change(&[AccessRecord::Add { user: user.clone(), password, tags }]).await
    }

    /// Gives a user another password. Connections that are open stay, as in RabbitMQ.
    ///
    /// # Errors
    /// If there is no such user, or the password cannot be one.
    pub async fn set_password(&self, user: &UserName, password: NewPassword) -> Result<(), UserChangeError> {
        let password = self.hashed(password).await?;
        self.change(&[AccessRecord::SetPassword { user: user.clone(), password }]).await
    }

    /// Deletes a user, and has its connections end.
    ///
    /// # Errors
    /// If there is no such user.
    pub async fn delete_user(&self, user: &UserName) -> Result<(), UserChangeError> {
        self.change(&[AccessRecord::Delete { user: user.clone() }]).await
    }

    /// Lets somebody do everything in a virtual host that he has made, as in RabbitMQ.
    ///
    /// # Errors
    /// If the log takes no more.
    pub async fn own_vhost(&self, identity: &Identity, vhost: &str) -> Result<(), UserChangeError> {
        let Some(user) = identity.user() else { return Ok(()) };
        let (user, permissions) = (user.name.clone(), PermissionTexts::all());
        self.change(&[AccessRecord::SetPermissions { user, vhost: vhost.into(), permissions }]).await
    }

    /// Makes a key for SQS.
    ///
    /// # Errors
    /// If there is no such user, or it has as many as it may have.
    pub async fn add_key(&self, user: &UserName) -> Result<NewKey, UserChangeError> {
        let key = NewKey { id: format!("NEXO{}", letters::<16>()), secret: random::<30>() };
        let created = self.0.broker.now();
        let kept = AccessKey { secret: Arc::from(&*key.secret), created };
        self.change(&[AccessRecord::AddKey { user: user.clone(), id: Arc::from(&*key.id), key: kept }])
            .await?;
        Ok(key)
    }

    /// Makes a token for the native API.
    ///
    /// # Errors
    /// As [`Self::add_key`].
    pub async fn add_token(&self, user: &UserName, description: &str) -> Result<NewToken, UserChangeError> {
        let id = letters::<12>();
        let token = format!("{TOKEN_PREFIX}{id}_{}", random::<32>());
        let kept = ApiToken {
            hash: Sha256::digest(token.as_bytes()).into(),
            description: description.into(),
            created: self.0.broker.now(),
        };
        self.change(&[AccessRecord::AddToken { user: user.clone(), id: Arc::from(&*id), token: kept }])
            .await?;
        Ok(NewToken { id, token })
    }

    /// What is kept of a password.
    ///
    /// # Errors
    /// If it cannot be one, or too many are being hashed.
    pub async fn hashed(&self, password: NewPassword) -> Result<Option<PasswordHash>, UserChangeError> {
        match password {
            NewPassword::None => Ok(None),
            NewPassword::Hashed(hash) => Ok(Some(hash)),
            NewPassword::Plain(plain) if plain.is_empty() || plain.len() > PASSWORD_BYTES_MAX => {
                Err(UserChangeError::PasswordLength)
            }
            NewPassword::Plain(plain) => {
                let hashed = self.off_thread(move || password::hash(&plain)).await;
                Ok(Some(hashed.map_err(|_: LoginError| UserChangeError::Busy)??))
            }
        }
    }
}

/// Random bytes as text that needs no quoting.
fn random<const BYTES: usize>() -> String {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Random capital letters and digits.
fn letters<const COUNT: usize>() -> String {
    let mut bytes = [0; COUNT];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    bytes.iter().map(|byte| char::from(alphabet[usize::from(byte % 32)])).collect()
}
