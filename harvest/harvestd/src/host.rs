//! A host: flash, vSSDs, journal and broker put together. The parts below decide; this module reads, programs and
//! erases, writes the journal, and waits.
//!
//! * *Bytes*: [`disk`](crate::disk) and `program`: the reads and writes of VMs, the copies of collectors.
//! * *Control*: `actions`: the broker's decisions, each durable before it is carried out; `jobs`: work that takes time.
//! * *Time*: [`Host::tick`], called once a second by the server: samples, forecasts, timers, work for idle times.
//! * *After a crash*: `recover`: the journal is read, unfinished work is finished, all blocks of unknown state are
//!   erased.
//!
//! # Durability
//!
//! A page is programmed before its write returns, and mapped in memory. The changes of the map wait for a flush, which
//! flushes the flash first, and then writes the changes to the journal: so no durable map ever names pages that may be
//! torn. A block with replaced data is erased only when the change that replaced the data is durable. So a crash, or a
//! loss of power, takes back unflushed writes, whole pages of them, and nothing else.
//!
//! # Separation of holders
//!
//! Three mechanisms keep a holder's bytes from the next holder. Custody lets a block change hands only if its erasure
//! is in the journal. Every read, program and erasure of a VM asks custody first. And `media` skips an erasure only if
//! the block is certainly erased: this process erased it, or an earlier one that closed the host in good order, and it
//! was not programmed since.
//!
//! | module | content |
//! |---|---|
//! | [`status`] | the requests to a host and its answers |
//! | [`options`] | the settings; opening and making flash |
//! | `media` | the flash with its queue and counts |
//! | `log` | the journal, after the flash |
//! | `meta` | the state that the host itself keeps |
//! | `volume` | a vSSD with its lock, its ranges and turns |
//! | `program` | pages on their way to flash |
//! | `suspect_pages` | pages that could not be read |
//! | `actions` | the broker's actions |
//! | `jobs` | work that takes time |
//! | `wear_leveling` | channels that swap owners to wear alike |
//! | `sampling` | the use of vSSDs |
//! | `unsold` | the time for which unsold storage stays unsold |
//! | `recover` | opening, creating, and the repair after a crash |
//! | [`rescue`] | a directory that cannot be opened: its damage, and the data that can be saved |
//! | `rewrite` | old records of the journal give way to new ones |
//! | `show` | status |

pub(crate) mod actions;
mod job;
mod jobs;
pub(crate) mod log;
pub(crate) mod media;
mod meta;
pub mod options;
pub(crate) mod program;
mod recover;
pub mod rescue;
mod rewrite;
pub(crate) mod sampling;
mod show;
pub mod status;
mod suspect_pages;
#[cfg(test)]
mod tests;
mod unsold;
pub(crate) mod volume;
mod wear_leveling;

pub use options::{FlashPlace, HostSettings, Options};
pub use status::{
    FlashStatus, ForecastStatus, HarvestRequest, HostStatus, JournalStatus, LeaseStatus, PooledStatus,
    ReportKind, UserReport, VssdSpec, VssdStatus,
};

use actions::Decided;
use headstart_block::{ByteSize, Error, ErrorKind, Result, Time, exact, saturating};
use headstart_broker::{
    Broker, BrokerAction, BrokerAnswer, BrokerEvent, BrokerReport, BrokerRequest, BrokerRequestId, counted,
};
use headstart_flash::custody::Custody;
use headstart_flash::device::{FlashBlock, Geometry};
use headstart_flash::queue::Clock;
use headstart_flash::vssd::{Effort, Vssd};
use headstart_flash::{GssdId, VssdId, VssdKind};
use headstart_forecast::{Forecast, ForecastSettings};
use job::Job;
use media::Media;
use meta::{About, Meta};
use parking_lot::{Condvar, Mutex, RwLock};
use sampling::Sampler;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use unsold::UnsoldInventory;
use volume::Volume;
use wear_leveling::WearLeveling;

/// Reports that are kept.
const REPORTS: usize = 256;
/// The number of pauses of 50 ms for which a deletion is waited for.
const DELETED: usize = 40;

