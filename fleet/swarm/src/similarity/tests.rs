//! Sketches against the sets that they stand for.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn sketch(reads: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut recent = RecentReads::new(1 << 20);
    reads.into_iter().for_each(|chunk| recent.read(chunk));
    recent.sketch()
}

fn jaccard(one: &BTreeSet<u32>, other: &BTreeSet<u32>) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let ratio = |a: usize, b: usize| if b == 0 { 0.0 } else { a as f32 / b as f32 };
    ratio(one.intersection(other).count(), one.union(other).count())
}

proptest! {
    /// The estimate is within four standard errors of the truth.
    #[test]
    fn sketches_estimate_what_is_common(from in 0_u32..1000, len in 20_u32..3000, shift in 0_u32..3000) {
        let (one, other): (BTreeSet<_>, BTreeSet<_>) =
            ((from..from + len).collect(), (from + shift..from + shift + len).collect());
        let (estimate, truth) = (alike(&sketch(one.clone()), &sketch(other.clone())), jaccard(&one, &other));
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let parts = PARTS.min(one.union(&other).count() / 3) as f32;
        let error = (truth * (1.0 - truth) / parts).sqrt();
        prop_assert!((estimate - truth).abs() <= 4.0 * error + 0.01, "{estimate} for {truth}");
    }

    #[test]
    fn hostile_sketches_do_no_harm(hostile in prop::collection::vec(any::<u32>(), 0..100), score: f32) {
        let mine = sketch(0..100);
        prop_assert!((0.0..=1.0).contains(&alike(&mine, &hostile)));
        let mut ranking = Ranking::new(3);
        ranking.on_sketch(PeerKey(1), BlobId(1), score);
        prop_assert!((0.0..=1.0).contains(&ranking.score(PeerKey(1))));
    }

    /// The ranking against all that was reported, if there is room for all.
    #[test]
    fn the_ranking_is_by_the_sum(
        heard in prop::collection::vec((0_u64..6, 0_u32..3, 0_u8..=10), 0..60),
        count in 0_usize..8,
        present in prop::collection::vec(0_u64..6, 0..3),
    ) {
        let mut ranking = Ranking::new(6);
        let mut plain = std::collections::BTreeMap::new();
        for (host, blob, tenths) in heard {
            let alike = f32::from(tenths) / 10.0;
            ranking.on_sketch(PeerKey(host), BlobId(blob), alike);
            plain.insert((host, blob), alike);
        }
        let total = |host: u64| plain.iter().filter(|((h, _), _)| *h == host).map(|(_, a)| *a).sum::<f32>();
        let present: Vec<_> = present.into_iter().map(PeerKey).collect();
        let score = |host: u64| total(host) * if present.contains(&PeerKey(host)) { 1.2 } else { 1.0 };
        let best = ranking.best(&present, count);
        let good = (0..6).filter(|host| total(*host) > 0.0).count();
        prop_assert_eq!(best.len(), count.min(good));
        let worst = best.iter().map(|key| score(key.0)).fold(f32::INFINITY, f32::min);
        for host in (0..6).filter(|host| !best.contains(&PeerKey(*host))) {
            prop_assert!(best.len() < good.min(count) || score(host) <= worst + 0.001 || count == 0);
        }
        prop_assert!(best.windows(2).all(|two| score(two[0].0) + 0.001 >= score(two[1].0)));
    }
}

#[test]
fn old_reads_are_forgotten() {
    let mut recent = RecentReads::new(200);
    assert!(recent.is_empty());
    (0..1000).for_each(|chunk| recent.read(chunk));
    assert!(!recent.is_empty());
    let now = recent.sketch();
    assert!(alike(&now, &sketch(900..1000)) > 0.8, "{}", alike(&now, &sketch(900..1000)));
    assert!(alike(&now, &sketch(0..700)) == 0.0);
    assert_eq!((now.len(), alike(&now, &now)), (PARTS, 1.0));
    assert!(alike(&sketch([]), &sketch([])) == 0.0);
}

#[test]
fn neighbours_stay_unless_others_are_better() {
    let [a, b, c] = [1, 2, 3].map(PeerKey);
    let mut ranking = Ranking::new(10);
    for (host, alike) in [(a, 0.5), (b, 0.55), (c, 0.0)] {
        ranking.on_sketch(host, BlobId(1), alike);
    }
    assert_eq!(ranking.best(&[a], 1), [a]);
    assert_eq!(ranking.best(&[], 1), [b]);
    ranking.on_sketch(b, BlobId(1), 0.7);
    assert_eq!(ranking.best(&[a], 1), [b]);
    assert_eq!(ranking.best(&[a], 3), [b, a]);
    ranking.forget(b);
    assert_eq!(ranking.best(&[], 3), [a]);
    ranking.forget_blob(BlobId(1));
    assert_eq!(ranking.best(&[], 3), []);
}

#[test]
fn the_least_alike_makes_room() {
    let mut ranking = Ranking::new(2);
    for (host, alike) in [(1, 0.5), (2, 0.1), (3, 0.9), (4, 0.05)] {
        ranking.on_sketch(PeerKey(host), BlobId(1), alike);
    }
    assert_eq!(ranking.best(&[], 9), [PeerKey(3), PeerKey(1)]);
}
