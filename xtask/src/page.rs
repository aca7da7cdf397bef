//! docs/benchmarks.md, section by section: whoever measures replaces its own and leaves the others alone.

use anyhow::Context;

use crate::run::root;

/// Replaces the part of the page between `<!-- name -->` and `<!-- /name -->`.
pub(crate) fn write(name: &str, text: &str) -> anyhow::Result<()> {
    let path = root().join("docs/benchmarks.md");
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read '{}'", path.display()))?;
    let replaced =
        replace(&page, name, text).with_context(|| format!("'{}' has no part '{name}'", path.display()))?;
    std::fs::write(&path, replaced).with_context(|| format!("cannot write '{}'", path.display()))
}

/// On what something was measured, as the beginning of a section.
pub(crate) fn put_machine(out: &mut String, machine: &[String]) {
    for line in machine {
        out.push_str(&format!("- {line}\n"));
    }
}

/// The same, and how.
pub(crate) fn put_settings(out: &mut String, machine: &[String], reps: u32, seconds: u32) {
    put_machine(out, machine);
    out.push_str(&format!(
        "- {reps} repetitions in turn, {seconds} s each after 1 s of warm-up; load and broker on the same machine; \
         default settings\n"
    ));
}

fn replace(page: &str, name: &str, text: &str) -> Option<String> {
    let (open, close) = (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
    let start = page.find(&open)? + open.len();
    let end = page.find(&close)?;
    Some(format!("{}\n{text}{}", &page[..start], &page[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_part_is_replaced() {
        let page = "a\n<!-- one -->\nold\n<!-- /one -->\nb\n<!-- two -->\nkept\n<!-- /two -->\n";
        let replaced = replace(page, "one", "new\n").unwrap();
        assert_eq!(replaced, "a\n<!-- one -->\nnew\n<!-- /one -->\nb\n<!-- two -->\nkept\n<!-- /two -->\n");
        assert_eq!(replace(page, "three", ""), None);
    }
}
