//! The beginning of a connection, up to `connection.open-ok`.

use std::io;

use bytes::{Bytes, BytesMut};
use nexo_access::{Identity, LoginError, Presence};
use nexo_broker::{EnterError, LoginFacts, Protocol, VhostStay};
use nexo_net::{ReadHalf, Unserved, WriteHalf};
use nexo_types::VhostName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::error::{self, Refusal};
use super::login::{self, Origin};
use super::output::Output;
use super::session::{Abilities, Limits};
use super::shared::ServerState;
use crate::codec::method::{ConnectionMethod, connection};
use crate::codec::{
    AmqpMethod, Frame, FrameKind, FrameMax, Method, PROTOCOL_HEADER, ProtocolHeader, ReplyCode, ShortStr,
    Table, TableBuf,
};

const FRAME_MAX_BYTES: u32 = 131_072;
const HEARTBEAT_SECS: u16 = 60;
/// How long a client waits that logged in wrongly and cannot be told: it makes guessing slow.
const FAILURE_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

const CAPABILITIES: [&str; 9] = [
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
];

/// What was agreed on.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) presence: Presence,
    pub(super) limits: Limits,
    pub(super) abilities: Abilities,
    pub(super) stay: VhostStay,
    pub(super) told: Told,
}

/// What a client told of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    pub(super) properties: Bytes,
    pub(super) mechanism: String,
}

/// How a handshake ended that led nowhere.
enum Failure {
    /// The client is gone, or there is nothing more to say to it.
    Over,
    /// It is told why.
    Refused(Refusal),
}

impl From<io::Error> for Failure {
    fn from(_: io::Error) -> Self {
        Self::Over
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// One end of a socket before there is a session.
pub(super) struct Handshake<'a> {
    pub(super) reader: &'a mut ReadHalf,
    pub(super) writer: &'a mut WriteHalf,
    pub(super) input: &'a mut BytesMut,
    pub(super) origin: Origin,
    pub(super) shared: &'a ServerState,
    /// How many connections there are, if this is one too many.
    pub(super) limit_reached: Option<usize>,
    /// Why no node of the cluster serves it, if that is so.
    pub(super) unserved: Option<Unserved>,
    /// Cancelled when the virtual host that it opens is deleted.
    pub(super) vhost_deleted: CancellationToken,
}

impl Handshake<'_> {
    /// Opens the connection; `None` if nothing came of it.
    pub(super) async fn run(mut self) -> Option<Opened> {
        match self.negotiate().await {
            Ok(opened) => Some(opened),
            Err(Failure::Over) => None,
            Err(Failure::Refused(refusal)) => {
                // The client may be gone already.
                let _ = self.say_goodbye(&refusal).await;
                None
            }
        }
    }

