//! A connection to an endpoint: a request goes out, its answer comes back, and nothing else is on its way meanwhile. Where
//! an endpoint ends the connection after each answer, as moto does, the next request opens another.

use std::borrow::Cow;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nexo_amqp_client::{Filled, Input};

use super::SqsUrl;
use super::answers;
use super::http::{Afterwards, Answer};
use super::requests::Request;

/// How long an endpoint may take to answer, beyond what it was asked to wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a read waits before whoever reads looks whether it should stop.
const GLANCE: Duration = Duration::from_millis(50);

/// A connection, with room for answers.
#[derive(Debug)]
pub(crate) struct Connection {
    url: SqsUrl,
    socket: TcpStream,
    input: Input,
    afterwards: Afterwards,
    /// What of the input is the last answer, which nobody needs any more at the next request.
    taken: usize,
}

/// How much an answer may bring. Pages that are not written to cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerSize {
    /// An acknowledgement, or one short message.
    Small,
    /// Ten large messages.
    Large,
}

/// Which socket a request went out on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentOn {
    /// That of the request before.
    TheSame,
    /// Another, because the endpoint had ended the last one.
    Another,
}

impl AnswerSize {
    const fn bytes(self) -> usize {
        match self {
            Self::Small => 32 * 1024,
            Self::Large => 16 << 20,
        }
    }
}

impl Connection {
    pub(crate) fn open(url: &SqsUrl, size: AnswerSize) -> anyhow::Result<Self> {
        Ok(Self {
            url: url.clone(),
            socket: connect(url)?,
            input: Input::new(size.bytes()),
            afterwards: Afterwards::Open,
            taken: 0,
        })
    }

    /// What becomes readable when there is an answer.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Sends a request. The answer to the one before must have been taken.
    pub(crate) fn send(&mut self, request: &Request) -> anyhow::Result<SentOn> {
        self.input.consume(std::mem::take(&mut self.taken));
        debug_assert!(self.input.bytes().is_empty(), "an answer was not taken");
        let sent_on = match self.afterwards {
            Afterwards::Open => SentOn::TheSame,
            Afterwards::Closed => {
                self.socket = connect(&self.url)?;
                self.afterwards = Afterwards::Open;
                SentOn::Another
            }
        };
        self.socket
            .write_all(request.bytes())
            .with_context(|| format!("cannot send {} to {}", request.action(), self.url))?;
        Ok(sent_on)
    }

    /// One read, and the answer if it is all there now; an error if the endpoint refuses.
    pub(crate) fn read(&mut self, action: &str) -> anyhow::Result<Option<Answer>> {
        let filled = self.input.fill(&self.socket);
        let filled = filled.with_context(|| format!("{} does not answer {action}", self.url))?;
        if filled == Filled::Nothing {
            return Ok(None);
        }
        let parsed = Answer::parse(self.input.bytes());
        let parsed = parsed.with_context(|| format!("cannot understand the answer of {}", self.url))?;
        let Some(answer) = parsed else {
            let room = self.input.bytes().len();
            ensure!(!self.input.is_full(), "{} answers {action} with more than {room} bytes", self.url);
            return Ok(None);
        };
        self.taken = answer.bytes;
        self.afterwards = answer.afterwards;
        ensure!(
            answer.status == 200,
            answers::refusal(&self.url, action, answer.status, &self.body(&answer))
        );
        Ok(Some(answer))
    }

    /// The body of the answer that was read last.
    pub(crate) fn body(&self, answer: &Answer) -> Cow<'_, [u8]> {
        answer.body(self.input.bytes())
    }

    /// Waits for the body of an answer.
    pub(crate) fn answer(&mut self, action: &str) -> anyhow::Result<Cow<'_, [u8]>> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(answer) = self.read(action)? {
                return Ok(self.body(&answer));
            }
            ensure!(Instant::now() < end, "{} has not answered {action} for {PATIENCE:?}", self.url);
        }
    }

    /// Sends a request and waits for the body of its answer.
    pub(crate) fn call(&mut self, request: &Request) -> anyhow::Result<Cow<'_, [u8]>> {
        self.send(request)?;
        self.answer(request.action())
    }
}

fn connect(url: &SqsUrl) -> anyhow::Result<TcpStream> {
    let socket = TcpStream::connect(&url.address)
        .with_context(|| format!("cannot connect to {url}; is the broker running?"))?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(GLANCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use super::*;

    /// An endpoint that gives these answers, one to each request; it gives back on how many connections they came.
    fn endpoint(answers: &[&str]) -> (SqsUrl, JoinHandle<usize>) {
        let answers: Vec<String> = answers.iter().map(|answer| (*answer).to_owned()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("sqs://{}", listener.local_addr().unwrap()).parse().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut answers, mut connections) = (answers.iter().peekable(), 0);
            while answers.peek().is_some() {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                connections += 1;
                while answers.peek().is_some() && take_request(&mut stream) {
                    let answer = answers.next().unwrap();
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                    if answer.contains("close") {
                        break;
                    }
                }
            }
            connections
        });
        (url, serving)
    }

    /// Reads one request; no if there is none any more.
    fn take_request(stream: &mut BufReader<TcpStream>) -> bool {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).unwrap() == 0 {
                return false;
            }
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                stream.read_exact(&mut vec![0; length]).unwrap();
                return true;
            }
        }
    }

    fn call(connection: &mut Connection) -> anyhow::Result<String> {
        let request = Request::send(&connection.url, "http://h/q", "hello");
        Ok(String::from_utf8_lossy(&connection.call(&request)?).into_owned())
    }

    #[test]
    fn a_connection_that_the_endpoint_ends_is_opened_anew() {
        let (url, serving) = endpoint(&[
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n",
            "HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nd",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\ne",
        ]);
        let mut connection = Connection::open(&url, AnswerSize::Small).unwrap();
        let answers: Vec<String> = (0..4).map(|_| call(&mut connection).unwrap()).collect();
        assert_eq!(answers, ["a", "bc", "d", "e"]);
        drop(connection);
        assert_eq!(serving.join().unwrap(), 3);
    }

    #[test]
    fn a_refusal_is_an_error_and_the_next_request_is_answered() {
        let (url, serving) = endpoint(&[
            "HTTP/1.1 400 Bad Request\r\nContent-Length: 31\r\n\r\n{\"__type\":\"x#No\",\"message\":\"y\"}",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ]);
        let mut connection = Connection::open(&url, AnswerSize::Small).unwrap();
        let error = call(&mut connection).unwrap_err();
        assert_eq!(error.to_string(), format!("{url} refuses SendMessage with status 400, No: y"));
        assert_eq!(call(&mut connection).unwrap(), "");
        drop(connection);
        serving.join().unwrap();
    }

    #[test]
    fn an_answer_that_does_not_fit_is_an_error() {
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{}", "x".repeat(99_999));
        let (url, serving) = endpoint(&[&answer]);
        let mut connection = Connection::open(&url, AnswerSize::Small).unwrap();
        let error = call(&mut connection).unwrap_err();
        assert_eq!(error.to_string(), format!("{url} answers SendMessage with more than 32768 bytes"));
        serving.join().unwrap();
    }
}
