//! A wire to the native API that can be cut: one connection through a port of our own.
//!
//! The gRPC client connects again by itself, which would hide that a session is over; so a link carries a single
//! connection and nothing after it.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// The wire. Dropping it cuts it.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) url: String,
    _cut: oneshot::Sender<()>,
}

impl Link {
    /// A wire that is connected to `target` already, and waits for a client.
    pub(crate) async fn to(target: SocketAddr) -> std::io::Result<Self> {
        let far = TcpStream::connect(target).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let (cut, is_cut) = oneshot::channel();
        tokio::spawn(carry(listener, far, is_cut));
        Ok(Self { url, _cut: cut })
    }
}

async fn carry(listener: TcpListener, mut far: TcpStream, is_cut: oneshot::Receiver<()>) {
    let carried = async move {
        let Ok(mut near) = accept(listener, &far).await else { return };
        // However it ends, both sides see it.
        let _ = copy_bidirectional(&mut near, &mut far).await;
    };
    tokio::select! {
        () = carried => {}
        _ = is_cut => {}
    }
}

async fn accept(listener: TcpListener, far: &TcpStream) -> std::io::Result<TcpStream> {
    let (near, _) = listener.accept().await?;
    for stream in [&near, far] {
        stream.set_nodelay(true)?;
        // Closing then sends a reset, and what is under way is gone, as when a machine dies.
        stream.set_zero_linger()?;
    }
    Ok(near)
}
