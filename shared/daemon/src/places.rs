//! The default directories of daemons.

use std::path::PathBuf;

/// The default directory of what is valid while the host runs: sockets, records of processes.
#[must_use]
pub fn run_dir() -> PathBuf {
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !rustix::process::getuid().is_root());
    of_user.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join("headstart")
}

/// The default directory of the state that outlives the host's restart.
#[must_use]
pub fn state_dir() -> PathBuf {
    if rustix::process::getuid().is_root() {
        return PathBuf::from("/var/lib/headstart");
    }
    let of_user = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let of_home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    of_user.or_else(of_home).map_or_else(run_dir, |state| state.join("headstart"))
}
