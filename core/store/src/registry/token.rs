//! The decision to use or to renew a token: made from the time alone, without I/O.
//!
//! | age of the token | decision |
//! |---|---|
//! | none yet, or the registry refused it with 401 | `Renew`: wait for another |
//! | below its life less a margin | `Use` |
//! | in the margin | `RenewSoon`: use it, and fetch another one meanwhile |
//! | past its life | `Renew` |
//!
//! A token that was used is also renewed without a request, when its margin begins ([`TokenSlot::is_due`]): the next
//! request may come after its end, and must not wait. A token that was not used in its life runs out quietly.
//! Every token has a generation. A refused request names its generation, so that a hundred requests
//! refused with the same token cause one renewal: the other ninety-nine find a newer one already.
//!
//! A renewal that fails is not tried again at once while the token still lives ([`PAUSE`]).
//!
//! Times are durations since the client started, on a clock that never goes back.

use super::credential::{Credential, Secret};
use std::time::Duration;

/// The life of a token whose server does not tell one: the default of the token specification.
pub(super) const LIFE_UNTOLD: Duration = Duration::from_secs(60);

/// The longest margin, which otherwise is a quarter of the life: a token server answers within it.
const MARGIN_MAX: Duration = Duration::from_secs(30);

/// The time for which the token is used after a failed renewal before another one is tried.
pub(super) const PAUSE: Duration = Duration::from_secs(2);

/// A token as requests use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) secret: Secret,
    /// The credential that has bought it.
    pub(super) credential: Credential,
    /// The number of the token among those of one slot.
    pub(super) generation: u64,
    obtained: Duration,
    life: Duration,
}

impl Token {
    /// The age at which it is to be renewed.
    fn margin_begins(&self) -> Duration {
        self.life - (self.life / 4).min(MARGIN_MAX)
    }
}

/// The action for a request that needs a token now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Use this one.
    Use(Token),
    /// Use this one, and fetch the next one in the background.
    RenewSoon(Token),
    /// Fetch one first.
    Renew,
}

#[derive(Debug)]
struct Current {
    token: Token,
    /// `true` if a request used it.
    used: bool,
    /// `true` if the registry has taken it.
    is_taken: bool,
}

/// The token of one scope at one registry.
#[derive(Debug, Default)]
pub(super) struct TokenSlot {
    current: Option<Current>,
    generation: u64,
    /// The generation of the last token that is not used any more.
    ended: u64,
    /// The time from which on the next renewal may be tried.
    pause_until: Duration,
}

impl TokenSlot {
    /// The action of a request at `now`.
    pub(super) fn decide(&mut self, now: Duration) -> Decision {
        let Some(current) = &mut self.current else { return Decision::Renew };
        let age = now.saturating_sub(current.token.obtained);
        if age >= current.token.life {
            return Decision::Renew;
        }
        current.used = true;
        if age >= current.token.margin_begins() && now >= self.pause_until {
            Decision::RenewSoon(current.token.clone())
        } else {
            Decision::Use(current.token.clone())
        }
    }

    /// Takes a token that was asked for with a credential at `asked`, and is good for `life` from then on.
    pub(super) fn accept(
        &mut self,
        (secret, credential): (Secret, Credential),
        asked: Duration,
        life: Duration,
    ) -> Token {
        let token = self.number((secret, credential), asked, life);
        self.current = Some(Current { token: token.clone(), used: false, is_taken: false });
        token
    }

    /// A token as [`Self::accept`] takes it, for one request alone.
    pub(super) fn number(
        &mut self,
        (secret, credential): (Secret, Credential),
        obtained: Duration,
        life: Duration,
    ) -> Token {
        self.generation += 1;
        Token { secret, credential, generation: self.generation, obtained, life }
    }

    /// Notes that the registry has taken a token. One that was fetched for one request alone comes into the place of
    /// another user's that the registry has not taken so far; `true` if it does.
    pub(super) fn take(&mut self, token: &Token) -> bool {
        let comes = match &mut self.current {
            Some(current) if current.token.generation == token.generation => {
                current.is_taken = true;
                false
            }
            Some(current) => !current.is_taken && current.token.credential != token.credential,
            None => token.generation > self.ended,
        };
        if comes {
            self.current = Some(Current { token: token.clone(), used: true, is_taken: true });
        }
        comes
    }

