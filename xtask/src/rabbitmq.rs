//! A RabbitMQ of our own to compare with: Debian's, on loopback, on free ports, with its data in a folder under
//! `target` that goes when it stops. It shares nothing with one that the machine may run as a service.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nexo_harness::until_connected;

use crate::python::Variable;
use crate::run::{self, answers, first_line, free_ports, root, run, write};

/// Where the package puts its programs; those of the search path insist on the service's user and folders.
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";

/// The script that asks a broker's management API.
const ADMIN_SCRIPT: &str = "/usr/bin/rabbitmqadmin";

/// How long it may take to start or to stop, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// What the tests ask of the broker itself, as a shell script: see `tools/conformance/amqp/test_operations.py`.
const CONTROL: &str = "\
case \"$1\" in
block) exec CTL -q set_vm_memory_high_watermark 0 ;;
unblock) exec CTL -q set_vm_memory_high_watermark 0.4 ;;
restart) CTL -q stop_app && exec CTL -q start_app ;;
ctl) shift; exec CTL \"$@\" ;;
esac
";

/// A running RabbitMQ, stopped when dropped.
pub(crate) struct RabbitMq {
    process: Child,
    home: PathBuf,
    port: u16,
    management: u16,
    settings: Vec<Variable>,
}

impl RabbitMq {
    /// Starts one, installing it first where that is missing and allowed.
    pub(crate) fn start() -> anyhow::Result<Self> {
        install()?;
        let home = root().join("target").join("rabbitmq").join(std::process::id().to_string());
        let [port, management, distribution, mapper] = free_ports()?;
        let mut started = Self::spawn(home, port, management, distribution, mapper)?;
        started.wait_until_ready()?;
        Ok(started)
    }

    /// Starts one there and on these ports, and does not wait for it.
    fn spawn(
        home: PathBuf,
        port: u16,
        management: u16,
        distribution: u16,
        mapper: u16,
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(&home).with_context(|| format!("cannot make '{}'", home.display()))?;
        let settings = settings(&home, port, distribution, mapper);
        let plugins = "[rabbitmq_consistent_hash_exchange,rabbitmq_management].\n";
        write(&home.join("enabled_plugins"), plugins)?;
        let listens = format!("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management}\n");
        write(&home.join("rabbitmq.conf"), &format!("heartbeat = 60\n{listens}"))?;
        write(&home.join("control.sh"), &control_script(&settings))?;

        let log = fs::File::create(home.join("start.log")).context("cannot make RabbitMQ's log")?;
        let errors = log.try_clone().context("cannot share RabbitMQ's log")?;
        let process = Command::new(format!("{PROGRAMS}/rabbitmq-server"))
            .envs(settings.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .context("cannot start RabbitMQ")?;
        Ok(Self { process, home, port, management, settings })
    }

    /// What it is called among others.
    fn name(&self) -> String {
        node_name(self.port)
    }

    /// Runs `rabbitmqctl` for it.
    fn control(&self, args: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(format!("{PROGRAMS}/rabbitmqctl"));
        let output = command.arg("-q").args(args).envs(self.settings.iter().cloned()).output();
        let output = output.context("cannot start rabbitmqctl")?;
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        ensure!(output.status.success(), "rabbitmqctl {} failed: {words}", args.join(" "));
        Ok(())
    }

    /// Where clients find it.
    pub(crate) fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2F", self.port)
    }

