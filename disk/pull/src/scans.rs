//! Reading ahead: blocks that are missed one after the other are read on beyond the last.
//!
//! A scan of a large file, or of the disk, misses at the beginning of each block that nothing has brought, and waits
//! there for a round trip. From the third block in a row on, the blocks behind it come along: one, then twice as many
//! with each block that shows that the scan goes on, up to [`AHEAD_MAX`]. Several scans may go on at once. A boot's
//! reads hardly ever look like one.

use std::ops::Range;

/// Blocks in a row that make a scan.
const IN_A_ROW: u32 = 3;

/// Blocks that are brought ahead of a scan at most.
const AHEAD_MAX: u64 = 4;

/// Scans that are told apart.
const SCANS: usize = 4;

/// Blocks that were missed in a row.
#[derive(Clone, Copy, Debug)]
struct Run {
    last: u64,
    /// The first block that was not asked for.
    ahead: u64,
    blocks: u32,
    window: u64,
}

/// The runs of blocks that reads miss in, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Scans(Vec<Run>);

impl Scans {
    /// Notes that a read missed in `block`. Returns the blocks to bring behind it; empty unless it is part of a scan.
    pub(crate) fn missed(&mut self, block: u64) -> Range<u64> {
        let run = self.0.iter().position(|run| (run.last..=run.ahead).contains(&block));
        let mut run = match run {
            Some(known) => self.0.remove(known),
            None => Run { last: block, ahead: block.saturating_add(1), blocks: 1, window: 1 },
        };
        let mut ahead = 0..0;
        if block > run.last {
            run.blocks = run.blocks.saturating_add(1);
            run.last = block;
            let behind = block.saturating_add(1);
            run.ahead = run.ahead.max(behind);
            if run.blocks >= IN_A_ROW {
                ahead = run.ahead..run.ahead.max(behind.saturating_add(run.window));
                run.ahead = ahead.end;
                run.window = (run.window * 2).min(AHEAD_MAX);
            }
        }
        if self.0.len() >= SCANS {
            self.0.remove(0);
        }
        self.0.push(run);
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_read_ahead_further_and_further() {
        let mut scans = Scans::default();
        let ahead: Vec<_> = [7, 8, 8, 9, 10, 11, 12].map(|block| scans.missed(block)).into();
        assert_eq!(ahead, [0..0, 0..0, 0..0, 10..11, 11..13, 13..16, 16..17]);
        // If the blocks ahead were there in time, the next miss is behind them.
        assert_eq!(scans.missed(17), 18..22);
        assert_eq!(scans.missed(22), 23..27);
    }

    #[test]
    fn several_scans_go_on_at_once_and_strays_are_none() {
        let mut scans = Scans::default();
        let mut ahead = Vec::new();
        for n in 0..3 {
            ahead.extend([scans.missed(100 + n), scans.missed(200 + n), scans.missed(5000 - 10 * n)]);
        }
        assert_eq!(ahead[6..], [103..104, 203..204, 0..0]);
        assert!([9, 7, 5, 3, 1, 2].into_iter().all(|block| scans.missed(block).is_empty()));
        assert_eq!(scans.missed(u64::MAX), 0..0);
    }
}
