//! A tracker's counts, and the file in which they outlive it.
//!
//! ```text
//! 0   8   "HSHINTS" and the version, 1
//! 8   32  BLAKE3 of the rest
//! 40  ..  the counts of every image, postcard
//! ```
//!
//! The file is replaced as a whole, at intervals and at the end. A file that cannot be used is reported, ignored and
//! replaced: only statistics are lost, which the next boots make again.

use headstart_block::{Error, ErrorKind, Result};
use headstart_daemon::file::{self, Readers};
use headstart_swarm::PeerKey;
use headstart_swarm::tracker::{
    Hint, HintAnswer, HintReport, ImageCounts, ImageKey, Tracker, TrackerSettings,
};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use utoipa::ToSchema;

/// The first bytes of a file.
const HEAD: [u8; 8] = *b"HSHINTS1";

/// Bytes of a hash.
const HASH: usize = 32;

/// Most bytes of a file: more than a tracker counts.
const FILE_MAX: u64 = 64 << 20;

/// A tracker whose counts outlive it.
pub(crate) struct Counting {
    tracker: Mutex<Tracker>,
    file: PathBuf,
    changed: AtomicBool,
    reports: AtomicU64,
}

impl Counting {
    /// Starts a tracker with the counts in `file`, if there are any.
    ///
    /// # Errors
    /// If no random numbers can be drawn.
    pub(crate) fn start(file: &Path) -> Result<Self> {
        let mut epoch = [0; 8];
        aws_lc_rs::rand::fill(&mut epoch)
            .map_err(|_| Error::new(ErrorKind::Io, "no random numbers can be drawn"))?;
        // An epoch of 0 belongs to no tracker.
        let mut tracker = Tracker::new(u64::from_le_bytes(epoch) | 1, TrackerSettings::default());
        match load(file) {
            Ok(images) => images.iter().flatten().for_each(|counts| tracker.load(counts)),
            Err(error) => tracing::warn!(%error, "the tracker starts with no counts"),
        }
        Ok(Self {
            tracker: Mutex::new(tracker),
            file: file.to_owned(),
            changed: AtomicBool::new(false),
            reports: AtomicU64::new(0),
        })
    }

    fn tracker(&self) -> MutexGuard<'_, Tracker> {
        // A panic in between costs only statistics.
        self.tracker.lock()
    }

    pub(super) fn report(&self, member: PeerKey, report: &HintReport) -> HintAnswer {
        self.reports.fetch_add(1, Ordering::Relaxed);
        if report.joined > 0 || !report.accesses.is_empty() {
            self.changed.store(true, Ordering::Relaxed);
        }
        self.tracker().report(member, report)
    }

    /// The numbers of received reports, and of images that are counted.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.reports.load(Ordering::Relaxed), self.tracker().images().count() as u64)
    }

    /// The counts of all images.
    pub(crate) fn all(&self) -> Vec<ImageCounts> {
        let tracker = self.tracker();
        let keys: Vec<_> = tracker.images().collect();
        keys.into_iter().filter_map(|key| tracker.counts(key)).collect()
    }

    /// Saves the counts, if they have changed. This writes a file.
    pub(crate) fn save(&self) {
        if !self.changed.swap(false, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = store(&self.file, &self.all()) {
            tracing::warn!(%error, "the tracker's counts are not kept");
        }
    }
}

/// A tracker's counts of one image, in the form of the REST interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountedImage {
    /// The key of the image, a 64-bit number as 16 hexadecimal digits. Only hosts that have read the image's
    /// manifest know it, so a host that names it to a tracker is assumed to be allowed to read the image.
    pub image: String,
    /// The number of disks of the image that were counted.
    pub disks: u32,
    /// One entry for each slice (64 KiB of the disk) that was read, ascending: the slice's number, the number
    /// of disks that have read it, and the mean time of the read, in milliseconds after the disk was created.
    #[schema(value_type = Vec<Vec<u32>>)]
    pub slices: Vec<(u32, u32, u32)>,
}

impl CountedImage {
    /// Converts the counts of the tracker's state machine into this form.
    #[must_use]
    pub fn of(counts: &ImageCounts) -> Self {
        let slices = counts.slices.iter().map(|hint| (hint.slice, hint.disks, hint.mean_ms)).collect();
        Self { image: format!("{:016x}", counts.image.0), disks: counts.disks, slices }
    }

