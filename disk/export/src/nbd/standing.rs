//! The choice of the client that has to go if a new one comes and all places are taken.
//!
//! # Among the clients of one export
//!
//! Silence is harmless in itself: a guest that is paused, or has nothing to read, keeps its connection for as long as
//! it likes. If others wait for a place, these kinds of clients are not harmless, and go in this order, the oldest of a
//! kind first:
//!
//! 1. clients that have not finished their handshake ([`GRACE`] after they came),
//! 2. clients that have not asked for anything since ([`GRACE`] after they came),
//! 3. clients that do not take the replies they asked for (after [`STALLED`] without progress).
//!
//! A client that has asked before and waits for nothing is never one of them: a user that can open an export has the
//! disk anyway, and its other clients are the same user's.
//!
//! # Among exports
//!
//! A server of several exports has tenants that know nothing of each other. [`choose_fairly`] gives each the same
//! share, and the places that others leave: a newcomer gets the place of a client of the export that holds most, if
//! that holds more than the newcomer's export would then. Of its clients, those of the kinds above go first, then the
//! one whose last request is the oldest. Otherwise the newcomer's export holds most itself, and its clients compete
//! among themselves, as above.
//!
//! Two properties follow, for as many exports as there are places or fewer. An export that holds less than its share
//! (the places divided by the exports that have clients) always gets one more. And no export takes a place from one
//! that holds no more than its share.

use headstart_block::saturating;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time that a new client has to send something.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// The time that a client may leave its replies.
pub(crate) const STALLED: Duration = Duration::from_secs(2);

#[expect(clippy::disallowed_methods, reason = "a client that stalls must be given up")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The notes of a connection's threads about their client.
#[derive(Debug)]
pub(crate) struct Activity {
    came: Instant,
    /// Milliseconds after `came`, plus one, at which the client asked last; 0 if it never did.
    requested_at: AtomicU64,
    /// Milliseconds after `came`, plus one, since which it has not taken a reply; 0 if it takes replies.
    stalled: AtomicU64,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self { came: now(), requested_at: AtomicU64::new(0), stalled: AtomicU64::new(0) }
    }

    /// Notes that the client asked for something at `now`.
    pub(crate) fn on_request(&self, now: Instant) {
        self.requested_at.store(self.mark(now), Ordering::Relaxed);
    }

    /// A moment as it is kept: never 0.
    fn mark(&self, moment: Instant) -> u64 {
        let millis = moment.saturating_duration_since(self.came).as_millis().saturating_add(1);
        saturating(millis)
    }

    /// Notes that the client has left a reply since `since`; `None`: it takes its replies.
    pub(crate) fn set_stalled(&self, since: Option<Instant>) {
        self.stalled.store(since.map_or(0, |since| self.mark(since)), Ordering::Relaxed);
    }

    /// The standing of the client at `now`.
    pub(crate) fn standing(&self, now: Instant) -> Standing {
        let age = now.saturating_duration_since(self.came);
        let since = |mark: u64| age.saturating_sub(Duration::from_millis(mark - 1));
        match (self.stalled.load(Ordering::Relaxed), self.requested_at.load(Ordering::Relaxed)) {
            (0, 0) => Standing::Silent(age),
            (0, asked) => Standing::Honest(since(asked)),
            (stalled, _) => Standing::Stalled(since(stalled)),
        }
    }
}

/// The standing of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The client has asked, the last time this long ago, and takes its replies.
    Honest(Duration),
    /// The client has not asked for anything, for this long.
    Silent(Duration),
    /// The client has left its replies for this long.
    Stalled(Duration),
}

/// The choice for a client that finds no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice<K> {
    /// Give it the place of this client.
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
            // Its replies are on their way: the client may leave them.
            Standing::Honest(idle) if idle < STALLED => may_come = true,
            Standing::Honest(_) => {}
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

/// A client of one of several exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client<K, E> {
    pub(crate) key: K,
    pub(crate) export: E,
    pub(crate) standing: Standing,
}

