//! The plan switcher, which chooses the plan of an image that a running boot follows (ThinkAhead paper, FAST'26,
//! section 5.3).
//!
//! An image has groups of recorded boots that are alike, each with plans for some bandwidths. A boot begins with the
//! plan of the largest group for the expected bandwidth, or for the lowest bandwidth if none is expected. Later the
//! boot may be switched to the plan of another group, or to the same group's plan for another bandwidth. The engine
//! skips those items of the new plan that are local already.
//!
//! *Group*. The blocks that the boot has read so far, in the order of first access, are compared with as many of the
//! first blocks of each group's centroid (its most typical boot). With `k` blocks read, the `i`-th block of either
//! order has the weight `k - i`, and a block that is missing in one of the orders has the weight 0 there. So blocks of
//! a centroid that the boot should have read by now and has not read count against that group; later blocks do not.
//! Once the boot has read [`SEEN_MIN`] blocks, each new block may switch it to another group. It is switched if the
//! correlation (Pearson's) with that group's centroid is above [`ALIKE`] and the highest of all, and one of these
//! conditions holds:
//!
//! * For [`STREAK`] new blocks in a row, the correlation is clearly higher than that with the present group's centroid,
//!   and its distance to 1 is at most half as large.
//! * At least [`EXPECTED`] of the boot's last 16 new blocks are among those that the other group's centroid has read by
//!   now or reads soon (within an eighth more blocks), and at most half as many are among those of the present
//!   group's centroid. When boots diverge after a long common beginning, the correlations hardly change, but
//!   these numbers do.
//!
//! After that, these rules leave the boot in its new group for at least [`SETTLED`] new blocks.
//!
//! *Bandwidth*. The range of a plan reaches from its own bandwidth to that of the group's next faster plan. If the
//! estimated bandwidth has been below the range of the present plan, or above it, for [`DWELL`], and by about an eighth
//! at least, the plan for the latest estimate is taken. If no bandwidth was expected, the first estimate is used at
//! once.
//!
//! The sums of the correlations are updated with each new block: the first access of a block costs a search among the
//! centroids' blocks and a few additions for each group, a later access only the search. Memory is bounded: only the
//! first [`SEEN_MAX`] blocks of each centroid are kept, and at most as many blocks that no centroid names. After
//! [`SEEN_MAX`] blocks a boot is not compared any more.

use headstart_block::{Plan, Time, exact};
use headstart_plan::{GroupPlans, ImagePlans, RatedPlan};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The correlation (-1 to 1) with a group's centroid, the typical order of its blocks, above which a boot can
/// be switched to that group (ThinkAhead paper, section 5.3).
pub const ALIKE: f64 = 0.7;
/// The number of new blocks in a row for which another group must fit the boot better than the present group does,
/// before the boot is switched to that other group.
pub const STREAK: u32 = 8;
/// The minimum number, of a boot's last 16 new blocks, for an immediate switch to another group: so many of them must
/// be blocks that the other group's centroid (its most typical boot) had read at the same point of the boot, or read
/// soon after it.
pub const EXPECTED: u32 = 12;
/// The number of blocks that a boot must have read before groups are first compared, because all boots of an
/// image begin alike.
pub const SEEN_MIN: u32 = 16;
/// The minimum number of new blocks between two switches of the group.
pub const SETTLED: u32 = 32;
/// The number of blocks read after which groups are no longer compared.
pub const SEEN_MAX: u32 = 4096;
/// The duration for which the estimated bandwidth must stay below, or above, the range of the present plan before
/// another plan is taken.
pub const DWELL: Duration = Duration::from_millis(500);
/// The least difference in correlation that counts.
const CLEAR: f64 = 0.02;

/// The place of a block that is not in a centroid, or not read yet.
const NONE: u32 = u32::MAX;

/// The numbers of switches between plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Switches to a plan of another group of boots.
    pub groups: u32,
    /// Switches to a plan of the same group for another bandwidth.
    pub bins: u32,
}

