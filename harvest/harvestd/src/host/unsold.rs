//! Unsold storage: the time since which it has been there, and the times of past storage (BlockFlex, section 4.4.1).
//!
//! Nothing can be learned from the load of unused storage. But the time for which vSSDs of a size stay unsold is
//! stable, so histograms of it give the remaining time of one, [`Unsold`]; while they have too little data,
//! [`unsold_lasts`](HostSettings::unsold_lasts) is used. It is computed again with every step, as the vSSD gets older.
//! The time since which each is there, and the times of the last ones, are in the journal.

use super::meta::{Meta, Sold};
use super::options::HostSettings;
use super::volume::Volume;
use super::{Control, Host};
use headstart_block::{Result, Time, exact};
use headstart_broker::BrokerEvent;
use headstart_flash::journal::JournalRecord;
use headstart_flash::{VssdId, VssdKind};
use headstart_forecast::unsold::ENOUGH;
use headstart_forecast::{Forecast, Unsold};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The number of sold vSSDs that are remembered beyond a restart: several times the need of a histogram, some 10 KiB.
const REMEMBERED: usize = 1000;

/// The present unsold vSSDs, and the times of past ones.
#[derive(Default)]
pub(crate) struct UnsoldInventory {
    since: BTreeMap<VssdId, Time>,
    sold: VecDeque<Sold>,
    histograms: Unsold,
    /// The time at which the durations are to be computed again.
    next: Time,
}

impl UnsoldInventory {
    /// Adds an unsold vSSD that has been there since `since`.
    pub(crate) fn put(&mut self, vssd: VssdId, since: Time) {
        self.since.insert(vssd, since);
    }

    /// Removes one that is sold: returns the record to remember of it, once.
    pub(crate) fn take(&mut self, vssd: VssdId, size: u64, now: Time) -> Option<Sold> {
        let since = self.since.remove(&vssd)?;
        let sold = Sold { size, lasted_s: now.since(since).as_secs() };
        self.remember(sold);
        Some(sold)
    }

    /// Removes one that was never there.
    pub(crate) fn forget(&mut self, vssd: VssdId) {
        self.since.remove(&vssd);
    }

    /// Remembers one that was sold.
    pub(crate) fn remember(&mut self, sold: Sold) {
        self.histograms.ended(sold.size, Duration::from_secs(sold.lasted_s));
        self.sold.push_back(sold);
        if self.sold.len() > REMEMBERED {
            self.sold.pop_front();
        }
    }

    /// The time for which one is expected to stay unsold from now on.
    fn lasts(&self, vssd: VssdId, size: u64, now: Time, settings: &HostSettings) -> Duration {
        let age = self.since.get(&vssd).map(|since| now.since(*since)).unwrap_or_default();
        if self.histograms.known(size, age) < ENOUGH {
            return settings.unsold_lasts;
        }
        self.histograms.lasts(size, age, settings.unsold_cover)
    }

    /// The records for the journal.
    pub(crate) fn records(&self) -> Result<Vec<JournalRecord>> {
        let mut records = Vec::with_capacity(self.since.len() + 1);
        for (vssd, since) in &self.since {
            records.push(Meta::Since { vssd: *vssd, at_us: since.0 }.record()?);
        }
        if !self.sold.is_empty() {
            records.push(Meta::Sold(self.sold.iter().copied().collect()).record()?);
        }
        Ok(records)
    }
}

impl Host {
    /// The offer of all of an unsold vSSD, for the time that it is expected to last.
    pub(super) fn offer_unsold(&self, control: &mut Control, volume: &Volume) -> BrokerEvent {
        let usage = volume.read().vssd.usage();
        let lasts = control.inventory.lasts(volume.id, self.size_of(volume), self.time(), &self.settings);
        let bandwidth = exact(volume.channels().len(), "a channel has one owner, and a number of 16 bits");
        let forecast = Forecast { bandwidth, capacity: usage.blocks + usage.lent, lasts };
        if let Some(sampler) = control.samples.get_mut(&volume.id) {
            sampler.set_forecast(forecast);
        }
        super::sampling::event(volume.id, forecast)
    }

    /// The offers of all that are unsold, if it is time to.
    pub(super) fn offer_all_unsold<'a>(
        &self,
        control: &mut Control,
        now: Time,
        volumes: impl Iterator<Item = &'a Volume>,
    ) -> Vec<BrokerEvent> {
        if now < control.inventory.next {
            return Vec::new();
        }
        control.inventory.next = now + self.settings.step;
        let there = volumes.filter(|volume| volume.kind == VssdKind::Unsold && volume.check().is_ok());
        there.map(|volume| self.offer_unsold(control, volume)).collect()
    }

    /// Remembers the time for which an unsold vSSD was there, when it is sold.
    pub(super) fn take_from_inventory(&self, control: &mut Control, volume: &Volume) -> Result<()> {
        match control.inventory.take(volume.id, self.size_of(volume), self.time()) {
            Some(sold) => self.log.append(&Meta::Sold(vec![sold]).record()?).map(drop),
            None => Ok(()),
        }
    }

    /// Bytes of a vSSD's channels.
    fn size_of(&self, volume: &Volume) -> u64 {
        let geometry = self.media.geometry();
        let channel = u64::from(geometry.channel_blocks()) * u64::from(geometry.block_size());
        volume.channels().len() as u64 * channel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const GIB: u64 = 1 << 30;

    fn hours(hours: u32) -> Time {
        Time(0) + HOUR * hours
    }

    #[test]
    fn unsold_flash_is_expected_to_last_as_its_like_did() {
        let (mut inventory, settings) = (UnsoldInventory::default(), HostSettings::default());
        let lasts = |inventory: &UnsoldInventory, now| inventory.lasts(VssdId(1), GIB, now, &settings);
        inventory.put(VssdId(1), hours(100));
        for number in 2..21 {
            inventory.put(VssdId(number), hours(0));
            inventory.take(VssdId(number), GIB, hours(3)).unwrap();
        }
        assert_eq!(lasts(&inventory, hours(100)), settings.unsold_lasts, "19 are too few");
        inventory.put(VssdId(2), hours(0));
        assert_eq!(inventory.take(VssdId(2), GIB, hours(3)), Some(Sold { size: GIB, lasted_s: 3 * 3600 }));
        assert_eq!(inventory.take(VssdId(2), GIB, hours(9)), None, "once");
        let all = lasts(&inventory, hours(100));
        assert!(all <= HOUR * 3 && all > HOUR * 2, "{all:?}");
        let left = lasts(&inventory, hours(101));
        assert!(left + HOUR == all, "{left:?}");
        assert_eq!(lasts(&inventory, hours(110)), settings.unsold_lasts, "none is known that lasted as long");
    }

    #[test]
    fn the_unsold_inventory_is_bounded() {
        let mut inventory = UnsoldInventory::default();
        (0..1500).for_each(|lasted_s| inventory.remember(Sold { size: GIB, lasted_s }));
        assert_eq!((inventory.sold.len(), inventory.sold[0].lasted_s), (REMEMBERED, 500));
        assert_eq!(inventory.records().unwrap().len(), 1);
    }
}
