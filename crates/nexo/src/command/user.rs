//! `nexo user`: users, their access keys and tokens.

use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use nexo_grpc::client::Client;
use nexo_grpc::proto;
use serde::Serialize;
use serde_json::json;

use super::queue::confirm;
use crate::cli::ServerArgs;
use crate::connect::Asked;
use crate::output::{Format, Printer, note};
use crate::view::columns;

const EXAMPLES: &str = "\
A user who was just made may do nothing: 'nexo permission set' says what. A password that is not
given is read from the environment (NEXO_NEW_PASSWORD) or from standard input.

Examples:
  nexo user add ann --tag administrator
  nexo user limits ann --max-connections 10
  nexo user keys add ann                     make an access key for SQS
  nexo user default-vhost ann shop           its SQS queues are in the virtual host shop
  nexo user tokens add ann --description ci  make a token for the native API";

/// Make, change and delete users, their access keys and tokens
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UserArgs {
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// List users
    List,
    /// Make a user
    Add {
        /// Its name
        name: String,
        #[command(flatten)]
        password: PasswordArgs,
        /// What the user is: administrator, monitoring, policymaker, management, or a word of your own
        #[arg(long = "tag", value_name = "TAG")]
        tags: Vec<String>,
    },
    /// Delete a user; its connections end
    Delete {
        /// The user
        name: String,
        /// Do not ask; needed where there is no terminal
        #[arg(long, short)]
        yes: bool,
    },
    /// Give a user another password; connections that are open stay
    Password {
        /// The user
        name: String,
        #[command(flatten)]
        password: PasswordArgs,
    },
    /// Give a user these tags in place of those it has
    Tags {
        /// The user
        name: String,
        /// All of them; none takes them away
        tags: Vec<String>,
    },
    /// Limit how much a user may have; what is left out has no limit
    Limits {
        /// The user
        name: String,
        /// Connections at the same time
        #[arg(long, value_name = "COUNT")]
        max_connections: Option<u32>,
        /// Channels of all its connections
        #[arg(long, value_name = "COUNT")]
        max_channels: Option<u32>,
    },
    /// Say in which virtual host the SQS queues of a user are
    DefaultVhost {
        /// The user
        name: String,
        /// The virtual host; without one it is /
        default_vhost: Option<String>,
    },
    /// Access keys for SQS
    Keys {
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Tokens for the native API
    Tokens {
        #[command(subcommand)]
        command: TokenCommand,
    },
}

#[derive(Debug, clap::Args)]
struct PasswordArgs {
    /// The password. Others can read the command line: the environment is the place for secrets
    #[arg(long, value_name = "PASSWORD", env = "NEXO_NEW_PASSWORD", hide_env_values = true)]
    new_password: Option<String>,
    /// No password: the user logs in with keys and tokens only
    #[arg(long, conflicts_with = "new_password")]
    no_password: bool,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// List the access keys of a user
    List {
        /// The user
        name: String,
    },
    /// Make an access key; its secret is shown once
    Add {
        /// The user
        name: String,
    },
    /// Take an access key away
    Delete {
        /// The user
        name: String,
        /// The key's id
        id: String,
    },
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// List the tokens of a user
    List {
        /// The user
        name: String,
    },
    /// Make a token; it is shown once
    Add {
        /// The user
        name: String,
        /// What it is for
        #[arg(long, default_value = "", hide_default_value = true)]
        description: String,
    },
    /// Take a token away
    Delete {
        /// The user
        name: String,
        /// The token's id
        id: String,
    },
}

/// A user as it is printed.
#[derive(Debug, Serialize)]
struct UserView {
    name: String,
    has_password: bool,
    tags: Vec<String>,
    vhosts: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    default_vhost: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_connections: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_channels: Option<u32>,
    access_keys: usize,
    tokens: usize,
}

impl From<proto::User> for UserView {
    fn from(user: proto::User) -> Self {
        let limits = user.limits.unwrap_or_default();
        Self {
            name: user.name,
            has_password: user.has_password,
            tags: user.tags,
            vhosts: user.permissions.into_iter().map(|permissions| permissions.vhost).collect(),
            default_vhost: user.default_vhost,
            max_connections: limits.max_connections,
            max_channels: limits.max_channels,
            access_keys: user.access_keys.len(),
            tokens: user.tokens.len(),
        }
    }
}

impl UserArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let client = shared.connect().await?;
        let mut out = Printer::new(shared.output);
        match self.command {
            UserCommand::List => list(&client, &mut out).await?,
            UserCommand::Add { name, password, tags } => {
                let what = format!("add user '{name}'");
                let request = proto::AddUserRequest { user: name.clone(), password: password.read()?, tags };
                client.users().add_user(request).await.asked(what)?;
                out.show(&json!({ "user": name, "added": true }), format_args!("added user '{name}'"))?;
            }
            UserCommand::Delete { name, yes } => {
                confirm(yes, &format!("delete user '{name}' and end its connections"))?;
                let request = proto::DeleteUserRequest { user: name.clone() };
                client.users().delete_user(request).await.asked(format!("delete user '{name}'"))?;
                out.show(&json!({ "user": name, "deleted": true }), format_args!("deleted user '{name}'"))?;
            }
            UserCommand::Password { name, password } => {
                let what = format!("change the password of user '{name}'");
                let request =
                    proto::SetUserPasswordRequest { user: name.clone(), password: password.read()? };
                client.users().set_user_password(request).await.asked(what)?;
                out.show(&json!({ "user": name }), format_args!("changed the password of user '{name}'"))?;
            }
            UserCommand::Tags { name, tags } => {
                let request = proto::SetUserTagsRequest { user: name.clone(), tags: tags.clone() };
                client.users().set_user_tags(request).await.asked(format!("tag user '{name}'"))?;
                let text = if tags.is_empty() { "none".to_owned() } else { tags.join(", ") };
                out.show(
                    &json!({ "user": name, "tags": tags }),
                    format_args!("tags of user '{name}': {text}"),
                )?;
            }
            UserCommand::Limits { name, max_connections, max_channels } => {
                let limits = Some(proto::UserLimits { max_connections, max_channels });
                let request = proto::SetUserLimitsRequest { user: name.clone(), limits };
                client.users().set_user_limits(request).await.asked(format!("limit user '{name}'"))?;
                let value =
                    json!({ "user": name, "max_connections": max_connections, "max_channels": max_channels });
                out.show(&value, format_args!("changed the limits of user '{name}'"))?;
            }
            UserCommand::DefaultVhost { name, default_vhost } => {
                let vhost = default_vhost.unwrap_or_default();
                let request = proto::SetUserDefaultVhostRequest { user: name.clone(), vhost: vhost.clone() };
                let what = format!("set the default virtual host of user '{name}'");
                client.users().set_user_default_vhost(request).await.asked(what)?;
                let vhost = if vhost.is_empty() { "/".to_owned() } else { vhost };
                let text = format!("SQS queues of user '{name}' are in '{vhost}'");
                out.show(&json!({ "user": name, "default_vhost": vhost }), text)?;
            }
            UserCommand::Keys { command } => keys(&client, &mut out, command).await?,
            UserCommand::Tokens { command } => tokens(&client, &mut out, command).await?,
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

impl PasswordArgs {
    /// The password that was given, or the first line of standard input.
    fn read(self) -> anyhow::Result<Option<String>> {
        if self.no_password {
            return Ok(None);
        }
        if self.new_password.is_some() {
            return Ok(self.new_password);
        }
        if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            note("nexo: type the new password (it is shown), then enter");
        }
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).context("cannot read the password")?;
        let password = line.trim_end_matches(['\r', '\n']).to_owned();
        anyhow::ensure!(
            !password.is_empty(),
            "no password was given; --no-password makes a user without one"
        );
        Ok(Some(password))
    }
}

