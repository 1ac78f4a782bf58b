//! While it runs: metrics, reports, signals, preloading, filling, limits.

use crate::attached::{Attached, Metrics, TIMEOUT};
use crate::disk::noise;
use crate::images::{Web, can_check_bytes, check_bytes, layered, noisy, tool};
use crate::scene::{CommandRun, Scene};
use crate::tools::installed;
use headstart_testkit::faults::{Fault, FaultRule};
use headstart_testkit::files::cached_bytes;
use headstart_testkit::wait::wait_for_value;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::Signal;
use serde_json::Value;
use std::cell::Cell;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

const METRICS: &str = "--cache ~/cache --metrics 127.0.0.1:0";

/// Checks that every histogram's buckets rise to its count, and that its sum is within its buckets' bounds.
fn check_histograms(metrics: &Metrics) {
    let mut series = HashMap::<(String, String), Vec<(f64, f64)>>::new();
    for sample in metrics.samples.iter().filter(|sample| sample.name.ends_with("_bucket")) {
        let key = |name| sample.label(name).unwrap().to_owned();
        let bound = match sample.label("le").unwrap() {
            "+Inf" => f64::INFINITY,
            bound => bound.parse().unwrap(),
        };
        series.entry((key("disk"), key("kind"))).or_default().push((bound, sample.value));
    }
    assert!(!series.is_empty());
    for ((disk, kind), buckets) in series {
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{kind}: {buckets:?}");
        assert_eq!(buckets.last().unwrap().0, f64::INFINITY);
        let labels = [("disk", disk.as_str()), ("kind", kind.as_str())];
        let count = metrics.sum("headstart_request_seconds_count", &labels);
        assert_eq!(buckets.last().unwrap().1, count, "{kind}");
        let (mut least, mut most, mut before) = (0.0, 0.0, (0.0, 0.0));
        for bucket in buckets {
            least += (bucket.1 - before.1) * before.0;
            most += if bucket.1 > before.1 { (bucket.1 - before.1) * bucket.0 } else { 0.0 };
            before = bucket;
        }
        let sum = metrics.sum("headstart_request_seconds_sum", &labels);
        assert!(least <= sum && sum <= most, "{kind}: {least} <= {sum} <= {most}");
    }
}

/// Room for open files that is made later, beside threads, takes the kernel 10 ms each time: 40 ms for 70 layers.
#[test]
fn there_is_room_for_the_files_of_many_layers_from_the_start() {
    let scene = noisy(1);
    let mut attached = Attached::start(&scene, "vm=file://~/store:v1 --nbd unix:~/d.sock --no-record");
    let status = fs::read_to_string(format!("/proc/{}/status", attached.process().id())).unwrap();
    let room = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
    assert_eq!(room.trim(), "1024");
    attached.detach();
}

