//! The disk of layers that are converted already, as the parent of the next one.

use headstart_block::{BlockDevice, ByteRange, Error, ReadAt, Result, SECTOR_SIZE, to_usize};
use headstart_file_blocks::BLOCK_SIZE;
use headstart_image::blob::open_layer_source;
use headstart_image::manifest::ImageLayer;
use headstart_image::turbo::{InflatedCache, PackageBudget, TurboLayer};
use headstart_lsmt::{Layer, Segment, Stack};
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

impl StackDisk {
    /// The segments in a range of whole sectors.
    fn segments(&self, range: ByteRange) -> impl Iterator<Item = Segment> {
        self.0.index().lookup(range.offset() / SECTOR_SIZE, range.end() / SECTOR_SIZE)
    }
}

/// Returns the disk of a stack of layers.
pub fn disk_of(stack: Stack) -> Arc<dyn ReadAt> {
    Arc::new(StackDisk(stack))
}

/// The disk of all layers below the one that is converted.
#[derive(Clone)]
pub struct ParentDisk {
    disk: Arc<dyn ReadAt>,
    /// The layers, if they are known.
    stack: Option<Arc<StackDisk>>,
    /// The extents in the tables of the layers; 0 if they are not known.
    extents: u64,
}

impl ParentDisk {
    /// The disk of a stack of layers.
    #[must_use]
    pub fn of(stack: Stack) -> Self {
        let extents = stack.index().segments().len() as u64;
        let stack = Arc::new(StackDisk(stack));
        Self { disk: Arc::clone(&stack) as Arc<dyn ReadAt>, stack: Some(stack), extents }
    }

    /// The bytes of the disk.
    #[must_use]
    pub fn disk(&self) -> &Arc<dyn ReadAt> {
        &self.disk
    }

    /// The extents in the tables of the layers, all of which are in memory; 0 if the layers are not known.
    pub(crate) fn extents(&self) -> u64 {
        self.extents
    }

    /// `true` if some of the block at byte `offset` lies in the tar of a TurboOCI layer, which a conversion does not
    /// read.
    pub(crate) fn is_in_tar(&self, offset: u64) -> bool {
        self.stack.as_ref().is_some_and(|stack| {
            let sources = stack.0.sources();
            let block = ByteRange::between(offset, offset + BLOCK_SIZE as u64);
            stack.segments(block).any(|segment| {
                let source = sources.get(usize::from(segment.layer()));
                !segment.is_zeroed() && source.is_some_and(|source| source.is_target)
            })
        })
    }

    /// `true` if a range of whole sectors may have other bytes than zeros. Of a stack, the tables of its layers tell:
    /// nothing is read.
    pub(crate) fn has_data(&self, range: ByteRange) -> Result<bool> {
        if let Some(stack) = &self.stack {
            return Ok(stack.segments(range).any(|segment| !segment.is_zeroed()));
        }
        let mut bytes = vec![0; to_usize(range.len())];
        self.disk.read_at(&mut bytes, range.offset())?;
        Ok(bytes.iter().any(|byte| *byte != 0))
    }
}

impl From<Arc<dyn ReadAt>> for ParentDisk {
    fn from(disk: Arc<dyn ReadAt>) -> Self {
        Self { disk, stack: None, extents: 0 }
    }
}

/// The data of files of a lower TurboOCI layer. A conversion reads the metadata of the disk below and never the data:
/// what comes again is referred to again, and not compared. Metadata that comes where it lies is not compared, either
/// ([`ParentDisk::is_in_tar`]).
struct NotRead(u64);

impl ReadAt for NotRead {
    fn len(&self) -> u64 {
        self.0
    }

    fn read_at(&self, _: &mut [u8], offset: u64) -> Result<()> {
        let cause = format!("a directory or an inode has its bytes in the layer's tar, at byte {offset}");
        Err(Error::corrupt(cause).remedy("the layers below are damaged: convert them again"))
    }
}

/// The layers of an image in the making, opened as far as they are needed.
#[derive(Default)]
pub(crate) struct OpenLayers {
    layers: Vec<Layer>,
    /// The extents in their tables.
    extents: u64,
    /// The space for the packages of TurboOCI layers.
    budget: PackageBudget,
}

impl OpenLayers {
    /// The number of layers that are open.
    pub(crate) fn len(&self) -> usize {
        self.layers.len()
    }

    /// The extents in the tables of the open layers.
    pub(crate) fn extents(&self) -> u64 {
        self.extents
    }

    /// Opens one more layer, `blob`, on top of those that are open. `source_size` is the length in bytes of the
    /// container's layer that it was made of.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the blob is no layer or is damaged; errors of reading it.
    pub(crate) fn push(&mut self, layer: &ImageLayer, blob: Arc<dyn ReadAt>, source_size: u64) -> Result<()> {
        let opened = if layer.is_turbo() {
            let turbo = TurboLayer::read(layer, &*blob, &mut self.budget)?;
            turbo.open(Arc::new(NotRead(source_size)), &InflatedCache::new(0))?.1
        } else {
            Layer::open(open_layer_source(blob)?.source)?
        };
        let of_target = opened.target().map_or(0, |target| target.segments().len());
        self.extents += (opened.segments().len() + of_target) as u64;
        self.layers.push(opened);
        Ok(())
    }

    /// Returns the disk of the open layers; `None` if there is none.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if there are too many.
    pub(crate) fn disk(&self) -> Result<Option<ParentDisk>> {
        if self.layers.is_empty() {
            return Ok(None);
        }
        let disk = ParentDisk::of(Stack::new(self.layers.clone())?);
        Ok(Some(ParentDisk { extents: self.extents, ..disk }))
    }
}
