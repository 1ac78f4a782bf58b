//! Borrowers: the requests, needs and releases of harvest VMs.

use super::event::{BrokerAnswer, BrokerRequest, Grant};
use super::report::Notice;
use super::{Broker, BrokerAction, BrokerReport, BrokerStep, Stage, VssdKind, Why};
use crate::gssd::{Offer, Want};
use crate::{GssdId, Time, VssdId};
use headstart_block::exact;
use std::time::Duration;

/// The number of gSSDs that a borrower can have: slot 0 is its own.
const SLOTS: usize = 255;

impl Broker {
    pub(super) fn request(&mut self, now: Time, request: BrokerRequest, out: &mut Vec<BrokerAction>) {
        self.counters.requests += 1;
        let BrokerRequest { request: id, vm, borrower, bandwidth, capacity, lasts, partial, grow } = request;
        let want = Want { bandwidth, capacity, until: now + lasts };
        let harvests = |vssd: &&mut super::Vssd| vssd.kind == VssdKind::Harvest && !vssd.deleting;
        let answer = match self.vssds.get_mut(&borrower).filter(harvests) {
            None => BrokerAnswer::NoBorrower,
            Some(_) if bandwidth == 0 && capacity == 0 => BrokerAnswer::Nothing,
            Some(vssd) => {
                (vssd.vm, vssd.grow) = (vm, grow);
                let grant = self.grant(borrower, &want, partial, out);
                let full = grant.bandwidth >= u32::from(bandwidth) && grant.capacity >= capacity;
                match grant {
                    grant if full => BrokerAnswer::Granted(grant),
                    grant if !grant.slots.is_empty() => BrokerAnswer::Partly(grant),
                    _ => {
                        let (bandwidth, capacity) = self.pool.total(want.until);
                        BrokerAnswer::Short { channels: bandwidth, blocks: capacity }
                    }
                }
            }
        };
        match answer {
            BrokerAnswer::Granted(_) => self.counters.granted += 1,
            BrokerAnswer::Partly(_) => self.counters.partly += 1,
            BrokerAnswer::Short { .. } | BrokerAnswer::NoBorrower | BrokerAnswer::Nothing => {
                self.counters.refused += 1;
            }
        }
        out.push(BrokerAction::Answer { request: id, answer });
    }

    /// Leases gSSDs of the pool that match `want` to a borrower.
    pub(super) fn grant(
        &mut self,
        borrower: VssdId,
        want: &Want,
        partial: bool,
        out: &mut Vec<BrokerAction>,
    ) -> Grant {
        let free = self.vssds.get(&borrower).map_or(0, |vssd| SLOTS.saturating_sub(vssd.slots.len()));
        let mut grant = Grant { expire: Time(u64::MAX), ..Grant::default() };
        for (id, offer) in self.pool.take_many(want, free, partial) {
            let Some(slot) = self.lease(id, borrower, want.until, out) else {
                self.pool.insert(id, offer);
                continue;
            };
            let Offer { bandwidth, capacity, expire } = offer;
            grant.slots.push((slot, id));
            grant.bandwidth += u32::from(bandwidth);
            grant.capacity = grant.capacity.saturating_add(capacity);
            grant.expire = grant.expire.min(expire);
        }
        grant
    }

    fn lease(
        &mut self,
        id: GssdId,
        borrower: VssdId,
        until: Time,
        out: &mut Vec<BrokerAction>,
    ) -> Option<u8> {
        let vssd = self.vssds.get(&borrower)?;
        let slot = (1..=u8::MAX).find(|slot| !vssd.slots.contains_key(slot))?;
        let vm = vssd.vm.clone();
        self.commit(BrokerStep::Leased { gssd: id, vm, borrower, slot, until }, out);
        self.counters.leases += 1;
        out.push(BrokerAction::Attach { gssd: id, borrower, slot });
        Some(slot)
    }

    /// Handles a borrower's forecast need, `since` its last forecast.
    pub(super) fn needs(
        &mut self,
        now: Time,
        borrower: VssdId,
        since: Duration,
        out: &mut Vec<BrokerAction>,
    ) {
        let Some(vssd) = self.vssds.get(&borrower) else { return };
        let Some(forecast) = vssd.forecast else { return };
        let own = (u32::from(vssd.bandwidth), u64::from(vssd.capacity));
        let leased = vssd.slots.values().filter_map(|id| self.gssds.get(id));
        let leased = leased.filter(|entry| entry.stage == Stage::Leased).fold((0, 0), |sum, entry| {
            (sum.0 + u32::from(entry.gssd.bandwidth), sum.1 + u64::from(entry.gssd.capacity))
        });
        let has = (own.0 + leased.0, own.1 + leased.1);
        let short: (u16, u32) = (
            exact(u32::from(forecast.bandwidth).saturating_sub(has.0), "it is at most the forecast"),
            exact(u64::from(forecast.capacity).saturating_sub(has.1), "it is at most the forecast"),
        );
        let idle = has.1.saturating_sub(u64::from(forecast.capacity)).min(leased.1);
        self.counters.waste_block_seconds += idle * since.as_secs();
        let (grow, vm) = (vssd.grow, vssd.vm.clone());
        let mut added = Grant::default();
        if grow && short != (0, 0) {
            let want = Want { bandwidth: short.0, capacity: short.1, until: forecast.expire };
            added = self.grant(borrower, &want, true, out);
            self.counters.added += added.slots.len() as u64;
        }
        let lacks = u32::from(short.0) > added.bandwidth || short.1 > added.capacity;
        let Some(vssd) = self.vssds.get_mut(&borrower) else { return };
        // Without any request no user is there to tell, and without a lease nothing was harvested.
        let tell = lacks && !vssd.lacking && !vssd.slots.is_empty();
        vssd.lacking = lacks;
        if tell {
            self.counters.under_harvests += 1;
            let has = (has.0 + added.bandwidth, has.1 + u64::from(added.capacity));
            let what = Notice::UnderHarvest { needs: (forecast.bandwidth, forecast.capacity), has };
            out.push(BrokerAction::Report(BrokerReport { vm, vssd: borrower, at: now, what }));
        }
    }

    pub(super) fn release(
        &mut self,
        now: Time,
        borrower: VssdId,
        gssd: Option<GssdId>,
        out: &mut Vec<BrokerAction>,
    ) -> bool {
        let Some(id) = gssd else {
            let known = self.vssds.get(&borrower).is_some_and(|vssd| !vssd.slots.is_empty());
            self.give_all_back(borrower, out);
            return known;
        };
        let is_its = self.gssds.get(&id).is_some_and(|entry| entry.gssd.borrower == Some(borrower));
        is_its && self.evacuate(now, id, Why::Released, out)
    }

    /// Gives back all gSSDs that a borrower has borrowed, with their data.
    pub(super) fn give_all_back(&mut self, borrower: VssdId, out: &mut Vec<BrokerAction>) {
        let left = self.leave_all(borrower, None, Why::Released, out);
        self.counters.released += left.len() as u64;
        if let Some(vssd) = self.vssds.get_mut(&borrower) {
            (vssd.grow, vssd.lacking) = (false, false);
        }
    }
}
