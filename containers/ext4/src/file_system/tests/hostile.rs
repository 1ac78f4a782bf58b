//! Damaged parents: an error or some result, never a panic.

use super::support::{Bytes, Record, all_kinds, attributes, content, put, put_dir, recorded};
use crate::file_system::{FileSystem, InodeNumber, NewInode};
use crate::support::{Image, skip_without};
use headstart_block::{ReadAt, Result};
use headstart_file_blocks::FileKind;
use std::sync::Arc;

/// A disk with some bytes changed.
struct Damaged {
    bytes: Arc<Vec<u8>>,
    changes: Vec<(u64, u8)>,
}

impl ReadAt for Damaged {
    fn len(&self) -> u64 {
        ReadAt::len(&*self.bytes)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.bytes.read_at(buf, offset)?;
        for &(at, value) in &self.changes {
            if let Some(byte) =
                at.checked_sub(offset).and_then(|at| buf.get_mut(usize::try_from(at).unwrap()))
            {
                *byte = value;
            }
        }
        Ok(())
    }
}

/// Looks at everything below a directory.
fn look(fs: &mut FileSystem<Record>, dir: InodeNumber, depth: usize) {
    for (name, file) in fs.all_entries(dir).unwrap_or_default() {
        let _ = fs.lookup(dir, &name);
        let _ = fs.xattrs(file);
        let _ = fs.link_target(file);
        if depth < 4 && fs.status(file).is_ok_and(|status| status.kind == FileKind::Directory) {
            look(fs, file, depth + 1);
        }
    }
}

/// Does everything with a parent that can be done with it; the first error, if there was one, is that of all.
fn use_it(parent: Damaged) -> Result<()> {
    let mut fs = FileSystem::open(Arc::new(parent), Record::default())?;
    let root = fs.root();
    look(&mut fs, root, 0);
    let mut results = Vec::new();
    for (name, file) in fs.all_entries(root)? {
        let below = fs.all_entries(file).unwrap_or_default();
        for (number, (below, inode)) in below.into_iter().take(30).enumerate() {
            results.push(match number % 3 {
                0 => fs.remove(file, &below).map(drop),
                1 => {
                    fs.replace(file, &below, &attributes(0o600), &mut Bytes::new(content(1, 3000))).map(drop)
                }
                _ if fs.status(inode).is_ok_and(|status| status.kind == FileKind::Directory) => Ok(()),
                _ => fs.link(root, format!("link {number} of {}", file.0).as_bytes(), inode),
            });
        }
        for number in 0..40 {
            let long = format!("{number:0>200}");
            let _ = fs.create(file, long.as_bytes(), &NewInode::Fifo, &attributes(0o644));
        }
        let mut with_xattrs = attributes(0o600);
        with_xattrs.xattrs.insert(b"user.long".to_vec(), vec![1; 1000]);
        results.push(fs.set_attributes(file, &with_xattrs));
        if name.len() % 2 == 0 {
            results.push(fs.remove(root, &name).map(drop));
        }
    }
    results.push(put(&mut fs, root, b"new", &content(2, 100_000)));
    results.push(put_dir(&mut fs, root, b"new directory").map(drop));
    fs.finish()?;
    results.into_iter().collect()
}

