//! What a run found, whatever it was: settings and figures by name for people, everything as JSON for programs,
//! curves for a page.

use std::fmt::Display;

use crate::chart::Chart;

/// The outcome of a run.
pub trait Report: serde::Serialize {
    /// What was measured, in a few words.
    fn title(&self) -> String;

    /// Names and values, the most important first.
    fn figures(&self) -> Figures;

    /// What can be drawn.
    fn charts(&self) -> Vec<Chart> {
        Vec::new()
    }
}

/// Names and their values, in the order in which they are shown.
#[derive(Clone, Debug, Default)]
pub struct Figures(Vec<(String, String)>);

impl Figures {
    pub(crate) fn add(&mut self, name: impl Into<String>, value: impl Display) -> &mut Self {
        self.0.push((name.into(), value.to_string()));
        self
    }

    /// The same, if there is a value.
    pub(crate) fn add_some(&mut self, name: &str, value: Option<impl Display>) -> &mut Self {
        if let Some(value) = value {
            self.add(name, value);
        }
        self
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// A number with its thousands apart.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if number <= -0.5 { format!("-{out}") } else { out }
}

/// Messages a second.
pub(crate) fn rate(per_second: f64) -> String {
    format!("{} msg/s", thousands(per_second))
}

/// Bytes as MiB.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        let shown = [0.0, 999.4, 1000.0, 1_234_567.0, -5000.0, -0.2].map(thousands);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567", "-5,000", "0"]);
    }
}
