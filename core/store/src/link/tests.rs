//! The link on virtual time: turns, time-outs, second requests, and exactly the bytes.

use super::*;
use crate::limit::RateLimit;
use crate::settings::HedgeSettings;
use futures::stream::StreamExt;
use std::sync::atomic::{AtomicU64, Ordering};

const RANGE: (u64, u64) = (100, 4096);

fn range() -> ByteRange {
    ByteRange::new(RANGE.0, RANGE.1).unwrap()
}

fn answer(parts: &[usize]) -> Answer {
    let parts: Vec<_> = parts.iter().map(|len| Ok(Bytes::from(vec![7; *len]))).collect();
    Answer { thing: "http://host/blob".to_owned(), body: futures::stream::iter(parts).boxed() }
}

async fn after(pause: Duration, parts: &[usize]) -> Result<Answer> {
    sleep(pause).await;
    Ok(answer(parts))
}

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

#[tokio::test(start_paused = true)]
async fn exactly_the_bytes_or_an_error_that_can_be_retried() {
    let link = Link::new(&StoreSettings::default());
    for parts in [&[4096][..], &[1, 4095], &[1000, 0, 3000, 96], &[4096, 0]] {
        let bytes = link.read(range(), Urgency::Demand, || after(ms(1), parts)).await.unwrap();
        assert_eq!(bytes, vec![7; 4096], "{parts:?}");
    }
    for parts in [&[][..], &[4095], &[4097], &[4000, 97], &[4096, 1]] {
        let error = link.read(range(), Urgency::Demand, || after(ms(1), parts)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{parts:?}");
        assert!(error.to_string().contains("http://host/blob"), "{error}");
    }
    let never = || async { Err(Error::new(ErrorKind::Io, "sent")) };
    assert!(link.read(ByteRange::between(5, 5), Urgency::Demand, never).await.unwrap().is_empty());
    assert_eq!((link.counters().requests, link.counters().errors), (9, 5));
}

#[tokio::test(start_paused = true)]
async fn every_wait_ends() {
    let settings =
        StoreSettings { first_byte_timeout: ms(300), stall_timeout: ms(200), ..StoreSettings::default() };
    let link = Link::new(&settings);
    let start = Instant::now();
    let never = || async { std::future::pending::<Result<Answer>>().await };
    let error = link.read(range(), Urgency::Demand, never).await.unwrap_err();
    assert_eq!((error.kind(), start.elapsed()), (ErrorKind::Unavailable, ms(300)));
    let stalls = || async {
        let body = futures::stream::iter([Ok(Bytes::from_static(b"x"))]).chain(futures::stream::pending());
        Ok(Answer { thing: String::new(), body: body.boxed() })
    };
    let error = link.read(range(), Urgency::Demand, stalls).await.unwrap_err();
    assert_eq!((error.kind(), start.elapsed()), (ErrorKind::Unavailable, ms(500)));
    // As long as bytes come, they are waited for.
    let trickles = || async {
        let parts = futures::stream::unfold(0, |n| async move {
            sleep(ms(150)).await;
            (n < 8).then(|| (Ok(Bytes::from(vec![7; 512])), n + 1))
        });
        Ok(Answer { thing: String::new(), body: parts.boxed() })
    };
    assert_eq!(link.read(range(), Urgency::Demand, trickles).await.unwrap().len(), 4096);
}

#[tokio::test(start_paused = true)]
async fn demand_does_not_wait_behind_background() {
    let settings = StoreSettings { background_in_flight: 2, demand_in_flight: 2, ..StoreSettings::default() };
    let link = Arc::new(Link::new(&settings));
    let under_way = Arc::new(AtomicU64::new(0));
    let background: Vec<_> = (0..10)
        .map(|_| {
            let (link, under_way) = (Arc::clone(&link), Arc::clone(&under_way));
            tokio::spawn(async move {
                let send = || async {
                    assert!(under_way.fetch_add(1, Ordering::Relaxed) < 2, "more than two at once");
                    sleep(ms(1000)).await;
                    under_way.fetch_sub(1, Ordering::Relaxed);
                    Ok(answer(&[4096]))
                };
                link.read(range(), Urgency::Background, send).await
            })
        })
        .collect();
    sleep(ms(10)).await;
    let start = Instant::now();
    link.read(range(), Urgency::Demand, || after(ms(5), &[4096])).await.unwrap();
    assert_eq!(start.elapsed(), ms(5));
    // A read that is given up leaves its place to others.
    for task in &background[..9] {
        task.abort();
    }
    let [.., last] = &background[..] else { return };
    while !last.is_finished() {
        assert!(start.elapsed() < ms(60_000), "the last read is never done");
        sleep(ms(10)).await;
    }
    assert!(start.elapsed() < ms(2100), "{:?}", start.elapsed());
}

/// A link that has seen some reads of 10 ms each.
async fn warm(settings: &StoreSettings) -> Link {
    let link = Link::new(settings);
    for _ in 0..20 {
        link.read(range(), Urgency::Demand, || after(ms(10), &[4096])).await.unwrap();
    }
    link
}

#[tokio::test(start_paused = true)]
async fn a_slow_demand_read_is_sent_again() {
    let link = warm(&StoreSettings::default()).await;
    let sent = AtomicU64::new(0);
    let first_is_slow = || {
        let pause = if sent.fetch_add(1, Ordering::Relaxed) == 0 { ms(5000) } else { ms(10) };
        after(pause, &[4096])
    };
    let start = Instant::now();
    link.read(range(), Urgency::Demand, first_is_slow).await.unwrap();
    // Four times the median, and the second request.
    assert_eq!(start.elapsed(), ms(50));
    assert_eq!((link.counters().hedges, link.counters().hedges_won), (1, 1));

    // Background reads wait.
    sent.store(0, Ordering::Relaxed);
    let start = Instant::now();
    link.read(range(), Urgency::Background, first_is_slow).await.unwrap();
    assert_eq!((start.elapsed(), link.counters().hedges), (ms(5000), 1));
}

#[tokio::test(start_paused = true)]
async fn one_of_two_requests_may_fail() {
    for fails in [0, 1] {
        let link = warm(&StoreSettings::default()).await;
        let sent = AtomicU64::new(0);
        let send = || {
            let number = sent.fetch_add(1, Ordering::Relaxed);
            async move {
                sleep(ms(60 + 20 * number)).await;
                if number == fails {
                    return Err(Error::new(ErrorKind::Unavailable, "reset"));
                }
                Ok(answer(&[4096]))
            }
        };
        link.read(range(), Urgency::Demand, send).await.unwrap();
        assert_eq!(link.counters().hedges, 1, "{fails}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_slow_as_a_whole_is_not_asked_twice() {
    let link = warm(&StoreSettings::default()).await;
    let before = link.counters().requests;
    for _ in 0..1000 {
        link.read(range(), Urgency::Demand, || after(ms(300), &[4096])).await.unwrap();
    }
    let counters = link.counters();
    assert!(counters.hedges <= 5, "{}", counters.hedges);
    assert_eq!(counters.requests - before, 1000 + counters.hedges);
}

#[tokio::test(start_paused = true)]
async fn second_requests_keep_to_their_share() {
    let hedge = HedgeSettings { share: 0.03, ..HedgeSettings::default() };
    let link = warm(&StoreSettings { hedge: Some(hedge), ..StoreSettings::default() }).await;
    let sent = AtomicU64::new(0);
    for _ in 0..1000 {
        // Every tenth is slow.
        let pause = if sent.fetch_add(1, Ordering::Relaxed).is_multiple_of(10) { ms(200) } else { ms(10) };
        link.read(range(), Urgency::Demand, || after(pause, &[4096])).await.unwrap();
    }
    let hedges = link.counters().hedges;
    assert!((25..=35).contains(&hedges), "{hedges}");
    let never = warm(&StoreSettings { hedge: None, ..StoreSettings::default() }).await;
    never.read(range(), Urgency::Demand, || after(ms(5000), &[4096])).await.unwrap();
    assert_eq!(never.counters().hedges, 0);
}

#[tokio::test(start_paused = true)]
async fn the_rate_holds_over_all_links_that_share_it() {
    let settings = StoreSettings { limit_rate: Some(RateLimit::new(1_000_000)), ..StoreSettings::default() };
    let links = [Link::new(&settings), Link::new(&settings.clone())];
    let start = Instant::now();
    for _ in 0..50 {
        for link in &links {
            let range = ByteRange::between(0, 50_000);
            link.read(range, Urgency::Background, || after(ms(1), &[50_000])).await.unwrap();
        }
    }
    // 5 MB at 1 MB/s, less the burst.
    let took = start.elapsed().as_secs_f64();
    assert!((4.6..5.2).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_drips_ends() {
    let settings = StoreSettings { stall_timeout: ms(2000), ..StoreSettings::default() };
    let link = Link::new(&settings);
    let start = Instant::now();
    let drips = || async {
        let parts = futures::stream::unfold((), |()| async {
            sleep(ms(1900)).await;
            Some((Ok(Bytes::from_static(b"x")), ()))
        });
        Ok(Answer { thing: String::new(), body: parts.boxed() })
    };
    let error = link.read(range(), Urgency::Demand, drips).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(start.elapsed() < ms(10_000), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn second_requests_that_are_not_sent_take_nothing_of_the_rate() {
    let hedge = HedgeSettings { share: 0.0, ..HedgeSettings::default() };
    let limit = RateLimit::new(10_000);
    let settings =
        StoreSettings { hedge: Some(hedge), limit_rate: Some(limit.clone()), ..StoreSettings::default() };
    let link = warm(&settings).await;
    // The first one spends the whole budget.
    for _ in 0..2 {
        sleep(ms(60_000)).await;
        link.read(range(), Urgency::Demand, || after(ms(300), &[4096])).await.unwrap();
    }
    assert_eq!(link.counters().hedges, 1);
    assert!(limit.try_take(62_000), "a request that was not sent was paid for");
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_holds_back_later_requests() {
    let link = Link::new(&StoreSettings::default());
    let busy = |pause| async move {
        let error = Error::new(ErrorKind::Unavailable, "busy").retry_after(ms(pause));
        Err::<Answer, _>(error)
    };
    let start = Instant::now();
    link.read(range(), Urgency::Demand, || busy(8000)).await.unwrap_err();
    assert!(start.elapsed() < ms(10), "the answer itself is not held back");
    let mut back = Vec::new();
    let reads = (0..20).map(|_| async {
        link.read(range(), Urgency::Demand, || after(ms(1), &[4096])).await.unwrap();
        start.elapsed()
    });
    back.extend(futures::future::join_all(reads).await);
    assert!(back.iter().all(|time| (ms(8000)..ms(10_100)).contains(time)), "{back:?}");
    let (first, last) = (back.iter().min().unwrap(), back.iter().max().unwrap());
    assert!(*last - *first > ms(300), "all come back at once: {back:?}");

    // Not for ever, whatever the server says.
    let start = Instant::now();
    link.read(range(), Urgency::Demand, || busy(1_000_000_000)).await.unwrap_err();
    link.read(range(), Urgency::Demand, || after(ms(1), &[4096])).await.unwrap();
    let deadline = StoreSettings::default().retry.deadline;
    assert!((deadline..deadline * 2).contains(&start.elapsed()), "{:?}", start.elapsed());
}

/// All parts of a stream, and the error that it ends with, if it does.
async fn drain(parts: &mut BoxStream<'_, Result<Bytes>>) -> (Vec<usize>, Option<ErrorKind>) {
    let mut sizes = Vec::new();
    while let Some(part) = parts.next().await {
        match part {
            Ok(part) => sizes.push(part.len()),
            Err(error) => {
                assert!(parts.next().await.is_none(), "it ends with its error");
                return (sizes, Some(error.kind()));
            }
        }
    }
    (sizes, None)
}

#[tokio::test(start_paused = true)]
async fn a_stream_gives_what_comes_as_it_comes() {
    let link = Link::new(&StoreSettings::default());
    for (parts, given, broken) in [
        (&[4096][..], &[4096][..], false),
        (&[1000, 3000, 96], &[1000, 3000, 96], false),
        (&[1000, 3000], &[1000, 3000], true),
        (&[4000, 97], &[4000], true),
        (&[], &[], true),
    ] {
        let mut stream = link.stream(range(), Urgency::Background, || after(ms(1), parts)).await.unwrap();
        let (sizes, error) = drain(&mut stream).await;
        assert_eq!((sizes.as_slice(), error.is_some()), (given, broken), "{parts:?}");
        assert_eq!(error.unwrap_or(ErrorKind::Unavailable), ErrorKind::Unavailable);
    }
    assert_eq!((link.counters().requests, link.counters().errors), (5, 3));
    assert_eq!(link.counters().bytes, 4096 * 2 + 4000 + 4097);
    let refused = || async { Err(Error::new(ErrorKind::NotFound, "no such blob")) };
    let error = link.stream(range(), Urgency::Background, refused).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), link.counters().errors), (ErrorKind::NotFound, 4));
}

/// A stream has its place until it is dropped; demand reads have places of their own.
#[tokio::test(start_paused = true)]
async fn a_stream_keeps_its_place_and_no_other() {
    let settings = StoreSettings { background_in_flight: 1, ..StoreSettings::default() };
    let link = Link::new(&settings);
    let mut stream = link.stream(range(), Urgency::Background, || after(ms(1), &[96, 4000])).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().len(), 96);
    let second = link.read(range(), Urgency::Background, || after(ms(1), &[4096]));
    assert!(timeout(ms(500), second).await.is_err());
    link.read(range(), Urgency::Demand, || after(ms(1), &[4096])).await.unwrap();
    drop(stream);
    let second = link.read(range(), Urgency::Background, || after(ms(1), &[4096]));
    timeout(ms(500), second).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_of_a_stream_is_no_stall_of_the_server() {
    let settings = StoreSettings { stall_timeout: ms(200), ..StoreSettings::default() };
    let link = Link::new(&settings);
    let send = || async {
        let parts = [1000, 3096].map(|len| Ok(Bytes::from(vec![0; len])));
        let body = futures::stream::iter(parts).chain(futures::stream::pending());
        Ok(Answer { thing: String::new(), body: body.boxed() })
    };
    let mut stream = link.stream(range(), Urgency::Background, send).await.unwrap();
    for len in [1000, 3096] {
        sleep(Duration::from_secs(30)).await;
        assert_eq!(stream.next().await.unwrap().unwrap().len(), len);
    }
    let start = Instant::now();
    assert_eq!(drain(&mut stream).await, (vec![], Some(ErrorKind::Unavailable)));
    assert_eq!(start.elapsed(), ms(200), "but here it was waited for");
}

#[tokio::test(start_paused = true)]
async fn a_stream_keeps_to_the_rate_as_it_goes_on() {
    let limit = RateLimit::new(1_000_000);
    let link = Link::new(&StoreSettings { limit_rate: Some(limit), ..StoreSettings::default() });
    let (parts, whole) = ([50_000; 80], ByteRange::between(0, 4_000_000));
    let start = Instant::now();
    let mut stream = link.stream(whole, Urgency::Background, || after(ms(1), &parts)).await.unwrap();
    assert!(start.elapsed() < ms(10), "only its beginning is paid for in advance");
    let (sizes, error) = drain(&mut stream).await;
    assert_eq!((sizes.len(), error), (80, None));
    // 4 MB at 1 MB/s, less the quarter of a second that was in the bucket.
    let took = start.elapsed().as_secs_f64();
    assert!((3.6..3.9).contains(&took), "{took}");
}
