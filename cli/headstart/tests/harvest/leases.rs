//! Spare flash: requested, used, given back.

use crate::daemon::{Daemon, qemu_io, uri};
use crate::scene::Scene;
use crate::tools::installed;

#[test]
fn a_harvest_disk_grows_is_used_and_found_again() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    let mut daemon = Daemon::start(&scene, "--size 2G");
    let db = daemon.create("db --channels 4");
    let shelf = daemon.ask("vssd create shelf --kind unsold --channels 4");
    assert!(shelf["uris"].as_array().unwrap().is_empty(), "{shelf}");
    let batch = daemon.create("batch --kind harvest");
    qemu_io(&scene, &db, &["write -P 0x5a 0 8M"]);
    qemu_io(&scene, &batch, &["write -P 0x21 0 4M"]);
    let before = daemon.vssd("batch")["size"].as_u64().unwrap();
    let leases = daemon.request("batch --capacity 64M --for 2h");
    let lease = &leases[0];
    assert_eq!(lease["vssd"], "batch", "{leases}");
    assert!(lease["left_s"].as_u64().is_some_and(|left| (7000..=7200).contains(&left)), "{lease}");
    let grown = daemon.vssd("batch");
    let size = grown["size"].as_u64().unwrap();
    assert!(size > before && grown["borrowed"].as_u64().unwrap() >= 64 << 20, "{grown}");
    assert_eq!(grown["leases"].as_array().unwrap().len(), leases.as_array().unwrap().len());
    // All of it is written, so that leased flash is, too.
    let all = format!("0 {}", size - size % 4096);
    qemu_io(&scene, &batch, &[&format!("write -P 0x66 {all}"), "flush"]);
    daemon.restart();
    qemu_io(&scene, &uri(&daemon.vssd("batch")), &[&format!("read -P 0x66 {all}")]);
    qemu_io(&scene, &db, &["read -P 0x5a 0 8M"]);
    let status = daemon.say("status");
    assert!(status.contains("batch: lease") && status.contains("flash:"), "{status}");
    let host = daemon.ask("status");
    assert_eq!(host["leases"].as_array().map(Vec::len), leases.as_array().map(Vec::len), "{host}");
    // If there is room, nothing is lost when it goes back.
    qemu_io(&scene, &batch, &[&format!("discard {all}"), "write -P 0x13 0 4M", "flush"]);
    let id = lease["id"].as_u64().unwrap();
    daemon.refuses("release batch --lease 999999", &["batch"]);
    daemon.ask(&format!("release batch --lease {id}"));
    daemon.wait_until_gone("batch", Some(id));
    qemu_io(&scene, &batch, &["read -P 0x13 0 4M"]);
    daemon.ask("release batch");
    daemon.wait_until_gone("batch", None);
    // A disk in use does not shrink under its file system.
    assert_eq!(daemon.vssd("batch")["size"], size);
    daemon.stop();
}

#[test]
fn offered_flash_is_lent() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, "--size 2G");
    let db = daemon.create("db --channels 4");
    daemon.create("batch --kind harvest");
    daemon.refuses("request batch --capacity 64M", &["batch", "0 B on 0 channels"]);
    let offered = daemon.ask("offer db --capacity 128M --bandwidth 2 --for 4h");
    assert_eq!((&offered["lent"], &offered["forecast"]["lasts_s"]), (&(128 << 20).into(), &14_400.into()));
    let leases = daemon.request("batch --capacity 64M --for 1h");
    assert_eq!(leases[0]["home"], "db", "{leases}");
    // Leased flash stays, and the rest goes home.
    let lent =
        leases.as_array().unwrap().iter().map(|lease| lease["capacity"].as_u64().unwrap()).sum::<u64>();
    daemon.wait_for("all home but what is leased", || {
        (daemon.ask("offer db --capacity 0")["lent"] == lent).then_some(())
    });
    qemu_io(&scene, &db, &["write -P 0x5a 0 32M", "read -P 0x5a 0 32M"]);
    assert_eq!(daemon.vssd("db")["written_bytes"], 32 << 20);
}

#[test]
fn the_next_user_of_flash_reads_no_bytes_of_the_last() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, "--size 1G");
    let batch = daemon.create("batch --kind harvest");
    // All channels except the harvest VM's own: the next vSSD has the same flash.
    let db = daemon.create("db --channels 15 --size 512M");
    qemu_io(&scene, &db, &["write -P 0x5a 0 512M", "flush"]);
    daemon.wait_until_unused("db");
    daemon.ask("vssd delete db");
    daemon.create_soon("shelf --kind unsold --channels 15");
    daemon.request("batch --capacity 64M");
    let size = daemon.vssd("batch")["size"].as_u64().unwrap();
    let all = format!("0 {}", size - size % 4096);
    qemu_io(&scene, &batch, &[&format!("read -P 0 {all}"), &format!("write -P 0x66 {all}"), "flush"]);
    daemon.ask("release batch");
    daemon.wait_until_gone("batch", None);
    daemon.ask("vssd delete shelf");
    let db = uri(&daemon.create_soon("db --channels 15 --size 512M"));
    qemu_io(&scene, &db, &["read -P 0 0 512M"]);
}

#[test]
fn a_larger_offer_takes_effect_at_once_and_what_is_not_to_be_had_is_said() {
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, "--size 2G");
    daemon.create("db --channels 4");
    daemon.create("batch --kind harvest");
    daemon.ask("offer db --capacity 64M --bandwidth 2");
    daemon.ask("offer db --capacity 128M --bandwidth 2");
    // Erased flash comes home, and is offered again as part of more.
    let larger = daemon.wait_for("larger", || {
        let db = daemon.vssd("db");
        (db["lent"] == 128 << 20).then_some(db)
    });
    assert_eq!((&larger["lent"], &larger["leased"]), (&(128 << 20).into(), &0.into()), "{larger}");
    let leases = daemon.request("batch --capacity 96M");
    let leased =
        leases.as_array().unwrap().iter().map(|lease| lease["capacity"].as_u64().unwrap()).sum::<u64>();
    assert!(leased >= 96 << 20, "{leases}");
    let db = daemon.vssd("db");
    assert_eq!((&db["offered"], &db["leased"]), (&0.into(), &leased.into()), "{db}");
    assert!(daemon.say("vssd list").contains(" lent"));
    // The offer is for more than there is.
    let web = daemon.create("web --channels 2");
    assert!(web.contains("web"));
    let said = daemon.say("offer web --capacity 2G --bandwidth 2");
    assert!(said.contains("of the 2 GiB are offered or lent"), "{said}");
    assert!(said.contains("offered") && !said.contains(" lent,"), "{said}");
    // A slightly smaller amount is reported, too, and so is the result of a request.
    daemon.ask("offer web --capacity 0");
    let said = daemon.say("offer web --capacity 70M");
    assert!(said.contains("only 64 MiB of the 70 MiB are offered or lent"), "{said}");
    let said = daemon.say("offer web --capacity 64M");
    assert!(!said.contains("offered or lent"), "{said}");
    daemon.ask("release batch");
    daemon.wait_until_gone("batch", None);
    let given = daemon.wait_for("something to spare", || {
        let run = scene.run("harvest request batch --capacity 1G --partial --dir ~/h");
        (run.status == Some(0)).then_some(run.stdout)
    });
    assert!(given.contains("of the 1 GiB that were asked for"), "{given}");
    daemon.refuses("request batch --capacity 0", &["batch", "0 bytes", "capacity"]);
}
