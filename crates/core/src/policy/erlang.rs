//! JSON as Erlang prints it: RabbitMQ says so what is wrong with a definition.

use serde_json::{Map, Value};

/// How much of a value is told: nobody reads more, and it comes from a client.
const SHOWN_MAX: usize = 300;

/// A value as RabbitMQ writes it into a refusal.
pub(super) fn shown(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    if out.len() > SHOWN_MAX {
        let cut = (0..=SHOWN_MAX).rev().find(|at| out.is_char_boundary(*at)).unwrap_or(0);
        out.truncate(cut);
        out.push_str("...");
    }
    out
}

/// Keys and values as RabbitMQ lists them.
pub(super) fn terms(terms: &[(&String, &Value)]) -> String {
    let listed: Vec<String> =
        terms.iter().map(|(key, value)| format!("{{{},{}}}", binary(key), shown(value))).collect();
    format!("[{}]", listed.join(","))
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::String(text) => out.push_str(&binary(text)),
        Value::Array(items) => {
            out.push('[');
            for (place, item) in items.iter().enumerate() {
                out.push_str(if place > 0 { "," } else { "" });
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(object) => map(object, out),
    }
}

fn map(object: &Map<String, Value>, out: &mut String) {
    out.push_str("#{");
    for (place, (key, value)) in object.iter().enumerate() {
        out.push_str(if place > 0 { "," } else { "" });
        out.push_str(&binary(key));
        out.push_str(" => ");
        write(value, out);
    }
    out.push('}');
}

/// Control characters are escaped, so that nothing of it can be taken for another line.
fn binary(text: &str) -> String {
    let escaped: String = text.chars().flat_map(escape).collect();
    format!("<<\"{escaped}\">>")
}

fn escape(c: char) -> Vec<char> {
    match c {
        '"' | '\\' => vec!['\\', c],
        c if c.is_control() => c.escape_default().collect(),
        c => vec![c],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_shown_as_erlang_prints_them() {
        let value = json!({"a": [1, -2.5, "x\"y\n"], "b": {"c": true, "d": null}});
        assert_eq!(
            shown(&value),
            r#"#{<<"a">> => [1,-2.5,<<"x\"y\n">>],<<"b">> => #{<<"c">> => true,<<"d">> => null}}"#
        );
        assert!(shown(&json!("ä".repeat(9999))).len() < 400);
    }
}
