use super::*;
use crate::VssdId;
use proptest::prelude::*;
use std::sync::Barrier;
use std::time::Duration;

const GRAIN: Grain = Grain { bandwidth: 1, capacity: 10, lasts: Duration::ZERO };

fn offer(bandwidth: u16, capacity: u32, expire: u64) -> Offer {
    Offer { bandwidth, capacity, expire: Time(expire) }
}

fn want(bandwidth: u16, capacity: u32, until: u64) -> Want {
    Want { bandwidth, capacity, until: Time(until) }
}

fn pool(offers: &[Offer]) -> Pool {
    let pool = Pool::new(GRAIN);
    for (id, offer) in (1..).zip(offers) {
        assert!(pool.insert(GssdId(id), *offer));
    }
    pool
}

#[test]
fn the_best_fit_is_no_larger_and_lasts_no_longer_than_it_must() {
    let pool =
        pool(&[offer(4, 80, 90), offer(2, 40, 90), offer(2, 40, 60), offer(1, 40, 90), offer(2, 45, 30)]);
    let found = |bandwidth, capacity, until| pool.find(&want(bandwidth, capacity, until)).map(|id| id.0);
    assert_eq!(found(1, 40, 10), Some(4));
    assert_eq!(found(2, 31, 10), Some(5), "what is less than a grain does not count");
    assert_eq!(found(2, 40, 31), Some(3));
    assert_eq!(found(2, 40, 61), Some(2));
    assert_eq!(found(2, 41, 61), Some(1));
    assert_eq!((found(5, 10, 1), found(1, 81, 1), found(1, 10, 91)), (None, None, None));
    assert!(!pool.insert(GssdId(9), offer(1, 9, 1)) && !pool.insert(GssdId(9), offer(0, 10, 1)));
    assert_eq!(pool.total(Time(61)), (7, 160));
}

#[test]
fn several_are_taken_together_or_none() {
    let pool = pool(&[offer(1, 40, 90), offer(2, 20, 90), offer(1, 10, 90), offer(4, 10, 50)]);
    let taken = |want: Want, most, partial| {
        let taken = pool.take_many(&want, most, partial);
        taken.iter().for_each(|(id, offer)| assert!(pool.insert(*id, *offer)));
        taken.iter().map(|(id, _)| id.0).collect::<Vec<_>>()
    };
    assert_eq!(taken(want(1, 50, 90), 9, false), [1, 3], "the largest, and what fits the rest");
    assert_eq!(taken(want(4, 70, 90), 9, false), [1, 2, 3]);
    assert_eq!(taken(want(5, 70, 90), 9, false), [0; 0]);
    assert_eq!(taken(want(5, 70, 90), 9, true), [1, 2, 3]);
    assert_eq!(taken(want(4, 70, 90), 2, false), [0; 0]);
    assert_eq!(taken(want(4, 70, 90), 2, true), [1, 2]);
    assert_eq!(taken(want(5, 10, 50), 9, false), [4, 3], "not the largest where bandwidth is what lacks");
    assert_eq!(taken(want(0, 0, 0), 9, true), [0; 0]);
    assert_eq!(pool.len(), 4);
}

