//! Command lines that are wrong whatever is on this host: each is refused with status 2 and names its option.

use headstart_testkit::data_sets::data_set;
use headstart_testkit::scene::Scene;

#[test]
fn times_that_no_simulation_can_hold_are_refused() {
    let scene = Scene::new();
    data_set(&scene);
    let (disk, fleet) = ("simulate disk --traces set --model real", "simulate fleet");
    let boots = "simulate fleet --patterns boots --traces set";
    let day = "1day";
    for (words, option, most) in [
        (disk, "--local-read 9999d", "1h"),
        (disk, "--round-trip 999999999999d", "1h"),
        (disk, "--round-trip 3601s", "1h"),
        (disk, "--store-latency 2h", "1h"),
        (disk, "--grace 2h", "1h"),
        (disk, "--store-away 9999d@0s", day),
        (disk, "--store-away 1s@25h", day),
        (fleet, "--round-trip 2h", "1h"),
        (fleet, "--store-round-trip 2h", "1h"),
        (fleet, "--store-latency 2h", "1h"),
        (fleet, "--kill-roots 25h", day),
        (fleet, "--kill 30%@25h", day),
        (fleet, "--restart 30%@25h", day),
        (fleet, "--partition 25h@1s", day),
        (fleet, "--store-away 1s@25h", day),
        (boots, "--grace 2h", "1h"),
        (boots, "--jitter 2h", "1h"),
        (boots, "--tracker-away 25h@1s --hints", day),
        ("simulate harvest", "--ask 31d", "30days"),
        ("replay boot.parquet nbd://h/x", "--grace 2h", "1h"),
        ("replay boot.parquet nbd://h/x", "--hit 2h", "1h"),
        ("replay boot.parquet nbd://h/x", "--timeout 25h", day),
        ("replay boot.parquet nbd://h/x", "--timeout 0s", "from 1ms"),
    ] {
        let name = option.split_whitespace().next().unwrap();
        scene.is_wrong(&format!("{words} {option}"), &[name, "give ", most, "such as"]);
    }
}

/// The largest accepted times give figures, whatever else is given.
#[test]
fn the_longest_times_can_be_simulated() {
    let scene = Scene::new();
    data_set(&scene);
    let times = "--local-read 1h --round-trip 1h --store-latency 1h --grace 1h --store-away 1d@0s";
    let report = scene.json(&format!(
        "simulate disk --traces set --model real --bandwidth 2 --store-fails 90% --left {times}"
    ));
    let rows = report["rows"].as_array().unwrap();
    // Each read takes an hour and more, and three were recorded.
    assert!(rows.iter().all(|row| row["wait_total"].as_f64() > Some(3600.0)), "{report}");
    assert!(rows.iter().all(|row| row["last_read"].as_f64() < Some(1e9)), "{report}");
    // Reads of a store that is away all day fail, which the report says and the status.
    let times = "--round-trip 1h --store-round-trip 1h --store-latency 1h --store-away 1d@0s --kill 50%@1d";
    let run = scene.run(&format!("simulate fleet --hosts 4 --region 4M --patterns sync-same --json {times}"));
    assert_eq!((run.status, run.json()["rows"].as_array().map(Vec::len)), (Some(1), Some(3)), "{run}");
}
