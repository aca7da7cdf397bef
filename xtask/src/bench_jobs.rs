//! Job queues: a million of them pending (`nexo bench jobs`), and the coalescing pattern beside BullMQ on Redis, by the same clients
//! (`tools/rivals/bullmq`). Redis syncs after every command, or once a second; Nexo syncs before it answers.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nexo_harness::until_connected;

use crate::broker::{Build, Nexo};
use crate::python::node_packages;
use crate::run::{answers, free_ports, install, root, show, target};
use crate::spread::{Spread, Unit};

/// How long Redis may take to start, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    reps: u32,
    seconds: u32,
    jobs: u32,
}

impl Options {
    /// What was typed.
    pub(crate) fn parse(args: &[&str]) -> anyhow::Result<Self> {
        let mut options = Self { reps: 5, seconds: 5, jobs: 1_000_000 };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let field = match *name {
                "--reps" => &mut options.reps,
                "--seconds" => &mut options.seconds,
                "--jobs" => &mut options.jobs,
                other => bail!("'{other}' is none of --reps, --seconds and --jobs"),
            };
            let value = args.next().with_context(|| format!("{name} needs a number"))?;
            *field = value.parse().with_context(|| format!("{name} needs a number; '{value}' is none"))?;
        }
        ensure!(options.reps > 0 && options.seconds > 0 && options.jobs > 0, "each is 1 at least");
        Ok(options)
    }
}

/// Measures both, and prints what was found.
pub(crate) fn jobs(options: Options) -> anyhow::Result<()> {
    let program = Build::Release.program("nexo")?;
    let broker = Nexo::start(Build::Release)?;
    let address = broker.http().to_string();
    let (jobs, pid) = (options.jobs.to_string(), broker.pid().to_string());
    show(Command::new(&program).args([
        "bench",
        "jobs",
        "--http",
        &address,
        "--jobs",
        &jobs,
        "--broker-pid",
        &pid,
    ]))?;
    drop(broker);
    let place = node_packages(&root().join("tools/rivals/bullmq"), "rival-bullmq")?;
    if !answers("redis-server", &["--version"]) {
        install(&["redis-server"]).context("Redis")?;
    }
    let mut rows = Contender::ALL.map(|contender| (contender, Spread::default(), Spread::default()));
    for rep in 1..=options.reps {
        eprintln!("repetition {rep} of {}", options.reps);
        for (contender, answers, jobs) in &mut rows {
            let (answered, done) = contender.measure(&place, options.seconds)?;
            answers.add(answered);
            jobs.add(done);
        }
    }
    println!(
        "\n| 200 clients ask for 50 keys and wait for the answer | answers a second | jobs a second |\n|---|---|---|"
    );
    for (contender, answers, jobs) in rows {
        println!(
            "| {} | {} | {} |",
            contender.name(),
            answers.show(Unit::PerSecond),
            jobs.show(Unit::PerSecond)
        );
    }
    Ok(())
}

/// Who does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Nexo,
    NexoHttp,
    BullAlways,
    BullEverySecond,
}

impl Contender {
    const ALL: [Self; 4] = [Self::Nexo, Self::NexoHttp, Self::BullAlways, Self::BullEverySecond];

    const fn name(self) -> &'static str {
        match self {
            Self::Nexo => "Nexo, synced before it answers, native stream",
            Self::NexoHttp => "the same over HTTP, a request for each call",
            Self::BullAlways => "BullMQ, appendfsync always",
            Self::BullEverySecond => "BullMQ, appendfsync everysec",
        }
    }

    /// Answers and jobs a second, with a broker of its own.
    fn measure(self, place: &Path, seconds: u32) -> anyhow::Result<(f64, f64)> {
        match self {
            Self::Nexo => {
                let broker = Nexo::start(Build::Release)?;
                run_clients(place, "nexo", &broker.grpc().to_string(), seconds)
            }
            Self::NexoHttp => {
                let broker = Nexo::start(Build::Release)?;
                run_clients(place, "http", &broker.http().to_string(), seconds)
            }
            Self::BullAlways | Self::BullEverySecond => {
                let fsync = if self == Self::BullAlways { "always" } else { "everysec" };
                let redis = Redis::start(fsync)?;
                run_clients(place, "bullmq", &redis.port.to_string(), seconds)
            }
        }
    }
}

fn run_clients(place: &Path, which: &str, address: &str, seconds: u32) -> anyhow::Result<(f64, f64)> {
    let seconds = format!("seconds={seconds}");
    let ran = Command::new("node")
        .args(["run.mjs", which, address, &seconds])
        .current_dir(place)
        .env("NEXO_PROTO", root().join("proto"))
        .output();
    let ran = ran.context("cannot start 'node'")?;
    ensure!(ran.status.success(), "the clients of {which} failed: {}", String::from_utf8_lossy(&ran.stderr));
    let text = String::from_utf8_lossy(&ran.stdout);
    let figure = |name: &str| -> anyhow::Result<f64> {
        let after =
            text.split_once(&format!("\"{name}\":")).with_context(|| format!("{name} is not in {text}"))?.1;
        let number = after.split([',', '}']).next().unwrap_or_default();
        number.trim().parse().with_context(|| format!("{name} is '{number}'"))
    };
    Ok((figure("answers_per_second")?, figure("jobs_per_second")?))
}

/// A Redis of our own, stopped when dropped.
struct Redis {
    process: Child,
    home: PathBuf,
    port: u16,
}

impl Redis {
    fn start(fsync: &str) -> anyhow::Result<Self> {
        let home = target().join("redis").join(std::process::id().to_string());
        fs::create_dir_all(&home).with_context(|| format!("cannot make '{}'", home.display()))?;
        let [port] = free_ports()?;
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", fsync, "--dir"])
            .arg(&home)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start 'redis-server'")?;
        let mut started = Self { process, home, port };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        until_connected("Redis", address, PATIENCE, || {
            let status = started.process.try_wait().context("cannot ask for the process of Redis")?;
            Ok(status.map(|status| status.to_string()))
        })?;
        Ok(started)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        fs::remove_dir_all(&self.home).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_checked() {
        assert_eq!(
            Options::parse(&["--reps", "2", "--jobs", "10"]).unwrap(),
            Options { reps: 2, seconds: 5, jobs: 10 }
        );
        for wrong in [&["--reps"][..], &["--reps", "x"], &["--seconds", "0"], &["--quick"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
