//! What a client says when it logs in. Whether that holds is not decided here.

use std::net::SocketAddr;

use nexo_net::TlsPeer;

use crate::codec::Table;

const MECHANISMS: &[u8] = b"PLAIN AMQPLAIN";
/// RabbitMQ offers the last one also to clients without a certificate: that they are refused tells them more than that
/// there is no such way.
const MECHANISMS_OVER_TLS: &[u8] = b"PLAIN AMQPLAIN EXTERNAL";
/// How much of a name that was refused is logged.
const USER_SHOWN_MAX: usize = 64;

/// Where a connection comes from.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) address: SocketAddr,
    /// What TLS tells of the client, where it is spoken.
    pub(super) tls: Option<TlsPeer>,
}

impl Origin {
    /// The name in the certificate that the client has shown.
    pub(super) fn certificate_user(&self) -> Option<&str> {
        self.tls.as_ref()?.certificate_user.as_deref()
    }
}

/// The ways to log in.
pub(super) const fn mechanisms(origin: &Origin) -> &'static [u8] {
    if origin.tls.is_some() { MECHANISMS_OVER_TLS } else { MECHANISMS }
}

/// The name and the password of a login, if it is one.
pub(super) fn credentials<'a>(mechanism: &[u8], response: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    match mechanism {
        b"PLAIN" => plain(response),
        b"AMQPLAIN" => amqplain(response),
        _ => None,
    }
}

/// Who a login says that it is, for the log: shortened, and without anything that a terminal would act on.
pub(super) fn claimed_user(mechanism: &[u8], response: &[u8], origin: &Origin) -> String {
    let claimed = match mechanism {
        b"EXTERNAL" => origin.certificate_user().map(str::as_bytes),
        _ => credentials(mechanism, response).map(|(user, _)| user),
    };
    let Some(user) = claimed else { return "(none)".to_owned() };
    let name = String::from_utf8_lossy(&user[..user.len().min(4 * USER_SHOWN_MAX)]);
    name.chars().take(USER_SHOWN_MAX).flat_map(char::escape_debug).collect()
}

/// Whether there is such a way to log in.
pub(super) fn is_known(mechanism: &[u8]) -> bool {
    matches!(mechanism, b"PLAIN" | b"AMQPLAIN" | b"EXTERNAL")
}

/// `authzid NUL user NUL password`, the first of which RabbitMQ ignores.
fn plain(response: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = response.splitn(3, |byte| *byte == 0);
    let _on_behalf_of = parts.next()?;
    Some((parts.next()?, parts.next()?))
}

/// The inside of a table with `LOGIN` and `PASSWORD`.
fn amqplain(response: &[u8]) -> Option<(&[u8], &[u8])> {
    let table = Table::parse(response).ok()?;
    Some((table.get("LOGIN")?.as_bytes()?, table.get("PASSWORD")?.as_bytes()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection from there; `certificate` is what TLS tells, if it is spoken.
    fn from(address: &str, certificate: Option<Option<&str>>) -> Origin {
        let tls = certificate.map(|user| TlsPeer { certificate_user: user.map(str::to_owned) });
        Origin { address: (address.parse::<std::net::IpAddr>().unwrap(), 1).into(), tls }
    }

    fn here() -> Origin {
        from("127.0.0.1", None)
    }

    #[test]
    fn a_login_has_a_name_and_a_password() {
        let guest = Some((&b"guest"[..], &b"pass"[..]));
        assert_eq!(credentials(b"PLAIN", b"\0guest\0pass"), guest);
        assert_eq!(credentials(b"PLAIN", b"other\0guest\0pass"), guest, "the first part is ignored");
        let table = b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x04pass";
        assert_eq!(credentials(b"AMQPLAIN", table), guest);
    }

    #[test]
    fn a_certificate_is_a_way_to_log_in_over_tls() {
        assert_eq!(from("127.0.0.1", Some(Some("guest"))).certificate_user(), Some("guest"));
        assert_eq!(from("127.0.0.1", Some(None)).certificate_user(), None);
        assert_eq!(here().certificate_user(), None);
        assert_eq!(mechanisms(&here()), b"PLAIN AMQPLAIN");
        assert_eq!(mechanisms(&from("127.0.0.1", Some(None))), b"PLAIN AMQPLAIN EXTERNAL");
    }

    #[test]
    fn a_claimed_name_is_fit_for_the_log() {
        let claimed = |response: &[u8]| claimed_user(b"PLAIN", response, &here());
        assert_eq!(claimed(b"\0alice\0secret"), "alice");
        assert_eq!(claimed(b"\0a\x1b[31m\nfake line\0x"), "a\\u{1b}[31m\\nfake line");
        assert_eq!(claimed(&[b"\0", &b"x".repeat(5000)[..], b"\0y"].concat()).len(), 64);
        assert_eq!(claimed(b"nothing"), "(none)");
        assert_eq!(claimed_user(b"EXTERNAL", b"\0a\0b", &here()), "(none)");
        let shown = from("127.0.0.1", Some(Some("CN=a\nb")));
        assert_eq!(claimed_user(b"EXTERNAL", b"\0a\0b", &shown), "CN=a\\nb");
    }

    #[test]
    fn anything_else_is_no_login() {
        for response in [&b""[..], b"\0guest", b"guest\0guest"] {
            assert_eq!(credentials(b"PLAIN", response), None);
        }
        assert_eq!(credentials(b"AMQPLAIN", b"\xff"), None);
        assert_eq!(credentials(b"EXTERNAL", b"\0guest\0guest"), None);
    }
}
