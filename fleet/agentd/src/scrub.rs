//! A slow verification of the whole cache, over and over: chunks that have changed on the disk are dropped, so that no
//! reader gets them, and fetched again when they are needed.

use headstart_block::{ByteSize, Error, ErrorKind, Result};
use headstart_cache::{Cache, Verified};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The pause between two rounds, however little there is in the cache.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(60);

/// The counts of a scrub.
#[derive(Default)]
pub(crate) struct ScrubCounts {
    /// Bytes that it has read.
    pub(crate) bytes: AtomicU64,
    /// The number of times that it has read the whole cache.
    pub(crate) rounds: AtomicU64,
}

/// A running scrub, in a thread of its own. It ends when this is dropped.
pub(crate) struct Scrub {
    pub(crate) counts: Arc<ScrubCounts>,
    _stop: Sender<()>,
}

impl Scrub {
    /// Reads `rate` bytes of `cache` a second, at most.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn start(cache: Arc<Cache>, rate: u64) -> Result<Self> {
        let (stop, stopped) = channel();
        let counts = Arc::<ScrubCounts>::default();
        let counted = Arc::clone(&counts);
        std::thread::Builder::new()
            .name("scrub".to_owned())
            .spawn(move || run(&cache, rate, &counted, &stopped))
            .map_err(|e| Error::io("cannot start the thread that looks through the cache", e))?;
        Ok(Self { counts, _stop: stop })
    }
}

fn run(cache: &Arc<Cache>, rate: u64, counts: &ScrubCounts, stopped: &Receiver<()>) {
    let mut read = |bytes: u64| {
        counts.bytes.fetch_add(bytes, Ordering::Relaxed);
        let pause = Duration::from_micros(bytes.saturating_mul(1_000_000) / rate.max(1));
        goes_on(stopped, pause)
    };
    let mut say = |blob: Verified| {
        if blob.found.wrong_bytes > 0 {
            let (digest, bytes) = (blob.digest, ByteSize(blob.found.wrong_bytes));
            tracing::warn!(blob = %digest, %bytes, "the cache has changed since it was filled: that is dropped");
        }
    };
    loop {
        match cache.verify(true, &mut read, &mut say) {
            Ok(()) => _ = counts.rounds.fetch_add(1, Ordering::Relaxed),
            Err(error) if error.kind() == ErrorKind::Cancelled => return,
            Err(error) => tracing::warn!(%error, "the cache cannot be looked through"),
        }
        if goes_on(stopped, BETWEEN_ROUNDS).is_err() {
            return;
        }
    }
}

/// Waits, unless the scrub is to end.
fn goes_on(stopped: &Receiver<()>, pause: Duration) -> Result<()> {
    match stopped.recv_timeout(pause) {
        Err(RecvTimeoutError::Timeout) => Ok(()),
        _ => Err(Error::new(ErrorKind::Cancelled, "stopped")),
    }
}
