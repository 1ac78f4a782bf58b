//! Ctrl-C, SIGTERM and kill -9 in the middle of work.

use crate::disk::{DiskBuilder, mixed_disk, noise, text};
use crate::scene::{Scene, Started, run_tool};
use crate::tools::{self, installed};
use headstart_block::BlockDevice;
use headstart_lsmt::writable::{NewDisk, WritableDisk};
use headstart_testkit::faults::{Fault, FaultProxy, FaultRule};
use headstart_testkit::nginx::Nginx;
use headstart_testkit::process::Process;
use headstart_testkit::s3::S3;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Options of a compression so slow that there is time to stop it.
const SLOW: &str = "--level 19 --threads 1";

/// The time after which a silent server is given up.
const SILENCE: Duration = Duration::from_secs(15);

/// 100 MiB of text, whose compression takes half a minute.
fn big_disk(scene: &Scene) {
    let disk = DiskBuilder::create(scene.path("big.raw"), 100 << 20);
    let bytes = text(1, 10 << 20);
    for n in 0..10 {
        disk.write(n * (10 << 20), &bytes).write(n * (10 << 20), &n.to_le_bytes());
    }
}

/// The bytes that a writer has staged.
fn staged_bytes(scene: &Scene) -> u64 {
    let dirs = fs::read_dir(scene.path("store/.headstart/staging")).into_iter().flatten().flatten();
    let files = dirs.flat_map(|dir| fs::read_dir(dir.path()).into_iter().flatten().flatten());
    files.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum()
}

/// Starts a command, waits until `begun`, signals it: it reports soon that it was stopped.
#[track_caller]
fn stopped(scene: &Scene, words: &str, signal: Signal, mut begun: impl FnMut(u32) -> bool) {
    let mut started = scene.start(words);
    let pid = started.id();
    started.wait_until("it could be stopped", || begun(pid));
    started.signal(signal);
    let since = Instant::now();
    started.finish().fails(&["stopped on request"]);
    // The work would take half a minute more.
    assert!(since.elapsed() < Duration::from_secs(15), "{words}: {:?} to stop", since.elapsed());
}

#[test]
fn a_stopped_import_leaves_nothing() {
    let scene = Scene::new();
    big_disk(&scene);
    mixed_disk(&scene, "small.raw", 4);
    scene.ok("image import small.raw file://~/store:a");
    let before = scene.fingerprint("store");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let words = format!("image import big.raw file://~/store:big --base file://~/store:a {SLOW}");
        stopped(&scene, &words, signal, |_| staged_bytes(&scene) > 50_000);
        assert_eq!(scene.fingerprint("store"), before);
    }
    scene.ok("image verify --deep file://~/store:a");
}

#[test]
fn a_stopped_flatten_or_commit_leaves_nothing() {
    let scene = Scene::new();
    big_disk(&scene);
    scene.ok("image import big.raw file://~/store:a --codec lz4");
    // The same disk is a writable layer, too.
    let new = NewDisk { size: 100 << 20, parent: String::new(), uuid: Uuid::from_u128(1) };
    let written = WritableDisk::create(scene.path("dir"), None, &new).unwrap();
    for (n, bytes) in scene.bytes("big.raw").chunks(1 << 20).enumerate() {
        written.write_at(bytes, (n as u64) << 20).unwrap();
    }
    written.flush().unwrap();
    drop(written);
    scene.wait_until_unlocked("dir");
    let before = [scene.fingerprint("store"), scene.fingerprint("dir")];
    for words in [
        "image flatten file://~/store:a file://~/store:b",
        "image commit file://~/store:b --writable dir",
        "image commit file://~/store:b --pair dir/data,dir/index",
    ] {
        let words = format!("{words} {SLOW}");
        stopped(&scene, &words, Signal::INT, |_| staged_bytes(&scene) > 50_000);
        assert_eq!([scene.fingerprint("store"), scene.fingerprint("dir")], before, "{words}");
    }
}

