//! What a connection begins with: from the protocol header to `connection.open-ok`. Without a socket: methods in, bytes
//! out.

use nexo_amqp::codec::method::{ConnectionMethod, connection};
use nexo_amqp::codec::{FrameMax, Method, PROTOCOL_HEADER, ShortStr, TableBuf, encode_method};

use crate::error::{Error, refuse_close};
use crate::methods::short;

/// Who logs in, where, and as what kind of client.
#[derive(Clone, Debug)]
pub struct Login {
    /// The user's name.
    pub user: String,
    /// The password.
    pub password: String,
    /// How the user is known.
    pub mechanism: Mechanism,
    /// The virtual host.
    pub virtual_host: String,
    /// What the client calls itself.
    pub product: &'static str,
    /// What the client says that it can do. A broker sends `connection.blocked` and `basic.cancel` only to who asks for it.
    pub capabilities: &'static [&'static str],
    /// Seconds between signs of life; 0 for none. Sending them is up to the caller.
    pub heartbeat: u16,
    /// The largest frame that the client asks for. It gets no larger one than the broker offers.
    pub frame_max: FrameMax,
}

/// How a broker knows a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// By name and password.
    Plain,
    /// By what TLS has told it already.
    External,
}

impl Default for Login {
    /// As `guest`, without heartbeats.
    fn default() -> Self {
        Self {
            user: "guest".to_owned(),
            password: "guest".to_owned(),
            mechanism: Mechanism::Plain,
            virtual_host: "/".to_owned(),
            product: "nexo tools",
            capabilities: &["connection.blocked", "publisher_confirms", "basic.nack"],
            heartbeat: 0,
            frame_max: crate::FRAME_MAX,
        }
    }
}

/// A handshake under way.
#[derive(Debug)]
pub(crate) struct Handshake<'a> {
    login: &'a Login,
    due: Due,
    frame_max: FrameMax,
}

/// What the broker has to say next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Start,
    Tune,
    OpenOk,
}

impl<'a> Handshake<'a> {
    /// Says that this is AMQP.
    pub(crate) fn begin(login: &'a Login, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&PROTOCOL_HEADER);
        Self { login, due: Due::Start, frame_max: FrameMax::BEFORE_TUNE }
    }

    /// Takes what the broker says and adds the answer to `out`. When all is said, gives the largest frame that both sides
    /// agreed on.
    pub(crate) fn take(&mut self, method: &Method<'_>, out: &mut Vec<u8>) -> Result<Option<FrameMax>, Error> {
        match (self.due, method) {
            (Due::Start, Method::Connection(ConnectionMethod::Start(_))) => {
                self.start_ok(out);
                self.due = Due::Tune;
                Ok(None)
            }
            (Due::Tune, Method::Connection(ConnectionMethod::Tune(offered))) => {
                self.tune_ok(offered, out)?;
                self.due = Due::OpenOk;
                Ok(None)
            }
            (Due::OpenOk, Method::Connection(ConnectionMethod::OpenOk(_))) => Ok(Some(self.frame_max)),
            (due, other) => {
                refuse_close(other)?;
                Err(Error::unexpected(due.name(), other))
            }
        }
    }

    fn start_ok(&self, out: &mut Vec<u8>) {
        let mut abilities = TableBuf::new();
        for name in self.login.capabilities {
            abilities.put(ShortStr::from_static(name), true);
        }
        let mut properties = TableBuf::new();
        properties.put(ShortStr::from_static("product"), self.login.product);
        properties.put(ShortStr::from_static("capabilities"), abilities.as_table());
        let (mechanism, response) = match self.login.mechanism {
            Mechanism::Plain => ("PLAIN", format!("\0{}\0{}", self.login.user, self.login.password)),
            Mechanism::External => ("EXTERNAL", String::new()),
        };
        let start_ok = connection::StartOk {
            client_properties: properties.as_table(),
            mechanism: ShortStr::from_static(mechanism),
            response: response.as_bytes(),
            locale: ShortStr::from_static("en_US"),
        };
        encode_method(out, 0, &start_ok);
    }

    fn tune_ok(&mut self, offered: &connection::Tune, out: &mut Vec<u8>) -> Result<(), Error> {
        let asked = self.login.frame_max.bytes();
        // 0 in an offer means that there is no limit.
        let frame_max = if offered.frame_max == 0 { asked } else { asked.min(offered.frame_max) };
        self.frame_max = FrameMax::new(frame_max).ok_or(Error::FrameMax(frame_max))?;
        let (channel_max, heartbeat) = (offered.channel_max, self.login.heartbeat);
        encode_method(out, 0, &connection::TuneOk { channel_max, frame_max, heartbeat });
        let virtual_host = short(&self.login.virtual_host)?;
        encode_method(
            out,
            0,
            &connection::Open { virtual_host, capabilities: ShortStr::EMPTY, insist: false },
        );
        Ok(())
    }
}

impl Due {
    const fn name(self) -> &'static str {
        match self {
            Self::Start => "connection.start",
            Self::Tune => "connection.tune",
            Self::OpenOk => "connection.open-ok",
        }
    }
}

#[cfg(test)]
mod tests {
    use nexo_amqp::codec::Table;

    use super::*;

    fn start() -> Method<'static> {
        let (server_properties, mechanisms, locales) = (Table::EMPTY, &b"PLAIN"[..], &b"en_US"[..]);
        let start =
            connection::Start { version_major: 0, version_minor: 9, server_properties, mechanisms, locales };
        Method::Connection(ConnectionMethod::Start(start))
    }

    fn tune(frame_max: u32) -> Method<'static> {
        let tune = connection::Tune { channel_max: 7, frame_max, heartbeat: 60 };
        Method::Connection(ConnectionMethod::Tune(tune))
    }

    fn open_ok() -> Method<'static> {
        Method::Connection(ConnectionMethod::OpenOk(connection::OpenOk { known_hosts: ShortStr::EMPTY }))
    }

    #[test]
    fn the_smaller_frame_counts_and_no_limit_is_none() {
        for (offered, agreed) in [(0, 131_072), (8192, 8192), (1 << 20, 131_072)] {
            let (login, mut out) = (Login::default(), Vec::new());
            let mut handshake = Handshake::begin(&login, &mut out);
            assert_eq!(out, PROTOCOL_HEADER);
            assert_eq!(handshake.take(&start(), &mut out).unwrap(), None);
            assert_eq!(handshake.take(&tune(offered), &mut out).unwrap(), None);
            let frame_max = handshake.take(&open_ok(), &mut out).unwrap().unwrap();
            assert_eq!(frame_max.bytes(), agreed, "offered {offered}");
        }
    }

    #[test]
    fn a_refusal_says_why_and_a_step_out_of_turn_says_what_was_due() {
        let (login, mut out) = (Login::default(), Vec::new());
        let mut handshake = Handshake::begin(&login, &mut out);
        let error = handshake.take(&tune(0), &mut out).unwrap_err().to_string();
        assert!(error.starts_with("connection.start is due, not "), "{error}");
        let reply_text = ShortStr::from_static("ACCESS_REFUSED");
        let close = connection::Close { reply_code: 403, reply_text, class_id: 0, method_id: 0 };
        let close = Method::Connection(ConnectionMethod::Close(close));
        let error = handshake.take(&close, &mut out).unwrap_err().to_string();
        assert_eq!(error, "the broker closed the connection: 403 ACCESS_REFUSED");
    }
}
