//! Printing to standard output, as text or as one JSON object a line.
//!
//! Every write can fail, because whoever reads may have gone; so nothing here uses `println!`, which would
//! panic.

use std::fmt::Display;
use std::io::{self, BufWriter, Stdout, Write};

use nexo_grpc::proto;
use serde::Serialize;

use crate::view::MessageView;

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
}

/// Standard output. What was printed is on its way after [`Self::flush`].
#[derive(Debug)]
pub(crate) struct Printer {
    pub(crate) format: Format,
    out: BufWriter<Stdout>,
}

impl Printer {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, out: BufWriter::new(io::stdout()) }
    }

    /// Prints `value` as JSON, or `text` in its place for people.
    pub(crate) fn show(&mut self, value: &impl Serialize, text: impl Display) -> io::Result<()> {
        match self.format {
            Format::Json => self.json(value),
            Format::Text => self.line(text),
        }
    }

    /// One line of text.
    pub(crate) fn line(&mut self, text: impl Display) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    /// One line of bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.out.write_all(b"\n")
    }

    /// Bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// One JSON object on a line.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// How the bodies of messages are printed as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lines {
    /// A line each.
    Ended,
    /// As they are, with nothing between them.
    Raw,
}

/// A message as it is printed.
pub(crate) fn render(
    queue: &str,
    message: &proto::Message,
    format: Format,
    lines: Lines,
) -> io::Result<Vec<u8>> {
    let mut out = match format {
        Format::Json => serde_json::to_vec(&MessageView::new(queue, message))?,
        Format::Text => message.body.to_vec(),
    };
    if format == Format::Json || lines == Lines::Ended {
        out.push(b'\n');
    }
    Ok(out)
}

/// A line for people on standard error. That it cannot be read is no reason to stop.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}
