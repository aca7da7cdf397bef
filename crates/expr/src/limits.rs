//! What an expression may be and use, with the reason for each bound.

/// Longest text of an expression. Nobody reads a longer one.
pub const SOURCE_BYTES_MAX: usize = 4_096;

/// Deepest nesting: of parentheses, calls, lists, signs, members and branches of `?:`. The parser and the evaluation
/// recurse this deep and no deeper. Operators of one rank side by side, as in `a + b + c`, are one level.
pub const DEPTH_MAX: usize = 32;

/// Most nodes: literals, variables, operators, calls. Each costs some nanoseconds in every evaluation.
pub const NODES_MAX: usize = 512;

/// Most entries of one list that is written out.
pub const LIST_ENTRIES_MAX: usize = 100;

/// Most patterns of `matches` in one expression; each keeps a compiled pattern in memory.
pub const PATTERNS_MAX: usize = 8;

/// Largest compiled form of a pattern. A word of any script, `\w+`, takes about 20 KiB.
pub const PATTERN_COMPILED_BYTES_MAX: usize = 128 * 1024;

/// Most bytes of states that a pattern keeps while it matches. With too few it tries its parts one by one, and takes a thousand
/// times as long: `[a-h]{1,300}[a-g]{1,150}[0-9p-z]` needs more than 256 KiB.
pub const PATTERN_CACHE_BYTES_MAX: usize = 512 * 1024;

/// Deepest nesting inside a pattern.
pub const PATTERN_DEPTH_MAX: u32 = 32;

/// Most steps of one evaluation, unless whoever evaluates allows fewer. A step is a node, [`BYTES_PER_STEP`] bytes of text or an
/// entry of a list that is looked at; for `matches` it is a byte of text times the weight of the pattern, which is about how many
/// of its parts may have to be tried at each byte. A step takes some nanoseconds at worst.
pub const EVAL_STEPS_MAX: u64 = 10_000_000;

/// Bytes of text that are compared, searched or copied in one step.
pub const BYTES_PER_STEP: usize = 8;

/// Most bytes of text that one evaluation may build, all results of `+`, `string`, `lowerAscii` and `upperAscii`
/// together. Text that is only looked at does not count.
pub const TEXT_BYTES_MAX: usize = 1024 * 1024;
