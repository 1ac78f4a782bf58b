//! Bytes that were right when they came into the cache, and are not any more.
//!
//! Bytes in the cache were checked when they came, and are trusted from then on: reading them checks nothing. A bit
//! that flips later, on the disk or because another program wrote there, is found by
//!
//! * code that decompresses a frame, by the frame's checksum: [`CachedBlob::discard_wrong`];
//! * code that opens a layer whose index is here already: [`CachedBlob::recheck`];
//! * code that is about to give bytes to another host: [`CachedBlob::is_right`];
//! * `headstart cache verify` and an agent's scrub: [`Cache::verify`]. Of images without frames (`--codec none`)
//!   nothing else finds wrong bytes that only this host reads.
//!
//! Bytes that do not match are forgotten, so that they are fetched again when they are needed; they are counted, and
//! logged once a blob.

use crate::blob::CachedBlob;
use crate::blob_files::Files;
use crate::cache::Cache;
use crate::contents::{EntryKind, kind_of};
use crate::presence;
use crate::sidecar::{Identity, Kind};
use crate::whole;
use headstart_block::{ByteRange, Digest, ErrorKind, ReadAt, Result, to_usize};
use headstart_hash_tree::{HashTree, OutboardCheck, TREE_PAGE};
use serde::Serialize;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The number of bytes that are compared at once.
const PART: u64 = 256 << 10;

/// The number of bytes of a hash tree that are compared at once.
const TREE_PART: u64 = 64 << 10;

/// The number of bytes of a blob that are compared while its files are held, which keeps them from being removed.
const STEP: u64 = 16 << 20;

/// The longest blob without a hash tree that is compared with its digest before some of it is called wrong, in bytes:
/// comparing takes less time than fetching.
const COMPARED_MAX: u64 = 16 << 20;

/// The treatment of bytes that are not found right.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Remedy {
    /// Nothing but counting.
    None,
    /// Wrong bytes are forgotten.
    Forget,
    /// Bytes that cannot be compared are forgotten too: the caller found them wrong by other means.
    ForgetDoubtful,
}

/// The result of verifying bytes that are in the cache. The bytes of hash trees count too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Bytes that match the hash tree or the digest.
    pub right_bytes: u64,
    /// Bytes that do not match the hash tree or the digest.
    pub wrong_bytes: u64,
    /// Bytes that cannot be verified: the blob has no hash tree and is incomplete or just being checked elsewhere, or
    /// pages of its tree are missing or wrong.
    pub unproven_bytes: u64,
}

impl AddAssign for Findings {
    fn add_assign(&mut self, other: Self) {
        self.right_bytes += other.right_bytes;
        self.wrong_bytes += other.wrong_bytes;
        self.unproven_bytes += other.unproven_bytes;
    }
}

impl Findings {
    /// The number of all bytes that were looked at: right, wrong and unproven.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.right_bytes + self.wrong_bytes + self.unproven_bytes
    }
}

/// The result of verifying one blob.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// The digest of the blob, which is its name.
    pub digest: Digest,
    /// The kind of the blob.
    pub kind: EntryKind,
    /// The numbers of right, wrong and unproven bytes.
    #[serde(flatten)]
    pub found: Findings,
}

/// The result of comparing a part of a blob.
enum Verdict {
    Right,
    Wrong,
    /// The part cannot be compared.
    Unproven,
    /// The part cannot be compared, because pages of the hash tree are wrong.
    TreeWrong,
    /// The part is not local any more.
    Gone,
}

impl CachedBlob {
    /// Removes the units that touch `range` and are wrong, for a caller that found them wrong by other means, such as a
    /// frame's checksum. Bytes that cannot be verified by a hash tree are removed too. There is one exception: a blob
    /// of at most 16 MiB that has no tree, and that was found earlier to match its digest, is first compared with the
    /// digest again; if it still matches, nothing is removed. Returns `true` if any bytes were removed, so that
    /// fetching them again may help; always `false` for an outboard.
    ///
    /// # Errors
    /// Those of [`discard`](Self::discard), and errors of reading the disk.
    pub fn discard_wrong(&self, range: ByteRange) -> Result<bool> {
        if self.tree().is_some() {
            let found = self.compare(range, Remedy::ForgetDoubtful)?;
            self.log_damaged(&found);
            return Ok(found.wrong_bytes + found.unproven_bytes > 0);
        }
        let range = range.intersect(ByteRange::between(0, self.len()));
        let (mut missing, units) = (0, self.units_within(range));
        self.missing_runs(&units, &mut |run| missing += run.end - run.start);
        if !self.is_plain() || missing == units.end - units.start {
            return Ok(false);
        }
        if self.is_proven() {
            // A blob may be no layer at all, and still match its digest.
            if self.len() <= COMPARED_MAX && whole::is_right(self, &mut |_| Ok(()))? == Some(true) {
                return Ok(false);
            }
            let wrong_bytes = self.bytes_of(&units).len();
            self.count_damaged(wrong_bytes);
            self.log_damaged(&Findings { wrong_bytes, ..Findings::default() });
        } else {
            self.storage.counts.corrupt_inserts.fetch_add(1, Ordering::Relaxed);
        }
        self.discard(range).map(|()| true)
    }

