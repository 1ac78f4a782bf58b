//! Channels wear alike: every 19 days two of them swap owners where that pays (BlockFlex section 4.3.2, after
//! FlashBlox's relaxed scheme), [`plan_swap`].
//!
//! # A swap, in order
//!
//! 1. Both channels are drained: the data of each moves to the rest of its vSSD, which stays in use. Lent parts of them
//!    are waited for (no more of them is lent), for days if need be. If there is no room, or a write needs the channel,
//!    this ends, and is tried again later.
//! 2. Both are closed and the maps made durable. Earlier readers are waited for. Both are erased.
//! 3. The broker's step [`Swapped`](headstart_broker::BrokerStep::Swapped) is made durable. From here on the owners are
//!    swapped; custody gives each all of its new channel, which is clean.
//! 4. Both maps get the new channel in the place of the old one; recovery does that if a crash came before it.
//!
//! A crash before the step has changed only the places of pages. After it, no map names either channel.

use super::job::{Job, Owned};
use super::meta::{Looked, Meta};
use super::volume::Volume;
use super::{Control, Host};
use headstart_block::{Error, ErrorKind, Result, Time};
use headstart_broker::{BlockRun, BrokerEvent};
use headstart_flash::VssdId;
use headstart_flash::device::FlashBlock;
use headstart_flash::journal::JournalRecord;
use headstart_flash::vssd::{Change, ChannelWear, Effort, Vssd, plan_swap};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The excess over the mean that the most worn channel must have for a swap, in hundredths: a smaller one is not worth
/// moving a channel's data twice.
const TOLERANCE: u32 = 10;

/// The time after which a swap that could not be made is tried again.
const AGAIN: Duration = Duration::from_secs(600);

/// The state of wear leveling.
#[derive(Default)]
pub(crate) struct WearLeveling {
    looked: Option<Looked>,
    /// The time at which a swap is to be tried.
    next: Time,
}

impl WearLeveling {
    /// Takes the journal's record.
    pub(crate) fn looked(&mut self, looked: Looked) {
        self.looked = Some(looked);
    }

    /// The record for the journal.
    pub(crate) fn record(&self) -> Result<Option<JournalRecord>> {
        self.looked.clone().map(|looked| Meta::Looked(looked).record()).transpose()
    }

    /// The channel of a vSSD that is to be swapped, if one is: until then no part of it is lent, nor any blocks that
    /// have to take its data.
    pub(crate) fn keeps(&self, vssd: VssdId) -> Option<u16> {
        let (one, other) = self.looked.as_ref().and_then(|looked| looked.swap)?;
        [one, other].into_iter().find(|(owner, _)| *owner == vssd).map(|(_, channel)| channel)
    }
}

impl Host {
    /// Looks at the channels if it is time to; returns the swap that is to be made, if any.
    pub(super) fn level(
        &self,
        control: &mut Control,
        now: Time,
        volumes: &BTreeMap<VssdId, Arc<Volume>>,
    ) -> Result<Option<Job>> {
        let due = |looked: &Looked| now.since(Time(looked.at_us)) >= self.settings.swap_every;
        if control.wear_leveling.looked.as_ref().is_none_or(due) {
            let looked = self.look(control.wear_leveling.looked.as_ref(), now, volumes);
            self.log.append(&Meta::Looked(looked.clone()).record()?)?;
            control.wear_leveling = WearLeveling { looked: Some(looked), next: now };
        }
        let WearLeveling { looked, next } = &mut control.wear_leveling;
        let Some((one, other)) = looked.as_ref().and_then(|looked| looked.swap) else { return Ok(None) };
        // One at a time: a channel that one is erasing must not be another's meanwhile.
        let runs = self.jobs.lock().running.keys().any(|job| matches!(job, Job::Swap(..)));
        if runs || now < *next {
            return Ok(None);
        }
        *next = now + AGAIN;
        Ok(Some(Job::Swap(one, other)))
    }

