//! The real place of a blob of a registry, and its lifetime: decided from the time alone, without I/O.
//!
//! A registry answers a request for a blob either with the bytes or with the address of a storage that has
//! them, signed, and good for a while. Asking the registry for it before every read would double the round
//! trips, so the address is kept, one a blob ([`Route`]):
//!
//! | state | a read does |
//! |---|---|
//! | unknown | asks the registry; one read asks, the others wait for its result |
//! | direct | reads from the registry |
//! | away, in its life | reads from the address |
//! | away, near the end of its life | the same, and has the next address fetched meanwhile |
//! | away, past a life that the address tells | takes the next address, or asks |
//!
//! While the registry has served all blobs itself, there is most likely nothing to share: reads of a blob whose place
//! is unknown then read from the registry, all at once.
//!
//! An address that tells no life is taken to live as long as the shortest life seen at this registry. That is
//! a guess, so the next address is fetched near its end, but taken only when the storage really refuses the
//! current one: only in this way is the real life ever seen. A storage that refuses an address that should live
//! (signed with credentials that end sooner, for instance) teaches a shorter life in the same way.
//!
//! If an address was used, the next one is fetched even without a read, when the address nears the end of its life
//! ([`Route::is_due`]): the next read may come after that, and must not wait. An unused address runs out quietly.
//!
//! Every address has a generation, as tokens have: a hundred reads refused with one address replace it once.
//! Times are durations since the client started.

use super::token::PAUSE;
use chrono::{DateTime, NaiveDateTime};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// The shortest life of an address: a refusal that comes sooner has another reason.
const LIFE_MIN: Duration = Duration::from_millis(200);

/// An address that a registry sent a read to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) url: Arc<Url>,
    /// The number of the address among those of one blob.
    pub(super) generation: u64,
    obtained: Duration,
    /// The life that the address itself tells.
    life: Option<Duration>,
}

impl Address {
    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.obtained)
    }

    /// `true` if the life that it tells is over.
    fn is_over(&self, now: Duration) -> bool {
        self.life.is_some_and(|life| self.age(now) >= life)
    }

    /// The life that may be expected: the one that it tells, or a shorter one that was seen.
    fn expected(&self, seen: Option<Duration>) -> Option<Duration> {
        self.life.into_iter().chain(seen).min()
    }

    /// The age at which the next one is to be fetched: four fifths of its life. The rest is time enough to ask,
    /// and most of the life is used.
    fn end_nears(&self, seen: Option<Duration>) -> Option<Duration> {
        self.expected(seen).map(|life| life / 5 * 4)
    }

    fn nears_its_end(&self, now: Duration, seen: Option<Duration>) -> bool {
        let age = self.age(now);
        // An address that has outlived a guess by far proves it wrong: asking again and again would be of no use.
        let outlived = |begin: Duration| self.life.is_none() && age >= begin.saturating_mul(5);
        self.end_nears(seen).is_some_and(|begin| age >= begin && !outlived(begin))
    }
}

/// The action of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Ask the registry.
    Ask,
    /// Read from the registry.
    Direct,
    /// Read from this address; with `prefetch`, fetch the next one in the background.
    Use {
        /// The address of the bytes.
        address: Address,
        /// `true` if it nears its end and there is no next address.
        prefetch: bool,
    },
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Unknown,
    Direct,
    Away {
        current: Address,
        next: Option<Address>,
        /// `true` if a read used the current one.
        used: bool,
    },
}

/// The route to one blob.
#[derive(Debug, Default)]
pub(super) struct Route {
    state: State,
    generation: u64,
    /// The time from which on the next address may be fetched ahead.
    pause_until: Duration,
}

impl Route {
    /// The action of a read at `now`; `seen` is the shortest life seen at this registry.
    pub(super) fn decide(&mut self, now: Duration, seen: Option<Duration>) -> Decision {
        let (current, next, used) = match &mut self.state {
            State::Unknown => return Decision::Ask,
            State::Direct => return Decision::Direct,
            State::Away { current, next, used } => (current, next, used),
        };
        // A next address that is itself too old is of no use.
        next.take_if(|next| next.expected(seen).is_some_and(|life| next.age(now) >= life));
        if current.is_over(now) {
            match next.take() {
                Some(next) => *current = next,
                None => {
                    self.state = State::Unknown;
                    return Decision::Ask;
                }
            }
        }
        *used = true;
        Decision::Use {
            address: current.clone(),
            prefetch: current.nears_its_end(now, seen) && next.is_none() && now >= self.pause_until,
        }
    }