#[test]
fn a_stopped_export_leaves_the_older_file() {
    let scene = Scene::new();
    let disk = DiskBuilder::create(scene.path("disk.raw"), 1 << 29);
    let bytes = text(1, 1 << 20);
    for n in 0..512u64 {
        disk.write(n << 20, &bytes);
    }
    scene.ok("image import disk.raw file://~/store:a --codec lz4");
    fs::remove_file(scene.path("disk.raw")).unwrap();
    fs::create_dir(scene.path("out")).unwrap();
    fs::write(scene.path("out/disk"), "old").unwrap();
    for (signal, format) in [(Signal::INT, "raw"), (Signal::TERM, "raw"), (Signal::INT, "qcow2")] {
        let words = format!("image export file://~/store:a -o out/disk --format {format} --threads 1");
        stopped(&scene, &words, signal, |pid| has_unnamed_in(pid, &scene.path("out")));
        assert_eq!(scene.names("out"), ["disk"]);
        assert_eq!(scene.bytes("out/disk"), b"old");
    }
    let packed = "zfile pack big -o out/disk --level 19 --threads 1";
    fs::write(scene.path("big"), text(2, 20 << 20)).unwrap();
    stopped(&scene, packed, Signal::INT, |pid| has_unnamed_in(pid, &scene.path("out")));
    assert_eq!(scene.names("out"), ["disk"]);
}

/// `true` if a process has a file open in a directory that has no name, or a temporary one.
fn has_unnamed_in(pid: u32, dir: &Path) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|file| fs::read_link(file.path()).ok())
        .any(|file| file.parent() == Some(dir) && file.file_name().is_some_and(|name| name != "disk"))
}

