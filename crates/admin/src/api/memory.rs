//! The memory watermark under `/api/nexo/memory`: what it is, how near it is, and another one. RabbitMQ has this in
//! `rabbitmqctl set_vm_memory_high_watermark` only.

use axum::Json;
use axum::extract::State;
use nexo_broker::{MemoryHigh, MemoryState, OnBehalf};
use serde_json::{Map, Value, json};

use super::Api;
use super::body::{Fields, JsonBody};
use super::error::ApiError;

pub(super) async fn show(State(api): State<Api>) -> Json<Value> {
    Json(state_json(&api.broker.memory_state()))
}

/// Takes `{"high": 0.4}`, a part of what there is, or `{"absolute_bytes": n}`. It counts at once, and until the broker is
/// started again: its settings say where it begins.
pub(super) async fn set(State(api): State<Api>, body: JsonBody) -> Result<Json<Value>, ApiError> {
    let high = watermark(&body.object)?;
    api.broker.set_memory_high(high);
    let state = api.broker.memory_state();
    let by = OnBehalf::now();
    tracing::warn!(limit_bytes = state.limit_bytes, %by, "the memory watermark was changed");
    Ok(Json(state_json(&state)))
}

fn watermark(object: &Map<String, Value>) -> Result<MemoryHigh, ApiError> {
    let demand =
        || ApiError::bad_request("either high, a number from 0 to 1, or absolute_bytes must be given");
    match (object.get("high"), object.whole("absolute_bytes")?) {
        (Some(high), None) => {
            let high = high.as_f64().or_else(|| high.as_str()?.parse().ok()).ok_or_else(demand)?;
            MemoryHigh::fraction(high).map_err(|error| ApiError::bad_request(error.to_string()))
        }
        (None, Some(bytes)) => {
            let negative = |_| ApiError::bad_request("absolute_bytes must not be negative");
            Ok(MemoryHigh::Bytes(u64::try_from(bytes).map_err(negative)?))
        }
        (Some(_), Some(_)) | (None, None) => Err(demand()),
    }
}

fn state_json(state: &MemoryState) -> Value {
    let mut shown = json!({
        "limit_bytes": state.limit_bytes,
        "used_bytes": state.used_bytes,
        "total_bytes": state.total_bytes,
        "alarm": state.is_alarm,
    });
    match state.high {
        MemoryHigh::Fraction(fraction) => shown["high"] = fraction.into(),
        MemoryHigh::Bytes(bytes) => shown["absolute_bytes"] = bytes.into(),
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::super::body::parse;
    use super::*;

    #[test]
    fn a_watermark_is_a_part_or_a_number_of_bytes() {
        let asked = |text: &str| watermark(&parse(text.as_bytes()).unwrap());
        assert_eq!(asked(r#"{"high": 0.4}"#), Ok(MemoryHigh::Fraction(0.4)));
        assert_eq!(asked(r#"{"high": "0.4"}"#), Ok(MemoryHigh::Fraction(0.4)));
        assert_eq!(asked(r#"{"high": 0}"#), Ok(MemoryHigh::Fraction(0.0)));
        assert_eq!(asked(r#"{"absolute_bytes": 1000}"#), Ok(MemoryHigh::Bytes(1000)));
        for wrong in [
            r#"{}"#,
            r#"{"high": 1.5}"#,
            r#"{"high": -1}"#,
            r#"{"high": true}"#,
            r#"{"absolute_bytes": -1}"#,
            r#"{"absolute_bytes": "2GB"}"#,
            r#"{"high": 0.4, "absolute_bytes": 1}"#,
        ] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }
}
