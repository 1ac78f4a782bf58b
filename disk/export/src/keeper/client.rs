//! The keeper's clients: the process of a disk, which has its descriptor kept as long as it lives, and the agent.

use super::wire::{Answer, DESCRIPTORS_MAX, MESSAGE_MAX, Question, STATE_MAX};
use headstart_block::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The longest wait for an answer: the keeper does nothing that takes time.
const ANSWER: Duration = Duration::from_secs(2);

/// The times that a keeper which is just being started is looked for, and the pause after each.
const TRIES: u32 = 50;
const BETWEEN: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The pause between tries to reach a keeper that was there.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The way to the keeper of this host.
#[derive(Clone, Debug)]
pub struct KeeperClient {
    socket: PathBuf,
}

/// The descriptor that came with a message: the first of them.
pub(super) fn received(control: &mut RecvAncillaryBuffer<'_>) -> Option<OwnedFd> {
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

impl KeeperClient {
    /// The keeper at a socket, which need not be there yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// The path of the keeper's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Takes a duplicate of the descriptor that is kept for the disk `name`, and the state of that; `None` if none is.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if there is no keeper, [`ErrorKind::Denied`] if this process does not serve the disk.
    pub fn take(&self, name: &str) -> Result<Option<(OwnedFd, Vec<u8>)>> {
        let connection = self.connect()?;
        self.send(&connection, &Question::Take { name }, None)?;
        let mut packet = [0; MESSAGE_MAX];
        let (answer, descriptor) = self.receive(&connection, &mut packet)?;
        match (answer, descriptor) {
            (Answer::Here { state }, Some(descriptor)) => Ok(Some((descriptor, state.to_owned()))),
            (Answer::Nothing, _) => Ok(None),
            (answer, _) => Err(self.refused(&answer)),
        }
    }

    /// Has the keeper drop what it keeps for the disk `name`: a connection that no process serves ends by that. Returns
    /// `false` if there was nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if there is no keeper, [`ErrorKind::Denied`] if another process serves the disk.
    pub fn give_up(&self, name: &str) -> Result<bool> {
        let connection = self.connect()?;
        self.send(&connection, &Question::Drop { name }, None)?;
        match self.receive(&connection, &mut [0; MESSAGE_MAX])?.0 {
            Answer::Done => Ok(true),
            Answer::Nothing => Ok(false),
            answer => Err(self.refused(&answer)),
        }
    }

    fn keep(&self, kept: &Shared) -> Result<OwnedFd> {
        let connection = self.connect()?;
        self.keep_on(&connection, kept)?;
        Ok(connection)
    }

    fn keep_on(&self, connection: &OwnedFd, kept: &Shared) -> Result<()> {
        let state = kept.state.lock().clone();
        let question = Question::Keep { name: &kept.name, state: &state };
        self.send(connection, &question, Some(&kept.descriptor))?;
        match self.receive(connection, &mut [0; MESSAGE_MAX])?.0 {
            Answer::Done => Ok(()),
            answer => Err(self.refused(&answer)),
        }
    }

    fn connect(&self) -> Result<OwnedFd> {
        let failed = |error: Errno| match error {
            Errno::NOENT | Errno::CONNREFUSED => {
                Error::new(ErrorKind::Unavailable, "no keeper answers there").about(self.socket.display())
            }
            _ => self.failed(error),
        };
        let address = SocketAddrUnix::new(&self.socket).map_err(failed)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(failed)?;
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, Some(ANSWER)).map_err(failed)?;
        }
        connect(&socket, &address).map_err(failed)?;
        Ok(socket)
    }

    fn send(&self, connection: &OwnedFd, question: &Question<'_>, kept: Option<&OwnedFd>) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptor = kept.map(AsFd::as_fd);
        if let Some(descriptor) = &descriptor {
            control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(descriptor)));
        }
        let bytes = question.bytes();
        sendmsg(connection, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
            .map(drop)
            .map_err(|error| self.failed(error))
    }

    fn receive<'p>(
        &self,
        connection: &OwnedFd,
        packet: &'p mut [u8],
    ) -> Result<(Answer<'p>, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let mut parts = [IoSliceMut::new(packet)];
            match recvmsg(connection, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                got => break got.map_err(|error| self.failed(error))?,
            }
        };
        let descriptor = received(&mut control);
        if got.bytes == 0 {
            return Err(self.failed(Errno::CONNRESET));
        }
        Ok((Answer::parse(&packet[..got.bytes])?, descriptor))
    }

    fn failed(&self, error: Errno) -> Error {
        Error::io("the keeper does not answer", error.into()).about(self.socket.display())
    }

    fn refused(&self, answer: &Answer<'_>) -> Error {
        let why = match answer {
            Answer::Refused { why } => (*why).to_owned(),
            _ => "its answer fits no question".to_owned(),
        };
        Error::new(ErrorKind::Denied, why).about(self.socket.display())
    }
}

