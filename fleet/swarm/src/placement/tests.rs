//! Placement against its plain definition.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn keys(of: &BTreeSet<u64>) -> Vec<PeerKey> {
    of.iter().copied().map(PeerKey).collect()
}

fn fetchers(of: &[PeerKey]) -> DesignatedFetchers {
    let mut fetchers = DesignatedFetchers::new();
    of.iter().for_each(|key| assert!(fetchers.insert(*key) && !fetchers.insert(*key)));
    fetchers
}

fn hosts(least: usize, most: usize) -> impl Strategy<Value = BTreeSet<u64>> {
    prop::collection::btree_set(any::<u64>(), least..=most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// A host that goes leaves its stripes to their successors, and no other stripe moves.
    #[test]
    fn homes_move_only_with_their_host(all in hosts(1, 40), blob: u64, gone: prop::sample::Index) {
        let (all, blob) = (keys(&all), BlobKey(blob));
        let gone = all[gone.index(all.len())];
        let before = fetchers(&all);
        let mut after = before.clone();
        let mut known = BlobFetchers::new(blob);
        for stripe in 0..64 {
            prop_assert_eq!(known.fetcher(&before, stripe), before.fetcher(blob, stripe));
        }
        prop_assert!(after.remove(gone) && !after.remove(gone));
        for stripe in 0..64 {
            let order = before.successors(blob, stripe, 3);
            prop_assert_eq!(order.first().copied(), before.fetcher(blob, stripe));
            prop_assert_eq!(order.len(), all.len().min(3));
            let expected = order.into_iter().find(|key| *key != gone);
            prop_assert_eq!(after.fetcher(blob, stripe), expected);
            prop_assert_eq!(known.fetcher(&after, stripe), expected);
        }
    }

    /// Each host has as many neighbours as it should, itself not among them, and each host reaches all.
    #[test]
    fn drawn_neighbours_connect_all(all in hosts(1, 60), count in 1_usize..7, seed: u64) {
        let all = keys(&all);
        let of: BTreeMap<_, _> = all.iter().map(|key| (*key, drawn(*key, &all, count, seed))).collect();
        for (key, neighbours) in &of {
            let different: BTreeSet<_> = neighbours.iter().collect();
            prop_assert_eq!(different.len(), count.min(all.len() - 1));
            prop_assert!(neighbours.len() == different.len() && !neighbours.contains(key));
        }
        let (mut reached, mut new) = (BTreeSet::from([all[0]]), vec![all[0]]);
        while let Some(key) = new.pop() {
            new.extend(of[&key].iter().filter(|neighbour| reached.insert(**neighbour)));
        }
        prop_assert_eq!(reached.len(), all.len());
    }

    #[test]
    fn ring_neighbours_are_the_adjacent_hosts(all in hosts(1, 30)) {
        let all = keys(&all);
        for (place, key) in all.iter().enumerate() {
            let beside = [1, all.len() - 1].map(|step| all[(place + step) % all.len()]);
            let expected: BTreeSet<_> = beside.into_iter().filter(|other| other != key).collect();
            let ring = ring(*key, &all);
            prop_assert_eq!(ring.len(), expected.len());
            prop_assert_eq!(ring.into_iter().collect::<BTreeSet<_>>(), expected);
        }
    }

    #[test]
    fn every_host_of_a_tree_but_the_root_has_one_parent(
        roots in hosts(0, 5), agents in hosts(1, 40), arity in 1_u32..5,
    ) {
        let agents: BTreeSet<_> = agents.difference(&roots).copied().collect();
        let (roots, agents) = (keys(&roots), keys(&agents));
        let all: Vec<_> = roots.iter().chain(&agents).copied().collect();
        for (place, key) in all.iter().enumerate() {
            let above = place.checked_sub(1).map(|place| all[place / arity as usize]);
            prop_assert_eq!(parent(*key, &roots, &agents, arity), above);
            for child in children(*key, &roots, &agents, arity) {
                prop_assert_eq!(parent(child, &roots, &agents, arity), Some(*key));
            }
        }
        let below: usize = all.iter().map(|key| children(*key, &roots, &agents, arity).len()).sum();
        prop_assert_eq!(below + 1, all.len().max(1));
    }

    /// Every chunk is kept by as many hosts as it should be, and all functions agree on which.
    #[test]
    fn pinned_blobs_are_kept(all in hosts(1, 12), copies in 0_u32..5, stripe in 0_u32..5, chunks in 0_u32..200) {
        let all = keys(&all);
        let mut kept = vec![Vec::new(); chunks as usize];
        for place in 0..all.len() {
            for run in held(place, all.len(), copies, stripe, chunks) {
                run.numbers().for_each(|chunk| kept[chunk as usize].push(all[place]));
            }
        }
        for (chunk, mut kept) in (0_u32..).zip(kept) {
            let mut expected: Vec<_> = holders(&all, copies, stripe_of(chunk, stripe)).collect();
            prop_assert_eq!(expected.len(), (copies.max(1) as usize).min(all.len()));
            expected.sort_unstable();
            kept.sort_unstable();
            prop_assert_eq!(kept, expected);
        }
    }

    #[test]
    fn roots_are_tried_in_an_order_that_stays(roots in hosts(1, 20), me: u64, seed: u64, gone: prop::sample::Index) {
        let roots = keys(&roots);
        let order = roots_for(PeerKey(me), &roots, seed);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, roots.iter().copied().filter(|root| root.0 != me).collect::<Vec<_>>());
        let gone = roots[gone.index(roots.len())];
        let rest: Vec<_> = roots.iter().copied().filter(|root| *root != gone).collect();
        let expected: Vec<_> = order.into_iter().filter(|root| *root != gone).collect();
        prop_assert_eq!(roots_for(PeerKey(me), &rest, seed), expected);
    }
}

