//! The settings of a host, and the place of its flash.

use headstart_block::{ByteSize, Error, ErrorKind, Result, saturating};
use headstart_broker::BrokerSettings;
use headstart_broker::gssd::Grain;
use headstart_flash::device::claim::{Claim, is_hole};
use headstart_flash::device::emulator::FlashFaults;
use headstart_flash::device::timing::Speeds;
use headstart_flash::device::{Emulator, FileFlash, Flash, Geometry, blank};
use headstart_flash::scheduler::{SchedulerSettings, Speed};
use headstart_flash::vssd;
use headstart_forecast::PredictorKind;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The number of bytes that may go at once on a channel that has a rate.
const BURST: u64 = 1 << 20;

/// The least time for moving a lease: flushes, and operations under way.
const MOVING_LEAST: Duration = Duration::from_secs(60);

/// The options with which [`Host::open`](super::Host::open) opens or makes a host.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of the host's own files: the journal, the lock and, by default, the flash.
    pub dir: PathBuf,
    /// The kind and location of the flash.
    pub flash: FlashPlace,
    /// The number of bytes of the flash to use. `None`: the size with which the directory was made; for a new
    /// directory, the whole device. A new file needs a size.
    pub size: Option<u64>,
    /// `true` to erase flash that is new to this directory even if it holds data; with `false` such flash is
    /// refused.
    pub erase: bool,
    /// The settings of the host.
    pub settings: HostSettings,
}

/// The kind and location of the flash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlashPlace {
    /// A sparse file, which is made if it does not exist.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The size of the flash in bytes. `None`: as [`Options::size`] says.
        size: Option<u64>,
    },
    /// A block device, such as a partition or an NVMe namespace.
    Device {
        /// The path of the device.
        path: PathBuf,
    },
    /// Emulated flash in memory, with the speed of real flash. Its data is gone when the host is closed.
    Emulated {
        /// The size of the flash in bytes.
        size: u64,
    },
}

/// The settings of a host.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// The units in which flash is lent. `None`: one channel, 30 minutes, and 16 GiB as in the BlockFlex
    /// paper (section 4.3.2), but at most a quarter of a channel.
    pub grain: Option<Grain>,
    /// The settings of the broker, which decides on lending. Its grain is set by the field `grain`.
    pub broker: BrokerSettings,
    /// The settings by which regular VMs are protected from harvest VMs on their channels.
    pub schedulers: SchedulerSettings,
    /// The speed of emulated flash; without effect on other flash.
    pub speeds: Speeds,
    /// Limit for each channel of a file or device, in bytes a second, for reads and programs together.
    /// `None`: no limit.
    pub channel_rate: Option<u64>,
    /// The bandwidth that counts as that of one channel in measurements and forecasts, in bytes a second.
    pub channel_worth: u64,
    /// The interval at which vSSDs are measured and forecasts are made.
    pub step: Duration,
    /// Number of intervals that forecasts look ahead.
    pub horizon: usize,
    /// The choice of predictors.
    pub predictors: PredictorKind,
    /// The duration for which unsold flash is expected to stay unsold, while too few past durations are
    /// known.
    pub unsold_lasts: Duration,
    /// The probability, 0 to 1, with which an unsold vSSD is to stay unsold for as long as its flash is offered. The
    /// higher it is, the shorter the time for which the flash is offered. The estimate is made from past vSSDs that
    /// stayed unsold for longer than this one so far.
    pub unsold_cover: f32,
    /// The time limit for moving a lease's data to other flash if the lender needs the flash at once. After this
    /// time the lease ends, and the remaining data is lost. The default is 10 s, because Linux guests give up a
    /// write after 30 s (NVMe and SCSI), and erasing a gSSD of 16 GiB on one channel takes 17 s.
    pub urgent_limit: Duration,
    /// The lowest speed at which a lease's data is expected to be moved if the lender can wait, in bytes a
    /// second for each channel of the lease. The time limit follows from it: [`HostSettings::moving_limit`].
    /// The default is a sixteenth of a channel's bandwidth: the part that a busy owner leaves free.
    pub moving_rate: u64,
    /// The interval between checks whether two channels should swap owners to even out their wear.
    pub swap_every: Duration,
    /// `true` to lend more flash, without a request, to a harvest VM that is forecast to need more than it
    /// has.
    pub grow: bool,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            grain: None,
            broker: BrokerSettings::of_hosts(),
            schedulers: SchedulerSettings::default(),
            speeds: Speeds::default(),
            channel_rate: None,
            channel_worth: Speeds::default().bus,
            step: headstart_forecast::STEP,
            horizon: 5,
            predictors: PredictorKind::default(),
            unsold_lasts: Duration::from_secs(12 * 3600),
            unsold_cover: 0.5,
            urgent_limit: Duration::from_secs(10),
            moving_rate: Speeds::default().bus / 16,
            swap_every: vssd::SWAP_PERIOD,
            grow: true,
        }
    }
}

