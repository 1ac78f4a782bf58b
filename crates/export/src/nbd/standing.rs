//! Which client has to go where a new one comes and all places are taken.
//!
//! Silence is harmless in itself: a guest that is paused, or has nothing to read, keeps its connection for as long
//! as it likes. Where others wait for its place, these are not harmless, and go in this order, the oldest of a kind
//! first:
//!
//! 1. clients that have not finished their handshake ([`GRACE`] after they came),
//! 2. clients that have not asked for anything since ([`GRACE`] after they came),
//! 3. clients that do not take the replies they asked for (after [`STALLED`] without progress).
//!
//! A client that has asked before and waits for nothing is never one of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a new client has to say something.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// How long a client may leave its replies.
pub(crate) const STALLED: Duration = Duration::from_secs(2);

#[expect(clippy::disallowed_methods, reason = "a client that stalls must be given up")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// What a connection's threads note of their client.
#[derive(Debug)]
pub(crate) struct Activity {
    came: Instant,
    has_asked: AtomicBool,
    /// Milliseconds after `came`, plus one, since when it has not taken a reply; 0 if it does.
    stalled: AtomicU64,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self { came: now(), has_asked: AtomicBool::new(false), stalled: AtomicU64::new(0) }
    }

    /// The client asked for something.
    pub(crate) fn asked(&self) {
        if !self.has_asked.load(Ordering::Relaxed) {
            self.has_asked.store(true, Ordering::Relaxed);
        }
    }

    /// The client has left a reply since `since`; `None`: it takes its replies.
    pub(crate) fn set_stalled(&self, since: Option<Instant>) {
        let millis = since.map_or(0, |since| (since - self.came).as_millis().saturating_add(1));
        self.stalled.store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How the client stands at `now`.
    pub(crate) fn standing(&self, now: Instant) -> Standing {
        let age = now.saturating_duration_since(self.came);
        match self.stalled.load(Ordering::Relaxed) {
            0 if self.has_asked.load(Ordering::Relaxed) => Standing::Honest,
            0 => Standing::Silent(age),
            since => Standing::Stalled(age.saturating_sub(Duration::from_millis(since - 1))),
        }
    }
}

/// How a client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has asked, and takes its replies.
    Honest,
    /// It has not asked for anything, for so long.
    Silent(Duration),
    /// It has left its replies for so long.
    Stalled(Duration),
}

/// What to do for a client that finds no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice<K> {
    /// Give it the place of this one.
    Drop(K),
    /// Wait: there may be one soon.
    Wait,
    /// Turn it away.
    Refuse,
}

/// Chooses among all clients.
pub(crate) fn choose<K: Copy>(clients: impl Iterator<Item = (K, Standing)>) -> Choice<K> {
    let (mut silent, mut stalled, mut may_come) = (None, None, false);
    let older = |best: &mut Option<(Duration, K)>, age: Duration, key: K| {
        if best.is_none_or(|(oldest, _)| age > oldest) {
            *best = Some((age, key));
        }
    };
    for (key, standing) in clients {
        match standing {
            Standing::Honest => {}
            Standing::Silent(age) if age >= GRACE => older(&mut silent, age, key),
            Standing::Stalled(age) if age >= STALLED => older(&mut stalled, age, key),
            _ => may_come = true,
        }
    }
    match silent.or(stalled) {
        Some((_, key)) => Choice::Drop(key),
        None if may_come => Choice::Wait,
        None => Choice::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silent_go_before_those_that_stall_and_the_honest_stay() {
        let (soon, long, longer) =
            (Duration::from_millis(10), Duration::from_secs(5), Duration::from_secs(9));
        let chosen = |clients: &[Standing]| choose(clients.iter().copied().enumerate());
        use Standing::{Honest, Silent, Stalled};
        assert_eq!(chosen(&[Honest, Honest]), Choice::Refuse);
        assert_eq!(chosen(&[Honest, Silent(soon)]), Choice::Wait);
        assert_eq!(chosen(&[Stalled(soon), Honest]), Choice::Wait);
        assert_eq!(chosen(&[Stalled(long), Honest, Stalled(longer)]), Choice::Drop(2));
        assert_eq!(chosen(&[Stalled(longer), Silent(long), Silent(longer), Honest]), Choice::Drop(2));
    }

    #[test]
    fn a_client_that_asked_and_waits_for_nothing_is_honest_for_ever() {
        let activity = Activity::new();
        let later = now() + Duration::from_secs(1000);
        assert!(matches!(activity.standing(later), Standing::Silent(_)));
        activity.asked();
        assert_eq!(activity.standing(later), Standing::Honest);
        activity.set_stalled(Some(now()));
        assert!(matches!(activity.standing(later), Standing::Stalled(age) if age > GRACE));
        activity.set_stalled(None);
        assert_eq!(activity.standing(later), Standing::Honest);
    }
}
