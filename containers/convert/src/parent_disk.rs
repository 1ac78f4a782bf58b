//! The disk of layers that are converted already, as the parent of the next one.

use headstart_block::{BlockDevice, ReadAt, Result};
use headstart_image::blob::open_layer_source;
use headstart_lsmt::{Layer, Stack};
use std::sync::Arc;

/// The disk of a stack of layers.
struct StackDisk(Stack);

impl ReadAt for StackDisk {
    fn len(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buf, offset)
    }

    fn decode_unit(&self) -> u64 {
        self.0.decode_unit()
    }
}

/// Returns the disk of a stack of layers.
pub fn disk_of(stack: Stack) -> Arc<dyn ReadAt> {
    Arc::new(StackDisk(stack))
}

/// The layers of an image in the making, opened as far as they are needed.
#[derive(Default)]
pub(crate) struct OpenLayers(Vec<Layer>);

impl OpenLayers {
    /// The number of layers that are open.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Opens one more layer, on top of those that are open.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the blob is no layer or is damaged; errors of reading it.
    pub(crate) fn push(&mut self, blob: Arc<dyn ReadAt>) -> Result<()> {
        self.0.push(Layer::open(open_layer_source(blob)?.source)?);
        Ok(())
    }

    /// Returns the disk of the open layers; `None` if there is none.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if there are too many.
    pub(crate) fn disk(&self) -> Result<Option<Arc<dyn ReadAt>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        Ok(Some(disk_of(Stack::new(self.0.clone())?)))
    }
}
