//! The container's layers that have the data of TurboOCI layers, on their way into the store of the new image.

use crate::known_layers::KnownLayers;
use crate::layer::LayerInput;
use crate::options::{ConvertMode, ConvertOptions};
use headstart_block::{Digest, Error, Result};
use headstart_container_source::{ContainerImage, ContainerLayer, LayerCompression};
use headstart_image::progress::{Progress, step};
use headstart_image::store::{CopyWriter, Staging};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Bytes that are copied at once.
const PART: usize = 256 << 10;

/// The layers that the store lacks, and the place where they are staged.
pub(crate) struct KeptTargets<'a> {
    staging: &'a Staging,
    lacking: BTreeSet<Digest>,
    progress: &'a dyn Progress,
}

/// A copy of a layer that is written while the layer is converted.
pub(crate) type TargetCopy = Option<Arc<Mutex<CopyWriter>>>;

impl<'a> KeptTargets<'a> {
    /// Asks which layers of an image the store of the new image lacks. None, if their data is not left in them.
    pub(crate) fn new(
        image: &ContainerImage,
        staging: &'a Staging,
        options: &ConvertOptions,
        known: &dyn KnownLayers,
        progress: &'a dyn Progress,
    ) -> Result<Self> {
        let mut lacking = BTreeSet::new();
        if options.mode == ConvertMode::Turbo {
            let blobs: Vec<_> = image.layers.iter().map(|layer| (layer.digest, layer.size)).collect();
            let found = known.holds(&blobs)?;
            lacking.extend(
                blobs.into_iter().zip(found).filter(|(_, is_there)| !is_there).map(|(blob, _)| blob.0),
            );
        }
        Ok(Self { staging, lacking, progress })
    }

    /// The bytes of a layer that is converted, which are checked then; they are copied on the way if the store lacks
    /// them and they may be needed.
    pub(crate) fn input_of(&self, layer: &ContainerLayer) -> Result<(LayerInput<'static>, TargetCopy)> {
        let bytes = layer.open_unchecked()?;
        let is_copied = self.lacking.contains(&layer.digest) && layer.compression != LayerCompression::Zstd;
        let copy = is_copied.then(|| self.staging.copy_writer()).transpose()?;
        let copy = copy.map(|copy| Arc::new(Mutex::new(copy)));
        let bytes: Box<dyn Read + Send> = match &copy {
            Some(copy) => Box::new(Copied { bytes, copy: Arc::clone(copy) }),
            None => bytes,
        };
        let input = LayerInput {
            name: layer.name().to_owned(),
            bytes,
            digest: layer.digest,
            size: layer.size,
            diff_id: layer.diff_id,
            media_type: layer.media_type.clone(),
        };
        Ok((input, copy))
    }

    /// Ends the copy of a layer whose conversion has checked the bytes.
    pub(crate) fn finish(&mut self, layer: &ContainerLayer, copy: TargetCopy) -> Result<()> {
        match copy.map(Arc::try_unwrap) {
            Some(Ok(copy)) => {
                self.lacking.remove(&layer.digest);
                copy.into_inner().finish(&layer.digest)
            }
            Some(Err(_)) => Err(Error::invalid("the bytes of the layer are still read").about(layer.name())),
            // Its media type claims another compression.
            None => self.stage(layer),
        }
    }

    /// Copies a layer that is not converted, unless the store has it.
    pub(crate) fn stage(&mut self, layer: &ContainerLayer) -> Result<()> {
        if !self.lacking.remove(&layer.digest) {
            return Ok(());
        }
        let (mut bytes, mut copy, mut buf) = (layer.open()?, self.staging.copy_writer()?, vec![0; PART]);
        loop {
            // The layer is counted as a whole; a user that wants to stop does not wait for its end.
            step(self.progress, 0)?;
            match bytes.read(&mut buf) {
                Ok(0) => return copy.finish(&layer.digest),
                Ok(len) => copy.write_all(&buf[..len])?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// A reader that writes what it reads to a copy.
struct Copied {
    bytes: Box<dyn Read + Send>,
    copy: Arc<Mutex<CopyWriter>>,
}

impl Read for Copied {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.bytes.read(buf)?;
        self.copy.lock().write_all(&buf[..len])?;
        Ok(len)
    }
}
