//! Project quotas: the kernel's limits of the space that directories take, of ext4 and XFS.
//!
//! A file system that keeps them counts, for each *project*, the files that have its number, and their blocks. A
//! directory with a number and the mark "inherit" gives the number to all that is made in it. So a snapshot's directory
//! gets one as long as it is empty, and the files of its container, and the work directory of overlayfs, are counted
//! together. Overlayfs writes without the right to pass limits, so that holds also for a privileged container; a mount
//! that binds a directory (a snapshot without a parent) holds back all but programs with `CAP_SYS_RESOURCE`.
//!
//! # Mistakes and attackers
//!
//! The limits hold back mistakes. The owner of a file may give it another project, and take the mark from a directory,
//! without any capability (`FS_IOC_FSSETXATTR` and `FS_IOC_SETFLAGS`, which overlayfs passes on): so a program of a
//! container passes its limit if it means to. The kernel refuses that to processes in a user namespace other than the
//! first, and a filter of system calls can refuse it to others.
//!
//! # Numbers
//!
//! The numbers of projects are drawn from [`SPAN`] ones, from [`FIRST`] on. Other programs, or the snapshots of another
//! root directory on that file system, may have some of them: a number is free if the file system counts no file for
//! it. So nothing is recorded. The number of a snapshot is read back from its directory, and is free again when that is
//! gone. As numbers are drawn, no container takes all of the next ones with empty files, or knows those of others,
//! which it could charge with its own files. A search through all of them finds them.

use headstart_block::{Error, Result};
use libc::{c_long, dqblk};
use linux_raw_sys::general::{FS_XFLAG_PROJINHERIT, fsxattr};
use parking_lot::Mutex;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The first number of a snapshot's project, "hs" in its highest bytes: administrators number theirs from 1.
const FIRST: u32 = 0x6873_0000;
/// The numbers for snapshots.
const SPAN: u32 = 1 << 24;
/// The most numbers that are tried for a snapshot.
const TRIES: u32 = 32;

/// The unit of limits, in bytes.
const UNIT: u64 = 1024;
/// The bytes of a limit for which a snapshot may have a file: the file system takes about that for each, if not more.
const BYTES_A_FILE: u64 = 4096;
/// The files that every snapshot may have, at least.
const LEAST_FILES: u64 = 4096;
/// The kind of quotas, of those of users, groups and projects.
const PROJECT: u32 = 2;
const GET_QUOTA: u32 = 0x80_0007;
const SET_QUOTA: u32 = 0x80_0008;
/// Asks which quotas are counted and held: as XFS has it, and ext4 answers it too.
const GET_STATE: u32 = 0x5805;
/// The limits of blocks and of files are set, and nothing else.
const LIMITS: u32 = 1 | 1 << 2;
/// The flags in the answer to [`GET_STATE`]: projects are counted, limits of projects are held.
const COUNTED: u16 = 1 << 4;
const HELD: u16 = 1 << 5;

const GET_ATTRIBUTES: Opcode = opcode::read::<fsxattr>(b'X', 31);
const SET_ATTRIBUTES: Opcode = opcode::write::<fsxattr>(b'X', 32);

/// The project quotas of the file system of a directory.
#[derive(Debug)]
pub(crate) struct ProjectQuotas {
    /// A directory of the file system.
    root: File,
    /// Held from the choice of a number until its directories have it, so that no two snapshots choose the same one.
    choice: Mutex<()>,
}

/// The outcome of holding a limit: nothing holds it for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitState {
    Held,
    NotHeld(&'static str),
}

