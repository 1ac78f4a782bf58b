//! Preloading by long requests: one after the other, beside reads, with others, and broken off.

use super::*;
use headstart_pull::Plan;

/// The tries of a test, `true` for the last: a machine that stands still looks like a store that does, but not each
/// time.
const TRIES: [bool; 5] = [false, false, false, false, true];

/// A disk whose preloading begins at once, in as few requests as possible.
fn preloading() -> DiskOptions {
    let pull = headstart_pull::EngineSettings {
        miss_rest: headstart_pull::MissRest::None,
        deadline: LIMIT,
        ..headstart_pull::EngineSettings::default()
    };
    DiskOptions { pull, plan: Plan::Sequential, ..DiskOptions::default() }
}

fn wait_until_whole(disk: &Disk) {
    wait_until("the disk is whole", LIMIT, || disk.read_local_at(&mut vec![0; DISK], 0).is_ok());
}

#[test]
fn a_sequential_plan_is_one_request() {
    for last in TRIES {
        let rig = Rig::new();
        let disk = rig.try_attach(&rig.host(), &preloading()).unwrap().disk;
        let opened = rig.store.requests.load(Ordering::Relaxed);
        wait_until_whole(&disk);
        rig.check(&disk, 0, DISK);
        let streams = rig.store.streams.load(Ordering::Relaxed);
        // Pages of the hash tree, the first small request, and those that were on their way when it was counted.
        let requests = rig.store.requests.load(Ordering::Relaxed) - opened;
        let is_one = streams == 1 && requests <= 4;
        assert!(is_one || !last, "{streams} streams, {requests} requests");
        if is_one {
            return rig.check_given_once();
        }
    }
}

#[test]
fn a_stream_that_breaks_keeps_what_came() {
    for last in TRIES {
        let rig = Rig::new();
        rig.store.breaks_after.store(60, Ordering::Relaxed);
        let disk = rig.try_attach(&rig.host(), &preloading()).unwrap().disk;
        wait_until_whole(&disk);
        rig.check(&disk, 0, DISK);
        let streams = rig.store.streams.load(Ordering::Relaxed);
        let given = rig.store.given.lock().unwrap();
        let twice = given.values().filter(|times| **times > 1).count();
        // The bytes that were not yet a whole piece when it broke.
        let is_kept = streams == 2 && twice <= 2 * (256 << 10) / 4096;
        assert!(is_kept || !last, "{streams} streams, {twice}");
        if is_kept {
            return;
        }
    }
}

#[test]
fn wrong_bytes_in_a_stream_are_fetched_again() {
    let rig = Rig::new();
    rig.store.wrong_at.lock().unwrap().extend([(2 << 20, 2), (3_000_001, 1)]);
    let disk = rig.try_attach(&rig.host(), &preloading()).unwrap().disk;
    wait_until_whole(&disk);
    rig.check(&disk, 0, DISK);
    assert!(rig.store.streams.load(Ordering::Relaxed) >= 4);
}

/// A slow stream: reads far ahead in it have their bytes before the stream is there, on the same disk and on others.
#[test]
fn no_read_waits_for_a_stream() {
    const FAR: usize = 6 << 20;
    for last in TRIES {
        let rig = Rig::new();
        *rig.store.part_delay.lock().unwrap() = Duration::from_millis(50);
        let host = rig.host();
        let disk = rig.try_attach(&host, &preloading()).unwrap().disk;
        let lazy = DiskOptions { plan: Plan::Lazy, ..preloading() };
        let (same_cache, other_process) =
            (rig.try_attach(&host, &lazy).unwrap().disk, rig.try_attach(&rig.host(), &lazy).unwrap().disk);
        wait_until("the stream flows", LIMIT, || disk.read_local_at(&mut [0; 4096], 0).is_ok());
        for (n, disk) in [&disk, &same_cache, &other_process].into_iter().enumerate() {
            rig.check(disk, FAR + n * 300_000, 4096);
        }
        let is_before = disk.read_local_at(&mut [0; 4096], (FAR - (1 << 20)) as u64).is_err();
        *rig.store.part_delay.lock().unwrap() = Duration::ZERO;
        wait_until_whole(&disk);
        rig.check(&disk, 0, DISK);
        let streams = rig.store.streams.load(Ordering::Relaxed);
        let is_right = is_before && streams == 1;
        assert!(is_right || !last, "read before the stream came: {is_before}, {streams} streams");
        if is_right {
            return;
        }
    }
}

/// A disk that comes second follows the one that came first.
#[test]
fn disks_that_stream_the_same_fetch_each_byte_once() {
    let rig = Rig::new();
    *rig.store.part_delay.lock().unwrap() = Duration::from_millis(5);
    let host = rig.host();
    let hosts = [&host, &host, &rig.host()];
    let disks = hosts.map(|host| rig.try_attach(host, &preloading()).unwrap().disk);
    for disk in &disks {
        wait_until_whole(disk);
        rig.check(disk, 0, DISK);
    }
    let given = rig.store.given.lock().unwrap();
    let twice = given.values().filter(|times| **times > 1).count();
    assert!(twice * 50 < given.len(), "{twice} of {} units", given.len());
}

/// A follower goes on by itself when the stream that it followed goes away.
#[test]
fn a_follower_of_a_stream_goes_on_alone_when_the_stream_ends() {
    let rig = Rig::new();
    *rig.store.part_delay.lock().unwrap() = Duration::from_millis(10);
    let first = rig.try_attach(&rig.host(), &preloading()).unwrap().disk;
    wait_until("the stream flows", LIMIT, || first.read_local_at(&mut [0; 4096], 0).is_ok());
    let second = rig.try_attach(&rig.host(), &preloading()).unwrap().disk;
    std::thread::sleep(Duration::from_millis(200));
    drop(first);
    wait_until_whole(&second);
    rig.check(&second, 0, DISK);
}
