//! The pages of a block device that the host keeps in memory.
//!
//! The page cache belongs to the device's number, not to the disk behind it: when `/dev/nbd0` gets another disk, pages
//! of the last one may still be there, and are given to programs that read without `O_DIRECT`. So a device is flushed
//! and its cache dropped when a disk is attached to it, and again before the disk goes.

use rustix::ioctl::{NoArg, Opcode, ioctl, opcode};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// `BLKFLSBUF` of <linux/fs.h>: writes back and drops all pages of a block device.
const FLUSH_BUFFERS: Opcode = opcode::none(0x12, 97);

/// Writes back the pages that the host holds of `device` and drops them.
///
/// # Errors
/// As the kernel reports; [`io::ErrorKind::TimedOut`] if it takes longer than `timeout` (it goes on then).
pub(crate) fn drop_pages(device: &Path, timeout: Duration) -> io::Result<()> {
    let device = device.to_owned();
    let (end, ended) = mpsc::channel();
    let work = move || {
        let _ = end.send(File::open(&device).and_then(|file| flush(&file)));
    };
    thread::Builder::new().name("drop-pages".to_owned()).spawn(work)?;
    ended.recv_timeout(timeout).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

fn flush(device: &File) -> io::Result<()> {
    // SAFETY: the request takes no argument and touches no memory of this process.
    unsafe { ioctl(device, NoArg::<FLUSH_BUFFERS>::new()) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_file_is_refused_and_nothing_hangs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refused = drop_pages(file.path(), Duration::from_secs(10)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::NOTTY.raw_os_error()));
    }
}
