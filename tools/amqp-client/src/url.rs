//! Where an AMQP broker is and who asks: `amqp://user:password@host:port/vhost`.

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

use crate::login::Login;

/// The address of a broker, with everything that logging in takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmqpUrl {
    /// The broker's machine, by name or by number.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The user's name.
    pub user: String,
    /// The password.
    pub password: String,
    /// The virtual host.
    pub virtual_host: String,
}

impl AmqpUrl {
    const PORT: u16 = 5672;

    /// Logs in as whoever the address names, without heartbeats.
    #[must_use]
    pub fn login(&self) -> Login {
        Login {
            user: self.user.clone(),
            password: self.password.clone(),
            virtual_host: self.virtual_host.clone(),
            ..Login::default()
        }
    }
}

impl FromStr for AmqpUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || {
            format!(
                "'{text}' is not the address of an AMQP broker; one looks like 'amqp://guest:guest@127.0.0.1:5672/%2F'"
            )
        };
        let rest = text.strip_prefix("amqp://").ok_or_else(malformed)?;
        let (authority, path) = rest.split_once('/').map_or((rest, None), |(left, path)| (left, Some(path)));
        let (who, place) = authority.rsplit_once('@').unwrap_or(("guest:guest", authority));
        let (user, password) = who.split_once(':').unwrap_or((who, ""));
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| malformed())?),
            None => (place, Self::PORT),
        };
        if host.is_empty() {
            return Err(malformed());
        }
        let decode = |part: &str| {
            percent_decode_str(part).decode_utf8().map(|text| text.into_owned()).map_err(|_| malformed())
        };
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            user: decode(user)?,
            password: decode(password)?,
            // RabbitMQ's clients take a URL without a path for the default host, whose name is a slash.
            virtual_host: path.map_or(Ok("/".to_owned()), decode)?,
        })
    }
}

impl fmt::Display for AmqpUrl {
    /// Without the password: this goes into reports.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "amqp://{}:{}", self.host, self.port)
    }
}

impl serde::Serialize for AmqpUrl {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_understood() {
        let url: AmqpUrl = "amqp://me:p%40ss@broker:1234/a%2Fb".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port), ("broker", 1234));
        assert_eq!((url.user.as_str(), url.password.as_str()), ("me", "p@ss"));
        assert_eq!(url.virtual_host, "a/b");
    }

    #[test]
    fn what_is_left_out_is_the_default() {
        let url: AmqpUrl = "amqp://localhost".parse().unwrap();
        assert_eq!((url.port, url.user.as_str(), url.virtual_host.as_str()), (5672, "guest", "/"));
        assert_eq!("amqp://[::1]:1".parse::<AmqpUrl>().unwrap().host, "::1");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "amqp://", "http://x", "amqp://x:port", "amqp://:5672"] {
            assert!(text.parse::<AmqpUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_report_does_not_tell_the_password() {
        let url: AmqpUrl = "amqp://me:secret@broker:1/".parse().unwrap();
        assert_eq!(url.to_string(), "amqp://broker:1");
    }
}
