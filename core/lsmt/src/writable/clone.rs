//! Clones: a second disk that begins with the content of this one, made without copying it.
//!
//! A clone freezes the active pair and gives the files of all frozen pairs names in the directory of the clone as well
//! (hard links). Both disks go on with an active pair of their own. So a clone costs two small files and a
//! `state.json`, whatever the disk holds, and reading the log again when it is opened.
//!
//! # Files that are shared
//!
//! Nothing in the files of a shared pair may change, because the other directory names places in them that this one may
//! not need any more. While a pair is shared, no hole is punched in its data, no unfinished tail is cut off, and the
//! collector does not move its data into the active pair, which would take the space twice. Its dead data is *held*, as
//! that of a running commit, so that no write waits for the collector to free it.
//!
//! The file system keeps the count of the directories that share a file: the number of its names. It is looked at when
//! a disk is opened and at each step of the collector. Once it is one, the pair is an ordinary frozen one again. Only a
//! directory that has a file can give it more names, and only the process that has the directory locked does so;
//! therefore a count of one stays one until that process makes a clone.
//!
//! # Crashes
//!
//! ```text
//! 1  state.json of the source names a new active pair, and says that the lower ones may be shared
//! 2  a temporary directory beside the place of the clone gets the files
//! 3  state.json of the clone, the last file there
//! 4  the temporary directory gets its name
//! ```
//!
//! Until step 2 ends, the source has pairs that may be shared and are not, which does no harm. A directory that was
//! left behind by a crash in step 2 or 3 has another name than the clone's; until it is removed, or the clone is made
//! again, the pairs count as shared.

use super::WritableDisk;
use super::files::CloneTarget;
use super::pair::Pair;
use super::state::{NotedLog, PairFiles, State};
use crate::format::PAGE_SIZE;
use headstart_block::{BlockDevice, Error, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// The result of [`WritableDisk::clone_to`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClonedDisk {
    /// The id of the new disk.
    pub uuid: Uuid,
    /// Size of both disks in bytes.
    pub virtual_size: u64,
    /// Number of pairs of files that both directories have.
    pub shared_pairs: usize,
    /// Bytes of these files. Both directories together take them once.
    pub shared_bytes: u64,
}

impl WritableDisk {
    /// Makes a second disk with the present content of this one in the new directory `path`, and gives it the id
    /// `uuid`. Nothing is copied: both directories have the files with the content from now on, and further writes go
    /// to files of their own. The disk stays open, and reads and writes go on. All writes that returned before the call
    /// are in the clone, and are durable there.
    ///
    /// `path` must be on the file system of this disk, and be missing or an empty directory. It gets a copy of the base
    /// ([`BASE_DIR`](super::BASE_DIR)) if this disk's directory has one. The new disk has the same parent as this one.
    ///
    /// # Errors
    /// [`Conflict`](headstart_block::ErrorKind::Conflict) if `path` exists, if another collection or commit is in
    /// progress, if a committed layer waits for [`replace_frozen`](Self::replace_frozen), or if the disk has the most
    /// pairs that it can have; [`Unsupported`](headstart_block::ErrorKind::Unsupported) if `path` is on another file
    /// system, or on one without hard links; errors of the files. No clone is left then, and the disk is as it was.
    pub fn clone_to(&self, path: impl AsRef<Path>, uuid: Uuid) -> Result<ClonedDisk> {
        self.check_usable()?;
        // No file of this disk changes but by writes to the active pair, as long as this is held.
        let mut collector = self.collector.lock();
        let maintenance = self.maintain()?;
        maintenance.check_not_awaiting()?;
        let target = self.directory.clone_target(path.as_ref())?;
        self.flush()?;
        self.freeze_with(State::share_lower)?;
        let generation = self.generation();
        let shared: Vec<_> =
            generation.pairs().filter(|pair| pair.number != generation.active.number).collect();
        for pair in &shared {
            collector.give_up(pair);
            pair.set_shared();
        }
        let made = self.fill(&*target, &shared, uuid).and_then(|state| target.publish().map(|()| state));
        // Files without another name are this directory's own again.
        let state = made.inspect_err(|_| self.notice_own_files())?;
        Ok(ClonedDisk {
            uuid,
            virtual_size: state.virtual_size,
            shared_pairs: shared.len(),
            shared_bytes: shared.iter().map(|pair| pair.file_bytes()).sum(),
        })
    }

    /// Makes the files of a clone.
    fn fill(&self, target: &dyn CloneTarget, shared: &[&Arc<Pair>], uuid: Uuid) -> Result<State> {
        let numbers: Vec<_> = shared.iter().map(|pair| pair.number).collect();
        let active = numbers.iter().max().map_or(0, |highest| highest + 1);
        for number in &numbers {
            let files = PairFiles::of(*number);
            target.link(&files.data)?;
            target.link(&files.index)?;
        }
        // A file system that does not count names would let the files be changed.
        if shared.iter().any(|pair| !pair.has_other_names()) {
            return Err(Error::unsupported("the file system does not count the names of a file")
                .remedy("copy the directory with `cp -a --sparse=always` while the disk is not attached"));
        }
        let mut state = {
            let own = self.state.lock().clone();
            let numbers: Vec<_> = numbers.iter().copied().chain([active]).collect();
            State { uuid, virtual_size: self.size(), ..own.with_pairs(&numbers) }
        };
        state.share_lower();
        state.logs = shared.iter().filter_map(|pair| noted_log(pair)).collect();
        Pair::create(target.directory(), &state, active)?;
        target.directory().sync()?;
        state.store(target.directory()).map_err(|e| e.error)?;
        Ok(state)
    }

    /// Looks for pairs that were shared and whose other directories are gone.
    pub(super) fn notice_own_files(&self) {
        let generation = self.generation();
        for pair in generation.pairs() {
            if pair.became_own() {
                let data = PairFiles::of(pair.number).data;
                // It is written with the next change.
                self.state.lock().shared.retain(|shared| *shared != data);
            }
        }
    }
}

/// The note of a log that takes nothing more.
fn noted_log(pair: &Pair) -> Option<NotedLog> {
    let end = pair.log().log.end();
    let index = PairFiles::of(pair.number).index;
    (end.bytes > PAGE_SIZE as u64).then_some(NotedLog { index, bytes: end.bytes, checksum: end.checksum })
}
