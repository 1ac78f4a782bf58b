//! The command line itself: help, mistakes, JSON.

use crate::disk::mixed_disk;
use crate::scene::{Run, Scene, output_of};
use std::process::Stdio;

/// The subcommands that a help text lists.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    // A line that is indented further continues the one above.
    let names =
        listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// All commands, with their help.
fn commands(scene: &Scene) -> Vec<(String, String)> {
    let help = |command: &str| scene.ok(&format!("{command} --help")).stdout;
    let mut commands = Vec::new();
    for command in subcommands(&help("")) {
        let of_command = help(&command);
        let below = subcommands(&of_command);
        if below.is_empty() {
            commands.push((command, of_command));
        } else {
            let below = below.iter().map(|name| format!("{command} {name}"));
            commands.extend(below.map(|command| (command.clone(), help(&command))));
        }
    }
    commands
}

#[test]
fn every_command_has_an_example() {
    let scene = Scene::new();
    let commands = commands(&scene);
    for (command, help) in &commands {
        let example = format!("headstart {command}");
        assert!(help.contains("Example") && help.contains(&example), "{help}");
        assert!(help.contains("Usage: "), "{help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 100 || line.contains(&example), "a long line: {line}");
        }
    }
    assert!(commands.len() >= 30, "{}", commands.len());
    let help = scene.ok("--help").stdout;
    assert!(help.contains("Exit status"), "{help}");
    let version = scene.ok("--version").stdout;
    assert_eq!(version, format!("headstart {}\n", env!("CARGO_PKG_VERSION")));
}

/// The examples are commands that parse: they fail, if at all, because the files that they name are missing.
#[test]
fn the_examples_can_be_run() {
    let scene = Scene::new();
    for (command, help) in commands(&scene) {
        // These commands serve until they are asked to stop.
        if ["attach", "agent", "harvest serve"].contains(&command.as_str()) {
            continue;
        }
        let help = help.replace("\\\n", "");
        let (_, examples) = help.split_once("Example").unwrap();
        for line in examples.lines().filter_map(|line| line.trim().strip_prefix("headstart ")) {
            // Port 9 of this host has no listener; a data set of that size takes a minute.
            let line = line.replace("registry.lan", "127.0.0.1:9").replace("images.lan", "127.0.0.1:9");
            let line = line.replace("--traces 31000", "--traces 310").replace('\'', "");
            // Fleets of that size take minutes.
            let line = line.replace("--vms 4000 --days 29 ", "").replace("performance --short", "statistics");
            let line = line.replace("simulate harvest", "simulate harvest --vms 20 --days 1");
            // The part for another program is not run.
            let line = line.split_once(" | ").map_or(line.as_str(), |(line, _)| line);
            let run = scene.run(&line.replace("file:///", "file://~/").replace("/var/lib", "~"));
            assert_ne!(run.status, Some(2), "{run}");
        }
    }
}

#[test]
fn mistakes_have_status_2() {
    let scene = Scene::new();
    for words in [
        "",
        "image",
        "imagine",
        "image burn",
        "image import",
        "image import disk.raw",
        "image import disk.raw /not/a/reference",
        "image import disk.raw file://relative:tag",
        "image import disk.raw ftp://host/s:tag",
        "image import disk.raw file:///s:a --codec gzip",
        "image import disk.raw file:///s:a --frame-size big",
        "image import disk.raw file:///s:a --level 20",
        "image import disk.raw file:///s:a --threads x",
        "image import disk.raw file:///s:a --threads 0",
        "image import disk.raw file:///s:a --threads 100000",
        "image import disk.raw file:///s:a --format iso",
        "image export file:///s:a",
        "image export file:///s:a -o x --threads -1",
        "image export file:///s:a -o x --threads 100000",
        "image commit file:///s:a",
        "image commit file:///s:a --pair a,b --writable c",
        "image prune",
        "layer export -o x",
        "layer export a",
        "layer export a -o x --size wide",
        "layer verify",
        "zfile pack a",
        "zfile inspect a b",
        "--frobnicate",
    ] {
        let run = scene.run(words);
        assert_eq!(run.status, Some(2), "{run}");
        assert!(run.stdout.is_empty() && !run.stderr.is_empty(), "{run}");
    }
}

#[test]
fn reports_can_be_read_by_programs() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 4);
    let mut reports = Vec::new();
    for words in [
        "image import disk.raw file://~/s:a",
        "image import disk.raw file://~/s:b --base file://~/s:a",
        "image inspect file://~/s:b",
        "image verify file://~/s:b",
        "image verify --deep file://~/s:b",
        "image list file://~/s",
        "image flatten file://~/s:b file://~/s:flat",
        "image diff file://~/s:a file://~/s:b",
        "image export file://~/s:b -o out.raw",
        "zfile pack disk.raw -o disk.zf",
        "zfile inspect disk.zf",
        "zfile unpack disk.zf -o out.raw",
        "image remove file://~/s:a",
        "image prune file://~/s",
    ] {
        let report = scene.json(words);
        assert!(report.is_object(), "{words}: {report}");
        reports.push(report);
    }
    let layer = scene.blob("s", &reports[0]["layer"]);
    let layer = layer.display();
    for words in ["layer inspect", "layer inspect --segments", "layer verify", "layer export -o out.raw"] {
        let report = scene.json(&format!("{words} {layer}"));
        assert!(report.is_object(), "{words}: {report}");
    }
    // `--json` goes anywhere; `--quiet` changes nothing more, because without a terminal there is no progress.
    let before = scene.ok("--json image list file://~/s").json();
    assert_eq!(before, scene.json("image list file://~/s"));
    scene.ok("image verify --deep file://~/s:b --quiet");
}

#[test]
fn a_reader_that_went_away_is_no_error_but_a_full_disk_is() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 4);
    scene.ok("image import disk.raw file://~/s:a");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let listed = output_of(scene.command("image list file://~/s").stdout(writer).stderr(Stdio::null()));
    assert_eq!(listed.unwrap().status.code(), Some(0));
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else { return };
    let output =
        output_of(scene.command("image list file://~/s").stdout(full).stderr(Stdio::piped())).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let run = Run { words: "image list".into(), status: output.status.code(), stdout: String::new(), stderr };
    run.fails(&["standard output", "No space"]);
}
