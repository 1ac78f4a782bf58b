//! The check whether a device that is to be made flash has data. Making it flash erases it, and a user may still need
//! the data. Only samples of the device are read.

use super::file::busy;
use crate::{Error, Result};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// The number of bytes at both ends that are looked at: the usual formats mark a device there.
const ENDS: u64 = 1 << 20;

/// The number of places between them that are looked at.
const BETWEEN: u64 = 62;

/// The number of bytes that are looked at at each of those.
const SAMPLE: u64 = 64 << 10;

/// Formats that are known by their first bytes: offset, bytes, and name.
const KNOWN: [(usize, &[u8], &str); 11] = [
    (512, b"EFI PART", "a partition table (GPT)"),
    (4096, b"EFI PART", "a partition table (GPT)"),
    (1080, b"\x53\xef", "ext2, ext3 or ext4"),
    (0, b"XFSB", "XFS"),
    (65_600, b"_BHRfS_M", "btrfs"),
    (512, b"LABELONE", "an LVM physical volume"),
    (0, b"LUKS\xba\xbe", "LUKS"),
    (4096, b"\xfc\x4e\x2b\xa9", "a part of a Linux RAID"),
    (4086, b"SWAPSPACE2", "swap space"),
    (3, b"NTFS    ", "NTFS"),
    (510, b"\x55\xaa", "a partition table (MBR) or FAT"),
];

/// Looks for data in a file or block device. Returns the name of the data's apparent format, or a text that says
/// that the format is not known. `None` if all samples are zeros; only samples are read, so data between them is
/// not found.
///
/// # Errors
/// Conflict if a device is mounted or otherwise in use; errors of the operating system if the file or device cannot
/// be opened or read.
pub fn content(path: &Path) -> Result<Option<&'static str>> {
    look(path).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => busy(path),
        _ => Error::io("cannot be read", error).about(path.display()),
    })
}

fn look(path: &Path) -> io::Result<Option<&'static str>> {
    let mut options = OpenOptions::new();
    options.read(true);
    if path.metadata()?.file_type().is_block_device() {
        // One that is mounted is refused.
        options.custom_flags(OFlags::EXCL.bits().cast_signed());
    }
    let mut file = options.open(path)?;
    let size = file.seek(SeekFrom::End(0))?;
    let mut bytes = Vec::new();
    read(&mut file, 0, ENDS, &mut bytes)?;
    let known =
        KNOWN.iter().find(|(at, magic, _)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(magic)));
    if let Some((.., name)) = known {
        return Ok(Some(name));
    }
    let between = (1..=BETWEEN).map(|part| (size / (BETWEEN + 1) * part, SAMPLE));
    for (at, len) in [(0, ENDS), (size.saturating_sub(ENDS), ENDS)].into_iter().chain(between) {
        read(&mut file, at, len, &mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(Some("something that is not known by its first bytes"));
        }
    }
    Ok(None)
}

fn read(file: &mut File, at: u64, len: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.clear();
    file.seek(SeekFrom::Start(at))?;
    file.take(len).read_to_end(bytes).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn file_systems_on_a_device_are_recognised() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let with = |bytes: &[u8], at: u64| {
            file.as_file().set_len(0).unwrap();
            file.as_file().set_len(64 << 20).unwrap();
            file.as_file().write_all_at(bytes, at).unwrap();
            content(file.path()).unwrap()
        };
        assert_eq!(with(b"", 0), None);
        assert_eq!(with(b"XFSB", 0), Some("XFS"));
        assert_eq!(with(b"\x53\xef", 1080), Some("ext2, ext3 or ext4"));
        assert_eq!(with(b"LABELONE", 512), Some("an LVM physical volume"));
        for at in [0, 1 << 19, 32 << 20, (63 << 20) + 1, (64 << 20) - 1] {
            assert!(with(&[1; 1], at).is_some() || at == 32 << 20, "{at}");
        }
        assert!(with(&[1; 2 << 20], 32 << 20).is_some());
        file.as_file().set_len(0).unwrap();
        assert_eq!(content(file.path()).unwrap(), None);
        assert!(content(Path::new("/nowhere")).is_err());
    }
}
