//! What was found, as Markdown.

use std::fmt::Write;

use super::contender::{Contender, Way};
use super::scenario::{SCENARIOS, SINGLE, Scenario};
use super::{Measuring, Part};
use crate::page::put_settings;
use crate::spread::Unit;

pub(super) fn text(measuring: &Measuring) -> String {
    let mut out = String::new();
    settings(measuring, &mut out);
    if measuring.options.part != Part::Single {
        table(measuring, &mut out, SCENARIOS, Way::Leader, &[Way::Follower, Way::RabbitMq, Way::Nats]);
    }
    if measuring.options.part != Part::Nexo {
        table(measuring, &mut out, SINGLE, Way::One, &[Way::Alone]);
    }
    out
}

fn settings(measuring: &Measuring, out: &mut String) {
    let options = measuring.options;
    put_settings(out, &measuring.bench.machine(), options.reps, options.seconds);
    for contender in Contender::ALL {
        if let Some(reason) = measuring.absent.get(&contender) {
            let _ = writeln!(out, "- without {contender}: {}", reason.replace('\n', " "));
        } else if let Some(version) = measuring.versions.get(&contender) {
            let _ = writeln!(out, "- {contender}: {version}");
        }
    }
    let _ = writeln!(out, "- the disk's own append with fdatasync: {}", measuring.disk.show(Unit::Micros));
}

/// One column for Nexo and two for each of the others: its figure, and how many times better Nexo is.
fn table(measuring: &Measuring, out: &mut String, lines: &[Scenario], nexo: Way, others: &[Way]) {
    let others: Vec<Way> = others
        .iter()
        .copied()
        .filter(|way| lines.iter().any(|line| measuring.get(line, *way).is_some()))
        .collect();
    let _ = write!(out, "\n| work: median (least–most) | {nexo} |");
    for other in &others {
        let _ = write!(out, " {other} | ratio |");
    }
    let _ = writeln!(out, " goal |\n|---|---|{}---|", "---|---|".repeat(others.len()));
    for line in lines {
        let show = |way| measuring.get(line, way).map_or("–".to_owned(), |spread| spread.show(line.unit));
        let _ = write!(out, "| {} | {} |", line.work, show(nexo));
        for other in &others {
            let ratio = ratio(measuring, line, nexo, *other)
                .map_or("–".to_owned(), |ratio| format!("{ratio:.2} ×"));
            let _ = write!(out, " {} | {ratio} |", show(*other));
        }
        let _ = writeln!(out, " {} |", line.goal);
    }
}

/// How many times better Nexo is than another.
fn ratio(measuring: &Measuring, line: &Scenario, nexo: Way, other: Way) -> Option<f64> {
    let nexo = measuring.get(line, nexo)?.median()?;
    let other = measuring.get(line, other)?.median()?;
    Some(match line.unit {
        Unit::PerSecond => nexo / other,
        Unit::Micros => other / nexo,
    })
}
