//! All users as bytes, so that recovery need not read the log from its beginning.

use bytes::Bytes;

use super::record::{AccessRecord, decode_optional_text, decode_user, encode_optional_text};
use super::state::Access;
use super::user::{
    AccessKey, ApiToken, PasswordHash, PermissionTexts, User, UserLimits, decode_tags, encode_tags,
};
use crate::wire::{Reader, WireError, Writer};

/// The version in which a snapshot is written.
const VERSION: u64 = 1;

impl Access {
    /// The state as bytes.
    #[must_use]
    pub fn snapshot(&self) -> Bytes {
        let mut out = Writer::with_capacity(256);
        out.version(VERSION);
        out.u8(self.had_users.into());
        out.u64(self.users.len() as u64);
        for user in self.users.values() {
            encode_user(user, &mut out);
        }
        out.into_bytes()
    }

    /// The state of a snapshot.
    ///
    /// # Errors
    /// If the bytes are not a snapshot.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(bytes);
        input.version("the snapshot of users", VERSION)?;
        let mut access = Self { had_users: input.flag()?, ..Self::default() };
        for _ in 0..input.u64()? {
            decode_into(&mut access, &mut input)?;
        }
        input.finish()?;
        Ok(access)
    }
}

fn encode_user(user: &User, out: &mut Writer) {
    out.text(user.name.as_str());
    PasswordHash::encode_optional(user.password.as_ref(), out);
    encode_tags(&user.tags, out);
    user.limits.encode(out);
    encode_optional_text(user.default_vhost.as_deref(), out);
    out.u64(user.permissions.len() as u64);
    for (vhost, permissions) in &user.permissions {
        out.text(vhost);
        permissions.texts().encode(out);
    }
    out.u64(user.topics.len() as u64);
    for ((vhost, exchange), topics) in &user.topics {
        let texts: [&str; 4] = [vhost, exchange, topics.write.as_str(), topics.read.as_str()];
        texts.into_iter().for_each(|text| out.text(text));
    }
    out.u64(user.keys.len() as u64);
    for (id, key) in &user.keys {
        out.text(id);
        key.encode(out);
    }
    out.u64(user.tokens.len() as u64);
    for (id, token) in &user.tokens {
        out.text(id);
        token.encode(out);
    }
}

fn decode_into(access: &mut Access, input: &mut Reader<'_>) -> Result<(), WireError> {
    let user = decode_user(input)?;
    let password = PasswordHash::decode_optional(input)?;
    access.apply_record(&AccessRecord::Add { user: user.clone(), password, tags: decode_tags(input)? });
    let limits = UserLimits::decode(input)?;
    access.apply_record(&AccessRecord::SetLimits { user: user.clone(), limits });
    let vhost = decode_optional_text(input)?;
    access.apply_record(&AccessRecord::SetDefaultVhost { user: user.clone(), vhost });
    for _ in 0..input.u64()? {
        let (user, vhost) = (user.clone(), input.text()?.into());
        let permissions = PermissionTexts::decode(input)?;
        access.apply_record(&AccessRecord::SetPermissions { user, vhost, permissions });
    }
    for _ in 0..input.u64()? {
        let (vhost, exchange) = (input.text()?.into(), input.text()?.into());
        let (write, read) = (input.text()?.to_owned(), input.text()?.to_owned());
        access.apply_record(&AccessRecord::SetTopics { user: user.clone(), vhost, exchange, write, read });
    }
    for _ in 0..input.u64()? {
        let (user, id, key) = (user.clone(), input.text()?.into(), AccessKey::decode(input)?);
        access.apply_record(&AccessRecord::AddKey { user, id, key });
    }
    for _ in 0..input.u64()? {
        let (user, id, token) = (user.clone(), input.text()?.into(), ApiToken::decode(input)?);
        access.apply_record(&AccessRecord::AddToken { user, id, token });
    }
    Ok(())
}
