//! The 4096-byte page that begins and ends an LSMT file.
//!
//! A layer starts with a header page and, once sealed, ends with a trailer page of the same form. In a committed layer
//! the header does not give the place of the index, so readers always take it from the trailer. All numbers are
//! little-endian; all bytes from 390 on are zero.
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
//! | 134..390 | user tag | text, padded with NULs; a text of 256 bytes has no NUL |

use headstart_block::{Error, ReadAt, Result};
use uuid::Uuid;

/// Length of the header page and of the trailer page in bytes.
pub const PAGE_SIZE: usize = 4096;
/// Number of the first 512-byte sector of a layer file that data may occupy: 8, behind the header page.
pub const FIRST_DATA_SECTOR: u64 = (PAGE_SIZE / 512) as u64;
/// Length of the longest user tag in bytes.
pub const USER_TAG_MAX: usize = 256;

const MAGIC: [u8; 24] = *b"LSMT\0\x01\x02\0\x65\x7e\x63\xd2\x94\x44\x08\x4c\xa2\xd2\xc8\xec\x4f\xcf\xae\x8a";
const STRUCT_SIZE: u32 = 390;
const VERSION: [u8; 2] = [1, 1];
const UUID_TEXT: usize = 36;

/// The flags of a [`Page`]: bits that tell the kind of the page and of the file it belongs to. Unknown bits
/// are ignored, as by OverlayBD, the reference implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// Set in a header page, clear in a trailer page.
    pub const HEADER: u32 = 1;
    /// Set in a file that holds data, clear in the index file of a writable layer (its log of records).
    pub const DATA: u32 = 1 << 1;
    /// Set in a file that is complete and immutable; its trailer tells where the index is.
    pub const SEALED: u32 = 1 << 2;
    /// Set in a sparse layer, which stores each sector at the sector's own offset on the disk; the holes of
    /// the file take the place of an index.
    pub const SPARSE: u32 = 1 << 4;

    /// `true` if all flags of `bits` are set.
    #[must_use]
    pub const fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}

/// A header or trailer page: the 4096 bytes at the beginning and at the end of an LSMT file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The kind of the page and of its file.
    pub flags: Flags,
    /// Offset of the index (the table of segments) from the beginning of the file, in bytes. Readers use only the
    /// trailer's value.
    pub index_offset: u64,
    /// Number of 16-byte records in the index; padding records count if the writer counted them.
    pub index_size: u64,
    /// Size of the disk in bytes; 0 if the disk has the size that the layers below give it.
    pub virtual_size: u64,
    /// The id of the layer; the nil UUID if the layer has none or the text is not a UUID.
    pub uuid: Uuid,
    /// The id of the layer below; the nil UUID if there is none, it is unknown or the text is not a UUID.
    pub parent_uuid: Uuid,
    /// Free text that the creator of the layer chose.
    pub user_tag: UserTag,
}

/// Free text in a layer's header and trailer: at most 256 bytes, without the padding of the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserTag(Vec<u8>);

impl UserTag {
    /// Makes a tag of `text`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if it is longer than 256 bytes or contains a NUL.
    pub fn new(text: &str) -> Result<Self> {
        if text.len() > USER_TAG_MAX || text.contains('\0') {
            return Err(Error::invalid(format!("a user tag has at most {USER_TAG_MAX} bytes and no NUL")));
        }
        Ok(Self(text.as_bytes().to_vec()))
    }

    /// The text of the tag; bytes that are not UTF-8 become replacement characters (U+FFFD).
    #[must_use]
    pub fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl Page {
    /// Encodes the page as the bytes that a file stores.
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

    /// Decodes the stored bytes of a page. The fields are not checked.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the page does not start with the magic bytes.
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

    /// Reads and decodes the header page, the first 4096 bytes of `source`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the source is too short, or its first page has no magic bytes or is
    /// not marked as a header; errors of reading the source.
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

/// `true` if `start`, the beginning of a file, has the 24 magic bytes of an LSMT page; `false` if it is
/// shorter.
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
