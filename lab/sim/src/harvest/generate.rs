//! Drawing the parts of a fleet.

use super::fleet::{Fleet, FleetSettings, RegularVm};
use super::{regular, requests, unsold};
use headstart_predictors::series::DemandSeries;
use std::sync::Arc;

impl Fleet {
    /// Draws a fleet with the statistics of the paper's section 2.
    #[must_use]
    pub fn generate(settings: &FleetSettings) -> Self {
        Self::with(settings, regular::generate(settings))
    }

    /// Draws the same fleet, but the use of regular VMs follows demand series: each VM takes one of each kind from a
    /// drawn moment on, and repeats it from its beginning when it ends. The highest level is all that the VM owns.
    #[must_use]
    pub fn replay(
        settings: &FleetSettings,
        bandwidth: &[Arc<DemandSeries>],
        capacity: &[Arc<DemandSeries>],
    ) -> Self {
        Self::with(settings, regular::replay(settings, bandwidth, capacity))
    }

    fn with(settings: &FleetSettings, vms: Vec<RegularVm>) -> Self {
        Self {
            settings: settings.clone(),
            regular_servers: vms.last().map_or(0, |vm| vm.server + 1),
            vms,
            server_gigabytes: unsold::SERVER_GB,
            lots: unsold::generate(settings),
            requests: requests::generate(settings),
        }
    }
}
