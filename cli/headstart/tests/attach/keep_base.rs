//! A writable directory with a copy of its base needs no store.

use crate::attached::{Attached, TIMEOUT};
use crate::disk::{assert_same, noise};
use crate::images::{Web, can_check_bytes, check_bytes, layered, tool};
use crate::scene::Scene;
use crate::tools::installed;
use headstart_testkit::faults::{Fault, FaultRule};
use headstart_testkit::process::Process;
use rustix::process::Signal;
use std::fs;
use std::net::TcpListener;
use std::thread::sleep;
use std::time::{Duration, Instant};

#[track_caller]
fn write(scene: &Scene, uri: &str, seed: u64, expected: &mut [u8]) {
    let bytes = noise(seed, 200_000);
    fs::write(scene.path("bytes"), &bytes).unwrap();
    tool(scene, "nbdsh", &["-u", uri, "-c", "h.pwrite(open('bytes','rb').read(), 3000320); h.flush()"]);
    expected[3_000_320..3_200_320].copy_from_slice(&bytes);
}

#[test]
fn a_kept_base_outlives_its_store() {
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let scene = layered();
    let Some(mut web) = Web::before(&scene) else { return };
    let mut expected = scene.bytes("disk.raw");
    let image = web.image();
    let words = format!("{image} --cache ~/cache --writable ~/vm --nbd unix:~/d.sock");
    assert_eq!(scene.run("attach file://~/store:v1 --keep-base").status, Some(2), "without --writable");
    // A disk that was there before gets its copy, too.
    let attached = Attached::start(&scene, &words);
    write(&scene, &attached.uri(), 1, &mut expected);
    attached.detach();
    let attached = Attached::start(&scene, &format!("{words} --keep-base"));
    write(&scene, &attached.uri(), 2, &mut expected);
    attached.detach();
    // The tag, the manifest, the store, the server and the cache are removed.
    scene.ok("image remove file://~/store:v1");
    fs::remove_dir_all(scene.path("store")).unwrap();
    web.server.process().kill();
    fs::remove_dir_all(scene.path("cache")).unwrap();
    fs::write(scene.path("expected.raw"), &expected).unwrap();
    let attached = Attached::start(&scene, &words);
    check_bytes(&scene, "expected.raw", &attached.uri());
    attached.detach();
    // The copy is found even if the directory was moved, and is the base of a commit.
    fs::rename(scene.path("vm"), scene.path("vm2")).unwrap();
    let attached = Attached::start(&scene, &words.replace("~/vm", "~/vm2"));
    check_bytes(&scene, "expected.raw", &attached.uri());
    attached.detach();
    scene.ok("image commit --writable ~/vm2 file://~/new:vm");
    scene.ok("image export file://~/new:vm -o vm.raw");
    assert_same(&scene, "expected.raw", "vm.raw");
}

#[test]
fn a_directory_that_keeps_its_base_holds_nothing_in_the_store() {
    if !can_check_bytes() {
        return;
    }
    let scene = layered();
    let words = "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock";
    Attached::start(&scene, words).detach();
    assert_eq!(scene.json("lease list file://~/store")["leases"].as_array().unwrap().len(), 1);
    Attached::start(&scene, &format!("{words} --keep-base")).detach();
    assert_eq!(scene.json("lease list file://~/store")["leases"].as_array().unwrap().len(), 0);
    scene.ok("image remove file://~/store:v1");
    assert_eq!(
        scene.json("image prune file://~/store --older-than 0s")["images"].as_array().unwrap().len(),
        1
    );
    let attached = Attached::start(&scene, words);
    check_bytes(&scene, "disk.raw", &attached.uri());
    attached.detach();
    // A new directory has a copy from the start; an interrupted copy is continued.
    scene.fails("attach file://~/store:none --writable ~/new --keep-base --nbd unix:~/d.sock", &["none"]);
    let new = "file://~/store:base --writable ~/new --keep-base --nbd unix:~/d.sock";
    let attached = Attached::start(&scene, new);
    check_bytes(&scene, "base.raw", &attached.uri());
    attached.detach();
    assert!(scene.path("new/base/index.json").exists());
}

/// The copy's timers exist as long as its threads do.
#[test]
fn a_stopped_copy_of_a_base_ends_at_once_and_goes_on_with_the_next_attach() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    let words = format!(
        "attach {} --cache ~/cache --writable ~/vm --keep-base --nbd unix:~/d.sock --no-record",
        web.image()
    );
    for signal in [Signal::INT, Signal::TERM, Signal::INT] {
        web.proxy.clear_log();
        let mut process = Process::start(&mut scene.command(&format!("{words} --limit-rate 100kB/s")));
        // The manifest, and a part of the copied blobs, have come.
        web.proxy.wait("copy", TIMEOUT, |log| log.to("/blobs/").len() > 1);
        sleep(Duration::from_millis(300));
        process.signal(signal);
        assert_eq!(process.end(TIMEOUT).code(), Some(1), "{process}");
        let said = process.output();
        assert!(said.contains("stopped") && !said.contains("panicked"), "{said}");
    }
    Attached::start(&scene, words.trim_start_matches("attach ")).detach();
    assert!(scene.path("vm/base/index.json").exists());
}

