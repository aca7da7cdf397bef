//! Checks of single fields of a request. Each refusal begins with the name of the field.

use std::fmt::Display;

use nexo_types::{
    BudgetName, JobQueueName, Millis, NameError, Offset, Priority, QueueName, VhostName, limits,
};

use crate::status::Failure;

/// A number that must lie in a range.
pub(crate) fn in_range(field: impl Display, value: u64, min: u64, max: u64) -> Result<u64, Failure> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(Failure::invalid(format!("{field} must be between {min} and {max}; it is {value}")))
    }
}

/// How many items a list may hold, from one on.
pub(crate) fn count(field: impl Display, len: usize, max: usize) -> Result<(), Failure> {
    if (1..=max).contains(&len) {
        Ok(())
    } else {
        Err(Failure::invalid(format!("{field} must hold between 1 and {max} items; it holds {len}")))
    }
}

/// How many messages are asked for; 0 asks for one.
pub(crate) fn max(value: u32, limit: usize) -> Result<usize, Failure> {
    let value = in_range("max", value.into(), 0, limit as u64)?;
    Ok(usize::try_from(value.max(1)).unwrap_or(limit))
}

/// The lease that a pop or subscription asks for, if it does.
pub(crate) fn visibility(value: Option<u64>) -> Result<Option<Millis>, Failure> {
    value.map(lease).transpose()
}

/// A lease that must be given.
pub(crate) fn lease(value: u64) -> Result<Millis, Failure> {
    in_range("visibility_ms", value, 1, limits::VISIBILITY_MAX.0).map(Millis)
}

/// The virtual host that a request is about: "/" if it names none.
pub(crate) fn vhost(name: &str) -> Result<VhostName, Failure> {
    match name {
        "" => Ok(VhostName::DEFAULT),
        name => VhostName::new(name).map_err(|error| named("vhost", &error)),
    }
}

/// The queue that a request is about, in the virtual host that it names.
pub(crate) fn queue(in_vhost: &str, name: &str) -> Result<QueueName, Failure> {
    queue_in("queue", &vhost(in_vhost)?, name)
}

/// A queue named by some other field.
pub(crate) fn queue_in(field: &str, vhost: &VhostName, name: &str) -> Result<QueueName, Failure> {
    QueueName::at(vhost, name).map_err(|error| named(field, &error))
}

/// The job queue that a request is about, in the virtual host that it names.
pub(crate) fn job_queue(in_vhost: &str, name: &str) -> Result<JobQueueName, Failure> {
    JobQueueName::at(&vhost(in_vhost)?, name).map_err(|error| named("queue", &error))
}

/// The budget that a request is about, in the virtual host that it names.
pub(crate) fn budget(in_vhost: &str, name: &str) -> Result<BudgetName, Failure> {
    BudgetName::at(&vhost(in_vhost)?, name).map_err(|error| named("budget", &error))
}

/// Bytes that must not be too many.
pub(crate) fn bytes(field: &str, len: usize, max: usize) -> Result<(), Failure> {
    if len <= max {
        Ok(())
    } else {
        Err(Failure::invalid(format!("{field} has at most {max} bytes; it has {len}")))
    }
}

/// How many items a page has; `default` if the client does not say.
pub(crate) fn page(field: &str, asked: u32, default: usize, max: usize) -> Result<usize, Failure> {
    match in_range(field, asked.into(), 0, max as u64)? {
        0 => Ok(default),
        size => Ok(usize::try_from(size).unwrap_or(max)),
    }
}

/// Where a look at a queue goes on: a priority and an id, as the answer before said them.
pub(crate) fn peek_position(token: &str) -> Result<Option<(Priority, Offset)>, Failure> {
    if token.is_empty() {
        return Ok(None);
    }
    let parsed = token.split_once('-').and_then(|(priority, offset)| {
        Some((Priority(priority.parse().ok()?), Offset(offset.parse().ok()?)))
    });
    parsed.map(Some).ok_or_else(|| Failure::invalid(format!("page_token: '{token}' is not one")))
}

/// A name that breaks a rule of names.
pub(crate) fn named(field: impl Display, error: &NameError) -> Failure {
    Failure::invalid(format!("{field}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_field_the_range_and_the_value() {
        let refused = in_range(format_args!("messages[{}].priority", 3), 300, 0, 255).unwrap_err();
        assert_eq!(refused.message, "messages[3].priority must be between 0 and 255; it is 300");
        assert_eq!(refused.code, tonic::Code::InvalidArgument);
    }

    #[test]
    fn a_negative_time_sent_as_unsigned_is_refused_with_the_range() {
        let refused = lease((-1i64).cast_unsigned()).unwrap_err().message;
        assert_eq!(refused, "visibility_ms must be between 1 and 31622400000; it is 18446744073709551615");
    }

    #[test]
    fn a_queue_name_over_its_limit_is_refused() {
        let refused = queue("", &"x".repeat(256)).unwrap_err().message;
        assert_eq!(refused, "queue: a queue name has at most 255 bytes; this one has 256");
        assert_eq!(queue("", "").unwrap_err().message, "queue: a queue name must not be empty");
    }

    #[test]
    fn a_queue_is_in_the_virtual_host_that_a_request_names() {
        assert_eq!(queue("", "q"), queue("/", "q"));
        assert_eq!(queue("acme", "q").unwrap().in_full().to_string(), "q in vhost 'acme'");
        let refused = queue("a\nb", "q").unwrap_err().message;
        assert_eq!(refused, "vhost: a virtual host name must not contain control characters; byte 1 is one");
    }

    #[test]
    fn a_page_token_is_what_an_answer_said_and_nothing_else() {
        assert_eq!(peek_position(""), Ok(None));
        assert_eq!(peek_position("7-42"), Ok(Some((Priority(7), Offset(42)))));
        for token in ["7", "-", "256-1", "7-x", "7--1", "7-18446744073709551616"] {
            assert_eq!(
                peek_position(token).unwrap_err().message,
                format!("page_token: '{token}' is not one")
            );
        }
    }

    #[test]
    fn asking_for_no_number_of_messages_asks_for_one() {
        assert_eq!(max(0, 10), Ok(1));
        assert_eq!(max(10, 10), Ok(10));
        assert_eq!(max(11, 10).unwrap_err().message, "max must be between 0 and 10; it is 11");
    }

    #[test]
    fn an_empty_list_is_refused() {
        let refused = count("receipts", 0, 5).unwrap_err().message;
        assert_eq!(refused, "receipts must hold between 1 and 5 items; it holds 0");
    }
}