    /// Forgets the token: the next request fetches another one.
    pub(super) fn forget(&mut self) {
        self.ended = self.generation;
        self.current = None;
    }

    /// `true` if a token ever came.
    pub(super) fn has_had_any(&self) -> bool {
        self.generation > 0
    }

    /// The time at which the margin of the token begins.
    pub(super) fn due_at(&self) -> Option<Duration> {
        let token = self.current.as_ref().map(|current| &current.token)?;
        Some(token.obtained.saturating_add(token.margin_begins()))
    }

    /// `true` if the token of `generation` is to be renewed at `now`, although no request asks for it: it is the
    /// current one, was used, and nears its end.
    pub(super) fn is_due(&self, generation: u64, now: Duration) -> bool {
        let current = self.current.as_ref().filter(|current| current.token.generation == generation);
        let nears = |token: &Token| now.saturating_sub(token.obtained) >= token.margin_begins();
        current.is_some_and(|current| current.used && nears(&current.token)) && now >= self.pause_until
    }

    /// Notes that a renewal failed.
    pub(super) fn fail(&mut self, now: Duration) {
        self.pause_until = now.saturating_add(PAUSE);
    }

    /// Notes that the registry refused the token of `generation`: it is no longer used. A newer one stays.
    pub(super) fn reject(&mut self, generation: u64) {
        if self.current.as_ref().is_some_and(|current| current.token.generation == generation) {
            self.ended = generation;
            self.current = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bought(text: &str) -> (Secret, Credential) {
        (Secret::new(text), Credential::Nothing(None))
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_token_is_used_then_renewed_in_the_background_then_waited_for() {
        let mut slot = TokenSlot::default();
        assert_eq!(slot.decide(seconds(0)), Decision::Renew);
        let token = slot.accept(bought("a"), seconds(10), seconds(60));
        assert_eq!(slot.decide(seconds(54)), Decision::Use(token.clone()));
        assert_eq!(slot.decide(seconds(55)), Decision::RenewSoon(token.clone()));
        assert_eq!(slot.decide(seconds(69)), Decision::RenewSoon(token));
        assert_eq!(slot.decide(seconds(70)), Decision::Renew);
    }

    #[test]
    fn a_long_life_is_renewed_half_a_minute_before_its_end() {
        let mut slot = TokenSlot::default();
        let token = slot.accept(bought("a"), seconds(0), seconds(3600));
        assert_eq!(slot.decide(seconds(3569)), Decision::Use(token.clone()));
        assert_eq!(slot.decide(seconds(3570)), Decision::RenewSoon(token));
    }

    #[test]
    fn a_used_token_is_renewed_without_a_request() {
        let mut slot = TokenSlot::default();
        assert_eq!((slot.due_at(), slot.is_due(0, seconds(0))), (None, false));
        let token = slot.accept(bought("a"), seconds(10), seconds(60));
        assert_eq!(slot.due_at(), Some(seconds(55)));
        assert!(!slot.is_due(token.generation, seconds(56)), "nobody used it");
        slot.decide(seconds(20));
        assert!(slot.is_due(token.generation, seconds(55)));
        assert!(!slot.is_due(token.generation, seconds(54)), "too early");
        assert!(!slot.is_due(token.generation + 1, seconds(55)), "another one");
        slot.fail(seconds(55));
        assert!(!slot.is_due(token.generation, seconds(55)), "it failed just now");
        // The next one has to be used itself.
        let next = slot.accept(bought("b"), seconds(55), seconds(60));
        assert!(!slot.is_due(token.generation, seconds(100)) && !slot.is_due(next.generation, seconds(114)));
    }

    #[test]
    fn a_failed_renewal_is_not_tried_at_once() {
        let mut slot = TokenSlot::default();
        let token = slot.accept(bought("a"), seconds(0), seconds(60));
        slot.fail(seconds(50));
        assert_eq!(slot.decide(seconds(51)), Decision::Use(token.clone()));
        assert_eq!(slot.decide(seconds(52)), Decision::RenewSoon(token));
        slot.fail(seconds(59));
        assert_eq!(slot.decide(seconds(60)), Decision::Renew, "nothing to lose any more");
    }

    #[test]
    fn a_refusal_of_an_old_token_leaves_the_new_one() {
        let mut slot = TokenSlot::default();
        let old = slot.accept(bought("a"), seconds(0), seconds(60));
        let new = slot.accept(bought("b"), seconds(1), seconds(60));
        slot.reject(old.generation);
        assert_eq!(slot.decide(seconds(2)), Decision::Use(new.clone()));
        slot.reject(new.generation);
        assert_eq!(slot.decide(seconds(2)), Decision::Renew);
    }

    #[test]
    fn a_token_of_one_request_takes_the_place_of_one_that_was_not_taken() {
        let other = || (Secret::new("b"), Credential::Identity(Secret::new("i")));
        let mut slot = TokenSlot::default();
        let shared = slot.accept(bought("a"), seconds(0), seconds(60));
        let beside = slot.number(other(), seconds(1), seconds(60));
        assert_eq!(slot.decide(seconds(2)), Decision::Use(shared.clone()));
        assert!(slot.take(&beside) && !slot.take(&beside) && !slot.take(&shared));
        assert_eq!(slot.decide(seconds(2)), Decision::Use(beside.clone()));
        assert!(slot.is_due(beside.generation, seconds(46)), "it is renewed ahead as any other");
        // Both are taken: the place is the first one's.
        let shared = slot.accept(bought("a"), seconds(3), seconds(60));
        assert!(!slot.take(&shared) && !slot.take(&beside));
        assert_eq!(slot.decide(seconds(4)), Decision::Use(shared.clone()));
        // One that was there before others were refused or forgotten does not come back.
        slot.reject(shared.generation);
        assert!(!slot.take(&beside) && !slot.take(&shared));
        let beside = slot.number(other(), seconds(5), seconds(60));
        slot.forget();
        assert!(!slot.take(&beside));
        let beside = slot.number(other(), seconds(6), seconds(60));
        assert!(slot.take(&beside));
    }

    #[test]
    fn a_secret_is_not_printed() {
        let mut slot = TokenSlot::default();
        slot.accept(bought("hunter2"), seconds(0), seconds(60));
        assert!(!format!("{slot:?}").contains("hunter2"));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Wait(u64),
        Accept(u64),
        /// Refuse the token that was given this number of tokens ago.
        Reject(u64),
        Fail,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..100_u64).prop_map(Step::Wait),
            (0..200_u64).prop_map(Step::Accept),
            (0..3_u64).prop_map(Step::Reject),
            Just(Step::Fail),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        /// Goal: no request is ever given a token that was refused or has run out, and none waits for a token
        /// while a good one is there. Method: random histories against a list of all tokens ever given.
        #[test]
        fn gives_the_newest_token_while_it_is_good(steps in steps()) {
            let (mut slot, mut now) = (TokenSlot::default(), seconds(0));
            let mut given: Vec<(Token, Duration, bool)> = Vec::new();
            for step in steps {
                match step {
                    Step::Wait(n) => now += seconds(n),
                    Step::Accept(life) => {
                        let token = slot.accept(bought("t"), now, seconds(life));
                        given.push((token, now + seconds(life), false));
                    }
                    Step::Fail => slot.fail(now),
                    Step::Reject(back) => {
                        if let Some((token, _, refused)) = given.iter_mut().rev().nth(usize::try_from(back).unwrap()) {
                            *refused = true;
                            slot.reject(token.generation);
                        }
                    }
                }
                let good = given.last().filter(|(_, end, refused)| now < *end && !refused);
                match (slot.decide(now), good) {
                    (Decision::Renew, None) => {}
                    (Decision::Use(token), Some((expected, ..))) => prop_assert_eq!(&token, expected),
                    (Decision::RenewSoon(token), Some((expected, end, _))) => {
                        prop_assert_eq!(&token, expected);
                        prop_assert!(*end - now <= MARGIN_MAX);
                    }
                    (decision, good) => prop_assert!(false, "{decision:?} with {good:?}"),
                }
            }
        }
    }
}
