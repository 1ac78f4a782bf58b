//! A broker's knobs.

use crate::gssd::Grain;
use std::time::Duration;

/// The settings of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerSettings {
    /// The units in which gSSDs are made and requested. A gSSD that is given back does not go to the pool if
    /// its lender is expected to need it within `grain.lasts`.
    pub grain: Grain,
    /// Number of gSSDs that a regular VM's vSSD lends at once, at least 1; 1 in the BlockFlex paper. An
    /// unsold vSSD lends as many as it has channels.
    pub per_home: usize,
    /// The interval at which the expiry of gSSDs is set by the newest forecasts, and expired ones leave the
    /// pool.
    pub redate_every: Duration,
    /// Number of consecutive forecasts, at least 1, that must say that a lender needs its flash back before a
    /// leased gSSD is taken back. A gSSD in the pool goes back at the first such forecast.
    pub patience: u32,
    /// `true` to take a leased gSSD back also if its lender is forecast to need bandwidth but no capacity.
    /// `false` by default: the lender's I/O has priority on its channels anyway, and only the harvest VM
    /// becomes slower.
    pub reclaim_for_bandwidth: bool,
    /// The surplus from which on a gSSD in the pool is replaced by a larger one: the flash that its lender can
    /// spare beyond it, in percent of its size. Checked at each re-dating. A replacement costs an erasure of each
    /// block. `None`: gSSDs are not replaced by larger ones.
    pub regrow_percent: Option<u32>,
    /// The duration for which a harvest VM may keep a gSSD beyond the requested time, as long as the lender does
    /// not need the flash. `None`: no limit.
    pub overstay: Option<Duration>,
    /// `true` to give out the steps that a journal needs. With `false`, as in simulated fleets, the state
    /// cannot be recovered.
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
    /// Returns the settings that hosts use: the defaults, with `patience` at `u32::MAX`. So no number of forecasts
    /// takes a leased gSSD back; the lender has the margin of its forecasts until it needs the flash at once.
    #[must_use]
    pub fn of_hosts() -> Self {
        Self { patience: u32::MAX, ..Self::default() }
    }

    /// The settings with senseless values replaced by the nearest sensible ones.
    pub(crate) fn sane(mut self) -> Self {
        self.grain = self.grain.sane();
        self.per_home = self.per_home.max(1);
        self.patience = self.patience.max(1);
        self.redate_every = self.redate_every.max(Duration::from_secs(1));
        self
    }
}
