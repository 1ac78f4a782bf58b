//! Plans as one file.

use crate::knowledge::ImageKey;
use crate::plans::ImagePlans;
use crate::train::Plans;
use crate::zero_shot::Metadata;
use headstart_block::{Error, ReadAt, Result};
use std::io::Write;

/// A file of plans, of which only the index is read.
pub struct PlanFile<S> {
    #[expect(dead_code, reason = "soon")]
    source: S,
}

impl<S: ReadAt> PlanFile<S> {
    /// Reads the index.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, and what the source reports.
    pub fn open(_source: S) -> Result<Self> {
        Err(Error::unsupported("is not read yet"))
    }

    /// As [`Plans::choose`]; reads one section.
    ///
    /// # Errors
    /// As [`PlanFile::open`].
    pub fn choose(&self, _key: &ImageKey, _metadata: &Metadata) -> Result<ImagePlans> {
        Err(Error::unsupported("is not read yet"))
    }

    /// Reads all.
    ///
    /// # Errors
    /// As [`PlanFile::open`].
    pub fn read_all(&self) -> Result<Plans> {
        Err(Error::unsupported("is not read yet"))
    }
}

impl Plans {
    /// Writes them as a file.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write(&self, _out: &mut dyn Write) -> Result<()> {
        Err(Error::unsupported("is not written yet"))
    }
}
