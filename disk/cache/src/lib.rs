//! The local blob cache on disk: presence, verification before visibility, eviction, crash consistency.
//!
//! Ranges of blobs, as stored (compressed), in a directory that all disks and all processes of a host share.
//! There is no daemon: processes meet in mapped sidecar files and in the kernel's file locks, so that killing any
//! of them harms no other.
//!
//! ```text
//! DIR/lock                 locked by who makes or removes files
//! DIR/evict                locked by the evictor
//! DIR/state.1              how full it is, the clock of accesses
//! DIR/DIGEST.SUM.data      a blob's bytes, sparse
//! DIR/DIGEST.SUM.map       its sidecar: which units are there
//! ```
//!
//! # Units
//!
//! Presence is tracked in *units* of 16 KiB, the group that a hash tree covers, and not in chunks of 64 KiB
//! (four of them): a hot slice of 64 KiB is some 30 KB when compressed, so whole chunks would move twice the
//! bytes. Pages of an outboard are units of 4 KiB. Eviction, pins and access marks go by chunks.
//!
//! # Promises
//!
//! * Nothing becomes visible before it was checked against the hash tree, where there is one. Bytes without a
//!   tree are kept apart by the store they come from, and checked by their digest as soon as the blob is whole;
//!   from then on nothing wrong of it is served, and after that it is fetched again, a bounded number of times.
//! * A read of local bytes looks at a bitmap and makes one system call. It takes no lock and allocates
//!   nothing. It does not check them again: who finds them wrong by other means says so, see `recheck`.
//! * After `kill -9` all that was inserted is there. After a loss of power all that was synced is there, and
//!   nothing else is believed.
//! * A disk that is full or fails harms nobody: what is inserted then is kept in memory, within bounds, and
//!   given back to the reads that wait for it. That goes for one blob's files and for the whole directory.
//! * The size limit holds for blobs' bytes and their sidecars together: a manifest that names blobs of any length
//!   cannot take more by what describes them. One process keeps to it at every moment, also while another thread or
//!   process evicts: no insert waits for that, and what finds no room is kept in memory, as on a full disk. Several
//!   processes pass it together by what each of them is writing at the same moment.
//! * What an attached disk has pinned is not evicted, in whatever process it is. A scan does not drive out
//!   what is used again and again.
//!
//! # How to use it
//!
//! [`CachedBlob::read_at`](headstart_block::ReadAt::read_at) gives
//! [`Absent`](headstart_block::ErrorKind::Absent) where bytes are missing. Then: [`CachedBlob::claim`] the
//! range, fetch what the claim owns together with the pages that [`CachedBlob::tree_missing`] names, insert
//! the pages into [`CachedBlob::tree`] and then the data, drop the claim; for what others fetch, wait as
//! [`Claim::wait_hint`] says, and look again. A background thread calls [`Cache::sync`] every few seconds. Who
//! keeps something that he made of a blob's bytes, such as an index, [watches](CachedBlob::watch) it.
//!
//! | module | what it does |
//! |---|---|
//! | `cache`, `blob`, `spec` | what other crates see; the read path and why it is safe |
//! | `claim`, `pin` | single-flight; what must stay |
//! | `sidecar` | the format, byte by byte, and what of it is believed |
//! | `durable` | what survives a loss of power; forgetting |
//! | `earlier` | hash trees that version 0.1.0 cached |
//! | `files` | making, finding, recovering and removing a blob's files |
//! | `evict`, `policy` | giving space back; the choice of what |
//! | `overlay` | what the disk did not take |
//! | `whole` | blobs without a tree, once whole |
//! | `recheck` | what was right when it came and is not any more |
//! | `writing` | keeps evictors away from what is being written |
//! | `contents` | list, usage, remove, prune |
//! | `presence`, `mapping` | bitmaps; the memory they are in, shared by processes (the only `unsafe`) |
//! | `locks`, `shared_state` | locks between processes; the numbers that they share |

mod blob;
mod cache;
mod claim;
mod contents;
mod durable;
mod earlier;
mod evict;
mod files;
mod locks;
mod mapping;
mod overlay;
mod pin;
mod policy;
mod presence;
mod recheck;
mod shared_state;
mod sidecar;
mod spec;
mod whole;
mod writing;

#[cfg(test)]
mod tests;

pub use blob::CachedBlob;
pub use cache::{Cache, CacheSettings, Counters, Evicted};
pub use claim::{Claim, WaitHint};
pub use contents::{Entry, EntryKind, Usage};
#[doc(hidden)]
pub use files::recover_sidecar;
pub use pin::Pin;
pub use recheck::{Findings, Verified};
pub use spec::BlobSpec;
pub use whole::Watcher;
