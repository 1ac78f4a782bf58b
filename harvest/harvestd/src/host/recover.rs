//! Opens a host: a new one, or one as a crash left it.
//!
//! In order: the lock; the flash; the journal's records; custody and the broker from the steps; each vSSD from its
//! snapshot and changes. Then differences between the broker and the FTLs are put right, if a crash came between the
//! two: blocks that an FTL lent and no gSSD has are its own again, slots that were leased and not attached are
//! attached. All blocks that come to an FTL this way come before it is declared
//! [recovered](headstart_flash::vssd::Vssd::recovered), and so are erased before they are used, unless the host was
//! closed in good order and the journal lists them as erased. Last, unfinished work is done again.

use super::log::Log;
use super::media::Media;
use super::meta::{About, Looked, Meta, Sold, decoded, kind_of};
use super::options::{FlashPlace, HostSettings, Opened, Options, check_directory, open_flash};
use super::unsold::UnsoldInventory;
use super::wear_leveling::WearLeveling;
use super::{Control, Host, Jobs};
use headstart_block::guarded::{GuardedDir, open_own_file, shell_word};
use headstart_block::{Error, ErrorKind, Result, Time, private, saturating};
use headstart_broker::{BlockRun, Broker, BrokerAction, BrokerStep};
use headstart_flash::custody::Custody;
use headstart_flash::device::{FlashBlock, Geometry};
use headstart_flash::journal::{Journal, JournalRecord, Snapshots};
use headstart_flash::queue::{ChannelQueue, Clock};
use headstart_flash::scheduler::{ChannelSchedulers, Speed};
use headstart_flash::vssd::{Change, Snapshot, Vssd};
use headstart_flash::{VssdId, VssdKind};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The remedy of an error with which a host cannot be opened.
fn remedied(options: &Options, error: Error) -> Error {
    let named = match &options.flash {
        FlashPlace::File { path, .. } if *path == options.dir.join("flash") => String::new(),
        FlashPlace::File { path, .. } | FlashPlace::Device { path } => format!(" --flash {}", path.display()),
        FlashPlace::Emulated { .. } => return error,
    };
    if error.kind() != ErrorKind::Corrupt {
        return error;
    }
    let place = options.dir.display();
    error.remedy(format!(
        "`headstart harvest check {place}{named}` says what is damaged and what can be saved, `headstart harvest \
         rescue {place}{named}` saves it"
    ))
}

/// The content of a journal.
#[derive(Default)]
pub(super) struct Known {
    pub(super) geometry: Option<Geometry>,
    next_vssd: u32,
    pub(super) made: BTreeMap<VssdId, About>,
    pub(super) vssds: BTreeMap<VssdId, Vssd>,
    last: BTreeMap<VssdId, u64>,
    pub(super) steps: Vec<BrokerStep>,
    since: BTreeMap<VssdId, Time>,
    sold: Vec<Sold>,
    looked: Option<Looked>,
    harvest_wear: Vec<u64>,
    /// The blocks that are erased, if the last record lists them.
    clean: Vec<u8>,
}

/// The parts of a host, apart from the content of its journal.
pub(crate) struct Parts {
    pub(crate) opened: Opened,
    pub(crate) settings: HostSettings,
    pub(crate) journal: std::path::PathBuf,
    pub(crate) lock: Option<File>,
    pub(crate) inline: bool,
    pub(crate) guard: Option<super::log::Guard>,
}

