//! The channel between the daemon and an export process: messages over a pair of sockets, with descriptors.
//!
//! The export process finds its end as standard input. Both ends are of the same program (the daemon starts itself), so
//! messages need no version.

use headstart_block::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// Longest message, in bytes: some paths.
const MESSAGE_MAX: usize = 32 << 10;

/// Most descriptors that go with a message.
pub(super) const DESCRIPTORS_MAX: usize = 16;

/// The work of an export process. With it go the listening socket of vhost-user, if there is one, and the connections
/// to the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Assignment {
    /// The vSSD.
    pub(super) name: String,
    /// The path of the listening socket of vhost-user-blk.
    pub(super) vhost_user: Option<PathBuf>,
    /// The place of the file.
    pub(super) fuse: Option<PathBuf>,
    /// The owner of the file, as `USER[:GROUP]`.
    pub(super) owner: Option<String>,
    /// The permissions of the file, in octal.
    pub(super) mode: Option<String>,
}

/// A message to an export process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// Serve a vSSD.
    Serve(Assignment),
    /// The vSSD has another size, in bytes.
    Resized(u64),
    /// End in good order.
    Stop,
}

/// A message from an export process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum News {
    /// The servers are started, as far as that was possible: their addresses, and the first error.
    Serving { uris: Vec<String>, error: Option<Fault> },
    /// A server has ended by itself.
    Lost { uri: String, error: Fault },
    /// All servers have ended in good order, or the last flush failed.
    Stopped { error: Option<Fault> },
}

/// An error of an export process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fault {
    kind: FaultKind,
    text: String,
}

/// The kinds of errors that the daemon distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum FaultKind {
    Invalid,
    NotFound,
    Conflict,
    Denied,
    NoSpace,
    Unsupported,
    Other,
}

impl From<&Error> for Fault {
    fn from(error: &Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::Invalid => FaultKind::Invalid,
            ErrorKind::NotFound => FaultKind::NotFound,
            ErrorKind::Conflict => FaultKind::Conflict,
            ErrorKind::Denied => FaultKind::Denied,
            ErrorKind::NoSpace => FaultKind::NoSpace,
            ErrorKind::Unsupported => FaultKind::Unsupported,
            _ => FaultKind::Other,
        };
        Self { kind, text: error.to_string() }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let kind = match fault.kind {
            FaultKind::Invalid => ErrorKind::Invalid,
            FaultKind::NotFound => ErrorKind::NotFound,
            FaultKind::Conflict => ErrorKind::Conflict,
            FaultKind::Denied => ErrorKind::Denied,
            FaultKind::NoSpace => ErrorKind::NoSpace,
            FaultKind::Unsupported => ErrorKind::Unsupported,
            FaultKind::Other => ErrorKind::Io,
        };
        Self::new(kind, fault.text)
    }
}

/// One end of the channel.
pub(super) struct Channel(OwnedFd);

