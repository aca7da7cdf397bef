//! Whether a request was meant for this machine. Without access keys a page in a browser here could reach the queues by a
//! name of its own that leads to this machine (DNS rebinding), and by an image whose address is an action. Such a request
//! names the page's host.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::{HeaderMap, Uri, header};

/// Whether the host that a request names, if it names one, is this machine by one of its own names.
pub(crate) fn is_loopback(headers: &HeaderMap, uri: &Uri) -> bool {
    let mut named = headers.get_all(header::HOST).iter();
    named.all(|host| host.to_str().is_ok_and(is_loopback_name)) && uri.host().is_none_or(is_loopback_name)
}

/// `localhost` and names below it, 127.0.0.0/8 and ::1, with a port or not.
fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            let Some((address, port)) = rest.split_once(']') else { return false };
            return is_port(port)
                && address.parse::<Ipv6Addr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
        }
        None => match host.split_once(':') {
            Some((name, port)) if is_port(&host[name.len()..]) && !port.contains(':') => name,
            Some(_) => return false,
            None => host,
        },
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
}

/// Nothing, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_its_own() {
        for host in [
            "localhost",
            "LOCALHOST:9324",
            "localhost.",
            "jobs.localhost:9324",
            "127.0.0.1",
            "127.9.9.9:1",
            "[::1]",
            "[::1]:9324",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(is_loopback_name(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "128.0.0.1",
            "0.0.0.0",
            "10.0.0.1:9324",
            "[::]",
            "[::2]:1",
            "[::1",
            "::1",
            "localhost:80:80",
            "localhost:x",
            "localhost@evil.example",
            "2130706433",
        ] {
            assert!(!is_loopback_name(host), "{host}");
        }
    }

    #[test]
    fn a_request_without_a_host_is_no_browsers() {
        let mut headers = HeaderMap::new();
        let uri: Uri = "/".parse().unwrap();
        assert!(is_loopback(&headers, &uri));
        assert!(!is_loopback(&headers, &"http://evil.example/".parse().unwrap()));
        headers.insert(header::HOST, "localhost".parse().unwrap());
        assert!(is_loopback(&headers, &uri));
        headers.append(header::HOST, "evil.example".parse().unwrap());
        assert!(!is_loopback(&headers, &uri), "whichever of them counts");
    }
}
