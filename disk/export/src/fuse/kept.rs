//! A mount that outlives the process that serves it: what the next process has to know, and how it goes on.
//!
//! # Taking over
//!
//! The kernel greets the server of a file system once, after the mount, and never again. The crate that speaks the
//! protocol waits for that greeting. So the next process plays the kernel's part at the other end of a socket, with
//! what the kernel said to the first process, and then puts the descriptor of `/dev/fuse` in the place of the socket
//! ([`greet`]).
//!
//! Then the kernel is asked to send again what the process before has received and not answered ([`send_again`]).
//! That is harmless: reads change nothing, a write puts the same bytes in the same place, and a program that waits for
//! the answer of a write has not written there since. Requests that no process has received just wait. Writes that were
//! answered and not flushed are the disk's to keep: a writable layer brings them back when it is opened.
//!
//! All descriptors of the connection are duplicates of one. The kernel ends the requests that it gave to a descriptor
//! of another kind, a clone, when that is closed, and nothing can bring them back.

use super::face::Face;
use super::mount_table::MountEntry;
use crate::keeper::{KeeperClient, Registration};
use crate::kernel_release::{kernel_release, version_of};
use fuser::{Filesystem, InitFlags, KernelConfig, Session, SessionACL};
use headstart_block::{Error, Result, exact};
use parking_lot::Mutex;
use rustix::io::{DupFlags, dup3};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::{Deserialize, Serialize};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The version of the state. A process that finds another one mounts anew.
const VERSION: u32 = 1;

/// The keeper of a mount, and the marks that tell this disk from others.
#[derive(Clone, Debug)]
pub struct KeepSettings {
    /// The way to the keeper.
    pub keeper: KeeperClient,
    /// The name of the disk at the keeper.
    pub name: String,
    /// The identity of the disk's bytes: a process takes over a mount of the same identity only. The kernel may have
    /// cached bytes of another.
    pub identity: String,
}

/// The state of a mount for the next process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptState {
    version: u32,
    pub(super) identity: String,
    /// The entry in the mount table. Numbers of mounts are used again, those of devices as well, but not both while the
    /// connection lives.
    pub(super) mount: Option<MountEntry>,
    /// `true` if the mount point is a directory.
    pub(super) is_directory: bool,
    pub(super) face: Face,
    /// The number of times that the file is open.
    pub(super) opened: usize,
    greeting: Greeting,
}

/// The words of the kernel to the first process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Greeting {
    major: u32,
    minor: u32,
    max_readahead: u32,
    capabilities: u64,
}

impl KeptState {
    pub(super) fn new(identity: String, is_directory: bool, face: Face) -> Self {
        let greeting = Greeting::default();
        Self { version: VERSION, identity, mount: None, is_directory, face, opened: 0, greeting }
    }

    /// Understands what the keeper kept; `None` for a version that is not known.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(|state: &Self| state.version == VERSION)
    }

    fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// `true` if the kernel sends requests again. Without that, those that a dead process had received would wait for
    /// ever.
    fn can_send_again(&self) -> bool {
        InitFlags::from_bits_retain(self.greeting.capabilities).contains(InitFlags::FUSE_HAS_RESEND)
    }
}

/// The state of a mount, told to the keeper if there is one.
pub(super) struct Keeping {
    state: Mutex<KeptState>,
    registration: Mutex<Option<Registration>>,
}

impl Keeping {
    pub(super) fn new(state: KeptState) -> Self {
        Self { state: Mutex::new(state), registration: Mutex::new(None) }
    }

    /// Notes what the kernel says at the start.
    pub(super) fn greeted(&self, config: &KernelConfig, max_readahead: u32) {
        let version = config.kernel_abi();
        let capabilities = config.capabilities().bits();
        self.state.lock().greeting =
            Greeting { major: version.0, minor: version.1, max_readahead, capabilities };
    }

    /// Changes the state.
    pub(super) fn change(&self, change: impl FnOnce(&mut KeptState)) {
        let bytes = {
            let mut state = self.state.lock();
            change(&mut state);
            state.bytes()
        };
        if let Some(registration) = self.registration.lock().as_ref() {
            registration.update(bytes);
        }
    }

    /// Has `fuse` kept from now on, if the kernel can do what that needs. A failure is logged: the disk is served
    /// nevertheless.
    pub(super) fn keep(&self, settings: &KeepSettings, fuse: OwnedFd) {
        let (can, bytes) = {
            let state = self.state.lock();
            (state.can_send_again(), state.bytes())
        };
        if !can {
            tracing::debug!("{}: this kernel sends no requests again: the mount is not kept", settings.name);
            return;
        }
        match Registration::start(settings.keeper.clone(), &settings.name, fuse, bytes) {
            Ok(registration) => *self.registration.lock() = Some(registration),
            Err(error) => {
                tracing::warn!("{error}; until it does, the death of this process fails reads of the disk");
            }
        }
    }

    /// `true` if the mount outlives this process.
    pub(super) fn is_kept(&self) -> bool {
        self.registration.lock().as_ref().is_some_and(Registration::is_kept)
    }

    /// Leaves the mount with the keeper, for the next process.
    pub(super) fn leave(&self) {
        drop(self.registration.lock().take());
    }

    /// Has the keeper drop the mount.
    pub(super) fn give_up(&self) {
        let registration = self.registration.lock().take();
        if let Some(Err(error)) = registration.map(Registration::give_up) {
            tracing::warn!("a mount that is over stays with the keeper: {error}");
        }
    }
}

