//! Other programs that read files from untrusted authors, run with limits: memory, processor time, bytes of a file, and
//! no network if the kernel lets this user have a network namespace.

use headstart_block::{ByteSize, Error, Result};
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;

/// The limits of a program, for each of its files and processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The address space in bytes.
    pub(super) memory: u64,
    /// The seconds of processor time.
    pub(super) seconds: u64,
    /// The length of a file that it writes, in bytes.
    pub(super) file: u64,
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (memory, file) = (ByteSize(self.memory), ByteSize(self.file));
        write!(f, "{memory} of memory, {} s of processor time, {file} of a file", self.seconds)
    }
}

/// A script that sets the limits that it may set, because a lower one may hold already, and becomes the program.
const SCRIPT: &str = r#"
ulimit -v "$1" 2>/dev/null
ulimit -t "$2" 2>/dev/null
ulimit -f "$3" 2>/dev/null
ulimit -c 0 2>/dev/null
shift 3
exec "$@"
"#;

/// The kernel's signals for a program that exceeds its processor time and its length of a file.
const PAST_LIMITS: [i32; 2] = [24, 25];

impl Limits {
    /// The command that becomes `program` under these limits. It keeps its process number.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut words = without_network().to_vec();
        words.extend(["/bin/sh", "-c", SCRIPT, "sh"]);
        let mut command = Command::new(words[0]);
        // Units of the shell: KiB, s, sectors.
        let limits = [self.memory >> 10, self.seconds, self.file.div_ceil(512)];
        command.args(&words[1..]).args(limits.map(|limit| limit.to_string())).arg(program);
        // Threads get their memory from one place, because reserved memory counts as used.
        command.env("MALLOC_ARENA_MAX", "1").stdin(Stdio::null());
        command
    }

    /// The error of a program that exceeded a limit; `None` if it ended in another way.
    pub(super) fn error(&self, status: ExitStatus) -> Option<Error> {
        let is_past = status.signal().is_some_and(|signal| PAST_LIMITS.contains(&signal));
        is_past.then(|| {
            Error::invalid(format!("qemu-img went past its limits ({self})"))
                .remedy("if you trust the image, convert it yourself with qemu-img convert -O raw")
        })
    }
}

/// The words before a command that give it a network of its own, with nothing in it; empty if that is forbidden.
fn without_network() -> &'static [&'static str] {
    static WORDS: OnceLock<&[&str]> = OnceLock::new();
    const WAYS: [&[&str]; 2] =
        [&["unshare", "--net", "--"], &["unshare", "--user", "--map-root-user", "--net", "--"]];
    let works = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["/bin/sh", "-c", ":"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    WORDS.get_or_init(|| WAYS.into_iter().find(|words| works(words)).unwrap_or_default())
}

/// The path of a program, found in the user's path.
///
/// # Errors
/// [`headstart_block::ErrorKind::NotFound`] if it is in none of the directories.
pub(super) fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let file = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file());
    file.ok_or_else(|| {
        Error::new(headstart_block::ErrorKind::NotFound, format!("{program} is not installed"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory: 1 << 30, seconds: 7, file: 1 << 20 };

    fn output_of(script: &str) -> String {
        let output = LIMITS.command(Path::new("/bin/sh")).args(["-c", script]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn limits_hold_in_the_program() {
        assert_eq!(output_of("ulimit -v; ulimit -t; ulimit -f; ulimit -c"), "1048576\n7\n2048\n0\n");
    }

    #[test]
    fn a_program_that_writes_too_much_is_ended_and_that_is_said() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut command = LIMITS.command(Path::new("/bin/sh"));
        let status = command.args(["-c", "exec cat /dev/zero > \"$0\""]).arg(file.path()).status().unwrap();
        let error = LIMITS.error(status).unwrap();
        assert!(error.to_string().contains("past its limits"), "{error}");
        assert!(file.path().metadata().unwrap().len() <= LIMITS.file);
    }

    #[test]
    fn a_program_has_no_network_where_that_is_possible() {
        if without_network().is_empty() {
            return;
        }
        // Two lines of headings, and the loopback device, which is down.
        let devices = output_of("cat /proc/net/dev");
        let has_loopback_alone = devices.lines().skip(2).all(|line| line.trim_start().starts_with("lo:"));
        assert!(has_loopback_alone, "{devices}");
        assert_eq!(output_of("tail -n +2 /proc/net/route"), "");
    }
}
