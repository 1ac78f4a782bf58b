//! The broker's actions, by the rule of the journal: what is decided is durable before anything is done about it.
//!
//! Events gather in an inbox. Whoever gets the control lock takes all of them: the steps of all go to the journal
//! together and are synced once, then custody hears of them, then the rest is done in order. What is short is done
//! under the lock (blocks given to an FTL or taken from one); what takes time becomes a [`Job`].
//!
//! Locks, in the order in which they are taken: control, a volume's, the journal's. Nobody who holds a volume's lock
//! waits for flash or for control.

use super::log::encoded;
use super::meta::Meta;
use super::volume::Volume;
use super::{Control, Host};
use crate::broker::event::Answer;
use crate::broker::{Action, Event, Step};
use crate::flash::{FlashBlock, lock};
use crate::journal::Record;
use crate::{Error, ErrorKind, GssdId, Result, VssdId};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// What takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    /// [`Action::Erase`].
    Erase(GssdId),
    /// [`Action::Evacuate`].
    Evacuate(GssdId, VssdId, u8),
    /// [`Action::Detach`].
    Detach(GssdId, VssdId, u8),
    /// [`Action::Wipe`].
    Wipe(VssdId),
}

/// How long who waits for blocks to come home sleeps at a time.
const PAUSE: Duration = Duration::from_millis(50);

impl Host {
    /// Tells the broker.
    pub(crate) fn tell(&self, event: Event) -> Result<()> {
        lock(&self.inbox).push(event);
        self.settle()
    }

    /// Has the broker look at all that it was told, and does what it says.
    pub(crate) fn settle(&self) -> Result<()> {
        let mut control = lock(&self.control);
        let settled = self.settle_all(&mut control);
        drop(control);
        self.changed.notify_all();
        if self.inline && settled.is_ok() {
            self.run_jobs();
        }
        settled
    }

    /// As [`Host::settle`], for who has the control lock; jobs that this causes begin by themselves, or are done with
    /// the next settling.
    pub(crate) fn settle_with(&self, control: &mut Control) -> Result<()> {
        self.settle_all(control)
    }

    fn settle_all(&self, control: &mut Control) -> Result<()> {
        loop {
            let events = std::mem::take(&mut *lock(&self.inbox));
            let mut actions = std::mem::take(&mut control.resumed);
            if events.is_empty() && actions.is_empty() {
                return Ok(());
            }
            let now = self.time();
            for event in events {
                control.broker.on_event(now, event, &mut actions);
            }
            self.act(control, actions)?;
        }
    }

    fn act(&self, control: &mut Control, actions: Vec<Action>) -> Result<()> {
        let mut steps = Vec::new();
        for action in &actions {
            if let Action::Journal(step) = action {
                let lsn = self.log.step(step).inspect_err(|error| self.broken(error))?;
                steps.push((step, lsn));
            }
        }
        if let Some((_, lsn)) = steps.last() {
            self.log.sync(&self.media, *lsn).inspect_err(|error| self.broken(error))?;
        }
        for (step, _) in steps {
            self.custody.apply(step).inspect_err(|error| self.broken(error))?;
        }
        for action in actions {
            self.do_action(control, action)?;
        }
        Ok(())
    }

    fn do_action(&self, control: &mut Control, action: Action) -> Result<()> {
        match action {
            Action::Journal(Step::Deleted { vssd, .. }) => self.forget(control, vssd),
            Action::Journal(_) => {}
            Action::Carve { gssd, home, bandwidth, capacity } => {
                let event = self.carve(gssd, home, bandwidth, capacity)?;
                lock(&self.inbox).push(event);
            }
            Action::Attach { gssd, ghost, slot } => self.attach(gssd, ghost, slot)?,
            Action::Return { gssd, home } => self.take_home(gssd, home)?,
            Action::Erase { gssd } => self.begin(Job::Erase(gssd)),
            Action::Evacuate { gssd, ghost, slot } => self.begin(Job::Evacuate(gssd, ghost, slot)),
            Action::Detach { gssd, ghost, slot } => self.begin(Job::Detach(gssd, ghost, slot)),
            Action::Wipe { vssd } => self.begin(Job::Wipe(vssd)),
            Action::Answer { request, answer } => {
                control.answers.insert(request, answer);
            }
            Action::Report(report) => {
                tracing::warn!(vssd = report.ghost.0, "{report}");
                control.report(report);
            }
        }
        Ok(())
    }

