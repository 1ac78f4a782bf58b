//! A disk: layers, cache, pull engine and writable layer behind one block device.
//!
//! | module | what it does |
//! |---|---|
//! | [`attach`] | makes a disk of a reference: the manifest, the layers, the writable directory |
//! | [`disk`] | what a server reads and writes; the way of one read (start here) |
//! | `base` | the image's layers, which may lack bytes |
//! | [`puller`] | drives the pull engine |
//! | `fetch` | brings one range from the store into the cache |
//! | `stream` | brings a long one, whose bytes can be read as they come |
//! | [`blobs`] | where the disk's bytes lie in blobs, and what is missing |
//! | `expected` | the disk that a writable directory has to hold |
//! | `open` | opening the layers of an image whose blobs are elsewhere |
//! | `opening` | what a layer was opened by, where no hash tree proves it |
//! | `known_images` | manifests seen before, for when the store is away |
//! | [`pinned`] | manifests of images that the hosts of a swarm keep together, for the same |
//! | [`accesses`] | what is read first: a log that reads write |
//! | [`plans`] | plans as a disk follows them: in its image's order, in whole blocks |
//! | [`preloading`] | finds plans, and follows them by that log |
//! | `hold` | keeps the image from being deleted while a disk needs it |
//! | [`release`] | gives up what a disk held whose process is down |
//! | `known_links` | bandwidths seen before, for the first plan of a disk |
//! | `known_files` | how both are kept |
//! | [`carrier`] | the same for who is no disk |
//! | [`swarm`] | bytes from other hosts, asked for first |
//! | `hints` | what boots of the same image read on other hosts, as a plan |
//! | [`stats`] | counters and latency distributions |

#![forbid(unsafe_code)]

pub mod accesses;
pub mod attach;
mod base;
pub mod blobs;
pub mod carrier;
mod collecting;
pub mod disk;
mod expected;
mod fetch;
mod hints;
mod hold;
mod known_files;
mod known_images;
mod known_links;
mod local;
mod open;
mod opening;
pub mod pinned;
pub mod plans;
pub mod preloading;
pub mod puller;
pub mod release;
pub mod stats;
mod stream;
pub mod swarm;

pub use attach::{Attached, DiskOptions, Host, KnownImage, MadeDirectory, WritableOptions};
pub use blobs::Blobs;
pub use carrier::Carrier;
pub use disk::Disk;
pub use expected::Expected;
pub use hints::image_key_of;
pub use hold::Hold;
pub use pinned::PinnedImages;
pub use preloading::{Found, Origin, PlanSource, Preloaded, Preloader, Search, Sought};
pub use puller::Puller;
pub use swarm::Swarm;
