//! A host's descriptions of itself.

use super::status::{
    FlashStatus, ForecastStatus, HostStatus, JournalStatus, LeaseStatus, PooledStatus, ReportKind,
    UserReport, VssdStatus,
};
use super::{Control, Host};
use headstart_block::saturating;
use headstart_broker::{BlockRun, Notice};
use headstart_flash::device::FlashBlock;
use headstart_flash::{GssdId, VssdId};
use std::sync::atomic::Ordering;

impl Host {
    /// Returns the state of the whole host: flash, pool, leases, counts and journal.
    #[must_use]
    pub fn status(&self) -> HostStatus {
        let control = self.control.lock();
        let ids: Vec<GssdId> = control.broker.gssds().map(|(id, _)| id).collect();
        HostStatus {
            pool: ids.iter().filter_map(|id| self.pooled_of(&control, *id)).collect(),
            leases: ids.iter().filter_map(|id| self.lease_of(&control, *id)).collect(),
            flash: self.flash_status(),
            broker: control.broker.counters(),
            journal: self.journal_status(),
            stopped: self.broken.lock().clone(),
        }
    }

    /// Returns the messages to users of VMs: the last 256, the newest last.
    #[must_use]
    pub fn reports(&self) -> Vec<UserReport> {
        let (now, control) = (self.time(), self.control.lock());
        let reports = control.reports.iter().map(|(number, report)| UserReport {
            number: *number,
            ago_s: now.since(report.at).as_secs(),
            vssd: report.vm.clone(),
            what: match report.what {
                Notice::Evicted { .. } => ReportKind::Evicted,
                Notice::UnderHarvest { .. } => ReportKind::UnderHarvest,
                Notice::Kept { .. } => ReportKind::Kept,
                Notice::Unreadable { .. } => ReportKind::Unreadable,
                Notice::Expired { .. } => ReportKind::Expired,
            },
            text: report.to_string(),
        });
        reports.collect()
    }

    pub(super) fn status_of(&self, control: &Control, id: VssdId) -> Option<VssdStatus> {
        let volume = self.volume(id)?;
        let geometry = self.media.geometry();
        let block = u64::from(geometry.block_size());
        let usage = volume.read().vssd.usage();
        let leases: Vec<LeaseStatus> =
            control.broker.slots(id).filter_map(|(_, gssd)| self.lease_of(control, gssd)).collect();
        let forecast = control.samples.get(&id).and_then(super::sampling::Sampler::forecast);
        let channels = volume.channels();
        let [read_bytes, written_bytes, _] = volume.meter.counts();
        let worn: u64 = channels.iter().map(|channel| self.wear_of(geometry, *channel)).sum();
        Some(VssdStatus {
            name: volume.name.clone(),
            id,
            kind: volume.kind,
            size: volume.size(),
            channels: saturating(channels.len()),
            used: usage.stored * u64::from(geometry.page_size),
            lent: u64::from(usage.lent) * block,
            offered: self.lent_by(control, id, |control, gssd| control.broker.is_pooled(gssd)),
            erasing: self.lent_by(control, id, |control, gssd| control.broker.is_coming(gssd)),
            leased: self.lent_by(control, id, |control, gssd| {
                control.broker.gssd(gssd).is_some_and(|gssd| gssd.in_use)
            }),
            borrowed: leases.iter().map(|lease| lease.capacity).sum(),
            leases,
            read_bytes,
            written_bytes,
            harvest_wear: share(self.media.harvest_wear(channels), worn),
            forecast: forecast.map(|forecast| ForecastStatus {
                bandwidth: forecast.bandwidth,
                capacity: u64::from(forecast.capacity) * block,
                lasts_s: forecast.lasts.as_secs(),
            }),
        })
    }

    /// Bytes of the gSSDs of a lender for which `holds` is `true`.
    fn lent_by(&self, control: &Control, lender: VssdId, holds: impl Fn(&Control, GssdId) -> bool) -> u64 {
        let of_it = control.broker.gssds().filter(|(id, gssd)| gssd.lender == lender && holds(control, *id));
        of_it.map(|(_, gssd)| u64::from(gssd.capacity)).sum::<u64>()
            * u64::from(self.media.geometry().block_size())
    }

    pub(super) fn lease_of(&self, control: &Control, id: GssdId) -> Option<LeaseStatus> {
        let gssd = control.broker.gssd(id).filter(|gssd| gssd.in_use)?;
        let (now, name) =
            (self.time(), |id| self.volume(id).map(|volume| volume.name.clone()).unwrap_or_default());
        Some(LeaseStatus {
            id,
            vssd: name(gssd.borrower?),
            home: name(gssd.lender),
            bandwidth: gssd.bandwidth,
            capacity: u64::from(gssd.capacity) * u64::from(self.media.geometry().block_size()),
            left_s: control.broker.until(id).map_or(0, |until| until.since(now).as_secs()),
            spare_s: gssd.expire.since(now).as_secs(),
            leaving: control.broker.is_leaving(id),
        })
    }

    fn pooled_of(&self, control: &Control, id: GssdId) -> Option<PooledStatus> {
        let gssd = control.broker.gssd(id).filter(|gssd| !gssd.in_use)?;
        Some(PooledStatus {
            id,
            home: self.volume(gssd.lender).map(|volume| volume.name.clone()).unwrap_or_default(),
            bandwidth: gssd.bandwidth,
            capacity: u64::from(gssd.capacity) * u64::from(self.media.geometry().block_size()),
            spare_s: gssd.expire.since(self.time()).as_secs(),
            ready: control.broker.is_pooled(id),
            erasing: control.broker.is_coming(id),
        })
    }

    fn flash_status(&self) -> FlashStatus {
        let geometry = self.media.geometry();
        let volumes = self.volumes.read().clone();
        let taken: usize = volumes.values().map(|volume| volume.channels().len()).sum();
        let bad = (0..geometry.total_blocks()).filter(|block| self.media.is_bad(FlashBlock(*block))).count();
        let nobodys: u64 = self.custody.bad().iter().map(|run: &BlockRun| u64::from(run.count)).sum();
        let done = self.media.done();
        let (failed_programs, failing) = self.media.failures();
        FlashStatus {
            place: self.place.clone(),
            size: geometry.size(),
            channels: geometry.channels,
            free_channels: geometry.channels.saturating_sub(saturating(taken)),
            block_size: geometry.block_size().into(),
            bad_blocks: (bad as u64).max(nobodys),
            unreadable_pages: done.given_up,
            erasures: (0..geometry.channels).map(|channel| self.wear_of(geometry, channel)).sum(),
            harvest_erasures: self.media.harvest_wear(0..geometry.channels),
            read_bytes: done.read,
            programmed_bytes: done.programmed,
            written_bytes: volumes
                .values()
                .map(|volume| volume.meter.counts()[1])
                .fold(self.written_before.load(Ordering::Relaxed), u64::saturating_add),
            failed_programs,
            failing,
        }
    }

    fn journal_status(&self) -> JournalStatus {
        let [bytes, records, syncs, snapshots] = self.log.counts();
        let full = self.log.refusal().map(|error| error.to_string());
        JournalStatus { bytes, records, syncs, snapshots, full }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) }
}
