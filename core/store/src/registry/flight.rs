//! Single flight: many requests that need the same thing cause one request for it.
//!
//! The first request leads: it fetches, and publishes the result. Requests that come meanwhile wait for that,
//! and share a failure too, so that a dead server costs a hundred waiters one time-out, not a hundred in a
//! row. A leader that is dropped before it published (its read was cancelled) leaves the lead to one of the
//! waiters.
//!
//! The caller keeps the result, not this module.

use headstart_block::{Error, ErrorKind};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A failure that several waiters share.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    kind: ErrorKind,
    text: Arc<str>,
    asked_pause: Option<Duration>,
    has_answered: bool,
    is_lasting: bool,
}

impl Failure {
    /// `true` if access was refused to the request that led.
    pub(super) fn is_refusal(&self) -> bool {
        self.kind == ErrorKind::Denied
    }

    /// The failure as an error, for one of the waiters.
    pub(super) fn error(&self) -> Error {
        let error = Error::new(self.kind, self.text.to_string());
        let error = if self.has_answered { error.answered() } else { error };
        let error = if self.is_lasting { error.lasting() } else { error };
        match self.asked_pause {
            Some(pause) => error.retry_after(pause),
            None => error,
        }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind(),
            text: error.to_string().into(),
            asked_pause: error.asked_pause(),
            has_answered: error.has_answered(),
            is_lasting: error.is_lasting(),
        }
    }
}

type Outcome = Option<Result<(), Failure>>;

/// One thing that one request at a time fetches.
#[derive(Clone, Debug, Default)]
pub(super) struct Flight(Arc<Mutex<Option<watch::Receiver<Outcome>>>>);

/// The role of a request.
#[derive(Debug)]
pub(super) enum Turn {
    /// The lead: the caller fetches, keeps the result, then publishes.
    Lead(Lead),
    /// Another request fetched it, or failed to.
    Followed(Result<(), Failure>),
}

/// The right, and the duty, to fetch.
#[derive(Debug)]
pub(super) struct Lead {
    flight: Flight,
    outcome: watch::Sender<Outcome>,
}

impl Flight {
    fn lock(&self) -> MutexGuard<'_, Option<watch::Receiver<Outcome>>> {
        self.0.lock()
    }

    /// The lead, or the outcome of the request that had it.
    pub(super) async fn join(&self) -> Turn {
        loop {
            let mut receiver = match self.enter() {
                Ok(lead) => return Turn::Lead(lead),
                Err(receiver) => receiver,
            };
            if let Ok(outcome) = receiver.wait_for(Option::is_some).await
                && let Some(outcome) = outcome.clone()
            {
                return Turn::Followed(outcome);
            }
        }
    }

    /// The lead, unless another request has it.
    pub(super) fn try_lead(&self) -> Option<Lead> {
        self.enter().ok()
    }

    fn enter(&self) -> Result<Lead, watch::Receiver<Outcome>> {
        let mut slot = self.lock();
        if let Some(receiver) = &*slot {
            return Err(receiver.clone());
        }
        let (outcome, receiver) = watch::channel(None);
        *slot = Some(receiver);
        Ok(Lead { flight: self.clone(), outcome })
    }
}

impl Lead {
    /// Publishes the outcome to the others. The caller puts the result in its place before.
    pub(super) fn publish(self, outcome: Result<(), &Error>) {
        self.outcome.send_replace(Some(outcome.map_err(Failure::from)));
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        // Before the sender is dropped: a waiter that then finds it closed enters again.
        *self.flight.lock() = None;
    }
}

#[cfg(test)]
#[expect(clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn followers_share_what_the_leader_got() {
        let flight = Flight::default();
        let Turn::Lead(lead) = flight.join().await else { panic!("nobody leads yet") };
        assert!(flight.try_lead().is_none());
        let followers: Vec<_> = (0..8)
            .map(|_| {
                let flight = flight.clone();
                tokio::spawn(async move { flight.join().await })
            })
            .collect();
        tokio::task::yield_now().await;
        let pause = Duration::from_secs(7);
        lead.publish(Err(&Error::new(ErrorKind::Denied, "no").retry_after(pause).lasting()));
        for follower in followers {
            let Turn::Followed(Err(failure)) = follower.await.unwrap() else { panic!("two leaders") };
            let error = failure.error();
            assert_eq!((error.kind(), error.asked_pause()), (ErrorKind::Denied, Some(pause)));
            assert!(failure.is_refusal() && error.is_lasting());
        }
        assert!(flight.try_lead().is_some());
    }

    #[tokio::test]
    async fn a_leader_that_gives_up_is_followed_by_another() {
        let flight = Flight::default();
        let lead = flight.try_lead().unwrap();
        let other = flight.clone();
        let follower = tokio::spawn(async move { other.join().await });
        tokio::task::yield_now().await;
        drop(lead);
        assert!(matches!(follower.await.unwrap(), Turn::Lead(_)));
    }
}
