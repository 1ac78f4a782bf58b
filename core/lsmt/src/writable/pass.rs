//! The positions of the passes over a disk that move and merge its data (`batch.rs`, `coarsen.rs`).

use super::lack::{Lack, Unmerged};
use std::collections::BTreeMap;

/// The positions of passes over the disk, in sectors.
#[derive(Default)]
pub(super) struct Pass {
    pub(super) evacuated: u64,
    /// Bytes that evacuation has moved since the disk was opened.
    pub(super) moved: u64,
    /// The place at which merging runs goes on.
    pub(super) coarsened: u64,
    /// Merging has made fewer of some runs.
    pub(super) merged: bool,
    /// The bytes of the base that merging runs lacks.
    pub(super) lack: Lack,
    /// The reason for which the last window that was not merged stays as it is.
    pub(super) unmerged: Option<Unmerged>,
    pub(super) absorbed: u64,
    /// The frozen pairs, lowest first, that are being absorbed.
    pub(super) absorbing: Vec<u64>,
    /// The position up to which the data of each of them was declared dead.
    pub(super) declared: BTreeMap<u64, u64>,
}

impl Pass {
    /// `true` if merging cannot go on before bytes of the base have come.
    pub(super) fn awaits_base(&self) -> bool {
        let at_end = self.coarsened == u64::MAX;
        !self.lack.has_arrived() && (self.lack.is_full() || at_end && self.lack.is_waiting())
    }
}