impl HostSettings {
    /// Returns the units in which flash of this layout is lent: the setting, or its default for this layout.
    #[must_use]
    pub fn grain(&self, geometry: &Geometry) -> Grain {
        let paper = Grain::default();
        let bytes = u64::from(paper.capacity) * u64::from(Geometry::default().block_size());
        let most = bytes / u64::from(geometry.block_size().max(1));
        let quarter = geometry.channel_blocks() / 4;
        let capacity = saturating::<u32>(most).min(quarter).max(1);
        self.grain.unwrap_or(Grain { capacity, ..paper }).sane()
    }

    /// Returns the time limit for moving `bytes` bytes from a lease of `channels` channels if the lender can
    /// wait: the time that the move takes at `moving_rate`, plus a minute.
    #[must_use]
    pub fn moving_limit(&self, bytes: u64, channels: u16) -> Duration {
        let rate = self.moving_rate.max(1).saturating_mul(channels.max(1).into());
        MOVING_LEAST + Duration::from_secs(bytes / rate)
    }

    /// Returns the broker's settings for flash of this layout.
    #[must_use]
    pub fn broker(&self, geometry: &Geometry) -> BrokerSettings {
        BrokerSettings { grain: self.grain(geometry), journal: true, ..self.broker.clone() }
    }
}

/// The name of the file that holds the flash, in the host's directory.
const FLASH: &str = "flash";

/// The file that every used directory has, wherever its flash is.
const JOURNAL: &str = "journal";

impl FlashPlace {
    /// Returns the place of the flash of the host in `dir`: the path `flash` if it is given; otherwise memory if
    /// `emulated` and a `size` is given; otherwise a file in `dir`. `size` is in bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the host in `dir` has its flash in another place, if it has none yet and no `size` is
    /// given, or if `flash` is neither a file nor a block device; errors of the operating system.
    pub fn of(dir: &Path, flash: Option<&Path>, size: Option<u64>, emulated: bool) -> Result<Self> {
        if flash.is_none() && !emulated && !dir.join(FLASH).exists() {
            let known = dir.join(JOURNAL).exists();
            if known || size.is_none() {
                let cause = if known { "its flash is elsewhere" } else { "there is no flash there yet" };
                let error = Error::invalid(cause).about(dir.display());
                return Err(error.remedy(if known {
                    "name it by --flash, as when the directory was made; where it is lost, give up all vSSDs by \
                     `headstart harvest rescue DIR --discard-all`"
                } else {
                    "say how much there is to be, such as --size 20G, or name a device by --flash"
                }));
            }
        }
        Ok(match (flash, size) {
            (None, Some(size)) if emulated => Self::Emulated { size },
            (None, _) => Self::File { path: dir.join(FLASH), size },
            (Some(path), _) if is_device(path)? => Self::Device { path: absolute(path)? },
            (Some(path), _) => Self::File { path: absolute(path)?, size },
        })
    }
}

/// A path for programs in any directory.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io("cannot be found", e).about(path.display()))
}

