//! Removing an image from the index.

use super::ImageStore;
use crate::reference::Selector;
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_store::layout::{LayoutIndex, Walk, holders_of, in_use, is_referrers_tag};
use std::collections::BTreeSet;

/// Describes the tags and images that were removed from the index of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The tags that were removed.
    pub tags: Vec<String>,
    /// The digests of the images that have no entry in the index any more. Their blobs are still there.
    pub nameless: Vec<Digest>,
    /// The disks that still need the removed images. Each entry describes one disk for users, such as "the writable
    /// directory DIR on HOST". Empty if no valid lease is on the images.
    pub holders: Vec<String>,
}

impl ImageStore {
    /// Removes an image from the index of the store: a tag selects one entry, a digest all entries of the
    /// image. The blobs stay until [`ImageStore::prune`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such image; [`ErrorKind::Conflict`] if a lease says that a disk needs the
    /// image, and no other entry of the index leads to it, or if another process holds the store's lock for too long;
    /// [`ErrorKind::Corrupt`] if any entry of the index is damaged; an error if a lease cannot be read.
    pub fn remove(&self, selector: &Selector) -> Result<()> {
        self.remove_with(selector, false, false).map(drop)
    }

    /// Works as [`ImageStore::remove`]. With `force`, an image that a disk needs is removed as well; with
    /// `dry_run`, nothing is changed and the result describes what would be removed.
    ///
    /// # Errors
    /// As [`ImageStore::remove`]; a lease that cannot be read is an error also with `force`.
    pub fn remove_with(&self, selector: &Selector, force: bool, dry_run: bool) -> Result<Removal> {
        let _lock = if dry_run { self.layout.lock_to_look()? } else { Some(self.layout.lock()?) };
        let before = self.layout.whole_index()?;
        let mut after = before.clone();
        if !after.remove(selector) {
            return Err(Error::new(ErrorKind::NotFound, "there is no such image")
                .about(format!("image {}", self.name(selector)))
                .remedy(self.lists()));
        }
        let removal = difference(&before, &after);
        let leases = self.counting_leases(None)?;
        let holders = if leases.leases.is_empty() {
            Vec::new()
        } else {
            holders_of(&leases.leases, &self.lost_manifests(&before, &after))
        };
        let removal = Removal { holders, ..removal };
        if !removal.holders.is_empty() && !force {
            return Err(
                in_use(&removal.holders, &self.location()).about(format!("image {}", self.name(selector)))
            );
        }
        if !dry_run {
            self.layout.replace_index(&before, &after)?;
        }
        Ok(removal)
    }

    /// The documents that `before` leads to and `after` does not, as far as they can be read.
    fn lost_manifests(&self, before: &LayoutIndex, after: &LayoutIndex) -> BTreeSet<Digest> {
        let read = |index: &LayoutIndex| {
            let mut walk = Walk::default();
            // Artifacts lead to their subjects, and are removed with them.
            for entry in index.entries().filter(|entry| !entry.tag.is_some_and(is_referrers_tag)) {
                entry.digest.iter().for_each(|digest| walk.start(*digest, entry.media_type));
            }
            while let Some(wanted) = walk.wanted() {
                // Damaged documents must be removable, too.
                if let Ok(bytes) = self.read_document(&wanted.digest) {
                    let _ = walk.give(wanted.digest, &bytes);
                }
            }
            walk.read
        };
        let kept = read(after);
        read(before).difference(&kept).copied().collect()
    }
}

/// The names that `before` has and `after` has not.
fn difference(before: &LayoutIndex, after: &LayoutIndex) -> Removal {
    let tags = |index: &LayoutIndex| -> BTreeSet<String> {
        index.entries().filter_map(|entry| entry.tag.map(str::to_owned)).collect()
    };
    let digests = |index: &LayoutIndex| -> BTreeSet<Digest> {
        index.entries().filter_map(|entry| entry.digest).collect()
    };
    let (tags_after, digests_after) = (tags(after), digests(after));
    Removal {
        tags: tags(before).difference(&tags_after).cloned().collect(),
        nameless: digests(before).difference(&digests_after).copied().collect(),
        holders: Vec::new(),
    }
}
