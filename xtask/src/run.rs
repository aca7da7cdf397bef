//! Running other programs, in the root of the repository, and what they need: packages, ports, files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use nexo_harness::free_addresses;

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
    show(Command::new(program).args(args).current_dir(root()))
}

/// Runs a command to its end, showing what it prints; an error if it fails.
pub(crate) fn show(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let line = format!("{program} {}", args.join(" "));
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start '{program}'"))?;
    ensure!(status.success(), "'{line}' failed: {status}");
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

/// The first line that a program prints.
pub(crate) fn first_line(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stderr(Stdio::null()).output().context("cannot ask for a version")?;
    ensure!(output.status.success(), "a program does not tell its version");
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().trim().to_owned())
}

/// Ports that nobody listens on just now.
pub(crate) fn free_ports<const COUNT: usize>() -> anyhow::Result<[u16; COUNT]> {
    Ok(free_addresses()?.map(|address| address.port()))
}

/// Writes a file, naming it in the error.
pub(crate) fn write(path: &Path, content: &str) -> anyhow::Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write '{}'", path.display()))
}