impl ProjectQuotas {
    /// The project quotas of the file system of `root`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if limits of projects are not held there, with the remedy.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let failed = |error| Error::io("cannot be opened", error).about(root.display());
        let quotas = Self { root: open_directory(root).map_err(failed)?, choice: Mutex::default() };
        let mut answer = [0_u64; 32];
        let state = quotas.ask(GET_STATE, 0, &mut answer);
        match state {
            Ok(()) if are_held(flags_in(&answer)) => Ok(quotas),
            Ok(()) => Err(lacks("counts the space of projects, but does not hold their limits")),
            // Said of every file system that has none, and by a kernel without quotas.
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Err(lacks("has no project quotas")),
            Err(error) => Err(lacks("has no project quotas").caused_by(error)),
        }
        .map_err(|error| error.about(root.display()))
    }

    /// Gives an empty directory and those in it, `inner`, a project of their own, with a limit in bytes. A directory
    /// that has a project of a snapshot keeps it, and gets the limit. Nothing is changed if the directories are not
    /// empty and have no project (what is in them would not be counted), or if no number is found that is free. Of two
    /// calls for the same directory the caller makes the second wait.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn hold(&self, outer: &Path, inner: &[&Path], most: u64) -> Result<LimitState> {
        let failed = |error| Error::io("cannot be given a limit of space", error).about(outer.display());
        if let Some(project) = project_of(outer).map_err(failed)? {
            self.set_limit(project, most).map_err(failed)?;
            return Ok(LimitState::Held);
        }
        for directory in inner {
            if directory.read_dir().map_err(failed)?.next().is_some() {
                return Ok(LimitState::NotHeld("it has files from before limits were held"));
            }
        }
        let _chosen = self.choice.lock();
        let Some(project) = free_project(draw, |project| self.is_used(project)).map_err(failed)? else {
            return Ok(LimitState::NotHeld(
                "of the project numbers for snapshots so many are taken that no free one was found: remove the files \
                 that have them (repquota -P lists the numbers)",
            ));
        };
        self.set_limit(project, most).map_err(failed)?;
        // The outer one last: it says that all have it.
        for directory in inner.iter().chain([&outer]) {
            set_project(directory, project).map_err(failed)?;
        }
        Ok(LimitState::Held)
    }

    /// Takes the limit of a project back, whose directory is gone. Best effort: a number without files is free. One
    /// that has files stays as it is: another snapshot may have it by now.
    pub(crate) fn release(&self, project: u32) {
        let _chosen = self.choice.lock();
        let released = self
            .is_used(project)
            .and_then(|is_used| if is_used { Ok(()) } else { self.set_limit(project, 0) });
        if let Err(error) = released {
            tracing::debug!(project, %error, "the limit of a removed snapshot stays");
        }
    }

    /// `true` if a file has this project.
    fn is_used(&self, project: u32) -> io::Result<bool> {
        // SAFETY: all fields are integers, for which zeros are values.
        let mut found: dqblk = unsafe { mem::zeroed() };
        match self.ask(GET_QUOTA, project, &mut found) {
            Ok(()) => Ok(found.dqb_curinodes > 0 || found.dqb_curspace > 0),
            // Nothing was ever counted for it.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Limits a project to a number of bytes, and of files; 0: not at all.
    fn set_limit(&self, project: u32, most: u64) -> io::Result<()> {
        // SAFETY: all fields are integers, for which zeros are values.
        let mut wanted: dqblk = unsafe { mem::zeroed() };
        wanted.dqb_bhardlimit = most.div_ceil(UNIT);
        wanted.dqb_ihardlimit = files_of(most);
        wanted.dqb_valid = LIMITS;
        self.ask(SET_QUOTA, project, &mut wanted)
    }

    /// Asks the file system something about its project quotas. `T` is what the kernel reads or writes for that.
    fn ask<T>(&self, command: u32, project: u32, about: &mut T) -> io::Result<()> {
        let number = c_long::from(command << 8 | PROJECT);
        let about: *mut T = about;
        // SAFETY: `about` is valid for reads and writes, and at least as long as what any of the three commands has:
        // a `dqblk`, or 80 bytes of state, for which the caller gives 256.
        let done =
            unsafe { libc::syscall(libc::SYS_quotactl_fd, self.root.as_raw_fd(), number, project, about) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The flags in the state of a file system's quotas, which begins with a version of a byte, a byte without meaning and
/// the flags.
fn flags_in(state: &[u64; 32]) -> u16 {
    let [_, _, low, high, ..] = state[0].to_ne_bytes();
    u16::from_ne_bytes([low, high])
}

fn are_held(flags: u16) -> bool {
    flags & (COUNTED | HELD) == COUNTED | HELD
}

fn lacks(cause: &'static str) -> Error {
    Error::unsupported(cause).remedy(
        "for ext4, run tune2fs -O project,quota on the unmounted file system and mount it with -o prjquota (if mount \
         says \"wrong fs type\", the kernel needs CONFIG_QFMT_V2: modprobe quota_v2); mount XFS with -o prjquota; \
         Linux 5.14 or later",
    )
}

/// The most files of a snapshot that has a limit of bytes; 0: no limit.
fn files_of(most: u64) -> u64 {
    if most == 0 { 0 } else { most.div_ceil(BYTES_A_FILE).max(LEAST_FILES) }
}

/// Draws a number that cannot be foreseen.
fn draw() -> u64 {
    let mut drawn = [0; 8];
    // So few bytes always come, and where none do, the numbers are tried from the first one on.
    let _ = getrandom(&mut drawn, GetRandomFlags::empty());
    u64::from_ne_bytes(drawn)
}

/// The number of a project that is free for a snapshot; `None` if all that are drawn are taken.
fn free_project(
    mut draw: impl FnMut() -> u64,
    mut is_used: impl FnMut(u32) -> io::Result<bool>,
) -> io::Result<Option<u32>> {
    for _ in 0..TRIES {
        // Less than the span, so it fits.
        let project = u32::try_from(draw() % u64::from(SPAN)).map_err(io::Error::other)? + FIRST;
        if !is_used(project)? {
            return Ok(Some(project));
        }
    }
    Ok(None)
}

fn open_directory(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)
}

/// The project of a snapshot's directory, which it gives to what is made in it; `None` if it has none of these numbers,
/// or the file system has no projects.
pub(crate) fn project_of(directory: &Path) -> io::Result<Option<u32>> {
    let directory = open_directory(directory)?;
    match attributes(&directory) {
        Ok(found) => {
            let is_ours = found.fsx_projid.checked_sub(FIRST).is_some_and(|number| number < SPAN);
            Ok((is_ours && found.fsx_xflags & FS_XFLAG_PROJINHERIT != 0).then_some(found.fsx_projid))
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EOPNOTSUPP)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn attributes(file: impl AsFd) -> io::Result<fsxattr> {
    // SAFETY: the request writes an `fsxattr`, all of whose fields are integers.
    Ok(unsafe { ioctl(file, Getter::<GET_ATTRIBUTES, fsxattr>::new()) }?)
}

fn set_project(directory: &Path, project: u32) -> io::Result<()> {
    let directory = open_directory(directory)?;
    let mut wanted = attributes(&directory)?;
    wanted.fsx_projid = project;
    wanted.fsx_xflags |= FS_XFLAG_PROJINHERIT;
    // SAFETY: the request reads an `fsxattr`.
    Ok(unsafe { ioctl(&directory, Setter::<SET_ATTRIBUTES, fsxattr>::new(wanted)) }?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_snapshot_gets_a_number_that_is_drawn_and_free() {
        let taken = BTreeSet::from([FIRST, FIRST + 7, FIRST + 8]);
        let of = |drawn: &[u64]| {
            let mut drawn = drawn.iter().copied();
            free_project(|| drawn.next().unwrap(), |project| Ok(taken.contains(&project))).unwrap()
        };
        let span = u64::from(SPAN);
        assert_eq!(of(&[1]), Some(FIRST + 1));
        assert_eq!(of(&[7, 8, span, 9]), Some(FIRST + 9));
        assert_eq!(of(&[span - 1]), Some(FIRST + SPAN - 1));
        assert_eq!(of(&[u64::MAX]), Some(FIRST + SPAN - 1));
        free_project(draw, |_| Err(io::Error::from_raw_os_error(libc::EIO))).unwrap_err();
    }

    #[test]
    fn numbers_that_were_taken_in_order_keep_no_snapshot_from_one() {
        // As a container takes them with an empty file each, from its own number on.
        let own = free_project(draw, |_| Ok(false)).unwrap().unwrap();
        let taken = |project: u32| Ok((own..own + 100_000).contains(&project));
        let found: BTreeSet<_> = (0..8).map(|_| free_project(draw, taken).unwrap().unwrap()).collect();
        assert!(found.len() > 4, "they can be foreseen: {found:?}");
        let mut tries = 0;
        let all = |_| {
            tries += 1;
            Ok(true)
        };
        assert_eq!(free_project(draw, all).unwrap(), None);
        assert!(tries < 100, "{tries}");
    }

    #[test]
    fn files_are_limited_with_their_bytes() {
        assert_eq!([0, 1, 4 << 20].map(files_of), [0, LEAST_FILES, LEAST_FILES]);
        assert_eq!(files_of(10 << 30), 2_621_440);
        assert_eq!(files_of(u64::MAX), 1 << 52);
    }

    #[test]
    fn limits_count_only_where_they_are_held() {
        assert!(are_held(COUNTED | HELD) && are_held(0x3f));
        assert!(!are_held(COUNTED) && !are_held(HELD) && !are_held(0xf));
        let mut state = [0; 32];
        state[0] = u64::from_ne_bytes([1, 0, 0x34, 0x12, 0, 0, 0, 0]);
        assert_eq!(flags_in(&state), u16::from_ne_bytes([0x34, 0x12]));
    }

    #[test]
    fn a_file_system_without_project_quotas_is_named_with_what_helps() {
        // The kernel's own, which has no quotas.
        let refused = ProjectQuotas::open(Path::new("/proc")).unwrap_err().to_string();
        assert!(refused.starts_with("/proc: has no project quotas"), "{refused}");
        for word in ["tune2fs -O project,quota", "prjquota", "modprobe quota_v2"] {
            assert!(refused.contains(word), "{refused}");
        }
        assert!(!refused.contains("os error"), "{refused}");
        assert_eq!(project_of(Path::new("/proc")).unwrap(), None);
    }
}
