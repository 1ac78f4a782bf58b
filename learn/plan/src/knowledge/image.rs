//! The knowledge of one image.

use super::{KnowledgeSettings, RecordedImage};
use crate::block_table::{BlockId, BlockTable};
use crate::compact_trace::{CompactTrace, Packed};
use crate::layers::LayerMap;
use crate::preprocess::{Dropped, ImageModel, bounds_of};
use crate::zero_shot::{Metadata, Profile};
use headstart_trace::{Creation, Trace};
use std::collections::BTreeSet;

/// The largest disk, and the size of one whose size is not known.
const DISK_MAX: u64 = 1 << 50;

/// Everything learned of one image: its blocks, the metadata of its disks, and its traces or the groups made
/// of them.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageKnowledge {
    pub(super) settings: KnowledgeSettings,
    pub(super) profile: Profile,
    pub(super) block_table: BlockTable,
    /// The fingerprints of the traces that were read.
    pub(super) seen: BTreeSet<u64>,
    /// Traces with hardly a read, until there is a model.
    pub(super) few_reads: u64,
    /// All other traces, until they are enough to make groups of.
    pub(super) founding: Vec<Packed>,
    /// The model, from then on.
    pub(super) model: Option<ImageModel<Packed>>,
    pub(super) layers: Option<LayerMap>,
}

impl ImageKnowledge {
    pub(super) fn new(key: &RecordedImage, settings: KnowledgeSettings) -> Self {
        let disk_size = if key.size == 0 { DISK_MAX } else { key.size.min(DISK_MAX) };
        Self {
            settings,
            profile: Profile::default(),
            block_table: BlockTable::new(disk_size),
            seen: BTreeSet::new(),
            few_reads: 0,
            founding: Vec::new(),
            model: None,
            layers: None,
        }
    }

    /// Returns the profile of the image: its family, configuration and users, collected from the metadata of
    /// its disks.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the table of the blocks that traces of the image read.
    #[must_use]
    pub fn block_table(&self) -> &BlockTable {
        &self.block_table
    }

    /// Returns the number of traces that plans are made from. Until the groups of the image are final, this
    /// includes traces with unusually few or many blocks, which the groups leave out.
    #[must_use]
    pub fn traces(&self) -> u64 {
        self.model.as_ref().map_or(self.founding.len() as u64, ImageModel::traces)
    }

    /// Returns the metadata to expect of a further disk of the image: its family, its configuration, and its
    /// user if it has exactly one. Unknown values are empty.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        self.profile.metadata()
    }

    /// Returns the number of traces left out as outliers so far, by reason. Until the groups of the image are final,
    /// traces with unusually few or many blocks are those that would be left out if the groups were made now.
    #[must_use]
    pub fn dropped(&self) -> Dropped {
        let founding = || {
            let blocks = self.block_table.len();
            let counts: Vec<_> = self.founding.iter().map(|trace| trace.distinct(blocks)).collect();
            let bounds = bounds_of(counts.clone(), &self.settings.model);
            let count = |is_out: &dyn Fn(usize) -> bool| counts.iter().filter(|n| is_out(**n)).count() as u64;
            Dropped {
                few_reads: self.few_reads,
                few_blocks: count(&|distinct| distinct < *bounds.start()),
                many_blocks: count(&|distinct| distinct > *bounds.end()),
            }
        };
        self.model.as_ref().map_or_else(founding, ImageModel::dropped)
    }

    /// Returns the map from the slices of the disk to image layers; `None` if no map was set.
    #[must_use]
    pub fn layers(&self) -> Option<&LayerMap> {
        self.layers.as_ref()
    }

    /// Returns the groups of similar boots of the image, with the traces that are kept whole. Each call makes the
    /// groups again or unpacks their traces, which is slow.
    #[must_use]
    pub fn model(&self) -> ImageModel {
        if let Some(model) = &self.model {
            return model.unpacked(&self.block_table);
        }
        let mut model = ImageModel::learn(self.unpacked(), self.settings.model);
        model.drop_few_reads(self.few_reads);
        model
    }

    fn unpacked(&self) -> Vec<CompactTrace> {
        self.founding.iter().map(|trace| trace.unpack(&self.block_table)).collect()
    }

    pub(super) fn knows(&self, creation: &Creation) -> bool {
        fingerprint(creation).is_some_and(|print| self.seen.contains(&print))
    }

    /// Adds a trace that the list of a data set calls `creation`.
    pub(super) fn add(&mut self, creation: &Creation, trace: &Trace) {
        if let Some(print) = fingerprint(creation)
            && !self.seen.insert(print)
        {
            return;
        }
        self.profile.add(&Metadata::of(creation));
        let known = self.block_table.len();
        let mut compact = CompactTrace::of(trace, &mut self.block_table);
        if self.settings.faster > 1 {
            compact = compact.faster(self.settings.faster, &self.block_table);
        }
        if let Some(model) = &mut self.model {
            if model.add(&compact).is_none() {
                // A scan of the disk is no reason to keep all its blocks.
                self.block_table.truncate(known);
            }
        } else if compact.reads().len() < self.settings.model.reads_min {
            self.few_reads = self.few_reads.saturating_add(1);
            self.block_table.truncate(known);
        } else {
            self.founding.push(Packed::of(&compact));
            if self.founding.len() >= self.settings.founding.max(1) {
                self.found();
            }
        }
    }

    /// Makes groups of the traces so far, and forgets blocks that only outliers read.
    fn found(&mut self) {
        let traces = self.unpacked();
        let distinct = |trace: &CompactTrace| trace.first_accesses().len();
        let bounds = bounds_of(traces.iter().map(distinct).collect(), &self.settings.model);
        let mut block_table = BlockTable::new(self.block_table.disk_size());
        let is_inside = |trace: &&CompactTrace| bounds.contains(&distinct(trace));
        let number = |id: &BlockId| self.block_table.blocks()[*id as usize];
        let inside = traces.iter().filter(is_inside);
        let blocks: BTreeSet<u64> =
            inside.flat_map(|trace| trace.first_accesses().iter().map(number)).collect();
        block_table.add(&blocks.into_iter().collect::<Vec<_>>());
        let known = block_table.len();
        let renumbered = traces.iter().map(|trace| trace.renumbered(&self.block_table, &mut block_table));
        let mut model = ImageModel::learn(renumbered.collect(), self.settings.model);
        model.drop_few_reads(self.few_reads);
        block_table.truncate(known);
        (self.model, self.founding, self.few_reads) = (Some(model), Vec::new(), 0);
        self.block_table = block_table;
    }
}

/// The fingerprint of a creation's disk; `None` for one without a name.
fn fingerprint(creation: &Creation) -> Option<u64> {
    if creation.volume.is_empty() {
        return None;
    }
    let name = [creation.volume.as_bytes(), creation.host.as_bytes(), &creation.created_us.to_le_bytes()];
    Some(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &name.join(&0)))
}
