//! The settings of a simulation: of the engine, the link, and the guest's behaviour.
//!
//! There are two models: that of the ThinkAhead paper ([`Model::paper`]), and the realistic one ([`Model::real`]). The
//! table compares them:
//!
//! | subject | the paper's model | the realistic model |
//! |---|---|---|
//! | guest | open loop | closed loop |
//! | reads | the first [`PAPER_READS`] | all |
//! | link | no round trip, constant bandwidth | round trip, latency; bandwidth constant or as measured |
//! | answers | one after the other | at once, on connections that share the link |
//! | writes | change nothing (the paper's published simulator, its *artifact*, drops them) | written bytes are local |
//! | smallest part that becomes local | a block | [`UNIT`], the unit that the product's cache verifies |
//! | a miss brings | its blocks | its own bytes; the rest of its blocks follows ([`MissRest::Block`]) |
//! | an item of the plan brings | its block | the slices of its mask |
//! | background requests beside a miss | none starts | as many as the bandwidth-delay product has room for |
//! | order of preloads | exactly the plan's | the plan's, neighbours in one request |
//!
//! In the paper's model each request is for one block. A miss is sent next after the block that is on the link; several
//! misses are sent in the order of their arrival. A read whose block is on the link waits for that block. Preloading
//! begins with the disk's creation. All of this follows from the pull engine's rules under these settings; the
//! simulator has no such rules of its own.

use crate::link::{Connections, Failures, Latency, LinkBandwidth, LinkModel, Sharing};
use crate::world::Layout;
pub use crate::world::UNIT;
use headstart_pull::{BLOCK_SIZE, BackgroundSharing, EngineSettings, MissRest};
use std::time::Duration;

/// The number of reads at the start of a boot that the ThinkAhead paper's simulation counts, as its published
/// artifact does.
pub const PAPER_READS: usize = 3000;

/// The number of bytes that are compressed together in a compressed image.
const FRAME: u64 = 32 << 10;

/// Longer than any simulation.
const NEVER: Duration = Duration::from_secs(1 << 32);

/// The rule for the time at which a read arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayClock {
    /// Open loop: a read arrives at its recorded time, however long earlier reads waited.
    Open,
    /// Closed loop: a read arrives when all reads that it followed in the recording are answered, and its recorded
    /// think time has passed since the last of these answers.
    #[default]
    Closed,
}

/// The bytes that a miss (a read whose bytes are not local) waits for. Blocks have 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissPolicy {
    /// The read waits only for its own bytes. The setting says whether the rest of its blocks follows in the
    /// background.
    Own(MissRest),
    /// The read waits for all bytes of the blocks that it touches.
    Blocks,
}

/// The part of a plan that is preloaded: its slices (64 KiB), or the blocks (2 MiB) that they are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreloadUnit {
    /// The slices that the plan names.
    Slices,
    /// The whole blocks in which the plan names slices.
    Blocks,
}

/// All settings of a simulation except the boot and the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The rule for the time at which a read arrives.
    pub clock: ReplayClock,
    /// The maximum number of reads that are replayed, counted from the first.
    pub reads_max: usize,
    /// `true` if bytes that the guest has written are local from then on; `false` if writes are ignored.
    pub writes: bool,
    /// The link to the store.
    pub link: LinkModel,
    /// The bytes that a miss (a read whose bytes are not local) waits for.
    pub misses: MissPolicy,
    /// The part of a plan that is preloaded: its slices or whole blocks.
    pub preloads: PreloadUnit,
    /// The duration of a read whose bytes are all local, for decompression and the guest's path to the disk. Zero in
    /// [`Model::paper`] and [`Model::real`]. Every read's wait includes this duration.
    pub local_read: Duration,
    /// The rate in bytes a second at which the rest of the disk is filled in the background; `None`: no
    /// filling.
    pub fill_rate: Option<u64>,
    /// The length, in bytes, of each 32 KiB of the disk as stored in the compressed blob; `None` if the blob is
    /// uncompressed. Not used if the simulator has an image.
    pub stored: Option<u64>,
    /// `true` if each block (2 MiB) is fetched as a whole by one request and is local only as a whole, as in
    /// the ThinkAhead paper.
    pub one_stream: bool,
    /// `true` if every miss is reported to the engine. `false` if a miss within one block is not reported while another
    /// read waits for that block. The engine can only let such a read wait too, so `false` gives the same results
    /// faster; a test checks that.
    pub report_all: bool,
    /// The seed of all random numbers of the simulation.
    pub seed: u64,
}

impl Model {
    /// Returns the model of the ThinkAhead paper over a link of `rate` bytes a second, without filling. (The
    /// paper's artifact takes 2^20 bytes for an MB.)
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
            report_all: false,
            seed: 0,
        }
    }

    /// Returns the realistic model: the product's defaults over a link of `rate` bytes a second with this
    /// round trip.
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
            report_all: true,
            seed: 0,
        }
    }

    /// Returns the same model, except that misses wait for whole blocks (2 MiB) and whole blocks are
    /// preloaded.
    #[must_use]
    pub fn whole_blocks(self) -> Self {
        Self { misses: MissPolicy::Blocks, preloads: PreloadUnit::Blocks, ..self }
    }

    /// Returns the same model, except that the rest of the disk is filled as fast as the link allows.
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
