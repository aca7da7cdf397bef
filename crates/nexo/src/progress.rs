//! Bars for long work: on standard error, and only if it is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar for work of `total` steps, or a counter if nobody knows how many there are.
pub(crate) fn bar(total: Option<u64>, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    let template = match total {
        Some(_) => "{msg} {wide_bar} {human_pos}/{human_len}  {per_sec}  {eta}",
        None => "{msg} {spinner} {human_pos}  {per_sec}  {elapsed}",
    };
    let style = ProgressStyle::with_template(template).expect("the template is a constant that was tried");
    bar.with_style(style).with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_templates_are_sound() {
        bar(Some(1), "moving").finish_and_clear();
        bar(None, "pushing").finish_and_clear();
    }
}
