//! Lenders: the storage that they can spare, and that they want back.

use super::{Broker, BrokerAction, BrokerStep, Entry, Forecast, Stage, VssdKind, Why};
use crate::{GssdId, Time, VssdId};
use headstart_block::{exact, saturating};
use headstart_flash::device::FlashBlock;
use headstart_flash::step::BlockRun;
use std::time::Duration;

impl Broker {
    pub(super) fn forecast(
        &mut self,
        now: Time,
        id: VssdId,
        (bandwidth, capacity, lasts): (u16, u32, Duration),
        out: &mut Vec<BrokerAction>,
    ) -> bool {
        let Some(vssd) = self.vssds.get_mut(&id).filter(|vssd| !vssd.deleting) else { return false };
        let expire = now + lasts;
        if vssd.kind == VssdKind::Harvest {
            let since = vssd.forecast.map(|before| now.since(before.at)).unwrap_or_default();
            vssd.forecast = Some(Forecast { bandwidth, capacity, expire, at: now });
            self.needs(now, id, since, out);
            return true;
        }
        let (bandwidth, capacity) = (bandwidth.min(vssd.bandwidth), capacity.min(vssd.capacity));
        vssd.forecast = Some(Forecast { bandwidth, capacity, expire, at: now });
        self.shrink(now, id, out);
        self.create(now, id, out);
        true
    }

    /// Takes back the part of its loans that a lender is forecast to need.
    fn shrink(&mut self, now: Time, lender: VssdId, out: &mut Vec<BrokerAction>) {
        let Some((forecast, lent)) =
            self.vssds.get(&lender).and_then(|vssd| vssd.forecast.zip(Some(&vssd.lent)))
        else {
            return;
        };
        let staying = lent.iter().filter_map(|id| self.gssds.get(id)).filter(|entry| !entry.withdrawn);
        let (bandwidth, capacity) = staying.fold((0, 0), |(bandwidth, capacity), entry| {
            (bandwidth + u32::from(entry.gssd.bandwidth), capacity + u64::from(entry.gssd.capacity))
        });
        let short = (
            bandwidth.saturating_sub(u32::from(forecast.bandwidth)),
            capacity.saturating_sub(u64::from(forecast.capacity)),
        );
        // It is a bound on what is taken back: no more than that is lent.
        let short: (u16, u32) = (saturating(short.0), saturating(short.1));
        let low = short.1 > 0 || (short.0 > 0 && self.settings.reclaim_for_bandwidth);
        let forecasts_to_reclaim = self.settings.forecasts_to_reclaim;
        let Some(vssd) = self.vssds.get_mut(&lender) else { return };
        vssd.low = if low { vssd.low + 1 } else { 0 };
        let leased = vssd.low >= forecasts_to_reclaim;
        if short != (0, 0) {
            let of_leased = if self.settings.reclaim_for_bandwidth { short } else { (0, short.1) };
            self.withdraw_some(now, lender, short, leased.then_some(of_leased), Why::Forecast, out);
        }
    }

    pub(super) fn on_space_pressure(
        &mut self,
        now: Time,
        lender: VssdId,
        bandwidth: u16,
        capacity: u32,
        out: &mut Vec<BrokerAction>,
    ) -> bool {
        let lends = |vssd: &&mut super::Vssd| !vssd.lent.is_empty();
        let vssd = self.vssds.get_mut(&lender).filter(lends);
        let known = vssd.is_some();
        if let Some(vssd) = vssd {
            // The forecast was wrong: nothing is made until there is another.
            vssd.forecast = None;
            let needed = (bandwidth, capacity);
            self.withdraw_some(now, lender, needed, Some(needed), Why::SpacePressure, out);
        }
        known
    }

