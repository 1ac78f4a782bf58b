//! Drawing the parts of a fleet.

use super::fleet::{Fleet, FleetSettings, RegularVm};
use super::{regular, requests, unsold};
use headstart_predictors::series::DemandSeries;
use std::sync::Arc;

impl Fleet {
    /// Draws a fleet with the statistics of section 2 of BlockFlex (OSDI 2022).
    #[must_use]
    pub fn generate(settings: &FleetSettings) -> Self {
        Self::with(settings, regular::generate(settings))
    }

    /// Draws a fleet like [`Fleet::generate`], but regular VMs use storage as in recorded series. Each VM
    /// takes one series of each kind, from a random moment on, and repeats it when it ends. A series' highest
    /// level stands for everything that the VM owns; without series, a VM uses nothing.
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
