//! The reads of the disks of a simulated fleet.

use super::Fleet;
use super::arguments::{PatternName, PlanName};
use crate::simulate::images;
use headstart_block::exchange::CHUNK_SIZE;
use headstart_block::{ByteSize, Error, ErrorKind, Plan, Result, saturating};
use headstart_image::progress::Progress;
use headstart_replay::boot::with_strays;
use headstart_replay::{Boot, Nanos};
use headstart_sim::fleet::{Pattern, Region, Shape, Workload};
use headstart_trace::data_set::{DataSet, DataSetLimits};
use headstart_train::traces::read_all;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a read of a pattern.
const READ: u64 = 1 << 20;
/// The time between the starts of machines that start one after the other, as a share of the region's time over the
/// store's link: the paper's 5 s, for a region of 1 GiB over 1 Gbit/s.
const SHIFT: f64 = 0.54;
/// The region that all read before their own, as a share of each disk's own region.
const BOOT: f64 = 0.55;

/// The largest disk: chunks have numbers of 32 bits, and the largest is no chunk's.
const SIZE_MAX: u64 = (u32::MAX as u64) * CHUNK_SIZE;

/// Bytes of an image that are compressed together.
const FRAME: u64 = 32 << 10;

/// The reads, and the values for the report.
pub(super) struct Reads {
    pub(super) workload: Workload,
    /// The bytes that the store has to send at least; unknown for boots.
    pub(super) region: Option<u64>,
    /// For boots: another deployment of the same, drawn otherwise.
    pub(super) before: Option<Workload>,
    /// The earlier deployment, with strays.
    pub(super) strayed: Option<Workload>,
    pub(super) uplink: u64,
}

type Boots = Vec<Arc<Boot>>;

impl Fleet {
    pub(super) fn workload(&self, pattern: PatternName, progress: &dyn Progress) -> Result<Reads> {
        let uplink = self.uplink();
        if pattern == PatternName::Boots {
            return self.boots(progress);
        }
        let region = self.region.0.max(READ);
        let (size, hosts) = (region.saturating_mul(4), u64::from(self.hosts));
        let part = |of: u64| (of / READ * READ).max(READ);
        let whole = Region { start: region, len: region, read: READ, ahead: 1, shared: 0 };
        let (shape, kind, least) = match pattern {
            PatternName::ShiftedSame => (whole, Pattern::ShiftedSame(shift(region, uplink)), region),
            PatternName::SyncDisjoint => {
                let own = Region { start: 0, len: part(size / hosts), ..whole };
                (own, Pattern::SyncDisjoint, own.len * hosts)
            }
            PatternName::BootDisjoint => {
                let len = part(share(size, 1.0 / (f64::from(self.hosts) + BOOT)));
                let shared = part(share(len, BOOT));
                let own = Region { start: size.saturating_sub(len * hosts), len, shared, ..whole };
                (own, Pattern::SyncDisjoint, own.len * hosts + shared)
            }
            PatternName::SyncSame | PatternName::Boots => (whole, Pattern::SyncSame, region),
        };
        refuse_huge(&Shape::Plain(size))?;
        let workload = Workload::pattern(self.hosts, size, shape, kind);
        Ok(Reads { workload, region: Some(least), before: None, strayed: None, uplink })
    }

