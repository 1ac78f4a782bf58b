//! The settings of a broker.

use crate::gssd::Grain;
use std::time::Duration;

/// The settings of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerSettings {
    /// The units in which gSSDs are made and requested. A gSSD that was erased goes to the pool only if the lender is
    /// expected to spare it for at least `grain.lasts`; otherwise the gSSD goes back to the lender.
    pub grain: Grain,
    /// Number of gSSDs that a regular VM's vSSD lends at once, at least 1; 1 in the BlockFlex paper. An unsold vSSD
    /// lends one for each unit ([`Self::grain`]) of its channels or of its capacity, whichever are fewer.
    pub per_home: usize,
    /// The interval at which each gSSD gets the expiry of its lender's newest forecast, and expired gSSDs leave the
    /// pool. At least a second.
    pub redate_every: Duration,
    /// Number of consecutive forecasts, at least 1, that must say that a lender needs its flash back before a
    /// leased gSSD is taken back. A gSSD in the pool goes back at the first such forecast.
    pub forecasts_to_reclaim: u32,
    /// `true` to take a leased gSSD back also if its lender is forecast to need bandwidth but no capacity.
    /// `false` by default: the lender's I/O has priority on its channels anyway, and only the harvest VM
    /// becomes slower.
    pub reclaim_for_bandwidth: bool,
    /// The growth, in percent, at which a gSSD in the pool is replaced by a larger one. The flash that the lender can
    /// spare by now must exceed the gSSD by at least this share in bandwidth or in capacity, and must not be less than
    /// the gSSD in the other. Only the gSSD of a lender that lends no other is replaced. Checked every
    /// [`redate_every`](Self::redate_every). A replacement costs an erasure of each block. `None`: gSSDs are not
    /// replaced by larger ones.
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
            forecasts_to_reclaim: 1,
            reclaim_for_bandwidth: false,
            regrow_percent: Some(25),
            overstay: None,
            journal: true,
        }
    }
}

impl BrokerSettings {
    /// Returns the settings that hosts use: the defaults, with `forecasts_to_reclaim` at `u32::MAX`. So a leased gSSD
    /// is never taken back because of a forecast. A lender that needs more than was forecast first uses the margin that
    /// its forecasts kept back. When that is used up, lent flash is taken back at once.
    #[must_use]
    pub fn of_hosts() -> Self {
        Self { forecasts_to_reclaim: u32::MAX, ..Self::default() }
    }

    /// The settings with senseless values replaced by the nearest sensible ones.
    pub(crate) fn sane(mut self) -> Self {
        self.grain = self.grain.sane();
        self.per_home = self.per_home.max(1);
        self.forecasts_to_reclaim = self.forecasts_to_reclaim.max(1);
        self.redate_every = self.redate_every.max(Duration::from_secs(1));
        self
    }
}
