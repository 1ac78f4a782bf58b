//! Bits that flip in the cache after the bytes were verified: they are found, dropped, and fetched again.

use crate::attached::Attached;
use crate::flipped::flip;
use crate::image::Image;
use headstart_testkit::nginx::Nginx;

/// Reads all of the disk once, so that it is cached.
fn fill(image: &Image, reference: &str) {
    let mut attached = Attached::start(&image.scene, reference, "~/cache", "");
    attached.read_all(image, 1 << 20);
    attached.detach();
}

/// Frames have checksums: a reader of a frame notices, and gets the right bytes.
#[test]
fn a_frame_that_was_changed_in_the_cache_is_fetched_again() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(4);
    let (nginx, (layer, _)) = (image.serve(), image.layer());
    let reference = format!("http://{}/store:v1", nginx.addr());
    fill(&image, &reference);
    let cache = image.scene.path("cache");
    // The place is in the data of the disk, and in the index, by which the disk is opened.
    for n in 1..=3 {
        let place = |len| match n {
            1 => len / 3,
            2 => len / 2,
            _ => len - 5000,
        };
        flip(&cache, &layer, place);
        let mut attached = Attached::start(&image.scene, &reference, "~/cache", "");
        attached.read_all(&image, 1 << 20);
        assert_eq!(attached.metric("headstart_request_errors_total", ""), 0, "{n}");
        // The last unit of a blob is shorter.
        let damaged = attached.metric("headstart_cache_damaged_bytes_total", "");
        assert!(damaged > 0 && damaged <= 16384, "{n}: {damaged}");
        attached.warns(&["the cache has changed"]);
        let said = attached.warnings();
        let told: Vec<_> = said.iter().filter(|line| line.contains("the cache has changed")).collect();
        assert!(told.len() == 1 && told[0].contains(&layer), "{said:?}");
        // The same holds while it is attached.
        flip(&cache, &layer, |len| len / 4);
        attached.read_all(&image, 1 << 20);
        let more = attached.metric("headstart_cache_damaged_bytes_total", "") - damaged;
        assert_eq!(more, 16384, "{n}");
        attached.detach();
    }
    assert_eq!(image.scene.json("cache verify --dir ~/cache")["wrong_bytes"], 0);
}

/// Without checksums of frames a reader does not notice: verifying the whole cache does.
#[test]
fn damage_without_frame_checksums_is_found_by_verifying_the_cache() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(4);
    let scene = &image.scene;
    scene.ok("image import disk.raw file://~/store:none --codec none");
    let (nginx, (layer, len)) = (image.serve(), image.layer_of("none"));
    let reference = format!("http://{}/store:none", nginx.addr());
    fill(&image, &reference);
    let right = scene.json("cache verify --dir ~/cache");
    assert!(right["wrong_bytes"] == 0 && right["right_bytes"].as_u64() >= Some(len), "{right}");
    assert!(scene.ok("cache verify --dir ~/cache").stdout.contains("no damage"));
    flip(&scene.path("cache"), &layer, |len| len / 2);
    for _ in 0..2 {
        let run = scene.run("cache verify --dir ~/cache");
        let parts = [layer.as_str(), "16 KiB are damaged", "--repair"];
        assert!(run.status == Some(1) && parts.iter().all(|part| run.stdout.contains(part)), "{run}");
    }
    let repaired = scene.json("cache verify --dir ~/cache --repair");
    assert!(repaired["wrong_bytes"] == 16384 && repaired["repaired"] == true, "{repaired}");
    assert_eq!(scene.json("cache verify --dir ~/cache")["wrong_bytes"], 0);
    fill(&image, &reference);
    let all = scene.json("cache verify --dir ~/cache");
    assert_eq!((&all["wrong_bytes"], &all["right_bytes"]), (&0.into(), &right["right_bytes"]));
}

/// A blob without a hash tree is compared with its digest.
#[test]
fn a_blob_without_a_hash_tree_is_verified_as_a_whole() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::treeless(4, "lz4");
    let scene = &image.scene;
    let (nginx, (layer, len)) = (image.serve(), image.layer_of("treeless"));
    let reference = format!("http://{}/store:treeless", nginx.addr());
    let attached = Attached::start(scene, &reference, "~/cache", "--fill 1GB/s");
    headstart_testkit::wait::wait_until("it is right", std::time::Duration::from_secs(60), || {
        attached.metric("headstart_cache_proven_blobs_total", "") == 1
    });
    drop(attached);
    // A read finds it.
    flip(&scene.path("cache"), &layer, |len| len / 2);
    fill(&image, &reference);
    // Verifying the whole cache finds it, too.
    flip(&scene.path("cache"), &layer, |len| len / 2);
    assert_eq!(scene.run("cache verify --dir ~/cache --json").status, Some(1));
    assert_eq!(scene.json("cache verify --dir ~/cache --repair")["wrong_bytes"], len);
    fill(&image, &reference);
}
