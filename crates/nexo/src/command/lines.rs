//! Lines of standard input, in batches, read by a thread of their own.
//!
//! A batch holds what has arrived: at full speed a thousand lines, from a person one. So neither waits for the
//! other's sake.

use std::io::{self, BufRead, BufReader, Read};

use tokio::sync::mpsc;

/// Lines in one batch at most.
const BATCH_LINES_MAX: usize = 1000;
/// Bytes in one batch, about: well below what a request may hold.
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Batches read ahead.
const AHEAD: usize = 8;
/// Bytes read at once.
const BUFFER_BYTES: usize = 256 * 1024;

/// Batches of lines without their ends, or the error that ended the input.
pub(crate) type Lines = mpsc::Receiver<io::Result<Vec<Vec<u8>>>>;

/// Begins to read standard input.
pub(crate) fn stdin() -> Lines {
    let (out, lines) = mpsc::channel(AHEAD);
    // Not one of the runtime's threads: this one may sit in a read that never ends.
    std::thread::spawn(move || {
        let mut input = BufReader::with_capacity(BUFFER_BYTES, io::stdin());
        loop {
            let batch = batch(&mut input);
            let ended = matches!(&batch, Ok(lines) if lines.is_empty()) || batch.is_err();
            if ended && batch.is_ok() {
                return;
            }
            if out.blocking_send(batch).is_err() || ended {
                return;
            }
        }
    });
    lines
}

/// The next lines: at least one unless the input has ended, and no more than can be had without waiting.
fn batch(input: &mut BufReader<impl Read>) -> io::Result<Vec<Vec<u8>>> {
    let mut lines = Vec::new();
    let mut bytes = 0;
    loop {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(lines);
        }
        if line.pop_if(|byte| *byte == b'\n').is_some() {
            line.pop_if(|byte| *byte == b'\r');
        }
        bytes += line.len();
        lines.push(line);
        let full = lines.len() >= BATCH_LINES_MAX || bytes >= BATCH_BYTES_MAX;
        if full || !input.buffer().contains(&b'\n') {
            return Ok(lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lose_their_ends_and_nothing_else() {
        let mut input = BufReader::new(&b"one\r\n\n two \nlast"[..]);
        let mut lines = Vec::new();
        loop {
            let batch = batch(&mut input).unwrap();
            if batch.is_empty() {
                break;
            }
            lines.extend(batch);
        }
        assert_eq!(lines, [&b"one"[..], b"", b" two ", b"last"]);
    }

    #[test]
    fn a_batch_has_a_limit() {
        let text = "x\n".repeat(BATCH_LINES_MAX + 1);
        let mut input = BufReader::new(text.as_bytes());
        assert_eq!(batch(&mut input).unwrap().len(), BATCH_LINES_MAX);
        assert_eq!(batch(&mut input).unwrap().len(), 1);
    }
}
