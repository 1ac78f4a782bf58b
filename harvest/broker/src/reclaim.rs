//! Leases that end: the data of a gSSD is moved or lost, then the gSSD is detached, erased, and pooled or given back.

use super::report::Notice;
use super::{Broker, BrokerAction, BrokerReport, BrokerStep, Stage, Why, after};
use crate::gssd::Want;
use crate::{GssdId, Time, VssdId};
use headstart_flash::device::FlashBlock;

/// An evacuation: the data of a leased gSSD is being moved to other flash of the harvest VM, before the lease
/// ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evacuation {
    /// The harvest VM's vSSD that has the lease.
    pub borrower: VssdId,
    /// The slot of that vSSD that is being evacuated.
    pub slot: u8,
    /// The time at which the evacuation began; after a restart of the host, the time of the restart.
    pub since: Time,
    /// The time since which the lender has needed the flash at once ([`super::BrokerEvent::SpacePressure`]). After a
    /// restart of the host, this is the time of the restart. `None` if the lender can wait for the flash.
    pub pressed_since: Option<Time>,
}

impl Broker {
    /// Looks at a lease whose time has come.
    pub(super) fn due(&mut self, now: Time, id: GssdId, out: &mut Vec<BrokerAction>) {
        let Some(entry) = self.gssds.get_mut(&id).filter(|entry| entry.stage == Stage::Leased) else {
            return;
        };
        entry.deadline = None;
        let over = after(entry.until, self.settings.overstay) <= now;
        let newest = self
            .vssds
            .get(&entry.gssd.lender)
            .and_then(|lender| lender.forecast)
            .map(|forecast| forecast.expire);
        match newest {
            Some(expire) if expire > now && !over => {
                self.commit(BrokerStep::Redated { expire: vec![(id, expire.0)] }, out);
            }
            _ => self.reclaim(now, id, if over { Why::Over } else { Why::Expired }, out),
        }
    }

    /// Takes a leased gSSD back from its borrower, with another in its place if there is one.
    pub(super) fn reclaim(&mut self, now: Time, id: GssdId, why: Why, out: &mut Vec<BrokerAction>) {
        let Some(entry) = self.gssds.get(&id).filter(|entry| entry.stage == Stage::Leased) else { return };
        let Some(borrower) = entry.gssd.borrower else { return };
        let (bandwidth, capacity) = (entry.gssd.bandwidth, entry.gssd.capacity);
        let (soon, until) = (now + self.settings.grain.lasts, entry.until);
        self.counters.early += u64::from(until > now);
        // First, so that a crash in between costs a gSSD too many and not the harvest VM.
        if why != Why::Over {
            // As much for as long; otherwise for a grain of time; otherwise, for that time, all that the pool has.
            let tries = [(until.max(soon), false), (soon, false), (soon, true)];
            for (until, partial) in tries {
                if self.replace(borrower, Want { bandwidth, capacity, until }, partial, out) {
                    break;
                }
            }
        }
        self.evacuate(now, id, why, out);
    }

    /// Has the data of a leased gSSD moved to the borrower's other slots; `true` if it is leased.
    pub(super) fn evacuate(&mut self, now: Time, id: GssdId, why: Why, out: &mut Vec<BrokerAction>) -> bool {
        let leased = |entry: &&mut super::Entry| entry.stage == Stage::Leased;
        let Some(entry) = self.gssds.get_mut(&id).filter(leased) else { return false };
        let (Some(borrower), slot) = (entry.gssd.borrower, entry.slot) else { return false };
        (entry.since, entry.pressed_since) = (now, (why == Why::SpacePressure).then_some(now));
        self.commit(BrokerStep::Evacuating { gssd: id, why }, out);
        out.push(BrokerAction::Evacuate { gssd: id, borrower, slot });
        true
    }

    /// Returns the evacuation of a gSSD; `None` if the gSSD is not being evacuated. The broker sets no time
    /// limit. The driver, which knows the amount of data and the speed, sets one and ends an evacuation that takes
    /// longer by [`BrokerEvent::EvacuationFailed`](super::BrokerEvent::EvacuationFailed).
    #[must_use]
    pub fn evacuation(&self, id: GssdId) -> Option<Evacuation> {
        let entry = self.gssds.get(&id).filter(|entry| entry.stage == Stage::Evacuating)?;
        let (borrower, slot) = (entry.gssd.borrower?, entry.slot);
        Some(Evacuation { borrower, slot, since: entry.since, pressed_since: entry.pressed_since })
    }

