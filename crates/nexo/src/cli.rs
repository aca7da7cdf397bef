//! What can be typed: the options that all commands share, and the list of commands.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nexo_grpc::client::{Client, ClientTls, Credentials};

use crate::command::{
    bench, binding, channel, cluster, completions, connection, consume, consumer_list, exchange, health,
    jobs, peek, permission, policy, pop, produce, push, queue, schedule, settle, stats, user, vhost,
};
use crate::connect::Server;
use crate::management::{Authorization, Management, ManagementUrl};
use crate::output::Format;
use crate::rabbitmqctl::{self, Access};
use crate::serve::ServeArgs;

const EXAMPLES: &str = "\
Examples:
  nexo serve                                     run a broker with its data in ./nexo-data
  nexo queue create mail --max-attempts 3        create a queue
  nexo push mail 'hello' --priority 9            put a message in
  nexo pop mail --wait 10s --ack                 take one out
  nexo consume mail --exec 'sendmail -t'         run a command for each message
  nexo queue redrive mail_dlq                    try dead letters again
  nexo stats --output json | jq                  look at the broker";

/// Where the options that every command has stand in its help.
const HEADING: &str = "Options of every command";

/// A durable message broker: one program that is the broker and its command line.
#[derive(Debug, Parser)]
#[command(name = "nexo", version, after_help = EXAMPLES, max_term_width = 100, propagate_version = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    shared: ServerArgs,
    #[command(subcommand)]
    command: Command,
}

/// Options that every command has.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// The broker to talk to
    #[arg(long, global = true, value_name = "URL", env = "NEXO_SERVER", default_value = Server::DEFAULT, help_heading = HEADING)]
    pub(crate) server: Server,
    /// The management API, which some commands talk to
    #[arg(long, global = true, value_name = "URL", env = "NEXO_MANAGEMENT", help_heading = HEADING)]
    management: Option<ManagementUrl>,
    /// The virtual host that queues are in
    #[arg(long, global = true, value_name = "NAME", env = "NEXO_VHOST", default_value = "/", help_heading = HEADING)]
    pub(crate) vhost: String,
    #[command(flatten)]
    pub(crate) login: Login,
    /// Certificates (PEM) to trust in over https, in place of those that this machine does
    #[arg(long, global = true, value_name = "FILE", env = "NEXO_CA", help_heading = HEADING)]
    ca: Option<PathBuf>,
    /// A certificate (PEM) to show to a broker that asks for one
    #[arg(long, global = true, value_name = "FILE", env = "NEXO_CERT", requires = "key", help_heading = HEADING)]
    cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, global = true, value_name = "FILE", env = "NEXO_KEY", requires = "cert", help_heading = HEADING)]
    key: Option<PathBuf>,
    /// How to print: text for people, json (one object a line) for programs
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t, help_heading = HEADING)]
    pub(crate) output: Format,
}

/// Who asks. Without any of it a broker on this machine takes the caller for guest, as long as guest has the password that
/// everybody knows.
#[derive(Debug, clap::Args)]
pub(crate) struct Login {
    /// The user to log in as
    #[arg(long, global = true, value_name = "NAME", env = "NEXO_USER", help_heading = HEADING)]
    user: Option<String>,
    /// The user's password. Others can read the command line: the environment is the place for secrets
    #[arg(long, global = true, value_name = "PASSWORD", env = "NEXO_PASSWORD", hide_env_values = true, help_heading = HEADING)]
    password: Option<String>,
    /// A token in place of user and password
    #[arg(long, global = true, value_name = "TOKEN", env = "NEXO_TOKEN", hide_env_values = true, help_heading = HEADING)]
    token: Option<String>,
}

impl Login {
    pub(crate) fn credentials(&self) -> Credentials {
        match (&self.token, &self.user) {
            (Some(token), _) => Credentials::token(token),
            (None, Some(user)) => Credentials::password(user, self.password.as_deref().unwrap_or_default()),
            (None, None) => Credentials::default(),
        }
    }

    /// The same for HTTP, where nobody comes in without saying who it is.
    fn authorization(&self) -> Authorization {
        match (&self.token, &self.user) {
            (Some(token), _) => Authorization::token(token),
            (None, Some(user)) => Authorization::password(user, self.password.as_deref().unwrap_or_default()),
            (None, None) => Authorization::password("guest", "guest"),
        }
    }
}

impl ServerArgs {
    /// Connects to the broker, for one who works in the virtual host.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        Ok(self.server.connect().await?.in_vhost(&self.vhost).with(self.login.credentials()))
    }

    /// The broker's management API.
    pub(crate) fn management(&self) -> Management {
        let url = self.management.clone().unwrap_or_else(ManagementUrl::usual);
        Management::new(url, self.tls(), self.login.authorization())
    }

    /// The same, with a server that trusts whom the options name.
    fn trusting(self) -> Self {
        Self { server: self.server.clone().trusting(self.tls()), ..self }
    }

    fn tls(&self) -> ClientTls {
        ClientTls { ca: self.ca.clone(), identity: self.cert.clone().zip(self.key.clone()) }
    }
}

