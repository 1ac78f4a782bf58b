//! [`View`]: a disk with the names of the blobs that store it.

use crate::manifest::ImageLayer;
use headstart_block::Digest;
use headstart_lsmt::Stack;

/// A disk, and the layers of which it is made, lowest first.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) disk: &'a Stack,
    pub(super) layers: &'a [ImageLayer],
}

impl View<'_> {
    /// The blob of a source of the disk: that of a layer, or its target.
    pub(super) fn blob(&self, source: usize) -> Option<Digest> {
        let source = self.disk.sources().get(source)?;
        let layer = self.layers.get(source.layer)?;
        if source.is_target { layer.turbo_target().ok()? } else { Some(layer.blob.digest) }
    }
}
