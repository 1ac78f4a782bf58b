//! The settings of a simulation: of the engine, the link, and the guest's behaviour.
//!
//! | | the paper's | the real one |
//! |---|---|---|
//! | guest | open loop | closed loop |
//! | reads | the first [`PAPER_READS`] | all |
//! | link | one stream: no round trip, constant bandwidth | round trip, latency, depth, a series if measured |
//! | answers | one after the other | at once, on connections that share the link |
//! | writes | change nothing (its artifact drops them) | written bytes are local |
//! | local together | a block | [`UNIT`], the unit that the product's cache verifies |
//! | a miss brings | its blocks | its own bytes, and the rest of its blocks behind the preloads |
//! | a preload brings | the block | the slices of its mask |
//! | beside a miss | nothing starts | as much as the bandwidth-delay product leaves room for |
//! | order of preloads | the plan's, to the letter | the plan's, neighbours in one request |
//!
//! In the paper's model a request is a block; a miss goes next after the block on the wire, misses among themselves
//! in the order of their arrival; a read that finds its block on the wire waits for it; preloading begins with the
//! creation. That all follows from the engine's rules under these settings, and is not a rule of the simulator.

use crate::link::{Connections, Failures, Latency, LinkBandwidth, LinkModel, Sharing};
use crate::world::Layout;
pub use crate::world::UNIT;
use headstart_pull::{BLOCK_SIZE, BackgroundSharing, EngineSettings, MissRest};
use std::time::Duration;

/// The number of reads that the paper's model counts, as its artifact does.
pub const PAPER_READS: usize = 3000;

/// The number of bytes that are compressed together in a compressed image.
const FRAME: u64 = 32 << 10;

/// Longer than any simulation.
const NEVER: Duration = Duration::from_secs(1 << 32);

/// The time at which a read arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayClock {
    /// As recorded, whatever the waits.
    Open,
    /// Its think time after the reads that it followed.
    #[default]
    Closed,
}

/// The bytes that a miss waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissPolicy {
    /// Its own bytes. The rest of its blocks follows in the background, or not.
    Own(MissRest),
    /// All bytes of its blocks.
    Blocks,
}

/// The part of a plan that is preloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreloadUnit {
    /// The slices that the plan names.
    Slices,
    /// The whole blocks that it names.
    Blocks,
}

/// Everything about a simulation except the boot and the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The time at which reads arrive.
    pub clock: ReplayClock,
    /// The most reads that are replayed, from the first.
    pub reads_max: usize,
    /// `true` if bytes that the guest wrote are local from then on.
    pub writes: bool,
    /// The way to the store.
    pub link: LinkModel,
    /// The bytes that a miss waits for.
    pub misses: MissPolicy,
    /// The part of a plan that is preloaded.
    pub preloads: PreloadUnit,
    /// The time that a read takes which has all its bytes: decompressing, the guest's own way to the disk. It is part
    /// of its wait.
    pub local_read: Duration,
    /// Fill the disk behind everything else, at this many bytes a second.
    pub fill_rate: Option<u64>,
    /// Bytes of the blob as stored for each 32 KiB of the disk; `None` if it is stored uncompressed.
    pub stored: Option<u64>,
    /// `true` if a block is one unit, one request, there or not there: the published behaviour.
    pub one_stream: bool,
    /// `true` if reads of one block that is awaited already are told to the engine, which can only let them wait as
    /// well. Without this it is faster, and a test shows that nothing else changes.
    pub tell_all: bool,
    /// The seed of everything that is drawn.
    pub seed: u64,
}

impl Model {
    /// The paper's model, at `rate` bytes a second (its artifact's MB are 2^20 bytes). Filling is off.
    #[must_use]
    pub fn paper(rate: u64) -> Self {
        Self {
            clock: ReplayClock::Open,
            reads_max: PAPER_READS,
            writes: false,
            link: link(rate, Duration::ZERO, Sharing::InTurn),
            misses: MissPolicy::Blocks,
            preloads: PreloadUnit::Blocks,
            local_read: Duration::ZERO,
            fill_rate: None,
            stored: None,
            one_stream: true,
            tell_all: false,
            seed: 0,
        }
    }

    /// The real model: the product's defaults over a link of `rate` bytes a second.
    #[must_use]
    pub fn real(rate: u64, round_trip: Duration) -> Self {
        Self {
            clock: ReplayClock::Closed,
            reads_max: usize::MAX,
            writes: true,
            link: link(rate, round_trip, Sharing::Evenly(Connections::default())),
            misses: MissPolicy::Own(MissRest::Block),
            preloads: PreloadUnit::Slices,
            local_read: Duration::ZERO,
            fill_rate: None,
            stored: None,
            one_stream: false,
            tell_all: true,
            seed: 0,
        }
    }

    /// The same model with whole blocks only, of misses and of preloads.
    #[must_use]
    pub fn whole_blocks(self) -> Self {
        Self { misses: MissPolicy::Blocks, preloads: PreloadUnit::Blocks, ..self }
    }

    /// The same model that fills the rest of the disk as fast as the link allows.
    #[must_use]
    pub fn with_fill(self) -> Self {
        Self { fill_rate: Some(u64::MAX), ..self }
    }

    pub(crate) fn layout(&self, disk_size: u64) -> Layout {
        let stored = self.stored.map_or(FRAME, |stored| stored.max(1));
        let unit = match self.one_stream {
            false => UNIT,
            true => (BLOCK_SIZE / FRAME).saturating_mul(stored),
        };
        Layout { disk_size, frame: FRAME, stored, unit }
    }

    pub(crate) fn settings(&self) -> EngineSettings {
        let rest = match self.misses {
            MissPolicy::Own(rest) => rest,
            MissPolicy::Blocks => MissRest::None,
        };
        let product = EngineSettings {
            miss_rest: rest,
            deadline: NEVER,
            reads_max: usize::MAX,
            seed: self.seed,
            ..EngineSettings::default()
        };
        let by_blocks = self.misses == MissPolicy::Blocks;
        let miss_max = if by_blocks { product.miss_max.max(BLOCK_SIZE) } else { product.miss_max };
        if !self.one_stream {
            return EngineSettings { miss_max, ..product };
        }
        let block = self.layout(0).unit;
        EngineSettings {
            unit: block,
            gap: 0,
            miss_max: block,
            miss_requests: usize::MAX,
            background_min: block,
            background_max: block,
            stream_max: block,
            stream_min: u64::MAX,
            depth_min: 1,
            depth_max: 1,
            look_ahead: 0,
            bypass_late: false,
            sharing: BackgroundSharing::Strict,
            ..product
        }
    }
}

fn link(rate: u64, round_trip: Duration, sharing: Sharing) -> LinkModel {
    let (latency, failures) = (Latency::default(), Failures::default());
    LinkModel { bandwidth: LinkBandwidth::Constant(rate), round_trip, latency, failures, sharing }
}