#[test]
fn metrics_count_what_was_done() {
    let scene = noisy(8);
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let words = format!("vm={} --writable ~/vm --nbd unix:~/d.sock {METRICS}", web.image());
    let attached = Attached::start(&scene, &words);
    let before = attached.metrics();
    check_histograms(&before);
    for kind in ["hit", "miss", "write", "flush"] {
        assert_eq!(before.requests(kind), 0.0, "{kind}");
    }
    let script = "for i in range(10): h.pread(4096, 1048576 + i * 262144)\n\
                  for i in range(10): h.pread(4096, 1048576 + i * 262144)\n\
                  for i in range(5): h.pwrite(b'x' * 8192, 65536 * i)\n\
                  h.zero(65536, 4194304)\n\
                  h.flush(); h.flush()\n\
                  h.set_strict_mode(0)\n\
                  try: h.pread(4096, 8388608)\n\
                  except nbd.Error: pass\n";
    tool(&scene, "nbdsh", &["-u", &attached.uri(), "-c", script]);
    // The rests of the two blocks may still be on their way. If a read did not wait for a stream that would have
    // delivered its bytes later, they came twice, and if a stream was ended, some came in vain.
    let nearly = |bytes: f64, all: f64| (all * 0.9..=all).contains(&bytes);
    attached.wait_for("all that the store sent", |metrics| {
        let kept = metrics.sum("headstart_cache_inserted_bytes_total", &[]);
        let blocks = metrics.sum("headstart_image_local_bytes", &[]) >= f64::from(4 << 20);
        blocks && nearly(kept, web.reads(&scene).sent() as f64)
    });
    let after = attached.metrics();
    check_histograms(&after);
    let vm = [("disk", "vm")];
    assert_eq!(after.requests("hit") + after.requests("miss"), 20.0);
    let misses = after.requests("miss");
    assert!((1.0..=10.0).contains(&misses), "{misses}");
    assert_eq!(after.requests("write"), 6.0);
    assert!(after.requests("flush") >= 2.0);
    assert_eq!(after.sum("headstart_read_bytes_total", &vm), 20.0 * 4096.0);
    assert_eq!(after.sum("headstart_written_bytes_total", &vm), 5.0 * 8192.0 + 65536.0);
    assert_eq!(after.sum("headstart_request_errors_total", &vm), 0.0);
    assert_eq!(after.sum("headstart_waiting_reads", &vm), 0.0);
    // The store's bytes were seen by the proxy, and are in the cache.
    let sent = web.reads(&scene).sent() as f64;
    let (came, kept) = (
        after.sum("headstart_store_bytes_total", &[]),
        after.sum("headstart_cache_inserted_bytes_total", &[]),
    );
    assert!(nearly(came, sent) && nearly(kept, sent) && kept <= came, "{kept} of {came} of {sent}");
    let local = after.sum("headstart_image_local_bytes", &vm);
    let all = after.sum("headstart_image_bytes", &vm);
    assert!(local > 10.0 * 4096.0 && local <= sent && local < all * 0.7, "{local} of {all}, {sent} sent");
    assert!(after.sum("headstart_store_requests_total", &[]) >= misses);
    assert!(after.sum("headstart_pull_fetches_total", &[("priority", "miss")]) >= 1.0);
    for sample in &after.samples {
        let earlier = before.samples.iter().find(|s| s.name == sample.name && s.labels == sample.labels);
        let falls = earlier.is_some_and(|earlier| earlier.value > sample.value);
        assert!(!falls || !sample.name.ends_with("_total"), "{sample:?} was {earlier:?}");
    }
    let report = attached.detach();
    assert_eq!(report["reads"], 20);
    let sent = web.reads(&scene).sent() as f64;
    assert!(report["fetched_bytes"].as_f64().is_some_and(|came| nearly(came, sent)), "{report}, {sent} sent");
}

#[test]
fn signals_detach_in_good_order() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    if !installed(&["nbdsh"]) || !can_check_bytes() {
        return;
    }
    let fuse = rustix::process::geteuid().is_root() && fs::File::open("/dev/fuse").is_ok();
    fs::create_dir(scene.path("mnt")).unwrap();
    let mut expected = scene.bytes("disk.raw");
    for (n, signal) in [Signal::TERM, Signal::INT, Signal::HUP].into_iter().enumerate() {
        let fuse = if fuse { "--fuse ~/mnt" } else { "" };
        let words = format!(
            "{} {METRICS} --writable ~/vm --nbd unix:~/d.sock --vhost-user ~/v.sock {fuse}",
            web.image()
        );
        let attached = Attached::start(&scene, &words);
        let bytes = noise(n as u64, 100_000);
        fs::write(scene.path("bytes"), &bytes).unwrap();
        let at = n << 20;
        expected[at..at + bytes.len()].copy_from_slice(&bytes);
        let script = format!("h.pwrite(open('bytes','rb').read(), {at})");
        tool(&scene, "nbdsh", &["-u", &attached.uri(), "-c", &script]);
        let began = Instant::now();
        attached.detach_by(signal);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(!scene.path("d.sock").exists() && !scene.path("v.sock").exists());
        assert_eq!(scene.names("mnt"), [""; 0]);
    }
    fs::write(scene.path("expected.raw"), expected).unwrap();
    let attached = Attached::start(&scene, "file://~/store:v1 --writable ~/vm");
    check_bytes(&scene, "expected.raw", &attached.uri());
    attached.detach();
}

