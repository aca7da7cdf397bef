//! What a signed token lets its bearer do: the scopes of RabbitMQ's OAuth 2 plugin.
//!
//! A scope is `permission:vhost/name` or `permission:vhost/name/routing-key`, where the permission is `configure`, `write` or
//! `read`; or `tag:administrator` and the like. `*` in a pattern stands for any characters, everything else for itself, and
//! `%2F` for a slash. What is no such scope grants nothing: tokens carry scopes of others.

use std::collections::BTreeSet;

use super::name::Tag;
use super::rules::{Permission, Resource};

/// Everything that a token grants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scopes {
    grants: Vec<Grant>,
    tags: BTreeSet<Tag>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    permission: Permission,
    vhost: Wildcard,
    name: Wildcard,
    routing_key: Wildcard,
}

impl Scopes {
    /// Reads scopes. Those count that begin with `prefix`.
    #[must_use]
    pub fn parse<'a>(prefix: &str, scopes: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all = Self::default();
        for scope in scopes.into_iter().filter_map(|scope| scope.strip_prefix(prefix)) {
            let Some((kind, rest)) = scope.split_once(':') else { continue };
            let permission = match kind {
                "configure" => Permission::Configure,
                "write" => Permission::Write,
                "read" => Permission::Read,
                "tag" => {
                    all.tags.extend(Tag::new(rest).ok());
                    continue;
                }
                _ => continue,
            };
            all.grants.extend(Grant::parse(permission, rest));
        }
        all
    }

    /// Whether it lets somebody into a virtual host: whoever may do anything there.
    #[must_use]
    pub fn may_enter(&self, vhost: &str) -> bool {
        self.grants.iter().any(|grant| grant.vhost.matches(vhost.as_bytes()))
    }

    /// Whether it lets somebody do this with that.
    #[must_use]
    pub fn may(&self, vhost: &str, permission: Permission, resource: Resource<'_>) -> bool {
        self.of(vhost, permission, resource.matched_name()).next().is_some()
    }

    /// Whether it lets somebody send with this routing key to a topic exchange, or bind with it.
    #[must_use]
    pub fn may_topic(&self, vhost: &str, permission: Permission, exchange: &str, routing_key: &[u8]) -> bool {
        let name = Resource::exchange(exchange).matched_name();
        self.of(vhost, permission, name).any(|grant| grant.routing_key.matches(routing_key))
    }

    /// Whether routing keys matter at an exchange.
    #[must_use]
    pub fn has_topics(&self, vhost: &str, exchange: &str) -> bool {
        let name = Resource::exchange(exchange).matched_name();
        !self.of(vhost, Permission::Write, name).any(|grant| grant.routing_key.is_everything())
    }

    /// The tags.
    #[must_use]
    pub const fn tags(&self) -> &BTreeSet<Tag> {
        &self.tags
    }

    fn of<'a>(
        &'a self,
        vhost: &'a str,
        permission: Permission,
        name: &'a str,
    ) -> impl Iterator<Item = &'a Grant> {
        self.grants.iter().filter(move |grant| {
            grant.permission == permission
                && grant.vhost.matches(vhost.as_bytes())
                && grant.name.matches(name.as_bytes())
        })
    }
}

impl Grant {
    /// `None` if it is none.
    fn parse(permission: Permission, text: &str) -> Option<Self> {
        let mut parts = text.split('/').map(Wildcard::parse);
        let (vhost, name) = (parts.next()??, parts.next()??);
        // RabbitMQ reads a scope without it as one for all keys.
        let routing_key = parts.next().unwrap_or_else(|| Wildcard::parse("*"))?;
        parts.next().is_none().then_some(Self { permission, vhost, name, routing_key })
    }
}

/// Texts with anything between them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wildcard(Vec<Vec<u8>>);

impl Wildcard {
    /// `None` if something is escaped in a way that means nothing.
    fn parse(text: &str) -> Option<Self> {
        text.split('*').map(unescaped).collect::<Option<_>>().map(Self)
    }

    fn is_everything(&self) -> bool {
        self.0.len() > 1 && self.0.iter().all(Vec::is_empty)
    }

