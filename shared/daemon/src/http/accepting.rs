//! HTTP served on a bounded number of connections.

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The pause after an error of `accept`, for example when the process has no descriptors left.
pub(super) const AFTER_ERROR: Duration = Duration::from_millis(50);

/// Serves `router` over HTTP/1 on at most `connections_max` connections at a time; further ones wait until
/// one ends. A connection is closed if the head of its next request is not complete within `head_time`. Runs
/// until the future is dropped, which closes all connections.
pub async fn serve_all(listener: TcpListener, router: Router, connections_max: usize, head_time: Duration) {
    let places = Arc::new(Semaphore::new(connections_max));
    let mut open = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        while open.try_join_next().is_some() {}
        open.spawn(async move {
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(head_time);
            if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(place);
        });
    }
}
