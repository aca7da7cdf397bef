//! Running other programs, in the root of the repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.to_owned(), Path::to_owned)
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Runs a program to its end, showing what it prints; an error if it fails.
pub(crate) fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    eprintln!("$ {program} {}", args.join(" "));
    let status = Command::new(program)
        .args(args)
        .current_dir(root())
        .status()
        .with_context(|| format!("cannot start '{program}'"))?;
    ensure!(status.success(), "'{program} {}' failed: {status}", args.join(" "));
    Ok(())
}

/// Installs a Debian package, if we may; an error that says what to install otherwise.
pub(crate) fn install(packages: &[&str]) -> anyhow::Result<()> {
    ensure!(
        answers("apt-get", &["--version"]) && answers("test", &["-w", "/var/lib/dpkg"]),
        "missing and cannot be installed from here; install the packages: {}",
        packages.join(" ")
    );
    run("apt-get", &["update", "-qq"])?;
    run("apt-get", &[&["install", "-y", "-qq", "--no-install-recommends"], packages].concat())
}

/// Whether a program is there and answers.
pub(crate) fn answers(program: &str, args: &[&str]) -> bool {
    let quiet = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}
