//! The 4096-byte page that begins and ends an LSMT file.
//!
//! A layer starts with a header page and, once sealed, ends with a trailer page of the same form. In a
//! committed layer the header has no index position, so readers always take the trailer's word. All numbers
//! are little-endian; everything after byte 390 is zero.
//!
//! | bytes | field | notes |
//! |---|---|---|
//! | 0..8 | magic | `LSMT\0\1\2\0` |
//! | 8..24 | magic | the UUID 657e63d2-9444-084c-a2d2-c8ec4fcfae8a |
//! | 24..28 | size | 390; never checked by the reference |
//! | 28..32 | flags | see the constants of [`Flags`] |
//! | 32..40 | index offset | bytes |
//! | 40..48 | index size | records of 16 bytes, **not** bytes |
//! | 48..56 | virtual size | bytes; 0 in a layer that takes its size from those below |
//! | 56..93 | uuid | 36 upper-case characters and NUL |
//! | 93..130 | parent uuid | the same |
//! | 130..132 | reserved | 0 |
//! | 132, 133 | version | 1, 1; never checked by the reference |
//! | 134..390 | user tag | text, NUL-padded; 256 bytes may be used up without a NUL |

use headstart_block::{Error, ReadAt, Result};
use uuid::Uuid;

/// Bytes of a header or trailer.
pub const PAGE_SIZE: usize = 4096;
/// The first sector that data may take: the one after the header page.
pub const FIRST_DATA_SECTOR: u64 = (PAGE_SIZE / 512) as u64;
/// Longest user tag in bytes.
pub const USER_TAG_MAX: usize = 256;

const MAGIC: [u8; 24] = *b"LSMT\0\x01\x02\0\x65\x7e\x63\xd2\x94\x44\x08\x4c\xa2\xd2\xc8\xec\x4f\xcf\xae\x8a";
const STRUCT_SIZE: u32 = 390;
const VERSION: [u8; 2] = [1, 1];
const UUID_TEXT: usize = 36;

/// The flags of a page and its file. Unknown bits are ignored, as the reference does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// The page is a header, not a trailer.
    pub const HEADER: u32 = 1;
    /// The file holds data, not the records of a writable layer.
    pub const DATA: u32 = 1 << 1;
    /// The file is complete: its trailer has the index.
    pub const SEALED: u32 = 1 << 2;
    /// Data is stored at its own offset on the disk, and the file's holes are the index.
    pub const SPARSE: u32 = 1 << 4;

    /// `true` if all of `bits` are set.
    #[must_use]
    pub const fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}

/// A header or trailer page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The kind of the page and its file.
    pub flags: Flags,
    /// The offset of the index, in bytes.
    pub index_offset: u64,
    /// The number of records of the index, padding included where the writer counts it.
    pub index_size: u64,
    /// Size of the disk in bytes; 0 = that of the layers below.
    pub virtual_size: u64,
    /// The layer's own id; nil where none was given or the text is not one.
    pub uuid: Uuid,
    /// The id of the layer below.
    pub parent_uuid: Uuid,
    /// Free text of the layer's maker.
    pub user_tag: UserTag,
}

/// Free text of at most 256 bytes, without its padding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserTag(Vec<u8>);

impl UserTag {
    /// Takes `text` as a tag.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] where it is longer than 256 bytes or has a NUL.
    pub fn new(text: &str) -> Result<Self> {
        if text.len() > USER_TAG_MAX || text.contains('\0') {
            return Err(Error::invalid(format!("a user tag has at most {USER_TAG_MAX} bytes and no NUL")));
        }
        Ok(Self(text.as_bytes().to_vec()))
    }

