//! [`Stop`]: the user's request to end a command, which ends every wait for a store (`stoppable.rs`).

use std::future::{Future, pending};
use tokio::sync::watch;

/// The receiving side of the request to stop. Clones share one request.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// The sending side of the request to stop.
#[derive(Debug)]
pub struct StopSender(watch::Sender<bool>);

impl StopSender {
    /// Asks all code that waits for a store with this [`Stop`] in its settings to stop. This cannot be taken back.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }

    /// Returns when the request has no receivers any more: all stores that had it in their settings are gone, with
    /// the reads that held them.
    pub async fn unused(&self) {
        self.0.closed().await;
    }
}

impl Stop {
    /// Makes a request to stop that is not sent yet: both of its sides.
    #[must_use]
    pub fn new() -> (StopSender, Self) {
        let (sender, receiver) = watch::channel(false);
        (StopSender(sender), Self(receiver))
    }

    /// `true` once the request was sent.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// The result of `work`, or `None` if the request comes before the result: `work` is dropped then.
    pub async fn before<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut asked = self.0.clone();
        let stopped = async {
            if asked.wait_for(|asked| *asked).await.is_err() {
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
        assert!(!stop.is_asked());
        let waiting = tokio::spawn({
            let stop = stop.clone();
            async move { stop.before(pending::<()>()).await }
        });
        sender.ask();
        assert_eq!(waiting.await.unwrap(), None);
        assert!(stop.is_asked());
        drop(sender);
        assert_eq!(stop.before(pending::<()>()).await, None, "it cannot be taken back");
    }
}
