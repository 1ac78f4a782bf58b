//! Each rule by itself, and properties for any boot and any link.

use super::*;
use headstart_block::PlanItem;
use headstart_plan::zero_shot::ChoiceReason;
use headstart_plan::{Centroid, GroupPlans};
use proptest::prelude::*;

const MB: u64 = 1_000_000;

/// Groups with these centroids, each with plans for these MB/s: of one item, that names group and rate.
fn plans(centroids: &[Vec<u64>], rates: &[u64]) -> Arc<ImagePlans> {
    let group = |(group, order): (u64, &Vec<u64>)| GroupPlans {
        category: 0,
        entrypoint: String::new(),
        traces: 10,
        centroid: Centroid { order: order.clone() },
        plans: rates.iter().map(|rate| rated(group, *rate)).collect(),
        first_reads: Arc::default(),
    };
    Arc::new(ImagePlans { reason: ChoiceReason::Trained, groups: (0..).zip(centroids).map(group).collect() })
}

fn rated(group: u64, rate: u64) -> RatedPlan {
    let items = [PlanItem::whole(group * 1000 + rate)].to_vec().into();
    RatedPlan { rate: rate * MB, policy: "search".to_owned(), weights: None, score: 0.0, items }
}

fn followed(switcher: &Switcher) -> u64 {
    switcher.current().map(|plan| plan.items[0].block).unwrap()
}

/// The common beginning of all boots, then two services in either order.
fn two_orders() -> [Vec<u64>; 2] {
    let (one, other): (Vec<u64>, Vec<u64>) = ((100..160).collect(), (200..260).collect());
    let common: Vec<u64> = (0..60).collect();
    [[&common[..], &one, &other].concat(), [&common[..], &other, &one].concat()]
}

#[test]
fn the_switcher_selects_the_group_whose_order_the_boot_follows() {
    let orders = two_orders();
    let mut switcher = Switcher::new(plans(&orders, &[2, 10]), Some(3 * MB));
    let mut switched = Vec::new();
    for (read, block) in orders[1].iter().enumerate() {
        // Reading a block again says nothing.
        let again = switcher.on_access(orders[1][read / 2]);
        assert!(again.is_none() || read == 0);
        if switcher.on_access(*block).is_some() {
            switched.push(read);
        }
    }
    assert_eq!(switched.len(), 1, "{switched:?}");
    assert!((60..76).contains(&switched[0]), "soon after the services begin: {switched:?}");
    assert_eq!((followed(&switcher), switcher.group()), (1002, 1));
    assert_eq!(switcher.switches(), Switches { groups: 1, bins: 0 });
    assert_eq!(switcher.correlation(1), Some(1.0));
    assert_eq!(switcher.correlation(2), None);
}

#[test]
fn a_boot_that_is_like_none_stays() {
    let mut switcher = Switcher::new(plans(&two_orders(), &[2]), None);
    assert!((1000..1300).all(|block| switcher.on_access(block).is_none()));
    assert!(switcher.correlation(0).is_some_and(|alike| alike < 0.0));
}

#[test]
fn the_switcher_follows_the_link_but_not_its_noise() {
    let mut switcher = Switcher::new(plans(&[vec![]], &[2, 4, 8, 30]), Some(5 * MB));
    assert_eq!(followed(&switcher), 4);
    let mut at = |millis: u64, rate: u64| {
        switcher.on_estimate(Time(millis * 1000), rate * MB / 10).map(|_| followed(&switcher))
    };
    assert_eq!([at(0, 85), at(5000, 80), at(9000, 36)], [None; 3], "near the edges");
    assert_eq!(
        [at(10_000, 120), at(10_400, 120), at(10_450, 60), at(10_600, 120)],
        [None; 4],
        "for a moment"
    );
    assert_eq!([at(11_000, 120), at(11_100, 120)], [None, Some(8)]);
    assert_eq!([at(12_000, 20), at(12_600, 20)], [None, Some(2)], "as far as it goes");
    assert_eq!([at(13_000, 5), at(13_600, 5)], [None; 2], "what is below the slowest is its");
    assert_eq!([at(14_000, 9000), at(14_600, 9000)], [None, Some(30)]);
    assert_eq!(switcher.switches(), Switches { groups: 0, bins: 3 });
}

#[test]
fn the_first_bandwidth_estimate_selects_a_plan_at_once() {
    let mut switcher = Switcher::new(plans(&[vec![]], &[2, 4, 8]), None);
    assert_eq!(followed(&switcher), 2);
    assert!(switcher.on_estimate(Time(5), 9 * MB).is_some());
    assert_eq!(followed(&switcher), 8);
}

#[test]
fn an_image_without_plans_is_lazy() {
    let none = Arc::new(ImagePlans { reason: ChoiceReason::None, groups: Vec::new() });
    let mut switcher = Switcher::new(none, Some(MB));
    assert_eq!(switcher.plan(), Plan::Lazy);
    assert!(switcher.on_access(7).is_none() && switcher.on_estimate(Time(0), MB).is_none());
    let hollow = plans(&[vec![1], vec![2]], &[]);
    let mut switcher = Switcher::new(hollow, None);
    assert!((0..100).all(|block| switcher.on_access(block).is_none()));
    assert_eq!(switcher.plan(), Plan::Lazy);
}

