//! Running programs for a limited time.

use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The outcome of a trial.
pub(crate) enum Trial {
    Ended(ExitStatus),
    TookTooLong,
    NotStarted,
}

/// Runs `command` with all its streams closed, and kills it when it takes longer than `timeout`.
pub(crate) fn run(command: &mut Command, timeout: Duration) -> Trial {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return Trial::NotStarted };
    let deadline = Instant::now() + timeout;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Trial::Ended(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            // A process that hangs in the kernel cannot be killed either, and is left behind.
            _ => {
                let _ = child.kill();
                let _ = child.try_wait();
                return Trial::TookTooLong;
            }
        }
    }
}

/// The program `name`, in the `PATH` or in the directories of administrators' tools.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories =
        std::env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_ended() {
        let shell = find("sh").unwrap();
        let ended = run(Command::new(&shell).args(["-c", "exit 3"]), Duration::from_secs(10));
        assert!(matches!(ended, Trial::Ended(status) if status.code() == Some(3)));
        let hung = run(Command::new(&shell).args(["-c", "exec sleep 60"]), Duration::from_millis(30));
        assert!(matches!(hung, Trial::TookTooLong));
        assert!(matches!(run(&mut Command::new("/no/such/program"), Duration::ZERO), Trial::NotStarted));
    }
}
