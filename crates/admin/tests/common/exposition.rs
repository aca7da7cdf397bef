//! A strict reader of both formats of metrics, so that no scraper stumbles over what is served.

use std::collections::{HashMap, HashSet};

/// Which rules apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    OpenMetrics,
}

/// All samples, by name and labels as they are written.
pub type Samples = HashMap<String, f64>;

type Labels = Vec<(String, String)>;
/// Name, labels and value.
type Sample = (String, Labels, f64);

#[derive(Default)]
struct Family {
    name: String,
    kind: String,
    samples: Vec<Sample>,
}

/// Reads `text` and panics at the first thing that is not as the format's description says.
pub fn read(text: &str, format: Format) -> Samples {
    assert!(text.ends_with('\n'), "the last line has no end");
    let mut lines: Vec<&str> = text.lines().collect();
    if format == Format::OpenMetrics {
        assert_eq!(lines.pop(), Some("# EOF"), "OpenMetrics ends with # EOF");
    }
    let mut seen = HashSet::new();
    let mut families: Vec<Family> = Vec::new();
    let mut helped = None;
    for line in lines {
        assert!(!line.is_empty() && line != "# EOF", "{line:?}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, words) = rest.split_once(' ').expect("HELP has a text");
            assert!(!words.contains('\\') && !words.is_empty(), "{line:?}");
            assert!(seen.insert(name.to_owned()), "{name} comes twice");
            helped = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("TYPE has a type");
            assert_eq!(helped.take().as_deref(), Some(name), "HELP comes right before TYPE");
            let kinds: &[&str] = match format {
                Format::Text => &["counter", "gauge", "histogram", "summary", "untyped"],
                Format::OpenMetrics => &["counter", "gauge", "histogram", "info", "unknown"],
            };
            assert!(kinds.contains(&kind), "{line:?}");
            families.push(Family { name: name.into(), kind: kind.into(), samples: Vec::new() });
        } else {
            assert!(!line.starts_with('#'), "{line:?}");
            let family = families.last_mut().expect("a sample has a family");
            family.samples.push(sample(line));
        }
    }
    let mut all = Samples::new();
    for family in families {
        check(&family, format);
        for (name, labels, value) in family.samples {
            let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let key = if labels.is_empty() { name } else { format!("{name}{{{}}}", labels.join(",")) };
            assert!(all.insert(key.clone(), value).is_none(), "{key} comes twice");
        }
    }
    all
}

fn check(family: &Family, format: Format) {
    let Family { name, kind, samples } = family;
    assert!(is_name(name), "{name}");
    for (sample, labels, value) in samples {
        let suffix =
            sample.strip_prefix(name.as_str()).unwrap_or_else(|| panic!("{sample} is not of {name}"));
        match (kind.as_str(), format) {
            ("counter", Format::OpenMetrics) => assert_eq!(suffix, "_total"),
            ("counter", Format::Text) => assert!(suffix.is_empty() && name.ends_with("_total"), "{sample}"),
            ("info", _) => assert_eq!((suffix, *value), ("_info", 1.0)),
            ("histogram", _) => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{sample}"),
            _ => assert_eq!(suffix, "", "{sample}"),
        }
        assert!(kind != "counter" || *value >= 0.0, "{sample} {value}");
        assert_eq!(labels.iter().any(|(name, _)| name == "le"), suffix == "_bucket", "{sample}");
    }
    if kind == "histogram" {
        let buckets: Vec<(f64, f64)> = samples
            .iter()
            .filter(|(sample, ..)| sample.ends_with("_bucket"))
            .map(|(_, labels, value)| {
                (number(&labels.iter().find(|(name, _)| name == "le").unwrap().1), *value)
            })
            .collect();
        assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{name}");
        let count = samples.iter().find(|(sample, ..)| sample.ends_with("_count")).unwrap().2;
        assert_eq!(buckets.last().copied(), Some((f64::INFINITY, count)), "{name}");
    }
}

fn sample(line: &str) -> Sample {
    let (name, rest) = line.split_at(line.find(['{', ' ']).expect("a sample has a value"));
    assert!(is_name(name), "{line:?}");
    let (labels, rest) = match rest.strip_prefix('{') {
        None => (Vec::new(), rest),
        Some(rest) => labels(rest),
    };
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line:?}"));
    assert!(!value.contains(' '), "no time stamps: {line:?}");
    (name.to_owned(), labels, number(value))
}

fn labels(mut rest: &str) -> (Labels, &str) {
    let mut labels = Vec::new();
    loop {
        let (name, after) = rest.split_once("=\"").expect("a label has a value");
        assert!(is_name(name) && !name.contains(':'), "{name:?}");
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().expect("a value has an end") {
                (at, '"') => break at,
                (_, '\\') => match chars.next().expect("an escape has an end").1 {
                    'n' => value.push('\n'),
                    escaped @ ('"' | '\\') => value.push(escaped),
                    other => panic!("\\{other} is no escape"),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((name.to_owned(), value));
        rest = &after[end + 1..];
        match rest.split_at(1) {
            (",", more) => rest = more,
            ("}", more) => return (labels, more),
            _ => panic!("{rest:?}"),
        }
    }
}

fn number(text: &str) -> f64 {
    match text {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        text => {
            assert!(text.starts_with(|c: char| c.is_ascii_digit() || c == '-'), "{text}");
            text.parse().unwrap()
        }
    }
}

fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}
