//! A small NBD client that returns the results: bytes, an error of the disk, or a broken connection.

use headstart_export::nbd::proto::{
    Errno, NbdRequest, OptionHeader, REQUEST_HEADER, SIMPLE_REPLY_MAGIC, command, command_flag, option,
    option_reply,
};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The protocol's number for a read or write that the disk failed.
pub(crate) const EIO: u32 = Errno::Io as u32;

/// Longer than any test waits for a single answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One connection.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    next: u64,
    /// The numbers of bytes in the answers that are still to come.
    asked: HashMap<u64, usize>,
}

/// The result of a request: the bytes of a read, or the protocol's number of an error.
pub(crate) type Answer = Result<Vec<u8>, u32>;

impl Client {
    /// Connects and takes the export without a name.
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut client = Self { stream, next: 0, asked: HashMap::new() };
        client.bytes(18)?;
        client.stream.write_all(&3u32.to_be_bytes())?;
        let header = OptionHeader { option: option::GO, len: 6 };
        client.stream.write_all(&[&header.encode()[..], &[0; 6]].concat())?;
        loop {
            let head = client.bytes(20)?;
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            client.bytes(number(16) as usize)?;
            if number(12) == option_reply::ACK {
                return Ok(client);
            }
            assert!(number(12) < 1 << 31, "the export is refused: {:#x}", number(12));
        }
    }

    fn bytes(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends a request, with a write's data behind it; returns its cookie.
    pub(crate) fn send(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        len: usize,
        data: &[u8],
    ) -> io::Result<u64> {
        let cookie = self.next;
        self.next += 1;
        let request = NbdRequest { flags, command, cookie, offset, len: len as u32 };
        let expected = if command == command::READ { len } else { 0 };
        self.asked.insert(cookie, expected);
        self.stream.write_all(&[&request.encode()[..], data].concat())?;
        Ok(cookie)
    }

    pub(crate) fn send_read(&mut self, offset: u64, len: usize) -> io::Result<u64> {
        self.send(command::READ, 0, offset, len, &[])
    }

    pub(crate) fn send_write(&mut self, offset: u64, data: &[u8], durable: bool) -> io::Result<u64> {
        let flags = if durable { command_flag::FUA } else { 0 };
        self.send(command::WRITE, flags, offset, data.len(), data)
    }

    /// The next answer, whichever request it is to.
    pub(crate) fn receive(&mut self) -> io::Result<(u64, Answer)> {
        let head = self.bytes(16)?;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(number(0), SIMPLE_REPLY_MAGIC);
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        let len = self.asked.remove(&cookie).expect("an answer to what was asked");
        let error = number(4);
        Ok((cookie, if error == 0 { Ok(self.bytes(len)?) } else { Err(error) }))
    }

    /// Reads and waits. Panics if the connection breaks.
    #[track_caller]
    pub(crate) fn read(&mut self, offset: u64, len: usize) -> Answer {
        self.send_read(offset, len).unwrap();
        self.receive().unwrap().1
    }

    /// `true` if nothing comes within `time`.
    pub(crate) fn is_silent_for(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        // An answer has at least its head, a byte of which is lost then: a caller must end if this returns `false`.
        let silent = self.stream.read(&mut [0; 1]).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
        self.stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        silent
    }

    /// Sends `part` bytes of a write request of `len` bytes, and nothing more.
    pub(crate) fn send_part_of_write(&mut self, len: usize, part: usize) {
        let request = NbdRequest { flags: 0, command: command::WRITE, cookie: 7, offset: 0, len: len as u32 };
        let all = [&request.encode()[..], &vec![1; len]].concat();
        assert!(part < REQUEST_HEADER + len);
        self.stream.write_all(&all[..part]).unwrap();
    }
}
