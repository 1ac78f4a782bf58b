//! The shaping proxy never gives more than the requested link, and hardly less.
//!
//! A busy machine makes everything later, so a test says what a link must not do too soon, in which order things
//! happen, and that a link is not slower by half. Benchmark `shaper` has the exact figures.

use headstart_testkit::shaper::{Measured, ShapedLink, Shaper, measure};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// The most tries of a measurement, because a busy machine spoils some.
const TRIES: usize = 20;

fn milliseconds(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Tries until the result is `good`; after [`TRIES`], fails with the last result.
fn eventually<T: std::fmt::Debug>(what: &str, mut try_it: impl FnMut() -> T, good: impl Fn(&T) -> bool) {
    let mut result = try_it();
    for _ in 1..TRIES {
        if good(&result) {
            return;
        }
        result = try_it();
    }
    assert!(good(&result), "{what}: {result:?}");
}

#[test]
fn links_have_their_rate_and_round_trip() {
    for (rate, round_trip) in [(2, 0), (2, 200), (10, 20), (30, 1), (30, 100)] {
        let link = ShapedLink::new(Some(rate * 1_000_000), milliseconds(round_trip));
        let (rate, round_trip) = (rate as f64 * 1e6, milliseconds(round_trip));
        eventually(
            &format!("{rate} B/s, {round_trip:?}"),
            || {
                let measured = measure(&link, milliseconds(300)).unwrap();
                assert!(measured.rate < rate * 1.03, "{measured:?}");
                assert!(
                    measured.round_trip >= round_trip && measured.connect >= 2 * round_trip,
                    "{measured:?}"
                );
                measured
            },
            |measured: &Measured| {
                measured.rate > rate / 2.0 && measured.round_trip < 2 * round_trip + milliseconds(20)
            },
        );
    }
}

/// A server that answers each connection with as many bytes as it asks for in one number of eight bytes.
fn server() -> std::net::SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            thread::spawn(move || {
                let mut number = [0; 8];
                while client.read_exact(&mut number).is_ok() {
                    let answer = vec![7; usize::try_from(u64::from_le_bytes(number)).unwrap()];
                    if client.write_all(&answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

fn ask(connection: &mut TcpStream, len: u64) -> Duration {
    let since = Instant::now();
    connection.write_all(&len.to_le_bytes()).unwrap();
    let mut answer = vec![0; usize::try_from(len).unwrap()];
    connection.read_exact(&mut answer).unwrap();
    assert!(answer.iter().all(|byte| *byte == 7));
    since.elapsed()
}

#[test]
fn connections_share_the_rate() {
    let link = ShapedLink::new(Some(20_000_000), milliseconds(10));
    // Two proxies, one link.
    let shapers = [Shaper::start(&link, server()).unwrap(), Shaper::start(&link, server()).unwrap()];
    eventually(
        "8 connections share 20 MB/s",
        || {
            let since = Instant::now();
            thread::scope(|scope| {
                for n in 0..8 {
                    let mut connection = TcpStream::connect(shapers[n % 2].addr()).unwrap();
                    scope.spawn(move || ask(&mut connection, 1_000_000));
                }
            });
            let took = since.elapsed();
            // The time of all bytes, and a round trip.
            assert!(took > milliseconds(400), "{took:?}");
            took
        },
        |took| *took < milliseconds(800),
    );
    let moved = shapers.map(|shaper| shaper.moved());
    assert_eq!(moved[0].connections % 4, 0);
    assert_eq!((moved[0].down, moved[0].up), (moved[0].connections * 1_000_000, moved[0].connections * 8));
    assert_eq!(moved[0], moved[1]);
}

#[test]
fn a_small_answer_passes_a_large_one() {
    let link = ShapedLink::new(Some(10_000_000), milliseconds(20));
    let shaper = Shaper::start(&link, server()).unwrap();
    let mut large = TcpStream::connect(shaper.addr()).unwrap();
    let mut small = TcpStream::connect(shaper.addr()).unwrap();
    ask(&mut large, 1);
    ask(&mut small, 1);
    let pass = || {
        thread::scope(|scope| {
            let busy = scope.spawn(|| {
                assert!(ask(&mut large, 3_000_000) > milliseconds(300));
                Instant::now()
            });
            thread::sleep(milliseconds(50));
            assert!(ask(&mut small, 4096) >= milliseconds(20));
            let small_came = Instant::now();
            small_came < busy.join().unwrap()
        })
    };
    eventually("the small one comes before the large one has ended", pass, |has_passed| *has_passed);
}

#[test]
fn an_idle_link_saves_nothing_up() {
    let link = ShapedLink::new(Some(10_000_000), milliseconds(0));
    let shaper = Shaper::start(&link, server()).unwrap();
    let mut connection = TcpStream::connect(shaper.addr()).unwrap();
    ask(&mut connection, 1);
    thread::sleep(milliseconds(50));
    assert!(ask(&mut connection, 100_000) > milliseconds(8));
}