/// The descriptor of a disk, kept as long as this value lives: if the keeper is started again, it gets it again.
/// Dropping this value changes nothing at the keeper.
pub struct Registration {
    client: KeeperClient,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    name: String,
    descriptor: OwnedFd,
    state: Mutex<Vec<u8>>,
    /// Wakes the thread up.
    changed: OwnedFd,
    is_over: AtomicBool,
    is_kept: AtomicBool,
}

impl Registration {
    /// Has the keeper keep `descriptor` and `state` for the disk `name`. Returns when it does, or after a second
    /// without a keeper, which is then looked for on and on.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if the keeper refuses; [`ErrorKind::Invalid`] if the state is too long; errors of starting
    /// a thread.
    pub fn start(client: KeeperClient, name: &str, descriptor: OwnedFd, state: Vec<u8>) -> Result<Self> {
        if state.len() > STATE_MAX {
            return Err(Error::invalid("the state of a disk is too long for the keeper"));
        }
        let failed = |error: std::io::Error| Error::io("cannot have a descriptor kept", error);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let changed = eventfd(0, flags).map_err(|error| failed(error.into()))?;
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            descriptor,
            state: Mutex::new(state),
            changed,
            is_over: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
        });
        let connection = first(&client, &shared)?;
        shared.is_kept.store(connection.is_some(), Ordering::Release);
        let (thread_client, thread_shared) = (client.clone(), Arc::clone(&shared));
        let thread = thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(move || stay_kept(&thread_client, &thread_shared, connection))
            .map_err(failed)?;
        Ok(Self { client, shared, thread: Some(thread) })
    }

    /// `true` if the keeper has the descriptor, as far as this process knows.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.shared.is_kept.load(Ordering::Acquire)
    }

    /// Replaces the state that the next process of the disk gets. Returns at once.
    pub fn update(&self, state: Vec<u8>) {
        if state.len() <= STATE_MAX {
            *self.shared.state.lock() = state;
            self.shared.wake();
        }
    }

    /// Has the keeper drop the descriptor: the disk is over.
    ///
    /// # Errors
    /// Those of [`KeeperClient::give_up`].
    pub fn give_up(mut self) -> Result<()> {
        // Before the thread could have it kept again.
        self.end();
        match self.client.give_up(&self.shared.name) {
            Err(error) if error.kind() == ErrorKind::Unavailable => Ok(()),
            given_up => given_up.map(drop),
        }
    }

    fn end(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn wake(&self) {
        let _ = rustix::io::write(&self.changed, &1_u64.to_ne_bytes());
    }
}

/// The first connection on which the descriptor is kept; `None` if there is no keeper.
fn first(client: &KeeperClient, shared: &Shared) -> Result<Option<OwnedFd>> {
    for _ in 0..TRIES {
        match client.keep(shared) {
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            kept => return kept.map(Some),
        }
        pause(shared, &BETWEEN);
    }
    tracing::warn!(
        "{}: no keeper answers; until there is one, the death of this process fails reads of the disk",
        client.socket.display()
    );
    Ok(None)
}

/// Waits for a time, or until the state changes.
fn pause(shared: &Shared, time: &Timespec) {
    let _ = poll(&mut [PollFd::new(&shared.changed, PollFlags::IN)], Some(time));
    let _ = rustix::io::read(&shared.changed, &mut [0; 8]);
}

/// Has the descriptor kept until it is over.
fn stay_kept(client: &KeeperClient, shared: &Shared, mut connection: Option<OwnedFd>) {
    while !shared.is_over.load(Ordering::Acquire) {
        shared.is_kept.store(connection.is_some(), Ordering::Release);
        let Some(open) = connection.take() else {
            connection = client.keep(shared).ok();
            if connection.is_none() {
                pause(shared, &AGAIN);
            }
            continue;
        };
        let mut watched = [PollFd::new(&open, PollFlags::IN), PollFd::new(&shared.changed, PollFlags::IN)];
        let waited = poll(&mut watched, None);
        // The keeper says nothing without being asked: its end is what can be read.
        let (is_gone, is_changed) = (!watched[0].revents().is_empty(), !watched[1].revents().is_empty());
        let mut is_kept = waited.is_ok() && !is_gone;
        if is_changed {
            let _ = rustix::io::read(&shared.changed, &mut [0; 8]);
            is_kept &= shared.is_over.load(Ordering::Acquire) || client.keep_on(&open, shared).is_ok();
        }
        if waited == Err(Errno::INTR) || is_kept {
            connection = Some(open);
        }
    }
}