    /// Takes blocks from a home, spread over as many of its channels as are wanted.
    fn carve(&self, gssd: GssdId, home: VssdId, bandwidth: u16, capacity: u32) -> Result<Event> {
        let nothing = Event::Carved { gssd, bandwidth: 0, capacity: 0, blocks: Vec::new() };
        let Some(volume) = self.volume(home) else { return Ok(nothing) };
        let mut inner = volume.write();
        let keep = if volume.kind == super::Kind::Unsold { 0 } else { self.keep(&inner.vssd.usage()) };
        let (channels, most) = inner.vssd.lendable(keep);
        let wanted = spread(&channels, bandwidth, capacity.min(most));
        if wanted.is_empty() {
            return Ok(nothing);
        }
        let (mut blocks, change) = inner.vssd.lend(&wanted, keep)?;
        self.log.change(home, &mut inner, &change)?;
        drop(inner);
        blocks.sort_unstable();
        Ok(Event::Carved {
            gssd,
            bandwidth: u16::try_from(wanted.len()).unwrap_or(u16::MAX),
            capacity: u32::try_from(blocks.len()).unwrap_or(u32::MAX),
            blocks: crate::broker::Run::gather(blocks),
        })
    }

    /// Blocks that a home keeps for what it may write before any come back.
    pub(super) fn keep(&self, usage: &crate::vssd::Usage) -> u32 {
        (usage.blocks / 32).clamp(4, 256)
    }

    /// Gives a gSSD's blocks to a ghost, unless it has them already; a disk that grows is as large as it has flash.
    fn attach(&self, gssd: GssdId, ghost: VssdId, slot: u8) -> Result<()> {
        let Some(volume) = self.volume(ghost) else { return Ok(()) };
        let blocks = self.custody.blocks(gssd);
        let blocks = self.media.worn(blocks.into_iter().flat_map(crate::broker::Run::blocks));
        if blocks.is_empty() {
            return Ok(());
        }
        let mut inner = volume.write();
        if !inner.vssd.has_slot(slot) {
            let change = inner.vssd.add_slot(slot, &blocks)?;
            self.log.change(ghost, &mut inner, &change)?;
        }
        // The host may have crashed between the two.
        if volume.grows {
            let usage = inner.vssd.usage();
            let size = inner.vssd.settings().size_of_blocks(usage.blocks.into());
            if size > inner.vssd.size() {
                let change = inner.vssd.resize(size)?;
                self.log.change(ghost, &mut inner, &change)?;
                volume.resized(size);
            }
        }
        Ok(())
    }

    /// Gives a gSSD's blocks back to their home.
    fn take_home(&self, gssd: GssdId, home: VssdId) -> Result<()> {
        let runs = self.custody.take_returned(gssd);
        let Some(volume) = self.volume(home) else { return Ok(()) };
        let mut inner = volume.write();
        let blocks = runs.into_iter().flat_map(crate::broker::Run::blocks);
        let blocks: Vec<_> = self.media.worn(blocks.filter(|block| inner.vssd.is_lent(*block)));
        if !blocks.is_empty() {
            let change = inner.vssd.take_back(&blocks)?;
            self.log.change(home, &mut inner, &change)?;
        }
        drop(inner);
        volume.turn_over();
        Ok(())
    }

    /// A deleted vSSD is gone.
    fn forget(&self, control: &mut Control, id: VssdId) {
        let gone = self.volumes.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if let Some(volume) = gone {
            volume.gone.store(true, Ordering::Release);
            control.samples.remove(&id);
        }
    }

    /// Tells a home's FTL of blocks that it lent and that are bad now.
    pub(crate) fn lost_blocks(&self, home: VssdId, bad: &[FlashBlock]) -> Result<()> {
        let Some(volume) = self.volume(home) else { return Ok(()) };
        let mut inner = volume.write();
        for block in bad {
            if inner.vssd.is_lent(*block) {
                let change = inner.vssd.lost_block(*block)?;
                self.log.change(home, &mut inner, &change)?;
            }
        }
        Ok(())
    }

