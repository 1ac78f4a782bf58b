//! Extended attributes: behind the fields of an inode, and in one block more.
//!
//! # Format
//! The area in the inode begins with the number 0xEA020000 (4 bytes); the block with a header of 32 bytes. All numbers
//! are little-endian.
//!
//! | header of a block: byte | size | field |
//! |---|---|---|
//! | 0 | 4 | 0xEA020000 |
//! | 4 | 4 | number of inodes that share the block |
//! | 8 | 4 | number of blocks: 1 |
//! | 12 | 4 | hash of all entries |
//! | 16 | 4 | checksum, with `metadata_csum` only |
//!
//! Entries follow, and 4 bytes of zeros behind the last one. Values are at the end, the first one last, each filled
//! with zeros to a multiple of 4 bytes.
//!
//! | entry: byte | size | field |
//! |---|---|---|
//! | 0 | 1 | length of the name |
//! | 1 | 1 | number of the prefix, which is not part of the name |
//! | 2 | 2 | place of the value: from the block's first byte, or from the first entry in the inode; 0 if it is empty |
//! | 4 | 4 | inode with the value: 0, none |
//! | 8 | 4 | length of the value |
//! | 12 | 4 | hash of name and value |
//! | 16 | | the name, and zeros to a multiple of 4 bytes |
//!
//! The entries of a block are sorted by prefix, length of the name, and name.
//!
//! # Access control lists
//! Programs see the lists of POSIX in a form with 8 bytes for each entry (version 2); the file system leaves out the
//! ids of entries that need none (version 1). Values are in the programs' form everywhere but in the file system
//! itself.

mod acl;

use crate::little_endian::{put_u16, put_u32, u16_at, u32_at};
use crate::{BLOCK_SIZE, Block};
use headstart_block::{Error, Result, exact, to_usize};

/// Number that attributes begin with.
const MAGIC: u32 = 0xea02_0000;
/// Bytes of the number in an inode.
const INODE_HEADER: usize = 4;
/// Bytes of a block's header.
const BLOCK_HEADER: usize = 32;
/// Bytes of an entry without its name.
const ENTRY: usize = 16;
/// Zeros behind the last entry.
const END: usize = 4;

/// The number of the prefix of an access control list, which has no name besides.
const ACL_ACCESS: u8 = 2;
/// The number of the prefix of the list that new files in a directory get.
const ACL_DEFAULT: u8 = 3;
/// Prefixes with their numbers, and `true` for those that are the whole name. A name that begins with two of them has
/// the first.
const PREFIXES: [(u8, &[u8], bool); 7] = [
    (ACL_ACCESS, b"system.posix_acl_access", true),
    (ACL_DEFAULT, b"system.posix_acl_default", true),
    (8, b"system.richacl", true),
    (1, b"user.", false),
    (4, b"trusted.", false),
    (6, b"security.", false),
    (7, b"system.", false),
];

/// An extended attribute of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtendedAttribute {
    /// Name with its prefix, such as `user.comment`.
    pub name: Vec<u8>,
    /// Value, in the form that programs see. It may be empty.
    pub value: Vec<u8>,
}

/// Returns the attributes in an inode: the bytes behind its fields.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if they are damaged; [`headstart_block::ErrorKind::Unsupported`] if a
/// value is in an inode of its own, or a prefix is not known.
pub(crate) fn decode_in_inode(area: &[u8]) -> Result<Vec<ExtendedAttribute>> {
    // A file without attributes has other bytes there, mostly zeros.
    if area.len() < INODE_HEADER + END || u32_at(area, 0) != MAGIC {
        return Ok(Vec::new());
    }
    decode(area, INODE_HEADER, INODE_HEADER)
}

/// Returns the attributes in a block.
///
/// # Errors
/// As [`decode_in_inode`], and [`headstart_block::ErrorKind::Corrupt`] if the block has none.
pub(crate) fn decode_block(block: &Block) -> Result<Vec<ExtendedAttribute>> {
    users(block)?;
    decode(block, BLOCK_HEADER, 0)
}

/// Returns the number of inodes that share a block of attributes, at least 1.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the block has no attributes.
pub(crate) fn users(block: &Block) -> Result<u32> {
    let users = u32_at(block, 4);
    if u32_at(block, 0) != MAGIC || u32_at(block, 8) != 1 || users == 0 {
        return Err(damaged("a block of them has another header"));
    }
    Ok(users)
}

/// Sets the number of inodes that share a block of attributes.
pub(crate) fn set_users(block: &mut Block, users: u32) {
    put_u32(block, 4, users);
}