impl Host {
    /// Opens the host in the directory of the options, or makes a new one. `clock` must count from the same zero at
    /// every opening, for example the Unix epoch, because the journal stores times.
    ///
    /// # Errors
    /// Conflict if another process has the host open, if the flash is another host's or of another size, if a new
    /// directory has other files, or if the flash has data and may not be erased; Invalid if new flash has no size, or
    /// a size out of range; Corrupt if the journal or the table of the flash is damaged, or if the table is missing;
    /// Unsupported if one of them is of another version; NotFound if the flash is missing; Denied if the directory, or
    /// a file in it or of the flash, belongs to neither root nor this user; errors of the operating system.
    #[expect(clippy::needless_pass_by_value, reason = "it is made for this call")]
    pub fn open(options: Options, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        let dir = &options.dir;
        private::make_directory(dir)
            .map_err(|error| Error::io("cannot be made", error).about(dir.display()))?;
        let own = GuardedDir::open_own(dir)?;
        let emulated = matches!(options.flash, FlashPlace::Emulated { .. });
        let journal = dir.join(if emulated { "journal.emulated" } else { "journal" });
        if !journal.exists() {
            check_directory(dir)?;
        }
        let lock = lock_dir(dir)?;
        if private::close_directory(dir)? {
            tracing::warn!(dir = %dir.display(), "other users could look into it; now they cannot");
        }
        own.check_closed()?;
        let remedied = |error| remedied(&options, error);
        let opened = open_flash(&options, !emulated && journal.exists()).map_err(remedied)?;
        let settings = options.settings.clone();
        let parts = Parts { opened, settings, journal, lock: Some(lock), inline: false, guard: None };
        Self::assemble(parts, clock).map_err(remedied)
    }