/// A `qemu-img` in the scene that converts for ten seconds; the real one does everything else.
fn slow_qemu_img(scene: &Scene) {
    use std::os::unix::fs::PermissionsExt;
    let real = tools::find("qemu-img").unwrap();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = convert ] || exec {} \"$@\"\nfor target; do :; done\n\
         head -c 2000000 /dev/zero > \"$target\"\n\
         for n in 0 1 2 3 4 5 6 7 8 9; do printf '    (%s0.00/100%%)\\r' $n; sleep 1; done\n",
        real.display()
    );
    fs::create_dir(scene.path("bin")).unwrap();
    // Another process writes it: a file that is open for writing, even only in a process that another test is about to
    // start, cannot be executed.
    let write = ["-c", "printf %s \"$1\" > bin/qemu-img", "sh", &script];
    run_tool("sh", &write, &scene.path(""));
    fs::set_permissions(scene.path("bin/qemu-img"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// At a terminal, Ctrl-C goes to `qemu-img`, too: the message is still that it was stopped.
#[test]
fn ctrl_c_during_a_conversion_stops_the_import() {
    use std::os::unix::process::CommandExt;
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 4);
    tools::run(&scene, "qemu-img", "convert -O vhdx disk.raw disk.vhdx");
    scene.ok("image import disk.raw file://~/store:a");
    let before = scene.fingerprint("store");
    slow_qemu_img(&scene);
    let path = format!("{}:{}", scene.path("bin").display(), std::env::var("PATH").unwrap());
    for to_group in [true, false] {
        let words = "image import disk.vhdx file://~/store:b";
        let mut command = scene.command(words);
        let mut started = Started::new(words, command.env("PATH", &path).process_group(0));
        started.wait_until("it could be stopped", || staged_bytes(&scene) > 1 << 20);
        let pid = rustix::process::Pid::from_raw(started.id().cast_signed()).unwrap();
        if to_group {
            rustix::process::kill_process_group(pid, Signal::INT).unwrap();
        } else {
            started.signal(Signal::TERM);
        }
        started.finish().fails(&["stopped on request"]);
        assert_eq!(scene.fingerprint("store"), before);
    }
}

/// One signal ends a command that waits for a server that accepts and never answers: `timeout`, systemd and CI send
/// one.
#[test]
fn one_signal_ends_what_waits_for_a_silent_server() {
    let scene = Scene::new();
    mixed_disk(&scene, "small.raw", 4);
    scene.ok("image import small.raw file://~/store:a");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    // A second connection is not taken for the next command.
    let forget = || {
        server.set_nonblocking(true).unwrap();
        while server.accept().is_ok() {}
        server.set_nonblocking(false).unwrap();
    };
    let (store, plain) = (format!("oci://{address}/r"), format!("--plain-http {address} --limit-rate 1B/s"));
    for (words, signal) in [
        (format!("image inspect {store}:a {plain}"), Signal::TERM),
        (format!("image verify {store}:a {plain}"), Signal::INT),
        (format!("image list {store} {plain}"), Signal::HUP),
        (format!("image pull {store}:a file://~/pulled {plain}"), Signal::TERM),
        (format!("image push file://~/store:a {store}:a {plain}"), Signal::INT),
        (format!("image optimize {store}:a file://~/store:b {plain}"), Signal::TERM),
        (format!("plan show --reference {store}:a --bandwidth 10 {plain}"), Signal::INT),
    ] {
        let started = scene.start(&words);
        let _client = server.accept().unwrap();
        stopped_soon(started, signal);
        forget();
    }
    assert!(!scene.path("pulled").exists(), "it was not begun");
    let plain = format!("--plain-http {address}");
    for (words, signal) in [
        (format!("image prune s3://b/vm {plain}"), Signal::TERM),
        (format!("image remove s3://b/vm:a {plain}"), Signal::INT),
        (format!("lease list s3://b/vm {plain}"), Signal::HUP),
        (format!("lease release s3://b/vm --all {plain}"), Signal::INT),
    ] {
        let mut command = scene.command(&words);
        command.envs(S3::environment(&format!("http://{address}")));
        let started = Started::new(&words, &mut command);
        let _client = server.accept().unwrap();
        stopped_soon(started, signal);
        forget();
    }
    // The same holds for stuck daemons.
    let socket = scene.path("s.sock");
    let daemon = UnixListener::bind(&socket).unwrap();
    fs::create_dir(scene.path("harvest")).unwrap();
    fs::hard_link(&socket, scene.path("harvest/harvest.sock")).unwrap();
    for words in ["disk list --agent s.sock", "swarm status --agent s.sock", "harvest status --dir harvest"] {
        let started = scene.start(words);
        let _client = daemon.accept().unwrap();
        stopped_soon(started, Signal::TERM);
    }
}

/// A command that is stopped while it reads a layer of a store reports that, and calls no blob damaged.
#[test]
fn a_stopped_read_of_a_store_is_not_called_damage() {
    if !Nginx::is_installed() {
        return;
    }
    let scene = Scene::new();
    mixed_disk(&scene, "small.raw", 4);
    let digest = scene.json("image import small.raw file://~/store:a")["digest"].clone();
    let layer = scene.manifest("store", &digest)["layers"][0]["digest"].as_str().unwrap()[7..].to_owned();
    let server = Nginx::serve(&scene.path("store"));
    let proxy = FaultProxy::start(server.addr());
    proxy.add(FaultRule::new(Fault::Hang { after: Some(0) }).on_path(&layer));
    for signal in [Signal::INT, Signal::TERM] {
        proxy.clear_log();
        let started = scene.start(&format!("image inspect {}/:a", proxy.url()));
        proxy.wait("the layer is read", Duration::from_secs(60), |log| {
            log.iter().any(|request| request.asked.path.contains(&layer))
        });
        let since = Instant::now();
        started.signal(signal);
        let run = started.finish().fails(&["stopped on request"]);
        assert!(since.elapsed() < SILENCE, "{:?}: {run}", since.elapsed());
        assert!(!run.stderr.contains("damaged") && !run.stderr.contains("import it again"), "{run}");
    }
}

/// A command that waits for a silent server reports that, long before it gives up.
#[test]
fn a_silent_server_is_reported() {
    let scene = Scene::new();
    mixed_disk(&scene, "small.raw", 4);
    scene.ok("image import small.raw file://~/store:a");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let (store, plain) = (format!("oci://{address}/r"), format!("--plain-http {address}"));
    let all = [
        (format!("image inspect {store}:a {plain}"), store.clone()),
        (format!("image push file://~/store:a {store}:a {plain}"), store),
        (format!("image inspect http://{address}/i:a {plain}"), format!("http://{address}/i")),
        (format!("lease list s3://b/vm {plain}"), "s3://b/vm".to_owned()),
    ];
    let started = all.map(|(words, name)| {
        let mut command = scene.command(&words);
        command.envs(S3::environment(&format!("http://{address}")));
        (Process::start(&mut command), name)
    });
    for (mut started, name) in started {
        let is_it = |line: &str| line.contains("has not answered yet");
        let line = started.line("that it waits", Duration::from_secs(60), is_it);
        assert!(line.contains(&name) && line.contains("15 s"), "{line}");
        assert!(started.is_running(), "{started}");
    }
}

/// The same holds for one that got the manifest, and waits for a layer.
#[test]
fn a_layer_that_does_not_come_is_reported() {
    if !Nginx::is_installed() {
        return;
    }
    let scene = Scene::new();
    mixed_disk(&scene, "small.raw", 4);
    let digest = scene.json("image import small.raw file://~/store:a")["digest"].clone();
    let layer = scene.manifest("store", &digest)["layers"][0]["digest"].as_str().unwrap()[7..].to_owned();
    let server = Nginx::serve(&scene.path("store"));
    let proxy = FaultProxy::start(server.addr());
    proxy.add(FaultRule::new(Fault::Hang { after: Some(0) }).on_path(&layer));
    let is_it = |line: &str| line.contains("nothing comes from");
    let image = format!("{}/:a", proxy.url());
    let start = |words: &str| Process::start(&mut scene.command(words));
    let mut quiet = start(&format!("image pull {image} file://~/quiet --quiet"));
    let told = [
        format!("image inspect {image}"),
        format!("image pull {image} file://~/pulled --json"),
        format!("image pull {image} file://~/limited --limit-rate 100MB/s"),
    ];
    let mut told = told.map(|words| start(&words));
    for told in &mut told {
        let line = told.line("that it waits", Duration::from_secs(60), is_it);
        assert!(line.contains(&proxy.url()) && line.contains("15 s"), "{line}");
        assert!(told.is_running(), "{told}");
    }
    proxy.wait("the layer is read by all", Duration::from_secs(60), |log| {
        log.iter().filter(|request| request.asked.path.contains(&layer)).count() >= 4
    });
    quiet.stop(Duration::from_secs(60));
    assert!(!quiet.output().lines().any(is_it), "{quiet}");
}

/// Signals a command: it reports that it was stopped, long before the server would be given up.
#[track_caller]
fn stopped_soon(started: Started, signal: Signal) {
    started.signal(signal);
    let since = Instant::now();
    let run = started.finish().fails(&["stopped on request"]);
    assert!(since.elapsed() < SILENCE, "{:?}: {run}", since.elapsed());
    assert!(!run.stderr.contains("by force"), "{run}");
}

/// A copy that is limited by a rate ends like any other, and reports the copied part.
#[test]
fn a_stopped_copy_says_what_is_there_and_goes_on() {
    let scene = Scene::new();
    mixed_disk(&scene, "small.raw", 4);
    scene.ok("image import small.raw file://~/store:a");
    let words = "image pull file://~/store:a file://~/pulled --limit-rate 1kB/s";
    for signal in [Signal::INT, Signal::TERM, Signal::INT] {
        let mut started = scene.start(words);
        let staging = scene.path("pulled/.headstart/staging");
        // A blob is being copied: its file is there beside those of the writer.
        started.wait_until("it could be stopped", || {
            fs::read_dir(&staging).is_ok_and(|dirs| {
                let files = dirs.flatten().filter_map(|dir| fs::read_dir(dir.path()).ok());
                files
                    .flatten()
                    .flatten()
                    .any(|file| !["lease", "early"].contains(&&*file.file_name().to_string_lossy()))
            })
        });
        started.signal(signal);
        started.finish().fails(&[
            "pulled:a",
            "stopped on request; the tag is as it was",
            "run it again to go on",
        ]);
        assert_eq!(scene.names("pulled/.headstart/staging"), [""; 0]);
    }
    scene.ok("image pull file://~/store:a file://~/pulled");
    scene.ok("image verify --deep file://~/pulled:a");
}

/// Bytes of a blob that were already there are not reported as copied.
#[test]
fn a_copy_that_goes_on_says_how_much_was_there() {
    let scene = Scene::new();
    fs::write(scene.path("big.raw"), noise(3, 24 << 20)).unwrap();
    scene.ok("image import big.raw file://~/store:a");
    let whole = scene.json("image pull file://~/store:a file://~/whole");
    let mut started = scene.start("image pull file://~/store:a file://~/pulled --limit-rate 4MB/s");
    let staging = scene.path("pulled/.headstart");
    started.wait_until("a part of a blob is there", || bytes_below(&staging) >= 8 << 20);
    started.signal(Signal::TERM);
    started.finish().fails(&["run it again to go on"]);
    let run = scene.json("image pull file://~/store:a file://~/pulled");
    let number = |of: &serde_json::Value, name: &str| of[name].as_u64().unwrap();
    assert!(number(&run, "resumed_bytes") >= 8 << 20, "{run}");
    let all = ["copied_bytes", "resumed_bytes", "present_bytes"].map(|name| number(&run, name));
    assert_eq!(all.iter().sum::<u64>(), number(&whole, "copied_bytes"), "{run}");
    assert_eq!(number(&whole, "resumed_bytes"), 0, "{whole}");
}

/// Bytes of the files below a directory.
fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

/// A command that checks no flag is cut off, and a second signal cuts off at once: both are reported. Signals that come
/// together are no second one.
#[test]
fn a_command_that_cannot_end_in_order_is_cut_off() {
    let scene = Scene::new();
    mknodat(CWD, scene.path("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let heard = |pid: u32| {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let mut names =
            threads.map(|thread| fs::read_to_string(thread.path().join("comm")).unwrap_or_default());
        names.any(|name| name.trim() == "signals")
    };
    // Each with the milliseconds before it.
    for (signals, status, said) in [
        (&[(0, Signal::TERM)][..], 1, "by force"),
        (&[(0, Signal::TERM), (0, Signal::HUP), (0, Signal::TERM)], 1, "by force"),
        (&[(0, Signal::INT), (150, Signal::INT)], 130, "stopped at once"),
        (&[(0, Signal::INT), (1100, Signal::TERM)], 130, "stopped at once"),
    ] {
        // It waits for a writer of the pipe, and there is none.
        let mut started = scene.start("image list oci://127.0.0.1:1/x --proxy-file fifo");
        let pid = started.id();
        started.wait_until("it listens to signals", || heard(pid));
        for (pause, signal) in signals {
            std::thread::sleep(Duration::from_millis(*pause));
            started.signal(*signal);
        }
        let run = started.finish();
        assert_eq!(run.status, Some(status), "{run}");
        assert!(run.stderr.contains(said) && run.stderr.contains("unfinished files"), "{run}");
    }
}

#[test]
fn after_kill_9_the_store_works_and_prune_cleans_up() {
    let scene = Scene::new();
    big_disk(&scene);
    mixed_disk(&scene, "small.raw", 4);
    scene.ok("image import small.raw file://~/store:a");
    let before = scene.fingerprint("store");
    let kill = || {
        let mut started = scene.start(&format!("image import big.raw file://~/store:big {SLOW}"));
        started.wait_until("it could be killed", || staged_bytes(&scene) > 50_000);
        // A prune at the same time takes nothing away from a living writer.
        scene.ok("image prune file://~/store");
        assert!(staged_bytes(&scene) > 50_000);
        started.signal(Signal::KILL);
        assert_eq!(started.finish().status, None);
    };
    kill();
    assert!(staged_bytes(&scene) > 50_000);
    scene.ok("image verify --deep file://~/store:a");
    scene.fails("image inspect file://~/store:big", &["store:big"]);
    let pruned = scene.ok("image prune file://~/store");
    assert!(pruned.stdout.contains("1 beginning of copies that broke off"), "{pruned}");
    assert_eq!(scene.fingerprint("store"), before);
    // The next writer cleans up, too.
    kill();
    scene.ok("image import small.raw file://~/store:b");
    assert_eq!(scene.names("store/.headstart/staging"), [""; 0]);
    scene.ok("image verify --deep file://~/store:b");
}

/// Killed at any moment, a store has its images, and none is incomplete.
#[test]
fn kill_9_at_any_moment_of_a_short_import_leaves_whole_images() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    scene.ok("image import disk.raw file://~/store:base");
    let mut finished = 0;
    for round in 0..40u64 {
        let level = round % 4 + 1;
        let words =
            format!("image import disk.raw file://~/store:x --base file://~/store:base --level {level}");
        let started = scene.start(&words);
        std::thread::sleep(Duration::from_micros(round * 1500));
        // A process that has ended already waits for this one.
        started.signal(Signal::KILL);
        finished += u32::from(started.finish().status == Some(0));
        let listed = scene.json("image list file://~/store");
        for image in listed["images"].as_array().unwrap() {
            assert_eq!(image["problem"], serde_json::Value::Null);
            scene.ok(&format!("image verify --deep file://~/store:{}", image["tag"].as_str().unwrap()));
        }
    }
    assert!(finished < 40, "none was killed");
    scene.ok("image prune file://~/store");
    assert_eq!(scene.names("store/.headstart/staging"), [""; 0]);
    let own = scene.names("store/.headstart");
    // If none came to its end, no tag was moved.
    let own: Vec<_> = own.iter().filter(|name| !["prepared", "untagged"].contains(&name.as_str())).collect();
    assert_eq!(own, ["lock", "staging"]);
}
