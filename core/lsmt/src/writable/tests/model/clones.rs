//! The clones of the disk: whatever happens to it, and to them, each keeps its content.

use super::{Interlude, Model, SECTOR, base_of, contents, fill};
use crate::writable::state::STATE;
use crate::writable::{Load, WritableDisk};
use headstart_block::{BlockDevice, SECTOR_SIZE};
use uuid::Uuid;

/// A clone, which is closed.
pub(super) struct SimClone {
    name: String,
    parent: usize,
    /// The content of each sector.
    holds: Vec<u64>,
    /// Another content that each sector may have, of writes during the making.
    or: Vec<u64>,
    /// `true` if the making was not seen to end.
    in_doubt: bool,
}

impl Model {
    pub(super) fn clone_disk(&mut self, during: Option<Interlude>) {
        if self.awaiting {
            self.disk().abandon_commit().unwrap();
            self.awaiting = false;
        }
        self.stamps += 1;
        let (name, uuid) = (format!("clone{}", self.stamps), Uuid::from_u128(u128::from(self.stamps) << 80));
        let before = self.now.clone();
        let (made, _) = self.interrupted(during, |disk| disk.clone_to(&name, uuid));
        let parent = *self.parent_maybe.last().unwrap();
        let is_made = self.went_well(made).is_some();
        self.clones.push(SimClone { name, parent, holds: before, or: self.now.clone(), in_doubt: !is_made });
        if is_made {
            // What is in a clone is durable, and so it is in the disk.
            let before = self.clones.last().map(|clone| clone.holds.clone());
            if before.as_ref() == Some(&self.now) {
                self.flushed();
            }
        }
    }

    pub(super) fn remove_clone(&mut self, which: usize) {
        if which < self.clones.len() {
            let gone = self.clones.swap_remove(which);
            self.machine.remove_directory(&gone.name);
        }
    }

    /// Opens each clone, compares its content, changes it and collects its garbage. No fault may be armed.
    pub(super) fn use_clones(&mut self) {
        for mut clone in std::mem::take(&mut self.clones) {
            let directory = self.machine.directory_of(&clone.name);
            if clone.in_doubt && !directory.list().unwrap().iter().any(|name| name == STATE) {
                self.machine.remove_directory(&clone.name);
                continue;
            }
            clone.in_doubt = false;
            let open = || {
                let base = base_of(&self.parents[clone.parent]);
                WritableDisk::open_in(directory.clone(), base, &clone.parent.to_string()).unwrap()
            };
            let disk = open();
            let found = contents(&disk);
            assert_eq!(found.len(), clone.holds.len());
            for (number, stamp) in found.iter().enumerate() {
                let (one, other) = (clone.holds[number], clone.or[number]);
                assert!(*stamp == one || *stamp == other, "sector {number}: {stamp:#x} {one:#x} {other:#x}");
            }
            clone.holds = found;
            self.stamps += 1;
            let start = (self.stamps % 97) as usize;
            let mut data = vec![0; 9 * SECTOR];
            for (sector, number) in data.chunks_mut(SECTOR).zip(start..) {
                clone.holds[number] = self.stamps << 16 | number as u64;
                fill(sector, clone.holds[number]);
            }
            disk.write_at(&data, start as u64 * SECTOR_SIZE).unwrap();
            for _ in 0..50 {
                if !disk.collect(Load::Offline).unwrap() {
                    break;
                }
            }
            disk.flush().unwrap();
            assert_eq!(contents(&disk), clone.holds);
            drop(disk);
            let again = open();
            assert_eq!(contents(&again), clone.holds);
            clone.or.clone_from(&clone.holds);
            self.clones.push(clone);
        }
        let now = contents(self.disk());
        assert_eq!(now, self.now, "a clone has changed its source");
    }
}