    pub(crate) fn assemble(parts: Parts, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        let Parts { opened, settings, journal, lock: held, inline, guard } = parts;
        let Opened { flash, speed, new, forgets, place, made } = opened;
        let geometry = flash.geometry();
        let now = Time(saturating::<u64>(clock.now().as_micros()));
        let (zero, ticking) = (clock.now(), Arc::clone(&clock));
        let schedulers = ChannelSchedulers::new(&geometry, speed, settings.schedulers);
        let queue = ChannelQueue::new(geometry, schedulers, move || ticking.now().saturating_sub(zero));
        let media = Media::new(flash, queue, matches!(speed, Speed::Emulated(_)), new);
        let (journal, known) = if new || forgets {
            let records = [Meta::Flash(geometry).record()?, Meta::Next(0).record()?];
            let created = Journal::create(&journal, &records);
            match (&created, made) {
                (Ok(_), Some(made)) => made.complete(),
                (Err(_), Some(made)) if !journal.exists() => made.unmake(),
                _ => {}
            }
            (created?, Known { geometry: Some(geometry), ..Known::default() })
        } else {
            open_journal(&journal, &geometry)?
        };
        let mut resumed = Vec::new();
        let custody = Custody::recover(geometry, &known.steps)?;
        let broker = Broker::recover(settings.broker(&geometry), now, &known.steps, &mut resumed)?;
        let control = Control {
            broker,
            answers: BTreeMap::new(),
            reports: std::collections::VecDeque::new(),
            reported: 0,
            samples: BTreeMap::new(),
            inventory: UnsoldInventory::default(),
            wear_leveling: WearLeveling::default(),
            next_vssd: known.next_vssd,
            resumed,
            decided: None,
        };
        let host = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            settings,
            place,
            media,
            log: Log::new(journal, guard),
            custody,
            volumes: RwLock::default(),
            inbox: Mutex::default(),
            control: Mutex::new(control),
            changed: Condvar::new(),
            jobs: Mutex::new(Jobs::default()),
            requests: AtomicU64::new(1),
            written_before: AtomicU64::new(0),
            clock,
            inline,
            closing: AtomicBool::new(false),
            broken: Mutex::default(),
            _lock: held,
        });
        host.recover(known)?;
        match host.process_events() {
            Err(error) if error.kind() == ErrorKind::NoSpace && host.check().is_ok() => {
                tracing::warn!(%error, "steps that were begun before the start are finished later");
            }
            processed => processed?,
        }
        Ok(host)
    }

    /// Puts the vSSDs in order.
    fn recover(&self, known: Known) -> Result<()> {
        let control = &mut *self.control.lock();
        let there: BTreeSet<VssdId> = control.broker.vssds().map(|(id, _)| id).collect();
        let Known { mut made, vssds, last, since, sold, looked, harvest_wear, clean, .. } = known;
        self.media.recover_wear(&harvest_wear);
        self.media.recover_clean(&clean);
        looked.into_iter().for_each(|looked| control.wear_leveling.looked(looked));
        sold.into_iter().for_each(|sold| control.inventory.remember(sold));
        for (id, mut vssd) in vssds.into_iter().filter(|(id, _)| there.contains(id)) {
            let Some(mut about) = made.remove(&id) else {
                let error = Error::corrupt("its journal does not have its name");
                return Err(error.about(format_args!("vSSD {}", id.0)));
            };
            let mut last = last.get(&id).copied().unwrap_or(0);
            // Its record may be older than a swap.
            about.channels = control.broker.channels(id).to_vec();
            about.channels.sort_unstable();
            let mut changes = self.reconcile(control, id, &mut vssd)?;
            if let Some(change) = changes.last() {
                last = change.number;
            }
            vssd.recovered(|block| self.media.wear(block), |block| self.media.is_clean(block));
            for action in &control.resumed {
                // Before any write there: its data was moved, or its user was told that it is lost.
                if let BrokerAction::Detach { borrower, slot, .. } = action
                    && *borrower == id
                    && vssd.has_slot(*slot)
                    && let Some(change) = vssd.abandon_slot(*slot)?
                {
                    last = change.number;
                    changes.push(change);
                }
            }
            self.add_volume(control, about, vssd, last);
            let Some(volume) = self.volume(id) else { continue };
            let mut inner = volume.write();
            for change in changes {
                self.log.change(id, &mut inner, &change)?;
            }
        }
        let missing = there.iter().find(|id| self.volume(**id).is_none());
        if let Some(id) = missing {
            return Err(Error::corrupt("its map is not in the journal").about(format_args!("vSSD {}", id.0)));
        }
        for (id, kind) in control.broker.vssds().collect::<Vec<_>>() {
            let Some(volume) = self.volume(id) else { continue };
            if control.broker.is_deleting(id) {
                volume.gone.store(true, std::sync::atomic::Ordering::SeqCst);
            } else if kind == VssdKind::Unsold {
                control.inventory.put(id, since.get(&id).copied().unwrap_or_else(|| self.time()));
                let offer = self.offer_unsold(control, &volume);
                self.inbox.lock().push(offer);
            }
        }
        Ok(())
    }

    /// Puts right the differences between the broker and an FTL.
    fn reconcile(&self, control: &Control, id: VssdId, vssd: &mut Vssd) -> Result<Vec<Change>> {
        let mut changes: Vec<Change> =
            self.follow_swap(vssd, control.broker.channels(id))?.into_iter().collect();
        let lent: BTreeSet<FlashBlock> =
            self.custody.lent(id).into_iter().flat_map(|(_, runs)| runs).flat_map(BlockRun::blocks).collect();
        let bad: BTreeSet<FlashBlock> = self.custody.bad().into_iter().flat_map(BlockRun::blocks).collect();
        let mut home = Vec::new();
        for block in vssd.lent_blocks() {
            if bad.contains(&block) {
                changes.push(vssd.lost_block(block)?);
            } else if !lent.contains(&block) {
                home.push((block, self.media.wear(block)));
            }
        }
        if !home.is_empty() {
            changes.push(vssd.take_back(&home)?);
        }
        for action in &control.resumed {
            if let BrokerAction::Attach { gssd, borrower, slot } = action
                && *borrower == id
                && !vssd.has_slot(*slot)
            {
                let blocks = self.custody.blocks(*gssd).into_iter().flat_map(BlockRun::blocks);
                changes.push(vssd.add_slot(*slot, &self.media.worn(blocks))?);
            }
        }
        let leased: BTreeSet<u8> = control.broker.slots(id).map(|(slot, _)| slot).collect();
        if let Some(slot) = vssd.harvested().into_iter().find(|slot| !leased.contains(slot)) {
            let error = Error::corrupt(format!("its slot {slot} is of a lease that there is not"));
            return Err(error.about(format_args!("vSSD {}", id.0)));
        }
        Ok(changes)
    }
}