#[test]
fn a_place_beyond_the_last_holder_keeps_no_stripe() {
    for number in 0..6 {
        assert!((0..3).all(|place| holds(place, 3, 3, number)), "all three keep all");
        assert!((3..9).all(|place| !holds(place, 3, 3, number)));
    }
}

fn numbered(count: u64) -> Vec<PeerKey> {
    let mut keys: Vec<_> = (0..count).map(|n| PeerKey(random::mix(n + 1))).collect();
    keys.sort_unstable();
    keys
}

/// The ratio of the largest count to the mean.
fn busiest(counts: impl Iterator<Item = usize>) -> f64 {
    let counts: Vec<_> = counts.collect();
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let ratio = |most: usize, all: usize| most as f64 * counts.len() as f64 / all as f64;
    ratio(counts.iter().copied().max().unwrap(), counts.iter().sum())
}

#[test]
fn homes_are_spread_evenly() {
    let all = numbered(24);
    let fetchers = fetchers(&all);
    let mut counts: BTreeMap<_, usize> = all.iter().map(|key| (*key, 0)).collect();
    for blob in 0..4 {
        (0..6000).for_each(|stripe| {
            *counts.get_mut(&fetchers.fetcher(BlobKey(blob), stripe).unwrap()).unwrap() += 1;
        });
    }
    let busiest = busiest(counts.into_values());
    assert!(busiest < 1.1, "{busiest}");
    assert_eq!(DesignatedFetchers::new().fetcher(BlobKey(1), 1), None);
    assert_eq!(BlobFetchers::new(BlobKey(1)).fetcher(&DesignatedFetchers::new(), 1), None);
}

/// With rings, each host is heard by about as many others, not only on average.
#[test]
fn neighbours_are_drawn_evenly() {
    let all = numbered(500);
    let mut heard: BTreeMap<_, usize> = BTreeMap::new();
    for key in &all {
        drawn(*key, &all, 4, 9).into_iter().for_each(|neighbour| *heard.entry(neighbour).or_default() += 1);
    }
    assert!(heard.len() == 500 && heard.values().all(|count| (3..=5).contains(count)));
    // At most twelve hops, where a ring would take 250.
    let (mut reached, mut hops) = (BTreeSet::from([all[0]]), 0);
    while reached.len() < all.len() {
        let next: Vec<_> = reached.iter().flat_map(|key| drawn(*key, &all, 4, 9)).collect();
        reached.extend(next);
        hops += 1;
    }
    assert!(hops <= 12, "{hops}");
}

/// All roots come first about equally often.
#[test]
fn first_roots_are_spread() {
    let (roots, mut counts) = (numbered(8), BTreeMap::<_, usize>::new());
    for agent in 0..4000 {
        *counts.entry(roots_for(PeerKey(random::mix(agent)), &roots, 1)[0]).or_default() += 1;
    }
    let busiest = busiest(counts.into_values());
    assert!(busiest < 1.15, "{busiest}");
    assert_eq!((agents_max(24, 4, None), agents_max(24, 4, Some(3)), agents_max(0, 0, None)), (12, 3, 1));
}