    /// Leases gSSDs in the place of one of this size; `true` if there were any.
    fn replace(&mut self, borrower: VssdId, want: Want, partial: bool, out: &mut Vec<BrokerAction>) -> bool {
        // In whole grains, as the pool counts: another gSSD of the same size is enough, whatever it has beyond them.
        let grain = self.settings.grain;
        let capacity = grain.units(want.capacity).max(1).saturating_mul(grain.capacity);
        let mut added = self.grant(borrower, &Want { capacity, ..want }, partial, out);
        let lacking = want.capacity.saturating_sub(added.capacity);
        if lacking > 0 && !added.slots.is_empty() {
            let rest = Want { bandwidth: 0, capacity: lacking, ..want };
            added.slots.extend(self.grant(borrower, &rest, true, out).slots);
        }
        self.counters.replacements += added.slots.len() as u64;
        !added.slots.is_empty()
    }

    pub(super) fn evacuated(&mut self, now: Time, id: GssdId, out: &mut Vec<BrokerAction>) -> bool {
        let Some(entry) = self.gssds.get(&id).filter(|entry| entry.stage == Stage::Evacuating) else {
            return false;
        };
        let (why, slot, borrower) = (entry.why, entry.slot, entry.gssd.borrower);
        if why == Why::Released {
            self.counters.released += 1;
        } else {
            self.counters.migrated += 1;
        }
        let ended = matches!(why, Why::Expired | Why::Over).then_some(Notice::Expired {
            gssd: id,
            why,
            capacity: entry.gssd.capacity,
        });
        let vm = entry.gssd.vm_id.clone().unwrap_or_default();
        self.commit(BrokerStep::Leaving { gssds: vec![id], why, lost: false }, out);
        if let Some(borrower) = borrower {
            out.push(BrokerAction::Detach { gssd: id, borrower, slot });
            out.extend(
                ended.map(|what| BrokerAction::Report(BrokerReport { vm, vssd: borrower, at: now, what })),
            );
        }
        true
    }

    pub(super) fn evacuation_failed(
        &mut self,
        now: Time,
        id: GssdId,
        cause: String,
        out: &mut Vec<BrokerAction>,
    ) -> bool {
        let Some(entry) = self.gssds.get(&id).filter(|entry| entry.stage == Stage::Evacuating) else {
            return false;
        };
        let Some(borrower) = entry.gssd.borrower else { return false };
        match (entry.why, entry.withdrawn) {
            (Why::Released, false) => {
                let vm = entry.gssd.vm_id.clone().unwrap_or_default();
                self.commit(BrokerStep::Kept { gssd: id }, out);
                let what = Notice::Kept { gssd: id, cause };
                out.push(BrokerAction::Report(BrokerReport { vm, vssd: borrower, at: now, what }));
            }
            // It was being given back, and its lender wants it meanwhile.
            (Why::Released, true) => self.evict(now, borrower, id, Why::SpacePressure, cause, out),
            (why, _) => self.evict(now, borrower, id, why, cause, out),
        }
        true
    }

    /// Ends all leases of a borrower, because one gSSD of it must go with its data.
    fn evict(
        &mut self,
        now: Time,
        borrower: VssdId,
        gssd: GssdId,
        why: Why,
        cause: String,
        out: &mut Vec<BrokerAction>,
    ) {
        let left = self.leave_all(borrower, Some(gssd), why, out);
        self.counters.evicted += 1;
        self.counters.evicted_leases += left.len() as u64;
        out.extend(self.eviction(now, borrower, gssd, why, cause).map(BrokerAction::Report));
        if let Some(vssd) = self.vssds.get_mut(&borrower) {
            (vssd.grow, vssd.lacking) = (false, false);
        }
    }

