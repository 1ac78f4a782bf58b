//! vSSDs that go: first their loans and leases end, then their own channels are wiped.

use super::Broker;
use super::event::BrokerAction;
use super::{BrokerStep, VssdKind, Why};
use crate::{Time, VssdId};
use headstart_flash::device::FlashBlock;

impl Broker {
    pub(super) fn delete(&mut self, now: Time, id: VssdId, out: &mut Vec<BrokerAction>) -> bool {
        let known = self.vssds.get(&id).is_some_and(|vssd| !vssd.deleting);
        if known {
            self.commit(BrokerStep::Deleting { vssd: id }, out);
            self.resume_deletion(now, id, out);
        }
        known
    }

    /// Does the next part of the deletion of a vSSD that is to go.
    pub(super) fn resume_deletion(&mut self, now: Time, id: VssdId, out: &mut Vec<BrokerAction>) {
        let Some(vssd) = self.vssds.get(&id).filter(|vssd| vssd.deleting) else { return };
        let mut lent = vssd.lent.clone();
        // Unused gSSDs go first: otherwise leased data would be moved there, and on at once.
        lent.sort_by_key(|id| self.gssds.get(id).is_some_and(|entry| entry.gssd.in_use));
        self.give_all_back(id, out);
        lent.into_iter().for_each(|gssd| self.withdraw(now, gssd, Why::LenderDeleted, out));
        self.finish_deletion(id, out);
    }

    /// Deletes a vSSD that is to go and neither lends nor borrows any more.
    pub(super) fn finish_deletion(&mut self, id: VssdId, out: &mut Vec<BrokerAction>) {
        let ready = |vssd: &&mut super::Vssd| {
            vssd.deleting && !vssd.wiping && vssd.lent.is_empty() && vssd.slots.is_empty()
        };
        let Some(vssd) = self.vssds.get_mut(&id).filter(ready) else { return };
        vssd.wiping = true;
        // An unsold vSSD was never written, and its loans came back clean.
        if vssd.kind == VssdKind::Unsold || vssd.capacity == 0 {
            self.commit(BrokerStep::Deleted { vssd: id, bad: Vec::new() }, out);
        } else {
            out.push(BrokerAction::Wipe { vssd: id });
        }
    }

    pub(super) fn wiped(&mut self, id: VssdId, bad: Vec<FlashBlock>, out: &mut Vec<BrokerAction>) -> bool {
        let known = self.vssds.get(&id).is_some_and(|vssd| vssd.wiping);
        if known {
            self.counters.bad_blocks += bad.len() as u64;
            self.commit(BrokerStep::Deleted { vssd: id, bad }, out);
        }
        known
    }
}
