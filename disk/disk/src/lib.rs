//! A disk: layers, cache, pull engine and writable layer behind one block device.
//!
//! | module | content |
//! |---|---|
//! | [`attach`] | makes a disk of a reference: the manifest, the layers, the writable directory |
//! | [`disk`] | the device that a server reads and writes; the path of one read (start here) |
//! | `base` | the image's layers, which may lack bytes |
//! | `uppers` | layers of this host on top of them |
//! | [`puller`] | runs the pull engine with real I/O |
//! | `fetch` | fetches one range from the store into the cache |
//! | `stream` | fetches a long range, whose bytes can be read as they come |
//! | `together` | fetches ranges, short or long, of a blob that other hosts share |
//! | `need`, `claims`, `streaming` | types of fetching: urgency, missing bytes, inputs and reports of a stream |
//! | [`blobs`] | the places of the disk's bytes in blobs, and the bytes that are missing |
//! | `expected` | the disk that a writable directory has to hold |
//! | `own_base` | the image that a writable directory is based on, where another one is found |
//! | `open` | opening the layers of an image whose blobs are in a store |
//! | `targets` | the blobs that TurboOCI layers have their data in |
//! | `opening` | the bytes by which a layer was opened, if no hash tree proves them |
//! | `known_images` | manifests seen before, for attaching while the store cannot be reached |
//! | [`pinned`] | manifests of images that the hosts of a swarm keep jointly, for the same purpose |
//! | `ahead` | content that is decoded before it is read |
//! | [`accesses`] | the log of first reads, which each read updates |
//! | [`preloading`] | preloads by the plans that are found, and compares them with that log |
//! | `collecting` | the threads that collect the garbage of a writable layer |
//! | `hold` | keeps the image from being deleted while a disk needs it |
//! | [`release`] | removes the leases of a disk whose process is down |
//! | `known_links` | bandwidths seen before, for the first plan of a disk |
//! | `known_files` | the small files in which manifests and bandwidths are kept |
//! | [`range_fetcher`] | fetches for a caller that is not a disk |
//! | [`swarm`] | bytes from other hosts, which are asked first |
//! | `sharing` | the part of one disk in a swarm |
//! | `swarm_reports` | reports the reads of a disk to the swarm |
//! | `hints` | the reads of boots of the same image on other hosts, as a plan |
//! | [`stats`] | counters and latency distributions |

#![forbid(unsafe_code)]

pub mod accesses;
mod ahead;
pub mod attach;
mod base;
pub mod blobs;
mod claims;
mod collecting;
pub mod disk;
mod expected;
mod fetch;
mod grants;
mod hints;
mod hold;
mod known_files;
mod known_images;
mod known_links;
mod local;
mod lost_writes;
mod need;
mod open;
mod opening;
mod own_base;
pub mod pinned;
pub mod preloading;
pub mod puller;
pub mod range_fetcher;
pub mod release;
mod sharing;
pub mod stats;
mod stream;
mod streaming;
pub mod swarm;
mod swarm_reports;
mod targets;
mod together;
mod uppers;

pub use attach::{AttachedDisk, DiskHost, DiskOptions, KnownImage, MadeDirectory, WritableOptions};
pub use blobs::Blobs;
pub use disk::Disk;
pub use expected::Expected;
pub use hold::Hold;
pub use pinned::PinnedImages;
pub use preloading::{PlanFinding, PlanQuery, PlanSource, Preloader};
pub use puller::Puller;
pub use range_fetcher::RangeFetcher;
pub use swarm::SwarmClient;
