//! Command lines that are wrong whatever is on this host: each is refused with status 2 and names its option.

use headstart_testkit::data_sets::data_set;
use headstart_testkit::scene::Scene;

/// Checks that each of these is refused with status 2, and that the message has all parts.
#[track_caller]
fn are_wrong(scene: &Scene, all: &[(&str, &[&str])]) {
    for (words, parts) in all {
        scene.is_wrong(words, parts);
    }
}

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

#[test]
fn options_of_a_simulated_disk_that_do_nothing_are_refused() {
    let scene = Scene::new();
    data_set(&scene);
    let disk = |options: &str, parts: &[&str]| {
        scene.is_wrong(&format!("simulate disk --traces set {options}"), parts);
    };
    for option in ["--misses blocks", "--misses critical", "--preloads slices", "--round-trip 20ms"] {
        let name = option.split_whitespace().next().unwrap();
        disk(option, &[name, "paper's model", "--model real"]);
    }
    disk("--policies lazy --objective boot", &["--objective", "--policies"]);
    disk("--split 0.5 --policies lazy --without switching", &["--without", "--policies"]);
    disk("--split 0.5 --policies lazy --hide-own", &["--hide-own", "--policies"]);
    disk(
        "--split 0.5 --model real --preloads blocks --without hot-slices",
        &["--without hot-slices", "--preloads blocks"],
    );
    disk(
        "--split 0.5 --model real --misses blocks --without critical-range",
        &["--without critical-range", "--misses blocks"],
    );
    // Plans for a guest that waits are made with these, in the paper's model, too.
    scene.ok("simulate disk --traces set --policies oracle --objective boot --round-trip 9ms --misses own");
}

#[test]
fn options_of_a_simulated_fleet_that_do_nothing_are_refused() {
    let scene = Scene::new();
    let boots = "--patterns boots --traces set";
    for option in [
        "--plan recorded",
        "--disks 2",
        "--faster 2",
        "--grace 1s",
        "--jitter 1s",
        "--ratio 2",
        "--roots-apart",
    ] {
        let name = option.split_whitespace().next().unwrap();
        scene.is_wrong(&format!("simulate fleet --roots 1 {option}"), &[name, "--traces"]);
    }
    are_wrong(
        &scene,
        &[
            ("simulate fleet --warm roots", &["--warm roots", "--roots"]),
            ("simulate fleet --kill-roots 1s", &["--kill-roots", "--roots"]),
            (&format!("simulate fleet {boots} --region 8M"), &["--region", "--patterns"]),
            (&format!("simulate fleet {boots} --hints --ways local,tree"), &["--hints", "--ways"]),
        ],
    );
    for option in [
        "--thresholds inf",
        "--topology ring",
        "--roots 1",
        "--no-homes",
        "--cell 4",
        "--warm all",
        "--pinned 1",
        "--restart 50%@1s",
    ] {
        let name = option.split_whitespace().next().unwrap();
        scene.is_wrong(&format!("simulate fleet --ways independent,tree {option}"), &[name, "--ways swarm"]);
    }
    for option in ["--corrupt 1", "--liars 1", "--endless 1", "--promisers 1", "--mutes 1", "--fabric 1GB/s"]
    {
        let name = option.split_whitespace().next().unwrap();
        scene.is_wrong(&format!("simulate fleet --ways independent,local {option}"), &[name, "--ways"]);
    }
}

#[test]
fn options_of_simulated_harvesting_that_do_nothing_are_refused() {
    let scene = Scene::new();
    for option in ["--foresight plain", "--margin 10", "--ask 1h", "--patience 3", "--plan", "--requests 9"] {
        let name = option.split_whitespace().next().unwrap();
        let words = format!("simulate harvest --figures statistics {option}");
        scene.is_wrong(&words, &[name, "--figures utilisation"]);
    }
    for option in ["--series d", "--servers 9", "--vms 20", "--days 1", "--history 1", "--bandwidth 22"] {
        let name = option.split_whitespace().next().unwrap();
        scene.is_wrong(&format!("simulate harvest --figures performance {option}"), &[name, "--figures"]);
    }
    are_wrong(
        &scene,
        &[
            ("simulate harvest --short", &["--short", "--figures performance"]),
            ("simulate harvest --foresight steps --margin 10", &["--margin", "--foresight default"]),
            ("simulate harvest --foresight clairvoyant --patience 3", &["--patience", "--foresight"]),
            ("simulate harvest --series d --bandwidth 9", &["--series", "--bandwidth"]),
        ],
    );
}

#[test]
fn wrong_command_lines_have_status_2() {
    let scene = Scene::new();
    data_set(&scene);
    let real = "simulate disk --traces set --model real";
    let shares = &["--loss", "give a share from 0 to 1"];
    are_wrong(
        &scene,
        &[
            ("trace synthesize -o new --loss 2", shares),
            ("trace synthesize -o new --loss nan", shares),
            ("trace synthesize -o new --reordering 1.1", &["--reordering", "from 0 to 1"]),
            ("trace synthesize -o new --outliers x", &["--outliers", "from 0 to 1"]),
            ("trace synthesize -o new --images 0", &["--images", "from 1 to 1000000"]),
            ("trace synthesize -o new --traces 0", &["--traces", "from 1 to 1000000"]),
            ("trace synthesize -o new --images 3 --traces 2", &["--traces 2", "--images 3"]),
            ("simulate disk --traces set --policies iocnt", &["`iocnt`", "--train DIR", "lazy, leap"]),
            (
                "simulate disk --traces set --plans p --without preprocessing",
                &["--without preprocessing", "--plans", "--train DIR"],
            ),
            (&format!("{real} --image a=file:///s:a --image a=file:///s:b"), &["--image", "two", "`a`"]),
            (&format!("{real} --image file:///s:a --image file:///s:b"), &["--image", "NAME=IMAGE"]),
            (&format!("{real} --image a=file:///s:a --image file:///s:b"), &["--image", "NAME=IMAGE"]),
            ("replay b.parquet nbd://h/x --plot x.txt", &["--plot", "x.txt", ".svg", ".png"]),
            ("replay b.parquet nbd://h/x --plot x.pdf", &["--plot", "x.pdf", "neither in .svg nor in .png"]),
            ("replay b.parquet nbd://h/x --plot svg", &["--plot", ".svg"]),
            ("replay b.parquet nbd://h/x --reads 0", &["--reads", "1 at least"]),
        ],
    );
    assert!(!scene.path("new").exists());
}