/// Changes bytes in blocks that are neither zeros nor `content`, some at a time, and uses what comes of it.
fn damage_and_use(bytes: Vec<u8>, times: u64, content: impl Fn(&[u8]) -> bool) {
    let blocks: Vec<_> = bytes
        .chunks(4096)
        .enumerate()
        .filter(|(_, block)| block.iter().any(|&byte| byte != 0) && !content(block))
        .map(|(number, _)| number as u64)
        .collect();
    let bytes = Arc::new(bytes);
    use_it(Damaged { bytes: bytes.clone(), changes: Vec::new() }).unwrap();
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    };
    let times = if std::env::var_os("HEADSTART_SOAK").is_some() { 30 * times } else { times };
    let mut possible = 0;
    for round in 0..times {
        let block = blocks[usize::try_from(random(blocks.len() as u64)).unwrap()];
        // Bytes that are in use do more harm than others: a few are tried for one.
        let (mut at, mut value) = (0, 0);
        for _ in 0..20 {
            at = block * 4096 + random(4096);
            let old = bytes[usize::try_from(at).unwrap()];
            value = match random(4) {
                0 => 0xff,
                1 => old ^ 1 << random(8),
                2 => old.wrapping_add(1),
                _ => random(256).to_le_bytes()[0],
            };
            if old != 0 {
                break;
            }
        }
        let mut changes = vec![(at, value)];
        if round % 4 == 0 {
            changes.extend((1..4).map(|n| (at + n, 0xff)));
        }
        possible += u64::from(use_it(Damaged { bytes: bytes.clone(), changes }).is_ok());
    }
    assert!(possible > 0 && possible < times, "{possible} of {times}");
}

#[test]
fn damaged_parents_of_this_program_never_panic() {
    let mut fs = recorded(32 << 20);
    all_kinds(&mut fs, 150).unwrap();
    let (record, _) = fs.finish().unwrap();
    let mut bytes = vec![0; 32 << 20];
    record.apply(&mut bytes);
    // Content is what was written before the superblock.
    let written = record.writes.iter().take_while(|(offset, _)| *offset != 0);
    let content: Vec<_> = written.flat_map(|(_, bytes)| bytes.chunks(4096)).collect();
    damage_and_use(bytes, 400, |block| content.contains(&block));
}

#[test]
fn damaged_parents_of_mke2fs_never_panic() {
    let Some(programs) = skip_without("damaged parents", &["mke2fs", "debugfs"]) else { return };
    let mut commands = vec!["mkdir dir".to_owned(), "mkdir dir2".into(), "symlink dir/link target".into()];
    commands.extend((0..100).map(|n| format!("write 3000 dir/{n:0>120}")));
    commands.extend((0..10).map(|n| format!("ln dir/{n:0>120} dir2/{n}")));
    commands.extend((0..10).map(|n| format!("sif dir/{n:0>120} links_count 2")));
    commands.push(format!("ea_set dir/{:0>120} user.a value", 5));
    let commands: Vec<_> = commands.iter().map(String::as_str).collect();
    for options in
        ["^metadata_csum,^has_journal,^64bit", "^metadata_csum,^has_journal,uninit_bg,^resize_inode"]
    {
        let image = Image::make(&programs[0], "8M", &["-O", options, "-N", "512"], &commands);
        // Content of the files has no zeros; see `Image::make`.
        damage_and_use(image.bytes(), 300, |block| block[..2000].iter().all(|&byte| byte % 2 == 1));
    }
}

#[test]
fn a_directory_of_the_largest_size_cannot_grow() {
    let mut fs = recorded(8 << 20);
    let root = fs.root();
    for number in 0..40 {
        put(&mut fs, root, format!("{number:0>200}").as_bytes(), b"").unwrap();
    }
    let mut inode = fs.state.inode(root.0).unwrap();
    assert!(inode.is_indexed());
    inode.size = u64::from(u32::MAX) / 4096 * 4096;
    fs.state.put_inode(root.0, &inode).unwrap();
    let error = (0..40).find_map(|n| put(&mut fs, root, format!("{n:x>200}").as_bytes(), b"").err()).unwrap();
    assert!(error.to_string().contains("the most"), "{error}");
    // Blocks past the end, in the way of the next one.
    inode.size = 4096;
    inode.flags = 0x8_0000;
    fs.state.put_inode(root.0, &inode).unwrap();
    let error = (40..80).find_map(|n| put(&mut fs, root, format!("{n:x>200}").as_bytes(), b"").err());
    assert!(error.unwrap().to_string().contains("past its end"));
}
