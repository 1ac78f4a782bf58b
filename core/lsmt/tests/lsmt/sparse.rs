//! Sparse layers on a real file system: their index is the map of the file's holes.

use crate::plain;
use headstart_block::{BlockDevice, ErrorKind, FileSource};
use headstart_lsmt::format::{Flags, Page, UserTag};
use headstart_lsmt::{Layer, LayerForm, LayerMeta, LayerWriter, Segment, Stack};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

fn page(flags: u32, virtual_size: u64, index_offset: u64, index_size: u64) -> Page {
    Page {
        flags: Flags(flags),
        index_offset,
        index_size,
        virtual_size,
        uuid: Uuid::nil(),
        parent_uuid: Uuid::nil(),
        user_tag: UserTag::default(),
    }
}

/// Makes an unsealed sparse layer with `writes` (offset on the disk, bytes).
fn make(dir: &Path, virtual_size: u64, writes: &[(u64, &[u8])]) -> PathBuf {
    let path = dir.join("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(virtual_size + 4096).unwrap();
    file.write_all_at(&page(19, virtual_size, 0, 0).encode(), 0).unwrap();
    for (offset, bytes) in writes {
        file.write_all_at(bytes, offset + 4096).unwrap();
    }
    file.sync_all().unwrap();
    path
}

fn open(path: &Path) -> headstart_block::Result<Layer> {
    Layer::open_file(FileSource::open(path).unwrap())
}

fn read(disk: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xa5; len];
    disk.read_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn holes_show_the_layer_below() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(
        dir.path(),
        1 << 30,
        &[(8192, &[7; 4096]), (1 << 29, &[8; 8192]), ((1 << 30) - 4096, &[9; 4096])],
    );
    let top = open(&path).unwrap();
    assert_eq!((top.info().form, top.info().virtual_size), (LayerForm::Sparse, 1 << 30));
    let expected =
        [(16, 8), (1 << 20, 16), ((1 << 21) - 8, 8)].map(|(at, len)| Segment::data(at, len, at + 8));
    assert_eq!(top.segments(), expected);

    let meta = LayerMeta { virtual_size: 1 << 20, ..LayerMeta::default() };
    let mut lower = LayerWriter::new(Vec::new(), meta).unwrap();
    lower.data(0, &[1; 65536]).unwrap();
    let lower = Layer::open(Arc::new(lower.finish().unwrap().0)).unwrap();
    let stack = Stack::new(vec![lower, top]).unwrap();
    assert_eq!(stack.size(), 1 << 30);
    let start = [vec![1; 8192], vec![7; 4096], vec![1; 65536 - 12288], vec![0; 4096]].concat();
    assert!(read(&stack, 0, 65536 + 4096) == start);
    assert_eq!(read(&stack, (1 << 29) + 8190, 4), [8, 8, 0, 0]);
    assert_eq!(read(&stack, (1 << 30) - 4097, 2), [0, 9]);
}

#[test]
fn a_long_run_is_cut_to_what_a_segment_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path(), 20_000 * 512, &[(0, &vec![5; 20_000 * 512])]);
    let layer = open(&path).unwrap();
    assert_eq!(layer.segments(), [Segment::data(0, 16383, 8), Segment::data(16383, 3617, 16391)]);
    let stack = Stack::new(vec![layer]).unwrap();
    assert!(read(&stack, 0, 20_000 * 512).iter().all(|&byte| byte == 5));
}

#[test]
fn sparse_layers_may_be_empty_or_end_with_data() {
    let dir = tempfile::tempdir().unwrap();
    assert!(open(&make(dir.path(), 1 << 20, &[])).unwrap().segments().is_empty());
    let odd = open(&make(dir.path(), 5000, &[(0, &[3; 5000])])).unwrap();
    let stack = Stack::new(vec![odd]).unwrap();
    assert_eq!((stack.size(), read(&stack, 4990, 10)), (5000, vec![3; 10]));
}

/// The last page of the disk may itself be an LSMT trailer: a guest that keeps layers on its disk. The length
/// of the file tells that it is data.
#[test]
fn a_trailer_in_the_disks_last_page_is_data() {
    let dir = tempfile::tempdir().unwrap();
    let trailer = page(6, 1 << 20, 4096, 0).encode();
    let path = make(dir.path(), 1 << 20, &[((1 << 20) - 4096, &trailer)]);
    let layer = open(&path).unwrap();
    assert_eq!((layer.info().form, layer.segments().len()), (LayerForm::Sparse, 1));
    let stack = Stack::new(vec![layer]).unwrap();
    assert!(read(&stack, (1 << 20) - 4096, 4096) == trailer);
    // As a source without holes it cannot be read, and is not mistaken for a sealed one.
    assert!(Layer::open(Arc::new(FileSource::open(&path).unwrap())).is_err());
}

/// Sealing appends table and trailer behind the disk's bytes.
#[test]
fn a_sealed_sparse_layer_is_read_by_its_table() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path(), 1 << 20, &[(4096, &[7; 4096])]);
    let file = File::options().write(true).open(&path).unwrap();
    let end = (1 << 20) + 4096;
    let mut table = vec![0xa5; 512];
    table[..16].copy_from_slice(&Segment::data(8, 8, 16).to_record());
    file.write_all_at(&table, end).unwrap();
    file.write_all_at(&page(22, 1 << 20, end, 1).encode(), end + 512).unwrap();
    let layer = open(&path).unwrap();
    assert_eq!((layer.info().form, layer.segments()), (LayerForm::Sealed, &[Segment::data(8, 8, 16)][..]));
    let stack = Stack::new(vec![layer]).unwrap();
    assert_eq!(read(&stack, 4095, 2), [0, 7]);
    assert!(plain::sealed(&std::fs::read(&path).unwrap()).is_ok());
}

#[test]
fn a_sparse_layer_that_is_cut_short_or_of_another_form_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path(), 1 << 20, &[]);
    File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let error = open(&path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("tar -S"), "{error}");

    let claims = make(dir.path(), 1 << 20, &[]);
    File::options()
        .write(true)
        .open(&claims)
        .unwrap()
        .write_all_at(&page(19, u64::MAX, 0, 0).encode(), 0)
        .unwrap();
    assert_eq!(open(&claims).err().unwrap().kind(), ErrorKind::Corrupt);

    let unsealed = dir.path().join("unsealed");
    std::fs::write(&unsealed, [page(3, 1 << 20, 0, 0).encode(), [0; 4096]].concat()).unwrap();
    assert_eq!(open(&unsealed).err().unwrap().kind(), ErrorKind::Unsupported);
    assert!(Layer::open_sparse(FileSource::open(&unsealed).unwrap()).is_err());
}
