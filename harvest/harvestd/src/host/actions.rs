//! The broker's actions, by the rule of the journal: decisions are durable before they are acted on.
//!
//! Events gather in an inbox. The thread that gets the control lock takes all of them: the steps of all go to the
//! journal together and are synced once, then custody applies them, then the rest is done in order. Short work is done
//! under the lock (blocks given to an FTL or taken from one); work that takes time becomes a [`Job`].
//!
//! Locks, in the order in which they are taken: control; the inbox, the list of volumes and the jobs, each for a
//! moment; a volume's; custody's ledger; the journal's. No thread that holds a volume's lock waits for flash or for
//! control.

use super::job::Job;
use super::volume::Volume;
use super::{Control, Host};
use headstart_block::{Error, ErrorKind, Result, exact};
use headstart_broker::event::BrokerAnswer;
use headstart_broker::{BrokerAction, BrokerEvent, BrokerRequestId, BrokerStep};
use headstart_flash::device::FlashBlock;
use headstart_flash::journal::Lsn;
use headstart_flash::{GssdId, VssdId, VssdKind};
use std::sync::atomic::Ordering;

/// The broker's decisions: no part of them is done before their steps are durable.
pub(crate) struct Decided {
    actions: Vec<BrokerAction>,
    /// The place of the last of the steps, if there are any.
    steps: Option<Lsn>,
}

impl Decided {
    /// Takes the answer to a request out.
    fn take_answer(&mut self, request: BrokerRequestId) -> Option<BrokerAnswer> {
        let is_it = |action: &BrokerAction| match action {
            BrokerAction::Answer { request: of, .. } => *of == request,
            _ => false,
        };
        let at = self.actions.iter().position(is_it)?;
        match self.actions.remove(at) {
            BrokerAction::Answer { answer, .. } => Some(answer),
            _ => None,
        }
    }
}

impl Host {
    /// Tells the broker of an event.
    pub(crate) fn notify(&self, event: BrokerEvent) -> Result<()> {
        self.inbox.lock().push(event);
        self.process_events()
    }

    /// Does the same as [`Host::notify`] for a fact that holds in any case: on a full disk the broker is told, and the
    /// decision is carried out when there is room.
    pub(crate) fn notify_now_or_later(&self, event: BrokerEvent) -> Result<()> {
        match self.notify(event) {
            Err(error) if error.kind() == ErrorKind::NoSpace => self.check(),
            told => told,
        }
    }

    /// Takes a request back whose user is told that there is no room: its grant is released.
    pub(super) fn take_back(&self, request: BrokerRequestId, borrower: VssdId) {
        let control = &mut *self.control.lock();
        let inbox = &mut *self.inbox.lock();
        inbox.retain(|event| !matches!(event, BrokerEvent::Request(asked) if asked.request == request));
        let decided = control.decided.as_mut().and_then(|decided| decided.take_answer(request));
        let answer = decided.or_else(|| control.answers.remove(&request));
        if let Some(BrokerAnswer::Granted(grant) | BrokerAnswer::Partly(grant)) = answer {
            let release = |&(_, gssd): &(u8, GssdId)| BrokerEvent::Release { borrower, gssd: Some(gssd) };
            inbox.extend(grant.slots.iter().map(release));
        }
    }

    /// Has the broker take all events, and does its actions.
    pub(crate) fn process_events(&self) -> Result<()> {
        let mut control = self.control.lock();
        let processed = self.process_events_locked(&mut control);
        drop(control);
        self.changed.notify_all();
        if self.inline && processed.is_ok() {
            self.run_jobs();
        }
        processed
    }

    /// Does the same as [`Host::process_events`], for a caller that has the control lock; jobs that this causes begin
    /// by themselves, or are done with the next call.
    pub(crate) fn process_events_locked(&self, control: &mut Control) -> Result<()> {
        loop {
            // The broker may be ahead of the journal then.
            self.check()?;
            if control.decided.is_some() {
                self.act(control)?;
            }
            let events = std::mem::take(&mut *self.inbox.lock());
            let mut actions = std::mem::take(&mut control.resumed);
            if events.is_empty() && actions.is_empty() {
                return Ok(());
            }
            let now = self.time();
            for event in events {
                control.broker.on_event(now, event, &mut actions);
            }
            self.decide(control, actions)?;
        }
    }

    /// Writes the steps to the journal; [`Host::act`] does the actions that follow.
    pub(super) fn decide(&self, control: &mut Control, actions: Vec<BrokerAction>) -> Result<()> {
        let mut steps = None;
        for action in &actions {
            if let BrokerAction::Journal(step) = action {
                steps = Some(self.log.step(step).map_err(|error| self.broken(error))?);
            }
        }
        control.decided = Some(Decided { actions, steps });
        Ok(())
    }

