//! Traces of disk I/O: recorder, Parquet files, the FAST'26 layout, statistics.
//!
//! | module | what it does |
//! |---|---|
//! | [`record`] | one traced request |
//! | [`recorder`] | notes requests as they are served |

pub mod record;
pub mod recorder;

pub use record::{Op, Record};
pub use recorder::{RECORDS_MAX, Recorder, WINDOW};
