//! A blob's two files while they are in use, and the locks of this process.

use crate::presence;
use crate::sidecar::{Header, Sidecar};
use parking_lot::Mutex;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// A blob's files, in use.
pub(crate) struct Files {
    pub(crate) header: Header,
    pub(crate) sidecar: Sidecar,
    pub(crate) data: File,
    pub(crate) data_path: PathBuf,
    /// Lock of the thread of this process that writes `durable`.
    pub(crate) durable: Mutex<()>,
}

impl Files {
    /// Bytes of `units` that are local.
    pub(crate) fn local_bytes(&self, units: &Range<u64>) -> u64 {
        let layout = self.sidecar.layout;
        let last = layout.units().saturating_sub(1);
        let short = layout.units() * layout.unit - layout.len;
        let bits = self.sidecar.local();
        let has_last = units.contains(&last) && presence::all_set(bits, &(last..last + 1));
        presence::count(bits, units) * layout.unit - if has_last { short } else { 0 }
    }

    /// As [`local_bytes`](Self::local_bytes), of all units.
    pub(crate) fn all_local_bytes(&self) -> u64 {
        self.local_bytes(&(0..self.sidecar.layout.units()))
    }

    /// `true` if all units are local.
    pub(crate) fn is_whole(&self) -> bool {
        presence::all_set(self.sidecar.local(), &(0..self.sidecar.layout.units()))
    }

    /// `true` if a plain blob was found right and nothing was forgotten since.
    pub(crate) fn is_proven(&self) -> bool {
        let generation = self.sidecar.generation().load(Ordering::Acquire);
        self.sidecar.whole_at().load(Ordering::Acquire) == generation.wrapping_add(1) && self.is_whole()
    }
}
