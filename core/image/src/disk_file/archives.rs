//! Files that are no disks, though they would be accepted as raw ones: archives, compressed disks, and disks in formats
//! that are not read here.

use headstart_block::{Error, ReadAt, Result, SECTOR_SIZE, to_usize};

/// First bytes that identify a file's kind, and the program that turns it into a disk.
const COMPRESSED: [(&[u8], &str, &str); 7] = [
    (b"\x1f\x8b\x08", "gzip", "gunzip"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"\x04\x22\x4d\x18", "lz4", "unlz4"),
    (b"LZIP", "lzip", "lunzip"),
    (b"\x89LZO\0\r\n", "lzop", "lzop -d"),
];

const ARCHIVES: [(&[u8], &str, &str); 4] = [
    (b"PK\x03\x04", "zip", "unzip"),
    (b"7z\xbc\xaf\x27\x1c", "7z", "7z x"),
    (b"Rar!\x1a\x07", "rar", "unrar x"),
    (b"070701", "cpio", "cpio -i"),
];

/// Disks of other programs: the offsets and the bytes that identify them, and their names for users and for `qemu-img`.
const FOREIGN: [(usize, &[u8], &str, &str); 5] = [
    (64, b"\x7f\x10\xda\xbe", "VirtualBox (VDI)", "vdi"),
    (0, b"QED\0", "QEMU (QED)", "qed"),
    (0, b"WithoutFreeSpace", "Parallels", "parallels"),
    (0, b"WithouFreSpacExt", "Parallels", "parallels"),
    (0, b"COWD", "VMware (COWD)", "vmdk"),
];

/// Refuses `file`, which is in none of the formats that are found by their bytes, if it is no raw disk either.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] with the program that makes a disk of it; errors of reading.
pub(super) fn refuse(file: &dyn ReadAt) -> Result<()> {
    let mut start = [0; 512];
    let len = start.len().min(to_usize(file.len()));
    file.read_at(&mut start[..len], 0)?;
    let taken = "; --format raw takes it as it is";
    let named = |list: &[(&[u8], &'static str, &'static str)]| {
        list.iter().find(|(magic, ..)| start.starts_with(magic)).map(|(_, name, program)| (*name, *program))
    };
    if let Some((name, program)) = named(&COMPRESSED) {
        return Err(Error::invalid(format!("is compressed by {name}, not a disk"))
            .remedy(format!("decompress it first (`{program}`){taken}")));
    }
    if let Some((name, program)) = named(&ARCHIVES).or(is_tar(&start).then_some(("tar", "tar -xf"))) {
        return Err(Error::invalid(format!("is an archive ({name}), not a disk"))
            .remedy(format!("unpack it first (`{program}`) and import the disk that is in it{taken}")));
    }
    if let Some((.., name, format)) = FOREIGN.iter().find(|(at, magic, ..)| start[*at..].starts_with(magic)) {
        return Err(Error::unsupported(format!("is a disk of {name}, a format that is not read here"))
            .remedy(format!(
                "convert it first: qemu-img convert -f {format} -O qcow2 DISK disk.qcow2{taken}"
            )));
    }
    Ok(())
}

/// Refuses a size in bytes that no disk has.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if it is not a whole number of sectors, at least one.
pub(super) fn check_size(size: u64) -> Result<()> {
    let remedy = match size {
        0 => {
            let error = Error::invalid("is empty");
            return Err(error.remedy("copy it again; --format raw takes it as it is"));
        }
        _ if size.is_multiple_of(SECTOR_SIZE) => return Ok(()),
        _ => format!(
            "if it was cut short, copy it again; `truncate -s %{SECTOR_SIZE} DISK` fills its last sector, \
             --format raw takes it as it is"
        ),
    };
    Err(Error::invalid(format!("has {size} bytes: a disk has one or more sectors of {SECTOR_SIZE} bytes"))
        .remedy(remedy))
}

/// A tar archive has `ustar` in its first header, which has a sum of its own bytes; a boot sector has neither.
fn is_tar(header: &[u8; 512]) -> bool {
    let sum = str::from_utf8(&header[148..156]).map(|text| text.trim_matches(['\0', ' ']));
    let sum = sum.ok().and_then(|text| u32::from_str_radix(text, 8).ok());
    let blank = 8 * u32::from(b' ');
    let counted =
        header[..148].iter().chain(&header[156..]).map(|byte| u32::from(*byte)).sum::<u32>() + blank;
    header[257..].starts_with(b"ustar") && sum == Some(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_sector_is_a_disk() {
        let mut sector = vec![0; 512];
        sector[..3].copy_from_slice(b"\xeb\x63\x90");
        sector[257..262].copy_from_slice(b"ustar");
        refuse(&sector).unwrap();
    }

    #[test]
    fn refusals_of_archives_name_the_tool_that_unpacks_them() {
        for (start, tool) in [
            (&b"\x1f\x8b\x08\0"[..], "gunzip"),
            (b"\xfd7zXZ\0\0", "unxz"),
            (b"PK\x03\x04", "unzip"),
            (b"QED\0", "qemu-img convert -f qed"),
        ] {
            let mut file = start.to_vec();
            file.resize(1024, 7);
            assert!(refuse(&file).unwrap_err().to_string().contains(tool));
        }
        assert!(check_size(0).unwrap_err().to_string().starts_with("is empty; copy it again"));
        for len in [1, 511, 513] {
            assert!(check_size(len).unwrap_err().to_string().contains("sectors of 512 bytes"));
        }
    }
}
