//! Many disks of one image, in one process or in several: each byte is fetched once a host.

use crate::attached::Attached;
use crate::images::{Web, can_check_bytes, noisy, tool};
use crate::scene::Scene;
use headstart_testkit::faults::{Fault, FaultRule};
use std::time::Duration;

/// Reads all disks at once, and finds the right bytes on each.
fn read_all(scene: &Scene, uris: &[String]) {
    std::thread::scope(|scope| {
        for uri in uris {
            scope.spawn(move || {
                tool(scene, "qemu-img", &["compare", "-f", "raw", "-F", "raw", "disk.raw", uri])
            });
        }
    });
}

/// Checks that every byte of layers and trees came once over the link. A demand read that is slow may be sent a second
/// time; such requests are few, and counted.
fn each_byte_came_once(scene: &Scene, web: &Web, attached: &[Attached]) {
    let reads = web.reads(scene);
    let hedges: f64 =
        attached.iter().map(|attached| attached.metrics().sum("headstart_store_hedges_total", &[])).sum();
    let again = reads.sent_again() as f64;
    let largest = reads.iter().map(|request| request.sent).max().unwrap() as f64;
    assert!(again <= hedges * largest, "{again} bytes came again, with {hedges} hedges:\n{reads}");
    let image: f64 = attached[0].metrics().sum("headstart_image_bytes", &[("disk", "d0")]);
    let once = reads.sent() as f64 - again;
    assert!(once >= image && once < image * 1.02 + 65536.0, "{once} of {image}");
}

/// Names and images of `count` disks.
fn disks(web: &Web, count: usize) -> String {
    (0..count).map(|n| format!("d{n}={} ", web.image())).collect()
}

/// A scene with a web server that takes a moment for each answer, so that disks have time to want the same.
fn slow_web(mib: usize) -> Option<(Scene, Web)> {
    let scene = noisy(mib);
    let web = Web::before(&scene)?;
    web.proxy.add(FaultRule::new(Fault::Late(Duration::from_millis(5))));
    can_check_bytes().then_some((scene, web))
}

#[test]
fn thirty_two_disks_in_one_process_fetch_each_byte_once() {
    let Some((scene, web)) = slow_web(8) else { return };
    let words = format!("{} --cache ~/cache --nbd unix:~/d.sock --metrics 127.0.0.1:0", disks(&web, 32));
    let attached = Attached::start(&scene, &words);
    read_all(&scene, &attached.uris());
    each_byte_came_once(&scene, &web, std::slice::from_ref(&attached));
    let metrics = attached.metrics();
    for n in [0, 31] {
        let read = metrics.sum("headstart_read_bytes_total", &[("disk", &format!("d{n}"))]);
        assert!(read >= f64::from(8 << 20), "d{n}: {read}");
    }
    attached.detach();
}

#[test]
fn eight_processes_started_at_once_fetch_each_byte_once() {
    let Some((scene, web)) = slow_web(8) else { return };
    let attached: Vec<Attached> = std::thread::scope(|scope| {
        let (scene, web) = (&scene, &web);
        let start = |n| {
            let disks = disks(web, 4);
            let words = format!("{disks} --cache ~/cache --nbd unix:~/d{n}.sock --metrics 127.0.0.1:0");
            scope.spawn(move || Attached::start(scene, &words))
        };
        let starting: Vec<_> = (0..8).map(start).collect();
        starting.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let uris: Vec<_> = attached.iter().flat_map(Attached::uris).collect();
    assert_eq!(uris.len(), 32);
    read_all(&scene, &uris);
    each_byte_came_once(&scene, &web, &attached);
    attached.into_iter().for_each(|attached| drop(attached.detach()));
}

#[test]
fn two_processes_fill_one_cache() {
    let Some((scene, web)) = slow_web(12) else { return };
    let words = |n| {
        let disks = disks(&web, 1);
        format!("{disks} --cache ~/cache --nbd unix:~/d{n}.sock --metrics 127.0.0.1:0 --fill 1GB/s")
    };
    let attached = [0, 1].map(|n| Attached::start(&scene, &words(n)));
    for attached in &attached {
        attached.wait_for("full disk", crate::attached::Metrics::all_is_local);
    }
    read_all(&scene, &attached.each_ref().map(Attached::uri));
    each_byte_came_once(&scene, &web, &attached);
    assert_eq!(scene.json("cache usage --dir ~/cache")["blobs"].as_u64().unwrap() % 2, 0);
    attached.into_iter().for_each(|attached| drop(attached.detach()));
}

#[test]
fn a_killed_process_leaves_its_part_to_the_other() {
    let Some((scene, web)) = slow_web(8) else { return };
    web.proxy.clear_rules();
    web.proxy.add(FaultRule::new(Fault::Slow(2_000_000)));
    let words = |n| format!("{} --cache ~/cache --nbd unix:~/d{n}.sock", web.image());
    let mut killed = Attached::start(&scene, &format!("{} --policy sequential", words(0)));
    let other = Attached::start(&scene, &words(1));
    let before = web.reads(&scene).sent();
    web.proxy.wait("reads under way", crate::attached::TIMEOUT, |log| log.sent() > before + 500_000);
    killed.process().kill();
    web.proxy.clear_rules();
    read_all(&scene, &[other.uri()]);
    other.detach();
    // Its socket is left behind, and no obstacle.
    let again = Attached::start(&scene, &words(0));
    read_all(&scene, &[again.uri()]);
    again.detach();
}
