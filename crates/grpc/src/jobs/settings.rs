//! Settings of job queues and budgets between the wire and the broker.
//!
//! On the wire everything is optional: what is left out is a default in something new, and stays as it is in something that is
//! there. Both are a patch, once over the defaults and once over the settings there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use nexo_broker::job_rules::{
    Band, BudgetConfig, EmptyAnswers, JobError, JobQueueConfig, Overtake, Refill, TokenReport, WhileRunning,
};
use nexo_types::{BudgetName, JobQueueName, Millis};

use crate::config::{backoff, backoff_to_proto};
use crate::proto;
use crate::status::Failure;

/// `base`, settings of the job queue `own`, with every setting that `change` gives. Ranges and expressions are left to the broker,
/// which knows them.
pub(super) fn patch_queue(
    own: &JobQueueName,
    mut base: JobQueueConfig,
    change: &proto::JobQueueConfig,
) -> Result<JobQueueConfig, JobError> {
    match change.budget.as_deref() {
        None => {}
        Some("") => base.budget = None,
        Some(name) => base.budget = Some(BudgetName::at(&own.vhost(), name)?),
    }
    let times = [
        (&mut base.window, change.window_ms),
        (&mut base.result_ttl, change.result_ttl_ms),
        (&mut base.remember, change.remember_ms),
        (&mut base.lease, change.lease_ms),
    ];
    for (time, value) in times {
        *time = value.map_or(*time, Millis);
    }
    base.while_running = while_running(change.while_running)?.unwrap_or(base.while_running);
    base.answer_from_cache = change.answer_from_cache.unwrap_or(base.answer_from_cache);
    base.max_attempts = change.max_attempts.unwrap_or(base.max_attempts);
    base.retry = change.retry.and_then(|retry| retry.policy).map_or(base.retry, backoff);
    base.empty_answers = empty_answers(change.empty_answers)?.unwrap_or(base.empty_answers);
    base.overtake = overtake(change.overtake)?.unwrap_or(base.overtake);
    if let Some(source) = &change.score {
        base.score = (!source.is_empty()).then(|| source.as_str().into());
    }
    if let Some(given) = &change.classes {
        let pairs = given.classes.iter().map(|class| (class.name.as_str(), class.value));
        base.classes = each_once("config.classes", pairs)?;
    }
    if let Some(given) = &change.costs {
        let pairs = given.costs.iter().map(|cost| (cost.r#type.as_str(), Arc::from(cost.cost.as_str())));
        base.costs = each_once("config.costs", pairs)?;
    }
    if let Some(given) = &change.bands {
        base.bands = given.bands.iter().map(band).collect::<Result<_, _>>()?;
    }
    if let Some(max) = change.pending_max {
        base.pending_max = (max > 0).then_some(max);
    }
    base.paused = change.paused.unwrap_or(base.paused);
    Ok(base)
}

/// All settings of a job queue.
pub(super) fn queue_to_proto(config: &JobQueueConfig) -> proto::JobQueueConfig {
    let class = |(name, value): (&Arc<str>, &i64)| proto::JobClass { name: name.to_string(), value: *value };
    let cost = |(kind, source): (&Arc<str>, &Arc<str>)| proto::JobCost {
        r#type: kind.to_string(),
        cost: source.to_string(),
    };
    let band = |band: &Band| proto::JobBand {
        name: band.name.to_string(),
        up_to: (band.up_to < f64::MAX).then_some(band.up_to),
    };
    proto::JobQueueConfig {
        budget: Some(config.budget.as_ref().map_or("", BudgetName::as_str).to_owned()),
        window_ms: Some(config.window.0),
        while_running: match config.while_running {
            WhileRunning::Share => proto::WhileRunning::Share,
            WhileRunning::Next => proto::WhileRunning::Next,
        }
        .into(),
        answer_from_cache: Some(config.answer_from_cache),
        result_ttl_ms: Some(config.result_ttl.0),
        remember_ms: Some(config.remember.0),
        lease_ms: Some(config.lease.0),
        max_attempts: Some(config.max_attempts),
        retry: Some(proto::Retry { policy: Some(backoff_to_proto(config.retry)) }),
        empty_answers: match config.empty_answers {
            EmptyAnswers::Send => proto::EmptyAnswers::Send,
            EmptyAnswers::Skip => proto::EmptyAnswers::Skip,
        }
        .into(),
        overtake: match config.overtake {
            Overtake::Never => proto::Overtake::Never,
            Overtake::Affordable => proto::Overtake::Affordable,
        }
        .into(),
        score: Some(config.score.as_deref().unwrap_or_default().to_owned()),
        classes: Some(proto::JobClasses { classes: config.classes.iter().map(class).collect() }),
        costs: Some(proto::JobCosts { costs: config.costs.iter().map(cost).collect() }),
        bands: Some(proto::JobBands { bands: config.bands.iter().map(band).collect() }),
        pending_max: Some(config.pending_max.unwrap_or(0)),
        paused: Some(config.paused),
    }
}

/// `base` with every setting of a budget that `change` gives.
pub(super) fn patch_budget(
    mut base: BudgetConfig,
    change: &proto::BudgetConfig,
) -> Result<BudgetConfig, Failure> {
    base.initial = change.initial.unwrap_or(base.initial);
    if let Some(capacity) = change.capacity {
        base.capacity = (capacity > 0).then_some(capacity);
    }
    if let Some(proto::TokenRefill { tokens, every_ms }) = change.refill {
        if tokens == 0 && every_ms > 0 {
            let reason =
                format!("refill.tokens is 1 at least if refill.every_ms is given, here as {every_ms}");
            return Err(Failure::invalid(reason));
        }
        base.refill = (tokens > 0).then_some(Refill { tokens, every: Millis(every_ms) });
    }
    Ok(base)
}

/// All settings of a budget.
pub(super) fn budget_to_proto(config: &BudgetConfig) -> proto::BudgetConfig {
    let refill = config.refill.unwrap_or(Refill { tokens: 0, every: Millis::ZERO });
    proto::BudgetConfig {
        initial: Some(config.initial),
        capacity: Some(config.capacity.unwrap_or(0)),
        refill: Some(proto::TokenRefill { tokens: refill.tokens, every_ms: refill.every.0 }),
    }
}

/// What an API has said.
pub(super) fn report(report: Option<proto::TokenReport>) -> TokenReport {
    let report = report.unwrap_or_default();
    TokenReport {
        tokens_left: report.tokens_left,
        refill_in: report.refill_in_ms.map(Millis),
        refill_tokens: report.refill_tokens,
    }
}

fn each_once<'a, T>(
    field: &str,
    pairs: impl Iterator<Item = (&'a str, T)>,
) -> Result<BTreeMap<Arc<str>, T>, JobError> {
    let mut map = BTreeMap::new();
    for (name, value) in pairs {
        if map.insert(Arc::from(name), value).is_some() {
            return Err(JobError::BadSetting {
                reason: format!("{field} names each once; '{name}' is twice"),
            });
        }
    }
    Ok(map)
}

fn band(band: &proto::JobBand) -> Result<Band, JobError> {
    let up_to = band.up_to.unwrap_or(f64::MAX);
    if up_to.is_nan() {
        let reason = format!("config.bands: up_to of '{}' is a number; it is not one", band.name);
        return Err(JobError::BadSetting { reason });
    }
    Ok(Band { name: band.name.as_str().into(), up_to })
}

fn while_running(value: i32) -> Result<Option<WhileRunning>, JobError> {
    match proto::WhileRunning::try_from(value) {
        Ok(proto::WhileRunning::Unspecified) => Ok(None),
        Ok(proto::WhileRunning::Share) => Ok(Some(WhileRunning::Share)),
        Ok(proto::WhileRunning::Next) => Ok(Some(WhileRunning::Next)),
        Err(_) => Err(unknown("config.while_running", "WHILE_RUNNING_SHARE or WHILE_RUNNING_NEXT", value)),
    }
}

fn empty_answers(value: i32) -> Result<Option<EmptyAnswers>, JobError> {
    match proto::EmptyAnswers::try_from(value) {
        Ok(proto::EmptyAnswers::Unspecified) => Ok(None),
        Ok(proto::EmptyAnswers::Send) => Ok(Some(EmptyAnswers::Send)),
        Ok(proto::EmptyAnswers::Skip) => Ok(Some(EmptyAnswers::Skip)),
        Err(_) => Err(unknown("config.empty_answers", "EMPTY_ANSWERS_SEND or EMPTY_ANSWERS_SKIP", value)),
    }
}

fn overtake(value: i32) -> Result<Option<Overtake>, JobError> {
    match proto::Overtake::try_from(value) {
        Ok(proto::Overtake::Unspecified) => Ok(None),
        Ok(proto::Overtake::Never) => Ok(Some(Overtake::Never)),
        Ok(proto::Overtake::Affordable) => Ok(Some(Overtake::Affordable)),
        Err(_) => Err(unknown("config.overtake", "OVERTAKE_NEVER or OVERTAKE_AFFORDABLE", value)),
    }
}

fn unknown(field: &str, demand: &str, value: i32) -> JobError {
    JobError::BadSetting { reason: format!("{field} must be {demand}; it is {value}") }
}

#[cfg(test)]
mod tests {
    use nexo_broker::Backoff;

    use super::*;

    fn own() -> JobQueueName {
        JobQueueName::new("deals").unwrap()
    }

    fn unusual() -> JobQueueConfig {
        JobQueueConfig {
            budget: Some(BudgetName::new("api").unwrap()),
            window: Millis(1),
            while_running: WhileRunning::Next,
            answer_from_cache: false,
            result_ttl: Millis(2),
            remember: Millis(3),
            lease: Millis(4),
            max_attempts: 6,
            retry: Backoff::Fixed { delay: Millis(7) },
            empty_answers: EmptyAnswers::Skip,
            overtake: Overtake::Affordable,
            score: Some("class * 2".into()),
            classes: [("gold".into(), -1)].into(),
            costs: [("search".into(), "size(payload)".into())].into(),
            bands: vec![Band { name: "all".into(), up_to: 8.5 }],
            pending_max: Some(9),
            paused: true,
        }
    }

    #[test]
    fn settings_cross_the_wire_whole() {
        for config in [unusual(), JobQueueConfig::default()] {
            for base in [unusual(), JobQueueConfig::default()] {
                assert_eq!(patch_queue(&own(), base, &queue_to_proto(&config)), Ok(config.clone()));
            }
        }
        let refill = Some(Refill { tokens: 3, every: Millis(4) });
        let unusual = BudgetConfig { initial: 1, capacity: Some(2), refill };
        for config in [unusual, BudgetConfig::default()] {
            for base in [unusual, BudgetConfig::default()] {
                assert_eq!(patch_budget(base, &budget_to_proto(&config)).unwrap(), config);
            }
        }
    }

    #[test]
    fn what_is_left_out_stays_as_it_is() {
        assert_eq!(patch_queue(&own(), unusual(), &proto::JobQueueConfig::default()), Ok(unusual()));
        let change = proto::JobQueueConfig { budget: Some(String::new()), ..Default::default() };
        let changed = patch_queue(&own(), unusual(), &change).unwrap();
        assert_eq!((changed.budget, changed.max_attempts), (None, 6));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused = |change: proto::JobQueueConfig| {
            patch_queue(&own(), JobQueueConfig::default(), &change).unwrap_err().to_string()
        };
        let change = proto::JobQueueConfig { overtake: 9, ..Default::default() };
        assert_eq!(refused(change), "config.overtake must be OVERTAKE_NEVER or OVERTAKE_AFFORDABLE; it is 9");
        let class = proto::JobClass { name: "pro".into(), value: 1 };
        let classes = Some(proto::JobClasses { classes: vec![class.clone(), class] });
        let change = proto::JobQueueConfig { classes, ..Default::default() };
        assert_eq!(refused(change), "config.classes names each once; 'pro' is twice");
        let bands = vec![proto::JobBand { name: "odd".into(), up_to: Some(f64::NAN) }];
        let change = proto::JobQueueConfig { bands: Some(proto::JobBands { bands }), ..Default::default() };
        assert!(refused(change).contains("'odd'"));
    }
}
