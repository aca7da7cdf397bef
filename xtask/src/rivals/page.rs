//! The section on rivals of docs/benchmarks.md.

use std::fmt::Write;

use super::Measuring;
use super::contender::Contender;
use super::flow::{Flow, put_table};
use super::scenario::{MIXED_BACKLOG, PLAIN_BACKLOG, SCENARIOS};
use crate::page::put_settings;
use crate::spread::Unit;

/// Everything as Markdown, which is readable as it is.
pub(super) fn text(measuring: &Measuring) -> String {
    let mut out = String::new();
    settings(measuring, &mut out);
    table(measuring, &mut out);
    flows(measuring, &mut out);
    disk(measuring, &mut out);
    priorities(measuring, &mut out);
    idle(measuring, &mut out);
    syncs(measuring, &mut out);
    out
}

fn settings(measuring: &Measuring, out: &mut String) {
    let options = measuring.options;
    put_settings(out, &measuring.load.machine(), options.reps, options.seconds);
    for contender in Contender::ALL {
        if let Some(reason) = measuring.absent.get(&contender) {
            let _ = writeln!(out, "- without {contender}: {}", reason.replace('\n', " "));
        } else if let Some(version) = measuring.versions.get(&contender) {
            let _ = writeln!(out, "- {contender}: {version}");
        }
    }
    let _ = writeln!(
        out,
        "- the disk's own append with fdatasync: {}",
        measuring.figures.disk.show(Unit::Micros)
    );
}

fn table(measuring: &Measuring, out: &mut String) {
    let figures = &measuring.figures;
    let rivals: Vec<Contender> = Contender::ALL
        .into_iter()
        .filter(|contender| *contender != Contender::Nexo && !measuring.absent.contains_key(contender))
        .collect();
    let _ = write!(out, "\n| work: median (least–most) | Nexo |");
    for rival in &rivals {
        let _ = write!(out, " {rival} | Nexo is |");
    }
    let _ = writeln!(out, " at least |\n|---|---|{}---|", "---|---|".repeat(rivals.len()));
    for scenario in SCENARIOS {
        let show = |contender| {
            figures.get(scenario, contender).map_or("–".to_owned(), |spread| spread.show(scenario.unit))
        };
        let _ = write!(out, "| {} | {} |", scenario.work, show(Contender::Nexo));
        for rival in &rivals {
            let ratio =
                figures.ratio(scenario, *rival).map_or("–".to_owned(), |ratio| format!("{ratio:.1} ×"));
            let _ = write!(out, " {} | {ratio} |", show(*rival));
        }
        let _ = writeln!(out, " {} |", scenario.goal);
    }
}

/// What gets in and out at the same time, of those who take part in it.
fn flows(measuring: &Measuring, out: &mut String) {
    let contenders: Vec<Contender> = Contender::ALL
        .into_iter()
        .filter(|contender| Flow::is_for(*contender) && !measuring.absent.contains_key(contender))
        .collect();
    put_table(out, &contenders, |flow, contender| measuring.figures.flow(flow, contender));
}

/// What a confirm takes compared with the disk itself.
fn disk(measuring: &Measuring, out: &mut String) {
    let Some(scenario) = SCENARIOS.iter().find(|scenario| scenario.figure == "/confirm_time/p50_us") else {
        return;
    };
    let Some(disk) = measuring.figures.disk.median() else { return };
    let ratios: Vec<String> = Contender::ALL
        .into_iter()
        .filter_map(|contender| Some((contender, measuring.figures.get(scenario, contender)?.median()?)))
        .map(|(contender, micros)| format!("{contender} {:.1} ×", micros / disk))
        .collect();
    let _ =
        writeln!(out, "\nOne message at a time, compared with the disk's own time: {}.", ratios.join(", "));
}

/// What priorities cost.
fn priorities(measuring: &Measuring, out: &mut String) {
    let drained = |work: &str| {
        let scenario = SCENARIOS.iter().find(|scenario| scenario.work == work)?;
        measuring.figures.get(scenario, Contender::Nexo)?.median()
    };
    if let Some((plain, mixed)) = drained(PLAIN_BACKLOG).zip(drained(MIXED_BACKLOG)) {
        let _ = writeln!(
            out,
            "A queue with all priorities takes {:.2} × the time of a plain one.",
            plain / mixed
        );
    }
}

fn idle(measuring: &Measuring, out: &mut String) {
    let _ = writeln!(out, "\n| memory beyond that of an empty broker | measured | at most |\n|---|---|---|");
    for (contender, text) in &measuring.figures.idle {
        let goal = if *contender == Contender::Nexo { "30 MB, 40 MB" } else { "–" };
        let _ = writeln!(out, "| {contender} | {text} | {goal} |");
    }
}

fn syncs(measuring: &Measuring, out: &mut String) {
    let _ = writeln!(
        out,
        "\n| who syncs before confirming a persistent message | counted with strace |\n|---|---|"
    );
    for (contender, text) in &measuring.syncs {
        let _ = writeln!(out, "| {contender} | {text} |");
    }
}
