//! The expressions of job queues besides scores: what a job costs, and which items of a result a waiter wants.

use nexo_expr::{EvalError, Program, Schema, Type, Value};
use nexo_types::limits;

use super::error::JobError;

/// What the expression of a cost can see.
const COST_SCHEMA: Schema =
    Schema::new(&[("payload", Type::Json), ("type", Type::String), ("key", Type::String)]);

/// What a filter can see.
const FILTER_SCHEMA: Schema = Schema::new(&[("item", Type::Json)]);

/// Why a filter does not judge an item.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// It fails on this item. It may judge others.
    #[error("{0}")]
    Item(String),
    /// It has taken all steps that there are for one answer.
    #[error("the filter has taken the {} steps that there are for one answer", limits::JOB_FILTER_STEPS_MAX)]
    Spent,
}

/// What jobs of one type cost.
#[derive(Clone, Debug)]
pub struct CostRule(Program);

/// Which items of a result a waiter wants.
#[derive(Clone, Debug)]
pub struct Filter(Program);

impl CostRule {
    /// Reads an expression.
    ///
    /// # Errors
    /// If it is none.
    pub fn new(source: &str) -> Result<Self, JobError> {
        compile(source, &COST_SCHEMA, Type::Number, "a cost").map(Self)
    }

    /// What a job costs.
    ///
    /// # Errors
    /// If the expression fails, or gives what is no number of tokens.
    pub fn cost(&self, kind: &str, key: &str, payload: &serde_json::Value) -> Result<u64, JobError> {
        let arguments = [Value::Json(payload), Value::String(kind.into()), Value::String(key.into())];
        let value = self.0.eval_within(&arguments, &mut { limits::JOB_COST_STEPS_MAX }).map_err(|error| {
            JobError::BadExpression { what: "the cost of this job", reason: error.to_string() }
        })?;
        let cost = value.as_f64().unwrap_or(f64::NAN);
        if cost.fract() == 0.0 && (0.0..=limits::TOKENS_MAX as f64).contains(&cost) {
            Ok(cost as u64)
        } else {
            Err(JobError::BadCost { cost: cost.to_string() })
        }
    }
}

impl Filter {
    /// Reads an expression.
    ///
    /// # Errors
    /// If it is none.
    pub fn new(source: &str) -> Result<Self, JobError> {
        compile(source, &FILTER_SCHEMA, Type::Bool, "the filter").map(Self)
    }

    /// Whether a waiter wants an item. Subtracts the steps that this took from those that are left for its answer.
    ///
    /// # Errors
    /// Why that cannot be said.
    pub fn lets(&self, item: &serde_json::Value, steps_left: &mut u64) -> Result<bool, FilterError> {
        let arguments = [Value::Json(item)];
        let most = limits::JOB_FILTER_ITEM_STEPS_MAX.min(*steps_left);
        let mut left = most;
        let value = self.0.eval_within(&arguments, &mut left);
        *steps_left -= most - left;
        match value {
            Ok(value) => value
                .as_bool()
                .ok_or_else(|| FilterError::Item("the filter is neither true nor false".to_owned())),
            Err(EvalError::TooMuchWork { .. }) if most < limits::JOB_FILTER_ITEM_STEPS_MAX => {
                *steps_left = 0;
                Err(FilterError::Spent)
            }
            Err(error) => Err(FilterError::Item(error.to_string())),
        }
    }
}

fn compile(source: &str, schema: &Schema, expected: Type, what: &'static str) -> Result<Program, JobError> {
    Program::compile(source, schema, expected)
        .map_err(|error| JobError::BadExpression { what, reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cost_is_a_whole_number_of_tokens() {
        let cost =
            |source: &str| CostRule::new(source)?.cost("refresh", "k", &json!({ "products": [1, 2, 3] }));
        assert_eq!(cost("size(payload.products) * 2"), Ok(6));
        assert_eq!(cost("type == 'refresh' ? 1 : 5"), Ok(1));
        for wrong in ["0 - 1", "1.5", "1e300", "payload.nothing", "size(payload"] {
            assert!(cost(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_filter_says_which_items_and_why_it_cannot() {
        let filter =
            Filter::new(r#"item.discount >= 30 && item.price <= 100 && !item.title.contains("usato")"#)
                .unwrap();
        let lets = |item: &serde_json::Value| filter.lets(item, &mut { limits::JOB_FILTER_STEPS_MAX });
        assert_eq!(lets(&json!({ "discount": 30, "price": 99.5, "title": "nuovo" })), Ok(true));
        assert_eq!(lets(&json!({ "discount": 30, "price": 99.5, "title": "usato" })), Ok(false));
        assert!(lets(&json!({ "discount": 30 })).unwrap_err().to_string().contains("price"));
        assert!(Filter::new("item.price").is_ok(), "what it gives is known when it is evaluated");
        assert!(Filter::new("1 + 1").is_err());
    }

    #[test]
    fn a_cost_that_takes_too_much_work_is_refused_with_the_reason() {
        let rule = CostRule::new("payload.text.matches('[a-h]{1,300}z') ? 1 : 2").unwrap();
        assert_eq!(rule.cost("refresh", "k", &json!({ "text": "abc" })), Ok(2));
        let refused = rule.cost("refresh", "k", &json!({ "text": "a".repeat(200_000) })).unwrap_err();
        assert!(refused.to_string().contains("takes more than 1000000 steps of work"), "{refused}");
    }

    #[test]
    fn a_filter_fails_on_what_takes_too_long_and_stops_when_its_steps_are_spent() {
        let filter = Filter::new("item.text.matches('[a-h]{1,300}z')").unwrap();
        let mut steps = limits::JOB_FILTER_STEPS_MAX;
        let failed = filter.lets(&json!({ "text": "a".repeat(1_000_000) }), &mut steps).unwrap_err();
        assert!(matches!(&failed, FilterError::Item(reason) if reason.contains("steps of work")), "{failed}");
        let (item, mut judged) = (json!({ "text": "a".repeat(2_000) }), 0);
        while filter.lets(&item, &mut steps) == Ok(false) {
            judged += 1;
        }
        assert!(judged > 10 && steps == 0, "{judged} items, {steps} steps left");
        assert_eq!(filter.lets(&item, &mut steps), Err(FilterError::Spent));
    }
}
