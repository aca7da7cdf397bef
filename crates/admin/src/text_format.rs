//! From OpenMetrics to the older text format of Prometheus.
//!
//! The samples are the same in both. What differs are the lines about a metric: the older format calls a counter by the
//! name of its samples, knows no type `info`, and has no last line.

/// `open_metrics` in the text format 0.0.4.
pub(crate) fn from_open_metrics(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = "";
    for line in open_metrics.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        if line.starts_with("# HELP ") {
            // Its name depends on the type, which comes next.
            help = line;
            continue;
        }
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let (suffix, kind) = match kind {
            "counter" => ("_total", "counter"),
            "info" => ("_info", "gauge"),
            "unknown" => ("", "untyped"),
            kind => ("", kind),
        };
        if let Some((_, words)) = help.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            text.push_str(&format!("# HELP {name}{suffix} {words}\n"));
        }
        text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lines_about_a_metric_change() {
        let open_metrics = "# HELP a Things.\n# TYPE a counter\na_total 1\n# HELP b Who.\n# TYPE b info\n\
                            b_info{version=\"1\"} 1\n# HELP c Now.\n# TYPE c gauge\nc{queue=\"# TYPE x info\"} 2\n# EOF\n";
        let text = "# HELP a_total Things.\n# TYPE a_total counter\na_total 1\n# HELP b_info Who.\n\
                    # TYPE b_info gauge\nb_info{version=\"1\"} 1\n# HELP c Now.\n# TYPE c gauge\n\
                    c{queue=\"# TYPE x info\"} 2\n";
        assert_eq!(from_open_metrics(open_metrics), text);
    }
}
