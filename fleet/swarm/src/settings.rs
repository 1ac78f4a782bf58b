//! A node's knobs.

use std::time::Duration;

/// The most chunks that have one designated fetcher together: requests are not larger.
const STRIPE_MOST: u32 = 64;

/// The most that a node waits for a peer.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// The rule by which hosts send adverts to each other, and by which one is asked for a chunk that none is known to
/// have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A ring of all hosts, in the order of their keys; each has its two neighbours. The topology of the paper.
    Ring,
    /// The given number of neighbours for each host, drawn.
    Random(u32),
    /// The given number of neighbours for each host: those whose recent reads are most like its own, and one drawn.
    Similar(u32),
    /// A root for each agent, which takes the chunks that it lacks from there or from that root's other agents. Agents
    /// that see no root have drawn neighbours and designated fetchers among themselves.
    Roots,
    /// A tree of hosts with the given number of children each, in the order of their keys, roots first; each host takes
    /// the chunks that it lacks from its parent.
    Tree(u32),
}

/// All settings of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// The rule for neighbours.
    pub topology: Topology,
    /// `true` if each chunk that no peer is known to have is requested from its *designated fetcher*, one host for each
    /// chunk, so that the store is asked for it once. In a ring, a random or a similar topology, any host can be one;
    /// where there are roots, the roots. If `false`, every host asks the store, as in the paper.
    pub designated_fetchers: bool,
    /// The number of chunks that have one designated fetcher together, and go into one request; at most 64.
    pub stripe: u32,
    /// The limit of unmatched (prefetched, unread) bytes of all blobs that one disk reads, at which prefetching for it
    /// stops. `None`: the smaller of 16 MiB and 512 KiB plus a hundredth of the bytes that the disk has read.
    pub threshold: Option<u64>,
    /// The number of agents that a root takes. `None`: twice its share.
    pub agents_max: Option<u32>,
    /// The time for which adverts are gathered before they are sent.
    pub advert_every: Duration,
    /// Bytes of prefetches that are requested at once, from all peers together.
    pub prefetch_window: u64,
    /// Bytes that wait to be sent, beyond which a host answers "busy" to requests for chunks that other hosts have as
    /// well. A root or a designated fetcher refers askers to other hosts that have them long before: as soon as the
    /// waiting bytes exceed what it sends in two milliseconds, but not before they exceed two chunks.
    pub serve_window: u64,
    /// The number of chunks that a root sends, without a request, to an agent that is likely to want them next; 0:
    /// none.
    pub push: u32,
    /// The least and the most time until a request that a read waits for is given up and made to another host or the
    /// store; a slow store and promises lengthen it. No option of a program changes it.
    pub timeout_range: (Duration, Duration),
    /// The seed of all that is drawn.
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
    /// The most time that a want, or a fetch for other hosts, may take: so long only if this host's own fetches show
    /// that the store takes as long. This is the only limit for those that wait for a node: with a shorter limit they
    /// would themselves fetch what other hosts are fetching, and the slower the store, the more it would have to send.
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