/// Programs send several signals for one request to stop; a second request would leave the socket behind.
#[test]
fn signals_that_come_together_detach_in_good_order() {
    let scene = layered();
    let (term, int, hup) = (Signal::TERM, Signal::INT, Signal::HUP);
    for signals in [[term, hup, term], [hup, hup, term], [term, term, term], [int, int, term]] {
        let mut attached = Attached::start(&scene, "file://~/store:v1 --nbd unix:~/d.sock");
        signals.iter().for_each(|signal| attached.process().signal(*signal));
        assert_eq!(attached.process().end(TIMEOUT).code(), Some(0), "{signals:?}: {}", attached.output());
        assert!(!scene.path("d.sock").exists(), "{signals:?}");
    }
}

#[test]
fn a_signal_while_attaching_ends_it() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    web.proxy.add(FaultRule::new(Fault::Hang { after: None }));
    for signal in [Signal::TERM, Signal::INT] {
        web.proxy.clear_log();
        let mut started = scene.start(&format!("attach {} {METRICS} --nbd unix:~/d.sock", web.image()));
        web.proxy.wait("request", TIMEOUT, |log| !log.is_empty());
        assert!(started.is_running());
        let began = Instant::now();
        started.signal(signal);
        started.finish().fails(&["stopped"]);
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        assert!(!scene.path("d.sock").exists());
    }
}

#[test]
fn people_are_told_how_to_use_it() {
    let scene = layered();
    let mut started = scene.start("attach file://~/store:v1 --nbd unix:~/d.sock --metrics 127.0.0.1:0");
    started.wait_until("its socket is there", || scene.path("d.sock").exists());
    std::thread::sleep(Duration::from_millis(100));
    started.signal(Signal::INT);
    let CommandRun { stdout, .. } = started.finish().succeeds();
    let lines: Vec<_> = stdout.lines().collect();
    assert!(lines[0].contains("/store:v1 is a disk of 16 MiB, read-only, after "), "{stdout}");
    assert!(lines[1].starts_with("  nbd+unix:///?socket=/") && lines[1].ends_with("/d.sock"), "{stdout}");
    assert!(lines[2].contains("qemu-system-x86_64") && lines[2].contains("snapshot=on"), "{stdout}");
    assert!(lines[3].starts_with("  metrics: http://127.0.0.1:"), "{stdout}");
    let end = ["detached: 0 reads", "recorded nothing: nothing was read"];
    assert_eq!(&lines[4..], [&["Ctrl-C detaches (twice while a client is connected)."], &end[..]].concat());
}

/// Waits until all requested bytes of the store have come, and none have been stored for a second.
#[track_caller]
fn comes_to_rest(attached: &Attached, web: &Web) {
    let seen = Cell::new((0.0, Instant::now()));
    attached.wait_for("rest", |metrics| {
        let local = metrics.sum("headstart_image_local_bytes", &[]);
        if local != seen.get().0 || web.proxy.log().iter().any(|request| request.finished.is_none()) {
            seen.set((local, Instant::now()));
        }
        seen.get().1.elapsed() > Duration::from_secs(1)
    });
}

#[test]
fn a_sequential_preload_brings_all_before_it_is_read() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let attached = Attached::start(&scene, &format!("{} {METRICS} --policy sequential", web.image()));
    attached.wait_for("end of the preload", |metrics| {
        metrics.sum("headstart_image_local_bytes", &[]) >= metrics.sum("headstart_image_bytes", &[]) * 0.97
            && metrics.sum("headstart_pull_fetches_total", &[("priority", "preload")]) > 0.0
    });
    comes_to_rest(&attached, &web);
    check_bytes(&scene, "disk.raw", &attached.uri());
    let metrics = attached.metrics();
    assert_eq!(metrics.requests("miss"), 0.0);
    assert_eq!(metrics.sum("headstart_pull_fetches_total", &[("priority", "miss")]), 0.0);
    attached.detach();
}