/// The choice among an image's plans: by the group of recorded boots that the current boot resembles, and by
/// the bandwidth of the link.
#[derive(Clone, Debug)]
pub struct Switcher {
    plans: Arc<ImagePlans>,
    group: usize,
    /// The index of the plan in the group.
    plan: usize,
    /// The bandwidth that the plan was chosen for.
    bandwidth: Option<u64>,
    /// The time since which the link has been faster, or slower, than the plan is for.
    outside: Option<(Side, Time)>,
    boot: Prefix,
    /// The group that the last few blocks spoke for, and their number.
    streak: (usize, u32),
    settled_at: u32,
    switches: Switches,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Slower,
    Faster,
}

impl Switcher {
    /// Creates the switcher of a disk that is just being created. `bandwidth` is the expected bandwidth in
    /// bytes a second; `None` if it is unknown: the first estimate is then used at once.
    #[must_use]
    pub fn new(plans: Arc<ImagePlans>, bandwidth: Option<u64>) -> Self {
        let group = plans.groups.iter().position(|group| !group.plans.is_empty()).unwrap_or(0);
        let boot = Prefix::new(&plans);
        let (outside, streak, settled_at) = (None, (0, 0), SEEN_MIN);
        let switches = Switches::default();
        let mut switcher =
            Self { plans, group, plan: 0, bandwidth, outside, boot, streak, settled_at, switches };
        switcher.plan = switcher.plan_for(bandwidth);
        switcher
    }

    /// The plan to preload now; [`Plan::Lazy`] if there is none.
    #[must_use]
    pub fn plan(&self) -> Plan {
        self.current().map_or(Plan::Lazy, |plan| Plan::List(Arc::clone(&plan.items)))
    }

    /// The plan that is followed, with its bandwidth and score; `None` if the image has no plans.
    #[must_use]
    pub fn current(&self) -> Option<&RatedPlan> {
        self.plans.groups.get(self.group)?.plans.get(self.plan)
    }

    /// The index, among the image's groups, of the group whose plan is followed; 0 if the image has no plans.
    #[must_use]
    pub fn group(&self) -> usize {
        self.group
    }

    /// The number of groups.
    pub(crate) fn groups(&self) -> usize {
        self.plans.groups.len()
    }

    /// A group, and its plan for the bandwidth by which plans are chosen now.
    pub(crate) fn plan_of(&self, group: usize) -> Option<(&GroupPlans, &RatedPlan)> {
        let plans = self.plans.groups.get(group)?;
        let plan = if group == self.group { self.plan } else { plans.index_at(self.bandwidth.unwrap_or(0)) };
        Some((plans, plans.plans.get(plan)?))
    }

    /// Goes to another group, whatever its centroid; returns the plan to preload from now on.
    pub(crate) fn take(&mut self, group: usize) -> Plan {
        self.streak.1 = 0;
        self.settled_at = self.boot.seen.max(SEEN_MIN).saturating_add(SETTLED);
        self.group = group;
        self.plan = self.plan_for(self.bandwidth);
        self.outside = None;
        self.switches.groups += 1;
        self.plan()
    }

    /// The numbers of switches so far.
    #[must_use]
    pub fn switches(&self) -> Switches {
        self.switches
    }

    /// The correlation of this boot's order of blocks so far with the typical order of a group (its
    /// centroid), from -1 to 1. `None` before the first read, for a group that does not exist, and if the
    /// image has only one group.
    #[must_use]
    pub fn correlation(&self, group: usize) -> Option<f64> {
        self.boot.correlation(group)
    }

    /// Records a read in the block (2 MiB) with number `block`. Every read may be reported; only the first one in a
    /// block counts. Returns the plan to preload from now on if it changes, otherwise `None`.
    pub fn on_access(&mut self, block: u64) -> Option<Plan> {
        if self.plans.groups.len() < 2 || !self.boot.access(block) || self.boot.seen < SEEN_MIN {
            return None;
        }
        let Some(better) = self.better_group() else {
            self.streak.1 = 0;
            return None;
        };
        let (better, at_once) = better;
        self.streak = (better, if self.streak.0 == better { self.streak.1 + 1 } else { 1 });
        if !at_once && self.streak.1 < STREAK || self.boot.seen < self.settled_at {
            return None;
        }
        Some(self.take(better))
    }

