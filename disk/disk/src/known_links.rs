//! The last known bandwidths of the links to stores: the first plan of a disk is chosen before anything was fetched for
//! it.
//!
//! There is one small file for each store, named by the SHA-256 of its location, with one line:
//!
//! ```text
//! headstart link 1 <bytes a second>\n
//! ```
//!
//! A file with any other content is no worse than none.

use crate::known_files::KnownFiles;
use headstart_block::Result;
use std::path::Path;

/// The beginning of the line; the number is the version of the form.
const MAGIC: &str = "headstart link 1 ";

/// The length of the longest file that is read.
const LENGTH_MAX: u64 = 64;

/// The directory of known links.
#[derive(Clone)]
pub(crate) struct KnownLinks(KnownFiles);

impl KnownLinks {
    /// The known links of the cache in `cache`.
    pub(crate) fn of(cache: &Path) -> Self {
        Self(KnownFiles { dir: cache.join("links"), about: "the link", length_max: LENGTH_MAX })
    }

    /// Remembers the bandwidth of `store`, in bytes a second.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn remember(&self, store: &str, bandwidth: u64) -> Result<()> {
        self.0.write(store, format!("{MAGIC}{bandwidth}\n").as_bytes())
    }

    /// The bandwidth of `store` when it was last used, in bytes a second.
    pub(crate) fn recall(&self, store: &str) -> Option<u64> {
        let line = String::from_utf8(self.0.read(store)?).ok()?;
        let bandwidth = line.strip_prefix(MAGIC)?.strip_suffix('\n')?.parse().ok()?;
        (bandwidth > 0).then_some(bandwidth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn remembers_the_latest_and_takes_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let links = KnownLinks::of(dir.path());
        assert_eq!(links.recall("oci://host/a"), None);
        for bandwidth in [1, 10_000_000, u64::MAX] {
            links.remember("oci://host/a", bandwidth).unwrap();
            assert_eq!(links.recall("oci://host/a"), Some(bandwidth));
        }
        assert_eq!(links.recall("oci://host/b"), None);
        let path = links.0.path("oci://host/a");
        for text in
            ["", "headstart link 1 ", "headstart link 1 0\n", "headstart link 1 7", "headstart link 2 7\n"]
        {
            fs::write(&path, text).unwrap();
            assert_eq!(links.recall("oci://host/a"), None, "{text}");
        }
        fs::write(&path, vec![0xff; 1 << 20]).unwrap();
        assert_eq!(links.recall("oci://host/a"), None);
        assert_eq!(fs::read_dir(dir.path().join("links")).unwrap().count(), 1);
    }
}
