//! Directories in images of mke2fs, as e2fsck and debugfs see them.

use super::support::{Listing, MemoryBlocks, check, directory_of, name};
use crate::directory::{DirectoryEntry, HashSettings, dots, each_of_all, insert, lookup, remove};
use crate::hash::{HALF_MD4, LEGACY, TEA};
use crate::htree::{CONTINUES, IndexInfo, IndexKind, slots};
use crate::little_endian::u32_at;
use crate::support::skip_without;
use crate::{BLOCK_SIZE, Block};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// An image with a directory /d, whose blocks tests write anew.
struct Image {
    /// The paths of mke2fs, debugfs and e2fsck.
    programs: Vec<PathBuf>,
    dir: TempDir,
    file: File,
    /// The blocks of the image that the directory has.
    places: Vec<u64>,
    own: u32,
    parent: u32,
    /// The file /f, which all names in the directory are links to.
    target: u32,
    settings: HashSettings,
}

impl Image {
    /// Makes an image whose directory has `blocks` blocks. `None` if e2fsprogs is not installed.
    fn new(blocks: usize, version: u8, unsigned: bool) -> Option<Self> {
        let programs = skip_without("directories in images", &["mke2fs", "debugfs", "e2fsck"])?;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(64 << 20).unwrap();
        let features = "^has_journal,^metadata_csum,dir_index,extent,filetype";
        let seed = "hash_seed=01020304-0506-0708-090a-0b0c0d0e0f10";
        let mke2fs = Command::new(&programs[0])
            .args(["-q", "-F", "-b", "4096", "-I", "256", "-O", features, "-E", seed])
            .arg(&path)
            .status()
            .unwrap();
        assert!(mke2fs.success());
        std::fs::write(dir.path().join("empty"), b"").unwrap();
        let mut image = Self {
            programs,
            dir,
            file,
            places: Vec::new(),
            own: 0,
            parent: 0,
            target: 0,
            settings: HashSettings { version, seed: [0; 4], unsigned },
        };
        let mut script = format!(
            "ssv def_hash_version {}\nssv flags {}\nmkdir d\nwrite {} f\nln f d/f\n",
            ["legacy", "half_md4", "tea"][usize::from(version)],
            if unsigned { 2 } else { 1 },
            image.dir.path().join("empty").display(),
        );
        script += &"expand_dir d\n".repeat(blocks - 1);
        image.debugfs(&script);
        let places = image.debugfs("blocks d\n");
        image.places =
            places.lines().last().unwrap().split_whitespace().map(|n| n.parse().unwrap()).collect();
        assert_eq!(image.places.len(), blocks, "{places}");
        let mut superblock = [0; 1024];
        image.file.read_exact_at(&mut superblock, 1024).unwrap();
        image.settings.seed = [0xec, 0xf0, 0xf4, 0xf8].map(|at| u32_at(&superblock, at));
        assert_eq!((superblock[0xfc], superblock[0x160]), (version, if unsigned { 2 } else { 1 }));
        let mut first = MemoryBlocks::new(vec![image.read(0)]);
        let (own, parent) = dots(&first.blocks[0]).unwrap();
        (image.own, image.parent) = (own.inode, parent.inode);
        image.target = lookup(&mut first, false, &image.settings, b"f").unwrap().unwrap().0;
        Some(image)
    }

    fn read(&self, n: usize) -> Box<Block> {
        let mut block = Box::new([0; BLOCK_SIZE]);
        self.file.read_exact_at(&mut *block, self.places[n] * BLOCK_SIZE as u64).unwrap();
        block
    }

    /// Runs commands of debugfs, and returns what it prints.
    fn debugfs(&self, script: &str) -> String {
        let path = self.dir.path().join("script");
        std::fs::write(&path, script).unwrap();
        let output = Command::new(&self.programs[1])
            .env("DEBUGFS_PAGER", "__none__")
            .args(["-w", "-f"])
            .arg(path)
            .arg(self.dir.path().join("image"))
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// An entry for the file that all names are links to.
    fn entry<'a>(&self, name: &'a [u8]) -> DirectoryEntry<'a> {
        DirectoryEntry { name, inode: self.target, kind: 1 }
    }

    /// A directory with these names for the file.
    fn directory_of(&self, names: &[Vec<u8>]) -> (MemoryBlocks, bool) {
        let entries = names.iter().map(|name| (name, self.target));
        directory_of((self.own, self.parent), entries, &self.settings)
    }

    /// Puts a directory into the image in place of the one that is there, and has e2fsprogs check it.
    fn verify(self, directory: &MemoryBlocks, indexed: bool) -> Listing {
        let listing = check(directory, indexed, &self.settings);
        assert!(directory.blocks.len() <= self.places.len(), "needs {} blocks", directory.blocks.len());
        for (block, place) in directory.blocks.iter().zip(&self.places) {
            self.file.write_all_at(&**block, place * BLOCK_SIZE as u64).unwrap();
        }
        let blocks = directory.blocks.len();
        let flags = if indexed { 0x81000 } else { 0x80000 };
        let mut script = format!("sif f links_count {}\nsif d flags {flags}\n", listing.len() + 1);
        script += &format!("sif d size {}\n", blocks * BLOCK_SIZE);
        if blocks < self.places.len() {
            script += &format!("punch d {blocks} {}\n", self.places.len() - 1);
        }
        self.debugfs(&script);
        let path = self.dir.path().join("image");
        let e2fsck = Command::new(&self.programs[2]).arg("-fn").arg(path).output().unwrap();
        let (text, warnings) =
            (String::from_utf8_lossy(&e2fsck.stdout), String::from_utf8_lossy(&e2fsck.stderr));
        assert_eq!(e2fsck.status.code(), Some(0), "{text}{warnings}");
        let target = format!("/{}/", self.target);
        let listed = self.debugfs("ls -p d\n");
        assert_eq!(listed.lines().filter(|line| line.starts_with(&target)).count(), listing.len());
        if indexed {
            let dump = self.debugfs("htree_dump d\n");
            assert!(dump.contains("Root node dump:"), "{dump}");
            let leaves = dump.lines().filter(|line| line.starts_with("Reading directory block")).count();
            let nodes = IndexInfo::decode(&directory.blocks[0]).unwrap().has_nodes;
            let expected =
                if nodes { 0 } else { slots(&directory.blocks[0], IndexKind::Root).unwrap().len() };
            assert!(leaves >= expected, "{leaves} of {expected} leaves:\n{dump}");
        }
        listing
    }
}

