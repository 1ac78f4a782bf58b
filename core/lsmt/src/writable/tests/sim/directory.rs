//! The directories and files of a simulated machine, as a process sees them.

use super::super::super::files::{CloneTarget, Directory, LogFile};
use super::{Inode, Machine, NameChange, NameOp, PAGE, Step, World, failure};
use headstart_block::{Error, Result};
use std::io;
use std::path::Path;

/// The beginning of the names in the directory of a clone, or in that of the disk.
pub(super) fn prefix_of(clone: &str) -> String {
    if clone.is_empty() { String::new() } else { format!("{clone}/") }
}

/// `true` if a name is in the directory with this prefix.
pub(super) fn is_within(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|name| !name.contains('/'))
}

/// One directory of a machine.
pub(super) struct SimDirectory {
    machine: Machine,
    prefix: String,
}

impl SimDirectory {
    pub(super) fn of(machine: &Machine, clone: &str) -> Self {
        Self { machine: machine.clone(), prefix: prefix_of(clone) }
    }

    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn file(&self, inode: usize) -> Box<dyn LogFile> {
        Box::new(SimFile { machine: self.machine.clone(), inode })
    }
}

impl Directory for SimDirectory {
    fn name(&self) -> String {
        "simulated".to_owned()
    }

    fn create(&self, name: &str) -> Result<Box<dyn LogFile>> {
        let name = self.path(name);
        let mut world = self.machine.world_for_step();
        let inode = if let Some(&inode) = world.names.get(&name) {
            let step = world.step(false)?;
            world.files[inode].set_len(0);
            step.finish()?;
            inode
        } else {
            if !world.has_names {
                return Err(failure(io::ErrorKind::StorageFull));
            }
            let inode = world.files.len();
            world.files.push(Inode::default());
            world.change(NameChange::Link(name), inode, true)?;
            inode
        };
        Ok(self.file(inode))
    }

    fn open(&self, name: &str) -> Result<Box<dyn LogFile>> {
        let inode = self.machine.world().inode(&self.path(name))?;
        Ok(self.file(inode))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut world = self.machine.world_for_step();
        let inode = world.inode(&self.path(from))?;
        world.change(NameChange::Rename(self.path(from), self.path(to)), inode, false)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut world = self.machine.world_for_step();
        let inode = world.inode(&self.path(name))?;
        world.change(NameChange::Unlink(self.path(name)), inode, false)
    }

    fn list(&self) -> Result<Vec<String>> {
        let world = self.machine.world();
        let own = world.names.keys().filter(|name| is_within(name, &self.prefix));
        Ok(own.map(|name| name[self.prefix.len()..].to_owned()).collect())
    }

    fn sync(&self) -> Result<()> {
        let mut world = self.machine.world_for_step();
        let is_own = |op: &NameOp| is_within(op.name(), &self.prefix);
        if let Step::Half(error) = world.step(false)? {
            if world.down {
                return Err(error);
            }
            world.name_ops.iter_mut().filter(|op| is_own(op)).for_each(|op| op.forgotten = true);
            world.sync_failed = true;
            return Err(error);
        }
        let World { name_ops, durable_names, .. } = &mut *world;
        name_ops.retain(|op| {
            if is_own(op) && !op.forgotten {
                op.apply(durable_names);
            }
            !is_own(op) || op.forgotten
        });
        Ok(())
    }

    fn boot_id(&self) -> Option<u128> {
        self.machine.world().boot_id
    }

    fn clone_target(&self, path: &Path) -> Result<Box<dyn CloneTarget>> {
        let directory = Self::of(&self.machine, path.to_str().unwrap());
        for left in directory.list()? {
            directory.remove(&left)?;
        }
        Ok(Box::new(SimTarget { machine: self.machine.clone(), source: self.prefix.clone(), directory }))
    }
}

/// The directory of a clone. It has its name from the start, so that `state.json` alone makes it a disk.
struct SimTarget {
    machine: Machine,
    source: String,
    directory: SimDirectory,
}

impl CloneTarget for SimTarget {
    fn directory(&self) -> &dyn Directory {
        &self.directory
    }

    fn link(&self, name: &str) -> Result<()> {
        let mut world = self.machine.world_for_step();
        let inode = world.inode(&format!("{}{name}", self.source))?;
        world.change(NameChange::Link(self.directory.path(name)), inode, true)
    }

    fn publish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct SimFile {
    machine: Machine,
    inode: usize,
}

impl LogFile for SimFile {
    fn len(&self) -> Result<u64> {
        Ok(self.machine.world().files[self.inode].now.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let world = self.machine.world();
        let contents = &world.files[self.inode].now;
        let part = contents.get(offset as usize..offset as usize + buf.len());
        buf.copy_from_slice(part.ok_or_else(|| Error::corrupt(format!("it ends before byte {offset}")))?);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let mut world = self.machine.world_for_step();
        let grows = offset as usize + data.len() > world.files[self.inode].now.len();
        let step = world.step(grows)?;
        let written = match step {
            Step::Done => data.len(),
            // A crash tears it by itself.
            Step::Half(_) if world.down => data.len(),
            Step::Half(_) => data.len() / 2,
        };
        world.files[self.inode].write(&data[..written], offset as usize);
        step.finish()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut world = self.machine.world_for_step();
        let step = world.step(false)?;
        world.files[self.inode].set_len(len as usize);
        step.finish()
    }

    fn punch(&self, offset: u64, len: u64) -> Result<bool> {
        assert!(len > 0 && offset.is_multiple_of(PAGE as u64) && len.is_multiple_of(PAGE as u64));
        let mut world = self.machine.world_for_step();
        if !world.has_holes {
            return Ok(false);
        }
        let (start, end) = (offset as usize, (offset + len) as usize);
        let is_bad = world.bad_page.is_some_and(|page| (start / PAGE..end / PAGE).contains(&page));
        if is_bad || world.failing_holes > 0 {
            world.failing_holes = world.failing_holes.saturating_sub(1);
            return Err(failure(io::ErrorKind::Other));
        }
        let step = world.step(false)?;
        // A crash chooses the outcome by itself, page by page.
        let end = if matches!(step, Step::Done) || world.down { end } else { start + PAGE };
        world.files[self.inode].punch(start, end);
        step.finish()?;
        Ok(true)
    }

    fn links(&self) -> Result<u64> {
        let world = self.machine.world();
        Ok(world.names.values().filter(|inode| **inode == self.inode).count() as u64)
    }

    fn taken(&self) -> Result<u64> {
        Ok(self.machine.world().files[self.inode].taken())
    }

    fn sync(&self) -> Result<()> {
        let mut world = self.machine.world_for_step();
        match world.step(false)? {
            Step::Done => {
                world.files[self.inode].sync();
                Ok(())
            }
            Step::Half(error) if world.down => Err(error),
            Step::Half(error) => {
                world.files[self.inode].forget();
                world.sync_failed = true;
                Err(error)
            }
        }
    }
}
