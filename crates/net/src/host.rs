//! Whom a request asks for, by its `Host` header.
//!
//! A web page can have its own name lead to this machine and then ask whatever listens here, with the browser's consent
//! (DNS rebinding). Such a request carries the name of the page. While nobody has to log in, only names that cannot
//! belong to somebody else are answered.

use std::net::{IpAddr, Ipv6Addr};

/// Whether `host`, with or without a port, can only mean the machine that was reached at `local`: a loopback name or
/// address, or the very address that was connected to.
#[must_use]
pub fn is_for_this_machine(host: &str, local: IpAddr) -> bool {
    match Host::parse(host) {
        Some(Host::Address(address)) => address.is_loopback() || address == local.to_canonical(),
        Some(Host::Name(name)) => is_localhost(name),
        None => false,
    }
}

/// Whether `host`, with or without a port, is a loopback name or address.
#[must_use]
pub fn is_loopback_name(host: &str) -> bool {
    match Host::parse(host) {
        Some(Host::Address(address)) => address.is_loopback(),
        Some(Host::Name(name)) => is_localhost(name),
        None => false,
    }
}

/// Browsers and resolvers take everything below `localhost` for this machine.
fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// What a `Host` header names, without its port.
enum Host<'h> {
    Name(&'h str),
    Address(IpAddr),
}

impl<'h> Host<'h> {
    /// `None` for what no client writes: an IPv6 address has brackets, and a port is a number.
    fn parse(host: &'h str) -> Option<Self> {
        if let Some(rest) = host.strip_prefix('[') {
            let (address, port) = rest.split_once(']')?;
            let address: Ipv6Addr = address.parse().ok()?;
            return is_port(port).then_some(Self::Address(address.to_canonical()));
        }
        let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
        if !is_port(port) {
            return None;
        }
        // An address may end with a dot, too.
        let address = name.strip_suffix('.').unwrap_or(name).parse::<IpAddr>();
        Some(address.map_or(Self::Name(name), Self::Address))
    }
}

/// Nothing, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(host: &str) -> bool {
        is_for_this_machine(host, "10.1.2.3".parse().unwrap())
    }

    #[test]
    fn names_and_addresses_of_this_machine_are_known() {
        for host in [
            "localhost",
            "LOCALHOST:15672",
            "localhost.",
            "nexo.localhost:80",
            "127.0.0.1",
            "127.9.9.9:15672",
            "[::1]",
            "[::1]:15672",
            "[::ffff:127.0.0.1]:1",
            "10.1.2.3:15672",
            "[::ffff:10.1.2.3]",
        ] {
            assert!(asked(host), "{host}");
        }
    }

    #[test]
    fn a_name_that_somebody_else_could_own_is_not() {
        for host in [
            "",
            "evil.example",
            "evil.example:15672",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            "10.1.2.4",
            "[2001:db8::1]:15672",
            "localhost:80:80x",
            "0.0.0.0",
            "user@localhost.evil",
            "localhost@evil.example",
            "localhost:80:80",
            "localhost:x",
            "[::]",
            "[::2]:1",
            "[::1",
            "::1",
            "2130706433",
        ] {
            assert!(!asked(host), "{host}");
        }
    }

    #[test]
    fn an_address_of_this_machine_is_no_loopback_name() {
        assert!(is_loopback_name("jobs.localhost:9324") && is_loopback_name("127.9.9.9:1"));
        assert!(is_loopback_name("[::1]:9324") && is_loopback_name("[::ffff:127.0.0.1]"));
        assert!(!is_loopback_name("10.1.2.3:9324") && !is_loopback_name("[::ffff:10.1.2.3]"));
        assert!(!is_loopback_name("128.0.0.1") && !is_loopback_name("evil.example"));
    }
}
