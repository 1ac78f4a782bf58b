//! Archives made by hand, block by block, and the list of what is in them.

use crate::{TarEntry, TarKind, TarLimits, TarReader, TarTime};
use headstart_block::Result;

/// A header block under construction.
pub(crate) struct MadeHeader([u8; 512]);

/// A version 7 header with mode 0644, uid 5, gid 6 and mtime 7.
pub(crate) fn header(name: &[u8], typeflag: u8, size: usize) -> MadeHeader {
    let numbers = format!("0000644\x000000005\x000000006\x00{size:011o}\x0000000000007\x00");
    MadeHeader([0; 512]).set(0, name).set(100, numbers.as_bytes()).set(156, &[typeflag])
}

impl MadeHeader {
    /// The header with other bytes from `at` on.
    pub(crate) fn set(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(crate) fn ustar(self) -> Self {
        self.set(257, b"ustar\x0000").set(329, b"0000000\x000000000\0")
    }

    pub(crate) fn gnu(self) -> Self {
        self.set(257, b"ustar  \0").set(329, b"0000000\x000000000\0")
    }

    pub(crate) fn link(self, target: &[u8]) -> Self {
        self.set(157, target)
    }

    /// The block, with the sum of its bytes by `value`.
    fn summed(self, value: impl Fn(u8) -> i64) -> Vec<u8> {
        let block = self.set(148, b"        ");
        let sum: i64 = block.0.iter().map(|byte| value(*byte)).sum();
        block.set(148, format!("{sum:06o}\0 ").as_bytes()).0.to_vec()
    }

    pub(crate) fn block(self) -> Vec<u8> {
        self.summed(i64::from)
    }

    pub(crate) fn block_with_signed_sum(self) -> Vec<u8> {
        self.summed(|byte| i64::from(byte.cast_signed()))
    }

    /// The block and the content behind it.
    pub(crate) fn with(self, content: &[u8]) -> Vec<u8> {
        [self.block(), padded(content)].concat()
    }
}

/// A block with the checksum that it would have as a header.
pub(crate) fn summed_again(block: &[u8]) -> Vec<u8> {
    MadeHeader(block.try_into().unwrap()).block()
}

/// Bytes with zeros up to a multiple of 512.
pub(crate) fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(512), 0);
    padded
}

/// Records of a PAX header.
pub(crate) fn records(records: &[(&str, &[u8])]) -> Vec<u8> {
    let record = |(key, value): &(&str, &[u8])| {
        let body = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
        let len = (1..).find(|len| len.to_string().len() + body.len() == *len).unwrap();
        [len.to_string().as_bytes(), &body].concat()
    };
    records.iter().flat_map(record).collect()
}

/// An extended header in PAX format, for the entry that follows.
pub(crate) fn pax(given: &[(&str, &[u8])]) -> Vec<u8> {
    let text = records(given);
    header(b"PaxHeaders/1", b'x', text.len()).ustar().with(&text)
}

/// A long name (`L`) or target (`K`) in GNU format.
pub(crate) fn long(typeflag: u8, name: &[u8]) -> Vec<u8> {
    let text = [name, b"\0"].concat();
    header(b"././@LongLink", typeflag, text.len()).gnu().with(&text)
}

/// The parts of an archive and its end.
pub(crate) fn archive(parts: &[Vec<u8>]) -> Vec<u8> {
    [parts.concat(), vec![0; 1024]].concat()
}

/// All entries of an archive with their stored content, and a check of the offsets.
pub(crate) fn list(archive: &[u8]) -> Result<Vec<(TarEntry, Vec<u8>)>> {
    list_within(archive, TarLimits::default())
}

pub(crate) fn list_within(archive: &[u8], limits: TarLimits) -> Result<Vec<(TarEntry, Vec<u8>)>> {
    let mut reader = TarReader::new(archive, limits);
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        assert_eq!((reader.position(), reader.content_left()), (entry.content_offset, entry.stored_size));
        assert_eq!((entry.header_offset % 512, entry.content_offset % 512), (0, 0));
        let (mut content, mut buf) = (Vec::new(), [0; 77]);
        while let n @ 1.. = reader.read_content(&mut buf)? {
            content.extend(&buf[..n]);
        }
        let start = usize::try_from(entry.content_offset).unwrap();
        assert!(archive[start..].starts_with(&content) && content.len() as u64 == entry.stored_size);
        entries.push((entry, content));
    }
    assert!(reader.next_entry()?.is_none(), "the end stays the end");
    reader.finish()?;
    Ok(entries)
}

/// The only entry of an archive of `parts`.
pub(crate) fn only(parts: &[Vec<u8>]) -> TarEntry {
    let mut entries = list(&archive(parts)).unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0).0
}

/// The message of the error of an archive of `parts`.
#[track_caller]
pub(crate) fn refusal(parts: &[Vec<u8>]) -> String {
    list(&archive(parts)).unwrap_err().to_string()
}

/// The entry that [`header`] makes.
pub(crate) fn expected(path: &[u8], kind: TarKind) -> TarEntry {
    TarEntry {
        path: path.to_vec(),
        kind,
        mode: 0o644,
        uid: 5,
        gid: 6,
        mtime: TarTime { seconds: 7, nanoseconds: 0 },
        size: 0,
        stored_size: 0,
        link_target: Vec::new(),
        device: (0, 0),
        xattrs: Vec::new(),
        sparse: None,
        header_offset: 0,
        content_offset: 512,
    }
}