/// Returns the attributes of an area whose first entry is at `first`, and whose values count from `base`.
fn decode(area: &[u8], first: usize, base: usize) -> Result<Vec<ExtendedAttribute>> {
    let entries_end = end_of_entries(area, first)?;
    let (mut at, mut found) = (first, Vec::new());
    while at < entries_end {
        let (name_len, prefix) = (usize::from(area[at]), area[at + 1]);
        let stored_name = &area[at + ENTRY..at + ENTRY + name_len];
        let name = full_name(prefix, stored_name)?;
        let (offset, inode, len) = (u16_at(area, at + 2), u32_at(area, at + 4), u32_at(area, at + 8));
        if inode != 0 {
            return Err(Error::unsupported(format!(
                "the extended attribute {} has its value in inode {inode}",
                name.escape_ascii()
            )));
        }
        let start = base + usize::from(offset);
        let len = to_usize(u64::from(len));
        let stored = if len == 0 {
            Some(&[][..])
        } else {
            start.checked_add(len).and_then(|end| area.get(start..end))
        };
        let stored = stored
            .filter(|_| len == 0 || start >= entries_end + END)
            .ok_or_else(|| damaged(&format!("the value of {} is outside their area", name.escape_ascii())))?;
        // Of inodes, kernels before Linux 4.13 did not compute it. Before 6.2, a byte of a name could be negative.
        let hash = u32_at(area, at + 12);
        if hash != 0
            && ![hash_of(stored_name, stored, u32::from), hash_of(stored_name, stored, extended)]
                .contains(&hash)
        {
            return Err(damaged(&format!("{} has a wrong hash", name.escape_ascii())));
        }
        let value = match prefix {
            ACL_ACCESS | ACL_DEFAULT => acl::to_programs(stored)?,
            _ => stored.to_vec(),
        };
        found.push(ExtendedAttribute { name, value });
        at += length_of_entry(name_len);
    }
    Ok(found)
}

/// Returns the place of the zeros behind the last entry.
fn end_of_entries(area: &[u8], first: usize) -> Result<usize> {
    let mut at = first;
    loop {
        match area.get(at..at + END) {
            Some([0, 0, 0, 0]) => return Ok(at),
            Some(entry) => at += length_of_entry(usize::from(entry[0])),
            None => return Err(damaged("their list has no end")),
        }
    }
}

/// Bytes of an entry, a multiple of 4.
fn length_of_entry(name_len: usize) -> usize {
    (ENTRY + name_len).next_multiple_of(4)
}

fn full_name(prefix: u8, name: &[u8]) -> Result<Vec<u8>> {
    match PREFIXES.iter().find(|(number, _, _)| *number == prefix) {
        Some((_, text, is_whole)) if *is_whole == name.is_empty() => Ok([text, name].concat()),
        Some(_) => Err(damaged(&format!("the name `{}` does not go with its prefix", name.escape_ascii()))),
        None => {
            let cause = format!(
                "the extended attribute `{}` has prefix {prefix}, which is not known",
                name.escape_ascii()
            );
            Err(Error::unsupported(cause))
        }
    }
}

fn damaged(what: &str) -> Error {
    Error::corrupt(format!("a file's extended attributes are damaged: {what}"))
}

