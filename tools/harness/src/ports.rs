//! Ports on loopback: some that are free, and one that should not be for much longer.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

/// Where systems pick no port by themselves, neither for clients nor for servers that do not care.
const RANGE: std::ops::Range<u16> = 15_000..32_000;
/// How often somebody is asked whether he is there.
const GLANCE: Duration = Duration::from_millis(50);

/// Loopback addresses that nobody listens on, outside the range that systems pick ports from: nobody else must take them
/// while a broker is down.
///
/// # Errors
/// If there are none.
pub fn free_addresses<const COUNT: usize>() -> anyhow::Result<[SocketAddr; COUNT]> {
    let mut found = Vec::new();
    // All are held at once, so that no port is given twice.
    let mut held = Vec::new();
    for _ in 0..10_000 {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(RANGE)));
        if let Ok(listener) = TcpListener::bind(address) {
            held.push(listener);
            found.push(address);
        }
        if let Ok(found) = <[SocketAddr; COUNT]>::try_from(found.as_slice()) {
            return Ok(found);
        }
    }
    bail!("there are no free ports between {} and {}", RANGE.start, RANGE.end);
}

/// Waits until somebody takes connections there. `ended` says why nobody ever will, once that is known.
///
/// # Errors
/// If nobody does in time, or `ended` says so.
pub fn until_connected(
    name: &str,
    address: SocketAddr,
    patience: Duration,
    mut ended: impl FnMut() -> anyhow::Result<Option<String>>,
) -> anyhow::Result<()> {
    let end = Instant::now() + patience;
    while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
        if let Some(how) = ended()? {
            bail!("{name} ended instead of starting: {how}");
        }
        ensure!(Instant::now() < end, "{name} is not ready after {patience:?}");
        std::thread::sleep(GLANCE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn free_addresses_are_different_and_can_be_listened_on() {
        let found: [SocketAddr; 8] = free_addresses().unwrap();
        assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 8);
        let listener = found.iter().find_map(|address| TcpListener::bind(address).ok());
        let address = listener.as_ref().unwrap().local_addr().unwrap();
        until_connected("it", address, Duration::from_secs(60), || Ok(None)).unwrap();
    }

    #[test]
    fn who_has_ended_is_not_waited_for() {
        let [address] = free_addresses().unwrap();
        let error = until_connected("it", address, Duration::from_secs(60), || Ok(Some("killed".to_owned())))
            .unwrap_err();
        assert_eq!(error.to_string(), "it ended instead of starting: killed");
    }
}
