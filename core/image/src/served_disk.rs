//! The control socket of a writable disk that a process serves, from the side of other programs: by it, that process
//! does what only the process that has the directory locked can do.
//!
//! Only the directory's user can use the socket: it is closed to others, and so is the directory. A connection carries
//! lines of JSON, first a request:
//!
//! ```text
//! {"clone":{"dir":"/var/lib/vm2","uuid":"..."}}     make a clone of the disk in that directory
//! {"cloned":{"uuid":"...", ...}}                    done
//! {"failed":{"conflict":true,"message":"..."}}      not done, the answer to any request
//!
//! {"commit":{"parent":"sha256:...", ...}}           give the disk's changes to this base as a layer
//! {"begun":{"virtual_size":..., "moment":...}}      they are set aside, at that moment; the layer follows
//! length, bytes; ...; 0                             the layer in parts, each after its length (32 bits, little endian)
//! {"written":{"data_bytes":..., ...}}               that was all of it
//!
//! {"begun":{"virtual_size":..., "sealed":{...}}}    or: the layer is complete, in files in the disk's directory
//!
//! {"stack":{"image":"file:///...", "digest":...}}   the layer is part of this image now: make it the disk's base
//! {"stacked":{}}                                    done
//! ```
//!
//! The end of the connection ends a commit, wherever it is: its files are removed, and pairs that were frozen for it
//! are ordinary ones again.

use crate::sealed_ahead::SealedLayer;
use headstart_block::guarded::GuardedDir;
use headstart_block::{Error, ErrorKind, Result, to_usize};
use headstart_lsmt::LayerSummary;
use headstart_lsmt::writable::ClonedDisk;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use uuid::Uuid;

/// The name of the socket.
pub const SOCKET: &str = "control";

/// The longest request or answer in bytes: two paths and some words.
const LINE_MAX: u64 = 64 << 10;

/// The longest part of a layer, in bytes.
const PART_MAX: u32 = 4 << 20;

/// The longest wait for the answer to a clone: it waits for one step of the collector, and for the disk's writes to
/// become durable.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// The longest wait for an answer or a part of a layer in a commit. A layer of 100 GB that was sealed ahead is
/// completed and synced before the first answer, and the base that it becomes is opened before the last. The death of
/// the disk's process ends any wait at once.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(3600);

/// A request to the process of a disk.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlRequest {
    /// Make a clone of the disk.
    Clone {
        /// The directory of the clone.
        dir: PathBuf,
        /// Its id.
        uuid: Uuid,
    },
    /// Give the changes of the disk as a layer.
    Commit(ServedCommitRequest),
    /// Make an image with the layer that was given the base of the disk.
    Stack {
        /// The image, in a directory of this host, with its tag.
        image: String,
        /// The digest of its manifest.
        digest: String,
    },
}

/// The layer that a commit is to give.
#[derive(Debug, Serialize, Deserialize)]
pub struct ServedCommitRequest {
    /// The name that the disk has for its base.
    pub parent: String,
    /// The id of the topmost layer of the base.
    pub parent_uuid: Uuid,
    /// The packing of the layer, as manifests record it.
    pub packing: String,
    /// `true` if a request to stack is to follow.
    pub stack: bool,
}

/// An answer of the process of a disk.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlAnswer {
    /// The clone was made.
    Cloned(ClonedDisk),
    /// The changes of the disk are set aside.
    Begun {
        /// Size of the disk in bytes.
        virtual_size: u64,
        /// Bytes of the changes.
        data_bytes: u64,
        /// The layer, if it is complete already; otherwise its parts follow.
        sealed: Option<Box<SealedLayer>>,
        /// The moment at which they were set aside. Processes of earlier versions do not say.
        #[serde(default)]
        moment: CommitMoment,
    },
    /// All of the layer was given.
    Written(LayerSummary),
    /// The disk has another base now.
    Stacked {},
    /// The request was not carried out.
    Failed {
        /// `true` if something else is in the way.
        conflict: bool,
        /// The error.
        message: String,
    },
}

/// The state of the file systems on a disk at the moment at which its changes were set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitMoment {
    /// This host has them mounted, and they were frozen: all that was written to them was on the disk.
    Frozen,
    /// The disk was in use, and not all was frozen: its users may have had more to write.
    InUse {
        /// The errors, if this host has some mounted that could not be frozen.
        error: Option<String>,
    },
}

impl Default for CommitMoment {
    fn default() -> Self {
        Self::InUse { error: None }
    }
}

impl ControlAnswer {
    /// The answer for an error.
    #[must_use]
    pub fn failed(error: &Error) -> Self {
        Self::Failed { conflict: error.kind() == ErrorKind::Conflict, message: error.to_string() }
    }
}

/// A connection to the process of a disk.
pub struct ServedDisk {
    stream: BufReader<UnixStream>,
    /// The path of the socket, for errors.
    path: PathBuf,
}

