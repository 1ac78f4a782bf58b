//! The members of a tar archive that is a file.
//!
//! One pass over the headers finds all members. Contents of more than [`READ_OVER`] bytes are jumped over, so that the
//! pass reads little of an archive of any size: a reader of tar streams starts anew behind each of them. A member's
//! name is only a key: nothing is unpacked. Links lead to members, never out of the archive.

use headstart_block::{ByteRange, Error, ErrorKind, ReadAt, Result, to_usize};
use headstart_tar::{TarEntry, TarKind, TarLimits, TarReader};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, Read};
use std::sync::Arc;

/// The most bytes of content that the pass reads instead of jumping over them.
const READ_OVER: u64 = 256 << 10;

/// The most members of an archive: 65,536, some three for each layer of many images.
const MAX_MEMBERS: usize = 1 << 16;

/// The most links that lead to a member.
const MAX_LINKS: usize = 8;

/// The most characters of a name that a message shows.
const SHOWN: usize = 200;

/// The unit of an archive: all of it starts at multiples of 512 bytes.
const BLOCK: u64 = 512;

/// The beginnings of compressed files, with the programs that undo it.
const COMPRESSED: [(&[u8], &str); 4] = [
    (&[0x1f, 0x8b], "gunzip"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd -d"),
    (b"BZh", "bunzip2"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "unxz"),
];

/// A tar archive, whose members are found.
pub(crate) struct ArchiveFile {
    source: Arc<dyn ReadAt>,
    members: BTreeMap<Vec<u8>, Member>,
}

#[derive(Debug)]
enum Member {
    File(ByteRange),
    /// A link to the member of this name.
    Link(Vec<u8>),
    /// A link that leads out of the archive.
    LinkOut,
    /// A member that is used for nothing: a device, or a file with holes.
    Other,
    /// Several members of this name.
    Twice,
}

impl ArchiveFile {
    /// Finds the members of the archive that is `source`.
    ///
    /// # Errors
    /// Corrupt if it is damaged or cut, or a name leads out of it; Unsupported if it is compressed or exceeds a limit.
    pub(crate) fn scan(source: Arc<dyn ReadAt>) -> Result<Self> {
        refuse_compressed(&*source)?;
        let mut archive = Self { source, members: BTreeMap::new() };
        let (mut base, mut count) = (0, 0);
        let mut reader = archive.reader_at(base);
        while let Some(entry) = reader.next_entry().map_err(|e| at_base(e, base))? {
            count += 1;
            if count > MAX_MEMBERS {
                return Err(Error::unsupported(format!("has more than {MAX_MEMBERS} members"))
                    .remedy("save fewer images at once: each layer takes a few members"));
            }
            let len = archive.source.len();
            let content = base.checked_add(entry.content_offset);
            let content = content.and_then(|offset| ByteRange::new(offset, entry.stored_size));
            let content = content.filter(|content| content.end() <= len).ok_or_else(|| {
                Error::corrupt(format!("is cut inside the member \"{}\"", shown(&entry.path)))
                    .remedy("fetch or make it again")
            })?;
            archive.add(&entry, content)?;
            if content.len() > READ_OVER {
                base = content.end().div_ceil(BLOCK).saturating_mul(BLOCK).min(len);
                reader = archive.reader_at(base);
            }
        }
        Ok(archive)
    }

    fn reader_at(&self, offset: u64) -> TarReader<RangeReader> {
        let rest = ByteRange::between(offset, self.source.len());
        let limits = TarLimits {
            path_bytes: 1024,
            extended_bytes: 64 << 10,
            sparse_extents: 1024,
            ..TarLimits::default()
        };
        TarReader::new(self.reader(rest), limits)
    }

    fn add(&mut self, entry: &TarEntry, content: ByteRange) -> Result<()> {
        let name = normal(&entry.path).ok_or_else(|| {
            Error::corrupt(format!("has a member whose name leads out of it: \"{}\"", shown(&entry.path)))
        })?;
        let link = |target: Option<Vec<u8>>| target.map_or(Member::LinkOut, Member::Link);
        let member = match entry.kind {
            TarKind::Directory => return Ok(()),
            TarKind::Regular if entry.sparse.is_none() => Member::File(content),
            TarKind::HardLink => link(normal(&entry.link_target)),
            TarKind::Symlink => {
                let slash = name.iter().rposition(|byte| *byte == b'/');
                link(linked(slash.map_or(&[][..], |slash| &name[..slash]), &entry.link_target))
            }
            _ => Member::Other,
        };
        match self.members.entry(name) {
            Entry::Vacant(place) => {
                place.insert(member);
            }
            Entry::Occupied(mut place) => *place.get_mut() = Member::Twice,
        }
        Ok(())
    }

    /// `true` if there is a member with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.members.contains_key(name.as_bytes())
    }

    /// The content of the file with this name, or that a link with this name leads to.
    ///
    /// # Errors
    /// NotFound if there is none; Corrupt if the name is ambiguous or a link leads nowhere.
    pub(crate) fn file(&self, name: &str) -> Result<ByteRange> {
        let asked = || shown(name.as_bytes());
        let mut at = normal(name.as_bytes())
            .ok_or_else(|| Error::corrupt(format!("names a file outside of the archive: \"{}\"", asked())))?;
        for links in 0..=MAX_LINKS {
            let cause = match self.members.get(&at) {
                Some(Member::File(content)) => return Ok(*content),
                Some(Member::Link(target)) => {
                    at.clone_from(target);
                    continue;
                }
                None if links == 0 => {
                    let cause = format!("has no member \"{}\"", asked());
                    return Err(Error::new(ErrorKind::NotFound, cause));
                }
                None => format!("its link \"{}\" leads to \"{}\", which is not there", asked(), shown(&at)),
                Some(Member::LinkOut) => format!("its link \"{}\" leads out of the archive", shown(&at)),
                Some(Member::Twice) => format!("has several members \"{}\"", shown(&at)),
                Some(Member::Other) => format!("its member \"{}\" is not a plain file", shown(&at)),
            };
            return Err(Error::corrupt(cause));
        }
        Err(Error::corrupt(format!("its link \"{}\" leads on for more than {MAX_LINKS} links", asked())))
    }

    /// The whole content of a file of at most `most` bytes.
    ///
    /// # Errors
    /// As [`file`](Self::file); Unsupported if it is longer.
    pub(crate) fn small_file(&self, name: &str, most: u64) -> Result<Vec<u8>> {
        let content = self.file(name)?;
        if content.len() > most {
            let cause = format!(
                "its member \"{}\" has {} bytes, more than {most}",
                shown(name.as_bytes()),
                content.len()
            );
            return Err(Error::unsupported(cause));
        }
        let mut bytes = vec![0; to_usize(content.len())];
        self.source.read_at(&mut bytes, content.offset())?;
        Ok(bytes)
    }

    /// A reader of a part of the archive.
    pub(crate) fn reader(&self, range: ByteRange) -> RangeReader {
        RangeReader { source: Arc::clone(&self.source), offset: range.offset(), end: range.end() }
    }
}

