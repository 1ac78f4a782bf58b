//! Goal: a file that is shortened under its mapping costs only the mapping's user. Method: files are
//! mapped, shortened, and touched; what is to end the process does so in one that is started for it.

#![allow(clippy::unwrap_used, reason = "tests")]

use headstart_sigbus::{Guard, Lost};
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const LEN: usize = 64 << 10;

/// A mapped file, all of ones.
fn mapped() -> (File, MmapRaw) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(LEN as u64).unwrap();
    let map = MmapOptions::new().len(LEN).map_raw(&file).unwrap();
    (0..LEN).for_each(|at| put(&map, at, 1));
    (file, map)
}

fn guard(map: &MmapRaw, lost: &Lost) -> Guard {
    // SAFETY: the tests drop guards before mappings, and touch them by volatile accesses alone.
    unsafe { Guard::new(map.as_ptr(), map.len(), lost.clone()) }.unwrap()
}

fn get(map: &MmapRaw, at: usize) -> u8 {
    assert!(at < map.len());
    // SAFETY: inside the mapping.
    unsafe { map.as_ptr().add(at).read_volatile() }
}

fn put(map: &MmapRaw, at: usize, byte: u8) {
    assert!(at < map.len());
    // SAFETY: inside the mapping.
    unsafe { map.as_mut_ptr().add(at).write_volatile(byte) }
}

#[test]
fn a_shortened_file_is_zeros_and_its_neighbours_stay() {
    let ((file, map), (_other_file, other)) = (mapped(), mapped());
    let (lost, others) = (Lost::default(), Lost::default());
    let (_guard, _other_guard) = (guard(&map, &lost), guard(&other, &others));
    assert_eq!(get(&map, LEN - 1), 1);
    assert!(!lost.is_set());
    file.set_len(4096).unwrap();
    assert_eq!((get(&map, 5), lost.is_set()), (1, false), "what is left is read as ever");
    assert_eq!((get(&map, LEN - 1), lost.is_set()), (0, true));
    put(&map, LEN - 1, 7);
    assert_eq!((get(&map, LEN - 1), get(&map, 5)), (7, 0));
    assert_eq!((get(&other, LEN - 1), others.is_set()), (1, false));
}

#[test]
fn many_regions_are_lost_at_once_from_many_threads() {
    let all: Vec<_> = (0..200).map(|_| (mapped(), Lost::default())).collect();
    let guards: Vec<_> = all.iter().map(|((_, map), lost)| guard(map, lost)).collect();
    all.iter().step_by(2).for_each(|((file, _), _)| file.set_len(0).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let all = &all;
            scope.spawn(move || {
                for ((_, map), _) in all {
                    get(map, thread * 4096);
                    // Slots come and go meanwhile.
                    let (_file, map) = mapped();
                    drop(guard(&map, &Lost::default()));
                }
            });
        }
    });
    for (number, ((_, map), lost)) in all.iter().enumerate() {
        assert_eq!((lost.is_set(), get(map, 0)), (number % 2 == 0, u8::from(number % 2 == 1)));
    }
    drop(guards);
}

/// Also a region whose guard is gone.
#[test]
fn a_fault_outside_of_guarded_maps_ends_the_process() {
    const CHILD: &str = "HEADSTART_SIGBUS_CHILD";
    let name = "a_fault_outside_of_guarded_maps_ends_the_process";
    if std::env::var_os(CHILD).is_some() {
        let ((_kept_file, kept), (file, map)) = (mapped(), mapped());
        let _kept = guard(&kept, &Lost::default());
        drop(guard(&map, &Lost::default()));
        file.set_len(0).unwrap();
        get(&map, 0);
        std::process::exit(0);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let status = command.args([name, "--exact"]).env(CHILD, "1").output().unwrap().status;
    assert_eq!(status.signal(), Some(7), "{status}");
}