/// `true` for a block device; a missing path will be a file.
fn is_device(path: &Path) -> Result<bool> {
    let kind = match path.metadata() {
        Ok(metadata) => metadata.file_type(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(Error::io("cannot look at it", e).about(path.display())),
    };
    if !kind.is_block_device() && !kind.is_file() {
        return Err(Error::invalid("is neither a file nor a block device")
            .about(path.display())
            .remedy("name a file, a partition or an NVMe namespace by --flash"));
    }
    Ok(kind.is_block_device())
}

/// Flash, and facts about it.
pub(crate) struct Opened {
    pub(crate) flash: Arc<dyn Flash>,
    pub(crate) speed: Speed,
    /// `true` if it is new: there is no data on it, and no record of it may exist.
    pub(crate) new: bool,
    /// `true` if it forgets everything when the host is closed.
    pub(crate) forgets: bool,
    /// The place of the flash, for people.
    pub(crate) place: String,
    /// The same flash if it was just made, and is of no use without a journal.
    pub(crate) made: Option<Made>,
}

/// Flash that was made, and has no journal yet.
pub(crate) struct Made {
    flash: Arc<FileFlash>,
    claim: Claim,
}

impl Made {
    /// Notes that there is a journal.
    pub(crate) fn complete(self) {
        self.claim.give_up();
    }

    /// Gives the flash up if there can be no journal.
    pub(crate) fn unmake(self) {
        self.flash.unmake();
        self.claim.give_up();
    }
}

/// Opens a host's flash, or makes it; `known` if there is a journal of it.
pub(crate) fn open_flash(options: &Options, known: bool) -> Result<Opened> {
    let settings = &options.settings;
    let speed = Speed::Bucket { rate: settings.channel_rate, burst: BURST };
    let (path, wanted) = match &options.flash {
        FlashPlace::Emulated { size } => {
            let geometry = geometry(*size)?;
            return Ok(Opened {
                flash: Arc::new(Emulator::new(geometry, FlashFaults::default())),
                speed: Speed::Emulated(settings.speeds),
                new: true,
                forgets: true,
                place: "emulated".to_owned(),
                made: None,
            });
        }
        FlashPlace::File { path, size } => (path, size.or(options.size)),
        FlashPlace::Device { path } => (path, options.size),
    };
    let device = matches!(options.flash, FlashPlace::Device { .. });
    let table = if device { options.dir.join("flash.table") } else { FileFlash::table_beside(path) };
    let claim = Claim::new(&options.dir, &table);
    let flash = if known {
        let flash = open_known(path, &table, wanted)?;
        // The start that made the journal may have been killed before it gave its claim up.
        claim.give_up();
        flash
    } else {
        let check = || check_new(path, &table, &claim, device, options.erase);
        check()?;
        make(path, &table, wanted, device, |file| {
            // Again: before the lock was taken, another directory may have made flash of it.
            check()?;
            claim.hold(file)
        })?
    };
    let flash = Arc::new(flash);
    Ok(Opened {
        made: (!known).then(|| Made { flash: Arc::clone(&flash), claim }),
        flash,
        speed,
        new: !known,
        forgets: false,
        place: path.display().to_string(),
    })
}

fn open_known(path: &Path, table: &Path, wanted: Option<u64>) -> Result<FileFlash> {
    let flash = FileFlash::open(path, table).map_err(|error| {
        if error.kind() == ErrorKind::NotFound && path.exists() && !table.exists() {
            let cause = "the table of flash is missing beside its flash";
            return Error::corrupt(cause).about(table.display());
        }
        if error.kind() == ErrorKind::Corrupt {
            return error;
        }
        error.remedy("give the flash that this directory was made with, or another directory for a new start")
    })?;
    let size = flash.geometry().size();
    if let Some(wanted) = wanted.filter(|wanted| Geometry::of_size(*wanted).map(|it| it.size()) != Some(size))
    {
        let cause = format!("it was made with {size} bytes, not {wanted}");
        let error = Error::new(ErrorKind::Conflict, cause).about(path.display());
        return Err(error.remedy("leave out the size, or start again in another directory"));
    }
    Ok(flash)
}

/// Refuses to make flash of a file or device with data that may be missed. Flash that an earlier start of the same
/// directory made before it was killed, and that was never used, is made again.
fn check_new(path: &Path, table: &Path, claim: &Claim, device: bool, erase: bool) -> Result<()> {
    let begun = claim.begun(path);
    if table.exists() && begun.is_none() {
        let error = Error::new(
            ErrorKind::Conflict,
            "it is the flash of another directory, or of one whose journal is lost",
        );
        return Err(error.about(path.display()).remedy(format!(
            "open that directory; or give up all that is on it by `headstart harvest rescue DIR --discard-all` and \
             begin anew (DIR is where {} or its journal was)",
            table.display()
        )));
    }
    if erase {
        return Ok(());
    }
    let is_unused = || begun.as_ref().is_some_and(is_hole);
    if !device && std::fs::metadata(path).is_ok_and(|there| there.len() > 0) && !is_unused() {
        let error = Error::new(ErrorKind::Conflict, "there is a file already, which would be erased");
        let place = path.display();
        let remedy =
            format!("give another path, or remove it, or have it erased with --flash {place} --erase");
        return Err(error.about(place).remedy(remedy));
    }
    if device && let Some(content) = blank::content(path)? {
        let cause = format!("it is not blank and would be erased: there is {content}");
        let error = Error::new(ErrorKind::Conflict, cause).about(path.display());
        return Err(error.remedy("give another, or have all that is on it erased with --erase"));
    }
    Ok(())
}

fn make(
    path: &Path,
    table: &Path,
    wanted: Option<u64>,
    device: bool,
    before: impl FnOnce(&File) -> Result<()>,
) -> Result<FileFlash> {
    let size = match wanted {
        Some(size) => size,
        None if device => device_size(path)?,
        None => {
            let error = Error::invalid("it is new, and no size is given").about(path.display());
            return Err(error.remedy("give a size to make it with"));
        }
    };
    let geometry = geometry(size)?;
    if !device {
        check_free(path, geometry.size());
    }
    FileFlash::create_after(path, table, geometry, before)
}

fn device_size(path: &Path) -> Result<u64> {
    use std::io::{Seek, SeekFrom};
    let size = File::open(path).and_then(|mut device| device.seek(SeekFrom::End(0)));
    size.map_err(|error| Error::io("cannot be opened", error).about(path.display()))
}

/// The build of new flash of `size` bytes.
fn geometry(size: u64) -> Result<Geometry> {
    let holds_something = |geometry: &Geometry| {
        vssd::VssdSettings::new(*geometry, 0).size_of_blocks(geometry.channel_blocks().into()) > 0
    };
    Geometry::of_size(size).filter(holds_something).ok_or_else(|| {
        let least = (20..40)
            .map(|exponent| 1 << exponent)
            .find(|size| Geometry::of_size(*size).is_some_and(|geometry| holds_something(&geometry)));
        let cause = if least.is_some_and(|least| size < least) {
            format!("{} of flash are too little: flash needs more than that for itself", ByteSize(size))
        } else {
            format!("{} of flash are too much", ByteSize(size))
        };
        let least = ByteSize(least.unwrap_or(16 << 20));
        Error::invalid(cause).remedy(format!("give {least} to 16 PiB"))
    })
}

/// The beginnings of the names of a host's own files in its directory.
const OWN: [&str; 8] = ["journal", "flash", "lock", "exports", "vssds", "harvest.sock", "nbd", "lost+found"];

/// Refuses to make a host in a directory with other files.
pub(crate) fn check_directory(dir: &Path) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let foreign = names.filter(|name| !OWN.iter().any(|own| name.starts_with(own))).min();
    foreign.map_or(Ok(()), |name| {
        let cause = format!("it holds something already: {}", name.escape_debug());
        let error = Error::new(ErrorKind::Conflict, cause).about(dir.display());
        Err(error.remedy("give an empty directory, or one that is not there yet"))
    })
}

