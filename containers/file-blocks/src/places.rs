//! The places of a file's content in the file that it comes from, such as the tar of a container's layer.
//!
//! The runs of a file follow each other there without gaps, from a first place on. Disks and layers count in sectors of
//! 512 bytes, so a run can be referred to if it lies at the same offset within a sector in both; that is so for files
//! without holes in a tar, and for nearly all others. A sector that is only in part the file's counts if everything
//! else in it is zeros, as behind the end of a file in a tar.

use headstart_block::{Result, to_usize};
use std::ops::Range;

/// Bytes of a sector.
const SECTOR: u64 = 512;

/// Sectors of 512 bytes that another file has, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSectors {
    /// The range of the bytes that were given; both ends are multiples of 512.
    pub bytes: Range<usize>,
    /// The offset of the first byte in the other file, a multiple of 512.
    pub place: u64,
}

/// The runs of a file, each with its place.
pub(crate) struct Places(Vec<(Range<u64>, u64)>);

impl Places {
    /// The places of runs, the first of which is at byte `first`.
    pub(crate) fn new(runs: &[Range<u64>], first: u64) -> Self {
        let mut place = first;
        let with_place = |run: &Range<u64>| {
            let own = place;
            place = place.saturating_add(run.end - run.start);
            (run.clone(), own)
        };
        Self(runs.iter().map(with_place).collect())
    }

    /// The sectors in a range of the file, which begins with a sector, and ends with one or with the file.
    /// `ends_in_zeros` is asked when all content is before the range's end, and its last sector is only in part the
    /// file's.
    pub(crate) fn sectors(
        &self,
        range: Range<u64>,
        ends_in_zeros: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<Vec<FoundSectors>> {
        let mut found = Vec::new();
        let first = self.0.partition_point(|(run, _)| run.end <= range.start);
        for (number, (run, place)) in self.0.iter().enumerate().skip(first) {
            if run.start >= range.end {
                break;
            }
            let from = run.start.max(range.start).next_multiple_of(SECTOR);
            let place = place.saturating_add(from - run.start);
            let mut to = run.end.min(range.end);
            if !to.is_multiple_of(SECTOR) {
                let is_last = number + 1 == self.0.len() && to == run.end;
                let has_whole = is_last && place.is_multiple_of(SECTOR) && from < to && ends_in_zeros()?;
                to = if has_whole { to.next_multiple_of(SECTOR) } else { to - to % SECTOR };
            }
            if from < to && place.is_multiple_of(SECTOR) {
                found.push(FoundSectors {
                    bytes: to_usize(from - range.start)..to_usize(to - range.start),
                    place,
                });
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sectors(runs: &[Range<u64>], first: u64, range: Range<u64>, zeros: bool) -> Vec<(Range<usize>, u64)> {
        let found = Places::new(runs, first).sectors(range, &mut || Ok(zeros)).unwrap();
        found.into_iter().map(|found| (found.bytes, found.place)).collect()
    }

    #[test]
    fn a_whole_file_is_found_with_the_padding_of_its_tar() {
        let whole = std::iter::once(0..5000).collect::<Vec<_>>();
        assert_eq!(sectors(&whole, 1536, 0..5000, true), [(0..5120, 1536)]);
        assert_eq!(sectors(&whole, 1536, 0..5000, false), [(0..4608, 1536)]);
        assert_eq!(sectors(&whole, 1536, 4096..5000, true), [(0..1024, 5632)]);
        assert_eq!(sectors(&whole, 1536, 0..4096, true), [(0..4096, 1536)]);
        assert_eq!(sectors(&whole, 1537, 0..5000, true), []);
        assert_eq!(sectors(&[], 0, 0..4096, true), []);
    }

    #[test]
    fn runs_between_holes_are_found_where_they_lie_alike() {
        // The second run is moved by less than a sector, the third one not.
        let runs = [0..1000, 4096..4096 + 2048, 9216..9216 + 536, 20_000..20_001];
        assert_eq!(sectors(&runs, 512, 0..12_288, true), [(0..512, 512)]);
        let runs = [0..1024, 4096..4096 + 2048, 9216..9216 + 536];
        let found = sectors(&runs, 0, 0..12_288, true);
        assert_eq!(found, [(0..1024, 0), (4096..6144, 1024), (9216..10_240, 3072)]);
        assert_eq!(sectors(&runs, 0, 0..12_288, false).last(), Some(&(9216..9728, 3072)));
    }

    proptest! {
        #[test]
        fn found_sectors_have_the_bytes_of_the_file(
            lengths in prop::collection::vec(
                (prop_oneof![Just(512_u64), 0..3000_u64], prop_oneof![Just(1024_u64), 1..3000_u64]),
                0..6,
            ),
            first in (0..4_u64, prop_oneof![Just(0_u64), 0..512_u64]).prop_map(|(sector, more)| sector * 512 + more),
            parts in 1..4_u64,
            zeros: bool,
        ) {
            let mut at = 0;
            let mut runs = Vec::new();
            for (hole, data) in lengths {
                runs.push(at + hole..at + hole + data);
                at += hole + data;
            }
            // Byte n of the data is n + 1, so that zeros are holes and padding.
            let (mut file, mut tar) = (vec![0_u32; to_usize(at)], vec![u32::MAX; to_usize(first)]);
            for run in &runs {
                for byte in run.clone() {
                    file[to_usize(byte)] = u32::try_from(tar.len()).unwrap() + 1;
                    tar.push(file[to_usize(byte)]);
                }
            }
            tar.resize(tar.len().next_multiple_of(512), if zeros { 0 } else { u32::MAX });
            let len = parts * 4096;
            let mut last = 0;
            for start in (0..at).step_by(to_usize(len)) {
                let range = start..(start + len).min(at);
                let mut block = file[to_usize(range.start)..to_usize(range.end)].to_vec();
                block.resize(block.len().next_multiple_of(4096), 0);
                for (bytes, place) in sectors(&runs, first, range.clone(), zeros) {
                    let place = to_usize(place);
                    prop_assert!([bytes.start, bytes.end, place].iter().all(|at| at.is_multiple_of(512)));
                    prop_assert!(to_usize(start) + bytes.start >= last);
                    prop_assert_eq!(&block[bytes.clone()], &tar[place..place + bytes.len()]);
                    last = to_usize(start) + bytes.end;
                }
            }
        }
    }
}
