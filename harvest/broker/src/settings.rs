//! A broker's knobs.

use crate::gssd::Grain;
use std::time::Duration;

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerSettings {
    /// The units in which gSSDs are made. A released gSSD whose lender needs it within `grain.lasts` is not pooled.
    pub grain: Grain,
    /// gSSDs that one lender whose VM runs lends at a time, at least 1; the paper's is 1. An unsold one lends as many
    /// as it has channels.
    pub per_home: usize,
    /// The interval at which gSSDs are re-dated, and expired ones leave the pool.
    pub redate_every: Duration,
    /// Forecasts in a row that say that a lender needs blocks back, until a gSSD in use is taken from its harvest VM:
    /// at least 1. One in the pool goes back to the lender at the first.
    pub patience: u32,
    /// `true` if a forecast of less bandwidth (and not of less capacity) takes a gSSD back as well. Not by default: the
    /// lender's I/O goes first on its channels in any case, so that only the harvest VM is slower.
    pub reclaim_for_bandwidth: bool,
    /// The surplus that the lender of a pooled gSSD must have to spare, in percent of the gSSD, for it to be made again
    /// when gSSDs are re-dated; `None`: never. That costs an erasure of each of its blocks.
    pub regrow_percent: Option<u32>,
    /// The time for which a harvest VM may keep a gSSD beyond its request, while its lender does not need it. `None`:
    /// as long as the lender does not.
    pub overstay: Option<Duration>,
    /// `true` if steps are given out to be journalled. Without (simulated fleets) nothing can be recovered.
    pub journal: bool,
}

impl Default for BrokerSettings {
    fn default() -> Self {
        Self {
            grain: Grain::default(),
            per_home: 1,
            redate_every: Duration::from_secs(15 * 60),
            patience: 1,
            reclaim_for_bandwidth: false,
            regrow_percent: Some(25),
            overstay: None,
            journal: true,
        }
    }
}

impl BrokerSettings {
    /// The settings with senseless values replaced by the nearest sensible ones.
    pub(crate) fn sane(mut self) -> Self {
        self.grain = self.grain.sane();
        self.per_home = self.per_home.max(1);
        self.patience = self.patience.max(1);
        self.redate_every = self.redate_every.max(Duration::from_secs(1));
        self
    }
}
