//! Where a way in listens.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use anyhow::Context;
use nexo_net::Listeners;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Connections that wait to be taken in, for each address.
const BACKLOG: i32 = 1024;

/// Addresses to listen on, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// Not at all.
    Off,
    /// On this port of both loopback addresses, as far as this machine has them.
    Loopback(u16),
    /// On these, each a `HOST:PORT`.
    At(Vec<String>),
}

impl Listen {
    /// Opens the sockets, if there are to be any. `what` is who will use them.
    pub(crate) async fn bind(&self, what: &str) -> anyhow::Result<Listeners> {
        let mut listeners = Listeners::default();
        let failed = |address: &dyn fmt::Display| format!("cannot listen on {address} for {what}");
        match self {
            Self::Off => {}
            Self::Loopback(port) => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
                listeners.add(open(address, Family::Own).with_context(|| failed(&address))?);
                let address = SocketAddr::from((Ipv6Addr::LOCALHOST, *port));
                match open(address, Family::Own) {
                    Ok(socket) => listeners.add(socket),
                    Err(error) if is_missing(&error) => {
                        tracing::info!(%address, %error, "there is no IPv6 loopback; {what} listens on IPv4 only");
                    }
                    Err(error) => return Err(error).with_context(|| failed(&address)),
                }
            }
            Self::At(addresses) => {
                for address in addresses {
                    let opened = self.open_named(address).await;
                    listeners.add(opened.with_context(|| failed(address))?);
                }
            }
        }
        Ok(listeners)
    }

    /// The first address of a name that can be listened on.
    async fn open_named(&self, address: &str) -> io::Result<TcpListener> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for found in tokio::net::lookup_host(address).await? {
            match open(found, self.family(found)) {
                Ok(socket) => return Ok(socket),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// `[::]` is for IPv4 as well, unless `0.0.0.0` is there beside it.
    fn family(&self, address: SocketAddr) -> Family {
        let beside = format!("{}:{}", Ipv4Addr::UNSPECIFIED, address.port());
        match self {
            Self::At(addresses) if addresses.contains(&beside) => Family::Own,
            Self::At(_) | Self::Loopback(_) | Self::Off => Family::Both,
        }
    }
}

/// What an IPv6 socket takes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// What the system does by itself, which is mostly IPv4 too.
    Both,
    /// IPv6 alone.
    Own,
}

fn open(address: SocketAddr, family: Family) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() && family == Family::Own {
        socket.set_only_v6(true)?;
    }
    // Connections of a broker that has just ended do not keep the next one from its port.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Whether this machine has no such address.
fn is_missing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let missing = [Errno::ADDRNOTAVAIL, Errno::AFNOSUPPORT, Errno::PROTONOSUPPORT];
    missing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let addresses = text.split(',').map(|address| checked(address.trim())).collect::<Result<_, _>>()?;
        Ok(Self::At(addresses))
    }
}

fn checked(address: &str) -> Result<String, String> {
    match address.rsplit_once(':') {
        // Without brackets nobody could tell where an IPv6 address ends.
        Some((host, port))
            if !host.is_empty()
                && port.parse::<u16>().is_ok()
                && (!host.contains(':') || (host.starts_with('[') && host.ends_with(']'))) =>
        {
            Ok(address.to_owned())
        }
        _ => Err(format!(
            "'{address}' is not an address; it must be HOST:PORT (port 0 picks a free one), several with commas between \
             them, or off"
        )),
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListenVisitor)
    }
}

/// A text, or a list of texts.
struct ListenVisitor;

impl<'de> Visitor<'de> for ListenVisitor {
    type Value = Listen;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("'HOST:PORT', a list of such, or 'off'")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Listen, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Listen, A::Error> {
        let mut addresses = Vec::new();
        while let Some(address) = list.next_element::<String>()? {
            addresses.push(checked(&address).map_err(de::Error::custom)?);
        }
        Ok(if addresses.is_empty() { Listen::Off } else { Listen::At(addresses) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(addresses: &[&str]) -> Listen {
        Listen::At(addresses.iter().map(|&address| address.to_owned()).collect())
    }

    #[test]
    fn addresses_or_off_are_understood() {
        assert_eq!("off".parse(), Ok(Listen::Off));
        for text in ["127.0.0.1:0", "localhost:7654", "[::1]:7654"] {
            assert_eq!(text.parse(), Ok(at(&[text])));
        }
        assert_eq!("127.0.0.1:1, [::1]:1".parse(), Ok(at(&["127.0.0.1:1", "[::1]:1"])));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "7654",
            ":7654",
            "localhost",
            "localhost:",
            "localhost:70000",
            "none",
            "127.0.0.1:1,",
            "127.0.0.1:1,off",
            "::1:7654",
        ] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn each_address_with_port_0_gets_a_free_port() {
        let listeners = at(&["127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"]).bind("a test").await.unwrap();
        let mut ports: Vec<u16> =
            listeners.addresses().unwrap().iter().map(std::net::SocketAddr::port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert!(ports.len() == 3 && !ports.contains(&0), "{ports:?}");
    }

    #[tokio::test]
    async fn the_address_that_cannot_be_had_is_named() {
        // One that is for documentation, and no machine's.
        let error = at(&["127.0.0.1:0", "192.0.2.1:0"]).bind("a test").await.unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot listen on 192.0.2.1:0 for a test: "), "{error:#}");
    }

    #[tokio::test]
    async fn both_wildcards_go_together() {
        let free = at(&["127.0.0.1:0"]).bind("a test").await.unwrap().addresses().unwrap()[0].port();
        let (v4, v6) = (format!("0.0.0.0:{free}"), format!("[::]:{free}"));
        if TcpListener::bind("[::]:0").await.is_err() {
            println!("this machine has no IPv6");
            return;
        }
        for list in [[&v4[..], &v6], [&v6, &v4]] {
            assert_eq!(at(&list).bind("a test").await.unwrap().addresses().unwrap().len(), 2);
        }
    }

    #[tokio::test]
    async fn the_default_is_both_loopbacks() {
        let listeners = Listen::Loopback(0).bind("a test").await.unwrap();
        let addresses: Vec<std::net::IpAddr> =
            listeners.addresses().unwrap().iter().map(std::net::SocketAddr::ip).collect();
        let expected: [std::net::IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let has_ipv6 = TcpListener::bind("[::1]:0").await.is_ok();
        assert_eq!(addresses, &expected[..if has_ipv6 { 2 } else { 1 }]);
    }

    #[test]
    fn a_machine_without_ipv6_is_told_from_a_port_that_is_taken() {
        assert!(is_missing(&rustix::io::Errno::ADDRNOTAVAIL.into()));
        assert!(!is_missing(&rustix::io::Errno::ADDRINUSE.into()));
    }
}
