//! Class `connection`: opening, tuning and closing the connection as a whole, on channel 0.

use super::class::class;
use crate::codec::constants::CLASS_CONNECTION;
use crate::codec::short_str::ShortStr;
use crate::codec::table::Table;

class! {
    /// A method of class `connection`.
    ConnectionMethod<'a> = CLASS_CONNECTION;

    /// The server presents itself and the ways to log in.
    Start<'a> = 10, "connection.start" {
        version_major: u8,
        version_minor: u8,
        server_properties: Table<'a>,
        mechanisms: &'a [u8],
        locales: &'a [u8],
    }
    /// The client presents itself and logs in.
    StartOk<'a> = 11, "connection.start-ok" {
        client_properties: Table<'a>,
        mechanism: ShortStr<'a>,
        response: &'a [u8],
        locale: ShortStr<'a>,
    }
    /// The server wants more to log in.
    Secure<'a> = 20, "connection.secure" { challenge: &'a [u8] }
    /// The client gives more to log in.
    SecureOk<'a> = 21, "connection.secure-ok" { response: &'a [u8] }
    /// The server proposes limits; 0 means none.
    Tune = 30, "connection.tune" {
        channel_max: u16,
        frame_max: u32,
        /// In seconds.
        heartbeat: u16,
    }
    /// The client chooses limits; 0 means none.
    TuneOk = 31, "connection.tune-ok" {
        channel_max: u16,
        frame_max: u32,
        /// In seconds.
        heartbeat: u16,
    }
    /// The client chooses a virtual host.
    Open<'a> = 40, "connection.open" {
        virtual_host: ShortStr<'a>,
        /// Unused since 0-9-1.
        capabilities: ShortStr<'a>,
        /// Unused since 0-9-1.
        insist: bool,
    }
    /// The connection can be used.
    OpenOk<'a> = 41, "connection.open-ok" {
        /// Unused since 0-9-1.
        known_hosts: ShortStr<'a>,
    }
    /// Either side ends the connection; the ids name the method that was at fault, if one was.
    Close<'a> = 50, "connection.close" {
        reply_code: u16,
        reply_text: ShortStr<'a>,
        class_id: u16,
        method_id: u16,
    }
    /// The other side agrees.
    CloseOk = 51, "connection.close-ok" {}
    /// The server takes no messages for now.
    Blocked<'a> = 60, "connection.blocked" { reason: ShortStr<'a> }
    /// The server takes messages again.
    Unblocked = 61, "connection.unblocked" {}
    /// The client replaces a secret that runs out.
    UpdateSecret<'a> = 70, "connection.update-secret" {
        new_secret: &'a [u8],
        reason: ShortStr<'a>,
    }
    /// The new secret holds.
    UpdateSecretOk = 71, "connection.update-secret-ok" {}
}
