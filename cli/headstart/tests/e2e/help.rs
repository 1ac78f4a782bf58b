//! The command line itself: help, mistakes, JSON.

use crate::disk::mixed_disk;
use crate::scene::{CommandRun, Scene, output_of};
use headstart_testkit::help::{check_help, commands, run_examples};
use std::process::Stdio;

#[test]
fn every_command_has_an_example() {
    let scene = Scene::new();
    let commands = commands(&scene, "headstart");
    check_help(&commands, "headstart");
    assert!(commands.len() >= 30, "{}", commands.len());
    let help = scene.ok("--help").stdout;
    assert!(help.contains("Exit status"), "{help}");
    assert_eq!(scene.ok("--version").stdout, format!("headstart {}\n", env!("CARGO_PKG_VERSION")));
}

/// The examples are commands that parse: they fail, if at all, because the files that they name are missing.
#[test]
fn the_examples_can_be_run() {
    let scene = Scene::new();
    // These commands serve until they are asked to stop.
    let serves = |command: &str| ["attach", "agent", "snapshotter", "harvest serve"].contains(&command);
    let commands = commands(&scene, "headstart");
    let helps = commands.iter().filter(|(command, _)| !serves(command)).map(|(_, help)| help.as_str());
    run_examples(&scene, "headstart", helps, str::to_owned);
}

/// Scripts of earlier versions have these commands: whatever follows them, the answer is where they went.
#[test]
fn commands_of_the_lab_say_where_they_went() {
    let scene = Scene::new();
    let help = scene.ok("--help").stdout + &scene.ok("trace --help").stdout;
    for gone in ["simulate", "replay", "stats", "plot", "synthesize"] {
        assert!(!help.lines().any(|line| line.trim_start().starts_with(gone)), "{gone} in {help}");
    }
    for (words, command, rest) in [
        ("simulate", "simulate", ""),
        ("simulate disk --traces set --bandwidth 2,4", "simulate", " ..."),
        ("simulate fleet --help", "simulate", " ..."),
        ("--quiet replay boot.parquet nbd://localhost:10809/disk --plot w.svg --json", "replay", " ..."),
        ("replay --help", "replay", " ..."),
        ("trace plot set -o plots", "trace plot", " ..."),
        ("trace stats set", "trace stats", " ..."),
        ("trace synthesize --images 3 -o made", "trace synthesize", " ..."),
    ] {
        let run = CommandRun::of(words, &mut scene.command_of("headstart", words));
        let said = format!(
            "headstart: `{command}` is a command of headstart-lab: run `headstart-lab {command}{rest}`\n"
        );
        assert_eq!(
            (run.status, run.stdout.as_str(), run.stderr.as_str()),
            (Some(2), "", said.as_str()),
            "{run}"
        );
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
        "image import disk.raw file:///s:a --codec lz4 --level 3",
        "image import disk.raw file:///s:a --codec none --level 3",
        "image commit file:///s:a --writable c --codec lz4 --level 3",
        "image flatten file:///s:a file:///s:b --codec none --level 3",
        "image optimize file:///s:a file:///s:b --codec lz4 --level 3",
        "image import disk.raw file:///s:a --threads x",
        "image import disk.raw file:///s:a --threads 0",
        "image import disk.raw file:///s:a --threads 100000",
        "image import disk.raw file:///s:a --format iso",
        "image export file:///s:a",
        "image export file:///s:a -o x --threads -1",
        "image export file:///s:a -o x --threads 100000",
        "image commit file:///s:a",
        "image commit file:///s:a --pair a,b --writable c",
        "image convert",
        "image convert oci://registry.lan/app:1",
        "image convert nginx:1 file:///s:a",
        "image prune",
        "layer export -o x",
        "layer export a",
        "layer export a -o x --size wide",
        "layer export a -o x --pair a",
        "layer export -o x --pair a,b,c",
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

/// The message names all options of which one is needed.
#[test]
fn a_missing_option_is_named_with_those_that_serve_in_its_place() {
    let scene = Scene::new();
    for (words, options) in [
        ("image commit file:///s:a", ["--writable", "--pair"]),
        ("image convert oci://registry.lan/app:1", ["TARGET", "--referrer"]),
        ("train -o plans", ["--traces", "--counts"]),
        ("train --traces set", ["--output", "--publish"]),
        ("plan show", ["--plans", "--reference"]),
        ("plan export file:///s:a", ["--output", "--tag"]),
        ("layer export -o x", ["LAYERS", "--pair"]),
    ] {
        let run = scene.is_wrong(words, &options);
        let needed = run.stderr.split("Usage:").next().unwrap();
        assert!(options.iter().all(|option| needed.contains(option)), "{run}");
    }
    // In the order in which they are written.
    let run = scene.is_wrong("image convert", &["<SOURCE>\n  <TARGET|--referrer|--index>\n"]);
    assert!(run.stderr.contains("convert [OPTIONS] <SOURCE> <TARGET|--referrer|--index>"), "{run}");
    let help = scene.ok("attach --help").stdout;
    for option in ["--size <", "--allow-resize", "--keep-base", "--writable-max <"] {
        let (_, text) = help.split_once(&format!("      {option}")).unwrap();
        let text = text.split("\n      --").next().unwrap();
        assert!(text.contains("--writable"), "{option}: {text}");
    }
}

/// Other commands have references, and containerd has names as Docker writes them.
#[test]
fn a_reference_is_refused_where_containerd_wants_a_plain_name() {
    let scene = Scene::new();
    for (words, kind, rest) in [
        ("oci://registry.lan/app:1", "oci", "registry.lan/app:1`"),
        ("docker://registry.lan/app:1 --containerd ~/c.sock", "docker", "registry.lan/app:1 --containerd "),
        ("https://registry.lan/apps/web:1", "https", "registry.lan/apps/web:1`"),
        ("oci://r.lan/a:1 --user web --password-file ~", "oci", "r.lan/a:1 --user web --password-file "),
    ] {
        let command = format!("without {kind}://; run `headstart container pull {rest}");
        scene.fails(&format!("container pull {words}"), &[&command]);
    }
    scene.fails("container pull s3://images/app", &["registries only", "headstart image push"]);
    let convert = "headstart image convert oci-archive:/x.tar oci://registry.lan/app:1";
    scene.fails("container pull oci-archive:/x.tar", &["registries only", convert, "skopeo copy"]);
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
    let run = CommandRun {
        words: "image list".into(),
        status: output.status.code(),
        stdout: String::new(),
        stderr,
    };
    run.fails(&["standard output", "No space"]);
}
