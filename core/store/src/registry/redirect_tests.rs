//! Tests of the decisions about addresses.

#![expect(clippy::panic, reason = "tests")]

use super::*;
use crate::http::http_date;
use proptest::prelude::*;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

fn used(decision: Decision) -> (u64, bool) {
    match decision {
        Decision::Use { address, prefetch } => (address.generation, prefetch),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_address_that_tells_its_life_is_swapped_when_it_is_over() {
    let mut route = Route::default();
    assert_eq!(route.decide(seconds(0), None), Decision::Ask);
    route.learn_address(url("https://s/1"), seconds(0), Some(seconds(100)), None);
    assert_eq!(used(route.decide(seconds(79), None)), (1, false));
    assert_eq!(used(route.decide(seconds(80), None)), (1, true));
    route.learn_address(url("https://s/2"), seconds(81), Some(seconds(100)), None);
    assert_eq!(used(route.decide(seconds(99), None)), (1, false), "the old one still lives");
    assert_eq!(used(route.decide(seconds(100), None)), (2, false));
    assert_eq!(route.decide(seconds(500), None), Decision::Ask, "both are over");
}

#[test]
fn a_used_address_is_renewed_without_a_read() {
    let mut route = Route::default();
    let due = route.learn_address(url("https://s/1"), seconds(10), Some(seconds(100)), None);
    assert_eq!(due, Some((1, seconds(90))));
    assert!(!route.is_due(1, seconds(95), None), "nobody used it");
    route.decide(seconds(11), None);
    assert!(route.is_due(1, seconds(90), None) && !route.is_due(1, seconds(89), None));
    assert!(!route.is_due(2, seconds(90), None), "another one");
    route.fail(seconds(90));
    assert!(!route.is_due(1, seconds(91), None), "it failed just now");
    // The next one has to be used itself.
    assert_eq!(route.learn_address(url("https://s/2"), seconds(90), None, None), None, "nothing is known");
    assert!(!route.is_due(1, seconds(95), None), "it is there");
    route.reject(1, seconds(100));
    assert!(!route.is_due(2, seconds(200), Some(seconds(10))), "nobody used it");
    route.decide(seconds(101), None);
    assert!(route.is_due(2, seconds(101), Some(seconds(10))), "the shortest life seen is a life");
    assert_eq!(
        route.learn_address(url("https://s/3"), seconds(102), None, Some(seconds(10))),
        Some((3, seconds(110)))
    );
}

#[test]
fn a_guessed_life_swaps_only_on_a_refusal() {
    let (mut route, seen) = (Route::default(), Some(seconds(100)));
    route.learn_address(url("https://s/1"), seconds(0), None, None);
    assert_eq!(used(route.decide(seconds(90), None)), (1, false), "nothing is known of lives yet");
    assert_eq!(used(route.decide(seconds(90), seen)), (1, true));
    route.learn_address(url("https://s/2"), seconds(90), None, None);
    assert_eq!(used(route.decide(seconds(150), seen)), (1, false), "it works for longer than was guessed");
    assert_eq!(route.reject(1, seconds(160)), Some(seconds(160)));
    assert_eq!(used(route.decide(seconds(160), seen)), (2, false));
    assert_eq!(route.reject(1, seconds(161)), None, "that one is gone already");
    assert_eq!(used(route.decide(seconds(161), seen)), (2, false));
}

#[test]
fn a_next_address_that_grew_old_is_dropped() {
    let (mut route, seen) = (Route::default(), Some(seconds(10)));
    route.learn_address(url("https://s/1"), seconds(0), None, None);
    route.learn_address(url("https://s/2"), seconds(8), None, None);
    assert_eq!(used(route.decide(seconds(17), seen)), (1, false));
    assert_eq!(used(route.decide(seconds(18), seen)), (1, true));
    route.reject(1, seconds(19));
    assert_eq!(route.decide(seconds(19), seen), Decision::Ask);
}

#[test]
fn an_address_that_outlives_the_guess_by_far_is_left_alone() {
    let (mut route, seen) = (Route::default(), Some(seconds(10)));
    route.learn_address(url("https://s/1"), seconds(0), None, None);
    assert_eq!(used(route.decide(seconds(39), seen)), (1, true));
    assert_eq!(used(route.decide(seconds(40), seen)), (1, false));
}

#[test]
fn a_refusal_at_once_teaches_no_life() {
    let mut route = Route::default();
    route.learn_address(url("https://s/1"), seconds(5), None, None);
    assert_eq!(route.reject(1, seconds(5) + LIFE_MIN / 2), None);
    assert_eq!(route.decide(seconds(6), None), Decision::Ask);
}

#[test]
fn a_registry_that_has_the_bytes_may_change_its_mind() {
    let mut route = Route::default();
    route.learn_direct();
    assert_eq!(route.decide(seconds(0), None), Decision::Direct);
    assert_eq!(route.reject(1, seconds(1)), None);
    route.learn_address(url("https://s/1"), seconds(1), None, None);
    assert_eq!(used(route.decide(seconds(1), None)), (1, false));
}

#[test]
fn reads_the_lives_that_storages_sign() {
    let signed = 1_369_353_600; // 2013-05-24T00:00:00Z
    let life = |query: &str, date| {
        life_in_url(&url(&format!("https://s/x?{query}")), date).map(|life| life.as_secs())
    };
    let amazon = "X-Amz-Date=20130524T000000Z&X-Amz-Expires=1200&X-Amz-Signature=aa";
    assert_eq!(life(amazon, Some(signed)), Some(1200));
    assert_eq!(life(amazon, Some(signed + 200)), Some(1000), "signed a while ago, and handed out again");
    assert_eq!(life(amazon, None), Some(1200));
    assert_eq!(life(amazon, Some(signed + 1200)), None, "over already: the clocks disagree");
    assert_eq!(life("X-Goog-Date=20130524T000000Z&X-Goog-Expires=60", Some(signed)), Some(60));
    assert_eq!(life(&format!("Expires={}&Signature=x", signed + 300), Some(signed)), Some(300));
    assert_eq!(life(&format!("Expires={}", signed + 300), None), None, "no clock to compare with");
    assert_eq!(life("sv=2021&se=2013-05-24T00%3A10%3A00Z&sig=x", Some(signed)), Some(600));
    for query in ["", "verify=1", "X-Amz-Expires=-5", "Expires=99999999999999999999", "se=soon", "Expires=0"]
    {
        assert_eq!(life(query, Some(signed)), None, "{query}");
    }
    assert_eq!(http_date("Fri, 24 May 2013 00:00:00 GMT"), Some(signed));
    assert_eq!(http_date("yesterday"), None);
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Learn(Option<u64>),
    Direct,
    /// Refuse the address that a read would use now.
    Refuse,
    /// Refuse an address from before.
    RefuseOld(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..50_u64).prop_map(Step::Wait),
        proptest::option::of(0..100_u64).prop_map(Step::Learn),
        Just(Step::Direct),
        Just(Step::Refuse),
        (0..10_u64).prop_map(Step::RefuseOld),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// Goal: no read is sent to an address that was refused while current, or that is over by its own word;
    /// an address that works is never left before its time; the next one is asked for only near an end.
    /// Method: random histories, checked against the list of all addresses given.
    #[test]
    fn never_gives_an_address_that_is_known_to_be_dead(steps in steps(), seen in proptest::option::of(1..100_u64)) {
        let (mut route, mut now, seen) = (Route::default(), seconds(0), seen.map(seconds));
        let mut given: Vec<(Duration, Option<Duration>, bool)> = Vec::new();
        let mut last: Option<u64> = None;
        for step in steps {
            let before = last;
            match &step {
                Step::Wait(n) => now += seconds(*n),
                Step::Learn(life) => {
                    route.learn_address(url("https://s/x"), now, life.map(seconds), None);
                    given.push((now, life.map(seconds), false));
                }
                Step::Direct => route.learn_direct(),
                Step::Refuse => {
                    if let Some(generation) = last {
                        route.reject(generation, now);
                        given[usize::try_from(generation).unwrap() - 1].2 = true;
                    }
                }
                Step::RefuseOld(generation) => {
                    if last.is_some_and(|last| *generation < last) {
                        prop_assert_eq!(route.reject(*generation, now), None);
                    }
                }
            }
            last = None;
            if let Decision::Use { address, prefetch } = route.decide(now, seen) {
                let (obtained, life, refused) = given[usize::try_from(address.generation).unwrap() - 1];
                prop_assert!(!refused && life.is_none_or(|life| now - obtained < life));
                let expected = life.into_iter().chain(seen).min();
                prop_assert!(!prefetch || expected.is_some_and(|life| now - obtained >= life / 5 * 4));
                if let Some(before) = before {
                    let (obtained, life, refused) = given[usize::try_from(before).unwrap() - 1];
                    let works = !refused && life.is_none_or(|life| now - obtained < life);
                    prop_assert!(!works || address.generation == before || matches!(step, Step::Direct));
                }
                last = Some(address.generation);
            }
        }
    }

    #[test]
    fn any_address_is_survived(query in "\\PC*", date in any::<i64>()) {
        let mut address = url("https://s/x");
        address.set_query(Some(&query));
        let _ = life_in_url(&address, Some(date));
        let _ = http_date(&query);
    }
}
