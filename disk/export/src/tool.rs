//! Running the standard tools of a host, with a time limit.

use headstart_block::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The places of tools for administrators, which are not on every user's `PATH`.
const ADMINISTRATORS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The program called `name`, on the `PATH` or among the tools for administrators.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(ADMINISTRATORS.iter().map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|program| program.is_file())
}

/// `true` if the kernel's modules in `directory` (`/lib/modules/RELEASE`) include one called `name`, compressed or not.
pub(crate) fn has_module(directory: &Path, name: &str) -> bool {
    let list = std::fs::read_to_string(directory.join("modules.dep")).unwrap_or_default();
    let file =
        |line: &str| line.split(':').next().and_then(|path| path.rsplit('/').next()).map(str::to_owned);
    list.lines()
        .filter_map(file)
        .any(|file| file.strip_prefix(name).is_some_and(|rest| rest.starts_with(".ko")))
}

/// Runs `program` to its end.
///
/// # Errors
/// [`ErrorKind::Io`], with the program's own message, if it fails; [`ErrorKind::Io`] if it takes longer than
/// `timeout`: then it is killed.
pub(crate) fn run(program: &Path, args: &[String], timeout: Duration) -> Result<()> {
    let about = |error: Error| error.about(program.display());
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| about(Error::io("cannot start it", error)))?;
    let id = Pid::from_child(&child);
    let (end, ended) = mpsc::channel();
    let wait = move || {
        let _ = end.send(child.wait_with_output());
    };
    let waiting = thread::Builder::new().name("tool".to_owned()).spawn(wait);
    waiting.map_err(|error| about(Error::io("cannot start a thread", error)))?;
    let Ok(output) = ended.recv_timeout(timeout) else {
        // The process number is the child's own until the child has been waited for, which was not so a moment ago.
        let _ = kill_process(id, Signal::KILL);
        let cause = format!("it took longer than {} s and was killed", timeout.as_secs());
        return Err(about(Error::new(ErrorKind::Io, cause)));
    };
    let output = output.map_err(|error| about(Error::io("cannot wait for it", error)))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(about(Error::new(ErrorKind::Io, format!("it failed ({}): {said}", output.status))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_hangs_are_said() {
        let shell = find("sh").unwrap();
        let script = |text: &str| [String::from("-c"), text.to_owned()];
        run(&shell, &script("exit 0"), Duration::from_secs(10)).unwrap();
        let failed = run(&shell, &script("echo no luck >&2; exit 3"), Duration::from_secs(10)).unwrap_err();
        assert!(failed.to_string().contains("no luck"), "{failed}");
        let hung = run(&shell, &script("exec sleep 60"), Duration::from_millis(50)).unwrap_err();
        assert!(hung.to_string().contains("killed"), "{hung}");
        assert!(find("no-such-tool-anywhere").is_none());
    }
}
