//! Who may come in. For now there is one user, `guest`, who may come from this machine only.

use std::net::IpAddr;

use crate::codec::Table;

pub(super) const MECHANISMS: &[u8] = b"PLAIN AMQPLAIN";
const USER: &[u8] = b"guest";
const PASSWORD: &[u8] = b"guest";
/// How much of a name that was refused is logged.
const USER_SHOWN_MAX: usize = 64;

/// Whether a login holds. The answer does not tell what was wrong with it.
pub(super) fn admits(mechanism: &[u8], response: &[u8], from: IpAddr) -> Option<&'static str> {
    let holds = match mechanism {
        b"PLAIN" => plain(response).is_some_and(is_user),
        b"AMQPLAIN" => amqplain(response).is_some_and(is_user),
        _ => false,
    };
    (holds && from.to_canonical().is_loopback()).then_some("guest")
}

/// Who a login says that it is, for the log: shortened, and without anything that a terminal would act on.
pub(super) fn claimed_user(mechanism: &[u8], response: &[u8]) -> String {
    let claimed = match mechanism {
        b"PLAIN" => plain(response),
        b"AMQPLAIN" => amqplain(response),
        _ => None,
    };
    let Some((user, _)) = claimed else { return "(none)".to_owned() };
    let name = String::from_utf8_lossy(&user[..user.len().min(4 * USER_SHOWN_MAX)]);
    name.chars().take(USER_SHOWN_MAX).flat_map(char::escape_debug).collect()
}

/// Whether there is such a way to log in.
pub(super) fn is_known(mechanism: &[u8]) -> bool {
    matches!(mechanism, b"PLAIN" | b"AMQPLAIN")
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

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn guest_comes_in_from_here_only() {
        assert!(admits(b"PLAIN", b"\0guest\0guest", HERE).is_some());
        assert!(
            admits(b"AMQPLAIN", b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest", HERE).is_some()
        );
        assert!(admits(b"PLAIN", b"\0guest\0guest", "10.0.0.1".parse().unwrap()).is_none());
        assert!(admits(b"PLAIN", b"\0guest\0guest", "::ffff:127.0.0.1".parse().unwrap()).is_some());
    }

    #[test]
    fn a_claimed_name_is_fit_for_the_log() {
        assert_eq!(claimed_user(b"PLAIN", b"\0alice\0secret"), "alice");
        assert_eq!(claimed_user(b"PLAIN", b"\0a\x1b[31m\nfake line\0x"), "a\\u{1b}[31m\\nfake line");
        assert_eq!(claimed_user(b"PLAIN", &[b"\0", &b"x".repeat(5000)[..], b"\0y"].concat()).len(), 64);
        assert_eq!(claimed_user(b"PLAIN", b"nothing"), "(none)");
        assert_eq!(claimed_user(b"EXTERNAL", b"\0a\0b"), "(none)");
    }

    #[test]
    fn anything_else_stays_out() {
        for response in [&b""[..], b"\0guest", b"\0guest\0wrong", b"guest\0guest", b"\0other\0guest"] {
            assert!(admits(b"PLAIN", response, HERE).is_none());
        }
        assert!(admits(b"AMQPLAIN", b"\xff", HERE).is_none());
        assert!(admits(b"EXTERNAL", b"\0guest\0guest", HERE).is_none());
    }
}