/// Every request takes one, 10,000 at once: none is given twice, none is lost.
#[test]
fn ten_thousand_requests_at_once_get_each_their_own() {
    const REQUESTS: usize = 10_000;
    const THREADS: usize = 100;
    let pool = Pool::new(GRAIN);
    let spare = 100;
    for id in 0..(REQUESTS + spare) as u64 {
        let (bandwidth, units) = (u16::try_from(1 + id % 8).unwrap(), u32::try_from(1 + id % 50).unwrap());
        assert!(pool.insert(GssdId(id), offer(bandwidth, units * 10, 100 + id % 10)));
    }
    let begin = Barrier::new(THREADS);
    let mut taken: Vec<GssdId> = std::thread::scope(|scope| {
        let work = |thread: usize| {
            let (pool, begin) = (&pool, &begin);
            move || {
                begin.wait();
                let mut mine = Vec::new();
                for request in 0..REQUESTS / THREADS {
                    // Some give their gSSDs back and ask again; some ask for more than one, all or none.
                    if request % 7 == 0 {
                        for (id, offer) in pool.take_many(&want(1, 700, 100), 9, false) {
                            assert!(pool.insert(id, offer));
                        }
                    }
                    if request % 5 == 0
                        && let Some(id) = pool.find(&want(1, 10, 100))
                    {
                        pool.redate(id, Time(100 + thread as u64 % 10));
                    }
                    mine.push(pool.take(&want(1, 10, 100)).expect("there are enough"));
                }
                mine
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!((taken.len(), pool.len()), (REQUESTS, spare));
    while let Some(id) = pool.take(&want(0, 0, 0)) {
        taken.push(id);
    }
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), REQUESTS + spare);
    assert_eq!(pool.total(Time(0)), (0, 0));
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, Offer),
    Remove(u64),
    Redate(u64, u64),
    Take(Want),
    TakeMany(Want, usize, bool),
    Expired(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let offers =
        (0_u16..5, 0_u32..60, 0_u64..8).prop_map(|(bandwidth, capacity, at)| offer(bandwidth, capacity, at));
    let wants =
        (0_u16..6, 0_u32..70, 0_u64..8).prop_map(|(bandwidth, capacity, at)| want(bandwidth, capacity, at));
    let op = prop_oneof![
        4 => (0_u64..30, offers).prop_map(|(id, offer)| Op::Insert(id, offer)),
        1 => (0_u64..30).prop_map(Op::Remove),
        1 => (0_u64..30, 0_u64..8).prop_map(|(id, expire)| Op::Redate(id, expire)),
        2 => wants.clone().prop_map(Op::Take),
        1 => (wants, 0_usize..5, any::<bool>()).prop_map(|(want, most, partial)| Op::TakeMany(want, most, partial)),
        1 => (0_u64..8).prop_map(Op::Expired),
    ];
    prop::collection::vec(op, 1..80)
}

/// The plain pool: all are looked at.
fn best(model: &BTreeMap<GssdId, Offer>, want: &Want) -> Option<GssdId> {
    let units = |capacity: u32| capacity / 10;
    let fits = |offer: &Offer| {
        units(offer.capacity) >= want.capacity.div_ceil(10)
            && offer.bandwidth >= want.bandwidth
            && offer.expire >= want.until
    };
    let fitting = model.iter().filter(|(_, offer)| fits(offer));
    let order = |(id, offer): &(&GssdId, &Offer)| {
        (units(offer.capacity), offer.bandwidth, offer.expire, Reverse(**id))
    };
    fitting.min_by_key(order).map(|(id, _)| *id)
}

proptest! {
    #[test]
    fn the_pool_finds_what_an_exhaustive_search_finds(ops in ops()) {
        let (pool, mut model) = (Pool::new(GRAIN), BTreeMap::new());
        for op in ops {
            match op {
                Op::Insert(id, offer) => {
                    let large = offer.bandwidth > 0 && offer.capacity >= 10;
                    prop_assert_eq!(pool.insert(GssdId(id), offer), large);
                    if large {
                        model.insert(GssdId(id), offer);
                    }
                }
                Op::Remove(id) => prop_assert_eq!(pool.remove(GssdId(id)), model.remove(&GssdId(id))),
                Op::Redate(id, expire) => {
                    let known = model.get_mut(&GssdId(id)).map(|offer| offer.expire = Time(expire));
                    prop_assert_eq!(pool.redate(GssdId(id), Time(expire)), known.is_some());
                }
                Op::Take(want) => {
                    let best = best(&model, &want);
                    prop_assert_eq!(pool.find(&want), best);
                    prop_assert_eq!(pool.take(&want), best);
                    best.and_then(|id| model.remove(&id));
                }
                Op::TakeMany(want, most, partial) => {
                    let one = best(&model, &want);
                    let taken = pool.take_many(&want, most, partial);
                    let sum = taken.iter().fold((0, 0), |sum, (id, offer)| {
                        assert_eq!(model.remove(id), Some(*offer));
                        assert!(offer.expire >= want.until);
                        (sum.0 + offer.bandwidth, sum.1 + offer.capacity / 10)
                    });
                    let enough = sum.0 >= want.bandwidth && sum.1 >= want.capacity.div_ceil(10);
                    prop_assert!(taken.len() <= most && (partial || enough || taken.is_empty()));
                    if let Some(one) = one.filter(|_| most > 0 && (want.bandwidth > 0 || want.capacity > 0)) {
                        prop_assert_eq!(&taken.iter().map(|(id, _)| *id).collect::<Vec<_>>(), &[one]);
                    }
                }
                Op::Expired(now) => {
                    let mut expired = pool.expired(Time(now));
                    expired.sort_unstable();
                    let all = model.iter().filter(|(_, offer)| offer.expire <= Time(now));
                    prop_assert_eq!(expired, all.map(|(id, _)| *id).collect::<Vec<_>>());
                }
            }
            prop_assert_eq!(pool.len(), model.len());
            let total = model.values().fold((0, 0), |sum, offer| {
                (sum.0 + u64::from(offer.bandwidth), sum.1 + u64::from(offer.capacity / 10 * 10))
            });
            prop_assert_eq!(pool.total(Time(0)), total);
        }
    }
}

#[test]
fn an_offer_is_what_a_gssd_has() {
    let gssd = Gssd {
        bandwidth: 2,
        capacity: 30,
        expire: Time(5),
        in_use: false,
        vm_id: None,
        lender: VssdId(1),
        borrower: None,
    };
    assert_eq!(Offer::from(&gssd), offer(2, 30, 5));
}
