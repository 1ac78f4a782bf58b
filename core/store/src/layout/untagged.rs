//! Marks of images that lost their last name, so that they are kept for a while.
//!
//! ```text
//! <store>/.headstart/untagged/<hex>   the image with this manifest; JSON: the tags that it had
//! ```
//!
//! The time of the file is the moment at which the image lost its last name. A mark is written before the index that
//! no longer has the name, under the layout's lock: after a crash between the two there is a mark of an image that
//! has a name, which means nothing; the next prune removes it, and so does a writer that gives the image a name
//! again, so that a later loss begins again. If other tools took the name away there is no mark, and the first
//! prune makes one. The same holds if the disk is full: names can be taken away then, too, to make room.

use super::directory::{Creation, UNTAGGED, temporary};
use super::{INDEX_FILE, LayoutDir, LayoutIndex, is_referrers_tag};
use headstart_block::guarded::FileAccess;
use headstart_block::{Digest, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::SystemTime;

/// Most bytes of a mark that are read: some hundred tags.
const MARK_MAX: u64 = 64 << 10;

/// The record that an image lost its last tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The last tags that the image had; empty if they are not known.
    pub tags: Vec<String>,
    /// The time at which the image lost its last tag or the loss was noticed, by the clock of the file
    /// system.
    pub since: SystemTime,
}

/// The images that `before` names and `after` does not, with the tags that they had.
pub(crate) fn lost_images(before: &LayoutIndex, after: &LayoutIndex) -> BTreeMap<Digest, Vec<String>> {
    let named: BTreeSet<_> = after.entries().filter_map(|entry| entry.digest).collect();
    let mut lost = BTreeMap::<Digest, Vec<String>>::new();
    for entry in before.entries().filter(|entry| !entry.tag.is_some_and(is_referrers_tag)) {
        if let Some(digest) = entry.digest.filter(|digest| !named.contains(digest)) {
            lost.entry(digest).or_default().extend(entry.tag.map(str::to_owned));
        }
    }
    lost
}

/// The images that `after` names and `before` does not.
pub(crate) fn gained_images(before: &LayoutIndex, after: &LayoutIndex) -> BTreeSet<Digest> {
    let named =
        |index: &LayoutIndex| index.entries().filter_map(|entry| entry.digest).collect::<BTreeSet<_>>();
    named(after).difference(&named(before)).copied().collect()
}

#[derive(Default, Serialize, Deserialize)]
struct Content {
    tags: Vec<String>,
}

impl LayoutDir {
    fn untagged_dir(&self) -> PathBuf {
        self.private_dir().join(UNTAGGED)
    }

    /// Replaces the index `before` by `after`. Records, as [`mark`](Self::mark) does, the images that lose their last
    /// entry, and deletes the records of images that gain an entry. The caller must hold the store's lock and must have
    /// read `before` under it; otherwise another writer's change is lost. A crash leaves either the old or the new
    /// index.
    ///
    /// # Errors
    /// Errors of writing, renaming or syncing.
    pub fn replace_index(&self, before: &LayoutIndex, after: &LayoutIndex) -> Result<()> {
        // First the step that needs space.
        let prepared = self.prepare(&after.to_bytes()?)?;
        self.mark_lost(before, after)?;
        prepared.publish(INDEX_FILE)?;
        self.unmark_gained(before, after);
        self.sync_root()
    }

    /// Deletes the records of images that are in the index `after` but not in `before`, because these images
    /// have a name again. The caller must hold the store's lock and must already have written `after`.
    /// Failures are ignored.
    pub fn unmark_gained(&self, before: &LayoutIndex, after: &LayoutIndex) {
        gained_images(before, after).iter().for_each(|digest| self.unmark(digest));
    }

    /// Records, as [`mark`](Self::mark) does, the images that are in the index `before` but not in `after`.
    /// The caller must hold the store's lock and write `after` only later.
    ///
    /// # Errors
    /// Errors of writing files.
    pub fn mark_lost(&self, before: &LayoutIndex, after: &LayoutIndex) -> Result<()> {
        let mut lost = lost_images(before, after).into_iter();
        lost.try_for_each(|(digest, tags)| self.mark(&digest, tags))
    }

