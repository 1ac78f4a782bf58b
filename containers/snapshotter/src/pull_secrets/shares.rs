//! Shares: what stays where there is no room for all credentials. Pure.
//!
//! Users choose the registries that they pull from, and may have one of their own that accepts whatever it is shown.
//! Its credentials must not take the room of others'. So the oldest ones of the host that has most give way, and the
//! newest ones of all always stay.

use headstart_store::{PullCredential, owner_of};
use std::collections::BTreeMap;

/// The weight of the credentials of one repository at least: it bounds their number.
pub(super) const WEIGHT_LEAST: u64 = 4 << 10;

/// An entry by what decides whether it stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The owner of the registry: of all of its ports, and of all names below a domain.
    pub(super) host: String,
    /// Its place in time: an older entry has a smaller one.
    pub(super) age: u64,
    pub(super) weight: u64,
}

impl Entry {
    /// The entry of a repository's credentials.
    pub(super) fn of(repository: &str, credential: &PullCredential, age: u64) -> Self {
        let host = repository.split('/').next().unwrap_or_default();
        let len = |json: Result<String, _>| json.map_or(WEIGHT_LEAST, |json| json.len() as u64);
        // With the signs between them.
        let weight = len(serde_json::to_string(credential)) + len(serde_json::to_string(repository)) + 4;
        Self { host: owner_of(host), age, weight: weight.max(WEIGHT_LEAST) }
    }
}

/// The places of the entries that go so that the others weigh `most` together. The last entry always stays.
pub(super) fn beyond(entries: &[Entry], most: u64) -> Vec<usize> {
    // Of each host its weight, and the places of its entries, the oldest last.
    let mut hosts = BTreeMap::<&str, (u64, Vec<usize>)>::new();
    let mut in_time: Vec<_> = (0..entries.len()).collect();
    in_time.sort_by_key(|at| std::cmp::Reverse((entries[*at].age, *at)));
    let last = entries.len().saturating_sub(1);
    for at in in_time {
        let (weight, places) = hosts.entry(&entries[at].host).or_default();
        *weight += entries[at].weight;
        if at != last {
            places.push(at);
        }
    }
    let mut weight: u64 = entries.iter().map(|entry| entry.weight).sum();
    let mut gone = Vec::new();
    while weight > most {
        // Of several the one whose oldest entry is the oldest.
        let heaviest = hosts.values_mut().filter(|(_, places)| !places.is_empty());
        let heaviest = heaviest.max_by_key(|(weight, places)| {
            (*weight, std::cmp::Reverse(places.last().map(|at| (entries[*at].age, *at))))
        });
        let Some((of_host, places)) = heaviest else { break };
        let Some(at) = places.pop() else { break };
        *of_host -= entries[at].weight;
        weight -= entries[at].weight;
        gone.push(at);
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn entry(host: u8, age: u64, weight: u64) -> Entry {
        Entry { host: format!("h{host}"), age, weight }
    }

    #[test]
    fn the_oldest_of_the_host_that_has_most_go_and_the_last_one_stays() {
        let all = [entry(1, 5, 10), entry(1, 3, 10), entry(1, 4, 10), entry(2, 1, 20), entry(2, 2, 5)];
        assert_eq!(beyond(&all, 55), Vec::<usize>::new());
        assert_eq!(beyond(&all, 54), [1]);
        assert_eq!(beyond(&all, 44), [1, 3]);
        assert_eq!(beyond(&all, 1), [1, 3, 2, 0]);
        assert_eq!(beyond(&[entry(1, 0, 100)], 1), Vec::<usize>::new());
        assert_eq!(beyond(&[], 0), Vec::<usize>::new());
    }

    #[test]
    fn an_owner_has_one_share_at_all_ports_and_names() {
        let credential = |password: &str| PullCredential {
            username: "u".into(),
            password: password.into(),
            identity_token: String::new(),
            until: 1,
        };
        let of = |repository: &str| Entry::of(repository, &credential("p"), 1).host;
        for (repository, host) in [
            ("reg.lan/a", "reg.lan"),
            ("Reg.lan:5000/a/b", "reg.lan"),
            ("a.evil.example/a", "evil.example"),
            ("b.evil.example:5000/a", "evil.example"),
            ("[2001:db8::1]:5000/a", "2001:db8:0:0::/64"),
            ("docker.io/library/a", "docker.io"),
        ] {
            assert_eq!(of(repository), host, "{repository}");
        }
        assert_eq!(Entry::of("reg.lan/a", &credential("p"), 1).weight, WEIGHT_LEAST);
        assert!(Entry::of("reg.lan/a", &credential(&"\"".repeat(8 << 10)), 1).weight > 16 << 10);
    }

    proptest! {
        #[test]
        fn a_host_with_less_than_its_share_loses_nothing(
            all in prop::collection::vec((0..4u8, 0..50u64, 1..20u64), 0..40),
            most in 0..400u64,
        ) {
            let all: Vec<_> = all.into_iter().map(|(host, age, weight)| entry(host, age, weight)).collect();
            let gone: BTreeSet<_> = beyond(&all, most).into_iter().collect();
            let stays = |at: &usize| !gone.contains(at);
            let left: u64 = (0..all.len()).filter(stays).map(|at| all[at].weight).sum();
            prop_assert!(left <= most || gone.len() + 1 == all.len());
            prop_assert!(all.is_empty() || stays(&(all.len() - 1)));
            let largest = all.iter().map(|entry| entry.weight).max().unwrap_or(0);
            let hosts: BTreeSet<_> = all.iter().map(|entry| &entry.host).collect();
            for host in &hosts {
                let of_host: Vec<_> = (0..all.len()).filter(|at| all[*at].host == **host).collect();
                let weight: u64 = of_host.iter().map(|at| all[*at].weight).sum();
                if weight * hosts.len() as u64 + largest <= most {
                    prop_assert!(of_host.iter().all(stays), "{} has little", host);
                }
                let oldest_left = of_host.iter().filter(|at| stays(at) && **at + 1 != all.len());
                let oldest_left = oldest_left.map(|at| all[*at].age).min().unwrap_or(u64::MAX);
                prop_assert!(of_host.iter().filter(|at| !stays(at)).all(|at| all[*at].age <= oldest_left));
            }
        }
    }
}
