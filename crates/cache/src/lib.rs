//! The local blob cache on disk: presence, verification before visibility, eviction, crash consistency.
//!
//! (Signatures first: bodies follow.)

mod blob;
mod cache;
mod claim;
mod pin;

pub use blob::{BlobSpec, CachedBlob};
pub use cache::{Cache, CacheSettings, Counters, Entry, Evicted, Usage};
pub use claim::{Claim, WaitHint};
pub use pin::Pin;
