//! The thread that makes the cache durable and keeps its size limit while disks are served.

use headstart_cache::Cache;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The interval at which the cache is made durable: bytes that a power loss takes are fetched again.
const SYNC_EVERY: Duration = Duration::from_secs(5);

/// A thread that makes the cache durable and keeps its limit, every 5 seconds while disks are served.
/// Dropping this ends the thread.
pub struct SyncThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SyncThread {
    /// Starts the thread. If it cannot be started, the cache is synced only at the end.
    #[must_use]
    pub fn start(cache: Arc<Cache>) -> Self {
        let (stop, stopped) = channel::<()>();
        let sync = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(SYNC_EVERY) {
                if let Err(error) = cache.sync() {
                    tracing::warn!(%error, "the cache is not in order");
                }
            }
        };
        let thread = std::thread::Builder::new().name("cache".to_owned()).spawn(sync);
        Self { stop: Some(stop), thread: thread.ok() }
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