    /// The group that is clearly more like the boot than the own one: the most like, the largest of equals. The
    /// flag is `true` if the last blocks alone say so.
    fn better_group(&self) -> Option<(usize, bool)> {
        let own = self.boot.correlation(self.group)?;
        let mut best = (self.group, own);
        for (group, plans) in self.plans.groups.iter().enumerate() {
            let alike = self.boot.correlation(group)?;
            if alike > best.1 && !plans.plans.is_empty() {
                best = (group, alike);
            }
        }
        let (group, alike) = best;
        let clear = alike - own >= CLEAR && (1.0 - alike) * 2.0 <= 1.0 - own;
        let (expected, by_own) = (self.boot.expected(group), self.boot.expected(self.group));
        let at_once = expected >= EXPECTED && by_own * 2 <= expected;
        (group != self.group && alike > ALIKE && (clear || at_once)).then_some((group, at_once))
    }

    /// Records the estimate of the link's bandwidth at `now`, in bytes a second. Returns the plan to preload
    /// from now on if it changes, otherwise `None`.
    pub fn on_estimate(&mut self, now: Time, bandwidth: u64) -> Option<Plan> {
        let known = self.bandwidth.is_some();
        let Some(side) = self.side(bandwidth).filter(|_| known) else {
            self.outside = None;
            return if known { None } else { self.choose(bandwidth) };
        };
        match self.outside {
            Some((before, since)) if before == side => {
                if now.since(since) < DWELL {
                    return None;
                }
                self.choose(bandwidth)
            }
            _ => {
                self.outside = Some((side, now));
                None
            }
        }
    }

    /// Takes the plan for `bandwidth`, if it is another one.
    fn choose(&mut self, bandwidth: u64) -> Option<Plan> {
        self.bandwidth = Some(bandwidth);
        self.outside = None;
        let plan = self.plan_for(self.bandwidth);
        if plan == self.plan {
            return None;
        }
        self.plan = plan;
        self.switches.bins += 1;
        Some(self.plan())
    }

    /// The side of the current plan's range on which a bandwidth is, clear of the edge.
    fn side(&self, bandwidth: u64) -> Option<Side> {
        let plans = &self.plans.groups.get(self.group)?.plans;
        let slowest = self.plan == 0;
        let (own, next) = (plans.get(self.plan)?, plans.get(self.plan + 1));
        if !slowest && bandwidth.saturating_add(bandwidth / 8) < own.rate {
            Some(Side::Slower)
        } else {
            next.filter(|next| bandwidth - bandwidth / 8 >= next.rate).map(|_| Side::Faster)
        }
    }

    /// The index of the group's plan for a bandwidth: that of the nearest rate not above it; the slowest if it is
    /// unknown.
    fn plan_for(&self, bandwidth: Option<u64>) -> usize {
        self.plans.groups.get(self.group).map_or(0, |group| group.index_at(bandwidth.unwrap_or(0)))
    }
}

/// The first blocks of a boot beside those of the centroids.
#[derive(Clone, Debug)]
struct Prefix {
    /// The blocks that centroids name, ascending.
    blocks: Vec<u64>,
    /// For each of them and each group, block by block, its place in the centroid's order.
    ranks: Vec<u32>,
    /// For each of them, its place in the boot's order.
    seen_at: Vec<u32>,
    /// Blocks of the boot that no centroid names.
    strangers: BTreeSet<u64>,
    seen: u32,
    groups: Vec<Beside>,
}

/// A boot and a centroid side by side.
#[derive(Clone, Debug, Default)]
struct Beside {
    /// The centroid's blocks, by their places in the table of blocks.
    order: Vec<u32>,
    /// Blocks among the first `seen` of both.
    both: i64,
    /// The sum over them of both places.
    places: i64,
    /// The sum of the products of both places.
    products: i64,
    /// Bits of the boot's last blocks, set if the centroid had them by then or soon after, the latest lowest.
    expected: u16,
}

impl Beside {
    fn pair(&mut self, seen_at: u32, rank: u32) {
        self.both += 1;
        self.places += i64::from(seen_at) + i64::from(rank);
        self.products += i64::from(seen_at) * i64::from(rank);
    }

