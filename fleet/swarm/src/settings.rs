//! The settings of a node (the state machine of one host), and the topologies by which hosts choose their neighbours.

use std::time::Duration;

/// The most chunks that have one designated fetcher together: requests are not larger.
const STRIPE_MOST: u32 = 64;

/// The most that a node waits for a peer.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// The rule for choosing the neighbours of a host, which exchange adverts, and the host from which a chunk is
/// requested if no peer is known to have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A ring of all hosts, in the order of their keys; each has its two neighbours. For comparison with published
    /// designs.
    Ring,
    /// The given number of neighbours for each host, drawn at random from all hosts.
    Random(u32),
    /// The given number of neighbours for each host: those whose recent reads are most like its own, and one that is
    /// drawn at random.
    Similar(u32),
    /// A root for each agent: the agent takes the chunks that it lacks from that root or from the root's other agents.
    /// Agents that see no root have neighbours that are drawn at random, and designated fetchers among themselves.
    Roots,
    /// A tree of hosts with the given number of children each, in the order of their keys, roots first; each host takes
    /// the chunks that it lacks from its parent.
    Tree(u32),
}

/// All settings of a [`Node`](crate::Node).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// The rule by which neighbours are chosen.
    pub topology: Topology,
    /// `true` if a chunk that no peer is known to have is requested from its *designated fetcher*, one host for each
    /// chunk, so that the store is asked for the chunk only once. In the topologies `Ring`, `Random` and `Similar`
    /// every host can be a designated fetcher; in a topology with roots only roots can. If `false`, every host asks the
    /// store, as in "Optimizing multi-deployment on clouds by means of self-adaptive prefetching" (Euro-Par 2011).
    pub designated_fetchers: bool,
    /// The number of consecutive chunks that form a stripe, 1 to 64. A stripe has one designated fetcher, and
    /// a request contains at most one stripe.
    pub stripe: u32,
    /// Limit for each disk, in bytes: prefetching for a disk stops while this many bytes of its blobs were prefetched
    /// and are not read yet. `None`: 512 KiB plus a hundredth of the bytes that the disk has read, at most 16
    /// MiB.
    pub threshold: Option<u64>,
    /// The largest number of agents that a root accepts, at least 1. `None`: twice the mean number of agents
    /// for each root.
    pub agents_max: Option<u32>,
    /// The interval between two batches of adverts, at least 1 ms: adverts are collected for this long, then
    /// sent together.
    pub advert_every: Duration,
    /// Limit of the bytes of prefetches that are requested and have not come yet, over all peers together.
    pub prefetch_window: u64,
    /// Limit of the bytes that wait to be sent, at least one chunk. Above it, a host answers "busy" to
    /// requests for chunks that other hosts also have. A root or a designated fetcher already redirects
    /// requests to other hosts when the waiting bytes exceed both two chunks and the amount that it sends in
    /// two milliseconds.
    pub serve_window: u64,
    /// Limit of the chunks that a root sends to an agent without a request, because the agent will probably want them
    /// next: the number of chunks after each place in the chains of recent requests where the agent is at present. 0
    /// switches this off.
    pub push: u32,
    /// The minimum and the maximum of the timeout of a request that a read waits for, after which the request
    /// goes to another host or to the store. The timeout is longer if the store is slow or the peer has
    /// promised to answer. No command-line option changes this.
    pub timeout_range: (Duration, Duration),
    /// The seed of all pseudo-random choices. The same seed and the same events give the same actions.
    pub seed: u64,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            topology: Topology::Random(4),
            designated_fetchers: true,
            stripe: 4,
            threshold: None,
            agents_max: None,
            advert_every: Duration::from_millis(10),
            prefetch_window: 4 << 20,
            serve_window: 8 << 20,
            push: 0,
            timeout_range: (Duration::from_millis(200), Duration::from_secs(5)),
            seed: 0,
        }
    }
}

impl NodeSettings {
    /// The longest time that a node may take to answer a want, or to fetch a chunk for other hosts. A node takes
    /// that long only if the store has been that slow for this host. A caller that waits for a node should use
    /// no shorter timeout: otherwise the caller would fetch chunks itself that other hosts are fetching already, and
    /// load a slow store even more.
    #[must_use]
    pub fn longest(&self) -> Duration {
        crate::retransmit_timer::longest(self.clone().clamped().timeout_range.1)
    }

    /// Replaces settings that make no sense by the nearest ones that do.
    pub(crate) fn clamped(mut self) -> Self {
        self.stripe = self.stripe.clamp(1, STRIPE_MOST);
        self.serve_window = self.serve_window.max(crate::CHUNK_SIZE);
        self.advert_every = self.advert_every.max(Duration::from_millis(1));
        self.timeout_range.0 = self.timeout_range.0.max(Duration::from_millis(1));
        self.timeout_range.1 =
            self.timeout_range.1.clamp(self.timeout_range.0, TIMEOUT_MAX.max(self.timeout_range.0));
        self
    }
}
