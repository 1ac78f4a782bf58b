//! The requests to the kernel's nbd driver, by generic netlink: connect, reconnect, disconnect.
//!
//! [`Request`] and [`parse`] are bytes only; [`DriverSocket`] has the socket.

use headstart_block::{Error, ErrorKind, Result, saturating};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use std::time::Duration;

/// The name of the driver's family of messages, and the version of it that all kernels have.
const FAMILY: &str = "nbd";
const VERSION: u8 = 1;
/// The family of the messages about families.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// The kinds of messages that carry an error number, 0 for success.
const ERROR: u16 = 2;
/// A message is a request, and is to be acknowledged.
const REQUEST_AND_ACK: u16 = 1 | 4;
/// The lengths of a message's head, with the head of the generic protocol, and of an attribute's.
const HEAD: usize = 20;
const ATTRIBUTE_HEAD: usize = 4;
/// The bytes of an answer that are read: answers are short.
const ANSWER_MAX: usize = 16 << 10;
/// The longest wait for an answer. Connecting waits for nothing but the kernel.
const ANSWERS: Duration = Duration::from_secs(15);
/// The most messages that are read for one answer.
const MESSAGES_MAX: usize = 16;

const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

/// The numbers of attributes.
mod attribute {
    pub(super) const INDEX: u16 = 1;
    pub(super) const SIZE_BYTES: u16 = 2;
    pub(super) const BLOCK_SIZE_BYTES: u16 = 3;
    pub(super) const TIMEOUT: u16 = 4;
    pub(super) const SERVER_FLAGS: u16 = 5;
    pub(super) const SOCKETS: u16 = 7;
    pub(super) const DEAD_CONN_TIMEOUT: u16 = 8;
    pub(super) const BACKEND: u16 = 10;
    pub(super) const SOCKET: u16 = 1;
    pub(super) const SOCKET_FD: u16 = 1;
    /// The mark of an attribute that is made of attributes.
    pub(super) const NESTED: u16 = 1 << 15;
}

/// A disk for the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskFacts<'a> {
    /// The size in bytes, and that of a sector.
    pub(super) size: u64,
    pub(super) sector: u64,
    /// The flags of the NBD protocol.
    pub(super) flags: u16,
    /// The longest wait for an answer to a request.
    pub(super) timeout: Duration,
    /// The longest wait for new connections when all are lost; zero: none.
    pub(super) dead: Duration,
    /// The text by which the disk is found again.
    pub(super) backend: Option<&'a str>,
}

/// A request that is being put together.
#[derive(Debug)]
struct Request(Vec<u8>);