/// A host: flash, the vSSDs on it, and the decisions on lending. All methods may be called from any thread.
pub struct Host {
    pub(crate) me: Weak<Self>,
    settings: HostSettings,
    /// The place of the flash, for people.
    place: String,
    pub(crate) media: Media,
    pub(crate) log: log::Log,
    pub(crate) custody: Custody,
    volumes: RwLock<BTreeMap<VssdId, Arc<Volume>>>,
    inbox: Mutex<Vec<BrokerEvent>>,
    control: Mutex<Control>,
    /// Notified when a decision was carried out, or a job is done.
    changed: Condvar,
    jobs: Mutex<Jobs>,
    requests: AtomicU64,
    /// Bytes that the VMs of deleted vSSDs wrote since the host was opened.
    written_before: AtomicU64,
    clock: Arc<dyn Clock>,
    /// `true` if jobs are done by the thread that caused them.
    inline: bool,
    closing: AtomicBool,
    /// The reason that the host has stopped.
    broken: Mutex<Option<String>>,
    /// Held while the host is open.
    _lock: Option<std::fs::File>,
}

/// The deciding parts, with their state.
pub(crate) struct Control {
    broker: Broker,
    answers: BTreeMap<BrokerRequestId, BrokerAnswer>,
    reports: VecDeque<(u64, BrokerReport)>,
    reported: u64,
    samples: BTreeMap<VssdId, Sampler>,
    inventory: UnsoldInventory,
    wear_leveling: WearLeveling,
    next_vssd: u32,
    /// The actions to do (again) after a start.
    resumed: Vec<BrokerAction>,
    /// Decisions that are not carried out yet.
    decided: Option<Decided>,
}

/// The jobs of a host.
#[derive(Default)]
pub(crate) struct Jobs {
    /// Each with `true` if it is to begin again when it has ended.
    running: BTreeMap<Job, bool>,
    waiting: VecDeque<Job>,
    failed: Vec<Job>,
}

impl Control {
    fn report(&mut self, report: BrokerReport) {
        self.reported += 1;
        self.reports.push_back((self.reported, report));
        if self.reports.len() > REPORTS {
            self.reports.pop_front();
        }
    }
}

impl Host {
    /// Makes a vSSD on channels that no vSSD owns, the least worn ones first. Returns its state.
    ///
    /// # Errors
    /// Conflict if the name is in use, or if a deleted vSSD of this name is still being erased; NoSpace if there are
    /// too few free channels, if the size does not fit on them, or if the journal's file system is full; Invalid for an
    /// impossible name or size.
    #[expect(clippy::needless_pass_by_value, reason = "it is made for this call")]
    pub fn create(&self, name: &str, spec: VssdSpec) -> Result<VssdStatus> {
        self.check()?;
        check_name(name)?;
        let (id, processed) = {
            let control = &mut *self.control.lock();
            let id = self.create_locked(control, name, &spec)?;
            (id, self.process_events_locked(control))
        };
        if let Err(error) = processed.and_then(|()| self.process_events()) {
            // A caller that is told that there is no room does not find the vSSD there later.
            if let Some(volume) = self.volume(id) {
                volume.gone.store(true, Ordering::SeqCst);
                self.control.lock().inventory.forget(id);
                self.inbox.lock().push(BrokerEvent::Deleted { vssd: id });
            }
            return Err(error);
        }
        let error =
            || Error::new(ErrorKind::NotFound, "it is gone already").about(format_args!("vSSD {name}"));
        self.status_of(&self.control.lock(), id).ok_or_else(error)
    }