impl ServedDisk {
    /// Connects to the process that serves the disk in the directory `dir`; `None` if no process answers there.
    #[must_use]
    pub fn connect(dir: &Path) -> Option<Self> {
        // By the open directory, whose path may be too long for an address.
        let stream = GuardedDir::open(dir).and_then(|dir| UnixStream::connect(dir.anchored(SOCKET)?)).ok()?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).ok()?;
        Some(Self { stream: BufReader::new(stream), path: dir.join(SOCKET) })
    }

    fn silent(&self, error: io::Error) -> Error {
        Error::io("the process of the disk does not answer", error).about(self.path.display())
    }

    /// Sends a request and receives the answer.
    ///
    /// # Errors
    /// The error of a process that did not carry the request out; [`ErrorKind::Io`] if it does not answer;
    /// [`ErrorKind::Corrupt`] for an answer without sense.
    pub fn ask(&mut self, request: &ControlRequest) -> Result<ControlAnswer> {
        send_line(self.stream.get_ref(), request).map_err(|e| self.silent(e))?;
        self.answer()
    }

    fn answer(&mut self) -> Result<ControlAnswer> {
        match receive_line(&mut self.stream) {
            Ok(ControlAnswer::Failed { conflict, message }) => {
                Err(Error::new(if conflict { ErrorKind::Conflict } else { ErrorKind::Io }, message))
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(senseless().caused_by(error)),
            answer => answer.map_err(|e| self.silent(e)),
        }
    }

    /// Has the process set the disk's changes aside.
    ///
    /// # Errors
    /// As [`ServedDisk::ask`].
    pub(crate) fn commit(mut self, request: ServedCommitRequest) -> Result<ServedCommit> {
        let timeout = self.stream.get_ref().set_read_timeout(Some(COMMIT_TIMEOUT));
        timeout.map_err(|e| self.silent(e))?;
        match self.ask(&ControlRequest::Commit(request))? {
            ControlAnswer::Begun { virtual_size, data_bytes, sealed, moment } => {
                Ok(ServedCommit { disk: self, virtual_size, data_bytes, sealed, moment })
            }
            _ => Err(senseless()),
        }
    }
}

fn senseless() -> Error {
    Error::corrupt("the answer of the disk's process makes no sense")
}

/// The changes of a disk that its process has set aside.
pub(crate) struct ServedCommit {
    disk: ServedDisk,
    /// Size of the disk in bytes.
    pub(crate) virtual_size: u64,
    /// Bytes of the changes.
    pub(crate) data_bytes: u64,
    /// The layer, if it is complete already.
    pub(crate) sealed: Option<Box<SealedLayer>>,
    /// The moment at which they were set aside.
    pub(crate) moment: CommitMoment,
}

impl ServedCommit {
    /// Writes the layer, which is not compressed, to `out`.
    pub(crate) fn copy_to(&mut self, out: &mut dyn Write) -> Result<LayerSummary> {
        let mut part = Vec::new();
        loop {
            let mut len = [0; 4];
            self.disk.stream.read_exact(&mut len).map_err(|e| self.disk.silent(e))?;
            let len = u32::from_le_bytes(len);
            if len == 0 {
                break;
            }
            if len > PART_MAX {
                return Err(senseless());
            }
            part.resize(to_usize(len.into()), 0);
            self.disk.stream.read_exact(&mut part).map_err(|e| self.disk.silent(e))?;
            out.write_all(&part)?;
        }
        match self.disk.answer()? {
            ControlAnswer::Written(summary) => Ok(summary),
            _ => Err(senseless()),
        }
    }

    /// Has the process make the image, which has the layer on top, the base of the disk.
    pub(crate) fn stack(mut self, image: String, digest: String) -> Result<()> {
        match self.disk.ask(&ControlRequest::Stack { image, digest })? {
            ControlAnswer::Stacked {} => Ok(()),
            _ => Err(senseless()),
        }
    }
}

/// Sends a line of JSON.
///
/// # Errors
/// Errors of the stream.
pub fn send_line(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Receives a line of JSON.
///
/// # Errors
/// Errors of the stream; [`io::ErrorKind::UnexpectedEof`] if it has ended; [`io::ErrorKind::InvalidData`] if the line
/// makes no sense.
pub fn receive_line<T: DeserializeOwned>(stream: &mut BufReader<UnixStream>) -> io::Result<T> {
    let mut line = String::new();
    if stream.take(LINE_MAX).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_str(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// A writer that sends what is written to it as parts of a layer.
pub struct PartSender<'a>(pub &'a UnixStream);

impl PartSender<'_> {
    /// Sends the end of the parts.
    ///
    /// # Errors
    /// Errors of the stream.
    pub fn end(mut self) -> io::Result<()> {
        self.0.write_all(&0u32.to_le_bytes())
    }
}

impl Write for PartSender<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        #[expect(clippy::cast_possible_truncation, reason = "at most PART_MAX")]
        let len = buf.len().min(PART_MAX as usize) as u32;
        self.0.write_all(&len.to_le_bytes())?;
        self.0.write_all(&buf[..len as usize])?;
        Ok(len as usize)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
