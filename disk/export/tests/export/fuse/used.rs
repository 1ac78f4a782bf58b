//! A file system on a loop device on the file, used as people use it.

use super::loop_device::{FileSystem, LoopDevice};
use super::sparse_disk::SparseDisk;
use super::{Mounted, content, run};
use headstart_testkit::process::{has_fuse, installed};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;

/// The start of the file system, as of a partition.
const START: u64 = 1 << 20;

/// Writes, overwrites, truncates and removes files; returns their content in the end.
fn random_load(directory: &Path, seed: u64) -> BTreeMap<String, Vec<u8>> {
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut state = seed;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    for round in 0..120 {
        let name = format!("{seed}-{}", random(20));
        let path = directory.join(&name);
        if random(8) == 0 {
            let _ = fs::remove_file(&path);
            files.remove(&name);
            continue;
        }
        let file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).unwrap();
        let held = files.entry(name).or_default();
        let (at, len) = (random(300_000), random(100_000));
        let data = content(len, seed ^ round);
        file.write_all_at(&data, at as u64).unwrap();
        if held.len() < at + len {
            held.resize(at + len, 0);
        }
        held[at..at + len].copy_from_slice(&data);
        match random(6) {
            0 => file.sync_all().unwrap(),
            1 => {
                let len = random(held.len() + 1);
                file.set_len(len as u64).unwrap();
                held.truncate(len);
            }
            _ => {}
        }
    }
    files
}

#[test]
fn ext4_on_a_loop_device_survives_a_write_load() {
    if !has_fuse() || !installed(&["mkfs.ext4", "losetup", "mount"]) {
        return;
    }
    for direct in [false, true] {
        let mut mounted = Mounted::new(SparseDisk::new(96 << 20, false));
        let Some(device) = LoopDevice::attach(&mounted.path(), START, direct) else { return };
        run("mkfs.ext4", &["-q", "-F", &device.0]);
        let point = mounted.beside("ext4");
        fs::create_dir(&point).unwrap();
        let file_system = FileSystem::mount(&device, &point);
        let mut expected = BTreeMap::new();
        thread::scope(|scope| {
            let point = &point;
            let threads: Vec<_> = (1..4).map(|seed| scope.spawn(move || random_load(point, seed))).collect();
            for thread in threads {
                expected.extend(thread.join().unwrap());
            }
        });
        run("fstrim", &[point.to_str().unwrap()]);
        drop(file_system);
        run("e2fsck", &["-f", "-n", &device.0]);
        drop(device);
        assert!(mounted.disk.flushes.load(Ordering::Relaxed) > 0, "syncs reach the disk");
        let device = LoopDevice::attach(&mounted.path(), START, !direct).unwrap();
        let file_system = FileSystem::mount(&device, &point);
        let mut names: Vec<_> = fs::read_dir(&point).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.retain(|name| name != "lost+found");
        assert_eq!(names.len(), expected.len());
        for (name, bytes) in &expected {
            assert!(fs::read(point.join(name)).unwrap() == *bytes, "{name}");
        }
        drop(file_system);
        drop(device);
        mounted.stop();
    }
}
