//! Small HTTP servers of the kit: on a port of their own, ended when dropped.

use axum::Router;
use axum::http::{HeaderMap, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A running server.
#[derive(Debug)]
pub(crate) struct Served {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Served {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves `router` on a port that the system chooses.
pub(crate) async fn serve(router: Router) -> Served {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let task = tokio::spawn(async move {
        // This ends only when it is aborted.
        let _ = axum::serve(listener, router).await;
    });
    Served { address, task }
}

/// The user and password of a request.
pub(crate) fn basic_credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
    let text = String::from_utf8(STANDARD.decode(text).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}
