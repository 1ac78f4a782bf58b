//! The cache's disk is full, fails, or takes no files at all: disks go on, there is one warning and a count, and when
//! there is room again it is used.

use crate::attached::{Attached, command};
use crate::disk::noise;
use crate::image::Image;
use crate::tools::SmallDisk;
use headstart_testkit::nginx::Nginx;
use headstart_testkit::process::Process;
use headstart_testkit::wait::wait_until;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// The warnings about the cache.
fn said_of_cache(attached: &Attached) -> Vec<String> {
    let warnings = attached.warnings();
    warnings.into_iter().filter(|line| line.contains("the cache cannot be written")).collect()
}

#[test]
fn a_cache_on_a_full_disk_is_bypassed() {
    if !Nginx::is_installed() {
        return;
    }
    let Some(small) = SmallDisk::mount(24 << 20) else { return };
    let image = Image::new(16);
    let nginx = image.serve();
    let cache = small.path().join("cache");
    fs::write(small.path().join("filler"), noise(3, 20 << 20)).unwrap();
    let reference = format!("{}/store:v1", nginx.url());
    let attached = Attached::start(&image.scene, &reference, cache.to_str().unwrap(), "");
    attached.read_all(&image, 256 << 10);
    attached.read_all(&image, 1 << 20);
    assert_eq!(attached.metric("headstart_request_errors_total", ""), 0);
    assert!(attached.metric("headstart_cache_bypassed_bytes_total", "") > 2 << 20);
    let said = said_of_cache(&attached);
    assert!(said.len() == 1 && said[0].contains(cache.to_str().unwrap()), "{said:#?}");
    // There is room again: the next reads fill it.
    fs::remove_file(small.path().join("filler")).unwrap();
    let layer = image.layer().1;
    wait_until("the cache is used again", Duration::from_secs(60), || {
        attached.read_all(&image, 1 << 20);
        // Bytes in memory are not moved.
        attached.metric("headstart_image_local_bytes", "") > layer / 4
    });
    assert_eq!(said_of_cache(&attached).len(), 1);
    drop(attached);
    // The next attach finds it.
    let attached = Attached::start(&image.scene, &reference, cache.to_str().unwrap(), "");
    assert!(attached.metric("headstart_image_local_bytes", "") > layer / 4);
    attached.read_all(&image, 1 << 20);
    wait_until("all is cached", Duration::from_secs(60), || {
        attached.metric("headstart_image_local_bytes", "") == layer
    });
    assert!(said_of_cache(&attached).is_empty());
}

/// Not a byte is left, not even for the files of the blobs.
#[test]
fn a_cache_without_room_for_its_files_is_bypassed() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(4);
    let nginx = image.serve();
    // The shell's `trap` makes the program see an error instead of a signal.
    let (attach, socket) = command(&image.scene, &format!("{}/store:v1", nginx.url()), "~/cache", "");
    let mut limited = Command::new("sh");
    limited.current_dir(image.scene.path("")).args(["-c", "trap '' XFSZ; ulimit -f 400; exec \"$@\"", "sh"]);
    limited.arg(attach.get_program()).args(attach.get_args()).process_group(0);
    let attached = Attached::ready(Process::start(&mut limited), socket);
    attached.read_all(&image, 64 << 10);
    attached.read_all(&image, 64 << 10);
    assert!(attached.metric("headstart_cache_bypassed_bytes_total", "") > 1 << 20);
    assert_eq!(attached.metric("headstart_request_errors_total", ""), 0);
    let said = said_of_cache(&attached);
    assert_eq!(said.len(), 1, "{said:#?}");
}

/// The state of a file system after an I/O error: it cannot be written any more.
#[test]
fn a_cache_on_a_read_only_disk_is_bypassed() {
    if !Nginx::is_installed() {
        return;
    }
    let Some(small) = SmallDisk::mount(24 << 20) else { return };
    let image = Image::new(4);
    let nginx = image.serve();
    let (cache, reference) = (small.path().join("cache"), format!("{}/store:v1", nginx.url()));
    Attached::start(&image.scene, &reference, cache.to_str().unwrap(), "").read_all(&image, 1 << 20);
    let mut mount = Command::new("mount");
    assert!(mount.args(["-o", "remount,ro"]).arg(small.path()).status().unwrap().success());
    let mut attached = Attached::start(&image.scene, &reference, cache.to_str().unwrap(), "");
    attached.read_all(&image, 64 << 10);
    attached.read_all(&image, 1 << 20);
    assert_eq!(attached.metric("headstart_request_errors_total", ""), 0);
    let warnings = attached.warnings();
    let said: Vec<_> = warnings.iter().filter(|line| line.contains("attached without a cache")).collect();
    assert!(said.len() == 1 && said[0].contains(cache.to_str().unwrap()), "{warnings:#?}");
    attached.detach();
}

/// Files of blobs that cannot be opened, and others that are cut off: the disk attaches anyway.
#[test]
fn a_cache_with_broken_files_is_bypassed() {
    if !Nginx::is_installed() {
        return;
    }
    let image = Image::new(4);
    let (nginx, (layer, _)) = (image.serve(), image.layer());
    let reference = format!("{}/store:v1", nginx.url());
    let attach = || Attached::start(&image.scene, &reference, "~/cache", "");
    attach().read_all(&image, 1 << 20);
    let files = |end: &str| {
        let names = image.scene.names("cache").into_iter().filter(|name| name.ends_with(end));
        names.map(|name| image.scene.path("cache").join(name)).collect::<Vec<_>>()
    };
    for map in files(".map") {
        fs::File::options().write(true).open(map).unwrap().set_len(4500).unwrap();
    }
    let attached = attach();
    attached.read_all(&image, 1 << 20);
    assert!(attached.warnings().iter().any(|line| line.contains(&layer)), "{:?}", attached.warnings());
    drop(attached);
    // A directory in their place can be neither opened nor removed.
    for map in files(".map") {
        fs::remove_file(&map).unwrap();
        fs::create_dir_all(map.join("something")).unwrap();
    }
    let mut attached = attach();
    attached.read_all(&image, 64 << 10);
    assert_eq!(attached.metric("headstart_request_errors_total", ""), 0);
    assert!(attached.metric("headstart_cache_bypassed_bytes_total", "") > 1 << 20);
    let warnings = attached.warnings();
    let said: Vec<_> = warnings.iter().filter(|line| line.contains("a cached blob cannot be used")).collect();
    // The layer and its hash tree have one warning each.
    assert!(said.len() == 2 && said.iter().any(|line| line.contains(&layer)), "{warnings:#?}");
    attached.detach();
}
