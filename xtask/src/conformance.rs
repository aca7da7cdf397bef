//! What RabbitMQ's clients see, judged on either broker.

use crate::broker::Nexo;
use crate::python::{self, Variable};
use crate::rabbitmq::RabbitMq;

/// On the broker that was just built. `rest` goes to pytest, for example `-k confirms`.
pub(crate) fn nexo(rest: &[&str]) -> anyhow::Result<()> {
    let broker = Nexo::start()?;
    all(&broker.variables(), rest)
}

/// On Debian's RabbitMQ, which is what the tests were recorded from.
pub(crate) fn rabbitmq(rest: &[&str]) -> anyhow::Result<()> {
    let broker = RabbitMq::start()?;
    all(&broker.variables(), rest)
}

fn all(variables: &[Variable], rest: &[&str]) -> anyhow::Result<()> {
    python::pytest("amqp", variables, rest)?;
    if rest.is_empty() {
        python::pytest("celery", variables, &[])?;
        python::node(variables)?;
    }
    Ok(())
}
