//! The keeper's process: one thread that answers one packet after another, and waits for no client.

use super::client;
use super::table::{Outcome, Table};
use super::wire::{Answer, DESCRIPTORS_MAX, MESSAGE_MAX, Question};
use headstart_block::{Error, ErrorKind, Result, to_usize};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, fstat};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recvmsg, sendmsg,
    socket_with,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::convert::Infallible;
use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// The most descriptors that are kept, and the most clients, if this process may open as many files.
const MOST: usize = 4096;

/// Descriptors of this process for other purposes.
const OTHERS: u64 = 32;

/// The connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 128;

/// The interval at which descriptors of file systems are dropped that were unmounted. A packet has the same effect.
const SWEEP: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// The time without accepting connections if there is no descriptor for one.
const EXHAUSTED: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The device number of `/dev/fuse`.
const FUSE: (u32, u32) = (10, 229);

/// Answers the question if a process, by its number, serves the disk of a name; without a process, if none does.
type Serves = dyn Fn(&str, Option<u32>) -> bool + Send;

/// The process that keeps the FUSE connections of disks. See the [module](super).
pub struct Keeper {
    listener: OwnedFd,
    clients: Vec<OwnedFd>,
    table: Table<OwnedFd>,
    serves: Box<Serves>,
    most: usize,
}

impl Keeper {
    /// Listens at `socket`, in a directory that only this user may enter, and in which no other keeper runs. A socket
    /// that is there is replaced. `serves` says of a disk's name and a process's number if this process serves that
    /// disk now, and of a name and `None` if no process serves it.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if there is something else than a socket; errors of the operating system.
    pub fn listen(
        socket: &Path,
        serves: impl Fn(&str, Option<u32>) -> bool + Send + 'static,
    ) -> Result<Self> {
        let failed = |error: std::io::Error| Error::io("cannot listen there", error).about(socket.display());
        match fs::symlink_metadata(socket) {
            Ok(found) if found.file_type().is_socket() => fs::remove_file(socket).map_err(failed)?,
            Ok(_) => {
                return Err(Error::new(ErrorKind::Conflict, "is there already, and is not a socket")
                    .about(socket.display())
                    .remedy("remove it"));
            }
            Err(_) => {}
        }
        let address = SocketAddrUnix::new(socket).map_err(|error| failed(error.into()))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let listener = listener.map_err(|error| failed(error.into()))?;
        // The name inherits the socket's own mode.
        rustix::fs::fchmod(&listener, Mode::from_raw_mode(0o600)).map_err(|error| failed(error.into()))?;
        bind(&listener, &address).map_err(|error| failed(error.into()))?;
        listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
        let most = most();
        Ok(Self { listener, clients: Vec::new(), table: Table::new(most), serves: Box::new(serves), most })
    }

    /// Answers clients until this process ends.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn serve(mut self) -> Result<Infallible> {
        let mut is_exhausted = false;
        loop {
            let ready = self.wait(is_exhausted)?;
            // New descriptors do not move the clients that were found ready.
            let gone: Vec<usize> =
                ready.iter().filter(|n| **n > 0 && !self.talk(*n - 1)).map(|n| n - 1).collect();
            for client in gone.into_iter().rev() {
                self.clients.swap_remove(client);
            }
            is_exhausted = ready.first() == Some(&0) && !self.welcome();
            self.table.sweep(|kept| is_dead(kept.as_fd()));
        }
    }

    /// Waits for packets; returns the ready ones in order: 0 for the listener, and the clients from 1 on.
    fn wait(&self, is_exhausted: bool) -> Result<Vec<usize>> {
        let wanted = if is_exhausted { PollFlags::empty() } else { PollFlags::IN };
        let mut watched = vec![PollFd::new(&self.listener, wanted)];
        watched.extend(self.clients.iter().map(|client| PollFd::new(client, PollFlags::IN)));
        let timeout = match (is_exhausted, self.table.is_empty()) {
            (true, _) => Some(&EXHAUSTED),
            (false, true) => None,
            (false, false) => Some(&SWEEP),
        };
        match poll(&mut watched, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::io("the keeper cannot wait", error.into())),
        }
        let is_ready = |watched: &PollFd<'_>| !watched.revents().is_empty();
        Ok(watched.iter().enumerate().filter(|(_, watched)| is_ready(watched)).map(|(n, _)| n).collect())
    }

    /// Accepts a client. `false` if there is no descriptor for it.
    fn welcome(&mut self) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match accept_with(&self.listener, flags) {
            Ok(client) => {
                let is_own =
                    socket_peercred(&client).is_ok_and(|peer| peer.uid == rustix::process::geteuid());
                if is_own && self.clients.len() < self.most {
                    self.clients.push(client);
                }
                true
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => false,
            Err(_) => true,
        }
    }

    /// Answers a client's packet. `false` if the client is gone, or does not keep to the protocol.
    fn talk(&mut self, client: usize) -> bool {
        let client = &self.clients[client];
        let mut packet = [0; MESSAGE_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(client, &mut [IoSliceMut::new(&mut packet)], &mut control, flags);
        let (len, returned) = match received {
            Ok(received) => (received.bytes, received.flags),
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        let descriptor = client::received(&mut control);
        if len == 0 || returned.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return false;
        }
        let refused = |why: &str| send(client, &Answer::Refused { why }, None);
        let question = match Question::parse(&packet[..len]) {
            Ok(question) => question,
            Err(error) => return refused(&error.to_string()),
        };
        let Ok(peer) = socket_peercred(client) else { return false };
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok();
        let may = match &question {
            Question::Keep { name, .. } | Question::Take { name } => (self.serves)(name, pid),
            Question::Drop { name } => (self.serves)(name, pid) || (self.serves)(name, None),
        };
        if !may {
            return refused(&format!("{}: another process serves that disk, or none does", question.name()));
        }
        if descriptor.as_ref().is_some_and(|kept| !is_fuse(kept) || is_dead(kept.as_fd())) {
            return refused("the descriptor is not that of a mounted FUSE file system");
        }
        match self.table.answer(&question, descriptor) {
            Outcome::Done => send(client, &Answer::Done, None),
            Outcome::Here(kept, state) => send(client, &Answer::Here { state }, Some(kept)),
            Outcome::Nothing => send(client, &Answer::Nothing, None),
            Outcome::Refused(why) => refused(why),
        }
    }
}

/// Sends an answer. `false` if the client does not take it at once.
fn send(client: &OwnedFd, answer: &Answer<'_>, kept: Option<&OwnedFd>) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptor = kept.map(AsFd::as_fd);
    if let Some(descriptor) = &descriptor {
        control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(descriptor)));
    }
    let bytes = answer.bytes();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(client, &[IoSlice::new(&bytes)], &mut control, flags).is_ok()
}

/// `true` for a descriptor of `/dev/fuse`.
fn is_fuse(descriptor: &OwnedFd) -> bool {
    fstat(descriptor).is_ok_and(|found| {
        let device = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
        FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && device == FUSE
    })
}

/// `true` if the file system of a descriptor of `/dev/fuse` was unmounted, or its connection was cut. A poll that waits
/// would wake this process up at each request, so this one does not.
pub(crate) fn is_dead(descriptor: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::new(&descriptor, PollFlags::empty())];
    let looked = poll(&mut watched, Some(&Timespec::default()));
    looked.is_ok() && watched[0].revents().contains(PollFlags::ERR)
}

/// The most descriptors and the most clients, after the limit of this process was raised as far as it goes.
fn most() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    to_usize(files.saturating_sub(OTHERS) / 2).min(MOST)
}