impl Channel {
    /// Makes both ends.
    pub(super) fn pair() -> Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|e| Error::io("cannot make a channel to an export process", e.into()))?;
        Ok((Self(ours), theirs))
    }

    /// The end that the daemon gave this process as standard input.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if standard input is no such end.
    pub(super) fn inherited() -> Result<Self> {
        let input = std::io::stdin().as_fd().try_clone_to_owned();
        let input = input.map_err(|e| Error::io("cannot use standard input", e))?;
        if rustix::net::sockopt::socket_type(&input) != Ok(SocketType::SEQPACKET) {
            let error =
                Error::invalid("this is started by `headstart harvest serve`, for each vSSD that needs it");
            return Err(error.remedy("start `headstart harvest serve`"));
        }
        Ok(Self(input))
    }

    /// Sends a message without waiting; `false` if the other end has not taken earlier ones.
    pub(super) fn try_send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> Result<bool> {
        self.send_with(message, descriptors, SendFlags::DONTWAIT)
    }

    /// Sends a message once there is room for it.
    pub(super) fn send(&self, message: &impl Serialize) -> Result<()> {
        self.send_with(message, &[], SendFlags::empty()).map(drop)
    }

    fn send_with(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<bool> {
        let text =
            serde_json::to_vec(message).map_err(|e| Error::invalid("is not a message").caused_by(e))?;
        if text.len() > MESSAGE_MAX || descriptors.len() > DESCRIPTORS_MAX {
            return Err(Error::invalid("a message to an export process is too long"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Error::invalid("too many descriptors go with a message"));
        }
        loop {
            match sendmsg(&self.0, &[IoSlice::new(&text)], &mut ancillary, flags | SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(Error::io("the other end of the channel is gone", e.into())),
            }
        }
    }

    /// Receives the next message, once there is one; `None` at the end of the channel.
    pub(super) fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>> {
        let mut text = vec![0; MESSAGE_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let parts = &mut [IoSliceMut::new(&mut text)];
            match recvmsg(&self.0, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                Err(e) => return Err(Error::io("the channel failed", e.into())),
            }
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(Error::corrupt("a message is too long"));
        }
        let message = serde_json::from_slice(text.get(..received.bytes).unwrap_or_default());
        let message = message.map_err(|e| Error::corrupt("a message makes no sense").caused_by(e))?;
        Ok(Some((message, descriptors)))
    }

    /// Waits until there is a message, the other end is gone, or one of `others` can be read, for `time` at most.
    /// Returns `true` if the channel has a message.
    pub(super) fn wait(&self, others: &[BorrowedFd<'_>], time: Option<Duration>) -> bool {
        let mut watched = vec![PollFd::new(&self.0, PollFlags::IN)];
        watched.extend(others.iter().map(|other| PollFd::new(other, PollFlags::IN)));
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        // An error is an interruption by a signal: the caller's loop runs once more.
        let _ = poll(&mut watched, time.as_ref());
        watched.first().is_some_and(|ours| !ours.revents().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_bounds_and_their_descriptors() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel(theirs);
        let assignment = Assignment {
            name: "a".into(),
            vhost_user: Some("/run/a.sock".into()),
            fuse: None,
            owner: None,
            mode: None,
        };
        assert!(!theirs.wait(&[], Some(Duration::ZERO)));
        let input = std::io::stdin();
        let sent = [input.as_fd(), input.as_fd()];
        assert!(ours.try_send(&Order::Serve(assignment.clone()), &sent).unwrap());
        assert!(ours.try_send(&Order::Resized(7), &[]).unwrap());
        assert!(theirs.wait(&[], None));
        let (order, descriptors) = theirs.receive::<Order>().unwrap().unwrap();
        assert_eq!((order, descriptors.len()), (Order::Serve(assignment), 2));
        let (order, descriptors) = theirs.receive::<Order>().unwrap().unwrap();
        assert_eq!((order, descriptors.len()), (Order::Resized(7), 0));
        let fault = Fault::from(&Error::new(ErrorKind::NotFound, "nothing"));
        theirs.send(&News::Stopped { error: Some(fault) }).unwrap();
        let (news, _) = ours.receive::<News>().unwrap().unwrap();
        let kind = match news {
            News::Stopped { error } => error.map(|fault| Error::from(fault).kind()),
            _ => None,
        };
        assert_eq!(kind, Some(ErrorKind::NotFound));
        drop(ours);
        assert!(theirs.wait(&[], None) && theirs.receive::<Order>().unwrap().is_none());
        assert!(theirs.send(&Order::Stop).is_err());
    }

    /// A process that takes no messages does not block the daemon.
    #[test]
    fn a_full_channel_takes_no_more_and_does_not_wait() {
        let (ours, theirs) = Channel::pair().unwrap();
        let sent = (0..1 << 20).take_while(|size| ours.try_send(&Order::Resized(*size), &[]).unwrap());
        assert!(sent.count() < 1 << 20);
        let theirs = Channel(theirs);
        assert!(matches!(theirs.receive::<Order>(), Ok(Some((Order::Resized(0), _)))));
    }
}
