//! An index that lost its end, cut off or damaged by another program: flushed writes are never lost in silence.

use crate::attached::{Attached, TIMEOUT};
use crate::images::{can_check_bytes, check_bytes, layered, tool};
use crate::scene::Scene;
use crate::tools::installed;
use headstart_testkit::process::Process;
use headstart_testkit::wait::wait_for_value;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;

const ATTACH: &str = "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock";

/// Bytes of the header of an index.
const HEADER: usize = 4096;

/// Forty writes of 64 KiB, each with a flush.
const WRITES: &str = "\
    for n in range(40):\n\
    \x20 h.pwrite(bytes([n + 1]) * 65536, n * 65536)\n\
    \x20 h.flush()";

/// The disk of the image with the first of these writes, in `expected.raw`.
fn expect(scene: &Scene, writes: usize) {
    let mut expected = scene.bytes("disk.raw");
    for (number, block) in expected.chunks_mut(65536).take(writes).enumerate() {
        block.fill(number as u8 + 1);
    }
    fs::write(scene.path("expected.raw"), expected).unwrap();
}

/// A disk with all writes, while it is attached; `None` if a tool is not installed.
fn written() -> Option<(Scene, Attached)> {
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return None;
    }
    let scene = layered();
    let attached = Attached::start(&scene, ATTACH);
    tool(&scene, "nbdsh", &["-u", &attached.uri(), "-c", WRITES]);
    Some((scene, attached))
}

/// The ways in which an index loses its end: a name, the bytes, and the number of writes that are left.
fn damages(index: &[u8]) -> Vec<(&'static str, Vec<u8>, usize)> {
    let mut flipped = index.to_vec();
    *flipped.last_mut().unwrap() ^= 0x10;
    let mut in_the_middle = index.to_vec();
    in_the_middle[HEADER + 10 * 32 + 3] ^= 0x10;
    let half = HEADER + (index.len() - HEADER) / 2;
    vec![
        ("all records cut off", index[..HEADER].to_vec(), 0),
        ("half of them cut off", index[..half].to_vec(), 20),
        ("a byte cut off", index[..index.len() - 1].to_vec(), 39),
        ("a byte of the last group flipped", flipped, 39),
        ("a byte in the middle flipped", in_the_middle, 10),
    ]
}

#[test]
fn an_attach_that_finds_less_than_was_flushed_refuses() {
    let Some((scene, attached)) = written() else { return };
    attached.detach();
    let (data, index) = (scene.bytes("vm/data"), scene.bytes("vm/index"));
    assert_eq!(index.len(), HEADER + 40 * 32);
    let state = scene.bytes("vm/state.json");
    let mut copies = Vec::new();
    for (what, damaged, left) in damages(&index) {
        fs::write(scene.path("vm/index"), &damaged).unwrap();
        let before = scene.fingerprint("vm");
        let remedies = ["vm/index", "restore data and index from a copy", "headstart disk repair", "vm`"];
        let words = format!("attach {ATTACH}");
        let run = scene.fails(&words, &remedies);
        let is_told = ["missing", "checksum"].iter().any(|part| run.stderr.contains(part));
        assert!(is_told, "{what}: {run}");
        scene.fails("disk compact ~/vm", &remedies);
        scene.fails("image commit --writable ~/vm file://~/store:new", &remedies);
        assert_eq!(scene.fingerprint("vm"), before, "{what}: a refusal changed it");

        let report = scene.json("disk repair ~/vm");
        let repaired = &report["repaired"][0];
        assert_eq!(repaired["kept_bytes"], HEADER + left * 32, "{what}: {report}");
        assert_eq!(repaired["lost_bytes"], (40 - left) * 32, "{what}: {report}");
        if repaired["copy"].is_string() {
            copies.insert(0, damaged[HEADER + left * 32..].to_vec());
            assert_eq!(scene.bytes("vm/index.torn"), damaged[HEADER + left * 32..], "{what}");
        }
        expect(&scene, left);
        let attached = Attached::start(&scene, ATTACH);
        check_bytes(&scene, "expected.raw", &attached.uri());
        attached.detach();
        assert!(scene.ok("disk repair ~/vm").stdout.contains("nothing is damaged"));

        // The other remedy: the earlier files.
        for (name, bytes) in [("data", &data), ("index", &index), ("state.json", &state)] {
            fs::write(scene.path(&format!("vm/{name}")), bytes).unwrap();
        }
    }
    // No repair has removed the part that an earlier one cut off.
    assert!(copies.len() >= 3);
    for (number, copy) in copies.iter().enumerate().skip(1) {
        assert_eq!(scene.bytes(&format!("vm/index.torn.{number}")), *copy);
    }
    expect(&scene, 40);
    let attached = Attached::start(&scene, ATTACH);
    check_bytes(&scene, "expected.raw", &attached.uri());
    attached.detach();
}

