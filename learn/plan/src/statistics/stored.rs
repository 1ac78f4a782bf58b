//! Statistics in a file.

use super::{AccessTimes, BlockStats, Statistics};
use crate::encoding::{Reader, Writer};
use headstart_block::{Error, Result};

/// The mark of a block whose counted reads are all its reads.
const SAME: u8 = 1;

impl AccessTimes {
    fn write(&self, writer: &mut Writer) {
        writer.number(self.traces);
        if self.traces == 0 {
            return;
        }
        // More reads than traces, and the average first read later than the earliest: small differences.
        writer.number(self.count.wrapping_sub(u64::from(self.traces)));
        writer.number(self.min_us);
        writer.number(self.first_sum_us);
        writer.number(self.sum_us.wrapping_sub(self.first_sum_us));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let traces: u32 = reader.number()?;
        if traces == 0 {
            return Ok(Self::default());
        }
        let more = reader.u64()?;
        let (min_us, first_sum_us) = (reader.number()?, reader.u64()?);
        let later = reader.u64()?;
        let sum = |a: u64, b: u64| a.checked_add(b).ok_or_else(|| Error::corrupt("has too large a sum"));
        let (count, sum_us) = (sum(u64::from(traces), more)?, sum(first_sum_us, later)?);
        Ok(Self { count, traces, min_us, sum_us, first_sum_us })
    }
}

impl BlockStats {
    fn write(&self, writer: &mut Writer) {
        self.all.write(writer);
        writer.number(u8::from(self.all == self.counted));
        if self.all != self.counted {
            self.counted.write(writer);
        }
        let read = |count: &u32| *count > 0;
        let mask =
            (0..).zip(&self.slices).filter(|(_, count)| read(count)).fold(0_u32, |m, (i, _)| m | 1 << i);
        writer.number(mask);
        // Mostly the number of all traces of the block.
        self.slices.iter().filter(|count| read(count)).for_each(|count| {
            writer.signed(i64::from(self.all.traces) - i64::from(*count));
        });
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let all = AccessTimes::read(reader)?;
        let counted = if reader.u64()? == u64::from(SAME) { all } else { AccessTimes::read(reader)? };
        let mask: u32 = reader.number()?;
        let mut slices = [0; 32];
        for (_, count) in (0..).zip(&mut slices).filter(|(slice, _): &(u32, _)| mask >> slice & 1 == 1) {
            let fewer = i64::from(all.traces).checked_sub(reader.signed()?);
            *count = fewer
                .and_then(|count| u32::try_from(count).ok())
                .ok_or_else(|| Error::corrupt("has a count that makes no sense"))?;
        }
        Ok(Self { all, counted, slices })
    }
}

impl Statistics {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.number(self.traces);
        writer.number(self.reads);
        writer.number(self.max_us);
        writer.number(self.counted_max_us);
        writer.number(self.grace_sum_us);
        writer.len(self.blocks.len());
        self.blocks.iter().for_each(|block| block.write(writer));
    }

    /// Reads statistics of at most `blocks_max` blocks.
    pub(crate) fn read(reader: &mut Reader<'_>, blocks_max: usize) -> Result<Self> {
        let (traces, reads) = (reader.number()?, reader.u64()?);
        let (max_us, counted_max_us) = (reader.number()?, reader.number()?);
        let grace_sum_us = reader.u64()?;
        // At least one number each for traces, sameness and slices.
        let count = reader.count(3)?;
        if count > blocks_max {
            return Err(Error::corrupt("has statistics of more blocks than there are"));
        }
        let blocks = (0..count).map(|_| BlockStats::read(reader)).collect::<Result<_>>()?;
        Ok(Self { traces, reads, max_us, counted_max_us, grace_sum_us, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_table::BlockTable;
    use crate::testing::{Read, trace};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stored_statistics_round_trip(
            traces in prop::collection::vec(
                prop::collection::vec((0_u32..500, 0_u64..20, 0_u64..30, 1_u64..40), 0..40), 0..6),
        ) {
            let mut block_table = BlockTable::new(1 << 30);
            let mut statistics = Statistics::default();
            for mut reads in traces {
                reads.sort_unstable();
                let reads: Vec<Read> = reads;
                statistics.add(&trace(&reads, &mut block_table));
            }
            let mut writer = Writer::default();
            statistics.write(&mut writer);
            let mut reader = Reader::new(&writer.bytes);
            prop_assert_eq!(Statistics::read(&mut reader, block_table.len()).unwrap(), statistics.clone());
            prop_assert!(reader.end().is_ok());
            if !statistics.blocks.is_empty() {
                let fewer = statistics.blocks.len() - 1;
                prop_assert!(Statistics::read(&mut Reader::new(&writer.bytes), fewer).is_err());
            }
        }
    }
}
