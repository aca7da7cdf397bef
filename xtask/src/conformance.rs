//! What RabbitMQ's clients see, judged on either broker.

use std::process::Command;

use crate::broker::Nexo;
use crate::python::{self, Variable};
use crate::rabbitmq::RabbitMq;
use crate::run::{root, show};

/// On the broker that was just built. `rest` goes to pytest, for example `-k confirms`.
pub(crate) fn nexo(rest: &[&str]) -> anyhow::Result<()> {
    let broker = Nexo::start()?;
    all(&broker.variables()?, rest)
}

/// On Debian's RabbitMQ, which is what the tests were recorded from.
pub(crate) fn rabbitmq(rest: &[&str]) -> anyhow::Result<()> {
    let broker = RabbitMq::start()?;
    let variables = broker.variables();
    all(&variables, rest)?;
    // On our own broker it is one of Rust's tests, which starts a broker of its own.
    if rest.is_empty() { rust(&variables) } else { Ok(()) }
}

/// What lapin sees.
fn rust(variables: &[Variable]) -> anyhow::Result<()> {
    let args = ["test", "--quiet", "--package", "nexo", "--test", "lapin"];
    show(Command::new("cargo").args(args).current_dir(root()).envs(variables.iter().cloned()))
}

fn all(variables: &[Variable], rest: &[&str]) -> anyhow::Result<()> {
    python::pytest("amqp", variables, rest)?;
    if rest.is_empty() {
        python::pytest("celery", variables, &[])?;
        python::node(variables)?;
    }
    Ok(())
}