    /// Takes gSSDs back until the wanted amount is on its way back: unused ones for `needed`, leased ones for
    /// `of_leased` after that; of those the smallest that suffices, otherwise the largest. gSSDs that are on their way
    /// already count, and are waited for from now on.
    fn withdraw_some(
        &mut self,
        now: Time,
        lender: VssdId,
        needed: (u16, u32),
        of_leased: Option<(u16, u32)>,
        why: Why,
        out: &mut Vec<BrokerAction>,
    ) {
        let (mut came, mut candidates, mut coming) = ((0_u16, 0_u32), Vec::new(), Vec::new());
        let lent = self.vssds.get(&lender).map(|vssd| vssd.lent.as_slice()).unwrap_or_default();
        for (id, entry) in lent.iter().filter_map(|id| self.gssds.get_key_value(id)) {
            let size = (entry.gssd.bandwidth, entry.gssd.capacity);
            if !entry.withdrawn {
                candidates.push((entry.gssd.in_use, size, *id));
            } else if why == Why::SpacePressure {
                came = (came.0.saturating_add(size.0), came.1.saturating_add(size.1));
                coming.push(*id);
            }
        }
        for id in coming {
            if let Some(entry) = self.gssds.get_mut(&id) {
                entry.pressed_since.get_or_insert(now);
            }
        }
        loop {
            let is_short = |needed: (u16, u32)| came.0 < needed.0 || came.1 < needed.1;
            let wanted =
                |in_use: bool| if in_use { of_leased.is_some_and(is_short) } else { is_short(needed) };
            let enough = |size: (u16, u32)| {
                came.0.saturating_add(size.0) >= needed.0 && came.1.saturating_add(size.1) >= needed.1
            };
            let best = candidates.iter().enumerate().filter(|(_, (in_use, ..))| wanted(*in_use)).min_by_key(
                |(_, (in_use, size, _))| {
                    let capacity = i64::from(size.1);
                    (*in_use, !enough(*size), if enough(*size) { capacity } else { -capacity })
                },
            );
            let Some((at, _)) = best else { break };
            let (_, size, id) = candidates.swap_remove(at);
            came = (came.0.saturating_add(size.0), came.1.saturating_add(size.1));
            self.withdraw(now, id, why, out);
        }
    }

    /// Takes one gSSD back, whatever its stage.
    pub(super) fn withdraw(&mut self, now: Time, id: GssdId, why: Why, out: &mut Vec<BrokerAction>) {
        let Some(entry) = self.gssds.get_mut(&id).filter(|entry| !entry.withdrawn) else { return };
        match entry.stage {
            // The journal knows nothing of it yet.
            Stage::Carving => entry.withdrawn = true,
            Stage::Pooled => self.give_back(id, out),
            Stage::Erasing | Stage::Evacuating | Stage::Detaching => {
                entry.pressed_since = (why == Why::SpacePressure).then_some(now);
                self.commit(BrokerStep::Withdrawn { gssd: id }, out);
            }
            Stage::Leased => self.reclaim(now, id, why, out),
        }
    }

    /// Begins gSSDs if a lender has storage to spare.
    pub(super) fn create(&mut self, now: Time, lender: VssdId, out: &mut Vec<BrokerAction>) {
        while let Some((bandwidth, capacity, lasts)) = self.next_of(now, lender) {
            let id = GssdId(self.next_gssd);
            self.next_gssd += 1;
            let mut entry = Entry::new(lender);
            (entry.gssd.bandwidth, entry.gssd.capacity, entry.gssd.expire) =
                (bandwidth, capacity, now + lasts);
            self.gssds.insert(id, entry);
            if let Some(vssd) = self.vssds.get_mut(&lender) {
                vssd.lent.push(id);
            }
            out.push(BrokerAction::Carve { gssd: id, lender, bandwidth, capacity });
            if self.vssds.get(&lender).is_none_or(|vssd| vssd.kind != VssdKind::Unsold) {
                break;
            }
        }
    }

    /// The next gSSD that a lender can make: all its spare storage, or, unsold, one channel's part of it.
    fn next_of(&self, now: Time, lender: VssdId) -> Option<(u16, u32, Duration)> {
        let vssd = self.vssds.get(&lender)?;
        let forecast = vssd.forecast.filter(|_| !vssd.deleting)?;
        let grain = self.settings.grain;
        let (most, part) = match vssd.kind {
            VssdKind::Harvest => return None,
            VssdKind::Regular => (self.settings.per_home, (u16::MAX, u32::MAX)),
            VssdKind::Unsold => {
                let channels = u32::from(vssd.bandwidth / grain.bandwidth);
                let parts = channels.min(vssd.capacity / grain.capacity).max(1);
                let bandwidth = u32::from(vssd.bandwidth).div_ceil(parts);
                let bandwidth = exact(bandwidth, "it is a part of the bandwidth");
                (parts as usize, (bandwidth, vssd.capacity / parts))
            }
        };
        if vssd.lent.len() >= most {
            return None;
        }
        let lent = vssd.lent.iter().filter_map(|id| self.gssds.get(id)).map(|entry| &entry.gssd);
        let spare = lent.fold((forecast.bandwidth, forecast.capacity), |spare, gssd| {
            (spare.0.saturating_sub(gssd.bandwidth), spare.1.saturating_sub(gssd.capacity))
        });
        let spare = (spare.0.min(part.0), spare.1.min(part.1));
        let (bandwidth, capacity, lasts) = grain.down(spare.0, spare.1, forecast.expire.since(now));
        let enough = bandwidth > 0 && capacity > 0 && lasts >= grain.lasts && !lasts.is_zero();
        enough.then_some((bandwidth, capacity, lasts))
    }

