//! The conformance tests that real clients run: pytest in an environment of its own, and Node beside it.
//!
//! Everything is set up under `target`, only when what is asked for has changed. Which broker is judged the
//! caller says with `AMQP_URL` among the variables; `rabbitmq.rs` starts the one to compare with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::run::{answers, install, root, show};

/// A variable of the environment that tests run in.
pub(crate) type Variable = (String, String);

/// Runs pytest on a folder of `conformance`, such as `amqp` or `celery`; an error if a test fails.
pub(crate) fn pytest(folder: &str, variables: &[Variable], args: &[&str]) -> anyhow::Result<()> {
    show(&mut pytest_command(folder, variables, args)?)
}

/// The same beside something else: gives back what was printed, and whether all tests passed.
pub(crate) fn pytest_apart(
    folder: &str,
    variables: &[Variable],
    args: &[&str],
) -> anyhow::Result<(String, anyhow::Result<()>)> {
    let output = pytest_command(folder, variables, args)?.output().context("cannot start pytest")?;
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let passed = match output.status.success() {
        true => Ok(()),
        false => Err(anyhow::anyhow!("pytest of '{folder}' failed: {}", output.status)),
    };
    Ok((printed.concat(), passed))
}

fn pytest_command(folder: &str, variables: &[Variable], args: &[&str]) -> anyhow::Result<Command> {
    let tests = root().join("tools/conformance").join(folder);
    // Nothing is written next to the tests: neither a cache nor bytecode.
    let mut command = Command::new(environment()?);
    command.args(["-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"]).args(args);
    command.current_dir(&tests).envs(variables.iter().cloned());
    Ok(command)
}

/// Runs Node's tests of `tools/conformance/node`; an error if one fails.
pub(crate) fn node(variables: &[Variable]) -> anyhow::Result<()> {
    let place = node_packages(&root().join("tools/conformance/node"), "conformance-node")?;
    show(Command::new("node").arg("--test").current_dir(&place).envs(variables.iter().cloned()))
}

/// The interpreter of `target/venv`, which is made anew when the requirements have changed.
pub(crate) fn environment() -> anyhow::Result<PathBuf> {
    let asked = root().join("tools/conformance").join("requirements.txt");
    let place = root().join("target").join("venv");
    let python = place.join("bin").join("python");
    let have = place.join("requirements.txt");
    if python.exists() && same(&asked, &have) {
        return Ok(python);
    }
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("cannot remove '{}'", place.display()))?;
    }
    // Debian ships the interpreter without what makes an environment.
    if !answers("python3", &["-c", "import venv, ensurepip"]) {
        install(&["python3", "python3-venv"]).context("Python 3 with venv")?;
    }
    show(Command::new("python3").args(["-m", "venv"]).arg(&place))?;
    show(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&asked))?;
    copy(&asked, &have)?;
    Ok(python)
}

/// A folder under `target` with the packages of these requirements, to be put before those of the environment.
pub(crate) fn packages_of(requirements: &str, name: &str) -> anyhow::Result<PathBuf> {
    let python = environment()?;
    let asked = root().join("tools/conformance").join(requirements);
    let place = root().join("target").join(name);
    let have = place.join("requirements.txt");
    if same(&asked, &have) {
        return Ok(place);
    }
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("cannot remove '{}'", place.display()))?;
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&place);
    show(install.arg("--requirement").arg(&asked))?;
    copy(&asked, &have)?;
    Ok(place)
}

/// A folder of this name under `target` with the programs for Node in `source` and, beside them, the packages that their lock file
/// names.
pub(crate) fn node_packages(source: &Path, name: &str) -> anyhow::Result<PathBuf> {
    if !(answers("node", &["--version"]) && answers("npm", &["--version"])) {
        install(&["nodejs", "npm"]).context("Node")?;
    }
    let place = root().join("target").join(name);
    fs::create_dir_all(&place).with_context(|| format!("cannot make '{}'", place.display()))?;
    let stale = !place.join("node_modules").exists()
        || !same(&source.join("package-lock.json"), &place.join("package-lock.json"));
    // Packages are looked for above the file that asks for them, so the tests move in with the packages.
    for entry in fs::read_dir(source).with_context(|| format!("cannot read '{}'", source.display()))? {
        let file = entry?.path();
        let kind = file.extension().and_then(|kind| kind.to_str());
        if let (Some("js" | "mjs" | "json"), Some(name)) = (kind, file.file_name()) {
            copy(&file, &place.join(name))?;
        }
    }
    if stale {
        let installed = show(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&place));
        if installed.is_err() {
            // A lock file that is already there would let the next run believe that all is installed.
            fs::remove_file(place.join("package-lock.json")).ok();
        }
        installed?;
    }
    Ok(place)
}

/// Whether two files hold the same; no if one is missing.
fn same(one: &Path, other: &Path) -> bool {
    matches!((fs::read(one), fs::read(other)), (Ok(one), Ok(other)) if one == other)
}

/// Copies a file, naming both in the error.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy '{}' to '{}'", from.display(), to.display()))?;
    Ok(())
}
