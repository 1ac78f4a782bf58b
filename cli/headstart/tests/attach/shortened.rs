//! Files that a disk has mapped, and that are made shorter by another program while they are used.

use crate::attached::Attached;
use crate::images::{Web, can_check_bytes, check_bytes, noisy, tool};
use crate::tools::installed;
use std::fs::{self, File};
use std::path::PathBuf;

/// All files below a directory that begin with `magic`.
fn files_with(dir: PathBuf, magic: &[u8]) -> Vec<PathBuf> {
    let (mut found, mut dirs) = (Vec::new(), vec![dir]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if fs::read(&path).is_ok_and(|bytes| bytes.starts_with(magic)) {
                found.push(path);
            }
        }
    }
    found
}

/// The disk goes on, with the right bytes: it fetches again what it needs.
#[test]
fn an_emptied_sidecar_of_the_cache_costs_no_disk() {
    let scene = noisy(8);
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() || !installed(&["qemu-io"]) {
        return;
    }
    let words = format!("{} --cache ~/cache --policy none --nbd unix:~/d.sock", web.image());
    let mut attached = Attached::start(&scene, &words);
    let uri = attached.uri();
    tool(&scene, "qemu-io", &["-r", "-f", "raw", &uri, "-c", "read 0 1M", "-c", "read 5M 1M"]);
    let sidecars = files_with(scene.path("cache"), b"hs-cache");
    assert!(!sidecars.is_empty());
    for path in &sidecars {
        File::options().write(true).open(path).unwrap().set_len(0).unwrap();
    }
    check_bytes(&scene, "disk.raw", &uri);
    let said = attached.warning();
    assert!(said.contains("a file of the cache was shortened"), "{said}");
    attached.detach();
    // The next process does not trust the rest of it.
    let attached = Attached::start(&scene, &words);
    check_bytes(&scene, "disk.raw", &uri);
    attached.detach();
}
