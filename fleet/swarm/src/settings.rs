//! A node's knobs.

use std::time::Duration;

/// The most chunks that have one home together: requests are not larger.
const STRIPE_MOST: u32 = 64;

/// No peer is waited for longer.
const PATIENCE_MOST: Duration = Duration::from_secs(3600);

/// Who tells whom what it has, and who is asked for what nobody is known to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// All hosts in a ring, in the order of their keys; each has its two neighbours. The paper's.
    Ring,
    /// Each has so many neighbours, drawn.
    Random(u32),
    /// Each has so many neighbours: those whose recent reads are most like its own, and one drawn.
    Similar(u32),
    /// Each agent has a root, and takes what it lacks from there or from that root's agents. Agents that see no root
    /// have drawn neighbours and homes among themselves.
    Roots,
    /// Hosts in a tree of so many children each, in the order of their keys, roots first; each takes what it lacks from
    /// its parent.
    Tree(u32),
}

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Who is whose neighbour.
    pub topology: Topology,
    /// Whether each chunk that nobody is known to have is asked of its *home*, one host for each chunk, so that the
    /// store is asked for it once. Of all hosts in a ring, a random or a similar topology; of the roots where there are
    /// roots. Without, everybody asks the store, as in the paper.
    pub homes: bool,
    /// Chunks that have one home together, and go into one request; at most 64.
    pub stripe: u32,
    /// How many unmatched (prefetched, unread) bytes of all that one disk reads stop prefetching for it. `None`: the
    /// smaller of 16 MiB and 512 KiB plus a hundredth of what it has read.
    pub threshold: Option<u64>,
    /// How many agents a root takes. `None`: twice its share.
    pub agents_max: Option<u32>,
    /// How long adverts are gathered before they are sent.
    pub advert_every: Duration,
    /// Bytes of prefetches that are asked for at once, of all peers together.
    pub prefetch_window: u64,
    /// Bytes that wait to be sent to others, beyond which a host is busy to who asks for what others have as well. A
    /// root or a home names others that have them long before: as soon as more waits than it sends in two
    /// milliseconds, but not before two chunks do.
    pub serve_window: u64,
    /// Chunks that a root sends unasked to an agent that is likely to want them next; 0: none.
    pub push: u32,
    /// The least and the most time until a request that somebody waits for is given up and made elsewhere.
    pub patience: (Duration, Duration),
    /// The seed of all that is drawn.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            topology: Topology::Random(4),
            homes: true,
            stripe: 4,
            threshold: None,
            agents_max: None,
            advert_every: Duration::from_millis(10),
            prefetch_window: 4 << 20,
            serve_window: 8 << 20,
            push: 0,
            patience: (Duration::from_millis(200), Duration::from_secs(5)),
            seed: 0,
        }
    }
}

impl Settings {
    /// How long a want, or a fetch for others, may take at most: so long only where this host's own fetches show that
    /// the store does. The one limit that those have who wait for a node: with a shorter one they would fetch
    /// themselves what others are fetching, and the slower the store, the more it would have to send.
    #[must_use]
    pub fn longest(&self) -> Duration {
        crate::patience::longest(self.clone().sane().patience.1)
    }

    /// Settings that make no sense are taken as the nearest that do.
    pub(crate) fn sane(mut self) -> Self {
        self.stripe = self.stripe.clamp(1, STRIPE_MOST);
        self.serve_window = self.serve_window.max(crate::CHUNK_SIZE);
        self.advert_every = self.advert_every.max(Duration::from_millis(1));
        self.patience.0 = self.patience.0.max(Duration::from_millis(1));
        self.patience.1 = self.patience.1.clamp(self.patience.0, PATIENCE_MOST.max(self.patience.0));
        self
    }
}
