//! Whether the broker can take and confirm messages, as an HTTP answer.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use nexo_broker::Health;
use serde::Serialize;

#[derive(Serialize)]
struct Body<'a> {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// 200, with a reason if something was found to be damaged or memory is short; or 503 with the reason.
pub(crate) fn response(health: &Health) -> Response {
    match health {
        Health::Ok => (StatusCode::OK, Json(Body { status: "ok", reason: None })).into_response(),
        // A probe that took it out of service would take those away who make room.
        Health::Degraded { reason } | Health::MemoryHigh { reason } => {
            (StatusCode::OK, Json(Body { status: "degraded", reason: Some(reason) })).into_response()
        }
        Health::DiskFull { reason } | Health::Unhealthy { reason } => {
            let body = Body { status: "unhealthy", reason: Some(reason) };
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn text(response: Response) -> String {
        let body = axum::body::to_bytes(response.into_body(), 1024).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn only_a_broker_that_can_confirm_is_ok() {
        let fine = response(&Health::Ok);
        assert_eq!(fine.status(), StatusCode::OK);
        assert_eq!(text(fine).await, r#"{"status":"ok"}"#);
        let degraded = response(&Health::Degraded { reason: "segment 3 is damaged".into() });
        assert_eq!(degraded.status(), StatusCode::OK);
        assert_eq!(text(degraded).await, r#"{"status":"degraded","reason":"segment 3 is damaged"}"#);
        let pressed = response(&Health::MemoryHigh { reason: "memory is short".into() });
        assert_eq!(pressed.status(), StatusCode::OK);
        assert_eq!(text(pressed).await, r#"{"status":"degraded","reason":"memory is short"}"#);
        let ill = response(&Health::Unhealthy { reason: "the disk is \"full\"".into() });
        assert_eq!(ill.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text(ill).await, r#"{"status":"unhealthy","reason":"the disk is \"full\""}"#);
    }
}
