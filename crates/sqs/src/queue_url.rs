//! The address by which a client names a queue: `http://host:port/000000000000/name`.

use std::fmt::Write;

use nexo_types::{QueueName, VhostName};
use percent_encoding::percent_decode_str;

use crate::fault::{Fault, FaultCode};

/// The address of a queue on this host.
pub(crate) fn of_queue(base: &str, account: &str, queue: &QueueName) -> String {
    let mut url = format!("{base}/{account}/");
    for byte in queue.as_str().bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

/// The queue that an address names. The last part of its path counts, whatever stands before it, so that addresses of
/// other brokers of this kind work as well; without a path the queue is the first part of the host. A name alone is the
/// name of the queue. `base` is the address by which this broker was reached. The queue is in the virtual host of whoever asks.
pub(crate) fn queue_name(vhost: &VhostName, url: &str, base: &str) -> Result<QueueName, Fault> {
    let invalid = || {
        let url: String = url.chars().take(256).collect();
        Fault::new(FaultCode::InvalidAddress, format!("The address {url} is not valid for this endpoint."))
    };
    let rest = match url.split_once("://") {
        Some(("http" | "https", rest)) => rest,
        Some(_) => return Err(invalid()),
        None => url,
    };
    let (host, path) = match rest.split_once('/') {
        Some(parts) => parts,
        // A host alone needs something before it that says that it is one.
        None if rest.len() < url.len() => (rest, ""),
        None => ("", rest),
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let encoded = match path.trim_end_matches('/').rsplit('/').next() {
        Some(last) if !last.is_empty() => last,
        _ => {
            let is_own = base.split_once("://").is_some_and(|(_, own)| own.eq_ignore_ascii_case(host));
            let first = host.split(['.', ':']).next().unwrap_or_default();
            if is_own || first.is_empty() || first.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(invalid());
            }
            // No queue has the name of a host, unless a domain follows it.
            if !host.contains('.') {
                return Err(Fault::no_such_queue());
            }
            first
        }
    };
    let name = percent_decode_str(encoded).decode_utf8().map_err(|_| invalid())?;
    // What can be no queue's name is the name of no queue.
    QueueName::at(vhost, &name).map_err(|_| Fault::no_such_queue())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_found_by_the_address_it_was_given() {
        for name in ["jobs", "jobs.fifo", "mit leer", "a/b", "grüße"] {
            let name = QueueName::new(name).unwrap();
            let url = of_queue("http://h:9324", "000000000000", &name);
            assert_eq!(queue_name(&VhostName::DEFAULT, &url, "http://h:9324"), Ok(name));
        }
    }

    #[test]
    fn addresses_of_other_kinds_are_understood() {
        for url in [
            "http://localhost:9324/queue/jobs",
            "/000000000000/jobs",
            "https://sqs.eu-west-1.amazonaws.com/1/jobs?x=1",
            "http://jobs.queue.localhost:9324/",
            "http://jobs.localhost",
            "jobs",
        ] {
            assert_eq!(
                queue_name(&VhostName::DEFAULT, url, "http://h:9324").unwrap().as_str(),
                "jobs",
                "{url}"
            );
        }
        for url in ["", "ftp://h/0/q", "http://127.0.0.1/", "http://h:9324/", "http://H:9324", "http://"] {
            let fault = queue_name(&VhostName::DEFAULT, url, "http://h:9324").unwrap_err();
            assert_eq!(fault.code, FaultCode::InvalidAddress, "{url}");
        }
        for url in ["http://whatever-queue-address", "http://other:80/"] {
            let fault = queue_name(&VhostName::DEFAULT, url, "http://h:9324").unwrap_err();
            assert_eq!(fault.code, FaultCode::QueueDoesNotExist, "{url}");
        }
    }
}
