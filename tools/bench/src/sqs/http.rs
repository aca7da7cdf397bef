//! Where an answer of HTTP/1.1 ends, and what of it is the body. Bytes in, places out: nothing is copied unless the body
//! came in several chunks.

use std::borrow::Cow;
use std::ops::Range;

use anyhow::{Context, bail, ensure};
use httparse::{Header, Response, Status};

/// No endpoint sends more headers.
const HEADERS_MAX: usize = 64;
/// A head that is longer than this is none.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Each chunk ends with this.
const CHUNK_END: &[u8] = b"\r\n";

/// An answer that is all there, as places in the buffer that it was found in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(super) status: u16,
    body: Body,
    /// How many bytes it takes, head and all.
    pub(super) bytes: usize,
    pub(super) afterwards: Afterwards,
}

/// Where its body is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    Whole(Range<usize>),
    Chunks(Vec<Range<usize>>),
}

/// What becomes of the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Afterwards {
    /// It takes the next request.
    Open,
    /// The endpoint ends it.
    Closed,
}

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
}

impl Answer {
    /// The answer at the head of `buf`; `None` until all of it has arrived.
    pub(super) fn parse(buf: &[u8]) -> anyhow::Result<Option<Self>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = Response::new(&mut headers);
        let parsed = response.parse(buf).context("this is no answer of HTTP/1.1")?;
        let Status::Complete(head) = parsed else {
            ensure!(
                buf.len() <= HEAD_BYTES_MAX,
                "the head of an answer takes more than {HEAD_BYTES_MAX} bytes"
            );
            return Ok(None);
        };
        let status = response.code.context("an answer has a status")?;
        let afterwards = afterwards(response.version, response.headers);
        let found = match framing(status, response.headers)? {
            Framing::Length(length) => {
                let end = head.saturating_add(length);
                (buf.len() >= end).then_some((Body::Whole(head..end), end))
            }
            Framing::Chunked => chunks(buf, head)?,
        };
        Ok(found.map(|(body, bytes)| Self { status, body, bytes, afterwards }))
    }

    /// Its body, given the buffer that it was found in.
    pub(super) fn body<'a>(&self, buf: &'a [u8]) -> Cow<'a, [u8]> {
        match &self.body {
            Body::Whole(place) => Cow::Borrowed(&buf[place.clone()]),
            Body::Chunks(places) => places.iter().flat_map(|place| &buf[place.clone()]).copied().collect(),
        }
    }
}

fn value<'a>(headers: &'a [Header<'_>], name: &str) -> Option<&'a str> {
    let header = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
    std::str::from_utf8(header.value).ok().map(str::trim)
}

fn afterwards(version: Option<u8>, headers: &[Header<'_>]) -> Afterwards {
    match (version, value(headers, "connection")) {
        (_, Some(what)) if what.eq_ignore_ascii_case("close") => Afterwards::Closed,
        (_, Some(what)) if what.eq_ignore_ascii_case("keep-alive") => Afterwards::Open,
        (Some(0), _) => Afterwards::Closed,
        _ => Afterwards::Open,
    }
}

fn framing(status: u16, headers: &[Header<'_>]) -> anyhow::Result<Framing> {
    if value(headers, "transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        return Ok(Framing::Chunked);
    }
    match value(headers, "content-length") {
        Some(length) => {
            let length = length.parse().with_context(|| format!("'{length}' is no length of an answer"))?;
            Ok(Framing::Length(length))
        }
        None if status == 204 => Ok(Framing::Length(0)),
        None => bail!("an answer tells neither its length nor comes in chunks"),
    }
}

/// The chunks from `at` on and where the answer ends, once the last one is there.
fn chunks(buf: &[u8], mut at: usize) -> anyhow::Result<Option<(Body, usize)>> {
    let mut places = Vec::new();
    loop {
        let size = httparse::parse_chunk_size(&buf[at..]);
        let Ok(size) = size else { bail!("a chunk of an answer does not tell its size") };
        let Status::Complete((line, size)) = size else { return Ok(None) };
        let start = at + line;
        if size == 0 {
            return Ok(end_of_trailers(buf, start).map(|end| (Body::Chunks(places), end)));
        }
        let end = start.saturating_add(usize::try_from(size)?);
        let Some(after) = end.checked_add(CHUNK_END.len()).and_then(|next| buf.get(end..next)) else {
            return Ok(None);
        };
        ensure!(after == CHUNK_END, "a chunk of an answer does not end where it should");
        places.push(start..end);
        at = end + CHUNK_END.len();
    }
}

/// Where the lines after the last chunk end: with an empty one.
fn end_of_trailers(buf: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let line = memchr::memmem::find(&buf[at..], CHUNK_END)?;
        at += line + CHUNK_END.len();
        if line == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses it cut off at every byte, which must be too early, and then with the beginning of another behind it.
    #[track_caller]
    fn whole(bytes: &[u8]) -> (Answer, Vec<u8>) {
        for len in 0..bytes.len() {
            assert_eq!(Answer::parse(&bytes[..len]).unwrap(), None, "cut off after {len} bytes");
        }
        let two = [bytes, b"HTTP/1.1 200 OK\r\n"].concat();
        let answer = Answer::parse(&two).unwrap().expect("it is all there");
        assert_eq!(answer.bytes, bytes.len());
        let body = answer.body(&two).into_owned();
        (answer, body)
    }

    #[test]
    fn an_answer_with_a_length_is_found_once_it_is_whole() {
        let (answer, body) = whole(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\n{\"a\"}");
        assert_eq!((answer.status, &*body), (200, &b"{\"a\"}"[..]));
        assert_eq!(answer.afterwards, Afterwards::Open);
    }

    #[test]
    fn an_empty_answer_has_an_empty_body() {
        for bytes in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 204 No Content\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ] {
            assert_eq!(whole(bytes).1, b"");
        }
    }

    #[test]
    fn chunks_are_put_together() {
        let bytes = b"HTTP/1.1 400 Bad\r\ntransfer-encoding: Chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n";
        let (answer, body) = whole(bytes);
        assert_eq!((answer.status, &*body), (400, &b"abc0123456789"[..]));
    }

    #[test]
    fn lines_after_the_last_chunk_belong_to_the_answer() {
        let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-Sum: 1\r\nX-B: 2\r\n\r\n";
        assert_eq!(whole(bytes).1, b"ab");
    }

    #[test]
    fn an_endpoint_may_end_the_connection() {
        for (head, afterwards) in [
            ("HTTP/1.1 200 OK\r\nConnection: Close\r\n", Afterwards::Closed),
            ("HTTP/1.0 200 OK\r\n", Afterwards::Closed),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", Afterwards::Open),
        ] {
            let (answer, _) = whole(format!("{head}Content-Length: 1\r\n\r\nx").as_bytes());
            assert_eq!(answer.afterwards, afterwards, "{head}");
        }
    }

    #[test]
    fn what_is_no_answer_is_said() {
        for (bytes, reason) in [
            (&b"SSH-2.0-x\r\n"[..], "this is no answer of HTTP/1.1"),
            (b"HTTP/1.1 200 OK\r\n\r\n", "an answer tells neither its length nor comes in chunks"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "'-1' is no length of an answer"),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                "a chunk of an answer does not tell its size",
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
                "a chunk of an answer does not end where it should",
            ),
        ] {
            assert_eq!(Answer::parse(bytes).unwrap_err().to_string(), reason);
        }
    }
}
