//! Rewrites the journal: old records give way to the state that they lead to, while the host is used.

use super::meta::{Meta, encoded};
use super::volume::Volume;
use super::{Control, Host};
use headstart_block::Result;
use headstart_flash::VssdId;
use headstart_flash::journal::{JournalRecord, parts};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Host {
    /// The records that a journal is to begin with to lead to the present state, without the maps.
    fn records(
        &self,
        control: &Control,
        volumes: &BTreeMap<VssdId, Arc<Volume>>,
    ) -> Result<Vec<JournalRecord>> {
        let mut records =
            vec![Meta::Flash(*self.media.geometry()).record()?, Meta::Next(control.next_vssd).record()?];
        for volume in volumes.values() {
            records.push(Meta::made(volume.about()).record()?);
        }
        records.extend(control.inventory.records()?);
        records.extend(control.wear_leveling.record()?);
        records.push(self.media.wear_record().record()?);
        let steps = control.broker.snapshot(self.custody.bad(), |id| self.custody.blocks(id));
        records.extend(steps.into_iter().map(JournalRecord::Broker));
        Ok(records)
    }

    /// Replaces old records of the journal by the state that they lead to. The state of control is taken at the
    /// beginning of the new journal, each map some time after that, under its own lock: changes that come between the
    /// two are in the new journal twice, and read once. So I/O waits only while the map of its vSSD is copied in
    /// memory.
    pub(crate) fn rewrite(&self) -> Result<()> {
        // The slow work on the flash, while no caller waits.
        self.log.sync_all(&self.media)?;
        let (mut new, records, volumes) = {
            let mut control = self.control.lock();
            if control.decided.is_some() {
                // The broker is ahead of custody until then.
                self.act(&mut control)?;
            }
            let volumes = self.volumes.read().clone();
            let new = self.log.rewriting()?;
            (new, self.records(&control, &volumes)?, volumes)
        };
        records.iter().try_for_each(|record| new.write(record))?;
        let mut numbers = Vec::with_capacity(volumes.len());
        for (id, volume) in &volumes {
            let snapshot = volume.read().vssd.snapshot();
            numbers.push((volume, snapshot.number));
            let map = encoded(&snapshot)?;
            drop(snapshot);
            parts(*id, &map).try_for_each(|part| new.write(&part))?;
        }
        self.log.replace(&self.media, new)?;
        for (volume, number) in numbers {
            volume.write().vssd.durable(number);
            volume.turn_over();
        }
        Ok(())
    }

    /// Does the same as [`Host::rewrite`] if it is time to; after failures, less and less often.
    pub(crate) fn rewrite_if_grown(&self) {
        if self.log.is_rewriting_due() {
            self.log.rewrote(self.rewrite());
        }
    }
}