/// The correlation of the module's head, with vectors written out.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn plainly(boot: &[u64], centroid: &[u64]) -> f64 {
    let seen = boot.len();
    let place = |order: &[u64], block: u64| order.iter().take(seen).position(|other| *other == block);
    let value = |order: &[u64], block| place(order, block).map_or(0.0, |place| (seen - place) as f64);
    let mut named: Vec<_> = boot.iter().chain(centroid.iter().take(seen)).copied().collect();
    named.sort_unstable();
    named.dedup();
    let pairs: Vec<_> = named.iter().map(|block| (value(boot, *block), value(centroid, *block))).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / pairs.len() as f64;
    let (x, y) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let product: f64 = pairs.iter().map(|pair| (pair.0 - x) * (pair.1 - y)).sum();
    let spread = |of: fn(&(f64, f64)) -> f64, mean: f64| {
        pairs.iter().map(|pair| (of(pair) - mean).powi(2)).sum::<f64>()
    };
    let spreads = spread(|pair| pair.0, x) * spread(|pair| pair.1, y);
    if spreads > 1e-9 {
        product / spreads.sqrt()
    } else {
        f64::from(u8::from(pairs.iter().all(|p| p.0 == p.1)))
    }
}

fn an_order() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0_u64..120, 0..150).prop_map(|blocks| {
        let mut known = BTreeSet::new();
        blocks.into_iter().filter(|block| known.insert(*block)).collect()
    })
}

proptest! {
    #[test]
    fn correlations_equal_those_of_full_vectors(
        boot in an_order(), centroids in prop::collection::vec(an_order(), 2..5),
    ) {
        let mut switcher = Switcher::new(plans(&centroids, &[2]), None);
        for seen in 1..=boot.len() {
            switcher.on_access(boot[seen - 1]);
            for (group, centroid) in centroids.iter().enumerate() {
                let (found, wanted) = (switcher.correlation(group).unwrap(), plainly(&boot[..seen], centroid));
                prop_assert!((found - wanted).abs() < 1e-9, "{} {} after {}", found, wanted, seen);
            }
        }
    }

    /// With any reads: the same every time, never more switches than blocks allow, never to the present plan.
    #[test]
    fn switches_are_bounded_and_the_same_every_time(
        reads in prop::collection::vec(0_u64..150, 0..600), centroids in prop::collection::vec(an_order(), 0..5),
    ) {
        let plans = plans(&centroids, &[2, 10]);
        let run = || {
            let (mut switcher, mut groups) = (Switcher::new(Arc::clone(&plans), Some(MB)), vec![0]);
            for block in &reads {
                if switcher.on_access(*block).is_some() {
                    groups.push(switcher.group());
                }
            }
            groups
        };
        let groups = run();
        prop_assert_eq!(&groups, &run());
        prop_assert!(groups.windows(2).all(|pair| pair[0] != pair[1]), "{:?}", groups);
        let distinct = reads.iter().collect::<BTreeSet<_>>().len();
        prop_assert!((groups.len() - 1) * SETTLED as usize <= distinct + SETTLED as usize);
    }

    /// A boot like its group's centroid, give or take the order of neighbours, never leaves it.
    #[test]
    fn a_boot_of_the_group_stays(
        swaps in prop::collection::vec((0_usize..100, 1_usize..4), 0..30),
        centroid in Just((0..120).collect::<Vec<u64>>()).prop_shuffle(), other in an_order(),
    ) {
        let mut boot = centroid.clone();
        for (at, by) in swaps {
            boot.swap(at, at + by);
        }
        let mut switcher = Switcher::new(plans(&[centroid, other], &[2]), None);
        prop_assert!(boot.iter().all(|block| switcher.on_access(*block).is_none()));
    }

    /// A link that does not change makes one switch at most, and so does one that wavers by less than a tenth.
    #[test]
    fn a_steady_link_does_not_flap(
        first in prop::option::of(0_u64..100), rate in 1_u64..100_000,
        waver in prop::collection::vec(0_u64..100, 1..100),
        rates in prop::collection::btree_set(1_u64..100, 1..8),
    ) {
        let rates: Vec<_> = rates.into_iter().collect();
        let mut switcher = Switcher::new(plans(&[vec![]], &rates), first.map(|rate| rate * MB));
        for (now, waver) in (0..).zip(waver) {
            switcher.on_estimate(Time(now * 200_000), rate * (1000 + waver));
        }
        prop_assert!(switcher.switches().bins <= 1, "{:?}", switcher.switches());
    }

    /// Millions of blocks take no more memory than thousands.
    #[test]
    fn memory_is_bounded(step in 1_u64..1000) {
        let mut switcher = Switcher::new(plans(&two_orders(), &[2]), None);
        (0..10_000_u64).for_each(|block| drop(switcher.on_access(block * step)));
        prop_assert!(switcher.boot.seen <= SEEN_MAX && switcher.boot.strangers.len() <= SEEN_MAX as usize);
    }
}
