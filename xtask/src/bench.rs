//! Building and starting the programs that measure.

use crate::run::{root, run, target};

/// How much of the load is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// All of it; what was found is written down.
    Full,
    /// A small part, to see that it works.
    Quick,
}

/// Measures the engine.
pub(crate) fn engine(size: Size) -> anyhow::Result<()> {
    run("cargo", &["build", "--release", "-p", "nexo", "-p", "nexo-bench"])?;
    let path = |name: &str| target().join(name).display().to_string();
    let (nexo, data) = (path("release/nexo"), path("bench-data"));
    let page = root().join("docs/benchmarks.md").display().to_string();
    let mut args = vec!["engine", "--nexo", &nexo, "--data-dir", &data];
    match size {
        Size::Full => args.extend(["--page", &page]),
        Size::Quick => args.extend(["--divide", "20"]),
    }
    run(&path("release/nexo-bench"), &args)
}