/// The hash of an entry. `widened` makes a number of a byte of the name.
fn hash_of(name: &[u8], value: &[u8], widened: fn(u8) -> u32) -> u32 {
    let hash = name.iter().fold(0_u32, |hash, &byte| hash.rotate_left(5) ^ widened(byte));
    value.chunks(4).fold(hash, |hash, part| {
        let mut word = [0; 4];
        word[..part.len()].copy_from_slice(part);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// The number of a byte that is taken for signed.
fn extended(byte: u8) -> u32 {
    i32::from(byte.cast_signed()).cast_unsigned()
}

/// An attribute as it is stored.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Stored<'a> {
    prefix: u8,
    name_len: u8,
    name: &'a [u8],
    value: Vec<u8>,
}

impl<'a> Stored<'a> {
    /// The stored form; `None` for an access control list without entries, which is the same as no list.
    fn new(attribute: &'a ExtendedAttribute) -> Result<Option<Self>> {
        let shown = || format!("the extended attribute {}", attribute.name.escape_ascii());
        let found = PREFIXES.iter().find_map(|(number, text, is_whole)| {
            let rest = attribute.name.strip_prefix(*text)?;
            (rest.is_empty() == *is_whole).then_some((*number, rest))
        });
        let Some((prefix, name)) = found else {
            return Err(Error::unsupported(format!("{} has a name that ext4 cannot store", shown())));
        };
        let name_len = u8::try_from(name.len())
            .map_err(|_| Error::unsupported(format!("{} has a name of more than 255 bytes", shown())))?;
        let value = match prefix {
            ACL_ACCESS | ACL_DEFAULT => {
                match acl::from_programs(&attribute.value).map_err(|e| e.about(shown()))? {
                    Some(value) => value,
                    None => return Ok(None),
                }
            }
            _ => attribute.value.clone(),
        };
        Ok(Some(Self { prefix, name_len, name, value }))
    }

    /// Bytes that entry and value take.
    fn space(&self) -> usize {
        length_of_entry(self.name.len()) + self.value.len().next_multiple_of(4)
    }
}

/// Extended attributes in the form in which they are stored.
#[derive(Debug)]
pub(crate) struct EncodedXattrs {
    /// The bytes behind the fields of the inode: all that there are.
    pub(crate) in_inode: Vec<u8>,
    /// The block with the others, which one inode uses; `None` if there are none.
    pub(crate) block: Option<Box<Block>>,
}

/// Encodes attributes, given in any order, for an inode with `in_inode_space` bytes behind its fields.
///
/// All are in the inode if they fit there; otherwise all are in the block, if they fit there; otherwise each, in
/// sorted order, is in the inode if it still fits there, and in the block if not.
///
/// # Errors
/// [`headstart_block::ErrorKind::Unsupported`] with the name of the first that has no room or cannot be stored;
/// [`headstart_block::ErrorKind::Invalid`] if an access control list is none, or a name is there twice.
pub(crate) fn encode(attributes: &[ExtendedAttribute], in_inode_space: usize) -> Result<EncodedXattrs> {
    let mut stored = Vec::with_capacity(attributes.len());
    for attribute in attributes {
        stored.extend(Stored::new(attribute)?);
    }
    stored.sort();
    if let Some(pair) =
        stored.windows(2).find(|pair| (pair[0].prefix, pair[0].name) == (pair[1].prefix, pair[1].name))
    {
        let name = full_name(pair[0].prefix, pair[0].name)?;
        return Err(Error::invalid(format!("the extended attribute {} is given twice", name.escape_ascii())));
    }
    let inode_room = in_inode_space.saturating_sub(INODE_HEADER + END);
    let block_room = BLOCK_SIZE - BLOCK_HEADER - END;
    let all: usize = stored.iter().map(Stored::space).sum();
    let (inside, outside) = if all <= inode_room {
        (stored, Vec::new())
    } else if all <= block_room {
        (Vec::new(), stored)
    } else {
        split(stored, inode_room, block_room)?
    };
    let mut in_inode = vec![0; in_inode_space];
    if !inside.is_empty() {
        put_u32(&mut in_inode, 0, MAGIC);
        fill(&mut in_inode, INODE_HEADER, INODE_HEADER, &inside);
    }
    let block = (!outside.is_empty()).then(|| {
        let mut block = Box::new([0; BLOCK_SIZE]);
        for (at, number) in [(0, MAGIC), (4, 1), (8, 1)] {
            put_u32(&mut *block, at, number);
        }
        let hashes = fill(&mut *block, BLOCK_HEADER, 0, &outside);
        // A hash of 0 says that the block is not for sharing.
        let all = hashes.iter().fold(0_u32, |all, hash| all.rotate_left(16) ^ hash);
        put_u32(&mut *block, 12, if hashes.contains(&0) { 0 } else { all });
        block
    });
    Ok(EncodedXattrs { in_inode, block })
}

/// Divides attributes between the inode and the block.
fn split(
    stored: Vec<Stored<'_>>,
    mut inode_room: usize,
    mut block_room: usize,
) -> Result<(Vec<Stored<'_>>, Vec<Stored<'_>>)> {
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for one in stored {
        let space = one.space();
        if space <= inode_room {
            inode_room -= space;
            inside.push(one);
        } else if space <= block_room {
            block_room -= space;
            outside.push(one);
        } else {
            let name = full_name(one.prefix, one.name)?;
            let cause = format!(
                "the extended attribute {} has no room in the inode and its block",
                name.escape_ascii()
            );
            return Err(
                Error::unsupported(cause).remedy("give the file fewer or shorter extended attributes")
            );
        }
    }
    Ok((inside, outside))
}

/// Stores entries and values in an area that has room for them; returns the hashes of the entries.
fn fill(area: &mut [u8], first: usize, base: usize, stored: &[Stored<'_>]) -> Vec<u32> {
    let (mut at, mut values, mut hashes) = (first, area.len(), Vec::with_capacity(stored.len()));
    for one in stored {
        let hash = hash_of(one.name, &one.value, u32::from);
        area[at] = one.name_len;
        area[at + 1] = one.prefix;
        if !one.value.is_empty() {
            values -= one.value.len().next_multiple_of(4);
            area[values..values + one.value.len()].copy_from_slice(&one.value);
            put_u16(area, at + 2, exact(values - base, "a block has 4096 bytes"));
        }
        put_u32(area, at + 8, exact(one.value.len(), "a block has 4096 bytes"));
        put_u32(area, at + 12, hash);
        area[at + ENTRY..at + ENTRY + one.name.len()].copy_from_slice(one.name);
        at += length_of_entry(one.name.len());
        hashes.push(hash);
    }
    hashes
}

#[cfg(test)]
mod tests;