/// The first release of Linux that sends requests again.
const SENDS_AGAIN: (u32, u32) = (6, 9);

/// The release of this host's kernel if it is older than the first that sends the requests of a dead server again: no
/// mount outlives its process there. (What counts when a disk is mounted is what the kernel says then.)
#[must_use]
pub fn too_old_to_keep() -> Option<String> {
    let release = kernel_release();
    (version_of(&release) < SENDS_AGAIN).then_some(release)
}

/// A session for a file system that has been greeted in another process.
///
/// # Errors
/// Errors of the operating system.
pub(super) fn greet<F: Filesystem>(
    tree: F,
    state: &KeptState,
    fuse: &OwnedFd,
    config: fuser::Config,
) -> Result<Session<F>> {
    let failed = |error: std::io::Error| Error::io("cannot take over the connection to the kernel", error);
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.map_err(|error| failed(error.into()))?;
    rustix::io::write(&ours, &state.greeting.packet()).map_err(|error| failed(error.into()))?;
    // The answer stays in the socket, and goes with it.
    let session = Session::from_fd(tree, theirs, SessionACL::All, config).map_err(failed)?;
    replace(session.as_fd().as_raw_fd(), fuse.as_fd()).map_err(failed)?;
    Ok(session)
}

impl Greeting {
    /// The request by which the kernel greets: a header of 40 bytes, and 64 bytes for it.
    fn packet(&self) -> Vec<u8> {
        const INIT: u32 = 26;
        const LEN: u32 = 104;
        let mut packet = Vec::with_capacity(LEN as usize);
        packet.extend(LEN.to_ne_bytes());
        packet.extend(INIT.to_ne_bytes());
        // Its number, the inode, the user, the group, the process, and room.
        packet.extend(1_u64.to_ne_bytes());
        packet.extend([0; 24]);
        let flags = InitFlags::from_bits_retain(self.capabilities) | InitFlags::FUSE_INIT_EXT;
        let low: u32 = exact(flags.bits() & u64::from(u32::MAX), "it is the lower half");
        let high: u32 = exact(flags.bits() >> 32, "it is the upper half");
        for field in [self.major, self.minor, self.max_readahead, low, high] {
            packet.extend(field.to_ne_bytes());
        }
        packet.resize(LEN as usize, 0);
        packet
    }
}

/// Has the kernel send again the requests that another process has received and not answered.
///
/// # Errors
/// Errors of the operating system.
pub(super) fn send_again(fuse: &OwnedFd) -> Result<()> {
    /// The code of this notice, `FUSE_NOTIFY_RESEND`.
    const RESEND: u32 = 7;
    const LEN: u32 = 16;
    let mut notice = Vec::with_capacity(LEN as usize);
    notice.extend(LEN.to_ne_bytes());
    notice.extend(RESEND.to_ne_bytes());
    // No request has the number 0: this is no answer.
    notice.extend(0_u64.to_ne_bytes());
    rustix::io::write(fuse, &notice)
        .map(drop)
        .map_err(|error| Error::io("the kernel does not send requests again", error.into()))
}

/// Puts `with` in the place of the open descriptor `number`.
///
/// # Errors
/// Errors of the operating system.
pub(super) fn replace(number: RawFd, with: BorrowedFd<'_>) -> std::io::Result<()> {
    // SAFETY: the callers hold the session, or its notifier, which own the descriptor: it is open, and stays open. The
    // `ManuallyDrop` keeps this value, which is a second owner, from closing it.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    dup3(with, &mut place, DupFlags::CLOEXEC).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        let is_old = |release: &str| version_of(release) < SENDS_AGAIN;
        assert!(["", "5.15.0-91-generic", "6.8.12", "6.1.0-18-amd64"].into_iter().all(is_old));
        assert!(!["6.9.0", "6.10.3-amd64", "6.18.44-fc-v669", "7.0-rc1"].into_iter().any(is_old));
    }

    #[test]
    fn a_state_of_another_version_or_that_is_damaged_is_not_understood() {
        let face = r#"{"directory_mode":493,"mode":384,"uid":0,"gid":0,
            "modified":{"secs_since_epoch":1,"nanos_since_epoch":2}}"#;
        let state = |version: u32| {
            format!(
                r#"{{"version":{version},"identity":"sha256:0 None None",
                "mount":{{"id":40,"kind":"fuse.headstart","device":"0:35"}},"is_directory":false,"face":{face},
                "opened":1,"greeting":{{"major":7,"minor":44,"max_readahead":131072,"capabilities":549755813888}}}}"#
            )
        };
        let parsed = KeptState::parse(state(1).as_bytes()).unwrap();
        assert!(parsed.can_send_again() && parsed.opened == 1);
        assert_eq!(KeptState::parse(&parsed.bytes()).unwrap(), parsed);
        assert!(KeptState::parse(state(2).as_bytes()).is_none() && KeptState::parse(b"{").is_none());
        // A header that says its length, and the numbers of the protocol.
        let packet = parsed.greeting.packet();
        assert_eq!((packet.len(), &packet[..8]), (104, &[104, 0, 0, 0, 26, 0, 0, 0][..]));
        assert_eq!(packet[40..48], [7, 0, 0, 0, 44, 0, 0, 0]);
    }
}
