//! The section on SQS of docs/benchmarks.md.

use std::fmt::Write;

use super::waits::Waits;
use super::{Measuring, Row};
use crate::page::put_settings;
use crate::spread::{Unit, thousands};

/// Everything as Markdown, which is readable as it is.
pub(super) fn text(measuring: &Measuring) -> String {
    let mut out = String::new();
    settings(measuring, &mut out);
    compared(measuring, &mut out);
    waiting(measuring, &mut out);
    out
}

fn settings(measuring: &Measuring, out: &mut String) {
    let options = measuring.options;
    put_settings(out, &measuring.bench.machine(), options.reps, options.seconds);
    let _ = writeln!(
        out,
        "- Nexo: {}; whatever it has answered to a send or a delete is on disk and synced",
        measuring.nexo_version
    );
    match &measuring.moto {
        Ok(moto) => {
            let _ =
                writeln!(out, "- moto: {}; one Python process that keeps everything in memory", moto.version);
        }
        Err(error) => {
            let _ = writeln!(out, "- without moto: {}", format!("{error:#}").replace('\n', " "));
        }
    }
    let _ = writeln!(out, "- the disk's own append with fdatasync: {}", measuring.disk.show(Unit::Micros));
}

fn compared(measuring: &Measuring, out: &mut String) {
    let _ = writeln!(
        out,
        "\n| messages of 1 KiB: median (least–most) | Nexo | moto | Nexo is |\n|---|---|---|---|"
    );
    for row in measuring.throughput.iter().chain(&measuring.latency) {
        let Row { work, unit, nexo, moto, .. } = row;
        let ratio = row.ratio().map_or("–".to_owned(), |ratio| format!("{ratio:.1} ×"));
        let _ = writeln!(out, "| {work} | {} | {} | {ratio} |", nexo.show(*unit), moto.show(*unit));
    }
}

fn waiting(measuring: &Measuring, out: &mut String) {
    let receivers = thousands(f64::from(measuring.options.receivers()));
    let _ = writeln!(
        out,
        "\n| {receivers} receives that wait, Nexo | at one queue | at a queue each | goal |\n|---|---|---|---|"
    );
    let [one, each] = measuring.waits.each_ref().map(Waits::values);
    for ((name, goal), (one, each)) in Waits::ROWS.into_iter().zip(one.into_iter().zip(each)) {
        let _ = writeln!(out, "| {name} | {one} | {each} | {goal} |");
    }
}