fn names(numbers: std::ops::Range<u16>) -> Vec<Vec<u8>> {
    // A newline would confuse the counting of lines that debugfs prints.
    let without_newline =
        |name: Vec<u8>| name.into_iter().map(|byte| if byte == b'\n' { b'-' } else { byte });
    numbers.map(|n| without_newline(name(n, 200)).collect()).collect()
}

#[test]
fn e2fsck_finds_directories_of_all_sizes_clean() {
    for (version, unsigned) in [(HALF_MD4, false), (HALF_MD4, true), (TEA, false), (LEGACY, true)] {
        for count in [0, 1, 20, 3000] {
            let Some(image) = Image::new(200, version, unsigned) else { return };
            let (directory, indexed) = image.directory_of(&names(0..count));
            assert_eq!(indexed, count > 100);
            assert_eq!(image.verify(&directory, indexed).len(), usize::from(count));
        }
    }
}

#[test]
fn e2fsck_finds_changed_directories_clean() {
    for (version, unsigned) in [(HALF_MD4, false), (HALF_MD4, true), (TEA, true), (LEGACY, false)] {
        for first in [0, 500] {
            let Some(image) = Image::new(200, version, unsigned) else { return };
            let settings = image.settings;
            let (mut directory, mut indexed) = image.directory_of(&names(0..first));
            for name in &names(1000..3000) {
                indexed = insert(&mut directory, indexed, &settings, &image.entry(name)).unwrap();
            }
            for name in names(1000..3000).iter().filter(|name| name[4] % 3 != 0) {
                assert!(remove(&mut directory, indexed, &settings, name).unwrap().is_some());
            }
            for name in &names(5000..5500) {
                indexed = insert(&mut directory, indexed, &settings, &image.entry(name)).unwrap();
            }
            let listing = image.verify(&directory, indexed);
            assert!(indexed && listing.len() > 1000);
        }
    }
}

#[test]
fn e2fsck_finds_an_emptied_index_clean() {
    let Some(image) = Image::new(100, HALF_MD4, false) else { return };
    let settings = image.settings;
    let names = names(0..1000);
    let (mut directory, indexed) = image.directory_of(&names);
    for name in &names {
        assert!(remove(&mut directory, indexed, &settings, name).unwrap().is_some());
    }
    assert!(image.verify(&directory, indexed).is_empty());
}

#[test]
fn e2fsck_finds_two_levels_clean() {
    let long = |n: u32| format!("{n:0>250}").into_bytes();
    let Some(image) = Image::new(1300, HALF_MD4, false) else { return };
    let (directory, indexed) = image.directory_of(&(0..10_000).map(long).collect::<Vec<_>>());
    assert!(IndexInfo::decode(&directory.blocks[0]).unwrap().has_nodes);
    assert_eq!(image.verify(&directory, indexed).len(), 10_000);
}

#[test]
fn e2fsck_finds_equal_hashes_in_two_leaves_clean() {
    // A short name is filled up with its length, and so has the hash of the filled name. Words are big-endian, so the
    // filling stands before the bytes of an unfinished word: none of these is one.
    let pair = |n: u32| {
        let short = format!("{n:020}").into_bytes();
        let long = [&short[..], &[20; 12]].concat();
        [short, long]
    };
    // First all short names, then all long ones: a leaf that is split has some pairs and some single names. Pairs alone
    // would all have the same length, and half of a leaf would always end with the end of a pair.
    let names: Vec<_> =
        [0, 1].into_iter().flat_map(|which| (0..3000).map(move |n| pair(n)[which].clone())).collect();
    let Some(image) = Image::new(150, HALF_MD4, false) else { return };
    let settings = image.settings;
    assert_eq!(settings.hash(&names[0]), settings.hash(&names[3000]));
    let (mut directory, indexed) = image.directory_of(&names);
    let index = slots(&directory.blocks[0], IndexKind::Root).unwrap();
    assert!(index[1..].iter().any(|(hash, _)| hash & CONTINUES == CONTINUES));
    for name in &names {
        assert!(lookup(&mut directory, indexed, &settings, name).unwrap().is_some());
    }
    let mut count = 0;
    each_of_all(&mut directory, &mut |_, _, _| {
        count += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(count, names.len());
    assert_eq!(image.verify(&directory, indexed).len(), names.len());
}
