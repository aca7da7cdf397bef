//! `arn:aws:sqs:region:account:queue`, the name by which policies speak of a queue.

use nexo_types::{QueueName, VhostName};

/// The ARN of a queue.
pub(crate) fn of_queue(region: &str, account: &str, queue: &str) -> String {
    format!("arn:aws:sqs:{region}:{account}:{queue}")
}

/// The queue of a virtual host that an ARN names. Region and account may be any: there is one of each here.
pub(crate) fn queue_name(vhost: &VhostName, arn: &str) -> Option<QueueName> {
    let mut parts = arn.splitn(6, ':');
    let head = (parts.next()?, parts.next()?, parts.next()?);
    if head.0 != "arn" || !head.1.starts_with("aws") || head.2 != "sqs" {
        return None;
    }
    let (_region, _account) = (parts.next()?, parts.next()?);
    QueueName::at(vhost, parts.next()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_found_by_the_arn_it_was_given() {
        let arn = of_queue("eu-west-1", "123456789012", "jobs.fifo");
        assert_eq!(queue_name(&VhostName::DEFAULT, &arn).unwrap().as_str(), "jobs.fifo");
        for text in ["", "jobs", "arn:aws:sns:r:a:q", "arn:aws:sqs:r:a", "arn:aws:sqs:r:a:", "a:b:c:d:e:f"] {
            assert_eq!(queue_name(&VhostName::DEFAULT, text), None, "{text}");
        }
    }
}