/// Warns of a file that its file system cannot hold when all of it is used.
fn check_free(path: &Path, size: u64) {
    let dir = path.parent().unwrap_or(path);
    let Ok(free) = rustix::fs::statvfs(dir) else { return };
    let free = free.f_bavail.saturating_mul(free.f_frsize);
    if free < size {
        tracing::warn!(
            "{}: its file system has {} free, and this flash can take {}: writes fail when it is full",
            path.display(),
            ByteSize(free),
            ByteSize(size)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_devices_with_content_are_not_made_flash() {
        let dir = tempfile::tempdir().unwrap();
        let (path, table) = (dir.path().join("device"), dir.path().join("table"));
        let claim = Claim::new(dir.path(), &table);
        let check = |device, erase| check_new(&path, &table, &claim, device, erase);
        check(false, false).unwrap();
        std::fs::write(&path, []).unwrap();
        check(false, false).unwrap();
        std::fs::write(&path, vec![0; 3 << 20]).unwrap();
        check(true, false).unwrap();
        assert_eq!(check(false, false).unwrap_err().kind(), ErrorKind::Conflict);
        let mut disk = vec![0; 3 << 20];
        disk[1080..1082].copy_from_slice(b"\x53\xef");
        std::fs::write(&path, &disk).unwrap();
        let error = check(true, false).unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == ErrorKind::Conflict && text.contains("device: it is not blank"), "{text}");
        assert!(text.contains("ext4") && text.contains("--erase"), "{text}");
        assert!(std::fs::read(&path).unwrap() == disk);
        check(true, true).unwrap();
        check(false, true).unwrap();
        // Flash of another directory is not taken in any case.
        std::fs::write(&table, []).unwrap();
        assert!(check(true, true).is_err());
    }

    /// After a first start that was killed, the next one begins again, whatever the first had done, but never where
    /// there is data, or if the claim is another directory's.
    #[test]
    fn a_first_start_that_was_killed_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str| dir.path().join(name);
        let (path, table) = (of("flash"), of("flash.flash"));
        let claim = Claim::new(dir.path(), &table);
        let check = |erase| check_new(&path, &table, &claim, false, erase);
        let flash = File::options().create(true).truncate(true).write(true).read(true).open(&path).unwrap();
        check(false).unwrap();
        claim.hold(&flash).unwrap();
        check(false).unwrap();
        flash.set_len(16 << 20).unwrap();
        check(false).unwrap();
        std::fs::write(&table, []).unwrap();
        check(false).unwrap();
        // The claim of another directory, or none.
        Claim::new(&of("none"), &table).hold(&flash).unwrap();
        assert!(check(false).is_err() && check(true).is_err());
        claim.give_up();
        assert!(check(false).is_err() && check(true).is_err());
        // Data that came into the file anyway, and another file in its place.
        claim.hold(&flash).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&flash, &[0; 4096], 8 << 20).unwrap();
        assert_eq!(check(false).unwrap_err().kind(), ErrorKind::Conflict);
        check(true).unwrap();
        std::fs::rename(&path, of("aside")).unwrap();
        let other = File::options().create_new(true).write(true).open(&path).unwrap();
        other.set_len(16 << 20).unwrap();
        assert!(check(false).is_err() && check(true).is_err());
    }
}
