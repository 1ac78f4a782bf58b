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

impl<'a> View<'a> {
    /// The blob of a layer.
    pub(super) fn blob(&self, layer: u8) -> Option<&'a Digest> {
        self.layers.get(usize::from(layer)).map(|layer| &layer.blob.digest)
    }
}
