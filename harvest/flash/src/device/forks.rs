//! Starts programs for tests, while other tests of the same process have flash open.

use parking_lot::RwLock;
use std::ffi::OsStr;
use std::io::Read;
use std::process::{Command, Output, Stdio};

/// Held to start programs, and shared to open flash: until a program that another test starts runs its own code, it may
/// hold the locks of all files that were open here.
static FORKS: RwLock<()> = RwLock::new(());

/// Runs a program without input, and returns its output and exit status; the status is 127 if there is no such program.
/// While the child process may still hold locks of files that are open in this process, no other test opens flash
/// ([`between_forks`]): the kernel closes these files in the child only when the child executes the program, which may
/// be after `spawn` has returned.
///
/// # Errors
/// The shell that executes the program cannot be started, or cannot be waited for.
pub fn output_of(program: &str, args: &[&OsStr]) -> std::io::Result<Output> {
    let child = {
        let _alone = FORKS.write();
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo && exec \"$@\"", "sh", program]).args(args);
        let mut child = shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let Some(stdout) = &mut child.stdout {
            stdout.read_exact(&mut [0])?;
        }
        child
    };
    child.wait_with_output()
}

/// Waits until no test of this process is starting a program by [`output_of`]. No test starts one before the
/// returned guard is dropped.
pub fn between_forks() -> impl Drop {
    FORKS.read()
}
