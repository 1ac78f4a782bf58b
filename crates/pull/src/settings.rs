//! The engine's knobs. The defaults are for a disk that a virtual machine boots from.

use std::time::Duration;

/// What to do with the rest of a block when a read missed in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rest {
    /// Bring it too: who reads here reads on. Behind the plan's preloads, but before them when a second read misses in
    /// the block. Not where the plan names what was missed: then it knows better what is read there.
    #[default]
    Block,
    /// Leave it to the left queue.
    None,
}

/// What background work may do while misses are on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Fill what the misses in flight leave of the bandwidth-delay product: a guest that waits a round trip for each of
    /// its reads would otherwise keep the link idle, and preloading would never get ahead of it.
    #[default]
    Fill,
    /// Start nothing until no miss is outstanding: the published behaviour, and the baseline.
    Strict,
}

/// When to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The pause after the first failure; doubled after each. The real one is drawn from its upper half.
    pub first: Duration,
    /// The longest pause.
    pub most: Duration,
    /// How many wrong answers to one fetch it takes to fail the reads that wait for it.
    pub corrupt_limit: u32,
}

/// Everything that can be set. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Requests are cut at multiples of this from their start: the unit that the cache verifies.
    pub unit: u64,
    /// Missing ranges of a blob with at most this between them become one request.
    pub gap: u64,
    /// The largest request of a miss; a longer one becomes several, in parallel.
    pub miss_max: u64,
    /// The most requests of misses in flight.
    pub miss_requests: usize,
    /// The smallest limit on a background request, however slow the link seems.
    pub background_min: u64,
    /// The largest background request, however fast the link.
    pub background_max: u64,
    /// The largest background request for what a plan names one after the other and what lies so in one blob. At most
    /// [`background_max`](Self::background_max): there are none longer than others.
    pub stream_max: u64,
    /// Preloads longer than this are streamed. What fills the disk is not: who fills the same one beside it would fetch
    /// the same bytes, since a stream claims only what comes next.
    pub stream_min: u64,
    /// The fewest background requests in flight, where there is work and no miss.
    pub depth_min: usize,
    /// The most background requests in flight.
    pub depth_max: usize,
    /// How far ahead in a plan neighbours are looked for that can become one request, in requests. 0 keeps the plan's
    /// order exactly: only what is of one item goes out together.
    pub look_ahead: u64,
    /// Whether a miss that finds its bytes on their way in a background request asks for them itself when that request
    /// is late. Without, it waits: nothing is ever fetched twice.
    pub rescue: bool,
    /// What to do with the rest of a block that missed.
    pub miss_rest: Rest,
    /// What background work may do while misses are on their way.
    pub sharing: Sharing,
    /// How long a read waits before it fails; and how long a background fetch is tried before it is left to whoever
    /// reads it.
    pub deadline: Duration,
    /// When to try again.
    pub retry: Retry,
    /// The most reads that wait; one more fails at once.
    pub reads_max: usize,
    /// The most blocks that wait for their rest; the oldest is dropped for one more.
    pub rest_max: usize,
    /// The seed of the jitter in back-offs: the same seed and events give the same actions.
    pub seed: u64,
}

impl Default for Settings {
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
            rescue: true,
            miss_rest: Rest::Block,
            sharing: Sharing::Fill,
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

impl Settings {
    /// Makes sizes whole units and limits at least one: settings that make no sense are taken as the nearest that do.
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
