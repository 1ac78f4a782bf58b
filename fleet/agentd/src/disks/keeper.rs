//! The keeper of the host's FUSE mounts: a process that the agent starts when the first disk needs it, and starts again
//! if it dies. It does not depend on the agent, and the next agent finds it by its lock.
//!
//! ```text
//! DIR/keeper/keeper.sock   the socket at which disks' processes find it
//! DIR/keeper/keeper.pid    the number of the process, which holds a lock on this file as long as it lives
//! DIR/keeper/keeper.log    its warnings
//! ```

use super::keeper_places::{NAME, is_mounted, keeper_socket};
use super::process::Process;
use super::{DiskSpec, DisksSettings, file};
use headstart_block::guarded::GuardedDir;
use headstart_block::{Error, Result, private};
use headstart_daemon::pid_file;
use headstart_export::keeper::KeeperClient;
use rustix::fs::Mode;
use std::fs::File;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::process::Command;

/// The pauses before it is started again: the first, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));

/// The keeper, as an agent sees it.
pub(super) struct KeeperProcess {
    settings: Arc<DisksSettings>,
    is_looked_after: AtomicBool,
}

impl KeeperProcess {
    pub(super) fn new(settings: Arc<DisksSettings>) -> Arc<Self> {
        Arc::new(Self { settings, is_looked_after: AtomicBool::new(false) })
    }

    /// Makes sure that it runs, from now on, if the disk needs it.
    pub(super) fn start_for(self: &Arc<Self>, spec: &DiskSpec) {
        if is_mounted(spec) && !self.is_looked_after.swap(true, Ordering::AcqRel) {
            tokio::spawn(Arc::clone(self).look_after());
        }
    }

    /// Has it drop the mount of a disk that is over, so that no user of that waits for a process.
    pub(super) async fn give_up(&self, spec: &DiskSpec) {
        if !is_mounted(spec) {
            return;
        }
        let (client, name) = (KeeperClient::new(keeper_socket(&self.settings.keeper)), spec.name.clone());
        let given_up = tokio::task::spawn_blocking(move || client.give_up(&name)).await;
        if let Ok(Err(error)) = given_up {
            tracing::debug!(disk = %spec.name, %error, "no mount is given up");
        }
    }

    async fn look_after(self: Arc<Self>) {
        let mut pause = AGAIN.0;
        loop {
            let dir = &self.settings.keeper;
            let started = match Process::find(dir, NAME) {
                Some(found) => Ok(found),
                None => self.start(),
            };
            match started {
                Ok(process) => process.ended().await,
                Err(error) => tracing::warn!(%error, "the mounts of disks are not kept"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(AGAIN.1);
        }
    }

    fn start(&self) -> Result<Process> {
        let DisksSettings { keeper: dir, dir: disks, program, .. } = self.settings.as_ref();
        let failed = |error| Error::io("cannot make the directory", error).about(dir.display());
        private::make_directory(dir).map_err(failed)?;
        let own = GuardedDir::open_own(dir)?;
        // Others may not even pass.
        let handle: &File = own.handle();
        rustix::fs::fchmod(handle, Mode::from_raw_mode(0o700)).map_err(|error| failed(error.into()))?;
        let log = pid_file::open_log(&file(dir, NAME, "log"))
            .map_err(|error| Error::io("cannot make a file", error).about(dir.display()))?;
        let mut command = Command::new(program);
        command.arg("keeper").arg("--dir").arg(dir).arg("--disks").arg(disks);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command
            .spawn()
            .map_err(|error| Error::io("cannot start the keeper", error).about(program.display()))?;
        Process::of(child)
    }
}