    /// A write of a home found no space while blocks of it are lent: has them back, and waits a while.
    pub(crate) fn recall(&self, volume: &Volume, pages: usize) -> Result<()> {
        self.check()?;
        volume.check()?;
        let lent = volume.read().vssd.usage().lent;
        let blocks = pages.div_ceil(self.media.geometry().pages as usize) + 8;
        let capacity = u32::try_from(blocks).unwrap_or(u32::MAX);
        self.tell(Event::Pressed { home: volume.id, bandwidth: 0, capacity })?;
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Cancelled, "the host is being closed"));
        }
        if self.inline && volume.read().vssd.usage().lent >= lent {
            // Nobody else will bring them.
            let cause = "what it lent does not come back";
            return Err(Error::new(ErrorKind::NoSpace, cause).about(format_args!("vSSD {}", volume.name)));
        }
        let control = lock(&self.control);
        if volume.read().vssd.usage().lent >= lent {
            drop(self.changed.wait_timeout(control, PAUSE).unwrap_or_else(PoisonError::into_inner));
        }
        Ok(())
    }

    /// Answers of the broker to a request of this number.
    pub(crate) fn answer_to(&self, request: crate::broker::RequestId) -> Option<Answer> {
        lock(&self.control).answers.remove(&request)
    }

    /// The records that a journal is to begin with to lead to the present state. All volumes are locked.
    pub(crate) fn records(
        &self,
        control: &Control,
        volumes: &BTreeMap<VssdId, Arc<Volume>>,
        snapshots: &[(VssdId, crate::vssd::Snapshot)],
    ) -> Result<Vec<Record>> {
        let mut records =
            vec![Meta::Flash(*self.media.geometry()).record()?, Meta::Next(control.next_vssd).record()?];
        for volume in volumes.values() {
            records.push(Meta::made(volume.about()).record()?);
        }
        for (vssd, snapshot) in snapshots {
            records.push(Record::Snapshot { vssd: *vssd, map: encoded(snapshot)? });
        }
        let steps = control.broker.snapshot(self.custody.bad(), |id| self.custody.blocks(id));
        records.extend(steps.into_iter().map(Record::Broker));
        Ok(records)
    }

    /// Replaces old records of the journal by what they lead to.
    pub(crate) fn rewrite(&self) -> Result<()> {
        let control = lock(&self.control);
        let volumes = self.volumes.read().unwrap_or_else(PoisonError::into_inner).clone();
        let locked: Vec<_> = volumes.iter().map(|(id, volume)| (*id, volume.write())).collect();
        let snapshots: Vec<_> = locked.iter().map(|(id, inner)| (*id, inner.vssd.snapshot())).collect();
        let records = self.records(&control, &volumes, &snapshots)?;
        self.log.rewrite(&self.media, &records)?;
        drop(locked);
        for (id, snapshot) in snapshots {
            if let Some(volume) = volumes.get(&id) {
                volume.write().vssd.durable(snapshot.number);
            }
        }
        Ok(())
    }
}

/// Shares so many blocks out over so many channels, the ones with the most first, as evenly as they have them.
fn spread(channels: &[(u16, u32)], bandwidth: u16, capacity: u32) -> Vec<(u16, u32)> {
    let mut most: Vec<(u16, u32)> = channels.to_vec();
    most.sort_by_key(|(channel, count)| (std::cmp::Reverse(*count), *channel));
    most.truncate(bandwidth.into());
    let (mut left, mut wanted) = (capacity, Vec::with_capacity(most.len()));
    // Those with the fewest first: what they lack the others make up for.
    for (index, (channel, count)) in most.iter().enumerate().rev() {
        let share = left.div_ceil(u32::try_from(index + 1).unwrap_or(1)).min(*count);
        if share > 0 {
            wanted.push((*channel, share));
        }
        left -= share;
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_shared_out_over_channels() {
        let channels = [(0, 100), (1, 10), (2, 50)];
        assert_eq!(spread(&channels, 3, 60), [(1, 10), (2, 25), (0, 25)]);
        assert_eq!(spread(&channels, 2, 60), [(2, 30), (0, 30)]);
        assert_eq!(spread(&channels, 2, 1000), [(2, 50), (0, 100)]);
        assert_eq!(spread(&channels, 3, 1), [(1, 1)]);
        assert!(spread(&channels, 0, 5).is_empty() && spread(&[], 3, 5).is_empty());
    }
}
