//! Breaking the real binary in every way there is, and accounting for every message afterwards.

use anyhow::bail;

use crate::run::{root, run};

/// Which programs are broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Build {
    /// What users run.
    Release,
    /// What the tests have built anyway.
    Debug,
}

/// As long and as hard as `rest` says; see the help.
pub(crate) fn torture(rest: &[&str]) -> anyhow::Result<()> {
    if rest.contains(&"--cluster") {
        return cluster(rest);
    }
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        if *word == "--damage" {
            continue;
        }
        let number = words.next().is_some_and(|number| number.parse::<u64>().is_ok());
        if !matches!(*word, "--seconds" | "--seed" | "--kills") || !number {
            bail!(
                "torture takes --seconds, --seed and --kills, each with a number, --damage and --cluster, not '{}'",
                rest.join(" ")
            );
        }
    }
    let seconds: &[&str] = if rest.contains(&"--seconds") { &[] } else { &["--seconds", "300"] };
    begin(Build::Release, "torture", &[seconds, rest].concat())
}

/// The same for three nodes.
fn cluster(rest: &[&str]) -> anyhow::Result<()> {
    let mut args = vec!["--cluster".to_owned()];
    let mut seconds = 300;
    if rest.contains(&"--judge-outages") {
        args.push("--judge-outages".to_owned());
    }
    let mut words = rest.iter().filter(|word| !matches!(**word, "--cluster" | "--judge-outages"));
    while let Some(word) = words.next() {
        let number = words.next().and_then(|number| number.parse::<u64>().ok());
        match (*word, number) {
            ("--minutes", Some(minutes)) => seconds = minutes.saturating_mul(60),
            ("--seconds", Some(number)) => seconds = number,
            ("--seed" | "--every" | "--load", Some(number)) => {
                args.extend([(*word).to_owned(), number.to_string()])
            }
            _ => bail!(
                "torture --cluster takes --minutes or --seconds, --seed, --every and --load, each with a number, and --judge-outages, not '{}'",
                rest.join(" ")
            ),
        }
    }
    args.extend(["--seconds".to_owned(), seconds.to_string()]);
    begin(Build::Release, "torture-cluster", &args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Half a minute of one broker with a fixed seed, as a part of the tests.
pub(crate) fn short() -> anyhow::Result<()> {
    begin(Build::Debug, "torture-short", &["--seconds", "25", "--seed", "1", "--kills", "8", "--damage"])
}

/// The same of three nodes.
pub(crate) fn short_cluster() -> anyhow::Result<()> {
    let args = ["--cluster", "--seconds", "40", "--every", "5", "--seed", "13", "--load", "15"];
    begin(Build::Debug, "torture-short-cluster", &args)
}

fn begin(build: Build, home: &str, args: &[&str]) -> anyhow::Result<()> {
    let (folder, flags): (_, &[&str]) = match build {
        Build::Release => ("release", &["--release"]),
        Build::Debug => ("debug", &[]),
    };
    run("cargo", &[&["build", "--quiet", "-p", "nexo", "-p", "nexo-torture"], flags].concat())?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let path = |name: &str| target.join(name).display().to_string();
    let (nexo, home) = (path(&format!("{folder}/nexo")), path(home));
    let program = path(&format!("{folder}/nexo-torture"));
    run(&program, &[&["--nexo", &nexo, "--home", &home], args].concat())
}
