//! [`Stop`]: the user's request to end a command. The request ends every wait for a store (`stoppable.rs`).

use std::future::{Future, pending};
use tokio::sync::watch;

/// The receiving side of a request to stop, by which the user ends a command. Clones receive the same
/// request.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// The sending side of a request to stop, by which the user ends a command.
#[derive(Debug)]
pub struct StopSender(watch::Sender<bool>);

impl StopSender {
    /// Sends the request: all calls to stores that have the matching [`Stop`] in their settings end, except those that
    /// write a manifest, and streams that have begun. The request cannot be taken back.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }

    /// Waits until all receivers are dropped. All stores that had the [`Stop`] in their settings are then
    /// gone, and their reads have ended.
    pub async fn unused(&self) {
        self.0.closed().await;
    }
}

impl Stop {
    /// Makes the two sides of a request to stop, which is not sent yet.
    #[must_use]
    pub fn new() -> (StopSender, Self) {
        let (sender, receiver) = watch::channel(false);
        (StopSender(sender), Self(receiver))
    }

    /// `true` if the request has been sent.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Runs `work` and returns its result. If the request is sent before the work is done, the work is
    /// dropped and `None` is returned.
    pub async fn before<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut requested = self.0.clone();
        let stopped = async {
            if requested.wait_for(|requested| *requested).await.is_err() {
                // There is no sender any more.
                pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = stopped => None,
            done = work => Some(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_end_when_it_is_asked_and_not_before() {
        let (sender, stop) = Stop::new();
        assert_eq!(stop.before(async { 1 }).await, Some(1));
        assert!(!stop.is_requested());
        let waiting = tokio::spawn({
            let stop = stop.clone();
            async move { stop.before(pending::<()>()).await }
        });
        sender.ask();
        assert_eq!(waiting.await.unwrap(), None);
        assert!(stop.is_requested());
        drop(sender);
        assert_eq!(stop.before(pending::<()>()).await, None, "it cannot be taken back");
    }
}
