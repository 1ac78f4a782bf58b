//! Stacks against a plain disk: with any layers, every byte is that of the topmost layer that says
//! anything of its sector, and zero where none does.

use crate::plain::{self, PlainDisk};
use crate::random_layers::{self, Wanted, wanted};
use headstart_block::{BlockDevice, ByteRange, ErrorKind, FileSource, ReadAt, Result};
use headstart_lsmt::{Layer, LayerMeta, LayerWriter, Stack, copy_segments};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

/// The plain disk that a stack of `layers`, lowest first, must be.
fn model_of(layers: &[Wanted]) -> PlainDisk {
    let mut model = PlainDisk::default();
    layers.iter().for_each(|layer| model.overlaid(&layer.model()));
    if layers.iter().all(|layer| layer.virtual_size == 0) {
        model.size = model.sectors.last_key_value().map_or(0, |(last, _)| (last + 1) * 512);
    }
    model
}

fn stack_of(layers: &[Wanted]) -> Stack {
    Stack::new(layers.iter().map(Wanted::layer).collect()).unwrap()
}

fn read(disk: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xa5; len];
    disk.read_at(&mut bytes, offset).unwrap();
    bytes
}

/// Checks that the extents tile the disk, that zero ones are zeros, and that ones from `inside` on agree.
fn check_extents(disk: &dyn BlockDevice, bytes: &[u8], inside: &[u64]) {
    let mut offset = 0;
    while offset < disk.size() {
        let extent = disk.extent_at(offset).unwrap();
        let range = extent.range;
        assert!(range.offset() == offset && !range.is_empty() && range.end() <= disk.size(), "{extent:?}");
        let part = &bytes[offset as usize..range.end() as usize];
        if extent.zero {
            assert!(part.iter().all(|&byte| byte == 0), "{extent:?}");
        } else {
            // No byte that the tests write is 0, so an extent of data may not hide zeros.
            assert!(part.iter().all(|&byte| byte != 0), "{extent:?}");
        }
        for at in inside.iter().filter(|at| (range.offset()..range.end()).contains(at)) {
            let rest = disk.extent_at(*at).unwrap();
            assert_eq!((rest.range, rest.zero), (ByteRange::between(*at, range.end()), extent.zero));
        }
        offset = range.end();
    }
    assert_eq!(disk.extent_at(disk.size()).unwrap_err().kind(), ErrorKind::Invalid);
}

/// Sectors of layers that were read: the number of the layer, and the sector of its file.
type Sectors = Vec<(usize, u64)>;

/// The file of a layer, which notes the sectors that are read.
struct Watched {
    layer: usize,
    file: Vec<u8>,
    read: Arc<Mutex<Sectors>>,
}

impl ReadAt for Watched {
    fn len(&self) -> u64 {
        self.file.len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = ByteRange::new(offset, buf.len() as u64).unwrap();
        self.read.lock().unwrap().extend(sectors_of(self.layer, range));
        self.file.read_at(buf, offset)
    }
}

