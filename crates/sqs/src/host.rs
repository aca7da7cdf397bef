//! Whether a request was meant for this machine. Without access keys a page in a browser here could reach the queues by a
//! name of its own that leads to this machine (DNS rebinding), and by an image whose address is an action. Such a request
//! names the page's host.

use axum::http::{HeaderMap, Uri, header};
use nexo_net::is_loopback_name;

/// Whether the host that a request names, if it names one, is this machine by one of its own names.
pub(crate) fn is_loopback(headers: &HeaderMap, uri: &Uri) -> bool {
    let mut named = headers.get_all(header::HOST).iter();
    named.all(|host| host.to_str().is_ok_and(is_loopback_name)) && uri.host().is_none_or(is_loopback_name)
}

#[cfg(test)]
mod tests {
    use super::*;

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