/// Chooses for a newcomer to `export`, if all places are taken by `clients`: see the [module](self).
pub(crate) fn choose_fairly<K: Copy, E: Copy + Ord>(export: E, clients: &[Client<K, E>]) -> Choice<K> {
    let mut held = BTreeMap::<E, usize>::new();
    for client in clients {
        *held.entry(client.export).or_default() += 1;
    }
    let most = held.values().copied().max().unwrap_or(0);
    if most <= held.get(&export).map_or(1, |held| held + 1) {
        let own = clients.iter().filter(|client| client.export == export);
        return choose(own.map(|client| (client.key, client.standing)));
    }
    let rank = |client: &&Client<K, E>| match client.standing {
        Standing::Silent(age) => (2, age),
        Standing::Stalled(age) => (1, age),
        Standing::Honest(idle) => (0, idle),
    };
    let largest = clients.iter().filter(|client| held.get(&client.export) == Some(&most));
    largest.max_by_key(rank).map_or(Choice::Refuse, |client| Choice::Drop(client.key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_silent_go_before_those_that_stall_and_the_honest_stay() {
        let (soon, long, longer) =
            (Duration::from_millis(10), Duration::from_secs(5), Duration::from_secs(9));
        let chosen = |clients: &[Standing]| choose(clients.iter().copied().enumerate());
        use Standing::{Silent, Stalled};
        let honest = Standing::Honest(longer);
        assert_eq!(chosen(&[honest, honest]), Choice::Refuse);
        assert_eq!(chosen(&[honest, Silent(soon)]), Choice::Wait);
        assert_eq!(chosen(&[honest, Standing::Honest(soon)]), Choice::Wait);
        assert_eq!(chosen(&[Stalled(soon), honest]), Choice::Wait);
        assert_eq!(chosen(&[Stalled(long), honest, Stalled(longer)]), Choice::Drop(2));
        assert_eq!(chosen(&[Stalled(longer), Silent(long), Silent(longer), honest]), Choice::Drop(2));
    }

    #[test]
    fn a_client_that_asked_and_waits_for_nothing_stays_honest() {
        let activity = Activity::new();
        let (asked, later) = (now() + Duration::from_secs(10), now() + Duration::from_secs(1000));
        assert!(matches!(activity.standing(later), Standing::Silent(_)));
        activity.on_request(asked);
        let idle = |activity: &Activity| {
            let Standing::Honest(idle) = activity.standing(later) else { return 0 };
            idle.as_secs()
        };
        assert!((989..=991).contains(&idle(&activity)));
        activity.set_stalled(Some(now()));
        assert!(matches!(activity.standing(later), Standing::Stalled(age) if age > GRACE));
        activity.set_stalled(None);
        assert!((989..=991).contains(&idle(&activity)));
    }

    /// A server as it could be written in a few lines: clients in the order in which they came, with the moment at
    /// which they asked last.
    #[derive(Default)]
    struct Plain {
        now: u64,
        next: u32,
        clients: Vec<(u32, u8, Option<u64>)>,
    }

    impl Plain {
        fn seen(&self) -> Vec<Client<u32, u8>> {
            let standing = |asked: Option<u64>, came: u32| match asked {
                Some(at) => Standing::Honest(Duration::from_secs(self.now - at)),
                None => Standing::Silent(Duration::from_secs(self.now + 1000 - u64::from(came))),
            };
            let client = |(key, export, asked): &(u32, u8, Option<u64>)| Client {
                key: *key,
                export: *export,
                standing: standing(*asked, *key),
            };
            self.clients.iter().map(client).collect()
        }

        fn held(&self, export: u8) -> usize {
            self.clients.iter().filter(|client| client.1 == export).count()
        }

        /// The decision in other words: the largest export is looked for by hand, and its most idle client.
        fn expected(&self, export: u8) -> Choice<u32> {
            let largest = (0..=u8::MAX).map(|export| self.held(export)).max().unwrap();
            let competes = if largest > self.held(export) + 1 {
                self.clients.iter().filter(|client| self.held(client.1) == largest).collect::<Vec<_>>()
            } else {
                self.clients.iter().filter(|client| client.1 == export && client.2.is_none()).collect()
            };
            let silent = competes.iter().filter(|client| client.2.is_none()).map(|client| client.0).min();
            let idle = competes.iter().filter_map(|client| Some((client.2?, client.0))).min();
            silent.or(idle.map(|(_, key)| key)).map_or(Choice::Refuse, Choice::Drop)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Clients of a few exports come, ask and go in any order: the choice is the plain one, an export below its
        /// share always gets a place, one that holds no more than its share loses none to another, and an export's own
        /// newcomers drive out none of its clients that ever asked.
        #[test]
        fn every_export_has_its_share(
            places in 4_usize..24,
            steps in prop::collection::vec((0_u8..4, 0_u8..4, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut plain = Plain::default();
            for (step, export, which) in steps {
                // So long that no client asked just now.
                plain.now += STALLED.as_secs();
                match step {
                    0 | 1 => {
                        let exports = (0..4).filter(|other| *other == export || plain.held(*other) > 0).count();
                        let (share, held) = (places / exports, plain.held(export));
                        if plain.clients.len() >= places {
                            let chosen = choose_fairly(export, &plain.seen());
                            prop_assert_eq!(chosen, plain.expected(export));
                            match chosen {
                                Choice::Drop(key) => {
                                    let at = plain.clients.iter().position(|client| client.0 == key).unwrap();
                                    let (_, other, asked) = plain.clients.remove(at);
                                    prop_assert!(other != export || asked.is_none());
                                    prop_assert!(other == export || plain.held(other) + 1 > share);
                                }
                                Choice::Wait => prop_assert!(false, "nobody is so new"),
                                Choice::Refuse => {
                                    prop_assert!(held >= share, "{} of {}", held, share);
                                    continue;
                                }
                            }
                        }
                        plain.clients.push((plain.next, export, None));
                        plain.next += 1;
                        prop_assert!(plain.clients.len() <= places);
                    }
                    2 if !plain.clients.is_empty() => {
                        let at = which.index(plain.clients.len());
                        plain.clients[at].2 = Some(plain.now);
                    }
                    3 if !plain.clients.is_empty() && which.index(4) == 0 => {
                        let at = which.index(plain.clients.len());
                        plain.clients.remove(at);
                    }
                    _ => {}
                }
            }
        }
    }
}
