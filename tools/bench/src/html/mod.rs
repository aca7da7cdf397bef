//! A report as one page that needs nothing else: figures, charts, and the settings they were found with. Readable in
//! light and dark.

mod ruler;
mod svg;

use std::fmt::Write;

use crate::report::Report;

const STYLE: &str = "\
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #666b73; --line: #d9dce1; --paper: #ffffff;
  --c0: #0b6bcb; --c1: #c2410c; --c2: #15803d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ec; --soft: #9aa1ab; --line: #363b43; --paper: #15181c;
  --c0: #6cb2ff; --c1: #ff9a62; --c2: #6bd48f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 52rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .25rem 1.5rem .25rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } th { font-weight: 500; color: var(--soft); }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--line); } .curve { fill: none; stroke-width: 2; }
.c0 { stroke: var(--c0); } .c1 { stroke: var(--c1); } .c2 { stroke: var(--c2); }
text.c0 { stroke: none; fill: var(--c0); } text.c1 { stroke: none; fill: var(--c1); }
text.c2 { stroke: none; fill: var(--c2); }
pre { overflow-x: auto; color: var(--soft); font-size: 13px; }";

/// The page. `settings` is what the run was asked to do, as text.
#[must_use]
pub fn page(report: &impl Report, settings: &str) -> String {
    let title = escape(&report.title());
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>\n{STYLE}\n</style>\n</head>\n<body>\n<h1>{title}</h1>\n<table>\n"
    );
    for (name, value) in report.figures().iter() {
        let _ = writeln!(out, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    out.push_str("</table>\n");
    for chart in report.charts() {
        let _ = write!(out, "<h2>{}</h2>\n{}", escape(&chart.title), svg::draw(&chart));
    }
    let _ = write!(out, "<h2>Settings</h2>\n<pre>{}</pre>\n</body>\n</html>\n", escape(settings));
    out
}

/// Text as HTML and SVG take it.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Axis, Chart, Curve, Scale};
    use crate::report::Figures;

    #[derive(serde::Serialize)]
    struct Found;

    impl Report for Found {
        fn title(&self) -> String {
            "1 < 2".into()
        }

        fn figures(&self) -> Figures {
            let mut figures = Figures::default();
            figures.add("consumed", "1,000 msg/s");
            figures
        }

        fn charts(&self) -> Vec<Chart> {
            let curves = vec![Curve { name: "consumed".into(), points: vec![(0.0, 0.0), (1.0, 1000.0)] }];
            let (x, y) = (Axis::new("seconds", Scale::Linear), Axis::new("a second", Scale::Linear));
            vec![Chart { title: "Over time".into(), x, y, curves }]
        }
    }

    #[test]
    fn a_page_has_all_of_the_report_and_needs_nothing_else() {
        let page = page(&Found, "--url \"x\"");
        for part in [
            "<title>1 &lt; 2</title>",
            "<th scope=\"row\">consumed</th><td>1,000 msg/s</td>",
            "<h2>Over time</h2>",
            "<svg ",
            "--url &quot;x&quot;",
        ] {
            assert!(page.contains(part), "{part} is missing in {page}");
        }
        assert!(!page.contains("src=") && !page.contains("href="), "nothing is loaded from elsewhere");
        for (open, close) in [("<table>", "</table>"), ("<svg ", "</svg>"), ("<body>", "</body>")] {
            assert_eq!(page.matches(open).count(), page.matches(close).count(), "{open}");
        }
    }
}