    /// Does the decided actions; if the journal's disk is full, they stay decided, and are done later.
    pub(super) fn act(&self, control: &mut Control) -> Result<()> {
        if let Some(lsn) = control.decided.as_ref().and_then(|decided| decided.steps) {
            self.log.sync(&self.media, lsn).map_err(|error| match error.kind() {
                ErrorKind::NoSpace => error,
                _ => self.broken(error),
            })?;
        }
        let actions = control.decided.take().map(|decided| decided.actions).unwrap_or_default();
        for action in &actions {
            if let BrokerAction::Journal(step) = action {
                self.custody.apply(step).map_err(|error| self.broken(error))?;
            }
        }
        // The steps are facts from here on. An action that cannot be done takes none of the others along, and the host
        // stops: the broker is ahead of it, and the missing actions are done after a restart.
        let mut failure = None;
        for action in actions {
            if let Err(error) = self.do_action(control, action) {
                failure.get_or_insert(self.broken(error));
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn do_action(&self, control: &mut Control, action: BrokerAction) -> Result<()> {
        match action {
            BrokerAction::Journal(BrokerStep::Deleted { vssd, .. }) => self.forget(control, vssd),
            BrokerAction::Journal(BrokerStep::Swapped { one, other, .. }) => {
                self.swapped(control, one, other)?;
            }
            BrokerAction::Journal(_) => {}
            BrokerAction::Carve { gssd, lender, bandwidth, capacity } => {
                let event = self
                    .carve(control, gssd, lender, bandwidth, capacity)
                    .map_err(|error| undone(gssd, "it cannot be taken from its lender", error))?;
                self.inbox.lock().push(event);
            }
            BrokerAction::Attach { gssd, borrower, slot } => {
                self.attach(gssd, borrower, slot)
                    .map_err(|error| undone(gssd, "it cannot be given to its borrower", error))?;
            }
            BrokerAction::Return { gssd, lender } => {
                self.return_to_lender(gssd, lender)
                    .map_err(|error| undone(gssd, "it cannot go back to its lender", error))?;
            }
            BrokerAction::Keep { one, other } => self.keep_channels(one, other),
            BrokerAction::Erase { gssd } => self.begin(Job::Erase(gssd)),
            BrokerAction::Evacuate { gssd, borrower, slot } => {
                self.begin(Job::Evacuate(gssd, borrower, slot));
            }
            BrokerAction::Detach { gssd, borrower, slot } => self.begin(Job::Detach(gssd, borrower, slot)),
            BrokerAction::Wipe { vssd } => self.begin(Job::Wipe(vssd)),
            BrokerAction::Answer { request, answer } => {
                control.answers.insert(request, answer);
            }
            BrokerAction::Report(report) => {
                tracing::warn!(vssd = report.vssd.0, "{report}");
                control.report(report);
            }
        }
        Ok(())
    }

    /// Takes blocks from a lender, spread over the wanted number of its channels.
    fn carve(
        &self,
        control: &Control,
        gssd: GssdId,
        lender: VssdId,
        bandwidth: u16,
        capacity: u32,
    ) -> Result<BrokerEvent> {
        let nothing = BrokerEvent::Carved { gssd, bandwidth: 0, capacity: 0, blocks: Vec::new() };
        let Some(volume) = self.volume(lender) else { return Ok(nothing) };
        let mut inner = volume.write();
        let swapped = control.wear_leveling.keeps(lender);
        let beside = swapped.map_or(0, |_| self.media.geometry().channel_blocks());
        let keep = self.keep_of(&volume, &inner.vssd.usage()) + beside;
        let (mut channels, most) = inner.vssd.lendable(keep);
        channels.retain(|(channel, _)| Some(*channel) != swapped);
        let wanted = spread(&channels, bandwidth, capacity.min(most));
        if wanted.is_empty() {
            return Ok(nothing);
        }
        let (mut blocks, change) = match inner.vssd.lend(&wanted, keep) {
            Ok(lent) => lent,
            Err(error) => {
                // It has kept all its blocks; there is only no such gSSD.
                tracing::warn!(%error, vssd = volume.name, "nothing can be lent");
                return Ok(nothing);
            }
        };
        self.log.change(lender, &mut inner, &change)?;
        drop(inner);
        blocks.sort_unstable();
        Ok(BrokerEvent::Carved {
            gssd,
            bandwidth: exact(wanted.len(), "channels have numbers of 16 bits"),
            capacity: exact(blocks.len(), "flash blocks have numbers of 32 bits"),
            blocks: headstart_broker::BlockRun::gather(blocks),
        })
    }

    /// The number of blocks that a vSSD does not lend; an unsold one has no writer.
    pub(super) fn keep_of(&self, volume: &Volume, usage: &headstart_flash::vssd::SpaceUsage) -> u32 {
        if volume.kind == VssdKind::Unsold { 0 } else { self.keep(usage) }
    }

    /// The number of blocks that a lender keeps for writes before any loans come back.
    pub(super) fn keep(&self, usage: &headstart_flash::vssd::SpaceUsage) -> u32 {
        (usage.blocks / 32).clamp(4, 256)
    }

    /// Gives a gSSD's blocks to a borrower, unless it has them already; a disk that grows gets the size of its flash.
    fn attach(&self, gssd: GssdId, borrower: VssdId, slot: u8) -> Result<()> {
        let Some(volume) = self.volume(borrower) else { return Ok(()) };
        let blocks = self.custody.blocks(gssd);
        let blocks = self.media.worn(blocks.into_iter().flat_map(headstart_broker::BlockRun::blocks));
        if blocks.is_empty() {
            return Ok(());
        }
        let mut inner = volume.write();
        if !inner.vssd.has_slot(slot) {
            let change = inner.vssd.add_slot(slot, &blocks)?;
            self.log.change(borrower, &mut inner, &change)?;
        }
        // The host may have crashed between the two.
        if volume.grows {
            let usage = inner.vssd.usage();
            let size = inner.vssd.settings().size_of_blocks(usage.blocks.into());
            if size > inner.vssd.size() {
                match inner.vssd.resize(size) {
                    Ok(change) => {
                        self.log.change(borrower, &mut inner, &change)?;
                        volume.resized(size);
                    }
                    // It has the space anyway.
                    Err(error) => tracing::warn!(%error, vssd = volume.name, "the disk cannot grow"),
                }
            }
        }
        Ok(())
    }

    /// Gives a gSSD's blocks back to their lender.
    fn return_to_lender(&self, gssd: GssdId, lender: VssdId) -> Result<()> {
        let runs = self.custody.take_returned(gssd);
        let Some(volume) = self.volume(lender) else { return Ok(()) };
        let mut inner = volume.write();
        let blocks = runs.into_iter().flat_map(headstart_broker::BlockRun::blocks);
        let blocks: Vec<_> = self.media.worn(blocks.filter(|block| inner.vssd.is_lent(*block)));
        if !blocks.is_empty() {
            let change = inner.vssd.take_back(&blocks)?;
            self.log.change(lender, &mut inner, &change)?;
        }
        drop(inner);
        volume.turn_over();
        Ok(())
    }

    /// Removes a deleted vSSD.
    fn forget(&self, control: &mut Control, id: VssdId) {
        let gone = self.volumes.write().remove(&id);
        if let Some(volume) = gone {
            volume.gone.store(true, Ordering::Release);
            self.written_before.fetch_add(volume.meter.counts()[1], Ordering::Relaxed);
            control.samples.remove(&id);
        }
    }

    /// Tells a lender's FTL of blocks that it lent and that are bad now.
    pub(crate) fn lost_blocks(&self, lender: VssdId, bad: &[FlashBlock]) -> Result<()> {
        let Some(volume) = self.volume(lender) else { return Ok(()) };
        let mut inner = volume.write();
        for block in bad {
            if inner.vssd.is_lent(*block) {
                let change = inner.vssd.lost_block(*block)?;
                self.log.change(lender, &mut inner, &change)?;
            }
        }
        Ok(())
    }

    /// Takes the broker's answer to a request of this number.
    pub(crate) fn answer_to(&self, request: BrokerRequestId) -> Option<BrokerAnswer> {
        self.control.lock().answers.remove(&request)
    }
}

/// The error of a decision for a gSSD that cannot be carried out.
fn undone(gssd: GssdId, what: &'static str, error: Error) -> Error {
    Error::new(error.kind(), what).caused_by(error).about(format_args!("gSSD {}", gssd.0))
}

/// Shares `capacity` blocks out over `bandwidth` channels, the ones with the most first, as evenly as they have them.
fn spread(channels: &[(u16, u32)], bandwidth: u16, capacity: u32) -> Vec<(u16, u32)> {
    let mut most: Vec<(u16, u32)> = channels.to_vec();
    most.sort_by_key(|(channel, count)| (std::cmp::Reverse(*count), *channel));
    most.truncate(bandwidth.into());
    let (mut left, mut wanted) = (capacity, Vec::with_capacity(most.len()));
    // Those with the fewest first: the others make up for their lack.
    for (index, (channel, count)) in most.iter().enumerate().rev() {
        let share = left.div_ceil(exact(index + 1, "channels have numbers of 16 bits")).min(*count);
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
