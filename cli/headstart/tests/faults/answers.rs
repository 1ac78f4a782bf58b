//! A store that is slow, breaks off, and sends wrong answers: all bytes are right in the end, or there is an error.

use crate::attached::Attached;
use crate::image::Image;
use crate::nbd::EIO;
use headstart_testkit::faults::{Fault, FaultProxy, FaultRule};
use headstart_testkit::nginx::Nginx;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Attaches and reads all of a disk while some of the store's answers have a `fault`, from the first request on;
/// returns the number of these.
#[track_caller]
fn all_right_in_spite_of(image: &Image, nginx: &Nginx, name: &str, rules: Vec<FaultRule>) -> usize {
    let proxy = FaultProxy::start(nginx.addr());
    rules.into_iter().for_each(|rule| proxy.add(rule));
    let cache = format!("~/cache-{name}");
    let mut attached = Attached::start(&image.scene, &format!("{}/store:v1", proxy.url()), &cache, "");
    let read = catch_unwind(AssertUnwindSafe(|| attached.read_all(image, 256 << 10)));
    assert!(read.is_ok(), "{name}: see above; what was asked:\n{}", proxy.log());
    assert_eq!(attached.metric("headstart_request_errors_total", ""), 0, "{name}");
    attached.detach();
    let log = proxy.log();
    let met = log.only(|request| request.fault.is_some()).len();
    assert!(met > 0, "{name}: no request met it\n{log}");
    met
}

fn some(fault: Fault) -> FaultRule {
    FaultRule::new(fault).on_path("/blobs/").chance(0.3, 7)
}

#[test]
fn broken_answers_are_asked_for_again() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(8);
    let nginx = image.serve();
    for (name, fault) in [
        ("unanswered", Fault::Reset { after: None }),
        ("reset", Fault::Reset { after: Some(1000) }),
        ("cut-off", Fault::CutOff { after: 10_000 }),
        ("short", Fault::Short { len: 777 }),
        ("honest-range", Fault::WrongRange { shift: 4096, honest: true }),
        ("ignored-range", Fault::IgnoreRange),
        ("unavailable", Fault::status(503)),
        ("busy", Fault::status(429)),
        ("error", Fault::status(500)),
    ] {
        let since = Instant::now();
        let met = all_right_in_spite_of(&image, &nginx, name, vec![some(fault)]);
        println!("{name}: {met} answers broken, {:?}", since.elapsed());
    }
}

#[test]
fn slow_answers_are_waited_for() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(4);
    let nginx = image.serve();
    all_right_in_spite_of(&image, &nginx, "late", vec![some(Fault::Late(Duration::from_millis(300)))]);
    all_right_in_spite_of(&image, &nginx, "slow", vec![some(Fault::Slow(400_000))]);
}

/// Requests that never end: a second request, or the time-out, gets around them.
#[test]
fn hung_answers_are_given_up() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(4);
    let nginx = image.serve();
    let hang = |after| FaultRule::new(Fault::Hang { after }).on_path("/blobs/").skip(8).times(1);
    all_right_in_spite_of(&image, &nginx, "hang", vec![hang(None), hang(Some(5000))]);
}

/// A wrong bit, or the bytes of another place that claim to be the right ones, at any request of an attach: they are
/// fetched again, and never served.
#[test]
fn wrong_bytes_are_fetched_again() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(4);
    let nginx = image.serve();
    let lies = [Fault::Corrupt { at: 50 }, Fault::WrongRange { shift: 16 << 10, honest: false }];
    for (n, fault) in lies.into_iter().enumerate() {
        for skip in 0..8 {
            let ranged = FaultRule::new(fault.clone()).on(|asked| asked.range.is_some());
            let rule = ranged.skip(skip).times(1);
            all_right_in_spite_of(&image, &nginx, &format!("lie-{n}-{skip}"), vec![rule]);
        }
    }
}

/// Bytes that are always wrong: the client gets an error, and a message names the blob; no wrong byte is served, and
/// when the store is right again, so is the disk.
#[test]
fn bytes_that_are_always_wrong_are_an_error() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(8);
    let (nginx, (layer, _)) = (image.serve(), image.layer());
    let proxy = FaultProxy::start(nginx.addr());
    let mut attached = Attached::start(&image.scene, &format!("{}/store:v1", proxy.url()), "~/cache", "");
    proxy.add(FaultRule::new(Fault::Corrupt { at: 50 }).on_path(&layer));
    let mut client = attached.client();
    for n in 1..8 {
        assert_eq!(client.read(n << 20, 4096), Err(EIO));
    }
    attached.warns(&[&layer]);
    let warnings = attached.warnings();
    assert!(warnings.len() < 5, "{warnings:?}");
    assert!(attached.metric("headstart_cache_corrupt_inserts_total", "") >= 21);
    assert_eq!(attached.metric("headstart_pull_failed_reads_total", "corrupt"), 7);
    assert_eq!(attached.metric("headstart_request_errors_total", ""), 7);
    // Another client reads, and the store is right again.
    proxy.clear_rules();
    attached.read_all(&image, 256 << 10);
}