/// A reader of a part of a source, from front to back.
pub(crate) struct RangeReader {
    source: Arc<dyn ReadAt>,
    offset: u64,
    end: u64,
}

impl Read for RangeReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = to_usize((self.end - self.offset).min(buf.len() as u64));
        self.source.read_at(&mut buf[..len], self.offset)?;
        self.offset += len as u64;
        Ok(len)
    }
}

/// A name without empty components and `.`; `None` if it has `..`, which no tool writes into an archive.
fn normal(name: &[u8]) -> Option<Vec<u8>> {
    let parts = parts(name);
    parts.clone().all(|part| part != b"..").then(|| parts.collect::<Vec<_>>().join(&b'/'))
}

/// The name that a symbolic link in `folder` leads to; `None` if it leads out of the archive.
fn linked(folder: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    if target.starts_with(b"/") {
        return None;
    }
    let mut path: Vec<&[u8]> = parts(folder).collect();
    for part in parts(target) {
        match part {
            b".." => drop(path.pop()?),
            part => path.push(part),
        }
    }
    Some(path.join(&b'/'))
}

/// The components of a path that mean something.
fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

fn refuse_compressed(source: &dyn ReadAt) -> Result<()> {
    let mut first = vec![0; to_usize(source.len().min(8))];
    source.read_at(&mut first, 0)?;
    match COMPRESSED.iter().find(|(magic, _)| first.starts_with(magic)) {
        None => Ok(()),
        Some((_, program)) => {
            Err(Error::unsupported("is compressed as a whole, and blobs in it cannot be found")
                .remedy(format!("decompress it first: `{program}`")))
        }
    }
}

/// An error of a reader that started at `base`.
fn at_base(error: Error, base: u64) -> Error {
    if base == 0 {
        return error;
    }
    let cause = format!("cannot be read (offsets here count from byte {base})");
    Error::new(error.kind(), cause).caused_by(error)
}

/// A name as messages show it.
fn shown(name: &[u8]) -> String {
    match name.split_at_checked(SHOWN) {
        Some((start, rest)) if !rest.is_empty() => format!("{}...", start.escape_ascii()),
        _ => name.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests;
