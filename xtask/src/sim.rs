//! Playing whole clusters from seeds.

use crate::run::{root, run};

/// What `rest` says; see the help. All else is the program's to understand.
pub(crate) fn sim(rest: &[&str]) -> anyhow::Result<()> {
    let profile = ["build", "--quiet", "--profile", "sim", "-p", "nexo-sim"];
    run("cargo", &profile)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    run(&target.join("sim/nexo-sim").display().to_string(), rest)
}

/// Some thousand runs, as a part of the tests.
pub(crate) fn short() -> anyhow::Result<()> {
    sim(&["--runs", "2000", "--millis", "6000"])
}
