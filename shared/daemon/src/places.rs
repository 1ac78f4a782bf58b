//! The default directories of daemons.

use std::path::PathBuf;

/// Returns the default directory of files that are of no use after a restart of the host, such as sockets and PID
/// files: `/run/headstart` for root; for other users `headstart` in `$XDG_RUNTIME_DIR`, or `/run/headstart` if that
/// variable is not set. The directory need not exist.
#[must_use]
pub fn run_dir() -> PathBuf {
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !rustix::process::getuid().is_root());
    of_user.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join("headstart")
}

/// Returns the default directory of the state that outlives a restart of the host: `/var/lib/headstart` for root; for
/// other users `headstart` in `$XDG_STATE_HOME` if that is an absolute path, otherwise in `~/.local/state`. If `$HOME`
/// is not set either, [`run_dir`]. The directory need not exist.
#[must_use]
pub fn state_dir() -> PathBuf {
    if rustix::process::getuid().is_root() {
        return PathBuf::from("/var/lib/headstart");
    }
    let of_user = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let of_home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    of_user.or_else(of_home).map_or_else(run_dir, |state| state.join("headstart"))
}
