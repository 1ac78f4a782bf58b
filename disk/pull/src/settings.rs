//! The engine's settings. The defaults are for a disk that a virtual machine boots from.

use std::time::Duration;

/// The treatment of the rest of a block when a read missed in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissRest {
    /// Bring it too, because the guest probably reads on there. Behind the plan's preloads, but before them when a
    /// second read misses in the block. Not if the plan names the missed slices: then it knows better what is read
    /// there.
    #[default]
    Block,
    /// Leave it to the fill queue.
    None,
}

/// The background work that is allowed while misses are on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackgroundSharing {
    /// Fill the part of the bandwidth-delay product that the misses in flight leave: a guest that waits a round
    /// trip for each of its reads would otherwise keep the link idle, and preloading would never get ahead of it.
    #[default]
    Fill,
    /// Start nothing until no miss is outstanding: the published behaviour, and the baseline.
    Strict,
}

/// The settings of retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The pause after the first failure; doubled after each. The real pause is drawn from its upper half.
    pub first: Duration,
    /// The longest pause.
    pub most: Duration,
    /// The number of wrong answers to one fetch after which the reads that wait for it fail.
    pub corrupt_limit: u32,
}

/// All settings of the engine. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// The unit that the cache verifies: requests are cut at multiples of it from their start.
    pub unit: u64,
    /// The largest gap between missing ranges of a blob that become one request.
    pub gap: u64,
    /// The largest request of a miss; a longer one becomes several, in parallel.
    pub miss_max: u64,
    /// The most requests of misses in flight.
    pub miss_requests: usize,
    /// The smallest limit on a background request, however slow the link seems.
    pub background_min: u64,
    /// The largest background request, however fast the link.
    pub background_max: u64,
    /// The largest background request for blocks that a plan names one after the other and that are stored so in
    /// one blob. At most [`background_max`](Self::background_max): there are none longer than others.
    pub stream_max: u64,
    /// The length above which preloads are streamed. Filling is not streamed: another process that fills the same
    /// disk would fetch the same bytes, because a stream claims only its next bytes.
    pub stream_min: u64,
    /// The fewest background requests in flight, where there is work and no miss.
    pub depth_min: usize,
    /// The most background requests in flight.
    pub depth_max: usize,
    /// The distance in a plan, in requests, within which neighbours are joined to one request. 0 keeps the plan's
    /// order exactly: only parts of one item go out together.
    pub look_ahead: u64,
    /// `true` if a miss that finds its bytes on their way in a background request asks for them itself when that
    /// request is late. With `false`, it waits: nothing is ever fetched twice.
    pub bypass_late: bool,
    /// The treatment of the rest of a block that missed.
    pub miss_rest: MissRest,
    /// The background work that is allowed while misses are on their way.
    pub sharing: BackgroundSharing,
    /// The time that a read waits before it fails, and for which a background fetch is tried before it is left to
    /// later reads.
    pub deadline: Duration,
    /// The settings of retries.
    pub retry: Retry,
    /// The most reads that wait; one more fails at once.
    pub reads_max: usize,
    /// The most blocks that wait for their rest; the oldest is dropped for one more.
    pub rest_max: usize,
    /// The seed of the jitter in back-offs: the same seed and events give the same actions.
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
