//! The command line itself: help, examples.

use headstart_testkit::help::{check_help, commands, run_examples};
use headstart_testkit::scene::{CommandRun, Scene};

const LAB: &str = "headstart-lab";

#[test]
fn every_command_has_an_example() {
    let scene = Scene::new();
    let commands = commands(&scene, LAB);
    check_help(&commands, LAB);
    let names: Vec<_> = commands.iter().map(|(name, _)| name.as_str()).collect();
    let all = [
        "simulate disk",
        "simulate fleet",
        "simulate harvest",
        "replay",
        "trace stats",
        "trace plot",
        "trace synthesize",
    ];
    assert_eq!(names, all);
    let run = |words: &str| CommandRun::of(words, &mut scene.command_of(LAB, words)).succeeds().stdout;
    assert!(run("--help").contains("Exit status"));
    assert_eq!(run("--version"), format!("headstart-lab {}\n", env!("CARGO_PKG_VERSION")));
}

/// The examples are commands that parse: they fail, if at all, because the files that they name are missing.
#[test]
fn the_examples_can_be_run() {
    let scene = Scene::new();
    let commands = commands(&scene, LAB);
    run_examples(&scene, LAB, commands.iter().map(|(_, help)| help.as_str()), |line| {
        // A data set of that size takes a minute, fleets of that size take minutes.
        let line = line.replace("--images 172 --traces 31000", "--images 17 --traces 31");
        let line = line.replace("synthesize -o", "synthesize --images 4 --traces 20 -o");
        let line = line.replace("synthesize --reordering", "synthesize --images 4 --traces 20 --reordering");
        let line = if line.contains("--traces") || !line.starts_with("simulate fleet") {
            line
        } else {
            line.replace("simulate fleet", "simulate fleet --region 4M").replace("--hosts 32", "--hosts 8")
        };
        let line = line.replace("--vms 4000 --days 29 ", "").replace("performance --short", "statistics");
        line.replace("simulate harvest", "simulate harvest --vms 20 --days 1")
    });
}

#[test]
fn mistakes_have_status_2() {
    let scene = Scene::new();
    for words in [
        "",
        "simulate",
        "simulate ship",
        "replay",
        "replay boot.parquet",
        "trace",
        "trace plot",
        "trace stats",
    ] {
        let run = CommandRun::of(words, &mut scene.command_of(LAB, words));
        assert_eq!(run.status, Some(2), "{run}");
        assert!(run.stdout.is_empty() && !run.stderr.is_empty(), "{run}");
    }
}
