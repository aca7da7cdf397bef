//! From a password, a token or a key to somebody who may do something.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use nexo_broker::Broker;
use nexo_broker::access::{PasswordHash, User, UserName};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;
use tokio::sync::Semaphore;

use crate::checked::CheckedPasswords;
use crate::identity::Identity;
use crate::limits::{HASHING_WAITING_MAX, PASSWORD_BYTES_MAX, hashing_max};
use crate::oauth::{self, OAuth};
use crate::password;
use crate::sessions::{Counted, LimitReached, Presence, Sessions};
use crate::throttle::LoginThrottle;

/// The user that every new broker has, whose password everybody knows: it may come from this machine only.
pub(crate) const GUEST: &str = "guest";
/// What a token begins with, so that somebody who finds one knows what it is for.
pub(crate) const TOKEN_PREFIX: &str = "nexo_";

/// Why somebody was not let in. A client is told no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LoginError {
    /// There is no such user, or this is not the password.
    #[error("invalid credentials")]
    Invalid,
    /// The user may come from the broker's own machine only.
    #[error("user can only connect via localhost")]
    LoopbackOnly,
    /// Nothing was shown that could be checked.
    #[error("no credentials")]
    Missing,
    /// Too many wait already, of this address or of all.
    #[error("too many logins at once")]
    TooMany,
}

/// Who may come in. All ports share one.
#[derive(Clone)]
pub struct Logins(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) broker: Broker,
    throttle: Arc<LoginThrottle>,
    checked: CheckedPasswords,
    hashing: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    pub(crate) sessions: Arc<Sessions>,
    /// What the password of nobody is checked against: it takes as long as that of a user.
    nobody: PasswordHash,
    /// Whose signed tokens are taken.
    oauth: ArcSwapOption<OAuth>,
    /// Whether guest has the password that everybody knows, by the hash that was looked at last. Every call without a login
    /// asks for it.
    guest: Mutex<Option<(PasswordHash, bool)>>,
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logins").finish_non_exhaustive()
    }
}

impl Logins {
    /// The users of a broker as they are: one that has none lets nobody in. See [`Self::open`].
    ///
    /// # Panics
    /// If the system gives no random bytes.
    #[must_use]
    pub fn new(broker: &Broker) -> Self {
        let mut key = [0; 32];
        getrandom::fill(&mut key).expect("the system gives random bytes");
        // As `password::hash` makes it, of a password that nobody has.
        let nobody =
            "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5bm9ib2R5bm8$VfBgx1aRMd8NhQqQoVU2aVdU6gnFCrL6nG0gXG0QnGQ";
        let nobody = PasswordHash {
            algorithm: nexo_broker::access::HashAlgorithm::Argon2id,
            hash: nobody.as_bytes().into(),
        };
        Self(Arc::new(Inner {
            broker: broker.clone(),
            throttle: Arc::default(),
            checked: CheckedPasswords::new(key),
            hashing: Arc::new(Semaphore::new(hashing_max())),
            waiting: Arc::new(Semaphore::new(HASHING_WAITING_MAX)),
            sessions: Arc::default(),
            nobody,
            oauth: ArcSwapOption::empty(),
            guest: Mutex::new(None),
        }))
    }

    /// Takes tokens that these keys have signed, from now on; none without. Who is in already stays, until his expires.
    pub fn set_oauth(&self, oauth: Option<OAuth>) {
        self.0.oauth.store(oauth.map(Arc::new));
    }

    /// Lets somebody in who knows a user's password, or gives a signed token in its place.
    ///
    /// # Errors
    /// If he does not, or too many try.
    pub async fn password(&self, name: &[u8], password: &[u8], from: IpAddr) -> Result<Identity, LoginError> {
        // As in RabbitMQ the name does not count then: the token has one.
        if self.0.oauth.load().is_some() && oauth::is_token(password) {
            let token = std::str::from_utf8(password).map_err(|_| LoginError::Invalid)?;
            return self.token(token, from).await;
        }
        // Who has come in with it before does not wait for what others of his address did. Only so often, though, is looked for
        // one that is wrong: it would tell a right guess from others without any waiting.
        if self.0.throttle.may_look(from) {
            if let Some(user) = self.known(name, password) {
                return self.admit(&user, from);
            }
            self.0.throttle.looked(from);
        }
        self.0.throttle.turn(from).await.map_err(|_| LoginError::TooMany)?;
        let outcome = self.check_password(name, password, from).await;
        self.note(outcome.as_ref().err(), from);
        outcome
    }

    /// The user, if this password was right before.
    fn known(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let user = self.user(name)?;
        let mark = self.0.checked.mark(&user.name, user.password.as_ref()?, password);
        self.0.checked.knows(&mark).then_some(user)
    }