/// Without the header of `data`, cutting the index would restore nothing.
#[test]
fn a_directory_whose_data_is_gone_is_not_repaired() {
    let Some((scene, attached)) = written() else { return };
    attached.detach();
    let data = scene.bytes("vm/data");
    fs::write(scene.path("vm/data"), "").unwrap();
    let before = scene.fingerprint("vm");
    let said = ["vm/data", "header", "restore data and index from a copy"];
    scene.fails("disk repair ~/vm", &said);
    scene.fails(&format!("attach {ATTACH}"), &said);
    assert_eq!(scene.fingerprint("vm"), before);
    fs::write(scene.path("vm/data"), data).unwrap();
    // Either file may be missing.
    for name in ["vm/data", "vm/index"] {
        fs::rename(scene.path(name), scene.path("away")).unwrap();
        let before = scene.fingerprint("vm");
        let said = [name, "the file is missing", "restore data and index from a copy"];
        for words in [&format!("attach {ATTACH}"), "disk repair ~/vm", "disk compact ~/vm"] {
            scene.fails(words, &said);
        }
        assert_eq!(scene.fingerprint("vm"), before);
        fs::rename(scene.path("away"), scene.path(name)).unwrap();
    }
    expect(&scene, 40);
    let attached = Attached::start(&scene, ATTACH);
    check_bytes(&scene, "expected.raw", &attached.uri());
    attached.detach();
}

/// Waits until the end of the index is recorded.
#[track_caller]
fn wait_for_note(scene: &Scene) {
    let noted = || {
        let state: Value = serde_json::from_slice(&scene.bytes("vm/state.json")).unwrap();
        state["logs"][0]["bytes"].as_u64()
    };
    let all = Some((HEADER + 40 * 32) as u64);
    wait_for_value("the end of the index is noted", TIMEOUT, noted, |noted| *noted == all);
}

/// A second after the last write, a kill does not make damage look like a torn tail.
#[test]
fn a_killed_disk_that_was_quiet_loses_nothing_in_silence() {
    let Some((scene, mut attached)) = written() else { return };
    wait_for_note(&scene);
    attached.process().signal(Signal::KILL);
    attached.process().end(TIMEOUT);
    drop(attached);
    let index = scene.bytes("vm/index");
    for (_, damaged, _) in damages(&index) {
        fs::write(scene.path("vm/index"), damaged).unwrap();
        scene.fails(&format!("attach {ATTACH}"), &["vm/index", "headstart disk repair"]);
    }
    fs::write(scene.path("vm/index"), &index).unwrap();
    expect(&scene, 40);
    let attached = Attached::start(&scene, ATTACH);
    check_bytes(&scene, "expected.raw", &attached.uri());
    attached.detach();
}

/// A directory without a note, as an earlier version or a crash under load leaves it: the torn end is cut off, kept and
/// reported.
#[test]
fn a_torn_end_is_cut_off_with_a_word_and_a_copy() {
    let Some((scene, attached)) = written() else { return };
    attached.detach();
    let mut state: Value = serde_json::from_slice(&scene.bytes("vm/state.json")).unwrap();
    state.as_object_mut().unwrap().remove("logs").unwrap();
    fs::write(scene.path("vm/state.json"), state.to_string()).unwrap();
    let index = scene.bytes("vm/index");
    fs::write(scene.path("vm/index"), &index[..index.len() - 1]).unwrap();
    let mut attached = Attached::start(&scene, ATTACH);
    let said = attached.warning_with("vm/index");
    assert!(said.contains("index.torn") && said.contains("31"), "{said}");
    let said = attached.warning_with("vm/data");
    assert!(said.contains("65536"), "{said}");
    assert_eq!(scene.bytes("vm/index.torn"), index[index.len() - 32..index.len() - 1]);
    expect(&scene, 39);
    check_bytes(&scene, "expected.raw", &attached.uri());
    attached.detach();
    // From now on the end is recorded.
    let index = scene.bytes("vm/index");
    fs::write(scene.path("vm/index"), &index[..index.len() - 32]).unwrap();
    scene.fails(&format!("attach {ATTACH}"), &["vm/index", "32 are missing"]);
}

/// An agent's disk that cannot be started again has the cause in its status, and is started again once it is repaired.
#[test]
fn an_agent_lists_a_disk_whose_index_is_damaged() {
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let scene = layered();
    let words = "agent --json --dir ~/a --cache ~/a-cache --plain a --listen 127.0.0.1:0";
    let mut agent = Process::start(&mut scene.command(words));
    agent.line("that it is ready", TIMEOUT, |line| line.starts_with("{\"name\""));
    let disk = scene.json(&format!("attach {ATTACH} --as vm --agent ~/a/agent.sock"));
    let uri = disk["ready"]["ways"][0]["uri"].as_str().unwrap();
    tool(&scene, "nbdsh", &["-u", uri, "-c", WRITES]);
    wait_for_note(&scene);
    let index = scene.bytes("vm/index");
    fs::write(scene.path("vm/index"), &index[..HEADER]).unwrap();
    let pid = fs::read_to_string(scene.path("a/disks/vm.pid")).unwrap();
    kill_process(Pid::from_raw(pid.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    let wait_for = |what: &str, wanted: &dyn Fn(&Value) -> bool| {
        let listed = || scene.json("disk list --agent ~/a/agent.sock");
        wait_for_value(what, TIMEOUT, listed, |listed| wanted(&listed["disks"][0]));
    };
    wait_for("refused", &|disk| {
        let error = disk["error"].as_str().unwrap_or_default();
        error.contains("vm/index") && error.contains("headstart disk repair")
    });
    let said = scene.ok("disk list --agent ~/a/agent.sock").stdout;
    assert!(said.contains("1280 are missing"), "{said}");
    assert_eq!(scene.bytes("vm/index"), index[..HEADER]);
    fs::write(scene.path("vm/index"), &index).unwrap();
    wait_for("served", &|disk| disk["state"] == "serving");
    expect(&scene, 40);
    check_bytes(&scene, "expected.raw", uri);
    scene.ok("disk detach vm --agent ~/a/agent.sock");
    agent.kill();
}
