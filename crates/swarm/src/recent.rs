//! What agents asked a root for lately, in which order, and what one of them will ask for next.

use crate::event::{BlobKey, Chunks, PeerKey};
use serde::{Deserialize, Serialize};

/// A chunk of a blob, by names that are the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Piece {
    /// The blob.
    pub blob: BlobKey,
    /// Its chunk.
    pub chunk: u32,
}

/// The list of recent requests.
#[derive(Clone, Debug)]
pub struct Recent {
    capacity: usize,
}

/// The list as plain data, to be kept over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {}

impl Recent {
    /// Of at most `capacity` chunks.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity }
    }

    /// An agent asked for these chunks because something there waits for them. `lacks` says of a chunk whether that
    /// agent has not got it, nor is about to get it.
    pub fn asked(
        &mut self,
        _agent: PeerKey,
        _blob: BlobKey,
        _chunks: Chunks,
        _lacks: impl FnMut(Piece) -> bool,
    ) {
    }

    /// What that agent will ask for next, as far as is known: at most `limit` chunks that it `lacks`, in order, appended
    /// to `next`.
    pub fn next(
        &mut self,
        _agent: PeerKey,
        _limit: usize,
        _lacks: impl FnMut(Piece) -> bool,
        _next: &mut Vec<Piece>,
    ) {
    }

    /// An agent is gone.
    pub fn forget(&mut self, _agent: PeerKey) {}

    /// As plain data.
    #[must_use]
    pub fn save(&self) -> Saved {
        Saved {}
    }

    /// From plain data, of which as much is taken as there is room for.
    #[must_use]
    pub fn load(_saved: &Saved, capacity: usize) -> Self {
        Self::new(capacity)
    }
}
