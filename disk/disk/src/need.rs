//! The urgency of a fetch, and the report of its end on the link.

use headstart_store::Urgency;
use tokio::sync::watch;

/// The urgency of a fetch, which may grow: a read may begin to wait for bytes that no read waited for.
///
/// The request to the swarm is then repeated with more urgency. A request that was sent to the store is not: it has no
/// order there, and is too short to be worth a second one.
#[derive(Clone)]
pub(crate) struct Need {
    urgency: Urgency,
    /// The offset in the blob up to which reads wait.
    promoted_upto: Option<watch::Receiver<u64>>,
}

impl Need {
    /// The need of a read that waits, from the beginning.
    pub(crate) const DEMAND: Self = Self { urgency: Urgency::Demand, promoted_upto: None };

    /// A need that is the same from the beginning to the end.
    pub(crate) fn of(urgency: Urgency) -> Self {
        Self { urgency, promoted_upto: None }
    }

    /// A need for which no read waits at first; `promoted_upto` is the offset in the blob up to which reads wait.
    pub(crate) fn until_promoted(promoted_upto: watch::Receiver<u64>) -> Self {
        Self { urgency: Urgency::Background, promoted_upto: Some(promoted_upto) }
    }

    /// The urgency of the bytes at `offset`, at present.
    pub(crate) fn at(&self, offset: u64) -> Urgency {
        let promoted = self.promoted_upto.as_ref().is_some_and(|upto| *upto.borrow() > offset);
        if promoted { Urgency::Demand } else { self.urgency }
    }

    /// Returns when a read waits for the bytes at `offset`; never, if the sender is gone.
    pub(crate) async fn promoted(&self, offset: u64) {
        if let Some(mut promotion) = self.promoted_upto.clone()
            && promotion.wait_for(|upto| *upto > offset).await.is_ok()
        {
            return;
        }
        std::future::pending::<()>().await;
    }
}

/// Called when the last byte has come over the link, before it is verified.
pub(crate) type Arrived<'a> = &'a (dyn Fn() + Send + Sync);