/// All users.
pub(super) async fn users(client: &Client) -> anyhow::Result<Vec<proto::User>> {
    let reply = client.users().list_users(proto::ListUsersRequest {}).await.asked("list users")?;
    Ok(reply.into_inner().users)
}

async fn user(client: &Client, name: &str) -> anyhow::Result<proto::User> {
    let found = users(client).await?.into_iter().find(|user| user.name == name);
    found.with_context(|| format!("there is no user '{name}'"))
}

async fn list(client: &Client, out: &mut Printer) -> anyhow::Result<()> {
    let views: Vec<UserView> = users(client).await?.into_iter().map(UserView::from).collect();
    if out.format == Format::Json {
        views.iter().try_for_each(|view| out.json(view))?;
        return Ok(());
    }
    let mut table = columns(&["NAME", "PASSWORD", "KEYS", "TOKENS", "TAGS", "VHOSTS"]);
    for view in views {
        let password = if view.has_password { "yes" } else { "no" };
        let (keys, tokens) = (view.access_keys.to_string(), view.tokens.to_string());
        let row = [view.name, password.to_owned(), keys, tokens, view.tags.join(","), view.vhosts.join(",")];
        table.add_row(row);
    }
    out.line(table)?;
    Ok(())
}

async fn keys(client: &Client, out: &mut Printer, command: KeyCommand) -> anyhow::Result<()> {
    match command {
        KeyCommand::List { name } => {
            for key in user(client, &name).await?.access_keys {
                out.show(&json!({ "user": name, "id": key.id, "created_ms": key.created_ms }), &key.id)?;
            }
        }
        KeyCommand::Add { name } => {
            let request = proto::AddAccessKeyRequest { user: name.clone() };
            let key = client.users().add_access_key(request).await.asked(format!("add a key to '{name}'"))?;
            let proto::AddAccessKeyResponse { id, secret } = key.into_inner();
            let text = format!("access key id      {id}\nsecret access key  {secret}");
            out.show(&json!({ "user": name, "id": id, "secret": secret }), text)?;
            note("nexo: the secret is not shown again");
        }
        KeyCommand::Delete { name, id } => {
            let request = proto::RemoveAccessKeyRequest { user: name.clone(), id: id.clone() };
            client.users().remove_access_key(request).await.asked(format!("delete key '{id}'"))?;
            out.show(
                &json!({ "user": name, "id": id, "deleted": true }),
                format_args!("deleted key '{id}'"),
            )?;
        }
    }
    Ok(())
}

async fn tokens(client: &Client, out: &mut Printer, command: TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::List { name } => {
            for token in user(client, &name).await?.tokens {
                let text = format!("{}  {}", token.id, token.description);
                let value = json!({
                    "user": name, "id": token.id, "description": token.description, "created_ms": token.created_ms
                });
                out.show(&value, text.trim_end())?;
            }
        }
        TokenCommand::Add { name, description } => {
            let request = proto::AddTokenRequest { user: name.clone(), description };
            let made = client.users().add_token(request).await.asked(format!("add a token to '{name}'"))?;
            let proto::AddTokenResponse { id, token } = made.into_inner();
            out.show(&json!({ "user": name, "id": id, "token": token }), &token)?;
            note("nexo: the token is not shown again");
        }
        TokenCommand::Delete { name, id } => {
            let request = proto::RemoveTokenRequest { user: name.clone(), id: id.clone() };
            client.users().remove_token(request).await.asked(format!("delete token '{id}'"))?;
            out.show(
                &json!({ "user": name, "id": id, "deleted": true }),
                format_args!("deleted token '{id}'"),
            )?;
        }
    }
    Ok(())
}
