//! Many hosts that read the same image, on virtual time.

use headstart_testkit::data_sets::data_set;
use headstart_testkit::scene::Scene;
use serde_json::Value;

fn rows(report: &Value) -> Vec<(String, f64, u64)> {
    let rows = report["rows"].as_array().unwrap().iter();
    let row = |row: &Value| {
        let name = format!("{} {}", row["pattern"].as_str().unwrap(), row["way"].as_str().unwrap());
        (name, row["completion"].as_f64().unwrap(), row["store_bytes"].as_u64().unwrap())
    };
    rows.map(row).collect()
}

#[test]
fn a_swarm_is_faster_than_each_alone_and_than_a_tree() {
    let scene = Scene::new();
    let words = "simulate fleet --hosts 8 --region 8M --patterns sync-same --plot figures";
    let report = scene.json(words);
    let found = rows(&report);
    let names: Vec<_> = found.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["sync-same independent", "sync-same tree", "sync-same swarm"]);
    assert!(found[2].1 * 2.0 < found[1].1 && found[2].1 * 3.0 < found[0].1, "{found:?}");
    assert!(found[2].2 < 10 << 20, "{found:?}");
    assert!(scene.path("figures/fleet-sync-same.svg").exists());
    assert_eq!(rows(&scene.json(words)), found, "the same twice");
    let table = scene.ok("simulate fleet --hosts 4 --region 4M --thresholds 0,inf --ways swarm,local").stdout;
    assert!(table.starts_with("sync-same, 4 hosts\n") && table.contains("\nswarm-inf"), "{table}");
}

#[test]
fn boots_are_put_beside_warm_ones() {
    let scene = Scene::new();
    data_set(&scene);
    let report =
        scene.json("simulate fleet --hosts 3 --disks 2 --patterns boots --traces set --plan recorded");
    let row = &report["rows"][2];
    assert!(row["later_p99"].as_f64().is_some() && row["disks"] == 6 && row["incomplete"] == 0, "{report}");
    scene.is_wrong("simulate fleet --traces set", &["--patterns boots"]);
    scene.fails("simulate fleet --patterns boots --traces set --boots-of nothing", &["no boot of `nothing`"]);
    scene.is_wrong("simulate fleet --hosts 2 --liars 3", &["only 2 hosts"]);
    assert_eq!(scene.run("simulate fleet --topology star").status, Some(2));
}

/// The hosts have the image, each a part, and the store has gone.
#[test]
fn a_fleet_is_its_own_repository() {
    let scene = Scene::new();
    let words = "simulate fleet --hosts 8 --region 8M --patterns sync-same,sync-disjoint";
    let report = scene.json(&format!("{words} --ways independent,swarm --pinned 2"));
    let found = rows(&report);
    for (alone, swarm) in found.iter().zip(&found[1..]).step_by(2) {
        assert!(alone.2 > 8 << 20 && swarm.2 == 0, "{found:?}");
        assert!(swarm.1 * 2.0 < alone.1, "{found:?}");
    }
    assert!(report["rows"].as_array().unwrap().iter().all(|row| row["incomplete"] == 0), "{report}");
    scene.is_wrong(&format!("{words} --pinned 9"), &["9 copies on 8 hosts", "--pinned"]);
}

/// Roots that know earlier requests send the chunks ahead, even if other requests were among them.
#[test]
fn roots_send_ahead() {
    let scene = Scene::new();
    let traces = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/traces");
    let boots = format!("--patterns boots --traces {traces} --boots-of p-deb12min --faster 2");
    let links = "--uplink 3125kB/s --host-link 3125kB/s --round-trip 40ms --ratio 2.2";
    let roots = "--hosts 2 --topology roots --roots 1 --roots-apart --warm roots";
    let words = format!("simulate fleet {boots} {links} {roots} --ways swarm");
    let report = scene.json(&format!("{words} --push 512 --strays 10%"));
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["way"].as_str().unwrap()).collect();
    assert_eq!(names, ["swarm", "swarm-push", "swarm-push-strays"]);
    let waited: Vec<_> = rows.iter().map(|row| row["waited"].as_f64().unwrap()).collect();
    assert!(waited[1] < waited[0] / 2.0 && rows.iter().all(|row| row["disks"] == 1), "{report}");
    scene.is_wrong(&format!("simulate fleet {boots} --push 9"), &["--topology roots", "--push"]);
}