    async fn negotiate(&mut self) -> Result<Opened, Failure> {
        self.read_header().await?;
        let properties = server_properties();
        self.send(&connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties: properties.as_table(),
            mechanisms: login::mechanisms(&self.origin),
            locales: b"en_US",
        })
        .await?;
        if let Some(why) = self.unserved {
            return self.turn_away(why).await;
        }
        let (identity, abilities, told) = self.log_in().await?;
        let limits = self.tune().await?;
        let (presence, stay) = self.open(&identity, limits.frame_max).await?;
        Ok(Opened { presence, limits, abilities, stay, told })
    }

    /// Says why no node serves this connection, where clients expect that one may be refused. No login is looked at: what this node
    /// knows of users may be of the past, and whoever guesses passwords learns nothing.
    async fn turn_away(&mut self, why: Unserved) -> Result<Opened, Failure> {
        self.method_payload(FrameMax::LOGIN).await?;
        let limits = self.tune().await?;
        self.method_payload(limits.frame_max).await?;
        Err(Refusal::new(ReplyCode::ConnectionForced, why.to_string()).of(connection::Open::ID).into())
    }

    async fn read_header(&mut self) -> Result<(), Failure> {
        loop {
            match ProtocolHeader::parse(self.input) {
                Some(ProtocolHeader::Accepted) => {
                    let _ = self.input.split_to(PROTOCOL_HEADER.len());
                    return Ok(());
                }
                Some(ProtocolHeader::OtherVersion(_) | ProtocolHeader::NotAmqp) => {
                    self.writer.write_all(&PROTOCOL_HEADER).await?;
                    self.writer.shutdown().await?;
                    return Err(Failure::Over);
                }
                None => self.read_more().await?,
            }
        }
    }

    async fn log_in(&mut self) -> Result<(Identity, Abilities, Told), Failure> {
        let payload = self.method_payload(FrameMax::LOGIN).await?;
        let Method::Connection(ConnectionMethod::StartOk(start)) = decode(&payload)? else {
            return Err(out_of_place().into());
        };
        let capabilities = start.client_properties.get("capabilities").and_then(|value| value.as_table());
        let capabilities = capabilities.unwrap_or(Table::EMPTY);
        let can = |name| capabilities.get(name).and_then(|value| value.as_bool()) == Some(true);
        let abilities = Abilities {
            cancel_notify: can("consumer_cancel_notify"),
            blocked: can("connection.blocked"),
            qos_by_the_book: start.client_properties.get("product").and_then(|value| value.as_bytes())
                == Some(b"py-amqp"),
        };
        let from = self.origin.address;
        let login = match start.mechanism.as_bytes() {
            b"EXTERNAL" => self.shared.logins.certificate(self.origin.certificate_user(), from.ip()).await,
            mechanism => {
                let (user, password) = login::credentials(mechanism, start.response).unwrap_or_default();
                self.shared.logins.password(user, password, from.ip()).await
            }
        };
        let claimed = login::claimed_user(&start.mechanism, start.response, &self.origin);
        let mechanism = start.mechanism.to_string();
        let facts = LoginFacts {
            user: &claimed,
            protocol: "AMQP 0-9-1",
            mechanism: &mechanism,
            peer: from,
            is_tls: self.origin.tls.is_some(),
        };
        let events = self.shared.broker.events();
        let refused = match login {
            Ok(identity) => {
                self.shared.broker.traffic().of(Protocol::Amqp).logged_in();
                // A token says who it is by itself.
                events.logged_in(&LoginFacts { user: identity.name().as_str(), ..facts });
                let told = Told {
                    properties: Bytes::copy_from_slice(start.client_properties.as_raw()),
                    mechanism: start.mechanism.to_string(),
                };
                return Ok((identity, abilities, told));
            }
            Err(refused) => refused,
        };
        self.shared.broker.traffic().of(Protocol::Amqp).login_refused();
        if refused == LoginError::TooMany {
            // They come faster than anybody could read of them.
            tracing::debug!(protocol = "amqp", peer = %from, "login refused unseen: too many at once");
        } else {
            tracing::warn!(protocol = "amqp", peer = %from, user = claimed, mechanism, reason = %refused, "login refused");
            events.login_refused(&facts, &refused.to_string());
        }
        if !login::is_known(&start.mechanism) || !can("authentication_failure_close") {
            tokio::time::sleep(FAILURE_PAUSE).await;
            return Err(Failure::Over);
        }
        let text = format!(
            "Login was refused using authentication mechanism {}. For details see the broker logfile.",
            start.mechanism
        );
        Err(Refusal::new(ReplyCode::AccessRefused, text).into())
    }

    async fn tune(&mut self) -> Result<Limits, Failure> {
        let offer = connection::Tune {
            channel_max: self.shared.options.channel_max.get(),
            frame_max: FRAME_MAX_BYTES,
            heartbeat: HEARTBEAT_SECS,
        };
        self.send(&offer).await?;
        let payload = self.method_payload(FrameMax::BEFORE_TUNE).await?;
        let Method::Connection(ConnectionMethod::TuneOk(asked)) = decode(&payload)? else {
            return Err(out_of_place().into());
        };
        let refuse = |name: &str, asked: u32, max: u32| {
            Refusal::new(
                ReplyCode::NotAllowed,
                format!(
                    "negotiated {name} = {asked} is not between the minimum and the maximum allowed value ({max})"
                ),
            )
        };
        let frame_max = FrameMax::new(asked.frame_max).filter(|max| max.bytes() <= FRAME_MAX_BYTES);
        let frame_max = frame_max.ok_or_else(|| refuse("frame_max", asked.frame_max, FRAME_MAX_BYTES))?;
        let channel_max = self.shared.options.channel_max.get();
        if asked.channel_max == 0 || asked.channel_max > channel_max {
            return Err(refuse("channel_max", asked.channel_max.into(), channel_max.into()).into());
        }
        Ok(Limits { frame_max, channel_max: asked.channel_max, heartbeat: asked.heartbeat })
    }

    async fn open(
        &mut self,
        identity: &Identity,
        frame_max: FrameMax,
    ) -> Result<(Presence, VhostStay), Failure> {
        let payload = self.method_payload(frame_max).await?;
        let Method::Connection(ConnectionMethod::Open(open)) = decode(&payload)? else {
            return Err(out_of_place().into());
        };
        let entered = self.enter(&open, identity).map_err(|text| {
            let (peer, user) = (self.origin.address, identity.name());
            tracing::info!(protocol = "amqp", %peer, user = user.as_str(), text, "connection refused");
            Refusal::new(ReplyCode::NotAllowed, text).of(connection::Open::ID)
        })?;
        self.send(&connection::OpenOk { known_hosts: ShortStr::EMPTY }).await?;
        Ok(entered)
    }

    /// Enters the virtual host that a client asks for, or says why not in RabbitMQ's words.
    fn enter(
        &self,
        open: &connection::Open<'_>,
        identity: &Identity,
    ) -> Result<(Presence, VhostStay), String> {
        if let Some(max) = self.limit_reached {
            return Err(format!("connection refused: node connection limit ({max}) is reached"));
        }
        let not_found = || format!("vhost {} not found", open.virtual_host);
        let name = std::str::from_utf8(&open.virtual_host).ok().and_then(|text| VhostName::new(text).ok());
        let name = name.ok_or_else(not_found)?;
        let deleted = self.vhost_deleted.clone();
        let stay = self.shared.broker.enter_vhost(&name, move || deleted.cancel());
        let stay = stay.map_err(|error| match error {
            EnterError::NotFound { .. } => not_found(),
            EnterError::ConnectionLimit { name, max } => {
                let user = identity.name();
                format!(
                    "access to vhost '{name}' refused for user '{user}': connection limit ({max}) is reached"
                )
            }
        })?;
        let presence = self.shared.logins.connect(identity).map_err(|limit| limit.to_string())?;
        identity.may_enter(name.as_str()).map_err(|refused| refused.to_string())?;
        Ok((presence, stay))
    }

    /// The payload of the next method on channel 0.
    async fn method_payload(&mut self, max: FrameMax) -> Result<Vec<u8>, Failure> {
        loop {
            let found = match Frame::parse(self.input, max).map_err(error::frame_refusal)? {
                None => None,
                Some(Frame { kind: FrameKind::Heartbeat, channel: 0, .. }) => Some((None, 8)),
                Some(frame @ Frame { kind: FrameKind::Method, channel: 0, .. }) => {
                    Some((Some(frame.payload.to_vec()), frame.bytes()))
                }
                Some(_) => {
                    return Err(Refusal::new(ReplyCode::UnexpectedFrame, "the connection is not open").into());
                }
            };
            match found {
                None => self.read_more().await?,
                Some((payload, bytes)) => {
                    let _ = self.input.split_to(bytes);
                    if let Some(payload) = payload {
                        return Ok(payload);
                    }
                }
            }
        }
    }

    async fn read_more(&mut self) -> Result<(), Failure> {
        self.input.reserve(4096);
        if self.reader.read_buf(self.input).await? == 0 { Err(Failure::Over) } else { Ok(()) }
    }

    async fn send<M: AmqpMethod>(&mut self, method: &M) -> io::Result<()> {
        let mut out = Output::default();
        out.method(0, method);
        self.writer.write_all(&out.bytes).await?;
        self.writer.flush().await
    }

    /// Says why, and waits for the client to have read it.
    async fn say_goodbye(&mut self, refusal: &Refusal) -> io::Result<()> {
        let text = refusal.reply_text();
        self.send(&connection::Close {
            reply_code: refusal.code.number(),
            reply_text: ShortStr::clipped(text.as_bytes()),
            class_id: refusal.method.class_id,
            method_id: refusal.method.method_id,
        })
        .await?;
        let mut scratch = [0; 1024];
        let drained = async {
            let mut left = 64;
            while left > 0
                && matches!(self.reader.read(&mut scratch).await, Ok(count) if count > 0 && !ends(&scratch[..count]))
            {
                left -= 1;
            }
        };
        // A client that says nothing is not waited for long.
        let _ = tokio::time::timeout(FAILURE_PAUSE, drained).await;
        self.writer.shutdown().await
    }
}