fn open_journal(path: &Path, geometry: &Geometry) -> Result<(Journal, Known)> {
    let (mut known, mut snapshots) = (Known::default(), Snapshots::default());
    let (journal, end) = Journal::open(path, |record| known.add(&mut snapshots, record))?;
    if !end.closed {
        known.clean.clear();
    }
    if let Some(torn) = end.torn {
        tracing::warn!(
            at = torn.at,
            bytes = torn.bytes,
            "the end of the journal was torn by a crash and is cut off"
        );
    }
    for (at, _) in &end.restored {
        tracing::warn!(
            at,
            "the journal is damaged there; a copy of what was there is used, and nothing is lost"
        );
    }
    if end.version < headstart_flash::journal::VERSION {
        tracing::info!(version = end.version, "the journal of an earlier version was replaced");
    }
    if known.geometry != Some(*geometry) {
        let error = Error::new(ErrorKind::Conflict, "it is about flash of another size or build");
        return Err(error.about(path.display()).remedy("give the flash that this directory was made with"));
    }
    Ok((journal, known))
}

impl Known {
    /// Forgets vSSDs that were deleted.
    pub(super) fn forget_deleted(&mut self) {
        for step in &self.steps {
            if let BrokerStep::Deleted { vssd, .. } = step {
                self.vssds.remove(vssd);
            }
        }
    }

    /// Takes the next record. `snapshots` gathers their parts.
    pub(super) fn add(&mut self, snapshots: &mut Snapshots, record: JournalRecord) -> Result<()> {
        self.clean.clear();
        match record {
            JournalRecord::Broker(step) => self.steps.push(step),
            JournalRecord::Host { meta } => self.meta(Meta::of(&meta)?),
            JournalRecord::Snapshot { vssd, part, last, map } => {
                let Some(map) = snapshots.add(vssd, part, last, map)? else { return Ok(()) };
                let snapshot: Snapshot = decoded(&map, "a vSSD's map")?;
                drop(map);
                self.last.insert(vssd, snapshot.number);
                self.vssds.insert(vssd, Vssd::restore(&snapshot)?);
            }
            JournalRecord::Map { vssd, change } => {
                let change: Change = decoded(&change, "a change of a vSSD")?;
                let map = self.vssds.get_mut(&vssd).ok_or_else(|| {
                    Error::corrupt("it changes before it is there").about(format_args!("vSSD {}", vssd.0))
                })?;
                map.apply(&change)?;
                let last = self.last.entry(vssd).or_default();
                *last = change.number.max(*last);
            }
            JournalRecord::Whole => {}
        }
        Ok(())
    }

    fn meta(&mut self, meta: Meta) {
        match meta {
            Meta::Flash(geometry) => self.geometry = Some(geometry),
            Meta::Next(next) => self.next_vssd = self.next_vssd.max(next),
            Meta::Made { vssd, name, kind, channels, grows } => {
                self.next_vssd = self.next_vssd.max(vssd.0.saturating_add(1));
                let kind: VssdKind = kind_of(kind);
                self.made.insert(vssd, About { id: vssd, name, kind, channels, grows });
            }
            Meta::Since { vssd, at_us } => drop(self.since.insert(vssd, Time(at_us))),
            Meta::Sold(sold) => self.sold.extend(sold),
            Meta::Looked(looked) => self.looked = Some(looked),
            Meta::HarvestWear(wear) => self.harvest_wear = wear,
            Meta::Clean(blocks) => self.clean = blocks,
        }
    }
}

pub(super) fn lock_dir(dir: &Path) -> Result<File> {
    GuardedDir::open_own(dir)?.check_entries()?;
    let path = dir.join("lock");
    let file = open_own_file(&path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let cause = "another process has this host open";
            let lock = shell_word(&path.display().to_string());
            let remedy = format!(
                "stop that one (`fuser {lock}` says its number, and a daemon ends with SIGTERM), or give another \
                 directory"
            );
            Err(Error::new(ErrorKind::Conflict, cause).about(dir.display()).remedy(remedy))
        }
        Err(TryLockError::Error(error)) => Err(Error::io("cannot be locked", error).about(path.display())),
    }
}
