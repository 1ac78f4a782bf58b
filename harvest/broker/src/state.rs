//! The effects of steps on the state: live and after a crash the same.

use super::{Broker, BrokerAction, BrokerSettings, BrokerStep, Entry, Stage, Vssd, VssdKind, Why, after};
use crate::gssd::{Gssd, Offer};
use crate::{Error, GssdId, Result, Time, VssdId};
use headstart_block::saturating;
use std::collections::BTreeMap;

use headstart_flash::step::BlockRun;

impl Broker {
    /// Rebuilds a broker from the steps of a journal, and appends to `out` the actions that finish
    /// interrupted work. Actions that were carried out before may be among them.
    ///
    /// # Errors
    /// The steps contradict each other: the journal is damaged, or was written by another program.
    pub fn recover<'a>(
        settings: BrokerSettings,
        now: Time,
        steps: impl IntoIterator<Item = &'a BrokerStep>,
        out: &mut Vec<BrokerAction>,
    ) -> Result<Self> {
        let mut broker = Self::new(settings);
        steps.into_iter().try_for_each(|step| broker.apply(step))?;
        broker.redate_at = Some(now + broker.settings.redate_every);
        broker.resume(now, out);
        Ok(broker)
    }

    /// Returns steps that lead to this broker's present state, to begin a new journal with. `bad` lists the
    /// bad blocks ([`headstart_flash::custody::Custody::bad`]), `blocks` returns the blocks of a gSSD
    /// ([`headstart_flash::custody::Custody::blocks`]). The caller must have applied all steps given out so far to
    /// that custody before it calls this; otherwise the result does not match the broker's state.
    #[must_use]
    pub fn snapshot(
        &self,
        bad: Vec<BlockRun>,
        mut blocks: impl FnMut(GssdId) -> Vec<BlockRun>,
    ) -> Vec<BrokerStep> {
        let mut steps =
            vec![BrokerStep::Next { gssd: GssdId(self.next_gssd) }, BrokerStep::Bad { blocks: bad }];
        for (id, vssd) in &self.vssds {
            steps.push(BrokerStep::Created {
                vssd: *id,
                kind: vssd.kind,
                bandwidth: vssd.bandwidth,
                capacity: vssd.capacity,
                channels: vssd.channels.clone(),
            });
        }
        for (id, entry) in self.gssds.iter().filter(|(_, entry)| entry.stage != Stage::Carving) {
            entry.snapshot(*id, blocks(*id), &mut steps);
        }
        let deleting = self.vssds.iter().filter(|(_, vssd)| vssd.deleting);
        steps.extend(deleting.map(|(id, _)| BrokerStep::Deleting { vssd: *id }));
        steps
    }

    /// Applies a step to the state.
    ///
    /// # Errors
    /// The step cannot follow the steps before. Nothing was done.
    pub(super) fn apply(&mut self, step: &BrokerStep) -> Result<()> {
        match step {
            BrokerStep::Created { vssd, kind, bandwidth, capacity, channels } => {
                if self.vssds.contains_key(vssd) {
                    return Err(Error::corrupt("it is created twice").about(format_args!("vSSD {}", vssd.0)));
                }
                self.vssds.insert(*vssd, Vssd::new(*kind, *bandwidth, *capacity, channels.clone()));
            }
            BrokerStep::Deleting { vssd } => self.vssd_mut(*vssd)?.deleting = true,
            BrokerStep::Deleted { vssd, .. } => {
                let gone = self.vssd_mut(*vssd)?;
                if !gone.lent.is_empty() || !gone.slots.is_empty() {
                    let error = Error::corrupt("it is deleted while it lends or borrows");
                    return Err(error.about(format_args!("vSSD {}", vssd.0)));
                }
                self.vssds.remove(vssd);
            }
            BrokerStep::Carved { gssd, lender, bandwidth, capacity, expire, .. } => {
                self.apply_carved(*gssd, *lender, (*bandwidth, *capacity), *expire)?;
            }
            BrokerStep::Erased { gssd, bad } => {
                let entry = self.entry_mut(*gssd, &[Stage::Erasing])?;
                entry.stage = Stage::Pooled;
                entry.gssd.capacity = entry.gssd.capacity.saturating_sub(saturating(bad.len()));
            }
            BrokerStep::Leased { gssd, vm, borrower, slot, until } => {
                self.apply_leased(*gssd, vm, *borrower, *slot, *until)?;
            }
            BrokerStep::Evacuating { gssd, why } => {
                let entry = self.entry_mut(*gssd, &[Stage::Leased])?;
                (entry.stage, entry.why) = (Stage::Evacuating, *why);
                entry.withdrawn |= matches!(why, Why::SpacePressure | Why::Forecast | Why::LenderDeleted);
                self.set_deadline(*gssd);
            }
            BrokerStep::Kept { gssd } => {
                self.entry_mut(*gssd, &[Stage::Evacuating])?.stage = Stage::Leased;
                self.set_deadline(*gssd);
            }
            BrokerStep::Leaving { gssds, why, lost } => self.apply_leaving(gssds, *why, *lost)?,
            BrokerStep::Detached { gssd } => self.apply_detached(*gssd)?,
            BrokerStep::Withdrawn { gssd } => self.known_mut(*gssd)?.withdrawn = true,
            BrokerStep::Returned { gssd } => {
                let lender = self.entry_mut(*gssd, &[Stage::Pooled])?.gssd.lender;
                self.vssd_mut(lender)?.lent.retain(|lent| lent != gssd);
                self.gssds.remove(gssd);
            }
            BrokerStep::Redated { expire } => {
                for (gssd, expire) in expire {
                    self.known_mut(*gssd)?.gssd.expire = Time(*expire);
                    self.set_deadline(*gssd);
                }
            }
            BrokerStep::Next { gssd } => self.next_gssd = self.next_gssd.max(gssd.0),
            BrokerStep::Bad { .. } => {}
            BrokerStep::Swapped { one, other, .. } => self.apply_swapped(*one, *other)?,
        }
        Ok(())
    }

    fn apply_carved(&mut self, id: GssdId, lender: VssdId, size: (u16, u32), expire: Time) -> Result<()> {
        let carving = self.stage(id).is_none_or(|stage| stage == Stage::Carving);
        if !carving {
            return Err(Error::corrupt("it is made twice").about(format_args!("gSSD {}", id.0)));
        }
        let lent = &mut self.vssd_mut(lender)?.lent;
        if !lent.contains(&id) {
            lent.push(id);
        }
        let entry = self.gssds.entry(id).or_insert_with(|| Entry::new(lender));
        entry.stage = Stage::Erasing;
        (entry.gssd.bandwidth, entry.gssd.capacity) = size;
        entry.gssd.expire = expire;
        self.next_gssd = self.next_gssd.max(id.0.saturating_add(1));
        Ok(())
    }

    fn apply_leased(&mut self, id: GssdId, vm: &str, borrower: VssdId, slot: u8, until: Time) -> Result<()> {
        self.entry_mut(id, &[Stage::Pooled])?;
        let vssd = self.vssd_mut(borrower)?;
        if slot == 0 || vssd.slots.contains_key(&slot) {
            let error = Error::corrupt(format!("its slot {slot} is not free"));
            return Err(error.about(format_args!("vSSD {}", borrower.0)));
        }
        vssd.slots.insert(slot, id);
        vm.clone_into(&mut vssd.vm);
        let entry = self.entry_mut(id, &[Stage::Pooled])?;
        (entry.stage, entry.slot, entry.until) = (Stage::Leased, slot, until);
        (entry.gssd.in_use, entry.gssd.vm_id, entry.gssd.borrower) =
            (true, Some(vm.to_owned()), Some(borrower));
        self.set_deadline(id);
        Ok(())
    }

    fn apply_leaving(&mut self, gssds: &[GssdId], why: Why, lost: bool) -> Result<()> {
        for id in gssds {
            self.entry_mut(*id, &[Stage::Leased, Stage::Evacuating])?;
        }
        for (number, id) in gssds.iter().enumerate() {
            let entry = self.known_mut(*id)?;
            let along = number > 0 && why != Why::Released;
            (entry.stage, entry.why, entry.lost) =
                (Stage::Detaching, if along { Why::Evicted } else { why }, lost);
            self.set_deadline(*id);
        }
        Ok(())
    }

    fn apply_swapped(&mut self, one: (VssdId, u16), other: (VssdId, u16)) -> Result<()> {
        for (id, channel) in [one, other] {
            if !self.vssd_mut(id)?.channels.contains(&channel) {
                let error = Error::corrupt(format!("it does not own channel {channel}"));
                return Err(error.about(format_args!("vSSD {}", id.0)));
            }
        }
        for ((id, from), to) in [(one, other.1), (other, one.1)] {
            for channel in self.vssd_mut(id)?.channels.iter_mut().filter(|channel| **channel == from) {
                *channel = to;
            }
        }
        Ok(())
    }

    fn apply_detached(&mut self, id: GssdId) -> Result<()> {
        let entry = self.entry_mut(id, &[Stage::Detaching])?;
        (entry.stage, entry.lost) = (Stage::Erasing, false);
        (entry.gssd.in_use, entry.gssd.vm_id) = (false, None);
        let (borrower, slot) = (entry.gssd.borrower.take(), entry.slot);
        if let Some(borrower) = borrower.and_then(|borrower| self.vssds.get_mut(&borrower)) {
            borrower.slots.remove(&slot);
        }
        Ok(())
    }

    /// Gives out again the actions that may not have been done before the crash.
    fn resume(&mut self, now: Time, out: &mut Vec<BrokerAction>) {
        for entry in self.gssds.values_mut().filter(|entry| entry.stage == Stage::Evacuating) {
            (entry.since, entry.pressed_since) = (now, (entry.why == Why::SpacePressure).then_some(now));
        }
        let mut pooled = Vec::new();
        let mut lost: BTreeMap<VssdId, (GssdId, Why)> = BTreeMap::new();
        // Slots are attached before anything is moved to them.
        for (id, entry) in &self.gssds {
            let (gssd, slot) = (*id, entry.slot);
            match (entry.stage, entry.gssd.borrower) {
                (Stage::Leased | Stage::Evacuating, Some(borrower)) => {
                    out.push(BrokerAction::Attach { gssd, borrower, slot });
                }
                (Stage::Pooled, _) => pooled.push(gssd),
                _ => {}
            }
        }
        for (id, entry) in &self.gssds {
            let (gssd, slot) = (*id, entry.slot);
            match (entry.stage, entry.gssd.borrower) {
                (Stage::Erasing, _) => out.push(BrokerAction::Erase { gssd }),
                (Stage::Evacuating, Some(borrower)) => {
                    out.push(BrokerAction::Evacuate { gssd, borrower, slot });
                }
                (Stage::Detaching, Some(borrower)) => {
                    out.push(BrokerAction::Detach { gssd, borrower, slot });
                    if entry.lost && !matches!(entry.why, Why::Released | Why::Evicted) {
                        lost.insert(borrower, (gssd, entry.why));
                    }
                }
                _ => {}
            }
        }
        for (borrower, (gssd, why)) in lost {
            let report = self.eviction(now, borrower, gssd, why, "the host was restarted".to_owned());
            out.extend(report.map(BrokerAction::Report));
        }
        pooled.into_iter().for_each(|id| self.pool_or_return(now, id, out));
        let vssds: Vec<VssdId> = self.vssds.keys().copied().collect();
        vssds.into_iter().for_each(|vssd| self.resume_deletion(now, vssd, out));
    }

    pub(super) fn set_deadline(&mut self, id: GssdId) {
        let Some(entry) = self.gssds.get_mut(&id) else { return };
        if let Some(deadline) = entry.deadline.take() {
            self.deadlines.remove(&(deadline, id));
        }
        if entry.stage == Stage::Leased {
            let deadline = entry.gssd.expire.min(after(entry.until, self.settings.overstay));
            entry.deadline = Some(deadline);
            self.deadlines.insert((deadline, id));
        }
    }

    fn vssd_mut(&mut self, id: VssdId) -> Result<&mut Vssd> {
        let error = || Error::corrupt("there is none of this number").about(format_args!("vSSD {}", id.0));
        self.vssds.get_mut(&id).ok_or_else(error)
    }

    fn known_mut(&mut self, id: GssdId) -> Result<&mut Entry> {
        let error = || Error::corrupt("there is none of this number").about(format_args!("gSSD {}", id.0));
        self.gssds.get_mut(&id).ok_or_else(error)
    }

    fn entry_mut(&mut self, id: GssdId, stages: &[Stage]) -> Result<&mut Entry> {
        let entry = self.known_mut(id)?;
        if stages.contains(&entry.stage) {
            return Ok(entry);
        }
        let cause = format!("it is {:?}, where it should be {stages:?}", entry.stage);
        Err(Error::corrupt(cause).about(format_args!("gSSD {}", id.0)))
    }
}

