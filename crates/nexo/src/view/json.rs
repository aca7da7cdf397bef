//! Answers of the management API for people: JSON as text, in tables and as figures.

use serde_json::Value;

use super::Figures;

/// A value in a table. Texts are as they are but for control characters: names that others chose must not move a cursor.
pub(crate) fn json_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.replace(char::is_control, "\u{fffd}"),
        Value::Object(fields) if fields.is_empty() => String::new(),
        Value::Array(items) if items.is_empty() => String::new(),
        other => other.to_string(),
    }
}

/// All fields of an object, one a line; those of objects inside it have the names of both.
pub(crate) fn json_figures(value: &Value) -> Figures {
    let mut figures = Figures::default();
    add(&mut figures, "", value);
    figures
}

fn add(figures: &mut Figures, prefix: &str, value: &Value) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let name = json_text(&Value::from(name.as_str()));
        let name = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        match value {
            Value::Object(fields) if !fields.is_empty() => add(figures, &name, value),
            Value::Null => {}
            other => {
                figures.add(name, json_text(other));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_told_field_by_field() {
        let value = json!({ "name": "x", "of": { "a": 1, "none": null }, "list": [1, 2], "empty": {} });
        assert_eq!(json_figures(&value).to_string(), "empty  \nlist   [1,2]\nname   x\nof.a   1");
    }

    #[test]
    fn a_name_cannot_move_the_cursor() {
        assert_eq!(json_text(&json!("a\u{1b}[2Jb\n")), "a\u{fffd}[2Jb\u{fffd}");
    }
}