    fn boots(&self, progress: &dyn Progress) -> Result<Reads> {
        let path = self.traces.as_deref().unwrap_or(Path::new("."));
        let all = DataSet::open(path, &DataSetLimits::default())?;
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        all.creations().iter().for_each(|creation| *counts.entry(creation.image_id()).or_default() += 1);
        let most = counts.iter().max_by_key(|(_, count)| **count).map(|(name, _)| (*name).to_owned());
        let names =
            if self.boots_of.is_empty() { vec![most.unwrap_or_default()] } else { self.boots_of.clone() };
        let (mut images, mut strayed) = (Vec::new(), Vec::new());
        for name in &names {
            let (boots, stray) = self.boots_of(name, &all, progress)?;
            if boots.is_empty() {
                let what = format!("has no boot of `{}`", name.escape_debug());
                return Err(Error::new(ErrorKind::NotFound, what)
                    .about(path.display())
                    .remedy("`headstart-lab trace stats` lists the images whose boots it has"));
            }
            images.push(boots);
            strayed.push(stray);
        }
        let mut plan = Plan::Lazy;
        if let (PlanName::Recorded, [boots]) = (self.plan, images.as_mut_slice()) {
            plan =
                boots.first().map_or(Plan::Lazy, |first| Plan::List(first.recorded_order(usize::MAX).into()));
            // The plan is the reads of another boot, not of the same one.
            if boots.len() > 1 {
                boots.remove(0);
            }
        }
        let size = |boots: &Boots| boots.iter().map(|boot| boot.disk_size()).max().unwrap_or(0);
        let shape = match (&self.image, images.as_slice()) {
            (Some(reference), _) => Some(Shape::Image(Arc::new(images::map(reference, &self.stores)?))),
            (None, [boots]) if self.ratio <= 1.0 => Some(Shape::Plain(size(boots))),
            (None, _) => None,
        };
        let before = self.seed.wrapping_add(1);
        let workload = Workload { plan, ..self.deployed(shape.clone(), &images, self.seed) };
        refuse_huge(&workload.shape)?;
        Ok(Reads {
            before: Some(self.deployed(shape.clone(), &images, before)),
            strayed: self.strays.map(|_| self.deployed(shape, &strayed, before)),
            workload,
            region: None,
            uplink: self.uplink(),
        })
    }

    /// The boots of an image; and, if requested, the same with strays.
    fn boots_of(&self, name: &str, all: &DataSet, progress: &dyn Progress) -> Result<(Boots, Boots)> {
        let set = all.filter(|_, creation| creation.image_id() == name);
        let graced = |boot: Boot| match self.grace {
            Some(grace) => boot.with_grace(Nanos::from_duration(grace)),
            None => boot,
        };
        let (mut boots, mut strayed) = (Vec::new(), Vec::new());
        read_all(
            &set,
            ("reading boots", 0),
            progress,
            |trace| {
                let boot = Boot::faster(&trace, self.faster);
                let stray = self.strays.map(|share| {
                    let size = boot.disk_size();
                    let records =
                        with_strays(&trace.records, size, share, self.seed ^ trace.creation.created_us);
                    Boot::of_records(size, &records, self.faster)
                });
                (boot, stray)
            },
            |_, (boot, stray)| {
                if !boot.reads().is_empty() {
                    boots.push(Arc::new(graced(boot)));
                    strayed.extend(stray.map(graced).map(Arc::new));
                }
                Ok(())
            },
        )?;
        Ok((boots, strayed))
    }

    /// A deployment of these images, drawn by a seed.
    fn deployed(&self, shape: Option<Shape>, images: &[Boots], seed: u64) -> Workload {
        let apart = if self.roots_apart { self.roots } else { 0 };
        let (hosts, jitter) = (self.hosts - apart, Nanos::from_duration(self.jitter));
        let workload = match (shape, images) {
            (Some(shape), [boots]) => Workload::boots(hosts, self.disks, shape, boots.clone(), jitter, seed),
            _ => {
                let stored = share(FRAME, 1.0 / self.ratio);
                Workload::several((hosts, self.disks), images, stored, jitter, seed)
            }
        };
        workload.beside(apart)
    }
}

/// Refuses a disk whose chunks have no numbers of 32 bits.
fn refuse_huge(shape: &Shape) -> Result<()> {
    let size = match shape {
        Shape::Plain(size) => *size,
        Shape::Several { images, size, .. } => size.saturating_mul(u64::from(*images)),
        Shape::Image(image) => image.disk_size(),
    };
    if size <= SIZE_MAX {
        return Ok(());
    }
    let cause = format!("a disk of {} is too large to be simulated", ByteSize(size));
    Err(Error::invalid(cause).remedy(format!("the largest has {}", ByteSize(SIZE_MAX))))
}

/// The time between the starts of machines.
fn shift(region: u64, uplink: u64) -> Nanos {
    let nanos = u128::from(share(region, SHIFT)) * 1_000_000_000 / u128::from(uplink.max(1));
    Nanos(saturating(nanos))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a number of bytes"
)]
fn share(of: u64, share: f64) -> u64 {
    (of as f64 * share) as u64
}
