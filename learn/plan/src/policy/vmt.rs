//! `vmt-min`, `vmt-avg`: blocks by their earliest, or average, time of access in the training traces, counted from
//! each trace's first read (ThinkAhead paper, section 7, after *VMTorrent*, CoNEXT'12).

use crate::block_table::BlockId;
use crate::policy::{Aim, Policy, Training};

/// The policies that preload blocks in the order of time, by the times at which the training traces read each block.
#[derive(Clone, Copy, Debug)]
pub enum Vmt {
    /// `vmt-min`: by the earliest read.
    Min,
    /// `vmt-avg`: by the average time of the reads.
    Average,
}

impl Policy for Vmt {
    fn name(&self) -> &'static str {
        match self {
            Self::Min => "vmt-min",
            Self::Average => "vmt-avg",
        }
    }

    fn order(&self, training: &Training<'_>, aim: &Aim) -> Vec<BlockId> {
        let window = aim.objective.window();
        let time = |id: &BlockId| {
            let stats = training.statistics.blocks[*id as usize].by(window);
            match self {
                Self::Min => f64::from(stats.min_us),
                Self::Average => stats.average_us(),
            }
        };
        let blocks = training.block_table.blocks();
        let mut order: Vec<_> = training.statistics.read_blocks(window).map(|(id, _)| id).collect();
        order.sort_by(|a, b| time(a).total_cmp(&time(b)).then(blocks[*a as usize].cmp(&blocks[*b as usize])));
        order
    }
}