    fn create_locked(&self, control: &mut Control, name: &str, spec: &VssdSpec) -> Result<VssdId> {
        let volumes = self.volumes.read().clone();
        if let Some(there) = volumes.values().find(|volume| volume.name == name) {
            let gone = there.gone.load(Ordering::Acquire);
            let cause = if gone { "it is still being deleted" } else { "there is one of this name" };
            let error = Error::new(ErrorKind::Conflict, cause).about(format_args!("vSSD {name}"));
            return Err(if gone { error.remedy("wait until its flash is erased") } else { error });
        }
        let count = spec.channels.unwrap_or_else(|| self.channels_for(spec.size));
        let channels = self.take_channels(name, count, &volumes)?;
        let blocks =
            channels.iter().flat_map(|channel| self.media.geometry().blocks_of(*channel)).map(FlashBlock);
        let home = self.media.worn(blocks.filter(|block| !self.media.is_bad(*block)));
        let about = |error: Error| error.about(format_args!("vSSD {name}"));
        let settings = self.vssd_settings(spec, home.len() as u64).map_err(about)?;
        let vssd = Vssd::new(&settings, &home).map_err(about)?;
        let capacity = exact(home.len(), "flash blocks have numbers of 32 bits");
        let id = VssdId(control.next_vssd);
        let grows = spec.kind == VssdKind::Harvest && spec.size.is_none();
        let known = About { id, name: name.to_owned(), kind: spec.kind, channels, grows };
        let map = meta::encoded(&vssd.snapshot())?;
        self.log.may_take(map.len() as u64)?;
        self.log.append(&Meta::Next(id.0 + 1).record()?)?;
        self.log.append(&Meta::made(known.clone()).record()?)?;
        headstart_flash::journal::parts(id, &map).try_for_each(|part| self.log.append(&part).map(drop))?;
        control.next_vssd += 1;
        self.add_volume(control, known.clone(), vssd, 0);
        let kind = spec.kind;
        let created =
            BrokerEvent::Created { vssd: id, kind, bandwidth: count, capacity, channels: known.channels };
        self.inbox.lock().push(created);
        if spec.kind == VssdKind::Unsold
            && let Some(volume) = self.volume(id)
        {
            let now = self.time();
            self.log.append(&Meta::Since { vssd: id, at_us: now.0 }.record()?)?;
            control.inventory.put(id, now);
            let offer = self.offer_unsold(control, &volume);
            self.inbox.lock().push(offer);
        }
        Ok(id)
    }

    /// Returns the state of all vSSDs, in the order of their numbers. Those that are being deleted are left out.
    #[must_use]
    pub fn list(&self) -> Vec<VssdStatus> {
        let control = self.control.lock();
        let volumes = self.volumes.read().clone();
        let there = volumes.values().filter(|volume| !volume.gone.load(Ordering::Acquire));
        there.filter_map(|volume| self.status_of(&control, volume.id)).collect()
    }

    /// Changes the size of a vSSD to `size` bytes; data beyond it is discarded.
    ///
    /// # Errors
    /// NotFound if there is no such vSSD; NoSpace if its flash is too small, or if it would grow while the journal's
    /// file system is full; Invalid if the size is 0 or not a multiple of the flash's page size.
    pub fn resize(&self, name: &str, size: u64) -> Result<VssdStatus> {
        let volume = self.named(name)?;
        self.resize_volume(&volume, size)?;
        let error = || Error::new(ErrorKind::NotFound, "it is gone").about(format_args!("vSSD {name}"));
        self.status_of(&self.control.lock(), volume.id).ok_or_else(error)
    }

    pub(crate) fn resize_volume(&self, volume: &Volume, size: u64) -> Result<()> {
        self.check()?;
        volume.check()?;
        {
            let mut inner = volume.write();
            volume.check()?;
            if size > inner.vssd.size() {
                self.log.may_take(0)?;
            }
            let change =
                inner.vssd.resize(size).map_err(|error| error.about(format_args!("vSSD {}", volume.name)))?;
            self.log.change(volume.id, &mut inner, &change)?;
            volume.resized(size);
        }
        volume.flush(&self.log, &self.media)
    }

