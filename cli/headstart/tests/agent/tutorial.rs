//! The tutorial of containers, as its page has it: each command in its order, under the real programs.
//!
//! The page's places (`/srv`, `/run`, `/var/lib`, `/var/cache` and the home directory) are the scene's here, by mounts
//! that no other process sees, and so is its network.

use crate::scene::Scene;
use headstart_testkit::containerd::Containerd;
use headstart_testkit::process::{has_fuse, installed, skipped};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// The root of the checkout.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Printed before each command, so that each has its output.
const MARK: &str = "=== ";

/// The commands of a page: lines behind `$ `, with lines behind `> ` that go on with them.
fn commands(page: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut in_block = false;
    for line in page.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| in_block) {
            commands.push(command.to_owned());
        } else if let (true, Some(rest), Some(last)) =
            (in_block, line.strip_prefix("> "), commands.last_mut())
        {
            last.push('\n');
            last.push_str(rest);
        }
    }
    commands
}

/// The script that runs them: it ends at the first that fails.
fn script(commands: &[String], dir: &Path) -> String {
    let dir = dir.display();
    let mut script = format!(
        "set -euo pipefail\nip link set lo up\n\
         for place in srv run var/lib var/cache; do mount --bind \"{dir}/$place\" \"/$place\"; done\n\
         export HOME={dir}/home\n"
    );
    for (number, command) in commands.iter().enumerate() {
        script += &format!("echo '{MARK}{number}'\n{command}\n");
        if command.ends_with('&') {
            // A reader takes longer for the next command than a server for its start.
            script += "sleep 2\n";
        }
    }
    script
}

/// The output of each command that is `wanted`.
fn outputs<'o>(output: &'o str, commands: &[String], wanted: &str) -> Vec<&'o str> {
    let parts = output.split(MARK).skip(1);
    let parts = parts.zip(commands).filter(|(_, command)| command.starts_with(wanted));
    parts.map(|(said, _)| said.split_once('\n').unwrap().1).collect()
}

/// Bytes of the largest blob that are in the cache, by `headstart cache list`.
fn local_mib(listed: &str) -> f64 {
    let rows = listed.lines().filter(|line| line.contains(" MiB"));
    let local = rows.filter(|row| row.contains("verified")).map(|row| {
        let mut words = row.split_whitespace();
        let number: f64 = words.next().unwrap().parse().unwrap();
        if words.next() == Some("KiB") { number / 1024.0 } else { number }
    });
    local.fold(0.0, f64::max)
}

#[test]
fn every_command_of_the_tutorial_does_what_its_page_says() {
    let scene = Scene::new();
    let tools = ["skopeo", "docker-registry", "curl", "unshare", "ip", "bash"];
    if !Containerd::can_run() || !has_fuse() || !installed(&tools) {
        return;
    }
    let checkout = Path::new(CHECKOUT).canonicalize().unwrap();
    if !checkout.join("target/demo/nginx.tar").exists() {
        return skipped("there is no target/demo/nginx.tar: scripts/demo-image makes it");
    }
    for place in ["srv", "run", "var/lib", "var/cache", "home/headstart/target/release"] {
        fs::create_dir_all(scene.path("world").join(place)).unwrap();
    }
    let home = scene.path("world/home/headstart");
    symlink(checkout.join("scripts"), home.join("scripts")).unwrap();
    symlink(checkout.join("target/demo"), home.join("target/demo")).unwrap();
    symlink(env!("CARGO_BIN_EXE_headstart"), home.join("target/release/headstart")).unwrap();

    let page = fs::read_to_string(checkout.join("docs/tutorials/containers.md")).unwrap();
    let commands = commands(&page);
    assert!(commands.len() > 20, "{commands:#?}");
    fs::write(scene.path("tutorial.sh"), script(&commands, &scene.path("world"))).unwrap();
    let run = Command::new("timeout")
        .args(["--kill-after=5", "150", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", "bash"])
        .arg(scene.path("tutorial.sh"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}\n{}", String::from_utf8_lossy(&run.stderr));

    let pages = outputs(&said, &commands, "curl");
    assert_eq!(pages, ["<p>This page came out of a container.</p>\n"; 2], "{said}");
    // A manifest and a config, below a line of titles.
    assert_eq!(outputs(&said, &commands, "ctr content ls")[0].lines().count(), 3, "{said}");
    let local: Vec<_> =
        outputs(&said, &commands, "headstart cache list").iter().map(|list| local_mib(list)).collect();
    assert_eq!(local.len(), 2);
    assert!(local[1] > 0.0 && local[1] < 0.7 * local[0], "{local:?}\n{said}");
}
