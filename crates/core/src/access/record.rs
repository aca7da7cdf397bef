//! What happened to users and permissions, as it is written down. The same list is what can be asked for.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use nexo_types::Timestamp;

use super::name::{Tag, UserName};
use super::user::{AccessKey, ApiToken, PasswordHash, PermissionTexts, UserLimits, decode_tags, encode_tags};
use crate::wire::{Reader, WireError, Writer};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessRecord {
    /// A new user.
    Add {
        /// One that nobody has.
        user: UserName,
        /// What the password is checked against.
        password: Option<PasswordHash>,
        /// What the user is.
        tags: BTreeSet<Tag>,
    },
    /// A user has another password, or none.
    SetPassword {
        /// The user whose password it is.
        user: UserName,
        /// What it is checked against.
        password: Option<PasswordHash>,
    },
    /// A user has other tags.
    SetTags {
        /// The user who has them.
        user: UserName,
        /// All of them.
        tags: BTreeSet<Tag>,
    },
    /// A user is gone, with all that belongs to it.
    Delete {
        /// A later user of this name begins with nothing.
        user: UserName,
    },
    /// What a user may do in a virtual host.
    SetPermissions {
        /// The user who may.
        user: UserName,
        /// The virtual host in which they count.
        vhost: Arc<str>,
        /// The expressions for configuring, writing and reading.
        permissions: PermissionTexts,
    },
    /// A user may not come into a virtual host any more.
    ClearPermissions {
        /// The user who might.
        user: UserName,
        /// The virtual host in which they count.
        vhost: Arc<str>,
    },
    /// Of which topics of an exchange a user may do what.
    SetTopics {
        /// The user who may.
        user: UserName,
        /// The virtual host in which they count.
        vhost: Arc<str>,
        /// The exchange whose topics they are.
        exchange: Arc<str>,
        /// Send with these routing keys.
        write: String,
        /// Bind with these.
        read: String,
    },
    /// Nothing more is said of the topics of an exchange, or of all in a virtual host.
    ClearTopics {
        /// The user who might.
        user: UserName,
        /// The virtual host in which they count.
        vhost: Arc<str>,
        /// Of which exchange; of all, if none.
        exchange: Option<Arc<str>>,
    },
    /// How much a user may have.
    SetLimits {
        /// The user whose connections and channels are counted.
        user: UserName,
        /// How much.
        limits: UserLimits,
    },
    /// Where SQS's queues of a user are.
    SetDefaultVhost {
        /// The user whose queues they are.
        user: UserName,
        /// Its name; `/` if none.
        vhost: Option<Arc<str>>,
    },
    /// A user has a key for SQS.
    AddKey {
        /// The owner, as whom requests are signed.
        user: UserName,
        /// Unique over all users: a signature names it, and nobody else.
        id: Arc<str>,
        /// Its secret, and when it was made.
        key: AccessKey,
    },
    /// A key is gone.
    RemoveKey {
        /// The owner.
        user: UserName,
        /// One of the owner's keys.
        id: Arc<str>,
    },
    /// A user has a token for the native API.
    AddToken {
        /// The owner, as whom it logs in.
        user: UserName,
        /// Unique over all users: a token begins with it.
        id: Arc<str>,
        /// What a token is checked against, and when it was made.
        token: ApiToken,
    },
    /// A token is gone.
    RemoveToken {
        /// The owner.
        user: UserName,
        /// One of the owner's tokens.
        id: Arc<str>,
    },
    /// A virtual host is gone, and with it what anybody might do there.
    ForgetVhost {
        /// Permissions, topics and default virtual hosts that name it go with it.
        vhost: Arc<str>,
    },
}

/// The version in which records are written.
const VERSION: u8 = 1;

impl AccessRecord {
    /// The virtual host that must be there for this change to make sense.
    #[must_use]
    pub fn needed_vhost(&self) -> Option<&str> {
        match self {
            Self::SetPermissions { vhost, .. } | Self::SetTopics { vhost, .. } => Some(vhost),
            Self::SetDefaultVhost { vhost, .. } => vhost.as_deref(),
            Self::Add { .. }
            | Self::SetPassword { .. }
            | Self::SetTags { .. }
            | Self::Delete { .. }
            | Self::ClearPermissions { .. }
            | Self::ClearTopics { .. }
            | Self::SetLimits { .. }
            | Self::AddKey { .. }
            | Self::RemoveKey { .. }
            | Self::AddToken { .. }
            | Self::RemoveToken { .. }
            | Self::ForgetVhost { .. } => None,
        }
    }

    /// The broker's time that it carries: when a key or a token was made.
    #[must_use]
    pub fn time(&self) -> Option<Timestamp> {
        match self {
            Self::AddKey { key, .. } => Some(key.created),
            Self::AddToken { token, .. } => Some(token.created),
            Self::Add { .. }
            | Self::SetPassword { .. }
            | Self::SetTags { .. }
            | Self::Delete { .. }
            | Self::SetPermissions { .. }
            | Self::ClearPermissions { .. }
            | Self::SetTopics { .. }
            | Self::ClearTopics { .. }
            | Self::SetLimits { .. }
            | Self::SetDefaultVhost { .. }
            | Self::RemoveKey { .. }
            | Self::RemoveToken { .. }
            | Self::ForgetVhost { .. } => None,
        }
    }

    /// The same, decided at this moment.
    pub(super) fn decided_at(mut self, now: Timestamp) -> Self {
        match &mut self {
            Self::AddKey { key, .. } => key.created = now,
            Self::AddToken { token, .. } => token.created = now,
            _ => debug_assert_eq!(self.time(), None, "a record with a time is dated"),
        }
        self
    }