    /// Converts this form back into the counts of the tracker's state machine.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if `image` is not a hexadecimal number, or the slices do not ascend.
    pub fn counts(&self) -> Result<ImageCounts> {
        let image = u64::from_str_radix(&self.image, 16);
        let image = image.map_err(|e| Error::corrupt("is not a number of an image").caused_by(e))?;
        if !self.slices.is_sorted_by(|(before, ..), (after, ..)| before < after) {
            return Err(Error::corrupt("has slices that do not ascend").about(&self.image));
        }
        let hint = |&(slice, disks, mean_ms): &(u32, u32, u32)| Hint { slice, disks, mean_ms };
        let slices = self.slices.iter().map(hint).collect();
        Ok(ImageCounts { image: ImageKey(image), disks: self.disks, slices })
    }
}

fn store(path: &Path, images: &[ImageCounts]) -> Result<()> {
    let body = postcard::to_allocvec(images).map_err(|e| Error::invalid("cannot be kept").caused_by(e))?;
    let file = [&HEAD[..], blake3::hash(&body).as_bytes(), &body].concat();
    file::replace(path, &file, Readers::Owner)
}

/// Reads the counts of all images from `file`, the file in which a tracker saves its counts.
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is no such file; [`ErrorKind::Corrupt`] if it is damaged or of another
/// version.
pub fn read_counts(file: &Path) -> Result<Vec<ImageCounts>> {
    load(file)?.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "is not there")
            .about(file.display())
            .remedy("an agent that runs with --tracker keeps it in its directory, as `tracker`")
    })
}

/// Reads the file; `None` if there is none.
fn load(path: &Path) -> Result<Option<Vec<ImageCounts>>> {
    let Some(bytes) = file::read(path, FILE_MAX)? else { return Ok(None) };
    let wrong = |what: &'static str| Error::corrupt(what).about(path.display());
    let body = bytes.strip_prefix(&HEAD).ok_or_else(|| wrong("is not a file of counts of this version"))?;
    let (hash, body) = body.split_at_checked(HASH).ok_or_else(|| wrong("is cut off"))?;
    if blake3::hash(body).as_bytes() != hash {
        return Err(wrong("is damaged"));
    }
    postcard::from_bytes(body).map(Some).map_err(|e| wrong("makes no sense").caused_by(e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_swarm::tracker::SliceAccess;
    use std::fs;

    fn report(joined: u32, slices: &[u32]) -> HintReport {
        let accesses = slices.iter().map(|slice| SliceAccess { slice: *slice, at_ms: *slice }).collect();
        HintReport { image: ImageKey(7), joined, accesses, epoch: 0, version: 0 }
    }

    #[test]
    fn counts_outlive_a_tracker() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tracker");
        let asked = |counting: &Counting| {
            let answer = counting.report(PeerKey(1), &report(0, &[]));
            (answer.disks, answer.hints.iter().map(|hint| hint.slice).collect::<Vec<_>>())
        };
        let first = Counting::start(&path).unwrap();
        first.save();
        assert!(!path.exists(), "nothing was counted");
        first.report(PeerKey(1), &report(2, &[5, 3, 5]));
        first.save();
        let epoch = first.report(PeerKey(1), &report(0, &[])).epoch;
        let second = Counting::start(&path).unwrap();
        assert_eq!(asked(&second), (2, vec![3, 5]));
        assert_eq!(second.counts(), (1, 1));
        assert_ne!(second.report(PeerKey(1), &report(0, &[])).epoch, epoch);
        // Programs get the same counts.
        let told: Vec<_> = second.all().iter().map(CountedImage::of).collect();
        assert_eq!((told[0].image.as_str(), told[0].disks), ("0000000000000007", 2));
        assert_eq!(told[0].slices.iter().map(|(slice, ..)| *slice).collect::<Vec<_>>(), [3, 5]);
        assert_eq!(told.iter().map(|told| told.counts().unwrap()).collect::<Vec<_>>(), second.all());
        for wrong in [
            CountedImage { image: "x".to_owned(), ..told[0].clone() },
            CountedImage { slices: vec![(5, 1, 1), (5, 1, 1)], ..told[0].clone() },
        ] {
            assert!(wrong.counts().is_err(), "{wrong:?}");
        }
        // A file that is cut off or changed anywhere is not used.
        let whole = fs::read(&path).unwrap();
        for len in [0, 7, 20, 45, whole.len() - 1] {
            fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(asked(&Counting::start(&path).unwrap()), (0, vec![]));
        }
        for at in [0, 7, 8, 41, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            assert!(load(&path).is_err(), "{at}");
        }
        // The file is replaced.
        let third = Counting::start(&path).unwrap();
        third.report(PeerKey(1), &report(1, &[9]));
        third.save();
        assert_eq!(asked(&Counting::start(&path).unwrap()), (1, vec![9]));
    }
}
