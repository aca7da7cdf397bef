//! What was measured, as a table on the terminal and as a section of a page.

use std::path::Path;

use anyhow::Context;

/// A table of figures with their goals, and what they were measured on.
#[derive(Debug, Default)]
pub struct Page {
    machine: Vec<String>,
    pub(super) settings: Vec<String>,
    rows: Vec<[String; 3]>,
}

impl Page {
    pub(super) fn new(machine: Vec<String>) -> Self {
        Self { machine, ..Self::default() }
    }

    pub(super) fn row(
        &mut self,
        what: impl Into<String>,
        measured: impl Into<String>,
        goal: impl Into<String>,
    ) {
        let row = [what.into(), measured.into(), goal.into()];
        eprintln!("{}: {} (goal: {})", row[0], row[1], row[2]);
        self.rows.push(row);
    }

    /// The report as Markdown, which is readable as it is.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        for line in self.machine.iter().chain(&self.settings) {
            out.push_str(&format!("- {line}\n"));
        }
        out.push_str("\n| what | measured | goal |\n|---|---|---|\n");
        for [what, measured, goal] in &self.rows {
            out.push_str(&format!("| {what} | {measured} | {goal} |\n"));
        }
        out
    }

    /// Replaces the part of `page` between `<!-- name -->` and `<!-- /name -->`.
    ///
    /// # Errors
    /// If the page cannot be read or written, or has no such part.
    pub fn write_into(&self, page: &Path, name: &str) -> anyhow::Result<()> {
        let text =
            std::fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
        let (open, close) = (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
        let start =
            text.find(&open).with_context(|| format!("{} has no {open}", page.display()))? + open.len();
        let end = text.find(&close).with_context(|| format!("{} has no {close}", page.display()))?;
        let replaced = format!("{}\n{}{}", &text[..start], self.text(), &text[end..]);
        std::fs::write(page, replaced).with_context(|| format!("cannot write {}", page.display()))
    }
}
