//! Writes the valid inputs of the corpus, with our own writers: `cargo run -p headstart-fuzz --example make_corpus`.
//!
//! They are small (the fuzzer's speed is inverse to its inputs' size) and each shows the parser something
//! that the others do not. Their names start with `valid-`, and the replay insists that they are.

use headstart_block::{ByteRange, Result};
use headstart_fuzz::join_pair;
use headstart_lsmt::format::{Flags, PAGE_SIZE, Page, UserTag};
use headstart_lsmt::{LayerMeta, LayerWriter, Segment};
use std::fs;
use std::path::Path;
use uuid::Uuid;

const DISK_SIZE: u64 = 1 << 20;
const ID: Uuid = Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

fn main() -> Result<()> {
    for (name, bytes) in layers()? {
        save("lsmt_layer", name, &bytes)?;
    }
    save("lsmt_pair", "log", &pair())?;
    save("lsmt_sparse", "two-pages", &sparse())?;
    Ok(())
}

fn save(target: &str, name: &str, bytes: &[u8]) -> Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join(format!("valid-{name}")), bytes)?;
    Ok(())
}

/// Bytes that compress, but not to nothing.
fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| b"a layer of a disk "[at * at % 17]).collect()
}

fn layers() -> Result<Vec<(&'static str, Vec<u8>)>> {
    let meta = LayerMeta {
        virtual_size: DISK_SIZE,
        uuid: ID,
        parent_uuid: Uuid::nil(),
        user_tag: UserTag::new("a tag")?,
    };
    let empty = LayerWriter::new(Vec::new(), meta.clone())?;
    let mut full = LayerWriter::new(Vec::new(), meta)?;
    full.data(512, &text(1024))?;
    full.zeroes(ByteRange::between(4096, 8192))?;
    full.data(8192, &text(512))?;
    full.data(DISK_SIZE - 512, &text(512))?;
    Ok(vec![("empty", empty.finish()?.0), ("data-and-zeros", full.finish()?.0)])
}

fn page(flags: u32) -> Page {
    Page {
        flags: Flags(flags),
        index_offset: PAGE_SIZE as u64,
        index_size: 0,
        virtual_size: DISK_SIZE,
        uuid: ID,
        parent_uuid: Uuid::nil(),
        user_tag: UserTag::default(),
    }
}

/// A log with an overwrite, a discard and padding.
fn pair() -> Vec<u8> {
    let mut data = page(Flags::HEADER | Flags::DATA).encode().to_vec();
    data.extend(text(2048));
    let mut index = page(Flags::HEADER).encode().to_vec();
    for record in
        [Segment::data(10, 3, 8), Segment::PADDING, Segment::data(11, 1, 11), Segment::zeroed(100, 50, 12)]
    {
        index.extend(record.to_record());
    }
    join_pair(&data, &index)
}

/// A disk of two pages, all data.
fn sparse() -> Vec<u8> {
    let mut header = page(Flags::HEADER | Flags::DATA | Flags::SPARSE);
    header.virtual_size = 2 * PAGE_SIZE as u64;
    let mut file = header.encode().to_vec();
    file.extend(text(2 * PAGE_SIZE));
    file
}
