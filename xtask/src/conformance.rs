//! What real clients see: RabbitMQ's, judged on either broker, and those of AWS.

use crate::broker::Nexo;
use crate::python::{self, Variable};
use crate::rabbitmq::RabbitMq;

/// On the broker that was just built. `rest` goes to pytest, for example `-k confirms`.
pub(crate) fn nexo(rest: &[&str]) -> anyhow::Result<()> {
    let broker = Nexo::start()?;
    all(&broker.variables(), rest)?;
    if rest.is_empty() { both_protocols(&broker.variables(), &[]) } else { Ok(()) }
}

/// What AWS's clients see of the broker that was just built. `rest` goes to pytest.
pub(crate) fn sqs(rest: &[&str]) -> anyhow::Result<()> {
    let broker = Nexo::start()?;
    both_protocols(&broker.variables(), rest)?;
    if rest.is_empty() { python::node(&broker.variables()) } else { Ok(()) }
}

/// Once with a botocore that speaks JSON, once with one that speaks the Query protocol.
fn both_protocols(variables: &[Variable], rest: &[&str]) -> anyhow::Result<()> {
    python::pytest("sqs", variables, rest)?;
    let old = python::packages_of("sqs/query-requirements.txt", "venv-query")?;
    let mut variables = variables.to_vec();
    variables.push(("PYTHONPATH".to_owned(), old.display().to_string()));
    python::pytest("sqs", &variables, rest)
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
