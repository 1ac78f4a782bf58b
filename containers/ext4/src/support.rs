//! Images that the programs of e2fsprogs make, for tests.

use crate::extents::{self, ExtentMap};
use crate::file_system::{FileSystem, InodeAttributes, InodeNumber};
use crate::format::NewFileSystem;
use crate::geometry::Geometry;
use crate::group::{DescriptorChecksum, GroupDescriptor};
use crate::inode::{Inode, InodeTime};
use crate::little_endian::u16_at;
use crate::superblock::Superblock;
use crate::{BLOCK_SIZE, Block};
use headstart_block::{Result, to_usize};
use headstart_file_blocks::{BlockSink, FileKind};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Directories with programs for root, which the search path of others may lack.
const PLACES: [&str; 3] = ["/sbin", "/usr/sbin", "/usr/local/sbin"];

impl<S: BlockSink> FileSystem<S> {
    /// The names in a directory and their files.
    pub(crate) fn all_entries(&mut self, dir: InodeNumber) -> Result<BTreeMap<Vec<u8>, InodeNumber>> {
        let mut all = BTreeMap::new();
        for part in 0.. {
            let Some(entries) = self.entries(dir, part)? else { break };
            all.extend(entries);
        }
        Ok(all)
    }
}

/// Returns the paths of programs; if one is absent, says that `test` is skipped, and returns `None`.
pub(crate) fn skip_without(test: &str, programs: &[&str]) -> Option<Vec<PathBuf>> {
    let mut found = Vec::new();
    for program in programs {
        let searched = std::env::var_os("PATH").unwrap_or_default();
        let mut places = std::env::split_paths(&searched).chain(PLACES.iter().map(PathBuf::from));
        let Some(path) = places.find_map(|place| Some(place.join(program)).filter(|path| path.exists()))
        else {
            let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: there is no {program}");
            return None;
        };
        found.push(path);
    }
    Some(found)
}

/// A file with a file system, which is removed with this.
pub(crate) struct Image {
    directory: TempDir,
}

impl Image {
    /// Makes a file system of `size` by the program `mke2fs`, with options, and puts files into it by commands of
    /// `debugfs`, if there are any. Commands find files of 1 to 9 * 100,000 bytes, named `1` to `9`, and `3000` of
    /// 3000.
    pub(crate) fn make(mke2fs: &Path, size: &str, options: &[&str], commands: &[&str]) -> Self {
        let image = Self { directory: tempfile::tempdir().unwrap() };
        if !commands.is_empty() {
            for (name, len) in (1..10)
                .map(|number: usize| (number.to_string(), number * 100_000))
                .chain([("3000".into(), 3000)])
            {
                let content: Vec<u8> = (0..len).map(|at| (at % 251).to_le_bytes()[0] | 1).collect();
                std::fs::write(image.directory.path().join(name), content).unwrap();
            }
        }
        let mut command = Command::new(mke2fs);
        command
            .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256"])
            .args(options)
            .arg(image.path())
            .arg(size);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        if !commands.is_empty() {
            let debugfs = mke2fs.with_file_name("debugfs");
            let mut child = Command::new(debugfs)
                .args(["-w", "-f", "-"])
                .arg(image.path())
                .current_dir(image.directory.path())
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all((commands.join("\n") + "\n").as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && said.lines().count() <= 1, "{said}");
        }
        image
    }

    /// The file.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    /// The output of a command of `debugfs`, as text.
    pub(crate) fn shows(&self, command: &str, debugfs: &Path) -> String {
        String::from_utf8_lossy(&self.output(command, debugfs)).into_owned()
    }

    /// The output of a command of `debugfs`.
    pub(crate) fn output(&self, command: &str, debugfs: &Path) -> Vec<u8> {
        let mut program = Command::new(debugfs);
        program.arg("-R").arg(command).arg(self.path()).env("LC_ALL", "C").output().unwrap().stdout
    }

    /// The first bytes, of an image that is large and mostly empty.
    pub(crate) fn head(&self, len: u64) -> Vec<u8> {
        let mut head = Vec::new();
        File::open(self.path()).unwrap().take(len).read_to_end(&mut head).unwrap();
        head
    }

