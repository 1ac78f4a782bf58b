//! A client that sends exactly the bytes that a test wants.

use headstart_export::nbd::proto::{
    self, CHUNK_MAGIC, NbdRequest, OptionHeader, SIMPLE_REPLY_MAGIC, chunk, command, option, option_reply,
};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) struct RawClient {
    pub(crate) stream: UnixStream,
}

/// One chunk of a structured reply, or a simple reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    /// The kind of a chunk; `None` for a simple reply.
    pub(crate) kind: Option<u16>,
    pub(crate) done: bool,
    pub(crate) error: u32,
    pub(crate) payload: Vec<u8>,
}

impl RawClient {
    pub(crate) fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream }
    }

    /// Connects, and does the handshake.
    pub(crate) fn open(path: &Path, structured: bool) -> Self {
        Self::open_named(path, structured, "")
    }

    /// As [`Self::open`], with an export named.
    pub(crate) fn open_named(path: &Path, structured: bool, name: &str) -> Self {
        let mut client = Self::connect(path);
        client.bytes(18).unwrap();
        client.stream.write_all(&3u32.to_be_bytes()).unwrap();
        if structured {
            client.option(option::STRUCTURED_REPLY, &[]);
        }
        let len = u32::try_from(name.len()).unwrap().to_be_bytes();
        client.option(option::GO, &[&len[..], name.as_bytes(), &[0; 2]].concat());
        client
    }

    /// Sends an option, and takes replies until the last.
    pub(crate) fn option(&mut self, asked: u32, data: &[u8]) {
        let header = OptionHeader { option: asked, len: u32::try_from(data.len()).unwrap() };
        self.stream.write_all(&[&header.encode()[..], data].concat()).unwrap();
        loop {
            let head = self.bytes(20).unwrap();
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            self.bytes(number(16) as usize).unwrap();
            if number(12) == option_reply::ACK {
                return;
            }
            assert!(number(12) < 1 << 31, "option {asked} was refused: {:#x}", number(12));
        }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn send(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, len: u32) {
        let request = NbdRequest { flags, command, cookie, offset, len };
        self.stream.write_all(&request.encode()).unwrap();
    }

    pub(crate) fn read(&mut self, cookie: u64, offset: u64, len: u32) {
        self.send(command::READ, 0, cookie, offset, len);
    }

    /// The next reply; `read_len` is the number of bytes that a simple one carries if it is no error.
    pub(crate) fn reply(&mut self, read_len: usize) -> Reply {
        let magic = u32::from_be_bytes(self.bytes(4).unwrap().try_into().unwrap());
        if magic == SIMPLE_REPLY_MAGIC {
            let head = self.bytes(12).unwrap();
            let error = u32::from_be_bytes(head[..4].try_into().unwrap());
            let cookie = u64::from_be_bytes(head[4..].try_into().unwrap());
            let payload = self.bytes(if error == 0 { read_len } else { 0 }).unwrap();
            return Reply { cookie, kind: None, done: true, error, payload };
        }
        assert_eq!(magic, CHUNK_MAGIC);
        let head = self.bytes(16).unwrap();
        let number = |at: usize| u16::from_be_bytes(head[at..at + 2].try_into().unwrap());
        let (done, kind) = (number(0) & chunk::DONE != 0, number(2));
        let cookie = u64::from_be_bytes(head[4..12].try_into().unwrap());
        let payload = self.bytes(u32::from_be_bytes(head[12..].try_into().unwrap()) as usize).unwrap();
        let error =
            if kind == chunk::ERROR { u32::from_be_bytes(payload[..4].try_into().unwrap()) } else { 0 };
        Reply { cookie, kind: Some(kind), done, error, payload }
    }

    /// `true` if the server has closed the connection; bytes that it still sends are thrown away.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut buf = [0; 4096];
        loop {
            match self.stream.read(&mut buf) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) => return e.kind() == io::ErrorKind::ConnectionReset,
            }
        }
    }
}

pub(crate) const DATA_HEADER: usize = proto::DATA_CHUNK_HEADER - proto::CHUNK_HEADER;
