//! Test support: tars of layers, and how they are compressed.

use flate2::Compression;
use flate2::write::GzEncoder;
use headstart_block::Digest;
use headstart_image::store::{ImageStore, Staging};
use std::io::{self, Read, Write};
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// A tar in the making. All entries have the same owner and time.
pub(crate) struct TarMaker(Builder<Vec<u8>>);

impl TarMaker {
    pub(crate) fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn add(mut self, kind: EntryType, path: &str, mode: u32, content: &[u8], target: Option<&str>) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(1000);
        header.set_gid(100);
        header.set_mtime(1_700_000_000);
        header.set_size(content.len() as u64);
        match target {
            Some(target) => self.0.append_link(&mut header, path, target).unwrap(),
            None => self.0.append_data(&mut header, path, content).unwrap(),
        }
        self
    }

    pub(crate) fn dir(self, path: &str) -> Self {
        self.add(EntryType::Directory, path, 0o755, b"", None)
    }

    pub(crate) fn file(self, path: &str, content: &[u8]) -> Self {
        self.add(EntryType::Regular, path, 0o644, content, None)
    }

    pub(crate) fn program(self, path: &str, content: &[u8]) -> Self {
        self.add(EntryType::Regular, path, 0o4755, content, None)
    }

    pub(crate) fn symlink(self, target: &str, path: &str) -> Self {
        self.add(EntryType::Symlink, path, 0o777, b"", Some(target))
    }

    pub(crate) fn link(self, target: &str, path: &str) -> Self {
        self.add(EntryType::Link, path, 0o644, b"", Some(target))
    }

    /// A file of `size` bytes whose stored bytes are in at most four runs, each with its offset in the file.
    pub(crate) fn sparse(mut self, path: &str, size: u64, runs: &[(u64, &[u8])]) -> Self {
        let stored: Vec<u8> = runs.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::GNUSparse);
        header.set_mode(0o644);
        header.set_mtime(1_700_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(stored.len() as u64);
        let gnu = header.as_gnu_mut().unwrap();
        let set = |field: &mut [u8; 12], number: u64| {
            field.copy_from_slice(format!("{number:011o}\0").as_bytes());
        };
        set(&mut gnu.realsize, size);
        for (place, (offset, bytes)) in gnu.sparse.iter_mut().zip(runs) {
            set(&mut place.offset, *offset);
            set(&mut place.numbytes, bytes.len() as u64);
        }
        self.0.append_data(&mut header, path, &stored[..]).unwrap();
        self
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// Bytes that do not compress well, a different sequence for each seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3] & 0x3f
    };
    (0..len).map(|_| next()).collect()
}

/// The layers of a small image: a base with many files, changes of it, and one file on top.
pub(crate) fn sample_tars() -> Vec<Vec<u8>> {
    let mut base = TarMaker::new().dir("usr").dir("usr/bin").dir("usr/share").dir("etc");
    for number in 0..300 {
        let name = format!("usr/share/a file with a long name, number {number:06}");
        base = base.file(&name, &noise(number, usize::try_from(number * 37).unwrap()));
    }
    let base = base
        .program("usr/bin/tool", &noise(7, 3_000_000))
        .symlink("tool", "usr/bin/alias")
        .link("usr/bin/tool", "usr/bin/second")
        .file("etc/passwd", b"root:x:0:0::/:/bin/sh\n")
        .file("etc/same", &noise(9, 1_200_000))
        .done();
    let changes = TarMaker::new()
        .file("usr/share/.wh..wh..opq", b"")
        .file("usr/share/new", &noise(11, 50_000))
        .file("etc/.wh.passwd", b"")
        .file("etc/same", &noise(9, 1_200_000))
        .file("usr/bin/tool", &noise(8, 500_000))
        .done();
    let top = TarMaker::new().file("app/config.json", b"{}").done();
    vec![base, changes, top]
}

pub(crate) fn gzip(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8], level: i32) -> Vec<u8> {
    let mut compressed = vec![0; zstd_safe::compress_bound(bytes.len())];
    let len = zstd_safe::compress(&mut compressed[..], bytes, level).unwrap();
    compressed.truncate(len);
    compressed
}

/// A frame of zstd that decoders skip.
pub(crate) fn skippable(content: &[u8]) -> Vec<u8> {
    let len = u32::try_from(content.len()).unwrap().to_le_bytes();
    [&[0x5a, 0x2a, 0x4d, 0x18][..], &len, content].concat()
}

/// A frame of zstd with one stored block, that asks for a window of 2^`log` bytes.
pub(crate) fn windowed(content: &[u8], log: u8) -> Vec<u8> {
    let block = u32::try_from(content.len() << 3 | 1).unwrap().to_le_bytes();
    [&[0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3][..], &block[..3], content].concat()
}

/// The bytes in several compressed forms, with their names.
pub(crate) fn forms(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let (first, second) = bytes.split_at(bytes.len() / 3);
    vec![
        ("plain", bytes.to_vec()),
        ("gzip 1", gzip(bytes, 1)),
        ("gzip 9", gzip(bytes, 9)),
        ("gzip members", [gzip(first, 6), gzip(b"", 6), gzip(second, 0)].concat()),
        ("zstd", zstd(bytes, 3)),
        (
            "zstd frames",
            [skippable(b"a"), zstd(first, 1), skippable(b""), zstd(second, 9), skippable(b"bc")].concat(),
        ),
    ]
}

/// A reader of bytes in pieces of changing lengths.
pub(crate) struct Pieces {
    bytes: io::Cursor<Vec<u8>>,
    next: usize,
}

impl Pieces {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: io::Cursor::new(bytes), next: 0 }
    }
}

impl Read for Pieces {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.next = (self.next * 7 + 3) % 9001;
        if self.next.is_multiple_of(5) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let len = buf.len().min(self.next);
        self.bytes.read(&mut buf[..len])
    }
}

/// A staging area in a new store in a directory.
pub(crate) fn staging_in(dir: &Path) -> Staging {
    ImageStore::create_or_open(dir).unwrap().stage().unwrap()
}

/// The names of finished blobs in a staging area.
pub(crate) fn staged(staging: &Staging) -> Vec<String> {
    let files = std::fs::read_dir(staging.path()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| Digest::from_hex(name).is_some()).collect()
}
