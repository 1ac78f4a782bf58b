//! Command lines of QEMU with a disk. A guest that is started with them reconnects to its disk, so it survives the end
//! of the process that serves the disk, if that process is started again.

use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The time, in seconds, for which QEMU holds a guest's requests while its NBD server is away: enough for an agent or a
/// person to start it again.
const RECONNECT: u32 = 60;

/// The longest wait for a program's version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(1);

/// A version of QEMU (major, minor), which decides the options of its command line. The default, 10.0, is
/// used if the version of the installed QEMU is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QemuVersion(u32, u32);

impl Default for QemuVersion {
    fn default() -> Self {
        Self(10, 0)
    }
}

impl QemuVersion {
    /// Starts a query for the version of the installed QEMU (`qemu-system-x86_64`), and returns at once.
    #[must_use]
    pub fn ask() -> VersionQuery {
        let (said, heard) = mpsc::channel();
        let ask = move || {
            let mut command = Command::new("qemu-system-x86_64");
            let output = command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
            // The receiver may be gone.
            let _ = said.send(output);
        };
        // Without a thread there is no answer.
        let _ = std::thread::Builder::new().name("qemu-version".to_owned()).spawn(ask);
        VersionQuery(heard)
    }

    /// Parses `QEMU emulator version 7.2.22 (Debian ...)`.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_once(" version ")?.1.split(['.', ' ', '\n']);
        Some(Self(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// A running query for the version of the installed QEMU.
pub struct VersionQuery(mpsc::Receiver<io::Result<Output>>);

impl VersionQuery {
    /// Waits for the version, at most one second. Returns the default version if QEMU is not installed, does not answer
    /// in time, or gives no version that can be parsed.
    #[must_use]
    pub fn answer(self) -> QemuVersion {
        let output = self.0.recv_timeout(VERSION_TIMEOUT).ok().and_then(Result::ok);
        output
            .and_then(|output| QemuVersion::parse(&String::from_utf8_lossy(&output.stdout)))
            .unwrap_or_default()
    }
}

/// The line for a disk over NBD.
pub(crate) fn nbd_line(uri: &str, read_only: bool) -> String {
    drive(uri, read_only, &format!(",file.reconnect-delay={RECONNECT}"))
}

/// The line for a disk that is a file.
pub(crate) fn file_line(file: &str, read_only: bool) -> String {
    drive(file, read_only, "")
}

/// The line for a drive. A read-only disk is given to the guest with changes that QEMU keeps until it ends.
fn drive(file: &str, read_only: bool, options: &str) -> String {
    let snapshot = if read_only { ",snapshot=on" } else { "" };
    format!("qemu-system-x86_64 -m 1G -drive 'file={file},format=raw,if=virtio{options}{snapshot}'")
}

/// The line for a disk over vhost-user-blk. From 9.2 on, QEMU takes the time between two attempts in milliseconds; 10.0
/// knows only that.
pub(crate) fn vhost_user_line(socket: &Path, version: QemuVersion) -> String {
    let reconnect = if version >= QemuVersion(9, 2) { "reconnect-ms=1000" } else { "reconnect=1" };
    format!(
        "qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \
         -chardev socket,id=disk,path={},{reconnect} -device vhost-user-blk-pci,chardev=disk",
        socket.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_word_that_its_qemu_knows() {
        let version = |text: &str| QemuVersion::parse(text).unwrap();
        let debian = version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright (c) 2003");
        assert_eq!(debian, QemuVersion(7, 2));
        let line = |version| vhost_user_line(Path::new("/s"), version);
        assert!(line(debian).contains("path=/s,reconnect=1 "));
        for text in ["QEMU emulator version 9.2.0\n", "QEMU emulator version 10.0.2 (x)"] {
            assert!(line(version(text)).contains("path=/s,reconnect-ms=1000 "), "{text}");
        }
        assert!(line(version("QEMU emulator version 9.1.2")).contains("reconnect=1 "));
        assert_eq!(QemuVersion::parse("qemu: not found"), None);
    }

    #[test]
    fn only_nbd_reconnects() {
        assert!(
            nbd_line("nbd://h", false)
                .contains("'file=nbd://h,format=raw,if=virtio,file.reconnect-delay=60'")
        );
        assert!(nbd_line("nbd://h", true).ends_with("file.reconnect-delay=60,snapshot=on'"));
        assert!(!file_line("/f", false).contains("reconnect"));
    }
}
