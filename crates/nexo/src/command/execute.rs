//! Running a command for one message: the body on its standard input, the rest in its environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};

use anyhow::Context;
use nexo_grpc::proto;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// What to run.
#[derive(Clone, Debug)]
pub(crate) enum Program {
    /// A line for the shell.
    Shell(OsString),
    /// A program and its arguments, as they are.
    Direct(Vec<OsString>),
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) success: bool,
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// In words that go on from the command's name.
    pub(crate) reason: String,
}

impl Ended {
    fn new(status: ExitStatus, program: &Program) -> Self {
        let reason = match (status.code(), status.signal(), program) {
            (Some(127), _, Program::Shell(_)) => {
                "exited with code 127: the shell did not find a command".into()
            }
            (Some(126), _, Program::Shell(_)) => {
                "exited with code 126: the shell could not run a command".into()
            }
            (Some(code), ..) => format!("exited with code {code}"),
            (None, Some(signal), _) => format!("was killed by signal {signal}"),
            (None, None, _) => "ended in a way that the system does not tell".into(),
        };
        Self { success: status.success(), exit_code: status.code(), signal: status.signal(), reason }
    }
}

impl Program {
    /// Runs it for `message` and waits for its end.
    pub(crate) async fn run(&self, queue: &str, message: &proto::Message) -> anyhow::Result<Ended> {
        let mut command = self.command();
        command
            .env("NEXO_QUEUE", queue)
            .env("NEXO_ID", message.id.to_string())
            .env("NEXO_ATTEMPT", message.attempt.to_string())
            .env("NEXO_PRIORITY", message.priority.to_string())
            .env("NEXO_RECEIPT", &message.receipt)
            .envs(message.headers.iter().filter_map(header_variable))
            .stdin(Stdio::piped())
            // Ctrl-C is for this process, which lets the command finish its message.
            .process_group(0)
            // If this process gives up, the message goes to someone else; so the command must not go on.
            .kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot run {self}"))?;
        let mut stdin = child.stdin.take().context("the command has no standard input")?;
        let body = message.body.clone();
        let feed = async move {
            // A command need not read its input, and then this fails; what counts is how it ends.
            let _ = stdin.write_all(&body).await;
        };
        let ((), status) = tokio::join!(feed, child.wait());
        let status = status.with_context(|| format!("cannot tell how {self} ended"))?;
        Ok(Ended::new(status, self))
    }

    fn command(&self) -> Command {
        match self {
            Self::Shell(line) => {
                let mut command = Command::new("sh");
                command.arg("-c").arg(line);
                command
            }
            Self::Direct(words) => {
                let mut words = words.iter();
                let mut command = Command::new(words.next().map_or(OsStr::new(""), OsString::as_os_str));
                command.args(words);
                command
            }
        }
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shell(line) => write!(f, "'{}'", line.to_string_lossy()),
            Self::Direct(words) => write!(f, "'{}'", words.join(OsStr::new(" ")).to_string_lossy()),
        }
    }
}

/// `content-type: x` as `NEXO_HEADER_CONTENT_TYPE=x`. A value that no environment can hold is left out.
fn header_variable(header: &proto::Header) -> Option<(String, OsString)> {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    let name: String = header.name.chars().map(upper).collect();
    let value: &[u8] = match &header.value {
        Some(proto::header::Value::Text(text)) => text.as_bytes(),
        Some(proto::header::Value::Bytes(bytes)) => bytes,
        None => b"",
    };
    (!value.contains(&0)).then(|| (format!("NEXO_HEADER_{name}"), OsStr::from_bytes(value).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, value: &[u8]) -> proto::Header {
        let value = proto::header::Value::Bytes(bytes::Bytes::copy_from_slice(value));
        proto::Header { name: name.into(), value: Some(value), ..Default::default() }
    }

    #[test]
    fn headers_become_variables() {
        let variable = header_variable(&header("content-type", b"text/plain"));
        assert_eq!(variable, Some(("NEXO_HEADER_CONTENT_TYPE".into(), "text/plain".into())));
        assert_eq!(header_variable(&header("x", b"a\0b")), None);
    }

    #[tokio::test]
    async fn the_command_sees_body_and_environment() {
        let script = r#"test "$(cat)" = hello && test "$NEXO_ID" = 7 && test "$NEXO_HEADER_A_B" = c"#;
        let message = proto::Message {
            id: 7,
            body: "hello".into(),
            headers: vec![header("a b", b"c")],
            ..proto::Message::default()
        };
        assert!(Program::Shell(script.into()).run("q", &message).await.unwrap().success);
    }

    #[tokio::test]
    async fn a_command_that_ignores_its_input_may_succeed() {
        let message = proto::Message { body: vec![b'x'; 1 << 20].into(), ..proto::Message::default() };
        assert!(Program::Direct(vec!["true".into()]).run("q", &message).await.unwrap().success);
        assert!(!Program::Direct(vec!["false".into()]).run("q", &message).await.unwrap().success);
    }

    #[tokio::test]
    async fn how_a_command_failed_is_told() {
        let reason = async |line: &str| {
            let program = Program::Shell(line.into());
            program.run("q", &proto::Message::default()).await.unwrap().reason
        };
        assert_eq!(reason("exit 3").await, "exited with code 3");
        assert_eq!(reason("kill -9 $$").await, "was killed by signal 9");
        assert_eq!(
            reason("no-such-command-here 2>&-").await,
            "exited with code 127: the shell did not find a command"
        );
    }

    #[tokio::test]
    async fn a_command_that_does_not_exist_is_named() {
        let program = Program::Direct(vec!["/does/not/exist".into(), "x".into()]);
        let error = program.run("q", &proto::Message::default()).await.unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot run '/does/not/exist x'"), "{error:#}");
    }
}