    async fn check_password(
        &self,
        name: &[u8],
        password: &[u8],
        from: IpAddr,
    ) -> Result<Identity, LoginError> {
        let user = self.user(name);
        let hash = user.as_ref().and_then(|user| user.password.clone());
        // As in RabbitMQ nobody comes in without one.
        let is_possible = hash.is_some() && !password.is_empty() && password.len() <= PASSWORD_BYTES_MAX;
        let hash = hash.unwrap_or_else(|| self.0.nobody.clone());
        let password = if password.len() <= PASSWORD_BYTES_MAX { password } else { b"" };
        let name = user.as_ref().map(|user| user.name.clone());
        let holds = self.holds(name.as_ref(), &hash, password).await?;
        match user.filter(|_| holds && is_possible) {
            Some(user) => self.admit(&user, from),
            None => Err(LoginError::Invalid),
        }
    }

    /// Whether a password is the one that was hashed.
    async fn holds(
        &self,
        user: Option<&UserName>,
        hash: &PasswordHash,
        password: &[u8],
    ) -> Result<bool, LoginError> {
        let mark = user.map(|user| self.0.checked.mark(user, hash, password));
        if mark.as_ref().is_some_and(|mark| self.0.checked.knows(mark)) {
            return Ok(true);
        }
        let holds = if password::is_slow(hash) {
            let (hash, password) = (hash.clone(), password.to_vec());
            self.off_thread(move || password::matches(&hash, &password)).await?
        } else {
            password::matches(hash, password)
        };
        if let Some(mark) = mark.filter(|_| holds) {
            self.0.checked.note(mark);
        }
        Ok(holds)
    }

    /// Does something slow, not on a thread of the runtime, and not too much of it at once.
    pub(crate) async fn off_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LoginError> {
        let waiting = self.0.waiting.clone().try_acquire_owned().map_err(|_| LoginError::TooMany)?;
        let hashing = self.0.hashing.clone().acquire_owned().await.map_err(|_| LoginError::TooMany)?;
        // It goes on when nobody waits for it any more, and counts for as long.
        let work = move || {
            let done = work();
            drop((waiting, hashing));
            done
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| LoginError::TooMany)
    }

    /// Logs in whoever has shown a certificate of this name, which was checked when TLS was agreed on.
    ///
    /// # Errors
    /// If there is no such name or user, it may not come from there, or too many wait.
    pub async fn certificate(&self, name: Option<&str>, from: IpAddr) -> Result<Identity, LoginError> {
        self.0.throttle.turn(from).await.map_err(|_| LoginError::TooMany)?;
        let user = name.and_then(|name| self.user(name.as_bytes()));
        let outcome = user.ok_or(LoginError::Invalid).and_then(|user| self.admit(&user, from));
        self.note(outcome.as_ref().err(), from);
        outcome
    }

    /// Lets somebody in who has a token of a user, or one that somebody else has signed.
    ///
    /// # Errors
    /// If it is none, or too many try.
    pub async fn token(&self, token: &str, from: IpAddr) -> Result<Identity, LoginError> {
        let outcome = if token.starts_with(TOKEN_PREFIX) {
            self.check_token(token, from)
        } else {
            self.check_signed_token(token)
        };
        // Nobody guesses a token, so who has one does not wait for what others of his address did.
        if outcome.is_err() {
            self.0.throttle.turn(from).await.map_err(|_| LoginError::TooMany)?;
            self.note(outcome.as_ref().err(), from);
        }
        outcome
    }

    fn check_token(&self, token: &str, from: IpAddr) -> Result<Identity, LoginError> {
        let id = token.strip_prefix(TOKEN_PREFIX).and_then(|rest| rest.split_once('_')).map(|(id, _)| id);
        let access = self.0.broker.access();
        let user = id.and_then(|id| access.owner_of_token(id)).ok_or(LoginError::Invalid)?;
        let known = id.and_then(|id| user.tokens.get(id)).ok_or(LoginError::Invalid)?;
        let found: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if bool::from(found.ct_eq(&known.hash)) { self.admit(user, from) } else { Err(LoginError::Invalid) }
    }

    fn check_signed_token(&self, token: &str) -> Result<Identity, LoginError> {
        let oauth = self.0.oauth.load();
        let oauth = oauth.as_ref().ok_or(LoginError::Invalid)?;
        match oauth.verify(token, oauth::unix_s()) {
            Ok(verified) => Ok(Identity::of_token(self.0.broker.clone(), verified)),
            Err(reason) => {
                tracing::info!(%reason, "a signed token was refused");
                Err(LoginError::Invalid)
            }
        }
    }

