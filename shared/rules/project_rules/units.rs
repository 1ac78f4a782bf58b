//! The files for services of a host (`deploy`): the syntax of the systemd units, the parts of the host that they can
//! reach, the access to their files; and the pages that name all of these files.

use crate::tree::root;
use crate::{assert_none, skipped};
use std::process::Command;
use std::{env, fs, process};

/// Units that mount nothing.
const UNITS: [&str; 2] = ["headstart-agent.service", "headstart-harvest.service"];
/// A unit that mounts file systems for others, and so has much of the host.
const MOUNTS: &str = "headstart-snapshotter.service";

/// A drop-in of the first unit.
const DROP_IN: &str = "headstart-agent-mounts.conf";

/// The settings by which systemd gives a unit a mount namespace of its own.
const OWN_NAMESPACE: [&str; 26] = [
    "BindPaths",
    "BindReadOnlyPaths",
    "DynamicUser",
    "ExecPaths",
    "ExtensionImages",
    "InaccessiblePaths",
    "MountFlags",
    "MountImages",
    "NoExecPaths",
    "PrivateDevices",
    "PrivateIPC",
    "PrivateMounts",
    "PrivateNetwork",
    "PrivateTmp",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "RootDirectory",
    "TemporaryFileSystem",
];

/// The exposure that `systemd-analyze security` may find at most, in tenths.
const EXPOSURE_MAX: &str = "30";

#[test]
fn units_expose_little_of_the_host() {
    for unit in UNITS {
        let path = root().join("deploy/systemd").join(unit);
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX]).arg(path);
        let Ok(output) = command.output() else {
            skipped(&format!("{unit}: systemd-analyze is not installed"));
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout);
        let refused = String::from_utf8_lossy(&output.stderr);
        if refused.contains("unrecognized option") || refused.contains("Unknown command") {
            skipped(&format!("{unit}: systemd-analyze is too old"));
            return;
        }
        assert!(output.status.success(), "{unit} exposes too much:\n{said}{refused}");
    }
}

/// The program sets modes itself; a unit does so for what systemd makes before the program starts.
#[test]
fn directories_of_units_are_for_their_user_alone() {
    let mut offences = Vec::new();
    for unit in UNITS.into_iter().chain([MOUNTS]) {
        let text = fs::read_to_string(root().join("deploy/systemd").join(unit)).unwrap();
        let has = |line: &str| text.lines().any(|own| own == line);
        if !has("UMask=0077") {
            offences.push(format!("{unit}: UMask=0077"));
        }
        for kind in ["RuntimeDirectory", "StateDirectory", "CacheDirectory", "LogsDirectory"] {
            let is_made = text.lines().any(|line| line.starts_with(&format!("{kind}=")));
            if is_made && !has(&format!("{kind}Mode=0700")) {
                offences.push(format!("{unit}: {kind}Mode=0700"));
            }
        }
    }
    assert_none("add it", &offences);
}

/// The program of a unit has to exist for systemd to accept it, and headstart is not installed where tests run.
#[test]
fn systemd_understands_every_line_of_the_units() {
    let directory = env::temp_dir().join(format!("headstart-units-{}", process::id()));
    let text = |name: &str| fs::read_to_string(root().join("deploy/systemd").join(name)).unwrap();
    let drop_ins = directory.join(format!("{}.d", UNITS[0]));
    fs::create_dir_all(&drop_ins).unwrap();
    fs::write(drop_ins.join("mounts.conf"), text(DROP_IN)).unwrap();
    let mut offences = Vec::new();
    for unit in UNITS.into_iter().chain([MOUNTS]) {
        let path = directory.join(unit);
        fs::write(&path, text(unit).replace("/usr/bin/headstart", "/bin/true")).unwrap();
        let mut command = Command::new("systemd-analyze");
        let Ok(output) = command.args(["verify", "--man=no", "--no-pager"]).arg(&path).output() else {
            skipped("systemd-analyze is not installed");
            break;
        };
        // Lines about other units of this host are left out.
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let directory = directory.to_str().unwrap();
        offences.extend(said.lines().filter(|line| line.contains(directory)).map(str::to_owned));
        if !output.status.success() && !said.contains("headstart") {
            skipped(&format!("{unit}: systemd-analyze cannot look at units here: {said}"));
        }
    }
    fs::remove_dir_all(&directory).unwrap();
    assert_none("systemd does not understand", &offences);
}

