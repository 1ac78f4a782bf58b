//! The engine's settings. The defaults are for a disk that a virtual machine boots from.

use std::time::Duration;

/// The treatment of the other bytes of a block (2 MiB) after a read missed in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissRest {
    /// Fetch the rest of the block too, because the guest probably reads on there. It comes after the plan's preloads;
    /// or before them once a second read misses in the block, or after the first on a link that brings a whole block
    /// within four round trips. If blocks are missed in a row, the blocks behind them are fetched too. The rest is not
    /// fetched if the plan names the missed slices (64 KiB), because the plan then predicts better which bytes are
    /// read.
    #[default]
    Block,
    /// Fetch no more of the block than the read needs. Filling the disk may bring the rest.
    None,
}

/// The background fetches that are allowed while fetches for misses (reads that wait) are on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackgroundSharing {
    /// Use the part of the bandwidth-delay product that the misses in flight leave free. Otherwise a guest
    /// that waits a round trip for each read would keep the link idle, and preloading would never get ahead
    /// of it.
    #[default]
    Fill,
    /// Start no background fetch while a miss is outstanding, as the ThinkAhead paper describes. A baseline
    /// for comparison.
    Strict,
}

/// The settings for retrying failed fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The pause after the first failure. It doubles with each further failure; the real pause is drawn at
    /// random between half of this value and all of it. 100 ms by default.
    pub first: Duration,
    /// The longest pause between two tries. 5 seconds by default.
    pub most: Duration,
    /// The number of corrupt answers to one fetch after which the fetch is abandoned and the reads that wait for it
    /// fail; before that, it is retried without a pause. 3 by default, at least 1.
    pub corrupt_limit: u32,
}

/// The settings of the engine. Sizes are in bytes; values out of range are replaced by the nearest valid
/// ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// The unit in which the cache verifies bytes. A range that needs several requests is cut at multiples of this
    /// unit, counted from the start of the range. 16 KiB by default.
    pub unit: u64,
    /// The maximum number of bytes between two missing ranges of a blob for which both ranges are fetched by one
    /// request. The request then includes the bytes between them. 16 KiB by default.
    pub gap: u64,
    /// The largest request for a miss (a read whose bytes are not local). A longer range becomes several
    /// parallel requests. 1 MiB by default.
    pub miss_max: u64,
    /// The maximum number of requests for misses in flight, not counting background requests that reads wait for. 32 by
    /// default.
    pub miss_requests: usize,
    /// The size that a background request may have in any case, however slow the link seems. 64 KiB by
    /// default.
    pub background_min: u64,
    /// The largest background request, however fast the link is. 1 MiB by default.
    pub background_max: u64,
    /// The largest background request for blocks that follow each other both in the plan and in one blob. 64
    /// MiB by default; a value up to [`background_max`](Self::background_max) means that such requests are no
    /// longer than others.
    pub stream_max: u64,
    /// The size above which a preload is streamed: its bytes are used as they arrive. 256 KiB by default.
    /// Filling is not streamed, because a stream claims only its next bytes, and another process that fills
    /// the same disk would fetch the same ones.
    pub stream_min: u64,
    /// The minimum number of background requests kept in flight while there is work, no read waits, no fetch is
    /// streamed and the store has not just failed. 2 by default.
    pub depth_min: usize,
    /// The maximum number of background requests in flight. 64 by default.
    pub depth_max: usize,
    /// The distance that the engine looks ahead in a plan, counted in requests: ranges within this distance that are
    /// neighbours in a blob are merged into one request. 2 by default. 0 keeps the plan's order exactly: only parts of
    /// one item are fetched together.
    pub look_ahead: u64,
    /// `true` (the default) if a miss requests its bytes itself when the background request that has them is
    /// late. With `false` the miss waits, and no byte is fetched twice.
    pub bypass_late: bool,
    /// The treatment of the other bytes of a block after a read missed in it. [`MissRest::Block`] by default.
    pub miss_rest: MissRest,
    /// The background fetches that are allowed while fetches for misses are on their way.
    /// [`BackgroundSharing::Fill`] by default.
    pub sharing: BackgroundSharing,
    /// The maximum duration for which a read waits before it fails, and for which a background fetch is retried after
    /// its first failure before it is abandoned. 5 minutes by default.
    pub deadline: Duration,
    /// The settings for retrying failed fetches.
    pub retry: Retry,
    /// The maximum number of waiting reads; a further read fails at once. 65,536 by default.
    pub reads_max: usize,
    /// The maximum number of blocks whose other bytes wait to be fetched; for a further block the oldest is
    /// dropped. 4,096 by default.
    pub rest_max: usize,
    /// The seed of the random part of retry pauses: the same seed and events give the same actions.
    pub seed: u64,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            unit: 16 << 10,
            gap: 16 << 10,
            miss_max: 1 << 20,
            miss_requests: 32,
            background_min: 64 << 10,
            background_max: 1 << 20,
            stream_max: 64 << 20,
            stream_min: 256 << 10,
            depth_min: 2,
            depth_max: 64,
            look_ahead: 2,
            bypass_late: true,
            miss_rest: MissRest::Block,
            sharing: BackgroundSharing::Fill,
            deadline: Duration::from_secs(300),
            retry: Retry::default(),
            reads_max: 1 << 16,
            rest_max: 4096,
            seed: 0,
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { first: Duration::from_millis(100), most: Duration::from_secs(5), corrupt_limit: 3 }
    }
}

impl EngineSettings {
    /// Makes sizes whole units and limits at least one: settings that make no sense become the nearest that do.
    pub(crate) fn sane(mut self) -> Self {
        self.unit = self.unit.max(1);
        let sizes =
            [&mut self.miss_max, &mut self.background_min, &mut self.background_max, &mut self.stream_max];
        for size in sizes {
            *size = (*size - *size % self.unit).max(self.unit);
        }
        self.background_max = self.background_max.max(self.background_min);
        self.stream_max = self.stream_max.max(self.background_max);
        self.miss_requests = self.miss_requests.max(1);
        self.depth_min = self.depth_min.max(1);
        self.depth_max = self.depth_max.max(self.depth_min);
        self.retry.corrupt_limit = self.retry.corrupt_limit.max(1);
        self
    }
}
