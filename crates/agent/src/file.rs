//! Small files of the agent's own: what it has to know when it starts again.

use headstart_block::{Error, Result};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

/// All of a file of at most `most` bytes; nothing where there is none.
pub(crate) fn read(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    let failed = |e| Error::io("cannot read", e).about(path.display());
    let file = match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(Error::corrupt("is longer than it can be").about(path.display()));
    }
    Ok(Some(bytes))
}

/// Writes it in the place of the one before, at once or not at all.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |e| Error::io("cannot write", e).about(path.display());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let mut file = File::create(&new).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_data()).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        assert_eq!(read(&path, 3).unwrap(), None);
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(read(&path, 3).unwrap().as_deref(), Some(&b"two"[..]));
        assert!(read(&path, 2).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
