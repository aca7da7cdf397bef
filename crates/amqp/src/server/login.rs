//! Who may come in. For now there is one user, `guest`, who may come from this machine only.

use std::net::IpAddr;

use crate::codec::Table;

pub(super) const MECHANISMS: &[u8] = b"PLAIN AMQPLAIN";
const USER: &[u8] = b"guest";
const PASSWORD: &[u8] = b"guest";

/// Whether a login holds. The answer does not tell what was wrong with it.
pub(super) fn admits(mechanism: &[u8], response: &[u8], from: IpAddr) -> Option<&'static str> {
    let holds = match mechanism {
        b"PLAIN" => plain(response).is_some_and(is_user),
        b"AMQPLAIN" => amqplain(response).is_some_and(is_user),
        _ => false,
    };
    (holds && from.to_canonical().is_loopback()).then_some("guest")
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
    fn anything_else_stays_out() {
        for response in [&b""[..], b"\0guest", b"\0guest\0wrong", b"guest\0guest", b"\0other\0guest"] {
            assert!(admits(b"PLAIN", response, HERE).is_none());
        }
        assert!(admits(b"AMQPLAIN", b"\xff", HERE).is_none());
        assert!(admits(b"EXTERNAL", b"\0guest\0guest", HERE).is_none());
    }
}