fn sectors_of(layer: usize, range: ByteRange) -> impl Iterator<Item = (usize, u64)> {
    (range.offset() / 512..range.end().div_ceil(512)).map(move |sector| (layer, sector))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn stored_ranges_are_those_that_a_read_takes(
        layers in vec(wanted(12), 1..=4), start: prop::sample::Index, len in 1u64..9000,
    ) {
        let read = Arc::<Mutex<Sectors>>::default();
        let open = |(layer, wanted): (usize, &Wanted)| {
            let watched = Watched { layer, file: wanted.file(), read: Arc::clone(&read) };
            Layer::open(Arc::new(watched)).unwrap()
        };
        let stack = Stack::new(layers.iter().enumerate().map(open).collect()).unwrap();
        prop_assume!(stack.size() > 0);
        let start = start.index(stack.size() as usize) as u64;
        let mut stored = Sectors::new();
        // The range may go past the end of the disk.
        let range = ByteRange::between(start, start + len);
        stack.stored_ranges(range, &mut |layer, range| stored.extend(sectors_of(layer, range)));
        read.lock().unwrap().clear();
        stack.read_at(&mut vec![0; len.min(stack.size() - start) as usize], start).unwrap();
        prop_assert_eq!(&stored, &*read.lock().unwrap());
    }

    #[test]
    fn a_stack_reads_as_its_layers_applied_in_turn(
        layers in vec(wanted(12), 1..=6),
        reads in vec((any::<prop::sample::Index>(), 0usize..9000), 1..20),
    ) {
        let model = model_of(&layers);
        let stack = stack_of(&layers);
        prop_assert_eq!(stack.size(), model.size);
        let whole = model.read(0, model.size as usize);
        prop_assert!(read(&stack, 0, whole.len()) == whole);
        if whole.is_empty() {
            return Ok(());
        }
        let mut starts = Vec::new();
        for (start, len) in reads {
            let start = start.index(whole.len());
            let part = &whole[start..(start + len).min(whole.len())];
            prop_assert!(read(&stack, start as u64, part.len()) == part, "{}+{}", start, part.len());
            starts.push(start as u64);
        }
        check_extents(&stack, &whole, &starts);
        let past = stack.read_at(&mut [0; 2], stack.size() - 1);
        prop_assert_eq!(past.unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn flattening_a_stack_changes_no_byte(layers in vec(wanted(12), 1..=6)) {
        let stack = stack_of(&layers);
        let meta = LayerMeta { virtual_size: stack.size(), ..LayerMeta::default() };
        let mut writer = LayerWriter::new(Vec::new(), meta).unwrap();
        copy_segments(&stack, stack.index().segments().iter().copied(), &mut writer, &mut |_| Ok(())).unwrap();
        let (file, _) = writer.finish().unwrap();
        let whole = read(&stack, 0, stack.size() as usize);
        prop_assert!(plain::sealed(&file).unwrap().disk.read(0, whole.len()) == whole);
        let flat = Stack::new(vec![Layer::open(Arc::new(file)).unwrap()]).unwrap();
        prop_assert!(read(&flat, 0, whole.len()) == whole);
    }

    /// Sectors whose numbers need more than 32 bits, up to the last that a record can name.
    #[test]
    fn disks_over_two_tebibytes_are_read_right(
        base in prop_oneof![Just(0u64), Just((1 << 32) - 30), Just(1 << 33), Just((1 << 50) - 5000)],
        layers in vec(wanted(6), 1..=4),
    ) {
        let moved: Vec<_> = layers.into_iter().map(|mut layer| {
            layer.virtual_size = 1 << 59;
            if let Some(run) = layer.runs.first_mut() {
                run.0 += base;
            }
            layer
        }).collect();
        let (model, stack) = (model_of(&moved), stack_of(&moved));
        prop_assert_eq!(stack.size(), 1 << 59);
        let around = base.saturating_sub(20) * 512;
        let len = 1000 * 512;
        prop_assert!(read(&stack, around, len) == model.read(around, len));
        for block in model.written_blocks() {
            prop_assert!(read(&stack, block * 4096, 4096) == model.read(block * 4096, 4096));
            // The sector that a reader with 32-bit keys would take for the same one.
            let folded = (block * 4096) % (1 << 41);
            prop_assert!(read(&stack, folded, 4096) == model.read(folded, 4096));
        }
    }
}

/// Data on both sides of a hole is side by side in the file and is read by one call, of many parts at once.
#[test]
fn many_holes_in_one_read_of_files() {
    let dir = tempfile::tempdir().unwrap();
    let lower = layer(1 << 20, &(0..60).map(|i| (i % 3, 1 + i % 5, i % 7 == 6, i as u8)).collect::<Vec<_>>());
    let upper = layer(0, &(0..9).map(|i| (11 + i, 1 + i % 2, i % 3 == 0, 100 + i as u8)).collect::<Vec<_>>());
    let wanted = [lower, upper];
    let open = |(number, wanted): (usize, &Wanted)| {
        let path = dir.path().join(number.to_string());
        std::fs::write(&path, wanted.file()).unwrap();
        Layer::open_file(FileSource::open(path).unwrap()).unwrap()
    };
    let stack = Stack::new(wanted.iter().enumerate().map(open).collect()).unwrap();
    let whole = model_of(&wanted).read(0, 1 << 20);
    for (start, end) in [(0, 1 << 20), (1, 100_000), (700, 60_001), (513, 20_000), (4096, 1 << 19)] {
        assert!(read(&stack, start as u64, end - start) == whole[start..end], "{start} to {end}");
    }
    // A layer whose file has shrunk since is an error, in one part or in many.
    std::fs::File::options().write(true).open(dir.path().join("0")).unwrap().set_len(9000).unwrap();
    for len in [1 << 20, 100_000] {
        assert_eq!(stack.read_at(&mut vec![0; len], 0).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

fn layer(virtual_size: u64, runs: &[random_layers::Run]) -> Wanted {
    Wanted { virtual_size, runs: runs.to_vec() }
}

#[test]
fn a_top_layer_without_a_size_inherits_the_one_below() {
    let layers =
        [layer(1 << 20, &[(0, 8, false, 1)]), layer(0, &[(4, 2, true, 0)]), layer(0, &[(100, 1, false, 2)])];
    let (model, stack) = (model_of(&layers), stack_of(&layers));
    assert_eq!((stack.size(), stack.layers()), (1 << 20, 3));
    assert!(read(&stack, 0, 1 << 20) == model.read(0, 1 << 20));
}

#[test]
fn a_smaller_top_cuts_what_lies_below_and_a_larger_one_adds_zeros() {
    let lower = layer(64 << 10, &[(0, 128, false, 3)]);
    for size in [1, 511, 512, 1000, 4096, 65_536, 65_537, 1 << 20] {
        let stack = stack_of(&[lower.clone(), layer(size, &[])]);
        assert_eq!(stack.size(), size);
        let expected = lower.model().read(0, size as usize);
        assert!(read(&stack, 0, size as usize) == expected, "{size}");
        check_extents(&stack, &expected, &[0, size / 2, size - 1]);
    }
    let cut = stack_of(std::slice::from_ref(&lower)).with_size(700);
    assert_eq!((cut.size(), read(&cut, 600, 100)), (700, lower.model().read(600, 100)));
}

#[test]
fn a_stack_of_no_layers_is_empty_and_256_layers_are_refused() {
    let none = Stack::new(Vec::new()).unwrap();
    assert_eq!((none.size(), none.layers()), (0, 0));
    none.read_at(&mut [], 0).unwrap();
    assert_eq!(none.extent_at(0).unwrap_err().kind(), ErrorKind::Invalid);

    let one = layer(4096, &[(0, 1, false, 1)]).layer();
    assert_eq!(Stack::new(vec![one.clone(); 255]).unwrap().layers(), 255);
    let error = Stack::new(vec![one; 256]).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("flatten"), "{error}");
}

#[test]
fn an_image_is_not_writable() {
    let stack = stack_of(&[layer(4096, &[])]);
    assert_eq!(stack.write_at(&[0; 512], 0).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(stack.write_zeroes(ByteRange::between(0, 512)).unwrap_err().kind(), ErrorKind::ReadOnly);
    stack.flush().unwrap();
}
