//! What is unsold: since when, and for how long such was so far (BlockFlex, section 4.4.1).
//!
//! Nothing can be learned from the load of what nobody uses. But how long vSSDs of a size stay unsold is stable, so
//! that histograms of it say how much longer one will, [`Unsold`]; while they know too little,
//! [`unsold_lasts`](Settings::unsold_lasts) is said. It is said anew with every step, as it gets older. Since when each
//! is there, and how long the last ones were, is in the journal.

use super::meta::Meta;
use super::options::Settings;
use super::volume::Volume;
use super::{Control, Host, Kind};
use crate::broker::Event;
use crate::journal::Record;
use crate::predict::Unsold;
use crate::predict::forecaster::Forecast;
use crate::predict::unsold::ENOUGH;
use crate::{Result, Time, VssdId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How many that were sold are remembered beyond a restart: several times what a histogram needs, some 10 KiB.
const REMEMBERED: usize = 1000;

/// One that was sold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sold {
    /// Bytes of its channels.
    pub(crate) size: u64,
    /// How long it was unsold, in seconds.
    pub(crate) lasted_s: u64,
}

/// What is unsold now, and what is known of what was.
#[derive(Default)]
pub(crate) struct Shelf {
    since: BTreeMap<VssdId, Time>,
    sold: VecDeque<Sold>,
    histograms: Unsold,
    /// When how long it lasts is to be said again.
    next: Time,
}

impl Shelf {
    /// One is there since then.
    pub(crate) fn put(&mut self, vssd: VssdId, since: Time) {
        self.since.insert(vssd, since);
    }

    /// One is sold: what is to be remembered of it, once.
    pub(crate) fn take(&mut self, vssd: VssdId, size: u64, now: Time) -> Option<Sold> {
        let since = self.since.remove(&vssd)?;
        let sold = Sold { size, lasted_s: now.since(since).as_secs() };
        self.remember(sold);
        Some(sold)
    }

    /// One that was never there.
    pub(crate) fn forget(&mut self, vssd: VssdId) {
        self.since.remove(&vssd);
    }

    /// One was sold.
    pub(crate) fn remember(&mut self, sold: Sold) {
        self.histograms.ended(sold.size, Duration::from_secs(sold.lasted_s));
        self.sold.push_back(sold);
        if self.sold.len() > REMEMBERED {
            self.sold.pop_front();
        }
    }

    /// How much longer one is expected to stay unsold.
    fn lasts(&self, vssd: VssdId, size: u64, now: Time, settings: &Settings) -> Duration {
        let age = self.since.get(&vssd).map(|since| now.since(*since)).unwrap_or_default();
        if self.histograms.known(size, age) < ENOUGH {
            return settings.unsold_lasts;
        }
        self.histograms.lasts(size, age, settings.unsold_cover)
    }

    /// What is to be in the journal of it.
    pub(crate) fn records(&self) -> Result<Vec<Record>> {
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
    /// Says for how long all of an unsold vSSD can be had.
    pub(super) fn offer_unsold(&self, control: &mut Control, volume: &Volume) -> Event {
        let usage = volume.read().vssd.usage();
        let lasts = control.shelf.lasts(volume.id, self.size_of(volume), self.time(), &self.settings);
        let bandwidth = u16::try_from(volume.channels().len()).unwrap_or(u16::MAX);
        let forecast = Forecast { bandwidth, capacity: usage.blocks + usage.lent, lasts };
        if let Some(sampler) = control.samples.get_mut(&volume.id) {
            sampler.set_forecast(forecast);
        }
        super::sampling::event(volume.id, forecast)
    }

    /// The same of all that are unsold, where it is time to.
    pub(super) fn offer_all_unsold<'a>(
        &self,
        control: &mut Control,
        now: Time,
        volumes: impl Iterator<Item = &'a Volume>,
    ) -> Vec<Event> {
        if now < control.shelf.next {
            return Vec::new();
        }
        control.shelf.next = now + self.settings.step;
        let there = volumes.filter(|volume| volume.kind == Kind::Unsold && volume.check().is_ok());
        there.map(|volume| self.offer_unsold(control, volume)).collect()
    }

    /// An unsold vSSD is sold: remembers for how long it was there.
    pub(super) fn take_from_shelf(&self, control: &mut Control, volume: &Volume) -> Result<()> {
        match control.shelf.take(volume.id, self.size_of(volume), self.time()) {
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
    fn it_lasts_as_long_as_such_did() {
        let (mut shelf, settings) = (Shelf::default(), Settings::default());
        let lasts = |shelf: &Shelf, now| shelf.lasts(VssdId(1), GIB, now, &settings);
        shelf.put(VssdId(1), hours(100));
        for number in 2..21 {
            shelf.put(VssdId(number), hours(0));
            shelf.take(VssdId(number), GIB, hours(3)).unwrap();
        }
        assert_eq!(lasts(&shelf, hours(100)), settings.unsold_lasts, "19 are too few");
        shelf.put(VssdId(2), hours(0));
        assert_eq!(shelf.take(VssdId(2), GIB, hours(3)), Some(Sold { size: GIB, lasted_s: 3 * 3600 }));
        assert_eq!(shelf.take(VssdId(2), GIB, hours(9)), None, "once");
        let all = lasts(&shelf, hours(100));
        assert!(all <= HOUR * 3 && all > HOUR * 2, "{all:?}");
        let left = lasts(&shelf, hours(101));
        assert!(left + HOUR == all, "{left:?}");
        assert_eq!(lasts(&shelf, hours(110)), settings.unsold_lasts, "none is known that lasted as long");
    }

    #[test]
    fn so_many_are_remembered() {
        let mut shelf = Shelf::default();
        (0..1500).for_each(|lasted_s| shelf.remember(Sold { size: GIB, lasted_s }));
        assert_eq!((shelf.sold.len(), shelf.sold[0].lasted_s), (REMEMBERED, 500));
        assert_eq!(shelf.records().unwrap().len(), 1);
    }
}