    /// The bytes to write down.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::with_capacity(64);
        out.tag(VERSION, self.kind());
        match self {
            Self::Add { user, password, tags } => {
                out.text(user.as_str());
                PasswordHash::encode_optional(password.as_ref(), &mut out);
                encode_tags(tags, &mut out);
            }
            Self::SetPassword { user, password } => {
                out.text(user.as_str());
                PasswordHash::encode_optional(password.as_ref(), &mut out);
            }
            Self::SetTags { user, tags } => {
                out.text(user.as_str());
                encode_tags(tags, &mut out);
            }
            Self::Delete { user } => out.text(user.as_str()),
            Self::SetPermissions { user, vhost, permissions } => {
                out.text(user.as_str());
                out.text(vhost);
                permissions.encode(&mut out);
            }
            Self::ClearPermissions { user, vhost } => {
                out.text(user.as_str());
                out.text(vhost);
            }
            Self::SetTopics { user, vhost, exchange, write, read } => {
                let texts: [&str; 5] = [user.as_str(), vhost, exchange, write, read];
                texts.into_iter().for_each(|text| out.text(text));
            }
            Self::ClearTopics { user, vhost, exchange } => {
                out.text(user.as_str());
                out.text(vhost);
                encode_optional_text(exchange.as_deref(), &mut out);
            }
            Self::SetLimits { user, limits } => {
                out.text(user.as_str());
                limits.encode(&mut out);
            }
            Self::SetDefaultVhost { user, vhost } => {
                out.text(user.as_str());
                encode_optional_text(vhost.as_deref(), &mut out);
            }
            Self::AddKey { user, id, key } => {
                out.text(user.as_str());
                out.text(id);
                key.encode(&mut out);
            }
            Self::AddToken { user, id, token } => {
                out.text(user.as_str());
                out.text(id);
                token.encode(&mut out);
            }
            Self::RemoveKey { user, id } | Self::RemoveToken { user, id } => {
                out.text(user.as_str());
                out.text(id);
            }
            Self::ForgetVhost { vhost } => out.text(vhost),
        }
        out.into_bytes()
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Add { .. } => 0,
            Self::SetPassword { .. } => 1,
            Self::SetTags { .. } => 2,
            Self::Delete { .. } => 3,
            Self::SetPermissions { .. } => 4,
            Self::ClearPermissions { .. } => 5,
            Self::SetTopics { .. } => 6,
            Self::ClearTopics { .. } => 7,
            Self::SetLimits { .. } => 8,
            Self::SetDefaultVhost { .. } => 9,
            Self::AddKey { .. } => 10,
            Self::RemoveKey { .. } => 11,
            Self::AddToken { .. } => 12,
            Self::RemoveToken { .. } => 13,
            Self::ForgetVhost { .. } => 14,
        }
    }

    /// Reads a record back.
    ///
    /// # Errors
    /// If the bytes are not a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(bytes);
        let (_, kind) = input.tag("a record of users", VERSION)?;
        if kind == 14 {
            let vhost = input.text()?.into();
            input.finish()?;
            return Ok(Self::ForgetVhost { vhost });
        }
        let user = decode_user(&mut input)?;
        let from = &mut input;
        let record = match kind {
            0 => Self::Add { user, password: PasswordHash::decode_optional(from)?, tags: decode_tags(from)? },
            1 => Self::SetPassword { user, password: PasswordHash::decode_optional(from)? },
            2 => Self::SetTags { user, tags: decode_tags(from)? },
            3 => Self::Delete { user },
            4 => Self::SetPermissions {
                user,
                vhost: from.text()?.into(),
                permissions: PermissionTexts::decode(from)?,
            },
            5 => Self::ClearPermissions { user, vhost: from.text()?.into() },
            6 => Self::SetTopics {
                user,
                vhost: from.text()?.into(),
                exchange: from.text()?.into(),
                write: from.text()?.to_owned(),
                read: from.text()?.to_owned(),
            },
            7 => {
                Self::ClearTopics { user, vhost: from.text()?.into(), exchange: decode_optional_text(from)? }
            }
            8 => Self::SetLimits { user, limits: UserLimits::decode(from)? },
            9 => Self::SetDefaultVhost { user, vhost: decode_optional_text(from)? },
            10 => Self::AddKey { user, id: from.text()?.into(), key: AccessKey::decode(from)? },
            11 => Self::RemoveKey { user, id: from.text()?.into() },
            12 => Self::AddToken { user, id: from.text()?.into(), token: ApiToken::decode(from)? },
            13 => Self::RemoveToken { user, id: from.text()?.into() },
            value => return Err(WireError::Unknown { what: "kind of record of users", value }),
        };
        input.finish()?;
        Ok(record)
    }
}

pub(super) fn decode_user(input: &mut Reader<'_>) -> Result<UserName, WireError> {
    UserName::new(input.text()?).map_err(|_| WireError::BadName)
}

pub(super) fn encode_optional_text(text: Option<&str>, out: &mut Writer) {
    match text {
        None => out.u8(0),
        Some(text) => {
            out.u8(1);
            out.text(text);
        }
    }
}

pub(super) fn decode_optional_text(input: &mut Reader<'_>) -> Result<Option<Arc<str>>, WireError> {
    if input.flag()? { Ok(Some(input.text()?.into())) } else { Ok(None) }
}