impl Request {
    fn new(family: u16, command: u8) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(family.to_ne_bytes());
        bytes.extend(REQUEST_AND_ACK.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend([command, VERSION, 0, 0]);
        Self(bytes)
    }

    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        put(&mut self.0, kind, value);
        self
    }

    fn with_number(self, kind: u16, value: u64) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    fn with_text(self, kind: u16, text: &str) -> Self {
        let mut value = text.as_bytes().to_vec();
        value.push(0);
        self.with(kind, &value)
    }

    fn with_sockets(self, sockets: &[OwnedFd]) -> Self {
        let mut list = Vec::new();
        for socket in sockets {
            let mut item = Vec::new();
            put(&mut item, attribute::SOCKET_FD, &socket.as_raw_fd().to_ne_bytes());
            put(&mut list, attribute::SOCKET | attribute::NESTED, &item);
        }
        self.with(attribute::SOCKETS | attribute::NESTED, &list)
    }

    fn done(mut self) -> Vec<u8> {
        let len: u32 = saturating(self.0.len());
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// Appends an attribute, which begins and ends at multiples of four bytes.
fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len: u16 = saturating(ATTRIBUTE_HEAD + value.len());
    bytes.extend(len.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// A message of the kernel.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    /// The end of an answer.
    Outcome(std::result::Result<(), i32>),
    /// The attributes of an answer.
    Attributes(Vec<(u16, Vec<u8>)>),
}

/// The messages in a datagram; what is cut off or makes no sense ends it.
fn parse(mut bytes: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some((message, len)) = parse_one(bytes) {
        messages.push(message);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    messages
}

fn parse_one(bytes: &[u8]) -> Option<(Message, usize)> {
    let len = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let whole = bytes.get(..len)?;
    let kind = u16::from_ne_bytes(*whole.get(4..)?.first_chunk()?);
    if kind == ERROR {
        let error = i32::from_ne_bytes(*whole.get(16..)?.first_chunk()?);
        return Some((Message::Outcome(if error == 0 { Ok(()) } else { Err(error.saturating_neg()) }), len));
    }
    Some((Message::Attributes(attributes(whole.get(HEAD..)?)), len))
}

fn attributes(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some(head) = bytes.first_chunk::<ATTRIBUTE_HEAD>() {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & !attribute::NESTED;
        let Some(value) = bytes.get(ATTRIBUTE_HEAD..len) else { break };
        found.push((kind, value.to_vec()));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// A socket to the driver.
#[derive(Debug)]
pub(super) struct DriverSocket {
    socket: OwnedFd,
    family: u16,
}

impl DriverSocket {
    /// Opens a socket to the driver.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the kernel has no such driver now; errors of the operating system.
    pub(super) fn open() -> Result<Self> {
        let failed = |error: Errno| Error::io("cannot speak to the kernel's nbd driver", error.into());
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::GENERIC))
            .map_err(failed)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWERS)).map_err(failed)?;
        let ask = Request::new(CONTROL, GET_FAMILY).with_text(FAMILY_NAME, FAMILY);
        let answer = exchange(&socket, ask).map_err(|error| match error {
            Errno::NOENT => Error::unsupported("the kernel's nbd module is not loaded").remedy(super::LOAD),
            error => failed(error),
        })?;
        let id = answer.iter().find(|(kind, _)| *kind == FAMILY_ID);
        let family = id.and_then(|(_, value)| Some(u16::from_ne_bytes(*value.first_chunk()?)));
        let none = || Error::corrupt("the kernel does not say how to speak to its nbd driver");
        Ok(Self { socket, family: family.ok_or_else(none)? })
    }

    /// Gives the driver a disk with these connections, at the device `number`; `None`: at a free one, which the driver
    /// makes if there is none. Returns the number.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the device is taken; errors of the driver.
    pub(super) fn connect(
        &self,
        number: Option<u32>,
        disk: &DiskFacts<'_>,
        connections: &[OwnedFd],
    ) -> Result<u32> {
        let mut request = Request::new(self.family, CONNECT);
        if let Some(number) = number {
            request = request.with(attribute::INDEX, &number.to_ne_bytes());
        }
        request = request
            .with_number(attribute::SIZE_BYTES, disk.size)
            .with_number(attribute::BLOCK_SIZE_BYTES, disk.sector)
            .with_number(attribute::TIMEOUT, disk.timeout.as_secs().max(1))
            .with_number(attribute::SERVER_FLAGS, disk.flags.into());
        if !disk.dead.is_zero() {
            request = request.with_number(attribute::DEAD_CONN_TIMEOUT, disk.dead.as_secs().max(1));
        }
        if let Some(backend) = disk.backend {
            request = request.with_text(attribute::BACKEND, backend);
        }
        let answer = exchange(&self.socket, request.with_sockets(connections)).map_err(refused)?;
        let index = answer.iter().find(|(kind, _)| *kind == attribute::INDEX);
        let index = index.and_then(|(_, value)| Some(u32::from_ne_bytes(*value.first_chunk()?)));
        let none = || Error::corrupt("the kernel does not say which nbd device it has taken");
        index.or(number).ok_or_else(none)
    }

    /// Gives the driver connections in place of lost ones. Those that are too many are closed by the driver.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the device has no disk, or another one; errors of the driver.
    pub(super) fn reconnect(
        &self,
        number: u32,
        backend: Option<&str>,
        connections: &[OwnedFd],
    ) -> Result<()> {
        let mut request =
            Request::new(self.family, RECONFIGURE).with(attribute::INDEX, &number.to_ne_bytes());
        if let Some(backend) = backend {
            request = request.with_text(attribute::BACKEND, backend);
        }
        exchange(&self.socket, request.with_sockets(connections)).map(|_| ()).map_err(|error| match error {
            Errno::INVAL | Errno::NODEV | Errno::NOTCONN => {
                Error::new(ErrorKind::NotFound, "the device does not have the disk any more")
            }
            error => refused(error),
        })
    }

    /// Takes the disk from the device. A device without one is no error.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(super) fn disconnect(&self, number: u32) -> Result<()> {
        let request = Request::new(self.family, DISCONNECT).with(attribute::INDEX, &number.to_ne_bytes());
        match exchange(&self.socket, request) {
            Ok(_) | Err(Errno::INVAL | Errno::NODEV | Errno::NOTCONN) => Ok(()),
            Err(error) => Err(refused(error)),
        }
    }
}