    /// The correlation after `seen` blocks. With at most 4096 of them all of this is exact.
    #[expect(clippy::cast_precision_loss, reason = "a correlation")]
    fn correlation(&self, seen: i64) -> f64 {
        let theirs = seen.min(exact(self.order.len(), "an order has at most SEEN_MAX blocks"));
        let all = seen + theirs - self.both;
        let squares = |upto: i64| upto * (upto + 1) * (2 * upto + 1) / 6;
        let (x, xx) = (seen * (seen + 1) / 2, squares(seen));
        let (y, yy) = (theirs * seen - theirs * (theirs - 1) / 2, squares(seen) - squares(seen - theirs));
        let xy = self.both * seen * seen - seen * self.places + self.products;
        let spreads = (all * xx - x * x) as f64 * (all * yy - y * y) as f64;
        if spreads <= 0.0 {
            return if self.both == seen && theirs == seen { 1.0 } else { 0.0 };
        }
        ((all * xy - x * y) as f64 / spreads.sqrt()).clamp(-1.0, 1.0)
    }
}

impl Prefix {
    fn new(plans: &ImagePlans) -> Self {
        // One group is not compared with anything.
        let groups = if plans.groups.len() < 2 { &[] } else { &plans.groups[..] };
        let orders: Vec<Vec<u64>> = groups
            .iter()
            .map(|group| {
                let mut known = BTreeSet::new();
                let first = group.centroid.order.iter().copied().filter(|block| known.insert(*block));
                first.take(SEEN_MAX as usize).collect()
            })
            .collect();
        let mut blocks = orders.concat();
        blocks.sort_unstable();
        blocks.dedup();
        let mut ranks = vec![NONE; blocks.len() * orders.len()];
        let mut beside = Vec::with_capacity(orders.len());
        for (group, order) in orders.iter().enumerate() {
            let mut places = Vec::with_capacity(order.len());
            for (rank, block) in (0..).zip(order) {
                let place = blocks.binary_search(block).unwrap_or_default();
                ranks[place * orders.len() + group] = rank;
                places.push(exact(place, "all orders together have fewer blocks than 32 bits count"));
            }
            beside.push(Beside { order: places, ..Beside::default() });
        }
        let seen_at = vec![NONE; blocks.len()];
        Self { blocks, ranks, seen_at, strangers: BTreeSet::new(), seen: 0, groups: beside }
    }

    /// Notes an access; returns `true` if it is the first of its block, and one more is to be compared.
    fn access(&mut self, block: u64) -> bool {
        if self.seen >= SEEN_MAX {
            return false;
        }
        let place = self.blocks.binary_search(&block).ok();
        match place {
            Some(place) if self.seen_at[place] != NONE => return false,
            Some(place) => self.seen_at[place] = self.seen,
            None if !self.strangers.insert(block) => return false,
            None => {}
        }
        let count = self.groups.len();
        for (group, beside) in self.groups.iter_mut().enumerate() {
            let rank = place.map_or(NONE, |place| self.ranks[place * count + group]);
            if rank <= self.seen {
                beside.pair(self.seen, rank);
            }
            let soon = self.seen.saturating_add(16 + self.seen / 8);
            beside.expected = beside.expected << 1 | u16::from(rank <= soon);
            // Their next block comes among the first: the boot may have read it before.
            let next = beside.order.get(self.seen as usize).map(|place| self.seen_at[*place as usize]);
            if let Some(seen_at) = next.filter(|seen_at| *seen_at < self.seen) {
                beside.pair(seen_at, self.seen);
            }
        }
        self.seen += 1;
        true
    }

    /// The number of the boot's last blocks that a group's centroid had by then or soon after.
    fn expected(&self, group: usize) -> u32 {
        self.groups.get(group).map_or(0, |beside| beside.expected.count_ones())
    }

    fn correlation(&self, group: usize) -> Option<f64> {
        let beside = self.groups.get(group)?;
        (self.seen > 0).then(|| beside.correlation(i64::from(self.seen)))
    }
}

#[cfg(test)]
mod tests;
