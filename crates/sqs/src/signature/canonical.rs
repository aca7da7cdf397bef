//! The text that is signed: a request in one form, however it was written.

use std::fmt::Write;

use axum::http::{HeaderMap, Method, Uri};
use percent_encoding::percent_decode_str;

/// The text of a request. `payload` is the hash of its body.
pub(super) fn request(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    signed: &[String],
    payload: &str,
) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{method}");
    let _ = writeln!(text, "{}", path(uri.path()));
    let _ = writeln!(text, "{}", query(uri.query().unwrap_or_default()));
    for name in signed {
        let values: Vec<String> = headers
            .get_all(name.as_str())
            .iter()
            .map(|value| squeezed(&String::from_utf8_lossy(value.as_bytes())))
            .collect();
        let _ = writeln!(text, "{name}:{}", values.join(","));
    }
    let _ = write!(text, "\n{}\n{payload}", signed.join(";"));
    text
}

/// A path without detours, each byte of it encoded that is not plain, those that already are included.
fn path(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let mut text = String::from("/");
    text.push_str(&parts.join("/"));
    if path.ends_with('/') && !parts.is_empty() {
        text.push('/');
    }
    encoded(text.as_bytes(), b"/")
}

/// The parameters in order, without the signature itself.
fn query(query: &str) -> String {
    let plain = |text: &str| encoded(&percent_decode_str(text).collect::<Vec<u8>>(), b"");
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (plain(name), plain(value))
        })
        .filter(|(name, _)| name != "X-Amz-Signature")
        .collect();
    pairs.sort_unstable();
    let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

fn encoded(bytes: &[u8], also_plain: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(byte) || also_plain.contains(byte) {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// A value of a header with single spaces.
fn squeezed(value: &str) -> String {
    value.split_ascii_whitespace().collect::<Vec<&str>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_form() {
        let mut headers = HeaderMap::new();
        headers.insert("host", "h:1".parse().unwrap());
        headers.insert("x-a", "  b   c ".parse().unwrap());
        let uri: Uri = "/a/./b/../c%20d/?z=1&a=x%2fy&a=b&X-Amz-Signature=00".parse().unwrap();
        let signed = ["host".to_owned(), "x-a".to_owned()];
        assert_eq!(
            request(&Method::POST, &uri, &headers, &signed, "hash"),
            "POST\n/a/c%2520d/\na=b&a=x%2Fy&z=1\nhost:h:1\nx-a:b c\n\nhost;x-a\nhash"
        );
    }
}
