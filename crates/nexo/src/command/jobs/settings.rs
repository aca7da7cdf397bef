//! The settings of a job queue as they are typed.

use std::str::FromStr;

use nexo_grpc::proto;

use crate::command::queue_settings::{Count, Limit, Retry};
use crate::units::Span;

/// What can be set on a job queue. What is not given is left out of the request.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Settings")]
pub(super) struct JobQueueSettings {
    /// The budget that pays for its jobs; '' is none [default: '']
    #[arg(long, value_name = "NAME")]
    budget: Option<String>,
    /// How long after its creation others join a pending job [default: 5m]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    window: Option<Span>,
    /// Who asks while its key is being worked on shares that answer, or waits for the next job [default: share]
    #[arg(long, value_enum, value_name = "WHAT")]
    while_running: Option<WhileRunning>,
    /// Whether a result that is still cached answers at once, without a job [default: on]
    #[arg(long, value_enum, value_name = "on|off")]
    cache: Option<Switch>,
    /// How long a result is cached [default: 1h]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    result_ttl: Option<Span>,
    /// How long an answer is remembered for who asked [default: 5m]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    remember: Option<Span>,
    /// How long a worker has a job, unless it says otherwise [default: 1m]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    lease: Option<Span>,
    /// How often a job is taken before it fails for good [default: 5]
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// How long a failed job waits: none, fixed:1s or like [default: exponential:1s:2:5m]
    #[arg(long, value_name = "POLICY", allow_hyphen_values = true)]
    retry: Option<Retry>,
    /// Whether an answer is sent to a queue though the filter let nothing through [default: send]
    #[arg(long, value_enum, value_name = "WHAT")]
    empty: Option<Empty>,
    /// While the first job cannot be paid, all others wait, or the first that can be paid goes [default: never]
    #[arg(long, value_enum, value_name = "WHAT")]
    overtake: Option<Overtake>,
    /// An expression for how urgent a job is, lowest first; '' is the default policy [default: '']
    #[arg(long, value_name = "EXPR", allow_hyphen_values = true)]
    score: Option<String>,
    /// What a class counts for, like pro=3; '=10' is for who has none. Given once or more often, replaces all
    #[arg(long = "class", value_name = "NAME=VALUE")]
    classes: Vec<Class>,
    /// What jobs of a type cost, like search=2 or '=size(payload)' for all others. Replaces all
    #[arg(long = "cost", value_name = "TYPE=EXPR")]
    costs: Vec<Cost>,
    /// How many jobs may be pending [default: none]
    #[arg(long, value_name = "N|none", allow_hyphen_values = true)]
    pending_max: Option<Limit<Count>>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum WhileRunning {
    Share,
    Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Empty {
    Send,
    Skip,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Overtake {
    Never,
    Affordable,
}

/// `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq)]
struct Class(proto::JobClass);

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("'{text}' is not a class with a whole number; one looks like pro=3");
        let (name, value) = text.split_once('=').ok_or_else(malformed)?;
        let value = value.parse().map_err(|_| malformed())?;
        Ok(Self(proto::JobClass { name: name.to_owned(), value }))
    }
}

/// `TYPE=EXPR`.
#[derive(Clone, Debug, PartialEq)]
struct Cost(proto::JobCost);

impl FromStr for Cost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, cost) = text
            .split_once('=')
            .ok_or_else(|| format!("'{text}' is not a type with its cost; one looks like search=2"))?;
        Ok(Self(proto::JobCost { r#type: kind.to_owned(), cost: cost.to_owned() }))
    }
}

impl JobQueueSettings {
    /// The settings as a request carries them.
    pub(super) fn into_proto(self) -> proto::JobQueueConfig {
        let classes: Vec<_> = self.classes.into_iter().map(|class| class.0).collect();
        let costs: Vec<_> = self.costs.into_iter().map(|cost| cost.0).collect();
        proto::JobQueueConfig {
            budget: self.budget,
            window_ms: self.window.map(Span::millis),
            while_running: match self.while_running {
                None => proto::WhileRunning::Unspecified,
                Some(WhileRunning::Share) => proto::WhileRunning::Share,
                Some(WhileRunning::Next) => proto::WhileRunning::Next,
            }
            .into(),
            answer_from_cache: self.cache.map(|cache| cache == Switch::On),
            result_ttl_ms: self.result_ttl.map(Span::millis),
            remember_ms: self.remember.map(Span::millis),
            lease_ms: self.lease.map(Span::millis),
            max_attempts: self.max_attempts,
            retry: self.retry.map(|retry| proto::Retry { policy: Some(retry.0) }),
            empty_answers: match self.empty {
                None => proto::EmptyAnswers::Unspecified,
                Some(Empty::Send) => proto::EmptyAnswers::Send,
                Some(Empty::Skip) => proto::EmptyAnswers::Skip,
            }
            .into(),
            overtake: match self.overtake {
                None => proto::Overtake::Unspecified,
                Some(Overtake::Never) => proto::Overtake::Never,
                Some(Overtake::Affordable) => proto::Overtake::Affordable,
            }
            .into(),
            score: self.score,
            classes: (!classes.is_empty()).then_some(proto::JobClasses { classes }),
            costs: (!costs.is_empty()).then_some(proto::JobCosts { costs }),
            bands: None,
            pending_max: self.pending_max.map(|limit| limit.or(0, |count| count.0)),
            paused: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_costs_are_understood() {
        let class = |text: &str| text.parse::<Class>().map(|class| (class.0.name, class.0.value));
        assert_eq!(class("pro=-3"), Ok(("pro".into(), -3)));
        assert_eq!(class("=10"), Ok((String::new(), 10)));
        assert!(class("pro").is_err() && class("pro=x").is_err() && class("pro=1.5").is_err());
        let cost = "search=a == 1 ? 2 : 3".parse::<Cost>().unwrap().0;
        assert_eq!((cost.r#type.as_str(), cost.cost.as_str()), ("search", "a == 1 ? 2 : 3"));
        assert!("search".parse::<Cost>().is_err());
    }

    #[test]
    fn what_is_not_given_is_left_out() {
        assert_eq!(JobQueueSettings::default().into_proto(), proto::JobQueueConfig::default());
    }
}
