//! A loop device that is always detached.

use super::run;
use headstart_testkit::process::skipped;
use std::path::Path;
use std::process::Command;

pub(crate) struct LoopDevice(pub(crate) String);

impl LoopDevice {
    /// Attaches `path` as a loop device from `offset` on; `None` if this host has no loop device to give.
    pub(crate) fn attach(path: &Path, offset: u64, direct: bool) -> Option<Self> {
        let direct = format!("--direct-io={}", if direct { "on" } else { "off" });
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--offset", &offset.to_string(), &direct]).arg(path);
        let output = command.output().ok()?;
        if !output.status.success() {
            skipped(&format!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim()));
            return None;
        }
        Some(Self(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// A mounted file system that is always unmounted.
pub(crate) struct FileSystem<'a>(pub(crate) &'a Path);

impl<'a> FileSystem<'a> {
    pub(crate) fn mount(device: &LoopDevice, at: &'a Path) -> Self {
        run("mount", &["-t", "ext4", &device.0, at.to_str().unwrap()]);
        Self(at)
    }
}

impl Drop for FileSystem<'_> {
    fn drop(&mut self) {
        // A program that another test starts meanwhile holds the files that were open here until it is executed.
        for _ in 0..200 {
            if Command::new("umount").arg(self.0).status().is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}
