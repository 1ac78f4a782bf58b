//! Images without hash trees, as other tools make them, from a store that gives wrong bytes: these are found by the
//! checksums of frames if there are any, and by the blob's digest once all of it is here.

use crate::attached::Attached;
use crate::image::Image;
use crate::nbd::EIO;
use headstart_testkit::faults::{Fault, FaultProxy, FaultRule};
use headstart_testkit::nginx::Nginx;
use headstart_testkit::wait::wait_until;
use std::time::Duration;

/// The longest time until a disk of a few MiB is filled and checked, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn wrong() -> FaultRule {
    FaultRule::new(Fault::Corrupt { at: 5000 })
}

/// The warnings that have all of `parts`.
fn said(attached: &Attached, parts: &[&str]) -> Vec<String> {
    let warnings = attached.warnings();
    warnings.into_iter().filter(|line| parts.iter().all(|part| line.contains(part))).collect()
}

/// The state of a blob in `cache list`.
fn kind_of(image: &Image, layer: &str) -> String {
    let list = image.scene.json("cache list --dir ~/cache");
    let found =
        list["blobs"].as_array().unwrap().iter().find(|blob| blob["digest"] == format!("sha256:{layer}"));
    found.unwrap()["kind"].as_str().unwrap().to_owned()
}

/// A flipped byte in filled data that nothing covers: it is found when the last byte has come, reported, dropped and
/// fetched again; bytes that are served after that are right.
#[test]
fn a_blob_is_checked_when_the_last_of_it_has_come() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::treeless(8, "none");
    let (nginx, (layer, len)) = (image.serve(), image.layer_of("treeless"));
    let proxy = FaultProxy::start(nginx.addr());
    let reference = format!("{}/store:treeless", proxy.url());
    // The flip is not in the parts that opening the layer reads.
    proxy.add(wrong().on_path(&layer).skip(3).times(1));
    let mut attached = Attached::start(&image.scene, &reference, "~/cache", "--fill 1GB/s");
    wait_until("it is found out", LIMIT, || attached.metric("headstart_cache_wrong_blobs_total", "") == 1);
    wait_until("it is right", LIMIT, || attached.metric("headstart_cache_proven_blobs_total", "") == 1);
    assert_eq!(attached.metric("headstart_image_local_bytes", ""), len);
    assert_eq!(attached.metric("headstart_image_unproven_bytes", ""), 0);
    attached.read_all(&image, 1 << 20);
    let parts = [layer.as_str(), "digest is", "dropped and fetched again", "repair it there"];
    attached.warns(&parts);
    let told = said(&attached, &parts);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(attached.metric("headstart_cache_wrong_blobs_total", ""), 1);
    attached.detach();
    assert_eq!(kind_of(&image, &layer), "whole");
    // At the next attach, from the cache, nothing is fetched and nothing is checked again.
    proxy.clear_log();
    let attached = Attached::start(&image.scene, &reference, "~/cache", "--fill 1GB/s");
    attached.read_all(&image, 1 << 20);
    assert_eq!(proxy.log().to(&layer).len(), 0, "{}", proxy.log());
    assert_eq!(attached.metric("headstart_cache_proven_blobs_total", ""), 0);
}

/// An operator that lets others choose images need not trust their stores.
#[test]
fn an_image_without_a_hash_tree_is_refused_where_one_is_asked_for() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::treeless(1, "none");
    let nginx = image.serve();
    let reference = format!("http://{}/store:treeless", nginx.addr());
    let words = format!("attach {reference} --cache ~/cache --nbd unix:~/refused.sock --require-tree");
    image.scene.fails(&words, &["has no hash tree", "--require-tree", "image flatten"]);
    let reference = reference.replace(":treeless", ":v1");
    Attached::start(&image.scene, &reference, "~/cache", "--require-tree").detach();
}

/// The blob is fetched again a few times and not for ever: then reads fail, and a message names the wrong blob. A
/// detach waits for nothing.
#[test]
fn a_store_that_is_always_wrong_is_given_up() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::treeless(4, "none");
    let (nginx, (layer, len)) = (image.serve(), image.layer_of("treeless"));
    let proxy = FaultProxy::start(nginx.addr());
    let reference = format!("{}/store:treeless", proxy.url());
    proxy.add(wrong().on_path(&layer).skip(3));
    let mut attached = Attached::start(&image.scene, &reference, "~/cache", "--fill 1GB/s");
    wait_until("it is given up", LIMIT, || {
        attached.metric("headstart_cache_wrong_blobs_total", "") == 3
            && attached.metric("headstart_image_local_bytes", "") == 0
    });
    let mut client = attached.client();
    for offset in [0, 2 << 20] {
        assert_eq!(client.read(offset, 4096), Err(EIO));
    }
    let parts = [layer.as_str(), "came whole 3 times", "dropped", "repair it there"];
    attached.warns(&parts);
    let told = said(&attached, &parts);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(proxy.log().to(&layer).sent() < len * 5, "{}", proxy.log());
    let requests = proxy.log().len();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(client.read(1 << 20, 4096), Err(EIO));
    assert!(proxy.log().len() <= requests + 2, "{}", proxy.log());
    attached.detach();
    // The store is repaired.
    proxy.clear_rules();
    let attached = Attached::start(&image.scene, &reference, "~/cache", "");
    attached.read_all(&image, 1 << 20);
}

/// Frames with checksums, read by a client: wrong ones are fetched again, even while the layer is opened.
#[test]
fn frames_that_come_wrong_are_fetched_again() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::treeless(4, "lz4");
    let (nginx, (layer, _)) = (image.serve(), image.layer_of("treeless"));
    for (n, skip) in (0..8).chain([12, 20]).enumerate() {
        let proxy = FaultProxy::start(nginx.addr());
        proxy.add(FaultRule::new(Fault::Corrupt { at: 50 }).on_path(&layer).skip(skip).times(1));
        let reference = format!("{}/store:treeless", proxy.url());
        let mut attached = Attached::start(&image.scene, &reference, &format!("~/cache-{n}"), "");
        attached.read_all(&image, 256 << 10);
        assert_eq!(attached.metric("headstart_request_errors_total", ""), 0, "{skip}");
        attached.detach();
    }
}
