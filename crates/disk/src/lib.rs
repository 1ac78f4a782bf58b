//! A disk: layers, cache, pull engine and writable layer behind one block device.
//!
//! | module | what it does |
//! |---|---|
//! | [`attach`] | makes a disk of a reference: the manifest, the layers, the writable directory |
//! | [`disk`] | what a server reads and writes; the way of one read (start here) |
//! | `base` | the image's layers, which may lack bytes |
//! | [`puller`] | drives the pull engine |
//! | `fetch` | brings one range from the store into the cache |
//! | [`blobs`] | where the disk's bytes lie in blobs, and what is missing |
//! | `open` | opening the layers of an image whose blobs are elsewhere |
//! | `opening` | what a layer was opened by, where no hash tree proves it |
//! | `known_images` | manifests seen before, for when the store is away |
//! | [`stats`] | counters and latency distributions |

pub mod attach;
mod base;
pub mod blobs;
pub mod disk;
mod fetch;
mod known_images;
mod open;
mod opening;
pub mod puller;
pub mod stats;

pub use attach::{Attached, DiskOptions, Host, MadeDirectory, WritableOptions};
pub use blobs::Blobs;
pub use disk::Disk;
pub use puller::Puller;
