//! What real clients see: RabbitMQ's, judged on either broker, those of AWS, and the programs of `examples`.

use std::process::Command;

use anyhow::{Context, bail};

use crate::bench::Size;
use crate::broker::{Build, Nexo, Nodes};
use crate::python::{self, Variable};
use crate::rabbitmq::{self, RabbitMq};
use crate::run::{root, show};

/// On the broker that was just built. `rest` goes to pytest, for example `-k confirms`.
pub(crate) fn nexo(nodes: Nodes, rest: &[&str]) -> anyhow::Result<()> {
    let broker = Nexo::start_nodes(Build::Debug, nodes)?;
    let variables = broker.variables()?;
    all(&variables, rest)?;
    if rest.is_empty() {
        python::pytest("tls", &variables, &[])?;
        // They start brokers of their own, with the program of `NEXO_BIN`; Node is there by now.
        python::pytest("examples", &variables, &[])?;
        both_protocols(nodes, &variables, &[])?;
    }
    if rest.is_empty() && nodes == Nodes::Three {
        native_on_clusters()?;
    }
    Ok(())
}

/// The tests of the command line, which speaks the native API, and of lapin: each on a node of its own that leads nothing.
fn native_on_clusters() -> anyhow::Result<()> {
    let tests = ["cli", "cli_amqp", "cli_jobs", "cli_policy", "cli_schedule", "lapin"];
    let args = tests.iter().flat_map(|test| ["--test", *test]);
    show(
        Command::new("cargo")
            .args(["test", "--quiet", "--package", "nexo"])
            .args(args)
            // It reads the log of the node that it has, and the leader is the one that tells.
            .args(["--", "--skip", "the_log_tells_of_connections"])
            .current_dir(root())
            .env("NEXO_TEST_ON_CLUSTERS", "1"),
    )
}

/// Clients that try again, on three nodes whose leader changes every few seconds. `rest` goes to pytest.
pub(crate) fn moving(rest: &[&str]) -> anyhow::Result<()> {
    let broker = Nexo::start_nodes(Build::Debug, Nodes::Three)?;
    python::pytest("moving", &broker.variables()?, rest)
}

/// What AWS's clients see of the broker that was just built. `rest` goes to pytest.
pub(crate) fn sqs(nodes: Nodes, rest: &[&str]) -> anyhow::Result<()> {
    let broker = Nexo::start_nodes(Build::Debug, nodes)?;
    let variables = broker.variables()?;
    both_protocols(nodes, &variables, rest)?;
    if rest.is_empty() { python::node(&variables) } else { Ok(()) }
}

/// Once with a botocore that speaks JSON, once with one that speaks the Query protocol: at the same time, since both wait for most of
/// the time, and on a broker each.
fn both_protocols(nodes: Nodes, variables: &[Variable], rest: &[&str]) -> anyhow::Result<()> {
    let old = python::packages_of("sqs/query-requirements.txt", "venv-query")?;
    let other = Nexo::start_nodes(Build::Debug, nodes)?;
    let mut others = other.variables()?;
    others.push(("PYTHONPATH".to_owned(), old.display().to_string()));
    std::thread::scope(|scope| {
        let query = scope.spawn(|| python::pytest_apart("sqs", &others, rest));
        let json = python::pytest("sqs", variables, rest);
        let (told, query) =
            query.join().map_err(|_| anyhow::anyhow!("the run of the Query protocol has panicked"))??;
        println!("with the Query protocol:\n{told}");
        json.and(query)
    })
}

/// What clients of RabbitMQ's management API see of the broker that was just built, or of RabbitMQ. `rest` goes to pytest.
pub(crate) fn management_of(broker: &str, nodes: Nodes, rest: &[&str]) -> anyhow::Result<()> {
    match broker {
        "nexo" => management(&Nexo::start_nodes(Build::Debug, nodes)?.variables()?, rest),
        "rabbitmq" if nodes == Nodes::Three => bail!("--cluster is for nexo"),
        "rabbitmq" => management(&RabbitMq::start()?.variables(), rest),
        other => bail!("'{other}' is neither nexo nor rabbitmq"),
    }
}

fn management(variables: &[Variable], rest: &[&str]) -> anyhow::Result<()> {
    let mut variables = variables.to_vec();
    variables.push(rabbitmq::admin_script()?);
    python::pytest("management", &variables, rest)
}

/// On Debian's RabbitMQ, which is what the tests were recorded from.
pub(crate) fn rabbitmq(rest: &[&str]) -> anyhow::Result<()> {
    let broker = RabbitMq::start()?;
    let variables = broker.variables();
    all(&variables, rest)?;
    // On our own broker it is one of Rust's tests, which starts a broker of its own.
    if rest.is_empty() { rust(&variables) } else { Ok(()) }
}

/// Random acts on both brokers, whose answers must be the same. `rest` names seeds.
pub(crate) fn compare(rest: &[&str]) -> anyhow::Result<()> {
    let (reference, judged) = (RabbitMq::start()?, Nexo::start(Build::Debug)?);
    let mut variables = judged.variables()?;
    let url = reference.variables().into_iter().find(|(name, _)| name == "AMQP_URL");
    let (_, url) = url.context("RabbitMQ has an address")?;
    variables.push(("AMQP_REFERENCE_URL".to_owned(), url));
    if !rest.is_empty() {
        variables.push(("COMPARE_SEEDS".to_owned(), rest.join(" ")));
    }
    python::pytest("compare", &variables, &[])
}

/// AMQP at size, on the broker that was just built.
pub(crate) fn scale(size: Size) -> anyhow::Result<()> {
    // The small load is to see that everything works, which it does unoptimised as well.
    let build = match size {
        Size::Full => Build::Release,
        Size::Quick => Build::Debug,
    };
    let program = build.program("nexo-scale")?;
    let broker = Nexo::start(build)?;
    let mut command = Command::new(program);
    command.args(["--amqp", &broker.amqp().to_string(), "--pid", &broker.pid().to_string()]);
    if size == Size::Quick {
        command.arg("--short");
    }
    show(&mut command)
}

/// What lapin sees.
fn rust(variables: &[Variable]) -> anyhow::Result<()> {
    let args = ["test", "--quiet", "--package", "nexo", "--test", "lapin"];
    show(Command::new("cargo").args(args).current_dir(root()).envs(variables.iter().cloned()))
}

fn all(variables: &[Variable], rest: &[&str]) -> anyhow::Result<()> {
    python::pytest("amqp", variables, rest)?;
    if rest.is_empty() {
        management(variables, &[])?;
        python::pytest("celery", variables, &[])?;
        python::node(variables)?;
    }
    Ok(())
}