    /// The report to the user of an evicted harvest VM: all its gSSDs are being detached.
    pub(super) fn eviction(
        &self,
        now: Time,
        borrower: VssdId,
        gssd: GssdId,
        why: Why,
        cause: String,
    ) -> Option<BrokerReport> {
        let vssd = self.vssds.get(&borrower)?;
        let lost = vssd.slots.values().filter_map(|id| Some((*id, self.gssds.get(id)?)));
        let lost: Vec<_> = lost.filter(|(_, entry)| entry.stage == Stage::Detaching && entry.lost).collect();
        let what = Notice::Evicted {
            gssd,
            why,
            early: self.gssds.get(&gssd).is_some_and(|entry| entry.until > now),
            capacity: lost.iter().map(|(_, entry)| u64::from(entry.gssd.capacity)).sum(),
            lost: lost.into_iter().map(|(id, _)| id).collect(),
            cause,
        };
        Some(BrokerReport { vm: vssd.vm.clone(), vssd: borrower, at: now, what })
    }

    /// Detaches all gSSDs of a borrower, with their data, because `first` must go, if that is given. Returns those that
    /// were not being detached already.
    pub(super) fn leave_all(
        &mut self,
        borrower: VssdId,
        first: Option<GssdId>,
        why: Why,
        out: &mut Vec<BrokerAction>,
    ) -> Vec<GssdId> {
        let Some(vssd) = self.vssds.get(&borrower) else { return Vec::new() };
        let attached = |id: GssdId| matches!(self.stage(id), Some(Stage::Leased | Stage::Evacuating));
        let slots = vssd.slots.iter().map(|(slot, id)| (*slot, *id));
        let mut leaving: Vec<(u8, GssdId)> = slots.filter(|(_, id)| attached(*id)).collect();
        leaving.sort_by_key(|(_, id)| Some(*id) != first);
        let gssds: Vec<GssdId> = leaving.iter().map(|(_, id)| *id).collect();
        if !gssds.is_empty() {
            self.commit(BrokerStep::Leaving { gssds: gssds.clone(), why, lost: true }, out);
        }
        out.extend(leaving.into_iter().map(|(slot, gssd)| BrokerAction::Detach { gssd, borrower, slot }));
        gssds
    }

    pub(super) fn detached(&mut self, id: GssdId, out: &mut Vec<BrokerAction>) -> bool {
        let Some(entry) = self.gssds.get(&id).filter(|entry| entry.stage == Stage::Detaching) else {
            return false;
        };
        let borrower = entry.gssd.borrower;
        self.commit(BrokerStep::Detached { gssd: id }, out);
        self.erase(id, out);
        if let Some(borrower) = borrower {
            self.finish_deletion(borrower, out);
        }
        true
    }

    pub(super) fn erase(&mut self, id: GssdId, out: &mut Vec<BrokerAction>) {
        self.counters.erased_blocks += self.gssds.get(&id).map_or(0, |entry| u64::from(entry.gssd.capacity));
        out.push(BrokerAction::Erase { gssd: id });
    }

    pub(super) fn erased(
        &mut self,
        now: Time,
        id: GssdId,
        bad: Vec<FlashBlock>,
        out: &mut Vec<BrokerAction>,
    ) -> bool {
        let known = self.stage(id) == Some(Stage::Erasing);
        if known {
            self.counters.bad_blocks += bad.len() as u64;
            self.commit(BrokerStep::Erased { gssd: id, bad }, out);
            self.pool_or_return(now, id, out);
        }
        known
    }

    /// A clean gSSD is pooled, unless its lender wants it or will soon (section 4.3.2).
    pub(super) fn pool_or_return(&mut self, now: Time, id: GssdId, out: &mut Vec<BrokerAction>) {
        let Some(entry) = self.gssds.get(&id).filter(|entry| entry.stage == Stage::Pooled) else { return };
        let Some(lender) = self.vssds.get(&entry.gssd.lender) else { return };
        let newest = lender.forecast.map(|forecast| forecast.expire);
        let expire = newest.unwrap_or(entry.gssd.expire);
        let wanted = entry.withdrawn || lender.deleting || expire.since(now) < self.settings.grain.lasts;
        let mut offer = entry.offer();
        // Small changes wait for the timer.
        let off = expire < offer.expire || expire.since(offer.expire) >= self.settings.grain.lasts;
        if off && !wanted {
            offer.expire = expire;
            self.commit(BrokerStep::Redated { expire: vec![(id, expire.0)] }, out);
        }
        if wanted {
            self.give_back_and_on(now, id, out);
        } else if !self.pool.insert(id, offer) {
            // Less than a grain: the lender had no more free blocks, or blocks were bad. An immediate new request would
            // get the same answer.
            self.give_back(id, out);
        }
    }
}
