//! What the disks of a simulated fleet read.

use super::Fleet;
use super::arguments::{PatternName, PlanName};
use crate::simulate::images;
use crate::trace::read_all;
use headstart_block::{Error, ErrorKind, Plan, Result};
use headstart_image::progress::Progress;
use headstart_sim::fleet::{Pattern, Region, Shape, Workload};
use headstart_sim::{Boot, Nanos};
use headstart_trace::data_set::{DataSet, Limits};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a read of a pattern.
const READ: u64 = 1 << 20;
/// What machines started one after the other are apart, as a share of the region's time over the store's link: the
/// paper's 5 s, for a region of 1 GiB over 1 Gbit/s.
const SHIFT: f64 = 0.54;
/// What all read before they go their own ways, as a share of what each then reads.
const BOOT: f64 = 0.55;

/// What is read, and what of it is told.
pub(super) struct Reads {
    pub(super) workload: Workload,
    /// Bytes that the store has to send at least, and how long that takes, in seconds; unknown of boots.
    pub(super) region: Option<u64>,
    pub(super) is_boots: bool,
    pub(super) uplink: u64,
}

impl Fleet {
    pub(super) fn workload(&self, pattern: PatternName, progress: &dyn Progress) -> Result<Reads> {
        let uplink = self.uplink();
        if pattern == PatternName::Boots {
            let (workload, region) = (self.boots(progress)?, None);
            return Ok(Reads { workload, region, is_boots: true, uplink });
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
        let workload = Workload::pattern(self.hosts, size, shape, kind);
        Ok(Reads { workload, region: Some(least), is_boots: false, uplink })
    }

    fn boots(&self, progress: &dyn Progress) -> Result<Workload> {
        let path = self.traces.as_deref().unwrap_or(Path::new("."));
        let all = DataSet::open(path, &Limits::default())?;
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        all.creations().iter().for_each(|creation| *counts.entry(creation.image_id()).or_default() += 1);
        let most = counts.iter().max_by_key(|(_, count)| **count).map(|(name, _)| (*name).to_owned());
        let name = self.boots_of.clone().or(most).unwrap_or_default();
        let set = all.filter(|_, creation| creation.image_id() == name);
        let mut boots = Vec::new();
        read_all(
            &set,
            ("reading boots", 0),
            progress,
            |trace| Boot::faster(&trace, self.faster),
            |_, boot| {
                let boot = match self.grace {
                    Some(grace) => boot.with_grace(Nanos::from_duration(grace)),
                    None => boot,
                };
                if !boot.reads().is_empty() {
                    boots.push(Arc::new(boot));
                }
                Ok(())
            },
        )?;
        if boots.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, format!("has no boot of `{}`", name.escape_debug()))
                .about(path.display())
                .remedy("`headstart trace stats` lists the images whose boots it has"));
        }
        let shape = match &self.image {
            Some(reference) => Shape::Image(Arc::new(images::map(reference, &self.stores)?)),
            None => Shape::Plain(boots.iter().map(|boot| boot.disk_size()).max().unwrap_or(0)),
        };
        let plan = match (self.plan, boots.first()) {
            (PlanName::Recorded, Some(first)) => Plan::List(first.recorded_order(usize::MAX).into()),
            _ => Plan::Lazy,
        };
        let jitter = Nanos::from_duration(self.jitter);
        let workload = Workload::boots(self.hosts, self.disks, shape, boots, jitter, self.seed);
        Ok(Workload { plan, ..workload })
    }

    /// Another deployment of the same boots, drawn otherwise.
    pub(super) fn deployed_before(&self, workload: &Workload) -> Workload {
        let (shape, boots) = (workload.shape.clone(), workload.boots.clone());
        let jitter = Nanos::from_duration(self.jitter);
        Workload::boots(self.hosts, self.disks, shape, boots, jitter, self.seed.wrapping_add(1))
    }
}

/// How long after each other machines start.
fn shift(region: u64, uplink: u64) -> Nanos {
    let nanos = u128::from(share(region, SHIFT)) * 1_000_000_000 / u128::from(uplink.max(1));
    Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
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