    /// `true` if the next address is to be fetched at `now`, although no read asks for it: the address of
    /// `generation` is the current one, was used, and nears the end of its life.
    pub(super) fn is_due(&self, generation: u64, now: Duration, seen: Option<Duration>) -> bool {
        let State::Away { current, next: None, used: true } = &self.state else { return false };
        current.generation == generation && current.nears_its_end(now, seen) && now >= self.pause_until
    }

    /// Notes that the registry gave the bytes itself.
    pub(super) fn learn_direct(&mut self) {
        self.state = State::Direct;
    }

    /// Notes that the registry, asked at `asked`, sent the read to `url`, which tells its `life`. It becomes the
    /// next address if there is a current one, because that has not failed yet. Returns its generation, and the
    /// time at which it nears its end, if that is known.
    pub(super) fn learn_address(
        &mut self,
        url: Url,
        asked: Duration,
        life: Option<Duration>,
        seen: Option<Duration>,
    ) -> Option<(u64, Duration)> {
        self.generation += 1;
        let address = Address { url: Arc::new(url), generation: self.generation, obtained: asked, life };
        let due = address.end_nears(seen).map(|age| (self.generation, asked.saturating_add(age)));
        match &mut self.state {
            State::Away { next, .. } => *next = Some(address),
            State::Unknown | State::Direct => {
                self.state = State::Away { current: address, next: None, used: false };
            }
        }
        due
    }

    /// Notes that fetching the next address failed: it is not tried again at once.
    pub(super) fn fail(&mut self, now: Duration) {
        self.pause_until = now.saturating_add(PAUSE);
    }

    /// Notes that the storage refused the address of `generation`: it is no longer used. Returns the life that it
    /// had, if that is news.
    pub(super) fn reject(&mut self, generation: u64, now: Duration) -> Option<Duration> {
        let State::Away { current, next, used } = &mut self.state else { return None };
        if current.generation != generation {
            return None;
        }
        let lived = current.age(now);
        let news = lived >= LIFE_MIN && !current.is_over(now);
        match next.take() {
            Some(next) => (*current, *used) = (next, false),
            None => self.state = State::Unknown,
        }
        news.then_some(lived)
    }
}

/// The life that a signed address tells, from the moment that the registry gave it, which was at `date`
/// (seconds since 1970) by the registry's own clock: this host's clock may be wrong.
///
/// Knows the parameters of S3 and its kin (`X-Amz-`, `X-Goog-`, `x-oss-` `Date` and `Expires`), `Expires`
/// of CloudFront and older schemes, and `se` of Azure. `None` if there is none, or the life is over
/// already: then the clocks disagree, and nothing is known.
pub(super) fn life_in_url(url: &Url, date: Option<i64>) -> Option<Duration> {
    let (mut end, mut signed, mut span) = (None, None, None);
    for (name, value) in url.query_pairs() {
        match name.to_ascii_lowercase().as_str() {
            "x-amz-date" | "x-goog-date" | "x-oss-date" => signed = basic_date(&value),
            "x-amz-expires" | "x-goog-expires" | "x-oss-expires" => span = value.parse::<u32>().ok(),
            "expires" => end = value.parse::<i64>().ok(),
            "se" => end = DateTime::parse_from_rfc3339(&value).ok().map(|end| end.timestamp()),
            _ => {}
        }
    }
    let left = match (span, signed, date) {
        (Some(span), Some(signed), Some(date)) => signed.checked_add(span.into())?.checked_sub(date)?,
        // Signed just now, presumably.
        (Some(span), ..) => span.into(),
        (None, _, Some(date)) => end?.checked_sub(date)?,
        (None, _, None) => return None,
    };
    u64::try_from(left).ok().filter(|left| *left > 0).map(Duration::from_secs)
}

/// Seconds since 1970 of `20130524T000000Z`.
fn basic_date(text: &str) -> Option<i64> {
    NaiveDateTime::parse_from_str(text, "%Y%m%dT%H%M%SZ").ok().map(|date| date.and_utc().timestamp())
}

#[cfg(test)]
#[path = "redirect_tests.rs"]
mod tests;