/// Whether these bytes end with the client's consent to the end.
fn ends(bytes: &[u8]) -> bool {
    let mut close_ok = Output::default();
    close_ok.method(0, &connection::CloseOk {});
    bytes.ends_with(&close_ok.bytes)
}

fn decode(payload: &[u8]) -> Result<Method<'_>, Refusal> {
    Method::decode(payload).map_err(|error| error::method_refusal(error, payload))
}

fn out_of_place() -> Refusal {
    Refusal::new(ReplyCode::CommandInvalid, "a method came before its time")
}

fn server_properties() -> TableBuf {
    let mut capabilities = TableBuf::new();
    for name in CAPABILITIES {
        capabilities.put(ShortStr::clipped(name.as_bytes()), true);
    }
    let mut properties = TableBuf::new();
    properties
        .put(ShortStr::from_static("capabilities"), capabilities.as_table())
        .put(ShortStr::from_static("cluster_name"), "nexo")
        .put(ShortStr::from_static("copyright"), "The Nexo authors")
        .put(ShortStr::from_static("information"), "Licensed under the Apache License 2.0")
        .put(ShortStr::from_static("platform"), "Rust")
        .put(ShortStr::from_static("product"), "Nexo")
        .put(ShortStr::from_static("version"), env!("CARGO_PKG_VERSION"));
    properties
}
