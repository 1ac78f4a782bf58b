//! The local blob cache on disk: presence, verification before visibility, eviction, crash consistency.
//!
//! The cache keeps ranges of blobs, as stored (compressed), in a directory that all disks and all processes of a host
//! share. There is no daemon: processes share mapped sidecar files and the kernel's file locks, so killing one of the
//! processes harms no other.
//!
//! ```text
//! DIR/lock                 locked by a process that makes or removes files
//! DIR/evict                locked by the evictor
//! DIR/state.1              the fill level and the clock of accesses
//! DIR/DIGEST.SUM.data      a blob's bytes, sparse
//! DIR/DIGEST.SUM.map       its sidecar: the units that are there
//! ```
//!
//! `SUM` stands for the other facts that distinguish blobs here: the length, and the hash tree or, without a tree, the
//! store.
//!
//! # Units
//!
//! Presence is tracked in *units* of 16 KiB, the group that a hash tree covers, and not in *chunks* of 64 KiB (four
//! units): a hot slice of 64 KiB is some 30 KB when compressed, so whole chunks would move twice the bytes. An outboard
//! (the file of a blob's hash tree) has units of 4 KiB, its pages. Eviction, pins and access marks go by chunks.
//!
//! # Promises
//!
//! * Bytes of a blob that has a hash tree become visible only after they were checked against it. Bytes of a blob
//!   without a tree are kept separately for each store that they come from. Such a blob is compared with its digest as
//!   soon as it is complete, unless [`CacheSettings::check_whole`] is `false`. If it does not match, all of it is
//!   removed and fetched again; after three times in a row the cache accepts no more of the blob
//!   ([`CachedBlob::is_refused`]).
//! * A read of bytes that are in the cache's files looks at a bitmap and makes one system call. It takes no lock and
//!   allocates nothing. It does not check the bytes again: a caller that finds them wrong by other means reports that
//!   by [`CachedBlob::discard_wrong`].
//! * After `kill -9` all inserted bytes that were written to the cache's files are there. After a loss of power all
//!   synced bytes are there, and nothing else is trusted.
//! * A full or failing disk harms no reader: bytes that are inserted meanwhile are kept in memory, within bounds, and
//!   given to the reads that wait for them. This holds if the files of one blob fail, and also if the whole directory
//!   fails.
//! * The size limit holds for blobs' bytes and their sidecars together: a manifest that names blobs of any length
//!   cannot take more through their sidecars. One process keeps to the limit at every moment, also while another thread
//!   or process evicts: no insert waits for the eviction, and bytes that find no room are kept in memory, as on a full
//!   disk. Several processes together may pass the limit by the bytes that each of them is writing at the same moment.
//! * Chunks that an attached disk has pinned are not evicted, whichever process has the disk. A scan does not drive out
//!   chunks that are used again and again.
//!
//! # How to use it
//!
//! [`CachedBlob::read_at`](headstart_block::ReadAt::read_at) gives [`Absent`](headstart_block::ErrorKind::Absent) where
//! bytes are missing. Then: [`CachedBlob::claim`] the range, fetch the ranges that the claim owns together with the
//! pages that [`CachedBlob::tree_missing`] names, insert the pages into [`CachedBlob::tree`] and then the data, drop
//! the claim; for ranges that others fetch, wait as [`CacheClaim::wait_hint`] says, and look again. A background thread
//! calls [`Cache::sync`] every few seconds. A caller that keeps something made of a blob's bytes, such as an index,
//! [watches](CachedBlob::watch) the blob.
//!
//! | module | task |
//! |---|---|
//! | `cache`, `blob`, `spec` | the items that other crates see; the read path and why it is safe |
//! | `storage`, `counts` | the directory and its limits, which all blobs share; counts of what was done |
//! | `insert`, `room` | fetched bytes on their way into a blob; the room that they take |
//! | `claim`, `pin` | the right to fetch a range; chunks that must stay |
//! | `claim_table`, `pin_table` | the claims and pins of this process |
//! | `sidecar` | the format, byte by byte, and the parts of it that are trusted |
//! | `durable` | the units that survive a loss of power; forgetting |
//! | `earlier` | hash trees that version 0.1.0 cached |
//! | `blob_files` | the two files of a blob while they are in use |
//! | `files` | making, finding, recovering and removing a blob's files |
//! | `evict`, `policy` | giving space back; the choice of the chunks |
//! | `overlay` | units that the disk did not take |
//! | `page_cache`, `sweep` | what need not stay in the kernel's page cache; telling the kernel |
//! | `tree_check` | bytes against the hash tree |
//! | `whole`, `check_state` | blobs without a tree, once whole |
//! | `recheck` | bytes that were right when they came and are not any more |
//! | `writing` | keeps evictors away from bytes that are being written |
//! | `contents` | list, usage, remove, prune |
//! | `presence`, `mapping` | bitmaps; the memory they are in, shared by processes (`unsafe`) |
//! | `locks`, `shared_state` | locks between processes (an `unsafe` call); the numbers that they share |

mod blob;
mod blob_files;
mod bypass_log;
mod cache;
mod check_state;
mod claim;
mod claim_table;
mod contents;
mod counts;
mod durable;
mod earlier;
mod evict;
mod files;
mod insert;
mod locks;
mod mapping;
mod overlay;
mod page_cache;
mod pin;
mod pin_table;
mod policy;
mod presence;
mod recheck;
mod room;
mod shared_state;
mod sidecar;
mod slots;
mod spec;
mod storage;
mod sweep;
mod tree_check;
mod whole;
mod writing;

#[cfg(test)]
mod tests;

pub use blob::{CachedBlob, Watcher};
pub use cache::Cache;
pub use claim::{CacheClaim, WaitHint};
pub use contents::{CacheEntry, EntryKind, Usage};
pub use counts::CacheCounters;
pub use evict::Evicted;
#[doc(hidden)]
pub use files::recover_sidecar;
pub use page_cache::PageCache;
pub use pin::CachePin;
pub use recheck::{Findings, Verified};
pub use slots::HostSlot;
pub use spec::BlobSpec;
pub use storage::CacheSettings;