    /// The text; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl Page {
    /// The page as it is stored on disk.
    #[must_use]
    pub fn encode(&self) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        page[..24].copy_from_slice(&MAGIC);
        page[24..28].copy_from_slice(&STRUCT_SIZE.to_le_bytes());
        page[28..32].copy_from_slice(&self.flags.0.to_le_bytes());
        page[32..40].copy_from_slice(&self.index_offset.to_le_bytes());
        page[40..48].copy_from_slice(&self.index_size.to_le_bytes());
        page[48..56].copy_from_slice(&self.virtual_size.to_le_bytes());
        encode_uuid(&mut page[56..93], self.uuid);
        encode_uuid(&mut page[93..130], self.parent_uuid);
        page[132..134].copy_from_slice(&VERSION);
        page[134..134 + self.user_tag.0.len()].copy_from_slice(&self.user_tag.0);
        page
    }

    /// Reads a page.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] where the magic bytes are not there.
    pub fn decode(page: &[u8; PAGE_SIZE]) -> Result<Self> {
        if !has_magic(page) {
            return Err(Error::corrupt("no LSMT magic bytes"));
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| page[at + i]));
        let tag = &page[134..134 + USER_TAG_MAX];
        let tag_len = tag.iter().position(|&byte| byte == 0).unwrap_or(USER_TAG_MAX);
        Ok(Self {
            flags: Flags(u32::from_le_bytes([page[28], page[29], page[30], page[31]])),
            index_offset: word(32),
            index_size: word(40),
            virtual_size: word(48),
            uuid: decode_uuid(&page[56..93]),
            parent_uuid: decode_uuid(&page[93..130]),
            user_tag: UserTag(tag[..tag_len].to_vec()),
        })
    }

    /// Reads the header page at the start of `source`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] where the source is too short, has no magic bytes or is
    /// not marked as a header.
    pub fn read_header(source: &(impl ReadAt + ?Sized)) -> Result<Self> {
        let page = Self::read(source, 0, "header")?;
        if !page.flags.has(Flags::HEADER) {
            return Err(Error::corrupt("its first page is not marked as a header"));
        }
        Ok(page)
    }

    /// Reads the page at `offset`; `name` says which one in messages.
    pub(crate) fn read(source: &(impl ReadAt + ?Sized), offset: u64, name: &str) -> Result<Self> {
        let mut page = [0; PAGE_SIZE];
        source.read_at(&mut page, offset)?;
        Self::decode(&page).map_err(|_| {
            Error::corrupt(format!("no LSMT {name} at byte {offset}"))
                .remedy("it is no LSMT file, or it is damaged or truncated: fetch it again")
        })
    }
}

/// `true` if `start`, the first bytes of a file, are those of an LSMT page.
#[must_use]
pub fn has_magic(start: &[u8]) -> bool {
    start.starts_with(&MAGIC)
}

fn encode_uuid(field: &mut [u8], uuid: Uuid) {
    let mut text = Uuid::encode_buffer();
    field[..UUID_TEXT].copy_from_slice(uuid.hyphenated().encode_upper(&mut text).as_bytes());
}

/// The reference ignores ids that it cannot read, so they become nil.
fn decode_uuid(field: &[u8]) -> Uuid {
    Uuid::try_parse_ascii(&field[..UUID_TEXT]).unwrap_or(Uuid::nil())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_page_survives_encoding(
            flags: u32, index_offset: u64, index_size: u64, virtual_size: u64, uuid: u128, parent: u128,
            tag in "[^\0]{0,60}",
        ) {
            let page = Page {
                flags: Flags(flags), index_offset, index_size, virtual_size,
                uuid: Uuid::from_u128(uuid), parent_uuid: Uuid::from_u128(parent),
                user_tag: UserTag::new(&tag).unwrap(),
            };
            prop_assert_eq!(Page::decode(&page.encode()).unwrap(), page);
        }
    }

    #[test]
    fn a_full_tag_needs_no_nul() {
        let tag = "x".repeat(USER_TAG_MAX);
        assert_eq!(UserTag::new(&tag).unwrap().to_text(), tag);
        assert!(UserTag::new(&format!("{tag}x")).is_err());
    }

    #[test]
    fn an_unreadable_uuid_is_nil() {
        let mut page = [0; PAGE_SIZE];
        page[..24].copy_from_slice(&MAGIC);
        page[56..64].copy_from_slice(b"zzzzzzzz");
        assert_eq!(Page::decode(&page).unwrap().uuid, Uuid::nil());
    }
}