    /// The whole content.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    /// Replaces the whole content, and checks that `e2fsck` finds nothing to repair.
    pub(crate) fn check(&self, e2fsck: &Path, bytes: &[u8]) {
        std::fs::write(self.path(), bytes).unwrap();
        let output = Command::new(e2fsck).args(["-f", "-n"]).arg(self.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// The parts of the output of `dumpe2fs` that describe one group each.
pub(crate) fn groups_shown(output: &str) -> impl Iterator<Item = &str> {
    output.split("\nGroup ").filter(|part| part.starts_with(|first: char| first.is_ascii_digit()))
}

/// A file system in memory, with the places that its superblock and descriptors give.
pub(crate) struct OpenImage {
    /// The whole content.
    pub(crate) bytes: Vec<u8>,
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) groups: Vec<GroupDescriptor>,
}

impl OpenImage {
    /// Decodes the superblock and the descriptors.
    pub(crate) fn open(bytes: Vec<u8>) -> Self {
        let superblock = Superblock::decode(bytes[1024..].first_chunk().unwrap()).unwrap();
        let geometry = Geometry::new(&superblock);
        let mut this = Self { bytes, superblock, geometry, groups: Vec::new() };
        for group in 0..this.geometry.groups() {
            let bytes = &this.bytes[this.descriptor_place(group)];
            let descriptor = GroupDescriptor::decode(bytes, group, this.checksum(), &this.geometry).unwrap();
            this.groups.push(descriptor);
        }
        this
    }

    /// The checksums of descriptors.
    pub(crate) fn checksum(&self) -> DescriptorChecksum {
        DescriptorChecksum::new(&self.superblock)
    }

    /// The bytes of a group's descriptor.
    pub(crate) fn descriptor_place(&self, group: u32) -> Range<usize> {
        let (block, at) = self.geometry.descriptor_place(group);
        let start = to_usize(block) * BLOCK_SIZE + at;
        start..start + usize::from(self.superblock.descriptor_size)
    }

    /// The bytes of an inode.
    pub(crate) fn place_of_inode(&self, number: u32) -> Range<usize> {
        let (group, index) = self.geometry.group_of_inode(number).unwrap();
        let start = to_usize(self.groups[group as usize].inode_table) * BLOCK_SIZE + index as usize * 256;
        start..start + 256
    }

    /// The bytes of an inode, as an array.
    pub(crate) fn inode_bytes(&self, number: u32) -> &[u8; 256] {
        self.bytes[self.place_of_inode(number)].first_chunk().unwrap()
    }

    /// An inode.
    pub(crate) fn inode(&self, number: u32) -> Inode {
        Inode::decode(self.inode_bytes(number)).unwrap()
    }

    /// Stores an inode.
    pub(crate) fn put_inode(&mut self, number: u32, inode: &Inode) {
        let place = self.place_of_inode(number);
        self.bytes[place].copy_from_slice(&inode.encode());
    }

    /// The numbers of the inodes that have a kind of file.
    pub(crate) fn used(&self) -> Vec<u32> {
        let numbers = 1..=self.superblock.inodes_count;
        numbers.filter(|&number| FileKind::of_mode(u16_at(self.inode_bytes(number), 0)).is_some()).collect()
    }

    /// The content of a block.
    pub(crate) fn block(&self, number: u64) -> &Block {
        self.bytes[to_usize(number) * BLOCK_SIZE..].first_chunk().unwrap()
    }

    /// Stores the content of a block.
    pub(crate) fn put_block(&mut self, number: u64, content: &Block) {
        let start = to_usize(number) * BLOCK_SIZE;
        self.bytes[start..start + BLOCK_SIZE].copy_from_slice(content);
    }

    /// The places of an inode's blocks.
    pub(crate) fn extents(&self, inode: &Inode) -> ExtentMap {
        extents::of_inode(inode, self.geometry.blocks(), &mut |number| Ok(Box::new(*self.block(number))))
            .unwrap()
    }

    /// The blocks of a file, whose own content they are no more: it becomes empty.
    pub(crate) fn take_blocks(&mut self, number: u32) -> Vec<u64> {
        let mut inode = self.inode(number);
        let map = self.extents(&inode);
        assert_eq!(map.tree_blocks, [0; 0]);
        (inode.size, inode.blocks) = (0, 0);
        inode.block = extents::build(&[], &mut || unreachable!()).unwrap().i_block;
        self.put_inode(number, &inode);
        map.extents.iter().flat_map(|extent| extent.start..extent.start + u64::from(extent.len)).collect()
    }
}

/// A sink that keeps nothing.
pub(crate) struct Discard;

impl BlockSink for Discard {
    fn data(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Attributes of root's files from the beginning of 1970, without extended ones.
pub(crate) fn plain_attributes(mode: u16) -> InodeAttributes {
    InodeAttributes { mode, uid: 0, gid: 0, mtime: InodeTime::default(), xattrs: BTreeMap::new() }
}

/// A new file system of `size` bytes, whose blocks go nowhere.
pub(crate) fn blank(size: u64) -> FileSystem<Discard> {
    let new = NewFileSystem { size, uuid: [7; 16], hash_seed: [1, 2, 3, 4], root: plain_attributes(0o755) };
    new.make(Discard).unwrap()
}
