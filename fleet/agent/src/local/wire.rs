//! The words between a disk and its agent, and how they become bytes: a length of four bytes, least first, and that
//! much postcard.

use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result};
use headstart_cache::BlobSpec;
use headstart_image::hash_tree::TreeRoot;
use headstart_image::manifest::Tree;
use headstart_swarm::tracker::Access;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What both ends speak. They come from one package; in an upgrade one of them is older for a while.
pub(super) const VERSION: u16 = 3;

/// Of disks that speak this, or more, the agent says whether others have their blobs.
pub(super) const TELLS_OF_COMPANY: u16 = 3;

/// The oldest that the agent still understands: disks live longer than agents.
pub(super) const UNDERSTOOD: u16 = 2;

/// Most bytes of a word: what a disk is to preload is the longest, of as many items as the agent gives.
const WORD_MAX: usize = 512 << 10;

/// A directory, by what is the same for all processes of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DirectoryId {
    device: u64,
    inode: u64,
}

impl DirectoryId {
    /// Of a directory that is there.
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
    /// Nothing of one without a tree.
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

    /// Both as one, where they are of one blob and touch.
    pub(super) fn joined(self, next: Self) -> Option<Self> {
        let (ours, theirs) = (self.range()?, next.range()?);
        let same = (self.blob, self.of_tree) == (next.blob, next.of_tree);
        let touch = theirs.offset() <= ours.end() && ours.offset() <= theirs.end();
        let both = ByteRange::between(ours.offset().min(theirs.offset()), ours.end().max(theirs.end()));
        (same && touch).then(|| Self::new(self.blob, self.of_tree, both))
    }

    /// Nothing where it ends beyond all numbers.
    pub(super) fn range(self) -> Option<ByteRange> {
        ByteRange::new(self.offset, self.len)
    }
}

/// What a disk says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FromDisk {
    /// First of all. Its cache has to be the agent's.
    Hello { version: u16, cache: DirectoryId },
    /// It has a blob, from now on under this number, from the store of this name.
    Join { blob: u32, words: BlobWords, origin: String },
    /// It has it no longer.
    Leave { blob: u32 },
    /// To be brought, and answered under this number.
    Want { want: u64, part: Part, urgent: bool },
    /// Nobody waits for that any more.
    Forget { want: u64 },
    /// It has brought this from the store.
    BecameLocal { part: Part },
    /// It has read this.
    Read { part: Part },
    /// Whether it follows a plan.
    Planned { blob: u32, running: bool },
    /// A disk of an image boots, from now on under this number; `is_new` if that was not said to any agent before.
    Boots { disk: u32, image: u64, is_new: bool },
    /// It has read these slices for the first time.
    First { disk: u32, accesses: Vec<Access> },
    /// It has booted, or is gone.
    Booted { disk: u32 },
    /// Is anybody there?
    Ping,
}

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FromAgent {
    /// To a hello.
    Welcome,
    /// To a hello that it does not like; it hangs up.
    Refused { why: String },
    /// A want is over.
    Answer { want: u64 },
    /// What a disk that boots is to preload: blocks, and their slices; and how many disks that was learned from.
    Hinted { disk: u32, items: Vec<(u64, u32)>, disks: u32 },
    /// To a ping.
    Pong,
    /// Whether any other host has this blob. Until that is said, one may have.
    Company { blob: u32, any: bool },
}

pub(super) fn frame(word: &impl Serialize) -> Result<Vec<u8>> {
    let bytes =
        postcard::to_extend(word, vec![0; 4]).map_err(|e| Error::invalid("is no word").caused_by(e))?;
    let mut bytes = bytes;
    let len = bytes.len() - 4;
    if len > WORD_MAX {
        return Err(Error::invalid(format!("a word of {len} bytes is too long")));
    }
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

pub(super) async fn send(stream: &mut (impl AsyncWrite + Unpin), word: &impl Serialize) -> Result<()> {
    let bytes = frame(word)?;
    stream.write_all(&bytes).await.map_err(|e| Error::io("cannot write to the other end", e))
}

/// The next word; nothing at the end.
/// Several, at once.
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

pub(super) async fn receive<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<T>> {
    let mut len = [0; 4];
    match stream.read_exact(&mut len).await {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(Error::io("cannot read from the other end", e)),
    }
    let len = usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX);
    if len > WORD_MAX {
        return Err(Error::new(ErrorKind::Corrupt, format!("a word of {len} bytes is too long")));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await.map_err(|e| Error::io("cannot read from the other end", e))?;
    let word = postcard::from_bytes(&bytes);
    word.map(Some).map_err(|e| Error::corrupt("what came makes no sense").caused_by(e))
}