    fn look(&self, before: Option<&Looked>, now: Time, volumes: &BTreeMap<VssdId, Arc<Volume>>) -> Looked {
        let geometry = self.media.geometry();
        let totals: Vec<u64> =
            (0..geometry.channels).map(|channel| self.wear_of(geometry, channel)).collect();
        let owned = volumes.values().filter(|volume| volume.check().is_ok());
        let owners: BTreeMap<u16, VssdId> = owned
            .flat_map(|volume| volume.channels().into_iter().map(|channel| (channel, volume.id)))
            .collect();
        let wear = |(&channel, _): (&u16, &VssdId)| {
            let total = totals.get(usize::from(channel)).copied()?;
            let earlier = before.and_then(|before| before.totals.get(usize::from(channel))).copied()?;
            Some(ChannelWear { channel, total, recent: total.saturating_sub(earlier) })
        };
        let mut wear: Vec<ChannelWear> = owners.iter().filter_map(wear).collect();
        let mut swap = plan_swap(&wear, TOLERANCE);
        let owner = |channel: u16| owners.get(&channel).copied();
        if let Some(same) = swap.filter(|swap| owner(swap.hot) == owner(swap.cold)) {
            // A vSSD evens out its own channels, unless it lends them: then the least worn of the others is taken.
            let others = |channel: u16| channel == same.hot || owner(channel) != owner(same.hot);
            wear.retain(|wear| others(wear.channel));
            swap = plan_swap(&wear, TOLERANCE);
        }
        let swap = swap.and_then(|swap| {
            let owned = |channel: u16| owner(channel).map(|owner| (owner, channel));
            owned(swap.hot).zip(owned(swap.cold)).filter(|(hot, cold)| hot.0 != cold.0)
        });
        Looked { at_us: now.0, totals, swap }
    }

    /// Empties two channels and erases them; `None` if that cannot be now. Pooled parts of them go back first, leased
    /// parts are waited for.
    pub(super) fn swap(&self, one: Owned, other: Owned) -> Result<Option<BrokerEvent>> {
        let Some(volumes) = self.volume(one.0).zip(self.volume(other.0)) else { return Ok(None) };
        let both = [(&*volumes.0, one.1), (&*volumes.1, other.1)];
        for (at, (volume, channel)) in both.into_iter().enumerate() {
            let inner = volume.read();
            if !self.can_swap(volume, &inner.vssd, (channel, both[1 - at].1)) {
                let lends = inner.vssd.usage().lent > 0;
                return Ok(lends.then_some(BrokerEvent::Unpool { lender: volume.id }));
            }
        }
        // The deletion of one of them waits until no part of it is being erased any more.
        let _in = both.map(|(volume, _)| volume.enter_collector());
        let emptied = self.empty(both).and_then(|emptied| {
            if !emptied {
                return Ok(None);
            }
            let mut bad = Vec::new();
            for (volume, channel) in both {
                volume.flush(&self.log, &self.media)?;
                let blocks = || self.media.geometry().blocks_of(channel).map(FlashBlock);
                while blocks().any(|block| volume.pins().is_pinned(block)) {
                    volume.wait_a_moment();
                }
                bad.extend(self.erase_runs(&BlockRun::gather(blocks()), false)?);
            }
            Ok(Some(bad))
        });
        if !matches!(emptied, Ok(Some(_))) {
            self.keep_channels(one, other);
        }
        Ok(emptied?.map(|bad| BrokerEvent::Swapped { one, other, bad }))
    }

    /// `true` if a vSSD can give one of its channels for another: no part of it is lent; there is room for its data,
    /// and for the writes meanwhile; and the vSSD keeps its promised size, though the other may have more bad blocks.
    fn can_swap(&self, volume: &Volume, vssd: &Vssd, (from, to): (u16, u16)) -> bool {
        if volume.check().is_err() || !volume.channels().contains(&from) || vssd.lends_of(from) {
            return false;
        }
        let keep = u64::from(self.keep_of(volume, &vssd.usage()));
        let fit = vssd.fit_without(0, Some(from));
        let has_room = fit.stored + keep * u64::from(self.media.geometry().pages) <= fit.room;
        let good = |channel: u16| {
            let blocks = self.media.geometry().blocks_of(channel).map(FlashBlock);
            blocks.filter(|block| !self.media.is_bad(*block)).count() as u64
        };
        let (settings, usage) = (vssd.settings(), vssd.usage());
        let needed = settings.blocks_needed(settings.size) + good(from).saturating_sub(good(to));
        has_room && (settings.thin || needed <= u64::from(usage.blocks + usage.lent))
    }

    /// Uses channels again that were being emptied and were not swapped.
    pub(super) fn keep_channels(&self, one: Owned, other: Owned) {
        for (vssd, channel) in [one, other] {
            if let Some(volume) = self.volume(vssd) {
                volume.write().vssd.keep_slot(0, Some(channel));
                volume.turn_over();
            }
        }
    }