impl Vssd {
    fn new(kind: VssdKind, bandwidth: u16, capacity: u32, channels: Vec<u16>) -> Self {
        Self {
            kind,
            bandwidth,
            capacity,
            channels,
            deleting: false,
            wiping: false,
            forecast: None,
            low: 0,
            lent: Vec::new(),
            slots: BTreeMap::new(),
            vm: String::new(),
            grow: false,
            lacking: false,
        }
    }
}

impl Entry {
    /// An entry of a gSSD that is being carved.
    pub(super) fn new(lender: VssdId) -> Self {
        let gssd = Gssd {
            bandwidth: 0,
            capacity: 0,
            expire: Time::default(),
            in_use: false,
            vm_id: None,
            lender,
            borrower: None,
        };
        Self {
            gssd,
            stage: Stage::Carving,
            withdrawn: false,
            slot: 0,
            until: Time::default(),
            why: Why::Released,
            since: Time::default(),
            pressed_since: None,
            lost: false,
            deadline: None,
        }
    }

    pub(super) fn offer(&self) -> Offer {
        Offer::from(&self.gssd)
    }

    fn snapshot(&self, id: GssdId, blocks: Vec<BlockRun>, steps: &mut Vec<BrokerStep>) {
        let Gssd { bandwidth, capacity, expire, lender, ref vm_id, borrower, .. } = self.gssd;
        steps.push(BrokerStep::Carved { gssd: id, lender, bandwidth, capacity, expire, blocks });
        if self.stage != Stage::Erasing {
            steps.push(BrokerStep::Erased { gssd: id, bad: Vec::new() });
        }
        if let (Some(vm), Some(borrower)) = (vm_id.clone(), borrower) {
            steps.push(BrokerStep::Leased { gssd: id, vm, borrower, slot: self.slot, until: self.until });
        }
        match self.stage {
            Stage::Evacuating => steps.push(BrokerStep::Evacuating { gssd: id, why: self.why }),
            Stage::Detaching => {
                steps.push(BrokerStep::Leaving { gssds: vec![id], why: self.why, lost: self.lost });
            }
            Stage::Carving | Stage::Erasing | Stage::Pooled | Stage::Leased => {}
        }
        if self.withdrawn {
            steps.push(BrokerStep::Withdrawn { gssd: id });
        }
    }
}
