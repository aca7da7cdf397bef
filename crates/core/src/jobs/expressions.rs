//! The expressions of job queues besides scores: what a job costs, and which items of a result a waiter wants.

use nexo_expr::{Program, Schema, Type, Value};
use nexo_types::limits;

use super::error::JobError;

/// What the expression of a cost can see.
const COST_SCHEMA: Schema =
    Schema::new(&[("payload", Type::Json), ("type", Type::String), ("key", Type::String)]);

/// What a filter can see.
const FILTER_SCHEMA: Schema = Schema::new(&[("item", Type::Json)]);

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
        let value = self.0.eval(&arguments).map_err(|error| JobError::BadExpression {
            what: "the cost of this job",
            reason: error.to_string(),
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

    /// Whether a waiter wants an item.
    ///
    /// # Errors
    /// Why that cannot be said.
    pub fn lets(&self, item: &serde_json::Value) -> Result<bool, String> {
        let arguments = [Value::Json(item)];
        let value = self.0.eval(&arguments).map_err(|error| error.to_string())?;
        value.as_bool().ok_or_else(|| "the filter is neither true nor false".to_owned())
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
        assert_eq!(filter.lets(&json!({ "discount": 30, "price": 99.5, "title": "nuovo" })), Ok(true));
        assert_eq!(filter.lets(&json!({ "discount": 30, "price": 99.5, "title": "usato" })), Ok(false));
        assert!(filter.lets(&json!({ "discount": 30 })).unwrap_err().contains("price"));
        assert!(Filter::new("item.price").is_ok(), "what it gives is known when it is evaluated");
        assert!(Filter::new("1 + 1").is_err());
    }
}
