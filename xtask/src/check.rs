//! Formatting, lints and tests.

use anyhow::Context;

use crate::bench::Size;
use crate::broker::Nodes;
use crate::conformance;
use crate::run::{answers, install, run};
use crate::sim;
use crate::torture;

/// What to run after every change: all that takes seconds, simulated clusters, and a short torture of the real program. What real clients see
/// is left to [`test`]. Writes nothing.
pub(crate) fn verify() -> anyhow::Result<()> {
    run("cargo", &["fmt", "--all", "--check"])?;
    run("cargo", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])?;
    rust_tests(&[])?;
    sim::short()?;
    torture::short()
}

/// Mends what can be mended by a program.
pub(crate) fn fix() -> anyhow::Result<()> {
    run("cargo", &["clippy", "--workspace", "--all-targets", "--fix", "--allow-dirty", "--allow-staged"])?;
    run("cargo", &["fmt", "--all"])
}

/// Every test there is. `rest` goes to the runner, for example a part of a test's name.
pub(crate) fn test(rest: &[&str]) -> anyhow::Result<()> {
    build_tools()?;
    rust_tests(rest)?;
    // A part of a test's name is for Rust's tests.
    if !rest.is_empty() {
        return Ok(());
    }
    sim::short()?;
    torture::short()?;
    torture::short_cluster()?;
    // What real clients see.
    conformance::nexo(Nodes::One, &[])?;
    conformance::moving(&[])?;
    conformance::scale(Size::Quick)
}

/// The broker's allocator is C and is built with `make`, whose absence its build would tell in words that nobody understands.
/// Whoever got here has a C compiler: Rust links with it.
fn build_tools() -> anyhow::Result<()> {
    if answers("make", &["--version"]) {
        return Ok(());
    }
    install(&["make"]).context("make, which builds the allocator")
}

fn rust_tests(rest: &[&str]) -> anyhow::Result<()> {
    // nextest runs tests of all programs side by side; without it they run one program after the other.
    let nextest = answers("cargo", &["nextest", "--version"]);
    let runner: &[&str] = if nextest { &["nextest", "run", "--workspace"] } else { &["test", "--workspace"] };
    run("cargo", &[runner, rest].concat())
}
