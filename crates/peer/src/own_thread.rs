//! A thread for the connections over which envelopes go.

use std::io;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};

/// A runtime with one thread. It ends with this.
#[derive(Debug)]
pub(crate) struct OwnThread {
    pub(crate) handle: Handle,
    runtime: Option<Runtime>,
}

impl OwnThread {
    pub(crate) fn start() -> io::Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("nexo-peer").enable_all().build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Listens for connections, which are then read by this thread.
    pub(crate) async fn bind(&self, address: String) -> io::Result<TcpListener> {
        let bound = self.handle.spawn(async move { TcpListener::bind(&address).await }).await;
        bound.map_err(io::Error::other)?
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // It may be dropped by a task, which must not wait for others.
            runtime.shutdown_background();
        }
    }
}
