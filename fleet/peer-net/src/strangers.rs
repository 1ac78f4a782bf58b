//! Admission of strangers: connections whose other end is not known yet.
//!
//! Until a handshake is done, any program may be at the other end. The number of places is bounded; when all are taken,
//! one connection has to make room. Hosts at addresses that are known from the swarm come first. Otherwise those that
//! hold the most places by one address give way to those that hold fewer, and among equals the oldest, once it has had
//! the time that a handshake takes. So a host that opens many connections only keeps itself out.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

/// The most connections whose other end is not known yet.
const PLACES: usize = 64;

/// The time, in milliseconds, after which the place of a handshake can be given to a host of the same standing.
const GRACE_MS: u64 = 500;

/// A place at the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place(u64);

/// The decision on a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The connection gets this place; if another had to make room, that one's connection is to be closed.
    Admitted { place: Place, instead_of: Option<Place> },
    /// There is no room.
    Refused,
}

/// The connections at the door. Places are in the order in which they were taken.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    places: BTreeMap<Place, Stranger>,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stranger {
    network: IpAddr,
    is_known: bool,
    since_ms: u64,
}

/// The address that a host has to itself: for IPv6, its network of 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Strangers {
    /// Decides on a connection from an address; `is_known` if it is that of a host of the swarm.
    pub(super) fn come(&mut self, from: IpAddr, is_known: bool, now_ms: u64) -> Verdict {
        let stranger = Stranger { network: network(from), is_known, since_ms: now_ms };
        let instead_of = if self.places.len() < PLACES {
            None
        } else {
            let Some(place) = self.making_room_for(&stranger) else { return Verdict::Refused };
            self.places.remove(&place);
            Some(place)
        };
        self.last += 1;
        let place = Place(self.last);
        self.places.insert(place, stranger);
        Verdict::Admitted { place, instead_of }
    }

    /// Frees the place of a connection whose other end is known, or that is closed.
    pub(super) fn leave(&mut self, place: Place) {
        self.places.remove(&place);
    }

    /// The place that is to be given to a new connection, if any.
    fn making_room_for(&self, comes: &Stranger) -> Option<Place> {
        let mut held: HashMap<IpAddr, usize> = HashMap::new();
        for stranger in self.places.values() {
            *held.entry(stranger.network).or_default() += 1;
        }
        let of = |stranger: &Stranger| held.get(&stranger.network).copied().unwrap_or_default();
        let rank = |(place, stranger): &(&Place, &Stranger)| {
            (!stranger.is_known, of(stranger), std::cmp::Reverse(**place))
        };
        let (place, least) = self.places.iter().max_by_key(rank)?;
        let gives_way = match (least.is_known, comes.is_known) {
            (false, true) => true,
            (true, false) => false,
            _ => of(least) >= of(comes) + 2 || comes.since_ms.saturating_sub(least.since_ms) >= GRACE_MS,
        };
        gives_way.then_some(*place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(host: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, host])
    }

    fn is_admitted(verdict: Verdict) -> bool {
        matches!(verdict, Verdict::Admitted { .. })
    }

    #[test]
    fn one_address_does_not_keep_others_out_nor_itself_for_long() {
        let mut strangers = Strangers::default();
        for at in 0..200 {
            strangers.come(address(66), false, at);
        }
        assert_eq!(strangers.places.len(), PLACES);
        // A connection from another address is admitted at once; one from the same address, once the oldest has had its
        // time.
        assert!(is_admitted(strangers.come(address(1), false, 200)));
        assert!(!is_admitted(strangers.come(address(66), false, 200)));
        assert!(is_admitted(strangers.come(address(66), false, 1 + GRACE_MS)));
        // Connections from the busy address make room, and never the one from the other address.
        assert!(strangers.places.values().any(|stranger| stranger.network == address(1)));
    }

    #[test]
    fn hosts_of_the_swarm_come_first_and_do_not_drive_each_other_out() {
        let mut strangers = Strangers::default();
        for host in 0..64 {
            assert!(is_admitted(strangers.come(address(host), false, 0)));
        }
        for host in 100..164 {
            assert!(is_admitted(strangers.come(address(host), true, 1)));
        }
        assert!(!is_admitted(strangers.come(address(1), false, 10_000)));
        assert!(!is_admitted(strangers.come(address(200), true, 2)));
        assert!(is_admitted(strangers.come(address(200), true, 1 + GRACE_MS)));
    }

    #[test]
    fn networks_of_ipv6_count_as_one_and_mapped_addresses_as_ipv4() {
        let parse = |text: &str| network(text.parse().unwrap());
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:1"));
        assert_ne!(parse("2001:db8:0:1::1"), parse("2001:db8:0:2::1"));
        assert_eq!(parse("::ffff:10.0.0.1"), address(1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn places_of_strangers_are_bounded_and_given_in_order(
            comes in prop::collection::vec((0u8..80, any::<bool>(), 0u64..100, prop::option::of(0usize..64)), 0..600),
        ) {
            let (mut strangers, mut now) = (Strangers::default(), 0);
            for (host, is_known, pause, leaves) in comes {
                now += pause;
                if let Some((place, _)) = leaves.and_then(|at| strangers.places.iter().nth(at)) {
                    let place = *place;
                    strangers.leave(place);
                }
                let before = strangers.places.clone();
                let from_there = before.values().filter(|stranger| stranger.network == address(host)).count();
                let verdict = strangers.come(address(host), is_known, now);
                prop_assert!(strangers.places.len() <= PLACES);
                prop_assert!(before.len() == PLACES || is_admitted(verdict));
                match verdict {
                    Verdict::Admitted { instead_of: Some(place), .. } => {
                        let gone = before[&place];
                        let held = before.values().filter(|stranger| stranger.network == gone.network).count();
                        // No host of the swarm makes room for a stranger, and no connection too early for an equal.
                        prop_assert!(is_known || !gone.is_known);
                        prop_assert!(
                            is_known != gone.is_known || held > from_there + 1 || now - gone.since_ms >= GRACE_MS
                        );
                    }
                    Verdict::Admitted { instead_of: None, .. } => {}
                    // A host of the swarm is refused only for hosts of the swarm.
                    Verdict::Refused => prop_assert!(!is_known || before.values().all(|one| one.is_known)),
                }
            }
        }
    }
}