    /// Records that an image has lost its last tag now. The record survives a power failure. `tags` are the
    /// tags that the image had. The caller must hold the store's lock. If the disk is full, nothing is
    /// recorded and no error is returned.
    ///
    /// # Errors
    /// Errors of writing files.
    pub fn mark(&self, image: &Digest, tags: Vec<String>) -> Result<()> {
        let failed =
            |e| Error::io("cannot mark an image that loses its name", e).about(self.untagged_dir().display());
        let text = serde_json::to_vec(&Content { tags })
            .map_err(|e| Error::invalid("cannot mark an image").caused_by(e))?;
        let write = || {
            let dir = self.make_private_part(UNTAGGED)?;
            let (new, mut file) = temporary(&dir, Creation::Like(self.modes()?.file))?;
            let written = file
                .write_all(&text)
                .and_then(|()| file.sync_all())
                .and_then(|()| dir.rename(&new, &dir, &image.hex()));
            if written.is_err() {
                let _ = dir.remove_file(&new);
            }
            written.and_then(|()| dir.sync()).and_then(|()| self.make_private()?.sync())
        };
        match write().map_err(failed) {
            Err(e) if e.kind() == ErrorKind::NoSpace => Ok(()),
            written => written,
        }
    }

    /// Returns all records of images that lost their last tag, by the digests of the images' manifests.
    ///
    /// # Errors
    /// Errors of reading the directory or a record.
    pub fn marks(&self) -> Result<BTreeMap<Digest, Mark>> {
        let failed = |e| {
            Error::io("cannot read which images lost their names", e).about(self.untagged_dir().display())
        };
        let Some(dir) = self.private_part(UNTAGGED).map_err(failed)? else { return Ok(BTreeMap::new()) };
        let mut marks = BTreeMap::new();
        for name in dir.names().map_err(failed)? {
            let Some(digest) = Digest::from_hex(&name) else { continue };
            let mut text = Vec::new();
            let read = dir.open_file(&name, FileAccess::Read).and_then(|file| {
                let since = file.metadata()?.modified()?;
                file.take(MARK_MAX).read_to_end(&mut text)?;
                Ok(since)
            });
            let since = match read {
                // An entry that is not a file is no mark, and the image is marked again.
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {
                    continue;
                }
                since => since.map_err(failed)?,
            };
            // The tags are only reported; the time counts.
            let Content { tags } = serde_json::from_slice(&text).unwrap_or_default();
            marks.insert(digest, Mark { tags, since });
        }
        Ok(marks)
    }

    /// Deletes the record that an image lost its last tag. Failures are ignored: a record of an image that
    /// has a tag or is gone has no effect.
    pub fn unmark(&self, image: &Digest) {
        if let Ok(Some(dir)) = self.private_part(UNTAGGED) {
            let _ = dir.remove_file(image.hex());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_marked_when_its_last_name_goes() {
        let dir = tempfile::tempdir().unwrap();
        let layout = LayoutDir::create_or_open(dir.path()).unwrap();
        let [a, b, list] = [b"a", b"b", b"c"].map(|bytes| Digest::of(bytes));
        let mut before = LayoutIndex::empty();
        let tag = |text: &str| text.parse().unwrap();
        for (name, digest) in [("x", &a), ("y", &a), ("z", &b)] {
            before.set(&tag(name), "m", digest, 1);
        }
        before.set(&tag(&super::super::referrers_tag(&a)), "m", &list, 1);
        let mut after = before.clone();
        after.set(&tag("x"), "m", &b, 1);
        layout.mark_lost(&before, &after).unwrap();
        assert!(layout.marks().unwrap().is_empty());
        let (before, mut after) = (after.clone(), after);
        after.set(&tag("y"), "m", &b, 1);
        after.set(&tag(&super::super::referrers_tag(&a)), "m", &b, 1);
        layout.mark_lost(&before, &after).unwrap();
        let marks = layout.marks().unwrap();
        assert_eq!(marks.keys().collect::<Vec<_>>(), [&a]);
        assert_eq!(marks[&a].tags, ["y"]);
        // It is named again.
        let (before, mut after) = (after.clone(), after);
        after.set(&tag("w"), "m", &a, 1);
        layout.replace_index(&before, &after).unwrap();
        assert!(layout.marks().unwrap().is_empty());
        layout.mark(&a, Vec::new()).unwrap();
        layout.unmark(&a);
        layout.unmark(&a);
        assert!(layout.marks().unwrap().is_empty());
    }
}