fn refused(error: Errno) -> Error {
    match error {
        Errno::BUSY => Error::new(ErrorKind::Conflict, "another disk is attached to it")
            .remedy("detach that one, or say auto"),
        Errno::PERM | Errno::ACCESS => {
            Error::new(ErrorKind::Denied, "only root may attach a disk to /dev/nbdN").remedy("run it as root")
        }
        error => Error::io("the kernel's nbd driver refuses", error.into()),
    }
}

/// Sends a request and returns the attributes of its answer.
fn exchange(socket: &OwnedFd, request: Request) -> std::result::Result<Vec<(u16, Vec<u8>)>, Errno> {
    send(socket, &request.done(), SendFlags::NOSIGNAL)?;
    let (mut found, mut buffer) = (Vec::new(), vec![0; ANSWER_MAX]);
    for _ in 0..MESSAGES_MAX {
        let (len, _) = match recv(socket, &mut *buffer, RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        for message in parse(buffer.get(..len).unwrap_or_default()) {
            match message {
                Message::Attributes(more) => found.extend(more),
                Message::Outcome(Ok(())) => return Ok(found),
                Message::Outcome(Err(error)) => return Err(Errno::from_raw_os_error(error)),
            }
        }
    }
    Err(Errno::PROTO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_is_laid_out_as_the_kernel_reads_it() {
        let request =
            Request::new(0x1c, CONNECT).with(attribute::INDEX, &7_u32.to_ne_bytes()).with_text(10, "ab");
        let bytes = request.done();
        assert_eq!(bytes.len(), 36);
        assert_eq!(bytes[..8], [36, 0, 0, 0, 0x1c, 0, 5, 0]);
        assert_eq!(bytes[16..28], [1, 1, 0, 0, 8, 0, 1, 0, 7, 0, 0, 0]);
        assert_eq!(bytes[28..], [7, 0, 10, 0, b'a', b'b', 0, 0]);
    }

    #[test]
    fn sockets_are_a_list_of_lists() {
        let sockets = [OwnedFd::from(std::fs::File::open("/dev/null").unwrap())];
        let bytes = Request::new(1, CONNECT).with_sockets(&sockets).done();
        let fd = u8::try_from(sockets[0].as_raw_fd()).unwrap();
        assert_eq!(bytes[20..], [16, 0, 7, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0, fd, 0, 0, 0]);
    }

    #[test]
    fn answers_are_understood() {
        let mut bytes = Request::new(0x1c, CONNECT).with(attribute::INDEX, &3_u32.to_ne_bytes()).done();
        let mut outcome = vec![0; 36];
        outcome[0] = 36;
        outcome[4] = 2;
        outcome[16..20].copy_from_slice(&(-16_i32).to_ne_bytes());
        bytes.extend(outcome);
        let expected = [Message::Attributes(vec![(1, vec![3, 0, 0, 0])]), Message::Outcome(Err(16))];
        assert_eq!(parse(&bytes), expected);
    }

    #[test]
    fn a_kernel_without_the_driver_is_told_from_one_that_has_it() {
        let has = std::path::Path::new("/sys/block/nbd0").exists();
        let opened = DriverSocket::open();
        assert_eq!(opened.is_ok(), has, "{opened:?}");
        let refused = opened.err().map(|error| error.kind());
        assert!(has || refused == Some(ErrorKind::Unsupported), "{refused:?}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let messages = parse(&bytes);
            prop_assert!(messages.len() <= bytes.len() / 16 + 1);
        }
    }
}
