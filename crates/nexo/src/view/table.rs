//! Tables without lines: easy on the eye, easy to cut into columns.

use std::fmt::{self, Display};

use comfy_table::{CellAlignment, Table, presets};

/// A table with a header; the columns from the second on hold figures.
pub(crate) fn columns(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Names and their values, one a line.
#[derive(Debug, Default)]
pub(crate) struct Figures(Vec<(String, String)>);

impl Figures {
    pub(crate) fn add(&mut self, name: impl Into<String>, value: impl Display) -> &mut Self {
        self.0.push((name.into(), value.to_string()));
        self
    }
}

impl Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (index, (name, value)) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{name:width$}  {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_in_one_column() {
        let mut figures = Figures::default();
        figures.add("a", 1).add("long name", "x");
        assert_eq!(figures.to_string(), "a          1\nlong name  x");
    }
}
