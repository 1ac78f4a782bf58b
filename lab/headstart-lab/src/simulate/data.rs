//! The boots to replay, and those to learn from: never the same.

use super::arguments::Disk;
use headstart_block::{Error, ErrorKind, Result};
use headstart_plan::knowledge::RecordedImage;
use headstart_trace::Creation;
use headstart_trace::data_set::{DataSet, DataSetLimits, Skipped};
use std::collections::{BTreeMap, BTreeSet};

/// The boots.
pub(super) struct Data {
    pub(super) test: DataSet,
    pub(super) train: Option<DataSet>,
    /// Boots of the training set that are replayed: they are not learned from.
    pub(super) left_out: u64,
    /// The entries that cannot be read.
    pub(super) skipped: Skipped,
}

/// The identity of a boot among all others.
type Identity = (String, String, u64);

fn identity(creation: &Creation) -> Identity {
    (creation.image_id().to_owned(), creation.volume.clone(), creation.created_us)
}

impl Disk {
    pub(super) fn data(&self) -> Result<Data> {
        let all = DataSet::open(&self.traces, &DataSetLimits::default())?;
        let mut skipped = all.skipped().clone();
        let mut left_out = 0;
        let (test, train) = match (&self.train, self.split) {
            (None, None) => (all, None),
            (None, Some(share)) => {
                let trained = trained(&all, share);
                (all.filter(|at, _| !trained.contains(&at)), Some(all.filter(|at, _| trained.contains(&at))))
            }
            (Some(dir), _) => {
                let train = DataSet::open(dir, &DataSetLimits::default())?;
                skipped.add(train.skipped());
                let replayed: BTreeSet<_> = all.creations().iter().map(identity).collect();
                let honest = train.filter(|_, creation| !replayed.contains(&identity(creation)));
                left_out = (train.len() - honest.len()) as u64;
                (all, Some(honest))
            }
        };
        let test = self.with_enough(test, train.as_ref())?;
        if train.as_ref().is_some_and(DataSet::is_empty) {
            let cause = "has no boot to learn from beside those that are replayed".to_owned();
            let path = self.train.as_ref().unwrap_or(&self.traces);
            let remedy = match self.train {
                Some(_) => "name a directory of other boots, or give --split 0.8 in the place of --train",
                None => {
                    "give more boots: of each image the first are learned from, by --split's share, rounded down"
                }
            };
            return Err(Error::new(ErrorKind::NotFound, cause).about(path.display()).remedy(remedy));
        }
        Ok(Data { test, train, left_out, skipped })
    }

    /// The boots of images with enough boots to learn from.
    fn with_enough(&self, test: DataSet, train: Option<&DataSet>) -> Result<DataSet> {
        let Some(train) = train.filter(|_| self.min_traces > 0) else { return Ok(test) };
        let mut counts: BTreeMap<RecordedImage, usize> = BTreeMap::new();
        for creation in train.creations() {
            *counts.entry(RecordedImage::of(creation)).or_default() += 1;
        }
        let enough = |creation: &Creation| {
            counts.get(&RecordedImage::of(creation)).is_some_and(|count| *count >= self.min_traces)
        };
        let some = test.filter(|_, creation| enough(creation));
        if some.is_empty() {
            let most = counts.values().max().copied().unwrap_or(0);
            let cause = format!("no image has {} boots to learn from; the most have {most}", self.min_traces);
            return Err(Error::new(ErrorKind::NotFound, cause).about(self.traces.display()));
        }
        Ok(some)
    }
}

/// For each image the first `share` of its boots, in the order of their creation, rounded down, on disks of any size.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a number of boots"
)]
fn trained(all: &DataSet, share: f64) -> BTreeSet<usize> {
    let mut images: BTreeMap<&str, Vec<(u64, usize)>> = BTreeMap::new();
    for (at, creation) in all.creations().iter().enumerate() {
        images.entry(creation.image_id()).or_default().push((creation.created_us, at));
    }
    let mut trained = BTreeSet::new();
    for mut boots in images.into_values() {
        boots.sort_unstable();
        // The term makes 0.7 of ten boots seven, whatever the last bit of 0.7 is.
        let first = (boots.len() as f64 * share + 1e-9) as usize;
        trained.extend(boots.iter().take(first).map(|(_, at)| *at));
    }
    trained
}