    pub(super) fn carved(
        &mut self,
        now: Time,
        id: GssdId,
        (bandwidth, capacity): (u16, u32),
        blocks: Vec<BlockRun>,
        out: &mut Vec<BrokerAction>,
    ) -> bool {
        let Some(entry) = self.gssds.get(&id).filter(|entry| entry.stage == Stage::Carving) else {
            return false;
        };
        let (lender, expire, withdrawn) = (entry.gssd.lender, entry.gssd.expire, entry.withdrawn);
        if capacity == 0 {
            self.gssds.remove(&id);
            if let Some(vssd) = self.vssds.get_mut(&lender) {
                vssd.lent.retain(|lent| *lent != id);
            }
            self.finish_deletion(lender, out);
            return true;
        }
        self.counters.created += 1;
        self.commit(BrokerStep::Carved { gssd: id, lender, bandwidth, capacity, expire, blocks }, out);
        if withdrawn || expire <= now {
            self.commit(BrokerStep::Withdrawn { gssd: id }, out);
        }
        self.erase(id, out);
        true
    }

    /// Gives gSSDs the expiry of their lenders' newest forecasts; done at an interval.
    pub(super) fn redate(&mut self, now: Time, out: &mut Vec<BrokerAction>) {
        let dated = self.gssds.iter().filter_map(|(id, entry)| {
            let expire = self.vssds.get(&entry.gssd.lender)?.forecast?.expire;
            (entry.stage != Stage::Carving && expire != entry.gssd.expire).then_some((*id, expire.0))
        });
        let expire: Vec<(GssdId, u64)> = dated.collect();
        if !expire.is_empty() {
            for (id, expire) in &expire {
                self.pool.redate(*id, Time(*expire));
            }
            self.commit(BrokerStep::Redated { expire }, out);
        }
        for id in self.pool.expired(now) {
            self.counters.expired += 1;
            self.give_back_and_on(now, id, out);
        }
        let Some(percent) = self.settings.regrow_percent else { return };
        let outgrown: Vec<GssdId> = self
            .gssds
            .iter()
            .filter_map(|(id, entry)| {
                let vssd = self.vssds.get(&entry.gssd.lender)?;
                let forecast =
                    vssd.forecast.filter(|_| entry.stage == Stage::Pooled && vssd.lent.len() == 1)?;
                let Entry { gssd, .. } = entry;
                let grain = self.settings.grain;
                let (bandwidth, capacity, lasts) =
                    grain.down(forecast.bandwidth, forecast.capacity, forecast.expire.since(now));
                let grown = |before: u64, after: u64| {
                    after * 100 >= before * (100 + u64::from(percent)) && after > before
                };
                let larger = bandwidth >= gssd.bandwidth
                    && capacity >= gssd.capacity
                    && (grown(gssd.capacity.into(), capacity.into())
                        || grown(gssd.bandwidth.into(), bandwidth.into()));
                (larger && lasts >= grain.lasts).then_some(*id)
            })
            .collect();
        outgrown.into_iter().for_each(|id| self.give_back_and_on(now, id, out));
    }

    /// Returns an unused gSSD to its lender.
    pub(super) fn give_back(&mut self, id: GssdId, out: &mut Vec<BrokerAction>) {
        let Some(lender) = self.gssds.get(&id).map(|entry| entry.gssd.lender) else { return };
        self.pool.remove(id);
        self.commit(BrokerStep::Returned { gssd: id }, out);
        self.counters.returned += 1;
        out.push(BrokerAction::Return { gssd: id, lender });
        self.finish_deletion(lender, out);
    }

    /// As [`Broker::give_back`]; the lender may make another.
    pub(super) fn give_back_and_on(&mut self, now: Time, id: GssdId, out: &mut Vec<BrokerAction>) {
        let Some(lender) = self.gssds.get(&id).map(|entry| entry.gssd.lender) else { return };
        self.give_back(id, out);
        self.create(now, lender, out);
    }

    pub(super) fn unpool(&mut self, now: Time, lender: VssdId, out: &mut Vec<BrokerAction>) -> bool {
        self.withdraw_some(now, lender, (u16::MAX, u32::MAX), None, Why::Forecast, out);
        self.vssds.contains_key(&lender)
    }

    pub(super) fn swapped(
        &mut self,
        one: (VssdId, u16),
        other: (VssdId, u16),
        bad: Vec<FlashBlock>,
        out: &mut Vec<BrokerAction>,
    ) -> bool {
        let stays = |(id, channel): (VssdId, u16)| {
            self.vssds.get(&id).is_some_and(|vssd| !vssd.deleting && vssd.channels.contains(&channel))
        };
        let known = one.0 != other.0 && stays(one) && stays(other);
        if known {
            self.counters.bad_blocks += bad.len() as u64;
            self.commit(BrokerStep::Swapped { one, other, bad }, out);
        } else {
            out.push(BrokerAction::Keep { one, other });
        }
        known
    }
}
