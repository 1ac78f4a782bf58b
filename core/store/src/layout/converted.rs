//! Notes of layers that were converted from containers' layers, so that they are converted once.
//!
//! ```text
//! <store>/.headstart/converted/<hex>   the layer that a conversion with this key gave; JSON, of the image store
//! ```
//!
//! A prune removes the notes of layers that are not in the store any more.
//!
//! A note says what this store's own writers did. Copies of images never bring notes along: a note that a stranger made
//! could put any content into the images that are converted later.

use super::directory::{CONVERTED, Creation, temporary};
use super::{LayoutDir, LayoutLock};
use headstart_block::guarded::FileAccess;
use headstart_block::{Digest, Error, Result};
use std::io::{self, Read, Write};

/// Most bytes of a note that are read.
const NOTE_MAX: u64 = 64 << 10;

impl LayoutDir {
    /// Notes the result of the conversion with that key, in place of an earlier one. The note may be lost in a power
    /// failure: it only saves work.
    ///
    /// # Errors
    /// Errors of writing a file.
    pub fn note_conversion(&self, _lock: &LayoutLock, key: &Digest, text: &[u8]) -> Result<()> {
        let write = || -> io::Result<()> {
            let dir = self.make_private_part(CONVERTED)?;
            let (new, mut file) = temporary(&dir, Creation::Like(self.modes()?.file))?;
            let written = file.write_all(text).and_then(|()| dir.rename(&new, &dir, &key.hex()));
            if written.is_err() {
                let _ = dir.remove_file(&new);
            }
            written
        };
        write().map_err(|e| self.about(Error::io("cannot note a conversion", e)))
    }

    /// Returns the note of the conversion with that key; `None` if there is none.
    ///
    /// # Errors
    /// Errors of reading the file.
    pub fn noted_conversion(&self, key: &Digest) -> Result<Option<Vec<u8>>> {
        let read = || -> io::Result<Vec<u8>> {
            let Some(dir) = self.private_part(CONVERTED)? else { return Ok(Vec::new()) };
            let mut text = Vec::new();
            dir.open_file(&key.hex(), FileAccess::Read)?.take(NOTE_MAX).read_to_end(&mut text)?;
            Ok(text)
        };
        match read() {
            // An entry that is not a file is no note.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => Ok(None),
            Err(e) => Err(self.about(Error::io("cannot read the note of a conversion", e))),
            Ok(text) => Ok((!text.is_empty()).then_some(text)),
        }
    }

    /// Returns the keys of all conversions that are noted.
    ///
    /// # Errors
    /// Errors of reading the directory.
    pub fn noted_conversions(&self) -> Result<Vec<Digest>> {
        let names = || match self.private_part(CONVERTED)? {
            Some(dir) => dir.names(),
            None => Ok(Vec::new()),
        };
        let names = names().map_err(|e| self.about(Error::io("cannot list the notes of conversions", e)))?;
        Ok(names.iter().filter_map(|name| Digest::from_hex(name)).collect())
    }

    /// Removes the note of the conversion with that key.
    ///
    /// # Errors
    /// Errors of removing a file.
    pub fn forget_conversion(&self, _lock: &LayoutLock, key: &Digest) -> Result<()> {
        let removed = match self.private_part(CONVERTED) {
            Ok(Some(dir)) => dir.remove_file(key.hex()),
            Ok(None) => Ok(()),
            Err(e) => Err(e),
        };
        match removed {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(self.about(Error::io("cannot remove the note of a conversion", e)))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_found_by_its_key_until_there_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let layout = LayoutDir::create_or_open(dir.path()).unwrap();
        let [key, other] = [b"a", b"b"].map(|text| Digest::of(text));
        assert_eq!(layout.noted_conversion(&key).unwrap(), None);
        assert_eq!(layout.noted_conversions().unwrap(), []);
        let lock = layout.lock().unwrap();
        for text in [b"first", b"again"] {
            layout.note_conversion(&lock, &key, text).unwrap();
            assert_eq!(layout.noted_conversion(&key).unwrap().unwrap(), text);
        }
        assert_eq!(layout.noted_conversion(&other).unwrap(), None);
        assert_eq!(layout.noted_conversions().unwrap(), [key]);
        for _ in 0..2 {
            layout.forget_conversion(&lock, &key).unwrap();
            assert_eq!(layout.noted_conversion(&key).unwrap(), None);
            assert_eq!(layout.noted_conversions().unwrap(), []);
        }
        std::fs::create_dir(dir.path().join(".headstart/converted").join(other.hex())).unwrap();
        assert_eq!(layout.noted_conversion(&other).unwrap(), None);
    }
}
