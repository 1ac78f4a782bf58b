//! The store is away: for a while, for longer than a read may wait, and when attaching.

use crate::attached::{Attached, command};
use crate::disk::noise;
use crate::image::Image;
use crate::nbd::{Client, EIO};
use crate::scene::Scene;
use headstart_export::nbd::proto::command;
use headstart_testkit::faults::{FaultProxy, Outage};
use headstart_testkit::nginx::Nginx;
use headstart_testkit::process::Process;
use headstart_testkit::soak;
use headstart_testkit::wait::wait_until;
use std::fs;
use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

/// The longest pause between two attempts of a read to reach a store that is away.
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
    let (nginx, time) = (image.serve(), Duration::from_secs(if soak::is_on() { 30 } else { 4 }));
    let proxy = FaultProxy::start(nginx.addr());
    let attached = Attached::start(&image.scene, &format!("{}/store:v1", proxy.url()), "~/cache", "");
    // Local bytes are still served.
    image.check(0, &attached.client().read(0, 65_536).unwrap());
    proxy.set_outage(outage);
    thread::scope(|scope| {
        let read = |n: u64| {
            // The reads are in blocks of which no byte was read.
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
        wait_until("all of them wait", Duration::from_secs(60), || {
            attached.metric("headstart_waiting_reads", "") == readers
        });
        proxy.set_outage(Outage::None);
        let since = Instant::now();
        reading.into_iter().for_each(|reading| reading.join().unwrap());
        assert!(since.elapsed() < LONGEST_PAUSE * 4, "{:?}", since.elapsed());
    });
    assert_eq!(attached.metric("headstart_request_errors_total", ""), 0);
    if outage == Outage::Refuse {
        // There is one warning, not one for each attempt of each read.
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
    // The deadline is longer than a busy machine takes for a read whose store is there.
    let mut attached = Attached::start(&image.scene, &reference, "~/cache", "--deadline 4s");
    for (n, outage) in [(1, Outage::Refuse), (2, Outage::Hang)] {
        let mut client = attached.client();
        proxy.set_outage(outage);
        // The reads are in blocks of which no byte was read.
        for offset in [n << 22, (n << 22) + (2 << 20)] {
            let since = Instant::now();
            assert_eq!(client.read(offset, 4096), Err(EIO), "{outage:?}");
            let took = since.elapsed().as_secs_f64();
            assert!((3.9..40.0).contains(&took), "{outage:?}: {took} s");
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

/// With everything cached, the store may be away at attach: a warning says that, and all bytes are there.
#[test]
fn a_cached_image_attaches_without_its_store() {
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
    // A part is missing: an attach cannot promise bytes that it does not have, and reports why.
    let (mut without, _) = command(&image.scene, &references[0], "~/other-cache", "");
    let mut refused = Process::start(&mut without);
    proxy.set_outage(Outage::Refuse);
    let status = refused.end(Duration::from_secs(60));
    assert_eq!(status.code(), Some(1), "{refused}");
    assert!(refused.output().contains(&proxy.url()), "{refused}");
}

/// The number of sectors, apart from each other, that the memory of a disk may hold.
const PIECES: u64 = (1 << 18) + (1 << 16) + 1;

/// More pieces than are merged with the parts of the image that came when it was attached.
const MORE: u64 = 20_000;

/// A piece that is replaced while others wait, and one that is discarded.
const REPLACED: u64 = 70_000;
const DISCARDED: u64 = 140_000;

/// The longest time until a write goes on after its store is back: twice the longest pause between two attempts of a
/// fetch, and as much again for a slow machine.
const GOES_ON: Duration = Duration::from_secs(20);

/// An image with a place for each piece. Too little of it comes at the attach to merge many of them.
fn long_image() -> Image {
    let scene = Scene::new();
    let len = ((PIECES + MORE) * 1024).next_multiple_of(1 << 20);
    let mut content = vec![0x5a; len as usize];
    for (number, part) in content.chunks_mut(64 << 10).enumerate() {
        part[..8192].copy_from_slice(&noise(number as u64 + 1, 8192));
    }
    fs::write(scene.path("disk.raw"), &content).unwrap();
    scene.ok("image import disk.raw file://~/store:v1 --codec lz4");
    Image { scene, content }
}

/// Writes that make more pieces than are allowed wait until the bytes between them have come; other writes go on.
#[test]
fn small_writes_wait_for_a_store_that_is_away() {
    if !Nginx::is_installed() {
        return;
    }
    let image = long_image();
    let nginx = image.serve();
    let proxy = FaultProxy::start(nginx.addr());
    let reference = format!("{}/store:v1", proxy.url());
    let attached = Attached::start(&image.scene, &reference, "~/cache", "--writable ~/vm");
    proxy.set_outage(Outage::Refuse);
    let mut client = attached.client();
    let mut answered = 0;
    let mut answers = |client: &mut Client, wanted: u64| {
        while answered < wanted {
            client.receive().unwrap().1.unwrap();
            answered += 1;
        }
    };
    for piece in 0..PIECES {
        client.send_write(piece * 1024, &[7; 512], false).unwrap();
        answers(&mut client, piece.saturating_sub(15));
    }
    answers(&mut client, PIECES);
    // Writes are sent one after the other, until one is not answered.
    client.stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut sent = PIECES;
    let silent = loop {
        client.send_write(sent * 1024, &[7; 512], false).unwrap();
        sent += 1;
        match client.receive() {
            Ok((_, answer)) => _ = answer.unwrap(),
            Err(error) => break error,
        }
        assert!(sent < PIECES + MORE);
    };
    assert_eq!(silent.kind(), ErrorKind::WouldBlock);
    client.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(attached.metric("headstart_writable_waiting_writes", ""), 1);
    // Pieces are replaced and discarded anyway. The first ones were merged with the parts that came at the attach.
    let mut other = attached.client();
    other.send_write(REPLACED * 1024, &[8; 512], false).unwrap();
    other.receive().unwrap().1.unwrap();
    other.send(command::TRIM, 0, DISCARDED * 1024, 512, &[]).unwrap();
    other.receive().unwrap().1.unwrap();
    assert_eq!(attached.metric("headstart_writable_waiting_writes", ""), 1);
    proxy.set_outage(Outage::None);
    let back = Instant::now();
    client.receive().unwrap().1.unwrap();
    assert!(back.elapsed() < GOES_ON, "{:?}", back.elapsed());
    for piece in sent..PIECES + MORE {
        client.send_write(piece * 1024, &[7; 512], false).unwrap();
        client.receive().unwrap().1.unwrap();
    }
    assert_eq!(attached.metric("headstart_writable_refused_writes_total", ""), 0);
    assert!(attached.metric("headstart_writable_copied_up_bytes", "") > 0);
    for place in [0, 1, 2, REPLACED, DISCARDED, PIECES, PIECES + MORE - 1] {
        let found = client.read(place * 1024, 1024).unwrap();
        let byte = match place {
            REPLACED => 8,
            DISCARDED => 0,
            _ => 7,
        };
        assert!(found[..512] == [byte; 512], "{place}");
        image.check(place * 1024 + 512, &found[512..]);
    }
}
