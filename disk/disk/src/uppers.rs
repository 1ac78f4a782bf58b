//! Layers of this host on top of an image: files that no store has.
//!
//! A snapshot of a container that was committed is such a layer. The layers of the image may lack bytes, these do not:
//! so they are a stack of their own, over the image's, and an image is opened in one way whatever is on top of it.

use headstart_block::{BlockDevice, ByteRange, Digest, Error, Extent, Result, SECTOR_SIZE, to_usize};
use headstart_image::layer_file::LayerFile;
use headstart_lsmt::Stack;
use std::path::PathBuf;
use std::sync::Arc;
use uuid::Uuid;

/// Layers in files, lowest first, on top of a disk.
pub(crate) struct Uppers {
    base: Arc<dyn BlockDevice>,
    stack: Stack,
    /// The ids of the layers.
    ids: Vec<Uuid>,
}

impl Uppers {
    /// Opens the layers in `files`, lowest first, on top of `base`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if there are too many; errors of the files.
    pub(crate) fn open(base: Arc<dyn BlockDevice>, files: &[PathBuf]) -> Result<Self> {
        let (mut layers, mut ids) = (Vec::new(), Vec::new());
        for file in files {
            let layer = LayerFile::open(file)?.layer;
            if layer.target().is_some() {
                return Err(Error::unsupported("its data is in another blob").about(file.display()));
            }
            ids.push(layer.info().uuid);
            layers.push(layer);
        }
        let has_size = layers.iter().any(|layer| layer.info().virtual_size != 0);
        let stack = Stack::new(layers)?;
        let size = if has_size { stack.size() } else { stack.size().max(base.size()) };
        Ok(Self { base, stack: stack.with_size(size), ids })
    }

    /// Reads what no layer of the stack has.
    fn read_below(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let inside = to_usize(self.base.size().saturating_sub(offset).min(buf.len() as u64));
        let (below, past) = buf.split_at_mut(inside);
        past.fill(0);
        if below.is_empty() { Ok(()) } else { self.base.read_at(below, offset) }
    }
}

impl BlockDevice for Uppers {
    fn size(&self) -> u64 {
        self.stack.size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if end > self.size() {
            // The stack has the error of a range past the end.
            return self.stack.read_at(buf, offset);
        }
        let (mut rest, mut at) = (buf, offset);
        for segment in self.stack.index().lookup(offset / SECTOR_SIZE, end.div_ceil(SECTOR_SIZE)) {
            let start = (segment.offset() * SECTOR_SIZE).max(offset);
            let stop = (segment.end() * SECTOR_SIZE).min(end);
            let (below, above) = rest.split_at_mut(to_usize(start - at));
            if !below.is_empty() {
                self.read_below(below, at)?;
            }
            let (own, after) = above.split_at_mut(to_usize(stop - start));
            self.stack.read_at(own, start)?;
            (rest, at) = (after, stop);
        }
        if rest.is_empty() { Ok(()) } else { self.read_below(rest, at) }
    }

    fn decode_unit(&self) -> u64 {
        self.base.decode_unit().max(self.stack.decode_unit())
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let first = self.stack.index().lookup(offset / SECTOR_SIZE, self.size().div_ceil(SECTOR_SIZE)).next();
        let next = first.map_or(self.size(), |segment| segment.offset() * SECTOR_SIZE);
        if next <= offset {
            return self.stack.extent_at(offset);
        }
        if offset >= self.base.size() {
            let range = ByteRange::between(offset, next.min(self.size()));
            return Ok(Extent { range, zero: true });
        }
        let Extent { range, zero } = self.base.extent_at(offset)?;
        Ok(Extent { range: ByteRange::between(offset, range.end().min(next)), zero })
    }
}

