//! Stores that say nothing. Warnings: the user sees no progress, and learns which server is waited for. And the end of
//! waiting for a store that cannot be reached.

use crate::store::Store;
use headstart_block::{ErrorKind, Result};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::sleep;

/// The time after which the user is told that a store has not answered: longer than the tries at a store that refuses
/// connections, because that case has its own error.
const SILENCE: Duration = Duration::from_secs(5);

/// The time between two looks at whether bytes of blobs come.
const LOOK: Duration = Duration::from_millis(250);

/// The time that a store may take for the first answer before it is asked whether it can be reached at all.
const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// Waits for `asked`, the first call of a store, with all the time that a slow store needs. A store that cannot be
/// reached, a mistyped host for example, is reported within seconds: a separate check finds that out.
///
/// # Errors
/// Those of `asked`; [`ErrorKind::Unavailable`] if the check says so.
pub async fn unless_away<T>(store: &dyn Store, asked: impl Future<Output = Result<T>>) -> Result<T> {
    let missed = async {
        sleep(FIRST_ANSWER).await;
        match store.check().await {
            Err(error) if error.kind() == ErrorKind::Unavailable => error,
            // The store can be reached. The call's own error reports other problems.
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        answer = asked => answer,
        error = missed => Err(error),
    }
}

/// Waits for `asked`, a call that expects a small answer from `store`, and returns its result. If there is
/// none after 5 s, a warning is logged; it states `limit`, the maximum duration of each answer. No warning is
/// given if `limit` is `None`, or if the store has failed meanwhile and the call is being retried.
pub async fn warn_if_silent<T>(
    store: &dyn Store,
    limit: Option<Duration>,
    asked: impl Future<Output = T>,
) -> T {
    let Some(limit) = limit else { return asked.await };
    let mut asked = pin!(asked);
    let retries = store.counters().retries;
    tokio::select! {
        biased;
        answer = &mut asked => return answer,
        () = sleep(SILENCE) => {}
    }
    if store.counters().retries == retries {
        let (name, limit) = (store.name(), limit.as_secs_f64());
        tracing::warn!("{name} has not answered yet; it is given {limit} s for each answer");
    }
    asked.await
}

/// Waits for `read`, which expects bytes of blobs from `store`, and returns its result. If reads wait for the
/// server and nothing comes for 5 s, one warning is logged; it states `limit`, the maximum duration of each
/// answer. No warning is given if `limit` is `None`, or while only a rate limit holds the reads back.
pub async fn warn_if_nothing_comes<T>(
    store: &dyn Store,
    limit: Option<Duration>,
    read: impl Future<Output = T>,
) -> T {
    warn_once(store, limit, &AtomicBool::new(false), read).await
}

/// As [`warn_if_nothing_comes`], where `has_warned` is `true` once the warning was given.
pub(crate) async fn warn_once<T>(
    store: &dyn Store,
    limit: Option<Duration>,
    has_warned: &AtomicBool,
    read: impl Future<Output = T>,
) -> T {
    let Some(limit) = limit else { return read.await };
    let mut read = pin!(read);
    tokio::select! {
        biased;
        done = &mut read => return done,
        () = silence(store) => {}
    }
    if !has_warned.swap(true, Ordering::Relaxed) {
        let (name, limit) = (store.name(), limit.as_secs_f64());
        tracing::warn!(
            "nothing comes from {name}; it is given {limit} s for each answer, and for more of one"
        );
    }
    read.await
}

/// Returns once reads of `store` have waited for some seconds, and nothing has come.
async fn silence(store: &dyn Store) {
    let (mut before, mut silent) = (store.counters(), Duration::ZERO);
    while silent < SILENCE {
        sleep(LOOK).await;
        let now = store.counters();
        silent = if now.is_silent_since(&before) { silent + LOOK } else { Duration::ZERO };
        before = now;
    }
}
