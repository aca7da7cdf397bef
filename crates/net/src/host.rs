//! Whom a request asks for, by its `Host` header.
//!
//! A web page can have its own name lead to this machine and then ask whatever listens here, with the browser's consent
//! (DNS rebinding). Such a request carries the name of the page. While nobody has to log in, only names that cannot
//! belong to somebody else are answered.

use std::net::IpAddr;

/// Whether `host`, with or without a port, can only mean the machine that was reached at `local`: a loopback name or
/// address, or the very address that was connected to.
#[must_use]
pub fn is_for_this_machine(host: &str, local: IpAddr) -> bool {
    let name = without_port(host);
    let address = name.strip_prefix('[').map_or(name, |rest| rest.strip_suffix(']').unwrap_or(rest));
    if let Ok(address) = address.parse::<IpAddr>() {
        let address = address.to_canonical();
        return address.is_loopback() || address == local.to_canonical();
    }
    // Browsers and resolvers take everything below `localhost` for this machine.
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // Of an IPv6 address without a port, the last colon is inside the brackets.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
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
        ] {
            assert!(!asked(host), "{host}");
        }
    }
}