/// The image in the directory is served, whatever tag is given, and a warning says that.
#[test]
fn a_kept_base_says_what_is_served() {
    let scene = layered();
    let digest = |tag: &str| scene.json(&format!("image inspect file://~/store:{tag}"))["digest"].clone();
    let (v1, kept) = (digest("v1"), scene.path("vm/base"));
    let attach = |image: &str| {
        let words = format!("{image} --writable ~/vm --nbd unix:~/d.sock --no-record");
        let attached = Attached::start(&scene, &words);
        let (ready, said) = (attached.ready.clone(), attached.output());
        attached.detach();
        let disk = &ready["disks"][0];
        let at = (disk["digest"].clone(), disk["kept_in"].clone());
        assert_eq!(at, (v1.clone(), kept.to_str().unwrap().into()), "{ready}");
        assert!(disk["image"].as_str().unwrap().ends_with("store:v1"), "{ready}");
        said
    };
    let said = attach("file://~/store:v1 --keep-base");
    assert!(!said.contains("warning"), "{said}");
    // For the same tag again, and for the image by its digest, there is no warning.
    for image in ["file://~/store:v1".to_owned(), format!("file://~/store@{}", v1.as_str().unwrap())] {
        let said = attach(&image);
        assert!(!said.contains("warning"), "{said}");
    }
    let said = attach("file://~/store:base");
    let warning = said.lines().find(|line| line.starts_with("headstart: warning: ")).unwrap_or_default();
    assert!(warning.contains("store:base") && warning.contains("store:v1"), "{said}");
    assert!(warning.contains(v1.as_str().unwrap()), "{said}");
    // The output for people.
    let words = "attach file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock --no-record";
    let mut process = Process::start(&mut scene.command(words));
    let line = process.line("that it is ready", TIMEOUT, |line| line.contains(" is a disk of "));
    for part in ["store:v1 (", v1.as_str().unwrap(), "kept in", kept.to_str().unwrap()] {
        assert!(line.contains(part), "{line}");
    }
    assert_eq!(process.stop(TIMEOUT).code(), Some(0), "{process}");
    // A tag of another store may be any image; a digest is unambiguous.
    scene.ok("image pull file://~/store:v1 file://~/other:v1");
    let by_digest = format!("other@{}", v1.as_str().unwrap());
    let refused = "attach file://~/other:v1 --writable ~/vm --nbd unix:~/d.sock --no-record";
    scene.fails(
        refused,
        &["vm", "its own copy of", "store:v1", "is of another store", &by_digest, "new directory"],
    );
    let said = attach(&format!("file://~/{by_digest}"));
    assert!(!said.contains("warning"), "{said}");
    // That changed no record of the directory.
    scene.fails(refused, &["its own copy of", "store:v1"]);
}

/// A copy waits for its store until the given deadline, and reports the wait.
#[test]
fn a_copy_whose_store_is_away_gives_up_at_the_deadline() {
    let scene = Scene::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    for address in ["127.0.0.1:9".to_owned(), silent.to_string()] {
        let began = Instant::now();
        let image = format!("http://{address}/store:v1");
        let words = format!(
            "attach {image} --writable ~/vm --keep-base --deadline 4s --cache ~/cache --nbd unix:~/d.sock"
        );
        let run = scene.run(&words);
        let took = began.elapsed();
        let lines: Vec<_> = run.stderr.lines().collect();
        assert!(run.status == Some(1) && lines.last().is_some_and(|line| line.contains(&address)), "{run}");
        assert!(took < Duration::from_secs(14), "{took:?}: {run}");
        // A server that refuses connections may be given up before that is reported.
        if address == silent.to_string() {
            assert!(lines.len() == 2 && lines[0].contains(&format!("--keep-base copies {image}")), "{run}");
            assert!(lines[0].contains("4s (--deadline)") && took > Duration::from_secs(2), "{took:?}: {run}");
        }
        assert!(!scene.path("vm").exists(), "{run}");
    }
}

/// Reads of other blobs end with the copy if one blob cannot be fetched.
#[test]
fn a_copy_that_fails_leaves_no_reads_behind() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    let inspected = scene.json("image inspect file://~/store:v1");
    // The smaller layer is refused while the larger one is read slowly.
    let digest = inspected["layers"][1]["digest"].as_str().unwrap().to_owned();
    web.proxy.add(FaultRule::new(Fault::status(403)).on_path(digest.strip_prefix("sha256:").unwrap()));
    let words = format!(
        "attach {} --cache ~/cache --writable ~/vm --keep-base --limit-rate 100kB/s --nbd unix:~/d.sock",
        web.image()
    );
    let began = Instant::now();
    let run = scene.run(&words);
    assert!(run.status == Some(1) && run.stderr.contains("403"), "{run}");
    assert!(!run.stderr.contains("panicked"), "{run}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    web.proxy.clear_rules();
    Attached::start(&scene, words.replace("--limit-rate 100kB/s", "").trim_start_matches("attach ")).detach();
}