    /// The process of the broker itself; the one we started is a script around it.
    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        let path = self.home.join("pid");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read '{}'", path.display()))?;
        text.trim().parse().with_context(|| format!("'{}' holds no number", path.display()))
    }

    /// Its version.
    pub(crate) fn version(&self) -> anyhow::Result<String> {
        let mut command = Command::new(format!("{PROGRAMS}/rabbitmqctl"));
        first_line(command.args(["-q", "version"]).envs(self.settings.iter().cloned()))
    }

    /// What the conformance tests need to know of it.
    pub(crate) fn variables(&self) -> Vec<Variable> {
        let script = self.home.join("control.sh");
        let control = |word: &str| format!("sh '{}' {word}", script.display());
        vec![
            ("AMQP_URL".to_owned(), self.url()),
            ("HTTP_URL".to_owned(), format!("http://127.0.0.1:{}", self.management)),
            ("AMQP_BLOCK_COMMAND".to_owned(), control("block")),
            ("AMQP_UNBLOCK_COMMAND".to_owned(), control("unblock")),
            ("AMQP_RESTART_COMMAND".to_owned(), control("restart")),
            ("RABBITMQCTL".to_owned(), control("ctl")),
        ]
    }

    /// Waits until it takes connections, which it does last of all.
    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let ready = until_connected("RabbitMQ", address, PATIENCE, || {
            let status = self.process.try_wait().context("cannot ask for RabbitMQ's process")?;
            Ok(status.map(|status| status.to_string()))
        });
        ready.with_context(|| self.log())
    }

    /// Stops the broker, and the port mapper that it started.
    fn stop(&mut self) -> anyhow::Result<()> {
        self.quietly(&format!("{PROGRAMS}/rabbitmqctl"), &["-q", "stop"]);
        let end = Instant::now() + PATIENCE;
        while self.process.try_wait().context("cannot ask for RabbitMQ's process")?.is_none() {
            if Instant::now() > end {
                // The process we started is a script around the broker's own, whose number is in the pid file.
                if let Ok(pid) = fs::read_to_string(self.home.join("pid")) {
                    self.quietly("kill", &["-9", pid.trim()]);
                }
                self.process.kill().ok();
                self.process.wait().context("cannot wait for RabbitMQ's process")?;
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.quietly("epmd", &["-kill"]);
        fs::remove_dir_all(&self.home).with_context(|| format!("cannot remove '{}'", self.home.display()))
    }

    /// Runs a program with the broker's settings; whether it worked shows in what follows.
    fn quietly(&self, program: &str, args: &[&str]) {
        let mut command = Command::new(program);
        command.args(args).envs(self.settings.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().ok();
    }

    /// What it printed since it was started.
    fn log(&self) -> String {
        fs::read_to_string(self.home.join("start.log")).unwrap_or_default()
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("xtask: {error:#}");
        }
    }
}

/// Several of them that are one cluster, stopped when dropped.
pub(crate) struct RabbitCluster(Vec<RabbitMq>);

impl RabbitCluster {
    /// Starts so many, and has all join the first.
    pub(crate) fn start(count: usize) -> anyhow::Result<Self> {
        install()?;
        let home = root().join("target").join("rabbitmq").join(std::process::id().to_string());
        let [mapper] = free_ports()?;
        let mut started = Self(Vec::new());
        for number in 0..count {
            let [port, management, distribution] = free_ports()?;
            let home = home.join(number.to_string());
            write_cookie(&home)?;
            started.0.push(RabbitMq::spawn(home, port, management, distribution, mapper)?);
            // The first one starts the port mapper.
            started.0[number].wait_until_ready()?;
        }
        let [first, others @ ..] = started.0.as_slice() else { return Ok(started) };
        for node in others {
            node.control(&["stop_app"])?;
            node.control(&["join_cluster", &first.name()])?;
            node.control(&["start_app"])?;
        }
        first.control(&["await_online_nodes", &count.to_string()])?;
        Ok(started)
    }

    pub(crate) fn nodes(&self) -> &[RabbitMq] {
        &self.0
    }
}

/// Nodes talk to each other if they have the same, in a file that nobody else may read.
fn write_cookie(home: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(home).with_context(|| format!("cannot make '{}'", home.display()))?;
    let path = home.join(".erlang.cookie");
    write(&path, "MEASUREMENTSONLOOPBACK")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).context("cannot protect the cookie")
}

/// The script `rabbitmqadmin` of the package, which is installed where that is missing and allowed.
pub(crate) fn admin_script() -> anyhow::Result<Variable> {
    install()?;
    Ok(("RABBITMQADMIN".to_owned(), ADMIN_SCRIPT.to_owned()))
}

/// Installs the package where it is missing, if we may.
fn install() -> anyhow::Result<()> {
    if Path::new(PROGRAMS).join("rabbitmq-server").exists() {
        return Ok(());
    }
    let service_was_there = service_runs();
    run::install(&["rabbitmq-server"]).context("RabbitMQ")?;
    if !service_was_there && service_runs() {
        // The package starts a service by itself; nobody asked for it.
        run("systemctl", &["disable", "--now", "rabbitmq-server"])?;
    }
    Ok(())
}

/// Whether the machine runs RabbitMQ as a service.
fn service_runs() -> bool {
    answers("systemctl", &["is-active", "--quiet", "rabbitmq-server"])
}

/// The variables that keep this broker to itself.
fn settings(home: &Path, port: u16, distribution: u16, mapper: u16) -> Vec<Variable> {
    let inside = |name: &str| home.join(name).display().to_string();
    let loopback = "-kernel inet_dist_use_interface {127,0,0,1}";
    [
        ("HOME", home.display().to_string()),
        ("LANG", "C.UTF-8".to_owned()),
        ("RABBITMQ_NODENAME", node_name(port)),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
        ("RABBITMQ_NODE_PORT", port.to_string()),
        ("RABBITMQ_DIST_PORT", distribution.to_string()),
        ("RABBITMQ_MNESIA_BASE", inside("mnesia")),
        ("RABBITMQ_LOG_BASE", inside("log")),
        ("RABBITMQ_PID_FILE", inside("pid")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", inside("enabled_plugins")),
        ("RABBITMQ_CONFIG_FILE", inside("rabbitmq.conf")),
        ("RABBITMQ_CONF_ENV_FILE", inside("no-environment-file")),
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", loopback.to_owned()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        ("ERL_EPMD_PORT", mapper.to_string()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .to_vec()
}

fn node_name(port: u16) -> String {
    format!("conformance{port}@localhost")
}

/// The script that the tests call to block, unblock or restart the broker.
fn control_script(settings: &[Variable]) -> String {
    let exports: String = settings.iter().map(|(key, value)| format!("export {key}='{value}'\n")).collect();
    exports + &CONTROL.replace("CTL", &format!("{PROGRAMS}/rabbitmqctl"))
}
