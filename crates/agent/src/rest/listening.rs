//! Where programs ask: a Unix socket for its user alone, and a TCP port for who only looks.

use crate::local::bind;
use axum::Router;
use headstart_block::{Error, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// The servers. They end when dropped.
pub(crate) struct Rest {
    socket: PathBuf,
    tasks: Vec<AbortHandle>,
    /// Where what changes nothing is served over TCP.
    pub(crate) address: Option<SocketAddr>,
}

impl Rest {
    /// Serves `all` at a Unix socket, in the place of who served there before, and what only looks at `address`.
    ///
    /// # Errors
    /// Where it cannot listen.
    pub(crate) async fn start(
        socket: &Path,
        all: Router,
        address: Option<SocketAddr>,
        looking: Router,
    ) -> Result<Self> {
        let listener = bind(socket).map_err(|e| e.about(socket.display()))?;
        let mut tasks = Vec::new();
        tasks.push(tokio::spawn(async move { drop(axum::serve(listener, all).await) }).abort_handle());
        let mut bound = None;
        if let Some(address) = address {
            let failed = |e| Error::io("cannot listen", e).about(address);
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            bound = Some(listener.local_addr().map_err(failed)?);
            tasks
                .push(tokio::spawn(async move { drop(axum::serve(listener, looking).await) }).abort_handle());
        }
        Ok(Self { socket: socket.to_owned(), tasks, address: bound })
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        let _ = std::fs::remove_file(&self.socket);
    }
}
