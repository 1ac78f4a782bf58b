//! Small files that a user names: read with a limit, because a name can lead to a device without an end.

use crate::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The longest file of certificates or of a key that is read, in bytes. The CAs of a host take less than 1 MiB
/// together.
pub const PEM_MAX: u64 = 16 << 20;

/// Reads the whole file at `path`, which may be a pipe, and may have `most` bytes.
///
/// # Errors
/// [`crate::ErrorKind::Invalid`] if it is longer; errors of the operating system. All of them name the path.
pub fn read_small(path: &Path, most: u64) -> Result<Vec<u8>> {
    let failed = |e| Error::io("cannot read", e);
    let read = File::open(path).map_err(failed).and_then(|file| read_to_end_of_small(&file, most));
    read.map_err(|e| e.about(path.display()))
}

/// Reads the rest of an open file, which may have `most` bytes.
///
/// # Errors
/// [`crate::ErrorKind::Invalid`] if it is longer; errors of reading.
pub fn read_to_end_of_small(file: &File, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| Error::io("cannot read", e))?;
    if bytes.len() as u64 > most {
        return Err(Error::invalid(format!("is longer than {most} bytes")).remedy("name another file"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use std::io::Write;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"1234").unwrap();
        assert_eq!(read_small(file.path(), 4).unwrap(), b"1234");
        for (path, most) in [(file.path(), 3), (Path::new("/dev/zero"), 1000)] {
            let error = read_small(path, most).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(
                error.to_string().starts_with(&format!("{}: is longer than {most} ", path.display())),
                "{error}"
            );
        }
        assert_eq!(read_small(Path::new("/nowhere/x"), 3).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
