//! Who may come in. For now there is one user, `guest`, who may come from this machine only.

use std::net::SocketAddr;

use nexo_net::TlsPeer;

use crate::codec::Table;

const MECHANISMS: &[u8] = b"PLAIN AMQPLAIN";
/// RabbitMQ offers the last one also to clients without a certificate: that they are refused tells them more than that
/// there is no such way.
const MECHANISMS_OVER_TLS: &[u8] = b"PLAIN AMQPLAIN EXTERNAL";
const USER: &[u8] = b"guest";
const PASSWORD: &[u8] = b"guest";
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
    fn certificate_user(&self) -> Option<&str> {
        self.tls.as_ref()?.certificate_user.as_deref()
    }
}

/// The ways to log in.
pub(super) const fn mechanisms(origin: &Origin) -> &'static [u8] {
    if origin.tls.is_some() { MECHANISMS_OVER_TLS } else { MECHANISMS }
}

/// Whether a login holds. The answer does not tell what was wrong with it.
pub(super) fn admits(mechanism: &[u8], response: &[u8], origin: &Origin) -> Option<&'static str> {
    let holds = match mechanism {
        b"PLAIN" => plain(response).is_some_and(is_user),
        b"AMQPLAIN" => amqplain(response).is_some_and(is_user),
        // The certificate was checked with the handshake; what is left is whether there is such a user.
        b"EXTERNAL" => origin.certificate_user().is_some_and(|user| user.as_bytes() == USER),
        _ => false,
    };
    (holds && origin.address.ip().to_canonical().is_loopback()).then_some("guest")
}

/// Who a login says that it is, for the log: shortened, and without anything that a terminal would act on.
pub(super) fn claimed_user(mechanism: &[u8], response: &[u8], origin: &Origin) -> String {
    let claimed = match mechanism {
        b"PLAIN" => plain(response).map(|(user, _)| user),
        b"AMQPLAIN" => amqplain(response).map(|(user, _)| user),
        b"EXTERNAL" => origin.certificate_user().map(str::as_bytes),
        _ => None,
    };
    let Some(user) = claimed else { return "(none)".to_owned() };
    let name = String::from_utf8_lossy(&user[..user.len().min(4 * USER_SHOWN_MAX)]);
    name.chars().take(USER_SHOWN_MAX).flat_map(char::escape_debug).collect()
}

/// Whether there is such a way to log in.
pub(super) fn is_known(mechanism: &[u8]) -> bool {
    matches!(mechanism, b"PLAIN" | b"AMQPLAIN" | b"EXTERNAL")
}

fn is_user((user, password): (&[u8], &[u8])) -> bool {
    user == USER && password == PASSWORD
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
    fn guest_comes_in_from_here_only() {
        assert!(admits(b"PLAIN", b"\0guest\0guest", &here()).is_some());
        assert!(
            admits(b"AMQPLAIN", b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest", &here()).is_some()
        );
        assert!(admits(b"PLAIN", b"\0guest\0guest", &from("10.0.0.1", None)).is_none());
        assert!(admits(b"PLAIN", b"\0guest\0guest", &from("::ffff:127.0.0.1", None)).is_some());
    }

    #[test]
    fn a_certificate_logs_its_user_in() {
        let external = |origin: &Origin| admits(b"EXTERNAL", b"", origin).is_some();
        assert!(external(&from("127.0.0.1", Some(Some("guest")))));
        assert!(!external(&from("10.0.0.1", Some(Some("guest")))), "guest comes from here only");
        assert!(!external(&from("127.0.0.1", Some(Some("CN=guest")))), "there is no such user");
        assert!(!external(&from("127.0.0.1", Some(None))), "no certificate");
        assert!(!external(&here()), "no TLS");
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
    fn anything_else_stays_out() {
        for response in [&b""[..], b"\0guest", b"\0guest\0wrong", b"guest\0guest", b"\0other\0guest"] {
            assert!(admits(b"PLAIN", response, &here()).is_none());
        }
        assert!(admits(b"AMQPLAIN", b"\xff", &here()).is_none());
        assert!(admits(b"EXTERNAL", b"\0guest\0guest", &here()).is_none());
    }
}
