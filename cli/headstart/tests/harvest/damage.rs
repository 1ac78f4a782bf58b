//! A journal and flash with damage: found, repaired, given up.

use crate::daemon::{Daemon, qemu_io, uri};
use crate::scene::Scene;
use crate::tools::installed;
use std::fs;

/// A daemon with a disk that has flushed writes.
fn written(scene: &Scene) -> Daemon<'_> {
    let daemon = Daemon::start(scene, "--size 256M");
    let db = daemon.create("db --channels 4");
    qemu_io(scene, &db, &["write -P 0x5a 0 4M", "flush", "write -P 0x33 4M 4M", "flush"]);
    daemon
}

/// Flips a bit.
fn flip(path: &std::path::Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_wrong_bit_of_the_journal_loses_nothing_that_was_flushed() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    let journal = scene.path("h/journal");
    for killed in [false, true] {
        let scene_of = Scene::new();
        let (scene, journal) =
            if killed { (&scene_of, scene_of.path("h/journal")) } else { (&scene, journal.clone()) };
        let mut daemon = written(scene);
        if killed {
            daemon.kill();
        } else {
            daemon.stop();
        }
        let whole = fs::read(&journal).unwrap();
        // The places are in the part that was made durable last, and in the part before that.
        let groups = headstart_flash::journal::FRONT;
        for at in [whole.len() - 20, groups + 3 * (whole.len() - groups) / 4, groups + 40, 9] {
            fs::write(&journal, &whole).unwrap();
            flip(&journal, at);
            let started = scene.run("harvest check ~/h --json");
            assert_eq!(started.status, Some(1), "byte {at}");
            let found = started.json();
            assert_eq!((&found["state"], &found["vssds"][0]["name"]), (&"mendable".into(), &"db".into()));
            if headstart_flash::journal::decode(&fs::read(&journal).unwrap()).is_err() {
                scene.fails(
                    "harvest serve ~/h --size 256M",
                    &["h/journal", "damaged at byte", "harvest rescue"],
                );
                let said = scene.ok("harvest rescue ~/h").stdout;
                assert!(said.contains("put right") && said.contains("is wrong"), "{said}");
                assert!(fs::read(&journal).unwrap() == whole);
            }
            daemon.start_again();
            let db = uri(&daemon.vssd("db"));
            qemu_io(scene, &db, &["read -P 0x5a 0 4M", "read -P 0x33 4M 4M"]);
            daemon.stop();
        }
    }
}

#[test]
fn further_damage_is_named_and_given_up_by_command() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    let mut daemon = written(&scene);
    daemon.stop();
    let journal = scene.path("h/journal");
    let at = headstart_flash::journal::FRONT + 50;
    flip(&journal, at);
    flip(&journal, at + 3);
    let damaged = fs::read(&journal).unwrap();
    let check = scene.run("harvest check ~/h");
    assert_eq!(check.status, Some(1));
    assert!(
        check.stdout.contains("by more than one bit") && check.stdout.contains("--discard-all"),
        "{}",
        check.stdout
    );
    scene.fails("harvest serve ~/h", &["h/journal", "damaged at byte", "harvest check"]);
    scene.fails("harvest rescue ~/h", &["nothing was changed", "--discard-all"]);
    assert!(fs::read(&journal).unwrap() == damaged);
    let said = scene.ok("harvest rescue ~/h --discard-all").stdout;
    assert!(said.contains("given up"), "{said}");
    daemon.start_again();
    assert_eq!(daemon.ready["vssds"], 0);
    scene.fails("harvest check ~/h", &["another process has this host open", "stop", "SIGTERM"]);
}

#[test]
fn a_table_of_flash_that_is_damaged_or_missing_is_made_again() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    let mut daemon = written(&scene);
    let table = scene.path("h/flash.flash");
    for damage in [Some(70), Some(3), None] {
        daemon.stop();
        match damage {
            Some(at) => flip(&table, at),
            None => fs::remove_file(&table).unwrap(),
        }
        scene.fails("harvest serve ~/h", &["flash.flash", "harvest rescue", "/h"]);
        assert_eq!(scene.run("harvest check ~/h").status, Some(1));
        scene.ok("harvest rescue ~/h");
        scene.ok("harvest check ~/h");
        daemon.start_again();
        qemu_io(&scene, &uri(&daemon.vssd("db")), &["read -P 0x5a 0 4M", "read -P 0x33 4M 4M"]);
    }
    daemon.stop();
    // From missing flash nothing can be saved.
    fs::remove_file(scene.path("h/flash")).unwrap();
    scene.fails("harvest serve ~/h", &["flash is elsewhere", "--flash", "--discard-all"]);
    scene.fails("harvest rescue ~/h", &["h/flash", "missing", "--discard-all"]);
    let said = scene.ok("harvest rescue ~/h --discard-all").stdout;
    assert!(said.contains("db: regular"), "{said}");
}
