//! Programs of other projects. A test that lacks one prints that and passes.

use crate::scene::{Scene, output_of, run_tool};
use std::path::Path;
use std::process::{Command, Stdio};

pub(crate) use headstart_testkit::process::{find, installed, is_root, skipped};

/// Runs an installed program in the scene, which has to succeed.
#[track_caller]
pub(crate) fn run(scene: &Scene, program: &str, words: &str) {
    let args: Vec<_> = words.split_whitespace().collect();
    run_tool(find(program).unwrap().to_str().unwrap(), &args, &scene.path(""));
}

/// Checks by `qemu-img compare` that both hold the same disk, whatever their formats.
#[track_caller]
pub(crate) fn same_disk(scene: &Scene, raw: &str, other: &str, format: &str) {
    run(scene, "qemu-img", &format!("compare -f raw -F {format} {raw} {other}"));
}

/// A file system of a given size in memory, removed when dropped.
pub(crate) struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    /// The mount; `None`, with a message, if there can be none.
    pub(crate) fn mount(bytes: u64) -> Option<Self> {
        if !is_root() {
            return None;
        }
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "headstart-test"]).arg(dir.path());
        if !output_of(mount.stderr(Stdio::null())).is_ok_and(|output| output.status.success()) {
            skipped("a tmpfs cannot be mounted here");
            return None;
        }
        Some(Self { dir })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The unmount is lazy: a process that still has a file open there must not keep it.
        let _ = output_of(Command::new("umount").arg("-l").arg(self.dir.path()));
    }
}

/// A block device over a file, removed when dropped.
pub(crate) struct LoopDevice {
    pub(crate) path: String,
}

impl LoopDevice {
    /// The device; `None`, with a message, if there can be none.
    pub(crate) fn over(file: &Path) -> Option<Self> {
        if !is_root() || !installed(&["losetup"]) {
            return None;
        }
        let mut losetup = Command::new(find("losetup")?);
        let output = output_of(losetup.args(["--find", "--show"]).arg(file).stdout(Stdio::piped())).ok()?;
        if !output.status.success() {
            skipped("no loop device can be had here");
            return None;
        }
        Some(Self { path: String::from_utf8(output.stdout).unwrap().trim().to_owned() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = find("losetup").map(|losetup| output_of(Command::new(losetup).arg("-d").arg(&self.path)));
    }
}
