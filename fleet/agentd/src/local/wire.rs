//! The messages between a disk and its agent, and their encoding: a length of four bytes, little-endian, and that many
//! bytes of postcard.

use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result, exact};
use headstart_cache::BlobSpec;
use headstart_hash_tree::TreeRoot;
use headstart_image::manifest::Tree;
use headstart_swarm::tracker::SliceAccess;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The protocol version. Both ends come from one package; in an upgrade one of them is older for a while.
pub(super) const VERSION: u16 = 3;

/// The least version of disks that the agent notifies whether other hosts have their blobs.
pub(super) const REPORTS_PEERS: u16 = 3;

/// The oldest version that the agent still understands: disks live longer than agents.
pub(super) const UNDERSTOOD: u16 = 2;

/// The most bytes of a message: the hints of a disk are the longest, with as many items as the agent gives.
const WORD_MAX: usize = 512 << 10;

/// The identity of a directory, the same for all processes of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DirectoryId {
    device: u64,
    inode: u64,
}

impl DirectoryId {
    /// The identity of an existing directory.
    pub(super) fn of(dir: &Path) -> Result<Self> {
        let metadata = dir.metadata().map_err(|e| Error::io("cannot look at", e).about(dir.display()))?;
        Ok(Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

/// A blob that has a hash tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BlobWords {
    digest: [u8; 32],
    len: u64,
    outboard: [u8; 32],
    outboard_len: u64,
    root: [u8; 32],
}

impl BlobWords {
    /// The words of a blob; `None` for one without a tree.
    pub(super) fn of(spec: &BlobSpec) -> Option<Self> {
        let tree = spec.tree?;
        Some(Self {
            digest: *spec.digest.as_bytes(),
            len: spec.len,
            outboard: *tree.digest.as_bytes(),
            outboard_len: tree.size,
            root: *tree.root.as_bytes(),
        })
    }

    pub(super) fn spec(&self) -> BlobSpec {
        let tree = Tree {
            root: TreeRoot::from_bytes(self.root),
            digest: Digest::from_bytes(self.outboard),
            size: self.outboard_len,
        };
        BlobSpec { digest: Digest::from_bytes(self.digest), len: self.len, tree: Some(tree), origin: None }
    }
}

/// A range of a blob, or of its hash tree's outboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    /// The disk's number of the blob.
    pub(super) blob: u32,
    pub(super) of_tree: bool,
    offset: u64,
    len: u64,
}

impl Part {
    pub(super) fn new(blob: u32, of_tree: bool, range: ByteRange) -> Self {
        Self { blob, of_tree, offset: range.offset(), len: range.len() }
    }

    /// Both parts as one, if they are of one blob and touch.
    pub(super) fn joined(self, next: Self) -> Option<Self> {
        let (ours, theirs) = (self.range()?, next.range()?);
        let same = (self.blob, self.of_tree) == (next.blob, next.of_tree);
        let touch = theirs.offset() <= ours.end() && ours.offset() <= theirs.end();
        let both = ByteRange::between(ours.offset().min(theirs.offset()), ours.end().max(theirs.end()));
        (same && touch).then(|| Self::new(self.blob, self.of_tree, both))
    }

    /// The range; `None` if its end overflows.
    pub(super) fn range(self) -> Option<ByteRange> {
        ByteRange::new(self.offset, self.len)
    }
}

/// A message of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FromDisk {
    /// The first message. The disk's cache has to be the agent's.
    Hello { version: u16, cache: DirectoryId },
    /// The disk has a blob, from now on under this number, from the store of this name.
    Join { blob: u32, words: BlobWords, origin: String },
    /// The disk does not have the blob any more.
    Leave { blob: u32 },
    /// A part to be fetched, and answered under this number.
    Want { want: u64, part: Part, urgent: bool },
    /// The end of the wait for a want.
    Forget { want: u64 },
    /// The disk has fetched this part from the store.
    BecameLocal { part: Part },
    /// The disk has read this part.
    Read { part: Part },
    /// `running` is `true` if the disk follows a plan.
    Planned { blob: u32, running: bool },
    /// A disk of an image boots, from now on under this number; `is_new` if no agent was notified of it before.
    Boots { disk: u32, image: u64, is_new: bool },
    /// The disk has read these slices for the first time.
    First { disk: u32, accesses: Vec<SliceAccess> },
    /// The disk has booted, or is gone.
    Booted { disk: u32 },
    /// A question whether the agent is alive.
    Ping,
}

/// A message of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FromAgent {
    /// The answer to a hello.
    Welcome,
    /// The answer to a hello that is refused; the agent hangs up.
    Refused { why: String },
    /// The end of a want.
    Answer { want: u64 },
    /// The preload list of a disk that boots: blocks, and their slices; and the number of disks that it was learned
    /// from.
    Hinted { disk: u32, items: Vec<(u64, u32)>, disks: u32 },
    /// The answer to a ping.
    Pong,
    /// `any` is `true` if any other host has this blob. Until this message, one may have it.
    Peers { blob: u32, any: bool },
}

pub(super) fn frame(word: &impl Serialize) -> Result<Vec<u8>> {
    let bytes =
        postcard::to_extend(word, vec![0; 4]).map_err(|e| Error::invalid("is not a word").caused_by(e))?;
    let mut bytes = bytes;
    let len = bytes.len() - 4;
    if len > WORD_MAX {
        return Err(Error::invalid(format!("a word of {len} bytes is too long")));
    }
    let len: u32 = exact(len, "it is at most WORD_MAX");
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

pub(super) async fn send(stream: &mut (impl AsyncWrite + Unpin), word: &impl Serialize) -> Result<()> {
    let bytes = frame(word)?;
    stream.write_all(&bytes).await.map_err(|e| Error::io("cannot write to the other end", e))
}

/// Sends several messages at once.
pub(super) async fn send_all<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    words: &[T],
) -> Result<()> {
    let mut bytes = Vec::new();
    for word in words {
        bytes.extend(frame(word)?);
    }
    stream.write_all(&bytes).await.map_err(|e| Error::io("cannot write to the other end", e))
}

/// Receives the next message; `None` at the end.
pub(super) async fn receive<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<T>> {
    let mut len = [0; 4];
    match stream.read_exact(&mut len).await {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(Error::io("cannot read from the other end", e)),
    }
    let len = u32::from_le_bytes(len) as usize;
    if len > WORD_MAX {
        return Err(Error::new(ErrorKind::Corrupt, format!("a word of {len} bytes is too long")));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await.map_err(|e| Error::io("cannot read from the other end", e))?;
    let word = postcard::from_bytes(&bytes);
    word.map(Some).map_err(|e| Error::corrupt("the received message makes no sense").caused_by(e))
}
