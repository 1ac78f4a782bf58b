//! A slow link, 10 MB/s and 20 ms, and an image of many layers: the cost of an attach and of a cold read there.

use crate::attached::Attached;
use crate::disk::{DiskBuilder, noise};
use crate::scene::Scene;
use headstart_testkit::faults::{FaultProxy, Log};
use headstart_testkit::nginx::Nginx;
use headstart_testkit::shaper::{ShapedLink, Shaper, measure};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const RATE: u64 = 10_000_000;
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// The round trip of a link on which round trips are counted.
const FAR: Duration = Duration::from_millis(120);
const LAYERS: u64 = 20;
const SEGMENTS: u64 = 4500;

/// The end of the lowest layer's data, where the reads are.
const DATA: u64 = 48 << 20;

/// A disk of 40 GiB in a store: a base of some MiB, and on it layers of many single blocks at scattered places.
fn many_layers(scene: &Scene) -> BTreeMap<u64, Vec<u8>> {
    let disk = DiskBuilder::create(scene.path("disk.raw"), 40 << 30);
    let content = noise(1, DATA as usize);
    disk.write(0, &content);
    let mut written = BTreeMap::from([(0, content)]);
    scene.ok("image import disk.raw file://~/store:0 --codec lz4");
    for layer in 1..LAYERS {
        for n in 0..SEGMENTS / (LAYERS - 1) + 1 {
            // The place is between those of the other layers, so that no segment joins another.
            let offset = (1 << 30) + n * (4 << 20) + layer * (32 << 10);
            let bytes = noise(offset, 4096);
            disk.write(offset, &bytes);
            written.insert(offset, bytes);
        }
        let words = format!(
            "image import disk.raw file://~/store:{layer} --base file://~/store:{} --codec lz4",
            layer - 1
        );
        scene.ok(&words);
    }
    written
}

#[test]
fn an_attach_and_cold_reads_take_few_round_trips_over_a_slow_link() {
    if !Nginx::is_installed() {
        return;
    }
    let scene = Scene::new();
    let content = many_layers(&scene);
    let inspected = scene.json(&format!("image inspect file://~/store:{}", LAYERS - 1));
    assert_eq!(inspected["layers"].as_array().unwrap().len() as u64, LAYERS);
    let nginx = Nginx::serve(&scene.path(""));
    let proxy = FaultProxy::start(nginx.addr());
    attach_in_few_steps(&scene, &proxy);
    let link = ShapedLink::new(Some(RATE), ROUND_TRIP);
    println!("the link gives {:?}", measure(&link, Duration::from_millis(200)).unwrap());
    let shaper = Shaper::start(&link, proxy.addr()).unwrap();
    let reference = format!("http://{}/store:{}", shaper.addr(), LAYERS - 1);
    let mut times = Vec::new();
    for n in 0..6 {
        let attached = Attached::start(&scene, &reference, &format!("~/cold-{n}"), "");
        times = cold_reads(&attached, &proxy, &content);
        // Other work of the machine makes reads slower, never faster: on an idle machine this holds for nearly all.
        if times[times.len() / 4] < Duration::from_millis(40) {
            let mut client = attached.client();
            for (offset, _) in content.iter().skip(1).step_by(500) {
                check(&content, *offset, &client.read(*offset, 4096).unwrap());
            }
            return;
        }
    }
    panic!("{times:?}");
}

#[track_caller]
fn check(content: &BTreeMap<u64, Vec<u8>>, offset: u64, bytes: &[u8]) {
    let (start, data) = content.range(..=offset).next_back().unwrap();
    let at = (offset - start) as usize;
    assert!(bytes == &data[at..at + bytes.len()], "wrong bytes at {offset}");
}

/// The times of reads from blocks without local bytes, sorted.
fn cold_reads(attached: &Attached, proxy: &FaultProxy, content: &BTreeMap<u64, Vec<u8>>) -> Vec<Duration> {
    let (mut client, mut times) = (attached.client(), Vec::new());
    for n in 0..15u64 {
        // This waits until the rest of a read's block is here, and the link idle.
        quiet(proxy);
        proxy.clear_log();
        // In another block each time.
        let offset = (1 << 20) + n * (3 << 20) + 8192;
        let since = Instant::now();
        let bytes = client.read(offset, 4096).unwrap();
        let took = since.elapsed();
        check(content, offset, &bytes);
        times.push(took);
    }
    println!("cold reads of 4 KiB: {times:?}");
    times.sort();
    times
}

/// Attaches with an empty cache, over a link so slow that other work of the machine is little beside a round trip: such
/// work delays requests, so that they look as if they had waited for the answers to others. It may still take a few
/// attempts until there is none.
fn attach_in_few_steps(scene: &Scene, proxy: &FaultProxy) {
    let shaper = Shaper::start(&ShapedLink::new(Some(RATE), FAR), proxy.addr()).unwrap();
    let reference = format!("http://{}/store:{}", shaper.addr(), LAYERS - 1);
    let mut failure = String::new();
    for n in 0..8 {
        proxy.clear_log();
        let since = Instant::now();
        let _attached = Attached::start(scene, &reference, &format!("~/cache-{n}"), "");
        println!("attached after {:?}", since.elapsed());
        let log = proxy.log();
        let (steps, again) = (in_sequence(&log), log.to("/blobs/").sent_again());
        println!("{} requests, {steps} in sequence", log.len());
        // The manifest (with a plain web server: the index of tags, then the manifest), all tails, all indices. And
        // bytes that no guess reads are not fetched twice in any layer.
        if steps <= 4 && again == 0 {
            return;
        }
        failure = format!("{steps} in sequence, {again} bytes again:\n{log}");
        quiet(proxy);
    }
    panic!("{failure}");
}

/// The longest sequence of requests each of which the client may have made because of the answer to the one before. The
/// proxy's times are those at the far end of the link: a request was made half a round trip before it arrived there,
/// one and a half before on a new connection, and its answer was known half a round trip after it was given.
fn in_sequence(log: &Log) -> usize {
    let mut seen = BTreeSet::new();
    let way = FAR / 2;
    let mut times: Vec<_> = log
        .iter()
        .filter_map(|request| {
            let ways = if seen.insert(request.connection) { 3 } else { 1 };
            let made = request.started.saturating_sub(way * ways);
            // A request that still runs is of no use to the attach, such as the slower one of two requests for the same
            // bytes.
            Some((request.finished? + way, made))
        })
        .collect();
    times.sort_unstable();
    // Of all that could follow, the request whose answer is known first leaves most room.
    let (mut count, mut until) = (0, Duration::ZERO);
    for (known, made) in times {
        if count == 0 || made >= until {
            (count, until) = (count + 1, known);
        }
    }
    count
}

/// Waits until there has been no request for a while.
fn quiet(proxy: &FaultProxy) {
    let mut seen = (0, Instant::now());
    let until = Instant::now() + Duration::from_secs(60);
    while seen.1.elapsed() < Duration::from_millis(150) {
        std::thread::sleep(Duration::from_millis(10));
        let log = proxy.log();
        assert!(Instant::now() < until, "it never comes to rest:\n{log}");
        if log.len() != seen.0 || log.iter().any(|request| request.finished.is_none()) {
            seen = (log.len(), Instant::now());
        }
    }
}
