//! A user: what is known of one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use nexo_types::Timestamp;

use super::name::{Tag, UserName};
use super::pattern::{Pattern, PatternError};
use crate::wire::{Reader, WireError, Writer};

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: UserName,
    /// What its password is checked against. Without one nobody logs in with a password.
    pub password: Option<PasswordHash>,
    /// What the user is.
    pub tags: BTreeSet<Tag>,
    /// What the user may do in each virtual host. Where there is nothing the user may not even come in.
    pub permissions: BTreeMap<Arc<str>, Permissions>,
    /// Of which topics, by virtual host and exchange. Where there is nothing, of all.
    pub topics: BTreeMap<(Arc<str>, Arc<str>), TopicPermissions>,
    /// How much of what the user may have.
    pub limits: UserLimits,
    /// Where SQS's queues of this user are, if it is not `/`.
    pub default_vhost: Option<Arc<str>>,
    /// Keys for SQS, by their ids.
    pub keys: BTreeMap<Arc<str>, AccessKey>,
    /// Tokens for the native API, by their ids.
    pub tokens: BTreeMap<Arc<str>, ApiToken>,
}

impl User {
    pub(super) fn new(name: UserName, password: Option<PasswordHash>, tags: BTreeSet<Tag>) -> Self {
        Self {
            name,
            password,
            tags,
            permissions: BTreeMap::new(),
            topics: BTreeMap::new(),
            limits: UserLimits::default(),
            default_vhost: None,
            keys: BTreeMap::new(),
            tokens: BTreeMap::new(),
        }
    }

    /// Whether the user has this tag.
    #[must_use]
    pub fn is(&self, tag: &str) -> bool {
        self.tags.contains(tag)
    }
}

/// How a password's hash was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// Argon2id; the hash is a PHC string.
    Argon2id,
    /// RabbitMQ's default: four bytes of salt, and SHA-256 of the salt and the password.
    SaltedSha256,
    /// As before with SHA-512.
    SaltedSha512,
}

impl HashAlgorithm {
    fn number(self) -> u8 {
        match self {
            Self::Argon2id => 0,
            Self::SaltedSha256 => 1,
            Self::SaltedSha512 => 2,
        }
    }

    fn from_number(value: u8) -> Result<Self, WireError> {
        match value {
            0 => Ok(Self::Argon2id),
            1 => Ok(Self::SaltedSha256),
            2 => Ok(Self::SaltedSha512),
            value => Err(WireError::Unknown { what: "algorithm of a password's hash", value }),
        }
    }
}

/// What a password is checked against. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    /// How it was made.
    pub algorithm: HashAlgorithm,
    /// The hash itself.
    pub hash: Arc<[u8]>,
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordHash").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

/// What a user may do in one virtual host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Make, change and delete these.
    pub configure: Pattern,
    /// Send to these.
    pub write: Pattern,
    /// Take from these.
    pub read: Pattern,
}

/// The patterns of [`Permissions`], as texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermissionTexts {
    /// For making, changing and deleting.
    pub configure: String,
    /// For sending.
    pub write: String,
    /// For taking.
    pub read: String,
}

impl PermissionTexts {
    /// May do everything.
    #[must_use]
    pub fn all() -> Self {
        Self { configure: ".*".to_owned(), write: ".*".to_owned(), read: ".*".to_owned() }
    }

    /// Compiles them.
    ///
    /// # Errors
    /// If one of them is no pattern.
    pub fn compile(&self) -> Result<Permissions, PatternError> {
        Ok(Permissions {
            configure: Pattern::new(&self.configure)?,
            write: Pattern::new(&self.write)?,
            read: Pattern::new(&self.read)?,
        })
    }
}

/// To which topics of an exchange a user may send, and to which it may bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPermissions {
    /// Send with these routing keys.
    pub write: Pattern,
    /// Bind with these.
    pub read: Pattern,
}

/// How much a user may have. None is as much as anybody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// Connections at the same time.
    pub max_connections: Option<u32>,
    /// Channels of all its connections.
    pub max_channels: Option<u32>,
}

/// A key for SQS. A signature is checked with the secret itself, so it is kept as it is. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey {
    /// What signatures are checked with.
    pub secret: Arc<str>,
    /// The broker's time of its record.
    pub created: Timestamp,
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKey").field("created", &self.created).finish_non_exhaustive()
    }
}

/// SHA-256 of a token, which is long and random.
pub type TokenHash = [u8; 32];

/// A token for the native API.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiToken {
    /// What a token is checked against.
    pub hash: TokenHash,
    /// What it is for, in its maker's words.
    pub description: Arc<str>,
    /// The broker's time of its record.
    pub created: Timestamp,
}

impl fmt::Debug for ApiToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ApiToken");
        shown.field("description", &self.description).field("created", &self.created).finish_non_exhaustive()
    }
}

impl PasswordHash {
    pub(super) fn encode_optional(hash: Option<&Self>, out: &mut Writer) {
        match hash {
            None => out.u8(0),
            Some(hash) => {
                out.u8(hash.algorithm.number() + 1);
                out.bytes(&hash.hash);
            }
        }
    }

    pub(super) fn decode_optional(input: &mut Reader<'_>) -> Result<Option<Self>, WireError> {
        match input.u8()? {
            0 => Ok(None),
            number => {
                let algorithm = HashAlgorithm::from_number(number - 1)?;
                Ok(Some(Self { algorithm, hash: input.bytes()?.into() }))
            }
        }
    }
}

pub(super) fn encode_tags(tags: &BTreeSet<Tag>, out: &mut Writer) {
    out.u64(tags.len() as u64);
    tags.iter().for_each(|tag| out.text(tag.as_str()));
}

pub(super) fn decode_tags(input: &mut Reader<'_>) -> Result<BTreeSet<Tag>, WireError> {
    let mut tags = BTreeSet::new();
    for _ in 0..input.u64()? {
        tags.insert(Tag::new(input.text()?).map_err(|_| WireError::BadName)?);
    }
    Ok(tags)
}

impl PermissionTexts {
    pub(super) fn encode(&self, out: &mut Writer) {
        [&self.configure, &self.write, &self.read].into_iter().for_each(|text| out.text(text));
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut text = || input.text().map(str::to_owned);
        Ok(Self { configure: text()?, write: text()?, read: text()? })
    }
}

impl Permissions {
    /// As texts.
    #[must_use]
    pub fn texts(&self) -> PermissionTexts {
        let own = |pattern: &Pattern| pattern.as_str().to_owned();
        PermissionTexts { configure: own(&self.configure), write: own(&self.write), read: own(&self.read) }
    }
}

impl UserLimits {
    pub(super) fn encode(self, out: &mut Writer) {
        out.optional(self.max_connections.map(Into::into));
        out.optional(self.max_channels.map(Into::into));
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { max_connections: input.optional_u32()?, max_channels: input.optional_u32()? })
    }
}

impl AccessKey {
    pub(super) fn encode(&self, out: &mut Writer) {
        out.text(&self.secret);
        out.u64(self.created.0);
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { secret: input.text()?.into(), created: Timestamp(input.u64()?) })
    }
}

impl ApiToken {
    pub(super) fn encode(&self, out: &mut Writer) {
        out.bytes(&self.hash);
        out.text(&self.description);
        out.u64(self.created.0);
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let hash = TokenHash::try_from(input.bytes()?).map_err(|_| WireError::Range)?;
        Ok(Self { hash, description: input.text()?.into(), created: Timestamp(input.u64()?) })
    }
}