    /// Moves all data from channels to the rest of their vSSDs, and closes them; `true` if that could be done.
    fn empty(&self, both: [(&Volume, u16); 2]) -> Result<bool> {
        let (mut bytes, began) = (0, self.time());
        for (at, (volume, channel)) in both.into_iter().enumerate() {
            let pair = (channel, both[1 - at].1);
            let mut inner = volume.write();
            if !self.can_swap(volume, &inner.vssd, pair) {
                return Ok(false);
            }
            match inner.vssd.drain_slot(0, Some(channel)) {
                Ok(fit) => bytes += fit.there,
                Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let limit = self.settings.moving_limit(bytes * u64::from(self.media.geometry().page_size), 1);
        loop {
            if !self.goes_on() {
                return Err(Error::new(ErrorKind::Cancelled, "the host is being closed"));
            }
            // A vSSD that is written takes its channel back.
            let on = |(volume, channel): &(&Volume, u16)| {
                volume.check().is_ok() && volume.read().vssd.is_channel_draining(*channel)
            };
            if !both.iter().all(on) || self.time().since(began) >= limit {
                return Ok(false);
            }
            if both.iter().all(|(volume, channel)| volume.read().vssd.drained(0, Some(*channel))) {
                return Ok(both
                    .iter()
                    .all(|(volume, channel)| volume.write().vssd.close_slot(0, Some(*channel))));
            }
            self.log.may_tidy()?;
            let mut steps = 0;
            for (volume, _) in both {
                steps += self.collect(volume, Effort::Needed)?;
            }
            if steps == 0 {
                both.iter().try_for_each(|(volume, _)| volume.flush(&self.log, &self.media))?;
                both[0].0.wait_a_moment();
            }
        }
    }

    /// Makes the maps follow two channels that have changed owners.
    pub(super) fn swapped(&self, control: &mut Control, one: Owned, other: Owned) -> Result<()> {
        for ((vssd, from), (_, to)) in [(one, other), (other, one)] {
            let Some(volume) = self.volume(vssd) else { continue };
            let mut inner = volume.write();
            let change = self.replace_channel(&mut inner.vssd, from, to)?;
            self.log.change(vssd, &mut inner, &change)?;
            volume.swap_channel(from, to);
            drop(inner);
            self.media.queue().set_owner(to, vssd.0);
            self.log.append(&Meta::made(volume.about()).record()?)?;
            volume.turn_over();
        }
        if let Some(looked) = &mut control.wear_leveling.looked {
            looked.swap = None;
            self.log.append(&Meta::Looked(looked.clone()).record()?)?;
        }
        tracing::info!(hot = one.1, cold = other.1, "two channels swapped owners, to wear alike");
        Ok(())
    }

    /// Has a channel take the place of another in a map.
    fn replace_channel(&self, vssd: &mut Vssd, from: u16, to: u16) -> Result<Change> {
        let nobodys: Vec<BlockRun> = self.custody.bad();
        let is_bad = |block| self.media.is_bad(block) || nobodys.iter().any(|run| run.contains(block));
        let blocks = self.media.geometry().blocks_of(to).map(FlashBlock);
        let blocks: Vec<_> =
            blocks.map(|block| (block, (!is_bad(block)).then(|| self.media.wear(block)))).collect();
        vssd.replace_channel(from, &blocks)
    }

    /// Repairs a map if a crash came between a swap and the maps.
    pub(super) fn follow_swap(&self, vssd: &mut Vssd, owned: &[u16]) -> Result<Option<Change>> {
        let has = vssd.own_channels();
        let gone = has.iter().find(|channel| !owned.contains(channel));
        let new = owned.iter().find(|channel| !has.contains(channel));
        gone.zip(new).map(|(gone, new)| self.replace_channel(vssd, *gone, *new)).transpose()
    }

    /// The swap that is planned, if any.
    #[cfg(test)]
    pub(super) fn planned_swap(&self) -> Option<(Owned, Owned)> {
        self.control.lock().wear_leveling.looked.as_ref().and_then(|looked| looked.swap)
    }

    /// Plans a swap.
    #[cfg(test)]
    pub(super) fn plan(&self, one: Owned, other: Owned) {
        let swap = Some((one, other));
        let looked = Looked { at_us: self.time().0, totals: Vec::new(), swap };
        drop(Meta::Looked(looked.clone()).record().and_then(|record| self.log.append(&record)));
        self.control.lock().wear_leveling = WearLeveling { looked: Some(looked), next: Time(0) };
    }
}