/// A commit freezes what is mounted from a disk, and finds it by the loop devices over the disk's file.
#[test]
fn the_agent_that_mounts_may_look_at_the_devices_over_its_disks() {
    let text = fs::read_to_string(root().join("deploy/systemd").join(DROP_IN)).unwrap();
    let wanted = ["DeviceAllow=/dev/fuse rw", "DeviceAllow=block-loop r", "DeviceAllow=block-nbd rw"];
    let lacking = wanted.iter().filter(|wanted| !text.lines().any(|line| line == **wanted));
    assert_none("allow it", &lacking.map(|&line| line.to_owned()).collect::<Vec<_>>());
}

/// Mounts in a namespace of a unit's own are seen by no other process: no snapshotter, no hypervisor.
#[test]
fn units_that_mount_share_the_mount_namespace_of_the_host() {
    let text = |name: &str| fs::read_to_string(root().join("deploy/systemd").join(name)).unwrap();
    let agent = format!("{}\n{}", text(UNITS[0]), text(DROP_IN));
    let mut offences = Vec::new();
    for (unit, text) in [(UNITS[0], agent), (MOUNTS, text(MOUNTS))] {
        for setting in OWN_NAMESPACE {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(setting)?.strip_prefix('='));
            let value = values.next_back().unwrap_or_default();
            if !["", "no", "default", "all"].contains(&value) {
                offences.push(format!("{unit}: {setting}={value}"));
            }
        }
    }
    assert_none("take it back", &offences);
}

#[test]
fn pages_name_every_file_for_services_and_show_what_containerd_is_told() {
    let page = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (configuration, how_to) = (page("docs/configuration.md"), page("docs/how-to/containerd.md"));
    let mut offences = Vec::new();
    for directory in fs::read_dir(root().join("deploy")).unwrap() {
        for file in fs::read_dir(directory.unwrap().path()).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            if !configuration.contains(&name) {
                offences.push(format!("docs/configuration.md: {name}"));
            }
        }
    }
    for name in ["headstart.toml", "headstart-diff.toml"] {
        let settings = containerd_settings(name);
        if !how_to.contains(&format!("```\n{settings}```\n")) {
            offences.push(format!("docs/how-to/containerd.md: the settings of deploy/containerd/{name}"));
        }
    }
    assert_none("describe it", &offences);
}

/// The settings in a file for containerd, without the head of the file.
fn containerd_settings(name: &str) -> String {
    let text = fs::read_to_string(root().join("deploy/containerd").join(name)).unwrap();
    text[text.find("version =").unwrap()..].to_owned()
}

/// Nothing is to be edited for clients that know the snapshotter by another name only.
#[test]
fn containerd_is_told_of_the_snapshotter_by_either_name_and_of_nothing_else() {
    let other = containerd_settings("headstart.toml")
        .replace("proxy_plugins.headstart", "proxy_plugins.overlaybd")
        .replace("snapshotter = \"headstart\"", "snapshotter = \"overlaybd\"");
    assert_eq!(containerd_settings("overlaybd.toml"), other);
    // Files that are read beside each other say nothing about the same thing.
    let tables = |name| {
        let settings = containerd_settings(name);
        let tables = settings.lines().map(str::trim_start).filter(|line| line.starts_with('['));
        tables.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let (ours, differ) = (tables("headstart.toml"), tables("headstart-diff.toml"));
    assert_eq!(ours.intersection(&differ).collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(!ours.is_empty() && !differ.is_empty());
}

/// Each variable of the environment that the programs read is a way to configure them.
#[test]
fn the_page_of_the_configuration_has_every_variable() {
    let page = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let mut offences = Vec::new();
    for source in crate::tree::sources().iter().filter(|source| is_of_a_program(&source.path)) {
        for (number, line) in source.lines().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for word in words.filter(|word| word.starts_with("HEADSTART_") && !page.contains(word)) {
                offences.push(format!("{}:{number}: {word}", source.path));
            }
        }
    }
    offences.sort();
    assert_none("describe the variable in docs/configuration.md", &offences);
}

/// `true` for the code of programs for users, and for their units.
fn is_of_a_program(path: &str) -> bool {
    let is_of_tests = path.contains("/tests/") || path.ends_with("/support.rs");
    let is_code = path.ends_with(".rs") && path.contains("/src/") && !is_of_tests;
    let wings = ["core/", "learn/", "disk/", "containers/", "fleet/", "harvest/", "cli/", "shared/daemon/"];
    is_code && wings.iter().any(|wing| path.starts_with(wing)) || path.starts_with("deploy/")
}