    /// Verifies those units touching `range` that are in the cache's files, by the hash tree, and removes wrong ones.
    /// Without a hash tree nothing is verified, and all numbers of the result are 0.
    ///
    /// # Errors
    /// Errors of the disk, except for failed reads: bytes that cannot be read are removed.
    pub fn recheck(&self, range: ByteRange) -> Result<Findings> {
        self.compare(range, Remedy::Forget).inspect(|found| self.log_damaged(found))
    }

    /// Checks `bytes` before the caller sends them to other hosts. `bytes` must be whole units, read from this blob at
    /// `offset`. Returns `true` if they match the hash tree, or if the blob has no tree. Returns `false` if they do not
    /// match; the wrong bytes of that range are then removed from the cache. Also returns `false` if pages of the tree
    /// that are needed to verify `bytes` are missing.
    #[must_use]
    pub fn is_right(&self, offset: u64, bytes: &[u8]) -> bool {
        let Err(error) = self.check_bytes(offset, bytes) else { return true };
        if error.kind() == ErrorKind::Corrupt {
            let range = ByteRange::between(offset, offset.saturating_add(bytes.len() as u64));
            if let Err(error) = self.recheck(range) {
                tracing::warn!(%error, "cannot forget what is wrong");
            }
        }
        false
    }

    fn compare(&self, range: ByteRange, remedy: Remedy) -> Result<Findings> {
        let mut found = Findings::default();
        let (Some(files), Some(_)) = (self.present_files(), self.tree()) else { return Ok(found) };
        let mut buf = Vec::new();
        for run in self.local_runs(files, range) {
            for part in run.parts(PART) {
                if matches!(self.judge(files, part, &mut buf)?, Verdict::Right) {
                    found.right_bytes += part.len();
                    continue;
                }
                for unit in part.parts(self.unit()) {
                    let verdict = self.judge(files, unit, &mut buf)?;
                    self.apply_verdict(unit, &verdict, remedy, &mut found)?;
                }
            }
        }
        Ok(found)
    }

    /// The runs of whole units that touch `range` and are on the disk.
    pub(crate) fn local_runs(&self, files: &Files, range: ByteRange) -> Vec<ByteRange> {
        let mut runs = Vec::new();
        let units = self.units_within(range);
        presence::runs(files.sidecar.local(), &units, true, &mut |run| runs.push(self.bytes_of(&run)));
        runs
    }

    fn judge(&self, files: &Files, part: ByteRange, buf: &mut Vec<u8>) -> Result<Verdict> {
        buf.resize(to_usize(part.len()), 0);
        if !self.read_file(files, buf, part.offset()) {
            return Ok(Verdict::Gone);
        }
        match self.check_bytes(part.offset(), buf) {
            Ok(()) => Ok(Verdict::Right),
            Err(e) if e.kind() == ErrorKind::Absent => Ok(Verdict::Unproven),
            Err(e) if e.kind() != ErrorKind::Corrupt => Err(e),
            Err(_) if self.wrong_tree(part).is_empty() => Ok(Verdict::Wrong),
            Err(_) => Ok(Verdict::TreeWrong),
        }
    }

    /// Counts a unit by its `verdict`, and forgets it as `remedy` says.
    fn apply_verdict(
        &self,
        unit: ByteRange,
        verdict: &Verdict,
        remedy: Remedy,
        found: &mut Findings,
    ) -> Result<()> {
        match verdict {
            Verdict::Gone => return Ok(()),
            Verdict::Right => found.right_bytes += unit.len(),
            Verdict::Wrong => {
                found.wrong_bytes += unit.len();
                if remedy != Remedy::None {
                    self.count_damaged(unit.len());
                    self.discard(unit)?;
                }
            }
            Verdict::Unproven | Verdict::TreeWrong => {
                found.unproven_bytes += unit.len();
                if remedy != Remedy::None && matches!(verdict, Verdict::TreeWrong) {
                    self.forget_tree(&self.wrong_tree(unit))?;
                }
                if remedy == Remedy::ForgetDoubtful {
                    self.discard(unit)?;
                }
            }
        }
        Ok(())
    }

