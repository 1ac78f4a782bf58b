//! Commits, and layers that are written ahead of them.

use super::{Interlude, Model, base_of, contents};
use crate::writable::{BegunCommit, DataMarks, LayerAhead, WritableDisk};
use crate::{Layer, LayerMeta, LayerSummary};
use headstart_block::{BlockDevice, Result, SECTOR_SIZE};
use std::sync::Arc;

/// The layer that is written ahead of the next commit, of the process that has the disk open.
#[derive(Default)]
pub(super) struct SimAhead {
    layer: Option<LayerAhead<Vec<u8>>>,
    /// Data that was written before this is sealed.
    cold: DataMarks,
    /// `true` if the last pass has left data for the next one, which then does not look at all of the disk.
    has_left: bool,
}

impl Model {
    pub(super) fn mark(&mut self) {
        self.ahead.cold = self.disk().data_marks();
    }

    pub(super) fn seal(&mut self, sectors: u64, during: Option<Interlude>) {
        let SimAhead { layer, cold, has_left } = std::mem::take(&mut self.ahead);
        let mut layer =
            layer.unwrap_or_else(|| self.disk().begin_layer(Vec::new(), LayerMeta::default()).unwrap());
        let before = layer.stored_bytes();
        let most = sectors * SECTOR_SIZE;
        let (sealed, interrupted) = self.interrupted(during, |disk| disk.seal_ahead(&mut layer, &cold, most));
        if let Some(pass) = self.went_well(sealed) {
            assert_eq!(layer.stored_bytes() - before, pass.appended_bytes);
            assert!(
                pass.appended_bytes <= most && pass.share.sealed_bytes <= layer.stored_bytes(),
                "{pass:?}"
            );
            assert!(interrupted || pass.left_bytes == 0 || pass.appended_bytes == most, "{pass:?}");
            let live = self.disk().usage().live_bytes;
            let share = pass.share.sealed_bytes + pass.share.unsealed_bytes;
            assert!(interrupted || has_left || share == live, "{pass:?} {live}");
            self.ahead = SimAhead { layer: Some(layer), cold, has_left: pass.left_bytes > 0 };
        }
    }

    /// The view of the present base with `layer` on top.
    fn base_with(&self, layer: Vec<u8>) -> Arc<dyn BlockDevice> {
        let mut layers = self.parents[*self.parent_maybe.last().unwrap()].clone();
        layers.push(Layer::open(Arc::new(layer)).unwrap());
        base_of(&layers).unwrap()
    }

    /// Writes the layer of a commit that `begin` begins: the one that was written ahead, if there is one.
    fn write_layer(
        &mut self,
        during: Option<Interlude>,
        begin: fn(&WritableDisk) -> Result<BegunCommit<'_>>,
    ) -> Result<(Vec<u8>, LayerSummary)> {
        let ahead = self.ahead.layer.take();
        let meta = LayerMeta::default();
        let (written, _) = self.interrupted(during, |disk| {
            let commit = begin(disk)?;
            let Some(ahead) = ahead else { return commit.write(Vec::new(), meta) };
            let (share, stored) = (commit.share_of(disk, &ahead)?, ahead.stored_bytes());
            assert!(share.sealed_bytes <= stored);
            assert_eq!(share.sealed_bytes + share.unsealed_bytes, commit.data_bytes());
            let (layer, summary) = commit.complete(disk, ahead, meta)?;
            assert_eq!(summary.data_bytes, stored + share.unsealed_bytes, "only the rest is appended");
            Ok((layer, summary))
        });
        written
    }

    pub(super) fn commit(&mut self, during: Option<Interlude>) {
        let before = self.now.clone();
        let committed = self.write_layer(during, WritableDisk::begin_commit);
        if let Some((layer, _)) = self.went_well(committed) {
            self.check_layer(&*self.base_with(layer), &before);
        }
    }

    /// Checks a disk with a layer that was made since the disk held `before`.
    fn check_layer(&self, disk: &dyn BlockDevice, before: &[u64]) {
        // Data that was written meanwhile is in it or not.
        for (number, stamp) in contents(disk).iter().enumerate() {
            assert!(*stamp == before[number] || *stamp == self.now[number], "sector {number}: {stamp:#x}");
        }
    }

    pub(super) fn stack(&mut self, replace: bool, during: Option<Interlude>) {
        self.awaiting = false;
        let before = self.now.clone();
        let stacked = self.write_layer(during, WritableDisk::begin_stack);
        let Some((layer, _)) = self.went_well(stacked) else { return };
        self.awaiting = true;
        let base = self.base_with(layer.clone());
        self.check_layer(&*base, &before);
        if !replace {
            return;
        }
        let mut layers = self.parents[*self.parent_maybe.last().unwrap()].clone();
        layers.push(Layer::open(Arc::new(layer)).unwrap());
        self.parents.push(layers);
        let new = self.parents.len() - 1;
        if self.went_well(self.disk().replace_frozen(base, new.to_string())).is_some() {
            self.parent_maybe = vec![new];
            self.awaiting = false;
        } else {
            self.parent_maybe.insert(0, new);
        }
    }
}
