//! A header, an argument or a property as it is printed: text, number, bytes in base64, or a list or table as JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nexo_grpc::proto;
use serde::Serialize;

/// One header.
#[derive(Debug, Serialize)]
pub(crate) struct HeaderView {
    name: String,
    #[serde(flatten)]
    value: Value,
}

#[derive(Debug, Serialize)]
enum Value {
    #[serde(rename = "text")]
    Text(String),
    #[serde(rename = "number")]
    Number(serde_json::Value),
    #[serde(rename = "json")]
    Json(serde_json::Value),
    #[serde(rename = "base64")]
    Base64(String),
}

/// Headers as they are printed.
pub(crate) fn header_views(headers: &[proto::Header]) -> Vec<HeaderView> {
    headers.iter().map(view).collect()
}

fn view(header: &proto::Header) -> HeaderView {
    let value = match &header.value {
        Some(proto::header::Value::Text(text)) => {
            // Digits that JSON has no number for, like 1e999 or 007, stay a text.
            let parsed = || serde_json::from_str(text);
            match header.r#type() {
                proto::HeaderType::Unspecified => Value::Text(text.clone()),
                proto::HeaderType::Number => {
                    parsed().map_or_else(|_| Value::Text(text.clone()), Value::Number)
                }
                proto::HeaderType::Json => parsed().map_or_else(|_| Value::Text(text.clone()), Value::Json),
            }
        }
        Some(proto::header::Value::Bytes(bytes)) => Value::Base64(STANDARD.encode(bytes)),
        None => Value::Text(String::new()),
    };
    HeaderView { name: header.name.clone(), value }
}

/// A header for people: `name: value`.
pub(crate) fn header_text(header: &HeaderView) -> String {
    let name = &header.name;
    match &header.value {
        Value::Text(text) => format!("{name}: {text}"),
        Value::Number(value) | Value::Json(value) => format!("{name}: {value}"),
        Value::Base64(bytes) => format!("{name}: (base64) {bytes}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(value: &str, kind: proto::HeaderType) -> proto::Header {
        proto::Header {
            name: "h".into(),
            value: Some(proto::header::Value::Text(value.into())),
            r#type: kind.into(),
        }
    }

    #[test]
    fn lists_and_tables_are_json_within_json() {
        let json = |header| serde_json::to_string(&view(&header)).unwrap();
        let deaths = r#"[{"count":2,"queue":"q"}]"#;
        assert_eq!(
            json(header(deaths, proto::HeaderType::Json)),
            format!(r#"{{"name":"h","json":{deaths}}}"#)
        );
        assert_eq!(json(header("5", proto::HeaderType::Number)), r#"{"name":"h","number":5}"#);
        assert_eq!(json(header("5", proto::HeaderType::Unspecified)), r#"{"name":"h","text":"5"}"#);
        assert_eq!(json(header("[", proto::HeaderType::Json)), r#"{"name":"h","text":"["}"#);
    }

    #[test]
    fn people_read_a_line() {
        assert_eq!(header_text(&view(&header("[1]", proto::HeaderType::Json))), "h: [1]");
    }
}
