//! What was found, as a table that is Markdown and readable as it is.

/// Rows of a table.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<[String; 2]>,
}

impl Report {
    pub(crate) fn row(&mut self, what: impl Into<String>, measured: impl Into<String>) {
        let row = [what.into(), measured.into()];
        eprintln!("{}: {}", row[0], row[1]);
        self.rows.push(row);
    }

    pub(crate) fn text(&self) -> String {
        let mut out = "| what | measured |\n|---|---|\n".to_owned();
        for [what, measured] in &self.rows {
            out.push_str(&format!("| {what} | {measured} |\n"));
        }
        out
    }
}

/// A number of bytes in MiB.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

/// So many in such a time, per second, with a mark at the thousands.
pub(crate) fn rate(count: usize, seconds: f64) -> String {
    let per_second = (count as f64 / seconds.max(1e-9)) as u64;
    match (per_second / 1_000_000, per_second / 1_000 % 1_000, per_second % 1_000) {
        (0, 0, ones) => format!("{ones}/s"),
        (0, thousands, ones) => format!("{thousands},{ones:03}/s"),
        (millions, thousands, ones) => format!("{millions},{thousands:03},{ones:03}/s"),
    }
}