#[test]
fn a_list_of_blocks_is_preloaded_and_no_other() {
    let scene = noisy(16);
    let Some(web) = Web::before(&scene) else { return };
    if !installed(&["nbdsh"]) {
        return;
    }
    fs::write(scene.path("list"), "6\n1\n\n3\n").unwrap();
    let attached = Attached::start(&scene, &format!("{} {METRICS} --policy ~/list", web.image()));
    let three = f64::from(3 * (2 << 20));
    let metrics = attached.wait_for("preload", |metrics| {
        metrics.sum("headstart_pull_fetched_bytes_total", &[("priority", "preload")]) >= three
            && metrics.sum("headstart_image_local_bytes", &[]) >= three
    });
    comes_to_rest(&attached, &web);
    let local = metrics.sum("headstart_image_local_bytes", &[]);
    assert!(local < three * 1.2, "{local}");
    let read = |block: u64| {
        tool(&scene, "nbdsh", &["-u", &attached.uri(), "-c", &format!("h.pread(2097152, {})", block << 21)])
    };
    for block in [1, 3, 6] {
        read(block);
    }
    let hits = attached.metrics();
    // Large reads are served, and counted, in pieces.
    assert!(hits.requests("hit") >= 3.0 && hits.requests("miss") == 0.0, "{}", hits.text);
    read(4);
    assert!(attached.metrics().requests("miss") >= 1.0);
    attached.detach();

    let words = format!("attach {} --cache ~/cache --policy", web.image());
    fs::write(scene.path("list"), "6\nsix\n").unwrap();
    let wrong = scene.run(&format!("{words} ~/list"));
    assert!(wrong.status == Some(2) && wrong.stderr.contains("line 2"), "{wrong}");
    let wrong = scene.run(&format!("{words} eager"));
    assert!(wrong.status == Some(2) && wrong.stderr.contains("none of auto, lazy"), "{wrong}");
}

#[test]
fn filling_keeps_to_its_rate_and_says_how_far_it_is() {
    let scene = noisy(8);
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let began = Instant::now();
    let attached = Attached::start(&scene, &format!("{} {METRICS} --fill 2MB/s", web.image()));
    let half = attached.wait_for("half", |metrics| {
        metrics.sum("headstart_image_local_bytes", &[]) > metrics.sum("headstart_image_bytes", &[]) / 2.0
    });
    let eta = half.sum("headstart_fill_seconds", &[]);
    // Filling would take two seconds without other work of the machine.
    assert!((0.2..40.0).contains(&eta), "{eta}");
    attached.wait_for("full disk", Metrics::all_is_local);
    let took = began.elapsed().as_secs_f64();
    let rate = f64::from(8 << 20) / took;
    // On a busy machine it may be less.
    assert!((1e5..2.3e6).contains(&rate), "{rate} bytes a second");
    let report = attached.detach();
    assert_eq!(report["local_bytes"], report["image_bytes"]);
    // Everything is here: nothing is requested.
    web.proxy.clear_log();
    let again = Attached::start(&scene, &format!("{} {METRICS} --fill 4MB/s", web.image()));
    check_bytes(&scene, "disk.raw", &again.uri());
    again.detach();
    assert_eq!(web.reads(&scene).len(), 0);
}

#[test]
fn the_limit_of_the_rate_holds() {
    let scene = noisy(16);
    let Some(web) = Web::before(&scene) else { return };
    if !installed(&["nbdcopy"]) {
        return;
    }
    let attached = Attached::start(&scene, &format!("{} {METRICS} --limit-rate 8MB/s", web.image()));
    let before = web.reads(&scene).sent();
    let began = Instant::now();
    tool(&scene, "nbdcopy", &[&attached.uri(), "out.raw"]);
    let took = began.elapsed().as_secs_f64();
    crate::disk::assert_same(&scene, "disk.raw", "out.raw");
    // Half a second's worth is free for urgent reads.
    let rate = (web.reads(&scene).sent() - before) as f64 / (took + 0.5);
    // On a busy machine it may be less.
    assert!((5e5..8.8e6).contains(&rate), "{rate} bytes a second");
    attached.detach();
}

#[test]
fn the_cache_keeps_to_its_size() {
    let scene = noisy(16);
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let attached = Attached::start(&scene, &format!("{} {METRICS} --cache-size 6M", web.image()));
    for _ in 0..2 {
        check_bytes(&scene, "disk.raw", &attached.uri());
    }
    // The sync thread runs every five seconds.
    attached.wait_for("eviction", |metrics| {
        metrics.sum("headstart_cache_evicted_bytes_total", &[]) > 0.0
            && metrics.sum("headstart_image_local_bytes", &[]) <= f64::from(6 << 20)
    });
    check_bytes(&scene, "disk.raw", &attached.uri());
    attached.detach();
    let usage: Value = scene.json("cache usage --dir ~/cache");
    assert!(usage["local_bytes"].as_u64().unwrap() > 0, "{usage}");
}

