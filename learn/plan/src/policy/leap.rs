//! `leap`: follows the trend of the last accesses (Leap, USENIX ATC'20, sections 3.2 and 3.3; ThinkAhead paper, section
//! 7).
//!
//! Leap watches the differences between the addresses of consecutive accesses; here, between the numbers of blocks. A
//! difference that the majority of the last few accesses share is the *trend*. Leap looks for it among the last four
//! differences, then among twice as many, and so on up to 32 (by Boyer and Moore's majority vote, with a check).
//! Along the trend it preloads a window of blocks. The window grows, up to eight blocks, with the number of preloaded
//! blocks that were read since the last window, and shrinks by half at most. Without a trend, the last trend is used.

use crate::block_table::BlockId;
use crate::evaluate::Online;
use crate::policy::{Aim, Policy, Training};
use std::collections::{BTreeSet, VecDeque};

/// The policy `leap`, which decides during the boot: it preloads blocks along the trend of the last accesses
/// ([`Trend`]).
#[derive(Clone, Copy, Debug)]
pub struct Leap;

/// Differences that are remembered.
const HISTORY: usize = 32;
/// The number of differences that are examined first.
const FIRST: usize = 4;
/// The most blocks of a window.
const WINDOW: usize = 8;

impl Policy for Leap {
    fn name(&self) -> &'static str {
        "leap"
    }

    fn order(&self, _: &Training<'_>, _: &Aim) -> Vec<BlockId> {
        Vec::new()
    }

    fn online(&self) -> Option<Box<dyn Online>> {
        Some(Box::new(Trend::default()))
    }
}

/// The state of the policy `leap` during one boot: the differences between the numbers of the last accessed blocks,
/// and the blocks that were preloaded.
#[derive(Clone, Debug, Default)]
pub struct Trend {
    last: Option<u64>,
    /// The last differences, the latest first.
    differences: VecDeque<i64>,
    trend: Option<i64>,
    window: usize,
    preloaded: BTreeSet<u64>,
    /// Preloaded blocks that were read since the last window.
    used: usize,
}

impl Trend {
    /// The difference that most of the last few share.
    fn majority(&self) -> Option<i64> {
        let mut len = FIRST;
        while len <= HISTORY {
            let seen = self.differences.len().min(len);
            let (mut candidate, mut votes) = (0, 0_usize);
            for difference in self.differences.iter().take(seen) {
                match votes {
                    0 => (candidate, votes) = (*difference, 1),
                    _ if *difference == candidate => votes += 1,
                    _ => votes -= 1,
                }
            }
            let count = self.differences.iter().take(seen).filter(|other| **other == candidate).count();
            if seen > 0 && count > seen / 2 {
                return Some(candidate);
            }
            len *= 2;
        }
        None
    }

    /// Handles an access of another block than the last. Returns the window of blocks to preload.
    fn on_block(&mut self, block: u64) -> Option<Vec<u64>> {
        self.used += usize::from(self.preloaded.remove(&block));
        let last = self.last.replace(block)?;
        let difference = i64::try_from(i128::from(block) - i128::from(last)).ok()?;
        if difference == 0 {
            return None;
        }
        self.differences.push_front(difference);
        self.differences.truncate(HISTORY);
        let found = self.majority();
        let follows = found == Some(difference);
        let wanted = match self.used {
            0 => usize::from(follows),
            used => (used + 1).next_power_of_two().min(WINDOW),
        };
        self.window = wanted.max(self.window / 2);
        self.used = 0;
        self.trend = found.or(self.trend);
        let trend = self.trend?;
        let steps = (1..).take(self.window);
        let window: Vec<_> =
            steps.map_while(|step: i64| block.checked_add_signed(trend.checked_mul(step)?)).collect();
        self.preloaded.extend(&window);
        Some(window)
    }
}

impl Online for Trend {
    fn on_read(&mut self, blocks: &[u64]) -> Option<Vec<u64>> {
        let mut window = None;
        for block in blocks {
            window = self.on_block(*block).or(window);
        }
        window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_a_stride() {
        let mut trend = Trend::default();
        let windows: Vec<_> =
            [10, 13, 16, 19].map(|block| trend.on_read(&[block]).unwrap_or_default()).into();
        assert_eq!(windows, [vec![], vec![16], vec![19, 22], vec![22, 25]]);
    }

    #[test]
    fn a_stray_does_not_break_the_trend() {
        let mut trend = Trend::default();
        for block in [10, 11, 12, 13, 500] {
            trend.on_read(&[block]);
        }
        assert_eq!(trend.majority(), Some(1));
        assert_eq!(trend.on_read(&[500]), None, "the same block says nothing");
    }

    #[test]
    fn a_trend_ends_at_the_start_of_the_disk() {
        let mut trend = Trend::default();
        for block in [5, 3] {
            trend.on_read(&[block]);
        }
        assert_eq!(trend.on_read(&[1]), Some(vec![]));
    }
}
