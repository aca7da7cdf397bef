//! The address by which a client names a queue: `http://host:port/000000000000/name`.

use std::fmt::Write;

use nexo_types::QueueName;
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
/// other brokers of this kind work as well; without a path the queue is the first part of the host.
pub(crate) fn queue_name(url: &str) -> Result<QueueName, Fault> {
    let invalid = || {
        let url: String = url.chars().take(256).collect();
        Fault::new(FaultCode::InvalidAddress, format!("The address {url} is not valid for this endpoint."))
    };
    let rest = match url.split_once("://") {
        Some(("http" | "https", rest)) => rest,
        Some(_) => return Err(invalid()),
        None => url,
    };
    let (host, path) = rest.split_once('/').ok_or_else(invalid).or_else(|invalid| {
        // A host alone needs something before it that says that it is one.
        if rest.len() < url.len() { Ok((rest, "")) } else { Err(invalid) }
    })?;
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let encoded = match path.trim_end_matches('/').rsplit('/').next() {
        Some(last) if !last.is_empty() => last,
        _ => match host.split_once('.') {
            Some((first, _)) if !first.is_empty() && !first.bytes().all(|byte| byte.is_ascii_digit()) => {
                first
            }
            _ => return Err(invalid()),
        },
    };
    let name = percent_decode_str(encoded).decode_utf8().map_err(|_| invalid())?;
    // What can be no queue's name is the name of no queue.
    QueueName::new(&name).map_err(|_| Fault::no_such_queue())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_found_by_the_address_it_was_given() {
        for name in ["jobs", "jobs.fifo", "mit leer", "a/b", "grüße"] {
            let name = QueueName::new(name).unwrap();
            assert_eq!(queue_name(&of_queue("http://h:9324", "000000000000", &name)), Ok(name));
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
        ] {
            assert_eq!(queue_name(url).unwrap().as_str(), "jobs", "{url}");
        }
        for url in ["", "jobs", "ftp://h/0/q", "http://127.0.0.1/", "http://h/", "http://"] {
            assert_eq!(queue_name(url).unwrap_err().code, FaultCode::InvalidAddress, "{url}");
        }
    }
}
