//! Which of its formats a client of the metrics asks for, by its `Accept` header.

/// A format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// The text format of Prometheus, version 0.0.4, which every tool reads.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// OpenMetrics for whoever asks for it at least as much as for plain text; else text.
    pub(crate) fn accepted(accept: &str) -> Self {
        let (mut text, mut open_metrics) = (0, 0);
        for part in accept.split(',') {
            let mut pieces = part.split(';').map(str::trim);
            let media_type = pieces.next().unwrap_or_default().to_ascii_lowercase();
            let parameters: Vec<(&str, &str)> = pieces.filter_map(|piece| piece.split_once('=')).collect();
            let weight = weight(&parameters);
            let version = parameters.iter().find(|(name, _)| *name == "version").map(|(_, value)| *value);
            match media_type.as_str() {
                "application/openmetrics-text" if matches!(version, None | Some("1.0.0" | "0.0.1")) => {
                    open_metrics = open_metrics.max(weight);
                }
                "text/plain" if matches!(version, None | Some("0.0.4")) => text = text.max(weight),
                _ => {}
            }
        }
        if open_metrics > 0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// What the text is, for the header of the answer.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// How much something is wanted, in thousandths.
fn weight(parameters: &[(&str, &str)]) -> u32 {
    let given = parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case("q"));
    let Some((_, value)) = given else { return 1000 };
    value.parse::<f64>().map_or(0, |value| (value.clamp(0.0, 1.0) * 1000.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_what_nobody_need_ask_for() {
        for accept in [
            "",
            "*/*",
            "text/html",
            "text/plain",
            "text/plain;version=0.0.4",
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;q=0, text/plain",
            "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-text;q=0.1,text/plain;version=0.0.4;q=0.9",
        ] {
            assert_eq!(Format::accepted(accept), Format::Text, "{accept}");
        }
    }

    #[test]
    fn open_metrics_is_for_whoever_asks() {
        for accept in [
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; version=1.0.0; charset=utf-8",
            // Prometheus 2 and 3.
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
             text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
        ] {
            assert_eq!(Format::accepted(accept), Format::OpenMetrics, "{accept}");
        }
    }
}