    /// What somebody may do who shows a new secret on a connection that is open. Only a token says anything new: a password
    /// was for coming in, and RabbitMQ does not look at another either.
    ///
    /// # Errors
    /// If it is no token that holds, or is somebody else's.
    pub fn renewed(&self, identity: &Identity, secret: &[u8]) -> Result<Identity, LoginError> {
        if identity.time_left().is_none() {
            return Ok(identity.clone());
        }
        let token = std::str::from_utf8(secret).map_err(|_| LoginError::Invalid)?;
        let renewed = self.check_signed_token(token)?;
        if renewed.name() == identity.name() { Ok(renewed) } else { Err(LoginError::Invalid) }
    }

    /// Whose an access key is, and its secret, with which the caller checks the signature.
    #[must_use]
    pub fn access_key(&self, id: &str) -> Option<(UserName, Arc<str>)> {
        let access = self.0.broker.access();
        let user = access.owner_of_key(id)?;
        Some((user.name.clone(), Arc::clone(&user.keys.get(id)?.secret)))
    }

    /// Lets somebody in whose signature was right.
    ///
    /// # Errors
    /// If the user is gone meanwhile, or may come from this machine only.
    pub fn signed(&self, user: &UserName, from: IpAddr) -> Result<Identity, LoginError> {
        match self.0.broker.access().user(user.as_str()) {
            Some(user) => self.admit(user, from),
            None => Err(LoginError::Invalid),
        }
    }

    /// Lets somebody in who shows nothing: a program on this machine, as long as the user guest has the password that
    /// everybody knows. Whoever changes that password, or deletes the user, ends it.
    ///
    /// # Errors
    /// If he comes from elsewhere, or guest is no longer that.
    pub async fn anonymous(&self, from: IpAddr) -> Result<Identity, LoginError> {
        if !is_loopback(from) {
            return Err(LoginError::Missing);
        }
        let guest = self.user(GUEST.as_bytes()).ok_or(LoginError::Missing)?;
        let hash = guest.password.clone().ok_or(LoginError::Missing)?;
        let known = self.0.guest.lock().as_ref().filter(|(of, _)| *of == hash).map(|(_, is_known)| *is_known);
        let is_known = match known {
            Some(is_known) => is_known,
            None => {
                let is_known = self.holds(Some(&guest.name), &hash, GUEST.as_bytes()).await?;
                *self.0.guest.lock() = Some((hash, is_known));
                is_known
            }
        };
        if is_known { self.admit(&guest, from) } else { Err(LoginError::Missing) }
    }

    /// Waits for the turn of somebody whose login is checked elsewhere.
    ///
    /// # Errors
    /// If too many of its address wait already.
    pub async fn turn(&self, from: IpAddr) -> Result<(), LoginError> {
        self.0.throttle.turn(from).await.map_err(|_| LoginError::TooMany)
    }

    /// Notes that a login was wrong that was checked elsewhere.
    pub fn refused(&self, from: IpAddr) {
        self.0.throttle.refused(from);
    }

    /// Counts a connection of somebody.
    ///
    /// # Errors
    /// If he has as many as he may have.
    pub fn connect(&self, identity: &Identity) -> Result<Presence, LimitReached> {
        self.0.sessions.enter(identity, Counted::Connection)
    }

    /// Has something that lasts end when its user is deleted. It counts as no connection.
    ///
    /// # Errors
    /// Never for its number; there is no limit of that.
    pub fn attend(&self, identity: &Identity) -> Result<Presence, LimitReached> {
        self.0.sessions.enter(identity, Counted::Nothing)
    }

    /// Whether nobody but guest can come in: not from another machine.
    #[must_use]
    pub fn has_only_guest(&self) -> bool {
        self.0.broker.access().users().all(|user| user.name.as_str() == GUEST)
    }

    /// The broker whose users these are.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.0.broker
    }

    fn user(&self, name: &[u8]) -> Option<Arc<User>> {
        let name = std::str::from_utf8(name).ok()?;
        self.0.broker.access().user(name).cloned()
    }

    fn admit(&self, user: &User, from: IpAddr) -> Result<Identity, LoginError> {
        if user.name.as_str() == GUEST && !is_loopback(from) {
            return Err(LoginError::LoopbackOnly);
        }
        Ok(Identity::of_user(self.0.broker.clone(), user.name.clone()))
    }

    fn note(&self, refused: Option<&LoginError>, from: IpAddr) {
        if matches!(refused, Some(LoginError::Invalid | LoginError::LoopbackOnly)) {
            self.0.throttle.refused(from);
        }
    }
}

/// Whether somebody comes from the broker's own machine.
pub(crate) fn is_loopback(from: IpAddr) -> bool {
    from.to_canonical().is_loopback()
}