/// A number that must not be 0.
pub(crate) fn at_least_one() -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    |text: &str| match text.parse::<u64>() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("it must be a whole number, 1 or more".to_owned()),
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a broker
    Serve(Box<ServeArgs>),
    /// Create, change, look at and empty queues
    Queue(queue::QueueArgs),
    /// Create, change, look at and delete virtual hosts
    Vhost(vhost::VhostArgs),
    /// Declare, look at and delete exchanges
    Exchange(exchange::ExchangeArgs),
    /// Bind queues and exchanges to exchanges
    Binding(binding::BindingArgs),
    /// Look at connections, and close them
    Connection(connection::ConnectionArgs),
    /// Look at the channels of connections
    Channel(channel::ChannelArgs),
    /// Look at who consumes from queues
    Consumer(consumer_list::ConsumerArgs),
    /// Look after a cluster: its nodes, who leads, and what it can still lose
    Cluster(cluster::ClusterArgs),
    /// Job queues: work that many ask for and that is done once, most urgent first
    Jobs(jobs::JobsArgs),
    /// Put messages into a queue
    Push(push::PushArgs),
    /// Take messages out of a queue
    Pop(pop::PopArgs),
    /// Run a command for each message, or print each
    Consume(consume::ConsumeArgs),
    /// Push random messages at a rate: a load to play with
    Produce(produce::ProduceArgs),
    /// Show messages at the head of a queue without taking them
    Peek(peek::PeekArgs),
    /// Say that messages are done
    Ack(settle::AckArgs),
    /// Say that the work on messages failed
    Nack(settle::NackArgs),
    /// Ask for more time to work on messages
    Extend(settle::ExtendArgs),
    /// Say that messages have arrived, in queues with a receipt timeout
    Received(settle::ReceivedArgs),
    /// Make, change and delete users, their access keys and tokens
    User(user::UserArgs),
    /// Say what users may do in a virtual host
    Permission(permission::PermissionArgs),
    /// Settings for all queues and exchanges whose names match
    Policy(policy::PolicyArgs),
    /// Messages that the broker sends by itself, by a cron expression or at an interval
    Schedule(schedule::ScheduleArgs),
    /// Figures of the broker, or of one queue
    Stats(stats::StatsArgs),
    /// Whether the broker can take and confirm messages; exit code 0 or 1
    Health,
    /// What RabbitMQ's tool of this name does, in its words; 'nexo rabbitmqctl help' lists it
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Rabbitmqctl {
        /// As RabbitMQ's takes them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
        words: Vec<String>,
    },
    /// Put a broker under load and measure it
    Bench(bench::BenchArgs),
    /// Print the completions for a shell
    Completions(completions::CompletionsArgs),
    /// Names of queues for a shell that completes
    #[command(hide = true)]
    CompleteQueues(completions::CompleteQueuesArgs),
}

impl Cli {
    /// Does what was asked.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let shared = &self.shared.trusting();
        match self.command {
            Command::Serve(args) => args.run().await,
            Command::Queue(args) => args.run(shared).await,
            Command::Vhost(args) => args.run(shared).await,
            Command::Exchange(args) => args.run(shared).await,
            Command::Binding(args) => args.run(shared).await,
            Command::Connection(args) => args.run(shared).await,
            Command::Channel(args) => args.run(shared).await,
            Command::Consumer(args) => args.run(shared).await,
            Command::Cluster(args) => args.run(shared).await,
            Command::Jobs(args) => args.run(shared).await,
            Command::Push(args) => args.run(shared).await,
            Command::Pop(args) => args.run(shared).await,
            Command::Consume(args) => args.run(shared).await,
            Command::Produce(args) => args.run(shared).await,
            Command::Peek(args) => args.run(shared).await,
            Command::Ack(args) => args.run(shared).await,
            Command::Nack(args) => args.run(shared).await,
            Command::Extend(args) => args.run(shared).await,
            Command::Received(args) => args.run(shared).await,
            Command::User(args) => args.run(shared).await,
            Command::Permission(args) => args.run(shared).await,
            Command::Policy(args) => args.run(shared).await,
            Command::Schedule(args) => args.run(shared).await,
            Command::Stats(args) => args.run(shared).await,
            Command::Health => health::run(shared).await,
            Command::Rabbitmqctl { words } => {
                let access = Access {
                    url: shared.management.clone(),
                    tls: shared.tls(),
                    authorization: shared.login.authorization(),
                    vhost: shared.vhost.clone(),
                };
                Ok(rabbitmqctl::run(words, access).await?)
            }
            Command::Bench(args) => args.run(shared).await,
            Command::Completions(args) => args.run(),
            Command::CompleteQueues(args) => args.run(shared).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_description_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn rabbitmqctl_is_given_all_words_as_they_are() {
        for line in
            ["-q list_queues --vhost acme name", "list_users --help --output x", "--help", "-p a -- b"]
        {
            let all = ["nexo", "rabbitmqctl"].into_iter().chain(line.split(' '));
            let Command::Rabbitmqctl { words } = Cli::try_parse_from(all).unwrap().command else {
                panic!("{line}")
            };
            assert_eq!(words.join(" "), line);
        }
    }

    /// An option of a command that has the name of a shared one is found only when it is read.
    #[test]
    fn commands_do_not_take_the_names_of_shared_options() {
        for line in [
            "binding add e q --routing-key k --argument a=1",
            "exchange declare e --type topic --transient",
            "connection close --of-user ann --reason x --yes",
            "channel list --of x",
            "consumer list --of q --all-vhosts",
            "jobs ask q k --type t --cost 1 --waiter w --for-user u --class c --due-in 1m --filter f --reply-to r",
            "cluster status --watch --every 2s --count 3",
            "cluster try --first-port 20000 --data-dir x --log info",
            "jobs result q k",
            "jobs take q --worker w --max 2 --wait 1s --lease 1m",
            "jobs queue set q --budget b --class a=1 --cost t=2 --retry none --cache off --pending-max none",
        ] {
            assert!(Cli::try_parse_from(["nexo"].into_iter().chain(line.split(' '))).is_ok(), "{line}");
        }
    }

    #[test]
    fn shared_options_may_stand_anywhere() {
        for line in [["nexo", "--output", "json", "health"], ["nexo", "health", "--output", "json"]] {
            assert_eq!(Cli::try_parse_from(line).unwrap().shared.output, Format::Json);
        }
    }
}
