//! Traces of disk I/O: recorder, Parquet files, the FAST'26 layout, statistics.
//!
//! The [`Recorder`] of a disk notes requests in memory. The [`Saver`] of the process writes one Parquet file for each
//! boot that is kept ([`saver`] names the others) into a [`TraceDirectory`]: the requests, samples of the link to the
//! store, and the metadata of the disk.
//!
//! | module | content |
//! |---|---|
//! | [`record`] | one traced request |
//! | [`boots`] | the beginning of a boot, and the time for which it is recorded |
//! | [`budget`] | the number of traces that the boots of a disk may leave in an hour |
//! | [`recorder`] | notes requests as they are served |
//! | [`trace`] | a whole trace: creation, requests, the link |
//! | [`mod@file`] | a trace as a Parquet file: the format and its versions |
//! | [`directory`] | many such files: names, limits, eviction |
//! | [`saver`] | the thread that brings recorded traces into the directory |
//! | [`npy`] | NumPy files of four columns |
//! | [`fast26`] | the layout of the FAST'26 data set: import, export |
//! | [`data_set`] | one way to read all of these layouts: lists traces, then streams them, and skips bad ones |
//! | [`stats`] | the reads of traces: sums, and the figures of the ThinkAhead paper |
//! | [`synthesize`] | data sets like the published one, of any size, from a seed |

#![forbid(unsafe_code)]

pub mod boots;
pub mod budget;
pub mod data_set;
pub mod directory;
pub mod fast26;
pub mod file;
pub mod npy;
pub mod record;
pub mod recorder;
pub mod saver;
pub mod stats;
pub mod synthesize;
pub mod trace;

pub use budget::TraceBudget;
pub use data_set::DataSet;
pub use directory::{DirectoryLimits, TraceDirectory};
pub use record::{Op, Record};
pub use recorder::{BootId, ContainerStart, RECORDS_MAX, Recorder, WINDOW};
pub use saver::{Pace, Recording, SavedBoots, Saver};
pub use trace::{ATTACHED_BEFORE, Creation, DIGEST, ENTRYPOINT, ENTRYPOINT_AFTER, LinkSample, Trace};