/// The device below a writable layer, and the name by which the directory of that layer knows it. The whole image
/// without layers on top has the name of its digest alone.
pub(crate) fn below(
    base: Arc<dyn BlockDevice>,
    digest: Digest,
    lowest: Option<usize>,
    files: &[PathBuf],
) -> Result<(Arc<dyn BlockDevice>, String)> {
    let mut name = digest.to_string();
    if let Some(lowest) = lowest {
        name.push_str(&format!(" lowest {lowest}"));
    }
    if files.is_empty() {
        return Ok((base, name));
    }
    let uppers = Uppers::open(base, files)?;
    let ids: Vec<u8> = uppers.ids.iter().flat_map(|id| *id.as_bytes()).collect();
    name.push_str(&format!(" with {} above, {}", files.len(), Digest::of(&ids)));
    Ok((Arc::new(uppers), name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_lsmt::{Layer, LayerMeta, LayerWriter};
    use proptest::prelude::*;
    use std::path::Path;

    const SIZE: usize = 64 << 10;

    /// A change of a disk: its first sector, the number of its sectors, and the byte that it is filled with; 0 is
    /// written as zeros.
    type Change = (u8, u8, u8);

    fn layer(id: u128, changes: &[Change]) -> Vec<u8> {
        let meta = LayerMeta { virtual_size: SIZE as u64, uuid: Uuid::from_u128(id), ..LayerMeta::default() };
        let mut writer = LayerWriter::new(Vec::new(), meta).unwrap();
        let mut at = 0;
        for (gap, len, byte) in changes {
            let start = at + u64::from(*gap) * SECTOR_SIZE;
            let end = (start + u64::from(*len) * SECTOR_SIZE).min(SIZE as u64);
            if start >= end {
                break;
            }
            match byte {
                0 => writer.zeroes(ByteRange::between(start, end)).unwrap(),
                byte => writer.data(start, &vec![*byte; to_usize(end - start)]).unwrap(),
            }
            at = end;
        }
        writer.finish().unwrap().0
    }

    fn opened(bytes: Vec<u8>) -> Layer {
        Layer::open(Arc::new(bytes)).unwrap()
    }

    fn written(dir: &Path, layers: &[Vec<u8>]) -> Vec<PathBuf> {
        let write = |(number, bytes): (usize, &Vec<u8>)| {
            let path = dir.join(number.to_string());
            std::fs::write(&path, bytes).unwrap();
            path
        };
        layers.iter().enumerate().map(write).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn a_disk_reads_as_all_of_its_layers_in_one_stack(
            changes in prop::collection::vec(prop::collection::vec((0..20_u8, 1..20_u8, 0..4_u8), 0..8), 2..5),
            below in 1..2_usize,
            reads in prop::collection::vec((0..SIZE, 1..9000_usize), 20),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let layers: Vec<_> = (0..).zip(&changes).map(|(id, changes)| layer(id, changes)).collect();
            let whole = Stack::new(layers.iter().cloned().map(opened).collect()).unwrap();
            let base = Stack::new(layers[..below].iter().cloned().map(opened).collect()).unwrap();
            let disk = Uppers::open(Arc::new(base), &written(dir.path(), &layers[below..])).unwrap();
            prop_assert_eq!(disk.size(), whole.size());
            for (offset, len) in reads {
                let len = len.min(SIZE - offset);
                let (mut found, mut wanted) = (vec![9; len], vec![8; len]);
                disk.read_at(&mut found, offset as u64).unwrap();
                whole.read_at(&mut wanted, offset as u64).unwrap();
                prop_assert!(found == wanted, "{} {}", offset, len);
                let Extent { range, zero } = disk.extent_at(offset as u64).unwrap();
                prop_assert!(range.offset() == offset as u64 && range.end() > offset as u64);
                if zero {
                    let mut bytes = vec![1; to_usize(range.len())];
                    whole.read_at(&mut bytes, offset as u64).unwrap();
                    prop_assert!(bytes.iter().all(|byte| *byte == 0));
                }
            }
            prop_assert!(disk.read_at(&mut [0; 2], SIZE as u64 - 1).is_err());
        }
    }

    #[test]
    fn a_disk_has_a_name_that_tells_its_layers() {
        let dir = tempfile::tempdir().unwrap();
        let files = written(dir.path(), &[layer(1, &[(0, 1, 1)]), layer(2, &[(0, 1, 1)])]);
        let base = || Arc::new(Stack::new(vec![opened(layer(0, &[]))]).unwrap());
        let digest = Digest::of(b"image");
        let name = |lowest, files: &[PathBuf]| below(base(), digest, lowest, files).unwrap().1;
        assert_eq!(name(None, &[]), digest.to_string());
        let reversed: Vec<_> = files.iter().rev().cloned().collect();
        let names = [name(Some(1), &[]), name(None, &files[..1]), name(None, &files), name(None, &reversed)];
        for (number, one) in names.iter().enumerate() {
            assert!(names.iter().skip(number + 1).all(|other| other != one), "{names:?}");
            assert!(one.parse::<Digest>().is_err(), "{one}");
        }
        assert!(below(base(), digest, None, &[dir.path().join("none")]).is_err());
    }
}
