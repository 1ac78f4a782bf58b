//! A model in a file: groups with their statistics and packed traces.
//!
//! Centroids are not stored: each is the first of its group's kept traces.

use super::{Dropped, Group, ImageModel, Kept, ModelSettings};
use crate::block_table::BlockTable;
use crate::compact_trace::{CompactTrace, Packed};
use crate::encoding::{Reader, Writer};
use crate::similarity::{Feature, Vector};
use crate::statistics::Statistics;
use headstart_block::{Error, Result};

impl ModelSettings {
    pub(crate) fn write(&self, writer: &mut Writer) {
        let Self { reads_min, trim, compared_max, kept_max, alike, feature, seed } = *self;
        writer.len(reads_min);
        writer.float(trim);
        writer.len(compared_max);
        writer.len(kept_max);
        writer.float(alike);
        writer.number(match feature {
            Feature::Order => 0_u8,
            Feature::Counts => 1,
        });
        writer.number(seed);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let (reads_min, trim) = (reader.number()?, reader.float()?);
        let (compared_max, kept_max) = (reader.number()?, reader.number()?);
        let alike = reader.float()?;
        let feature = match reader.u64()? {
            0 => Feature::Order,
            1 => Feature::Counts,
            _ => return Err(Error::corrupt("has an unknown comparison")),
        };
        if !(0.0..=0.5).contains(&trim) || !(-1.0..=1.0).contains(&alike) {
            return Err(Error::corrupt("has settings that make no sense"));
        }
        Ok(Self { reads_min, trim, compared_max, kept_max, alike, feature, seed: reader.u64()? })
    }
}

impl Dropped {
    pub(crate) fn write(&self, writer: &mut Writer) {
        [self.few_reads, self.few_blocks, self.many_blocks].iter().for_each(|count| writer.number(*count));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self { few_reads: reader.u64()?, few_blocks: reader.u64()?, many_blocks: reader.u64()? })
    }
}

impl ImageModel<Packed> {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.numbers(self.cuts.iter().map(|cut| *cut as u64));
        writer.len(self.bounds.0);
        writer.len(self.bounds.1);
        self.dropped.write(writer);
        writer.len(self.groups.len());
        for group in &self.groups {
            writer.len(group.category);
            group.statistics.write(writer);
            writer.len(group.kept.len());
            group.kept.iter().for_each(|trace| trace.write(writer));
        }
    }

    pub(crate) fn read(
        reader: &mut Reader<'_>,
        settings: ModelSettings,
        block_table: &BlockTable,
    ) -> Result<Self> {
        let cuts = reader.numbers()?.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
        let cuts = cuts.map_err(|_| Error::corrupt("has a number that is too large"))?;
        let bounds = (reader.number()?, reader.number()?);
        let dropped = Dropped::read(reader)?;
        let count = reader.count(8)?;
        let mut groups = Vec::with_capacity(count);
        for _ in 0..count {
            let category = reader.number()?;
            if category > cuts.len() {
                return Err(Error::corrupt("has a group of a category that there is none of"));
            }
            let statistics = Statistics::read(reader, block_table.len())?;
            let count = reader.count(3)?;
            let kept: Result<Vec<_>> = (0..count).map(|_| Packed::read(reader, block_table.len())).collect();
            let kept = kept?;
            let Some(first) = kept.first() else { return Err(Error::corrupt("has a group of no traces")) };
            let centroid = Vector::of(&first.unpack(block_table), settings.feature);
            groups.push(Group { category, statistics, centroid, kept });
        }
        Ok(Self { settings, cuts, bounds, groups, dropped })
    }

    /// Returns the model with its kept traces unpacked; `block_table` must be the table that the traces were made with.
    #[must_use]
    pub fn unpacked(&self, block_table: &BlockTable) -> ImageModel<CompactTrace> {
        let group = |group: &Group<Packed>| Group {
            category: group.category,
            statistics: group.statistics.clone(),
            centroid: group.centroid.clone(),
            kept: group.kept.iter().map(|trace| trace.unpack(block_table)).collect(),
        };
        ImageModel {
            settings: self.settings,
            cuts: self.cuts.clone(),
            bounds: self.bounds,
            groups: self.groups.iter().map(group).collect(),
            dropped: self.dropped,
        }
    }
}

impl<K: Kept> ImageModel<K> {
    /// Counts a trace that has too few reads to be seen at all.
    pub(crate) fn drop_few_reads(&mut self, count: u64) {
        self.dropped.few_reads = self.dropped.few_reads.saturating_add(count);
    }
}