    /// Deletes a vSSD with all its data. Flash that it lends is taken back, and flash that it has on lease is
    /// returned. Its own flash is erased, and has a new owner only after that; erasing may continue after this
    /// call returns. If the journal's file system is completely full, the deletion is finished when there is room
    /// again.
    ///
    /// # Errors
    /// NotFound if there is no such vSSD; errors of the journal's file system.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.check()?;
        let volume = self.named(name)?;
        volume.gone.store(true, Ordering::SeqCst);
        self.take_from_inventory(&mut self.control.lock(), &volume)?;
        self.notify_now_or_later(BrokerEvent::Deleted { vssd: volume.id })?;
        let mut control = self.control.lock();
        for _ in 0..DELETED {
            if self.inline || self.volume(volume.id).is_none() {
                break;
            }
            self.changed.wait_for(&mut control, Duration::from_millis(50));
        }
        Ok(())
    }

    /// Leases flash for a harvest VM's vSSD. Returns the new leases, whose flash is less than requested only if
    /// [`HarvestRequest::partial`] allows that.
    ///
    /// # Errors
    /// NotFound if there is no such vSSD; Invalid if it is not a harvest VM's, or if the request is for 0 bytes or for
    /// more flash blocks than 32 bits can count; NoSpace if not enough flash is offered, or if the journal's file
    /// system is full.
    #[expect(clippy::needless_pass_by_value, reason = "it is made for this call")]
    pub fn request(&self, name: &str, wanted: HarvestRequest) -> Result<Vec<LeaseStatus>> {
        self.check()?;
        self.log.may_take(0)?;
        let volume = self.named(name)?;
        if wanted.capacity == 0 {
            let error =
                Error::invalid("a request for 0 bytes asks for nothing").about(format_args!("vSSD {name}"));
            return Err(error.remedy("give the capacity that it needs at least, such as 1G"));
        }
        let block = u64::from(self.media.geometry().block_size());
        let capacity = u32::try_from(wanted.capacity.div_ceil(block))
            .map_err(|_| Error::invalid("so much is on no host").about(format_args!("vSSD {name}")))?;
        let request = BrokerRequestId(self.requests.fetch_add(1, Ordering::Relaxed));
        let event = BrokerEvent::Request(BrokerRequest {
            request,
            vm: name.to_owned(),
            borrower: volume.id,
            bandwidth: wanted.bandwidth,
            capacity,
            lasts: wanted.duration,
            partial: wanted.partial,
            grow: self.settings.grow,
        });
        if let Err(error) = self.notify(event) {
            self.take_back(request, volume.id);
            return Err(error);
        }
        let about = |error: Error| error.about(format_args!("vSSD {name}"));
        match self.answer_to(request) {
            Some(BrokerAnswer::Granted(grant) | BrokerAnswer::Partly(grant)) => {
                let control = self.control.lock();
                Ok(grant.slots.iter().filter_map(|(_, id)| self.lease_of(&control, *id)).collect())
            }
            Some(BrokerAnswer::Short { channels, blocks }) => {
                Err(about(self.too_little(channels, blocks * block)))
            }
            Some(BrokerAnswer::NoBorrower) => {
                let error = Error::invalid(
                    "it is not a harvest VM's, or is being deleted: only a harvest VM's borrows",
                );
                Err(about(error.remedy(
                    "name one that was made by `headstart harvest vssd create NAME --kind harvest`; `headstart \
                     harvest vssd list` lists them",
                )))
            }
            Some(BrokerAnswer::Nothing) => Err(about(Error::invalid("nothing is asked for"))),
            None => Err(about(Error::new(ErrorKind::Unavailable, "the request was not answered"))),
        }
    }

    /// The error of a request that the pool has not enough for.
    fn too_little(&self, channels: u64, bytes: u64) -> Error {
        let control = self.control.lock();
        let coming = control.broker.gssds().filter(|(id, _)| control.broker.is_coming(*id));
        let block = u64::from(self.media.geometry().block_size());
        let coming = coming.map(|(_, gssd)| u64::from(gssd.capacity)).sum::<u64>() * block;
        drop(control);
        let mut cause =
            format!("for that long {} on {} are to be had at once", ByteSize(bytes), counted(channels));
        let mut remedy = "ask for less, for a shorter time, or with --partial; or wait until more is spare";
        if coming > 0 {
            cause = format!("{cause}, and {} more are being erased", ByteSize(coming));
            remedy = "ask again when that is erased, as `headstart harvest status` says; or ask for less, for a \
                      shorter time, or with --partial";
        }
        Error::new(ErrorKind::NoSpace, cause).remedy(remedy)
    }

    /// Gives leased flash back. With a `lease`, only that lease ends, and its data moves to the vSSD's other flash.
    /// If the data does not fit there, the lease is kept and [`Self::reports`] has a message. With `None`, all
    /// leases end and all data of the vSSD is lost. If the journal's file system is completely full, this begins
    /// when there is room again.
    ///
    /// # Errors
    /// NotFound if the vSSD does not exist or has no such lease.
    pub fn release(&self, name: &str, lease: Option<GssdId>) -> Result<()> {
        self.check()?;
        let volume = self.named(name)?;
        if let Some(id) = lease {
            let control = self.control.lock();
            if control.broker.gssd(id).is_none_or(|gssd| gssd.borrower != Some(volume.id)) {
                let error = Error::new(ErrorKind::NotFound, format!("it has no lease {}", id.0));
                let error = error.remedy("the status of the vSSD lists its leases");
                return Err(error.about(format_args!("vSSD {name}")));
            }
        }
        self.notify_now_or_later(BrokerEvent::Release { borrower: volume.id, gssd: lease })
    }

    /// Offers flash of a vSSD for lending, in place of its forecast: `channels` channels and `bytes` bytes for the
    /// duration `lasts`. Offered flash that is not leased goes back to the vSSD when the next forecast says that it is
    /// needed.
    ///
    /// # Errors
    /// NotFound if there is no such vSSD; Invalid for a harvest VM's, which lends nothing; NoSpace if the journal's
    /// file system is full.
    pub fn offer(&self, name: &str, channels: u16, bytes: u64, lasts: Duration) -> Result<()> {
        self.check()?;
        self.log.may_take(0)?;
        let volume = self.named(name)?;
        if volume.kind == VssdKind::Harvest {
            let error = Error::invalid("a harvest VM's lends nothing").about(format_args!("vSSD {name}"));
            return Err(error.remedy("release what it borrowed and does not need"));
        }
        let blocks = bytes / u64::from(self.media.geometry().block_size());
        // As much as there is.
        let capacity = saturating(blocks);
        let forecast = Forecast { bandwidth: channels, capacity, lasts };
        let grows = {
            let mut control = self.control.lock();
            if let Some(sampler) = control.samples.get_mut(&volume.id) {
                sampler.set_forecast(forecast);
            }
            self.outgrows(&control, volume.id, &forecast)
        };
        if grows {
            // Unleased storage goes back to its lender, and comes back as part of this offer.
            self.inbox.lock().push(BrokerEvent::Unpool { lender: volume.id });
        }
        self.notify_now_or_later(sampling::event(volume.id, forecast))
    }

    /// `true` if more is offered, or for longer, than a lender has in the pool.
    fn outgrows(&self, control: &Control, lender: VssdId, forecast: &Forecast) -> bool {
        let grain = self.settings.grain(self.media.geometry());
        let until = self.time() + forecast.lasts;
        let mut idle = control.broker.gssds().filter(|(_, gssd)| gssd.lender == lender && !gssd.in_use);
        idle.any(|(_, gssd)| {
            let more = forecast.capacity > gssd.capacity || forecast.bandwidth > gssd.bandwidth;
            let longer = until.since(gssd.expire) >= grain.lasts;
            forecast.capacity >= gssd.capacity && (more || longer)
        })
    }

    /// Does the work that is due by now (samples, forecasts, timers), and starts longer work in the background. To be
    /// called every second.
    pub fn tick(&self) {
        if self.check().is_err() {
            return;
        }
        self.log.look_for_room(&self.media);
        // If the journal's disk is full nothing more is lent, and deferrable work waits.
        let (may_take, may_tidy) = (self.log.may_take(0).is_ok(), self.log.may_tidy().is_ok());
        let now = self.time();
        let volumes = self.volumes.read().clone();
        let (mut events, mut swap) = (Vec::new(), None);
        {
            let control = &mut *self.control.lock();
            if may_take {
                match self.level(control, now, &volumes) {
                    Ok(planned) => swap = planned,
                    Err(error) => tracing::warn!(%error, "wear cannot be levelled"),
                }
                events.extend(self.offer_all_unsold(control, now, volumes.values().map(AsRef::as_ref)));
            }
            if may_tidy && control.broker.next().is_some_and(|next| next <= now) {
                events.push(BrokerEvent::Tick);
            }
            for volume in volumes.values().filter(|volume| volume.kind != VssdKind::Unsold) {
                let usage = volume.read().vssd.usage();
                let used = usage.stored.div_ceil(self.media.geometry().pages.into());
                let Some(sampler) = control.samples.get_mut(&volume.id) else { continue };
                let counts = volume.meter.counts();
                let forecast = sampler.observe(now, counts, used, volume.kind, self.settings.step);
                let forecast = forecast.filter(|_| may_take);
                events.extend(forecast.map(|forecast| sampling::event(volume.id, forecast)));
                if may_tidy && let Some(blocks) = self.space_pressure(&usage) {
                    events.push(BrokerEvent::SpacePressure {
                        lender: volume.id,
                        bandwidth: 0,
                        capacity: blocks,
                    });
                }
            }
        }
        if may_take {
            self.save_wear(media::UNSAVED_WEAR);
        }
        self.inbox.lock().extend(events);
        match self.process_events() {
            Ok(()) => swap.into_iter().for_each(|job| self.begin(job)),
            // That was reported already.
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                tracing::debug!(%error, "the broker's decisions wait");
            }
            Err(error) => tracing::warn!(%error, "the broker's decisions cannot be carried out"),
        }
        self.retry_jobs();
        for volume in volumes.values().filter(|volume| volume.kind != VssdKind::Unsold) {
            self.collect_soon(volume, Effort::Idle);
        }
        self.rewrite_if_grown();
    }

    /// Blocks that a lender wants back before its writes have to wait for them.
    fn space_pressure(&self, usage: &headstart_flash::vssd::SpaceUsage) -> Option<u32> {
        let keep = self.keep(usage);
        let room =
            usage.capacity.saturating_sub(usage.stored) / u64::from(self.media.geometry().pages.max(1));
        let short = usage.lent > 0 && room < u64::from(keep) / 2 && usage.capacity < u64::from(usage.pages);
        short.then_some(keep)
    }

    /// Makes all data durable and stops background work. Afterwards the disks can still be read, but writes fail.
    ///
    /// # Errors
    /// Errors of the flash or of the journal's file system. NoSpace if the file system is so full that the last
    /// deletions, releases or offers are not in the journal: these have no effect after the next start.
    pub fn close(&self) -> Result<()> {
        self.closing.store(true, Ordering::Release);
        self.changed.notify_all();
        let volumes = self.volumes.read().clone();
        volumes.values().try_for_each(|volume| volume.flush(&self.log, &self.media))?;
        self.process_events()?;
        if self.log.may_take(0).is_ok() {
            self.save_wear(1);
            self.save_clean();
            self.log.close(&self.media)?;
        }
        self.check()
    }

    /// Writes the erasures for harvest VMs to the journal, if at least `least` of them are not there yet.
    fn save_wear(&self, least: u64) {
        let saved = self.media.unsaved_wear(least).map(|wear| self.log.append(&wear.record()?)).transpose();
        if let Err(error) = saved {
            tracing::warn!(%error, "the wear for harvest VMs cannot be noted");
        }
    }

    /// Writes the erased blocks to the journal, as its last record. Nothing is programmed from here on.
    fn save_clean(&self) {
        let ended = self.media.end().map_err(|error| log::from_flash(error, "the flash cannot be flushed"));
        if let Err(error) = ended.and_then(|clean| self.log.append(&clean.record()?)) {
            tracing::warn!(%error, "the erased blocks cannot be recorded, and are erased again at the next start");
        }
    }

    /// The present time, as the broker counts.
    fn time(&self) -> Time {
        Time(saturating::<u64>(self.clock.now().as_micros()))
    }

    pub(crate) fn volume(&self, id: VssdId) -> Option<Arc<Volume>> {
        self.volumes.read().get(&id).cloned()
    }

    pub(crate) fn named(&self, name: &str) -> Result<Arc<Volume>> {
        let volumes = self.volumes.read();
        let mut there = volumes.values().filter(|volume| !volume.gone.load(Ordering::Acquire));
        there.find(|volume| volume.name == name).cloned().ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "there is none of this name").about(format_args!("vSSD {name}"))
        })
    }

    /// Stops all decisions: the journal may not tell what was done.
    pub(crate) fn broken(&self, error: Error) -> Error {
        let error = error.remedy("see to the disk that its journal is on, then start it again");
        self.broken.lock().get_or_insert_with(|| error.to_string());
        error
    }

    fn check(&self) -> Result<()> {
        match &*self.broken.lock() {
            None => Ok(()),
            // The message contains the remedy.
            Some(cause) => Err(Error::new(ErrorKind::Io, format!("it stopped: {cause}")).about("the host")),
        }
    }

    fn vssd_settings(&self, spec: &VssdSpec, blocks: u64) -> Result<headstart_flash::vssd::VssdSettings> {
        let geometry = *self.media.geometry();
        let harvest = spec.kind == VssdKind::Harvest;
        let fits = headstart_flash::vssd::VssdSettings::new(geometry, 0).size_of_blocks(blocks);
        let page = u64::from(geometry.page_size);
        let size = match spec.size {
            Some(size) if size == 0 || !size.is_multiple_of(page) => {
                let error = Error::invalid(format!("{size} bytes are not whole flash pages of {page}"));
                return Err(error.remedy(format!("give a multiple of {page}")));
            }
            Some(size) => size,
            None if harvest => fits.max(page),
            None if fits == 0 => {
                let error = Error::new(
                    ErrorKind::NoSpace,
                    "so few channels hold nothing but what flash needs itself",
                );
                return Err(error.remedy("give it more channels"));
            }
            None => fits,
        };
        let mut settings = headstart_flash::vssd::VssdSettings {
            thin: harvest,
            ..headstart_flash::vssd::VssdSettings::new(geometry, size)
        };
        if harvest {
            // It will be larger than it begins.
            let all = headstart_flash::vssd::VssdSettings::new(geometry, geometry.size() / 2);
            settings.interleave = all.width();
            settings.overlay_limit = all.overlay_limit;
        }
        Ok(settings)
    }

    /// The number of channels that hold `size` bytes, and the flash's own need.
    fn channels_for(&self, size: Option<u64>) -> u16 {
        let geometry = *self.media.geometry();
        let blocks = size
            .map_or(1, |size| headstart_flash::vssd::VssdSettings::new(geometry, size).blocks_needed(size));
        // More than there are, if the size is beyond all flash.
        saturating(blocks.div_ceil(geometry.channel_blocks().into()).max(1))
    }

    /// Takes channels without an owner, the least worn first.
    fn take_channels(
        &self,
        name: &str,
        count: u16,
        volumes: &BTreeMap<VssdId, Arc<Volume>>,
    ) -> Result<Vec<u16>> {
        let geometry = self.media.geometry();
        let taken: BTreeSet<u16> = volumes.values().flat_map(|volume| volume.channels()).collect();
        // One that is being swapped may be erased until that has ended.
        let swapped: BTreeSet<u16> = self.jobs.lock().running.keys().flat_map(Job::channels).collect();
        let is_free = |channel: &u16| !taken.contains(channel) && !swapped.contains(channel);
        let mut free: Vec<u16> = (0..geometry.channels).filter(is_free).collect();
        if free.len() < usize::from(count) {
            let cause = format!("it takes {}, {} are free", counted(count.into()), free.len());
            let error = Error::new(ErrorKind::NoSpace, cause).about(format_args!("vSSD {name}"));
            return Err(error.remedy("make it smaller, or delete a vSSD"));
        }
        free.sort_by_key(|channel| (self.wear_of(geometry, *channel), *channel));
        free.truncate(count.into());
        free.sort_unstable();
        Ok(free)
    }

    /// Erasures of a channel since it was made.
    fn wear_of(&self, geometry: &Geometry, channel: u16) -> u64 {
        geometry.blocks_of(channel).map(|block| u64::from(self.media.wear(FlashBlock(block)))).sum()
    }

    fn add_volume(&self, control: &mut Control, about: About, vssd: Vssd, last: u64) {
        let geometry = *self.media.geometry();
        let channels: u16 = exact(about.channels.len(), "a channel has one owner, and a number of 16 bits");
        about.channels.iter().for_each(|channel| self.media.queue().set_owner(*channel, about.id.0));
        // A borrower may need all the flash that there is.
        let (channels, blocks) = match about.kind {
            VssdKind::Harvest => (geometry.channels, geometry.total_blocks()),
            _ => (channels, u32::from(channels) * geometry.channel_blocks()),
        };
        let settings = ForecastSettings {
            channels,
            blocks,
            unit: self.settings.grain(&geometry).capacity,
            horizon: self.settings.horizon,
            kind: self.settings.predictors,
            ..ForecastSettings::default()
        };
        let sampler = Sampler::new(settings, self.settings.channel_worth, self.time());
        control.samples.insert(about.id, sampler);
        let volume = Arc::new(Volume::new(about, vssd, last));
        self.volumes.write().insert(volume.id, volume);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
    }
}

fn check_name(name: &str) -> Result<()> {
    let right = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if name.is_empty() || name.len() > 64 || !name.chars().all(right) || name.starts_with(['.', '-']) {
        let error = Error::invalid(format!("`{}` is not a name for a vSSD", name.escape_debug()));
        return Err(error.remedy("use up to 64 letters, digits, and - _ . after the first"));
    }
    Ok(())
}
