//! Answers as `rabbitmqctl` prints them: columns with tabs between them, boxes, JSON, or CSV.
//!
//! Values come as JSON. In tables they look like Erlang's terms, as there: `[{"x-max-length",100}]`. Control characters of
//! names are escaped, so that no name can move a cursor or begin a line.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde_json::Value;

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Formatter {
    Table,
    PrettyTable,
    Json,
    Csv,
}

impl Formatter {
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            "table" => Some(Self::Table),
            "pretty_table" => Some(Self::PrettyTable),
            "json" => Some(Self::Json),
            "csv" => Some(Self::Csv),
            _ => None,
        }
    }

    /// Whether more may be said besides the answer.
    pub(super) const fn is_for_people(self) -> bool {
        matches!(self, Self::Table | Self::PrettyTable)
    }

    pub(super) fn write(
        self,
        out: &mut impl Write,
        columns: &[&str],
        rows: &[Vec<Value>],
        with_header: bool,
    ) -> io::Result<()> {
        match self {
            Self::Table => {
                // RabbitMQ prints the header with the first row, so there is none without rows.
                if with_header && !rows.is_empty() {
                    writeln!(out, "{}", columns.join("\t"))?;
                }
                rows.iter().try_for_each(|row| writeln!(out, "{}", texts(row).join("\t")))
            }
            Self::PrettyTable => pretty(out, columns, rows, with_header),
            Self::Csv => {
                let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
                let line =
                    |cells: &[String]| cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",");
                if with_header {
                    writeln!(
                        out,
                        "{}",
                        line(&columns.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
                    )?;
                }
                rows.iter().try_for_each(|row| writeln!(out, "{}", line(&texts(row))))
            }
            Self::Json => {
                writeln!(out, "[")?;
                for (at, row) in rows.iter().enumerate() {
                    let mut line = String::from(if at == 0 { "{" } else { ",{" });
                    for (at, (name, value)) in columns.iter().zip(row).enumerate() {
                        let comma = if at == 0 { "" } else { "," };
                        // Objects are tables of AMQP: RabbitMQ shows these with their types.
                        let value = if value.is_object() { typed(value) } else { value.clone() };
                        let value = if value.is_null() { Value::from("") } else { value };
                        // Writing to a text does not fail.
                        let _ = write!(line, "{comma}{}:{value}", Value::from(*name));
                    }
                    writeln!(out, "{line}}}")?;
                }
                writeln!(out, "]")
            }
        }
    }
}

fn texts(row: &[Value]) -> Vec<String> {
    row.iter().map(cell).collect()
}

/// A value in a column of its own: texts as they are, tables and lists as terms.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => escaped(text),
        Value::Array(items) if items.iter().all(Value::is_string) && !items.is_empty() => {
            let items: Vec<String> = items.iter().filter_map(Value::as_str).map(escaped).collect();
            format!("[{}]", items.join(", "))
        }
        other => term(other),
    }
}

fn term(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("\"{}\"", escaped(text)),
        Value::Array(items) => format!("[{}]", items.iter().map(term).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let fields =
                fields.iter().map(|(name, value)| format!("{{\"{}\",{}}}", escaped(name), term(value)));
            format!("[{}]", fields.collect::<Vec<_>>().join(","))
        }
    }
}

/// A table of AMQP with the types that its values most likely have.
fn typed(value: &Value) -> Value {
    let Value::Object(fields) = value else { return value.clone() };
    let kind = |value: &Value| match value {
        Value::Null => "void",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "double",
        Value::Number(_) => "signedint",
        Value::String(_) => "longstr",
        Value::Array(_) => "array",
        Value::Object(_) => "table",
    };
    fields
        .iter()
        .map(|(name, value)| Value::from(vec![Value::from(name.as_str()), kind(value).into(), typed(value)]))
        .collect()
}

/// Without control characters, which are told in octal as RabbitMQ does.
pub(super) fn escaped(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if character.is_control() {
            let _ = write!(out, "\\{:03o}", u32::from(character));
        } else {
            out.push(character);
        }
    }
    out
}

fn pretty(out: &mut impl Write, columns: &[&str], rows: &[Vec<Value>], with_header: bool) -> io::Result<()> {
    let mut lines: Vec<Vec<String>> = rows.iter().map(|row| texts(row)).collect();
    if with_header {
        lines.insert(0, columns.iter().map(|&name| name.to_owned()).collect());
    }
    if lines.is_empty() {
        return Ok(());
    }
    let width =
        |at: usize| lines.iter().filter_map(|line| line.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns.len()).map(|at| width(at).unwrap_or(0)).collect();
    let rule = |left: &str, middle: &str, right: &str| {
        let parts: Vec<String> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
        format!("{left}{}{right}", parts.join(middle))
    };
    writeln!(out, "{}", rule("┌", "┬", "┐"))?;
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            writeln!(out, "{}", rule("├", "┼", "┤"))?;
        }
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!(" {cell:width$} ")).collect();
        writeln!(out, "│{}│", cells.join("│"))?;
    }
    writeln!(out, "{}", rule("└", "┴", "┘"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printed(formatter: Formatter, rows: &[Vec<Value>]) -> String {
        let mut out = Vec::new();
        formatter.write(&mut out, &["name", "arguments"], rows, true).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// As RabbitMQ 3.10 prints the same queue.
    #[test]
    fn values_look_as_rabbitmq_prints_them() {
        let rows = [vec![json!("q1"), json!({ "x-max-length": 100, "x-overflow": "reject-publish" })]];
        assert_eq!(
            printed(Formatter::Table, &rows),
            "name\targuments\nq1\t[{\"x-max-length\",100},{\"x-overflow\",\"reject-publish\"}]\n"
        );
        assert_eq!(
            printed(Formatter::Json, &rows),
            "[\n{\"name\":\"q1\",\"arguments\":[[\"x-max-length\",\"signedint\",100],[\"x-overflow\",\"longstr\",\"reject-publish\"]]}\n]\n"
        );
        let users =
            [vec![json!("ann"), json!(["administrator", "monitoring"])], vec![json!("bob"), json!([])]];
        assert_eq!(
            printed(Formatter::Table, &users),
            "name\targuments\nann\t[administrator, monitoring]\nbob\t[]\n"
        );
        assert_eq!(
            printed(Formatter::Csv, &users),
            "\"name\",\"arguments\"\n\"ann\",\"[administrator, monitoring]\"\n\"bob\",\"[]\"\n"
        );
    }

    #[test]
    fn nothing_has_no_header_and_control_characters_are_told() {
        assert_eq!(printed(Formatter::Table, &[]), "");
        let rows = [vec![json!("a\tb\u{1b}[2J"), Value::Null]];
        assert_eq!(printed(Formatter::Table, &rows), "name\targuments\na\\011b\\033[2J\t\n");
    }

    #[test]
    fn a_pretty_table_has_its_columns_in_line() {
        let rows = [vec![json!("q"), json!(1)]];
        let lines = [
            "┌──────┬───────────┐",
            "│ name │ arguments │",
            "├──────┼───────────┤",
            "│ q    │ 1         │",
            "└──────┴───────────┘",
        ];
        assert_eq!(printed(Formatter::PrettyTable, &rows), lines.join("\n") + "\n");
    }
}