    fn count_damaged(&self, bytes: u64) {
        self.storage.counts.damaged_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Logs once that bytes were found wrong.
    fn log_damaged(&self, found: &Findings) {
        let storage = &self.storage;
        if found.wrong_bytes > 0 && storage.logged_wrong.lock().insert(self.spec().digest) {
            tracing::warn!(
                blob = %self.spec().digest, directory = %storage.dir().display(),
                "the cache has changed since it was filled: what is wrong is dropped, and fetched again when it is \
                 needed; `headstart cache verify` looks for more"
            );
        }
    }

    /// Compares the pages of the hash tree that are in a part of its outboard with its root.
    fn compare_tree(&self, part: ByteRange, remedy: Remedy) -> Result<Findings> {
        let mut found = Findings::default();
        let Some(outboard) = self.tree() else { return Ok(found) };
        let Some(files) = outboard.present_files() else { return Ok(found) };
        for run in outboard.local_runs(files, part) {
            for part in run.parts(TREE_PART) {
                let check = loop {
                    let check = self.check_tree(part)?;
                    let Some(wrong) = check.wrong else { break check };
                    found.wrong_bytes += TREE_PAGE;
                    if remedy == Remedy::None {
                        break check;
                    }
                    outboard.count_damaged(TREE_PAGE);
                    outboard.discard(wrong)?;
                };
                match (check.wrong, check.is_complete) {
                    (None, true) => found.right_bytes += part.len(),
                    _ => found.unproven_bytes += part.len(),
                }
            }
        }
        Ok(found)
    }

    fn check_tree(&self, part: ByteRange) -> Result<OutboardCheck> {
        let nothing = OutboardCheck { wrong: None, is_complete: false };
        let (Some(spec), Some(outboard)) = (&self.spec().tree, self.tree()) else { return Ok(nothing) };
        match HashTree::open(spec.root, &**outboard, self.len()) {
            Ok(tree) => tree.check_outboard(part),
            Err(e) if e.kind() == ErrorKind::Absent => Ok(nothing),
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                Ok(OutboardCheck { wrong: Some(ByteRange::between(0, 8)), is_complete: false })
            }
            Err(e) => Err(e),
        }
    }
}

impl Cache {
    /// Verifies all bytes on the disk against hash trees and digests, and calls `each` with the result of
    /// each blob. If `repair` is `true`, wrong bytes are removed. Disks may use the cache meanwhile. `read`
    /// is called now and then with the number of bytes that were read since its last call. An error that `read` returns
    /// ends the verification.
    ///
    /// # Errors
    /// The error of `read`; errors of the directory.
    pub fn verify(
        self: &Arc<Self>,
        repair: bool,
        read: &mut dyn FnMut(u64) -> Result<()>,
        each: &mut dyn FnMut(Verified),
    ) -> Result<()> {
        let remedy = if repair { Remedy::Forget } else { Remedy::None };
        for stem in self.storage.directory.stems()? {
            let Some(files) = self.readable(&stem) else { continue };
            let (identity, kind) = (files.header.identity.clone(), kind_of(&files));
            drop(files);
            let found = match identity.kind {
                Kind::Verified => self.verify_by_tree(&identity, remedy, read)?,
                Kind::Plain => self.verify_whole(&identity, remedy, read)?,
                // These are compared with the blob whose tree they are.
                Kind::Outboard => continue,
            };
            each(Verified { digest: identity.digest, kind, found });
        }
        Ok(())
    }

    /// Compares a blob with its hash tree, step by step.
    fn verify_by_tree(
        self: &Arc<Self>,
        identity: &Identity,
        remedy: Remedy,
        read: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Findings> {
        let mut found = Findings::default();
        let mut step = |compared: Result<Findings>| {
            let compared = compared?;
            found += compared;
            read(compared.bytes())
        };
        let tree_len = self.blob_apart(identity)?.tree().map_or(0, ReadAt::len);
        for part in ByteRange::between(0, tree_len).parts(STEP) {
            // Its files are released before `read` waits.
            let compared = self.blob_apart(identity)?.compare_tree(part, remedy);
            step(compared)?;
        }
        for part in ByteRange::between(0, identity.len).parts(STEP) {
            let compared = self.blob_apart(identity)?.compare(part, remedy);
            step(compared)?;
        }
        Ok(found)
    }

    /// Compares a blob without a hash tree with its digest, if all of it is local.
    fn verify_whole(
        self: &Arc<Self>,
        identity: &Identity,
        remedy: Remedy,
        read: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Findings> {
        let blob = self.blob_apart(identity)?;
        let (local_bytes, mut found) = (blob.local_bytes(), Findings::default());
        match whole::is_right(&blob, read)? {
            Some(true) => found.right_bytes = local_bytes,
            None => found.unproven_bytes = local_bytes,
            Some(false) => {
                found.wrong_bytes = local_bytes;
                if remedy != Remedy::None {
                    let all = ByteRange::between(0, blob.len());
                    blob.count_damaged(local_bytes);
                    blob.discard(all)?;
                }
            }
        }
        Ok(found)
    }
}