/// Bytes that the file system holds for the blobs in the cache, and for their maps.
fn held_by_cache(scene: &Scene) -> u64 {
    let files =
        scene.names("cache").into_iter().filter(|name| name.ends_with(".data") || name.ends_with(".map"));
    // A file that was removed meanwhile holds nothing.
    files
        .filter_map(|name| scene.path("cache").join(name).metadata().ok())
        .map(|file| file.blocks() * 512)
        .sum()
}

/// A process that was stopped while it evicted holds the evictor's lock: no other process makes room.
#[test]
fn the_cache_keeps_to_its_size_beside_an_evictor_that_does_not_end() {
    const SIZE: u64 = 6 << 20;
    // The image is larger than the cache and the process's memory (32 MiB) together: each reading fetches some of it.
    let scene = noisy(44);
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let attached = Attached::start(&scene, &format!("{} {METRICS} --cache-size 6M", web.image()));
    let evicting = fs::File::options().write(true).open(scene.path("cache/evict")).unwrap();
    fcntl_lock(&evicting, FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| check_bytes(&scene, "disk.raw", &attached.uri()));
        while !reading.is_finished() {
            let held = held_by_cache(&scene);
            assert!(held <= SIZE + (256 << 10), "{held} bytes");
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let metrics = attached.metrics();
    assert!(metrics.sum("headstart_cache_bypassed_bytes_total", &[]) > 0.0, "{}", metrics.text);
    assert_eq!(metrics.sum("headstart_cache_evicted_bytes_total", &[]), 0.0);
    let is_it = |line: &&str| line.contains("another thread or process that evicts from it does not end");
    let read = || {
        tool(&scene, "nbdcopy", &[&attached.uri(), "out.raw"]);
        attached.output()
    };
    let said = wait_for_value("warning", TIMEOUT, read, |said| said.lines().any(|line| is_it(&line)));
    let line = said.lines().find(is_it).unwrap();
    let names = line.matches(scene.path("cache").to_str().unwrap()).count();
    assert!(names == 1 && line.contains("end the program that evicts"), "{line}");
    // Once it is over, the cache stores read bytes again.
    fcntl_lock(&evicting, FlockOperation::Unlock).unwrap();
    let inserted = metrics.sum("headstart_cache_inserted_bytes_total", &[]);
    attached.wait_for("eviction and inserts", |metrics| {
        tool(&scene, "nbdcopy", &[&attached.uri(), "out.raw"]);
        metrics.sum("headstart_cache_evicted_bytes_total", &[]) > 0.0
            && metrics.sum("headstart_cache_inserted_bytes_total", &[]) > inserted
    });
    attached.detach();
}

/// Bytes of the cache's data in the kernel's page cache. `None` if that cannot be seen here.
fn pages_of_cache(scene: &Scene) -> Option<u64> {
    let files = scene.names("cache").into_iter().filter(|name| name.ends_with(".data"));
    files.map(|name| cached_bytes(&scene.path("cache").join(name))).sum()
}

#[test]
fn decoded_bytes_leave_the_page_cache() {
    let scene = noisy(16);
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    for (way, leaves) in [("drop", true), ("auto", true), ("keep", false)] {
        let _ = fs::remove_dir_all(scene.path("cache"));
        let attached = Attached::start(&scene, &format!("{} {METRICS} --page-cache {way}", web.image()));
        check_bytes(&scene, "disk.raw", &attached.uri());
        let Some(before) = pages_of_cache(&scene) else { return };
        if leaves {
            // The sync thread runs every five seconds.
            attached
                .wait_for("the pages to go", |_| pages_of_cache(&scene).is_some_and(|pages| pages < 4 << 20));
        } else {
            std::thread::sleep(Duration::from_secs(6));
            assert!(before >= 16 << 20 && pages_of_cache(&scene) >= Some(before), "{before} bytes");
        }
        check_bytes(&scene, "disk.raw", &attached.uri());
        attached.detach();
    }
}
