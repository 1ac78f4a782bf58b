//! The store is away: for a while, for longer than a read may wait, and when attaching.

use crate::attached::{Attached, command};
use crate::image::Image;
use crate::nbd::EIO;
use crate::soak;
use headstart_testkit::faults::{FaultProxy, Outage};
use headstart_testkit::nginx::Nginx;
use headstart_testkit::process::Process;
use std::thread;
use std::time::{Duration, Instant};

/// How often a read tries a store that is away, at the longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[test]
fn reads_wait_for_a_store_that_refuses() {
    reads_wait(Outage::Refuse);
}

#[test]
fn reads_wait_for_a_store_that_hangs() {
    reads_wait(Outage::Hang);
}

/// Reads wait while the store is away, then continue; none fails before the deadline.
fn reads_wait(outage: Outage) {
    if !Nginx::is_installed() {
        return;
    }
    let (image, readers) = (Image::new(16), 7);
    let (nginx, time) = (image.serve(), Duration::from_secs(if soak() { 30 } else { 4 }));
    let proxy = FaultProxy::start(nginx.addr());
    let attached = Attached::start(&image.scene, &format!("{}/store:v1", proxy.url()), "~/cache", "");
    // What is here already goes on being served.
    image.check(0, &attached.client().read(0, 65_536).unwrap());
    proxy.set_outage(outage);
    thread::scope(|scope| {
        let read = |n: u64| {
            // In blocks of which nothing was read.
            let (offset, mut client) = ((n + 1) << 21, attached.client());
            let bytes = client.read(offset, 100_000).unwrap();
            image.check(offset, &bytes);
        };
        let reading: Vec<_> = (0..readers).map(|n| scope.spawn(move || read(n))).collect();
        let until = Instant::now() + time;
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(250));
            image.check(0, &attached.client().read(0, 65_536).unwrap());
            assert!(reading.iter().all(|reading| !reading.is_finished()));
        }
        assert_eq!(attached.metric("headstart_waiting_reads", ""), readers);
        proxy.set_outage(Outage::None);
        let since = Instant::now();
        reading.into_iter().for_each(|reading| reading.join().unwrap());
        assert!(since.elapsed() < LONGEST_PAUSE * 4, "{:?}", since.elapsed());
    });
    assert_eq!(attached.metric("headstart_request_errors_total", ""), 0);
    if outage == Outage::Refuse {
        // Said once, not for each try of each read.
        let warnings = attached.warnings();
        assert!(warnings.len() == 1 && warnings[0].contains(&proxy.url()), "{warnings:?}");
    }
    attached.read_all(&image, 1 << 20);
}

/// Past the deadline the client gets EIO, in time; when the store is back, the same reads succeed.
#[test]
fn a_read_fails_at_its_deadline() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(12);
    let nginx = image.serve();
    let proxy = FaultProxy::start(nginx.addr());
    let reference = format!("{}/store:v1", proxy.url());
    let mut attached = Attached::start(&image.scene, &reference, "~/cache", "--deadline 1500ms");
    for (n, outage) in [(1, Outage::Refuse), (2, Outage::Hang)] {
        let mut client = attached.client();
        proxy.set_outage(outage);
        // Of blocks of which nothing was read.
        for offset in [n << 22, (n << 22) + (2 << 20)] {
            let since = Instant::now();
            assert_eq!(client.read(offset, 4096), Err(EIO), "{outage:?}");
            let took = since.elapsed().as_secs_f64();
            assert!((1.4..20.0).contains(&took), "{outage:?}: {took} s");
        }
        proxy.set_outage(Outage::None);
        image.check(n << 22, &client.read(n << 22, 4096).unwrap());
    }
    assert_eq!(attached.metric("headstart_pull_failed_reads_total", "deadline"), 4);
    attached.read_all(&image, 1 << 20);
    attached.detach();
}

/// A detach does not wait for a store that is away.
#[test]
fn a_disk_whose_store_is_away_detaches() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(4);
    let nginx = image.serve();
    let proxy = FaultProxy::start(nginx.addr());
    let mut attached = Attached::start(&image.scene, &format!("{}/store:v1", proxy.url()), "~/cache", "");
    for outage in [Outage::Refuse, Outage::Hang] {
        proxy.set_outage(outage);
        let mut client = attached.client();
        client.send_read(1 << 20, 4096).unwrap();
        assert!(client.is_silent_for(Duration::from_millis(300)));
        let since = Instant::now();
        attached.detach();
        // Its reads would wait for five minutes.
        assert!(since.elapsed() < Duration::from_secs(25), "{:?}", since.elapsed());
        proxy.set_outage(Outage::None);
        attached = Attached::start(&image.scene, &format!("{}/store:v1", proxy.url()), "~/cache", "");
    }
}

/// With everything cached, the store may be away at attach: that is said, and all is there.
#[test]
fn what_is_cached_attaches_without_its_store() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(8);
    let nginx = image.serve();
    let proxy = FaultProxy::start(nginx.addr());
    let digest = image.scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    let references = [format!("{}/store:v1", proxy.url()), format!("{}/store@{digest}", proxy.url())];
    for reference in &references {
        let mut attached = Attached::start(&image.scene, reference, "~/cache", "");
        attached.read_all(&image, 1 << 20);
        attached.detach();
    }
    for outage in [Outage::Refuse, Outage::Hang] {
        proxy.set_outage(outage);
        for reference in &references {
            let since = Instant::now();
            let attached = Attached::start(&image.scene, reference, "~/cache", "");
            assert!(since.elapsed() < Duration::from_secs(25), "{outage:?}: {:?}", since.elapsed());
            let warnings = attached.warnings();
            assert!(warnings.len() == 1 && warnings[0].contains("All of it is in the cache"), "{warnings:?}");
            attached.read_all(&image, 1 << 20);
        }
    }
    // Something is missing: an attach cannot promise what it has not, and says why.
    let (mut without, _) = command(&image.scene, &references[0], "~/other-cache", "");
    let mut refused = Process::start(&mut without);
    proxy.set_outage(Outage::Refuse);
    let status = refused.end(Duration::from_secs(60));
    assert_eq!(status.code(), Some(1), "{refused}");
    assert!(refused.said().contains(&proxy.url()), "{refused}");
}
