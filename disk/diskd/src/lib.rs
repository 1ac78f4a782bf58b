//! The disks of one process: opened from their images, served, recorded, closed.
//!
//! A program that serves disks builds a [`SessionSettings`] and opens a [`DiskSession`], starts [`Servers`] for it, and
//! closes both in the end. The program provides what a library does not decide ([`Environment`]): the settings of
//! stores, the connection to a swarm, the signal to stop, and the output to its user.
//!
//! | module | content |
//! |---|---|
//! | [`session`] | opening all disks, step by step, and closing them (read this first) |
//! | [`disk`] | one disk, from the request for it to its release |
//! | [`settings`] | plain values: the disks, the images that earlier processes served for them, shared settings |
//! | [`policy`] | the policy of preloading |
//! | [`environment`] | the resources that the program provides to a session |
//! | [`control`] | the socket by which other programs have a disk cloned or committed |
//! | `freezing` | what this host has mounted from a disk, frozen while a commit begins |
//! | `keep_base`, [`copies`] | copies of images in writable directories |
//! | [`plans`] | the lookup of plans, in all places |
//! | [`record_settings`], [`recording`] | the recordings of boots, and their place |
//! | `sealer`, `seal_policy` | layers that are sealed ahead of commits: the thread, and what it decides |
//! | [`servers`] | starting the servers, and their addresses |
//! | [`lines`] | the command lines of QEMU with a disk |
//! | `own_directory` | the directory of a socket without a given path |
//! | [`release`] | releasing the images of a disk that has no process |
//! | [`metrics`] | the page of these disks for Prometheus |
//! | [`starts`] | the socket at which a program tells of containers that start on a disk |
//! | `decode_ahead` | what a container's start will read, decoded before it is read |
//! | [`sync_thread`] | the cache made durable while disks are served |
//! | [`totals`], [`preloads`], [`recorded`] | figures of a session: reads, the use of preloading, boots with a trace |

#![forbid(unsafe_code)]

pub mod control;
pub mod copies;
mod decode_ahead;
pub mod disk;
pub mod environment;
mod freezing;
mod keep_base;
pub mod lines;
pub mod metrics;
mod own_directory;
pub mod plans;
pub mod policy;
pub mod preloads;
pub mod record_settings;
pub mod recorded;
pub mod recording;
pub mod release;
mod seal_policy;
mod sealer;
pub mod servers;
pub mod session;
pub mod settings;
pub mod starts;
pub mod sync_thread;
pub mod totals;

pub use copies::Copies;
pub use disk::NamedDisk;
pub use environment::{Environment, SwarmConnector};
pub use lines::QemuVersion;
pub use policy::PlanPolicy;
pub use preloads::Preloads;
pub use record_settings::{DiskLabel, RecordSettings};
pub use recorded::RecordedBoots;
pub use recording::Traces;
pub use servers::{DiskAddress, KeptDisk, ServerSettings, Servers};
pub use session::DiskSession;
pub use settings::{DiskRequest, PriorImage, SessionSettings};
pub use sync_thread::SyncThread;
pub use totals::Totals;