    /// Whether a name is one of those that are meant. Each text is looked for once, from where the one before ended, so the
    /// time it takes has a bound.
    fn matches(&self, name: &[u8]) -> bool {
        let [first, between @ .., last] = &*self.0 else {
            return self.0.first().is_some_and(|only| only == name);
        };
        let Some(rest) = name.strip_prefix(&**first) else { return false };
        let Some(mut rest) = rest.strip_suffix(&**last) else { return false };
        for text in between.iter().filter(|text| !text.is_empty()) {
            let Some(at) = rest.windows(text.len()).position(|part| part == &**text) else { return false };
            rest = &rest[at + text.len()..];
        }
        true
    }
}

/// A text in which `%2F` is a slash.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        out.push(u8::try_from(high * 16 + low).ok()?);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes(text: &str) -> Scopes {
        Scopes::parse("nexo.", text.split(' '))
    }

    fn queue(name: &str) -> Resource<'_> {
        Resource::queue(name)
    }

    #[test]
    fn a_scope_grants_what_it_says_and_nothing_else() {
        let scopes = scopes("nexo.configure:%2F/mine-* nexo.read:shop/*");
        assert!(scopes.may("/", Permission::Configure, queue("mine-a")));
        assert!(!scopes.may("/", Permission::Configure, queue("not-mine-a")));
        assert!(!scopes.may("/", Permission::Read, queue("mine-a")));
        assert!(!scopes.may("shop", Permission::Configure, queue("mine-a")));
        assert!(scopes.may("shop", Permission::Read, queue("anything")));
        assert!(scopes.may_enter("/") && scopes.may_enter("shop") && !scopes.may_enter("other"));
        assert_eq!(scopes.tags().len(), 0);
    }

    #[test]
    fn scopes_of_others_and_such_that_mean_nothing_grant_nothing() {
        let none = Scopes::default();
        for text in [
            "read:*/*",
            "other.read:*/*",
            "nexo.read:*",
            "nexo.read",
            "nexo.Read:*/*",
            "nexo.read:*/*/*/*",
            "nexo.read:%2/*",
            "nexo.read:%zz/*",
            "nexo.tag:",
            "",
        ] {
            assert_eq!(scopes(text), none, "{text}");
        }
    }

    #[test]
    fn routing_keys_count_for_topic_exchanges() {
        let some = scopes("nexo.write:*/amq.topic/ann.* nexo.write:*/all");
        assert!(some.may("/", Permission::Write, Resource::exchange("amq.topic")));
        assert!(some.may_topic("/", Permission::Write, "amq.topic", b"ann.x"));
        assert!(!some.may_topic("/", Permission::Write, "amq.topic", b"bob.x"));
        assert!(some.may_topic("/", Permission::Write, "all", b"bob.x"));
        assert!(some.has_topics("/", "amq.topic") && !some.has_topics("/", "all"));
    }

    #[test]
    fn the_default_exchange_has_a_name_here() {
        let scopes = scopes("nexo.write:*/amq.default");
        assert!(scopes.may("/", Permission::Write, Resource::exchange("")));
        assert!(!scopes.may("/", Permission::Write, queue("")));
    }

    #[test]
    fn tags_are_scopes_as_well() {
        let scopes = scopes("nexo.tag:administrator nexo.tag:mine");
        assert!(scopes.tags().contains("administrator") && scopes.tags().contains("mine"));
        assert!(!scopes.may_enter("/"), "a tag opens no virtual host");
    }

    #[test]
    fn a_star_stands_for_anything_and_the_rest_for_itself() {
        let matches = |pattern: &str, name: &str| Wildcard::parse(pattern).unwrap().matches(name.as_bytes());
        for (pattern, name) in
            [("*", ""), ("*", "a/b"), ("a*", "a"), ("*b", "ab"), ("a*b*c", "abbc"), ("**", "x"), ("", "")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("", "a"),
            ("a", "ab"),
            ("a*a", "a"),
            ("a*b*b", "ab"),
            (".", "x"),
            ("A*", "ab"),
            ("a%2Ab", "axb"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(matches("a%2Ab", "a*b"), "an escaped star is a star");
    }
}
