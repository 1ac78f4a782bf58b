//! Extended headers of PAX (typeflags `x` and `g`): records about the entry that follows.
//!
//! ```text
//! LENGTH " " KEY "=" VALUE "\n"
//! ```
//!
//! The length is decimal and counts the whole record, itself included. A key ends at the first "=". Values may have any
//! bytes, but names may not have NULs. Of records with one key the last counts, and an empty value says nothing.
//!
//! Read are path, linkpath, size, uid, gid, mtime, the records of extended attributes (see `xattr`) and of sparse files
//! (see `sparse`); atime and ctime must be times and have no other effect; all others are ignored.

use crate::limits::check;
use crate::number::{self, decimal};
use crate::xattr;
use headstart_block::{Error, Result};
use std::collections::BTreeMap;

/// The values of records that say something; the numbers among them are not parsed yet, because a later header may
/// replace them all.
#[derive(Debug, Default)]
pub(crate) struct PaxHeader {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link_path: Option<Vec<u8>>,
    pub(crate) size: Option<Vec<u8>>,
    pub(crate) uid: Option<Vec<u8>>,
    pub(crate) gid: Option<Vec<u8>>,
    pub(crate) mtime: Option<Vec<u8>>,
    atime: Option<Vec<u8>>,
    ctime: Option<Vec<u8>>,
    pub(crate) sparse: SparseRecords,
    schily: BTreeMap<Vec<u8>, Vec<u8>>,
    libarchive: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The values of the records whose keys start with `GNU.sparse.`.
#[derive(Debug, Default)]
pub(crate) struct SparseRecords {
    pub(crate) major: Option<Vec<u8>>,
    pub(crate) minor: Option<Vec<u8>>,
    /// Offsets and lengths in turn, with commas between them; those of version 0.0, one in each record, are joined.
    pub(crate) map: Option<Vec<u8>>,
    pub(crate) count: Option<Vec<u8>>,
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) size: Option<Vec<u8>>,
    pub(crate) real_size: Option<Vec<u8>>,
}

/// The extents of version 0.0 so far: as many offsets as lengths, or one more.
#[derive(Default)]
struct Pairs {
    joined: Vec<u8>,
    values: u64,
}

impl Pairs {
    fn add(&mut self, value: &[u8], is_offset: bool) -> Result<()> {
        if self.values.is_multiple_of(2) != is_offset || value.contains(&b',') {
            return Err(Error::corrupt(
                "the GNU.sparse.offset and numbytes records of its PAX header do not pair",
            ));
        }
        if self.values > 0 {
            self.joined.push(b',');
        }
        self.joined.extend(value);
        self.values += 1;
        Ok(())
    }
}

impl PaxHeader {
    /// Parses the content of an extended header.
    ///
    /// # Errors
    /// Corrupt if it is not wholly made of records.
    pub(crate) fn parse(mut text: &[u8]) -> Result<Self> {
        let (mut header, mut pairs) = (Self::default(), Pairs::default());
        while !text.is_empty() {
            let (key, value, rest) =
                record(text).ok_or_else(|| Error::corrupt("a record of its PAX header is damaged"))?;
            match key {
                b"GNU.sparse.offset" => pairs.add(value, true)?,
                b"GNU.sparse.numbytes" => pairs.add(value, false)?,
                _ => header.set(key, value),
            }
            text = rest;
        }
        if pairs.values > 0 {
            header.sparse.map = Some(pairs.joined).filter(|map| !map.is_empty());
        }
        Ok(header)
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        let slot = match key {
            b"path" => &mut self.path,
            b"linkpath" => &mut self.link_path,
            b"size" => &mut self.size,
            b"uid" => &mut self.uid,
            b"gid" => &mut self.gid,
            b"mtime" => &mut self.mtime,
            b"atime" => &mut self.atime,
            b"ctime" => &mut self.ctime,
            b"GNU.sparse.major" => &mut self.sparse.major,
            b"GNU.sparse.minor" => &mut self.sparse.minor,
            b"GNU.sparse.map" => &mut self.sparse.map,
            b"GNU.sparse.numblocks" => &mut self.sparse.count,
            b"GNU.sparse.name" => &mut self.sparse.name,
            b"GNU.sparse.size" => &mut self.sparse.size,
            b"GNU.sparse.realsize" => &mut self.sparse.real_size,
            _ => {
                if let Some(name) = key.strip_prefix(xattr::SCHILY) {
                    self.schily.insert(name.to_vec(), value.to_vec());
                } else if let Some(name) = key.strip_prefix(xattr::LIBARCHIVE) {
                    self.libarchive.insert(name.to_vec(), value.to_vec());
                }
                return;
            }
        };
        *slot = Some(value.to_vec()).filter(|value| !value.is_empty());
    }

    /// Checks the records that must be times and have no other effect.
    ///
    /// # Errors
    /// Corrupt if they are no times.
    pub(crate) fn check_times(&self) -> Result<()> {
        for (name, value) in [("atime", &self.atime), ("ctime", &self.ctime)] {
            if let Some(text) = value {
                number::time(text).ok_or_else(|| malformed(name, text))?;
            }
        }
        Ok(())
    }

    /// Takes the extended attributes out, sorted by name.
    ///
    /// # Errors
    /// Corrupt if a name is empty or a value is not encoded right; Unsupported if they are more than `limit` bytes.
    pub(crate) fn take_xattrs(&mut self, limit: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut all = BTreeMap::new();
        for (name, value) in std::mem::take(&mut self.libarchive) {
            all.insert(xattr::decode_name(&name), xattr::decode_value(&value)?);
        }
        all.append(&mut self.schily);
        if all.keys().any(Vec::is_empty) {
            return Err(Error::corrupt("has an extended attribute without a name"));
        }
        let bytes = all.iter().map(|(name, value)| (name.len() + value.len()) as u64).sum();
        check(bytes, limit, "xattr_bytes", "bytes of extended attributes")?;
        Ok(all.into_iter().collect())
    }
}

/// The decimal number of the record `key`; `header` if there is none.
///
/// # Errors
/// Corrupt if the record is no number.
pub(crate) fn number_or(value: Option<&[u8]>, key: &str, header: i64) -> Result<i64> {
    value.map_or(Ok(header), |text| decimal(text).ok_or_else(|| malformed(key, text)))
}

/// The error of a record whose value is no number.
pub(crate) fn malformed(key: &str, text: &[u8]) -> Error {
    let shown = text.get(..64).unwrap_or(text).escape_ascii();
    Error::corrupt(format!("the {key} of its PAX header, \"{shown}\", is not a number of 64 bits"))
}

/// Returns the key and the value of the first record, and the text behind it; `None` if there is no valid record.
fn record(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    /// The length of the shortest record that readers accept: as in Go, with a key of one byte.
    const SHORTEST: usize = 5;
    let space = text.iter().position(|byte| *byte == b' ')?;
    let len = usize::try_from(decimal(&text[..space])?).ok().filter(|len| *len >= SHORTEST)?;
    let (record, rest) = text.split_at_checked(len)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    let (key, value) = (&record[..equals], &record[equals + 1..]);
    let named = match key {
        b"path" | b"linkpath" | b"uname" | b"gname" => value,
        _ => key,
    };
    (!key.is_empty() && !named.contains(&0)).then_some((key, value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_record_of_a_key_counts() {
        let header = PaxHeader::parse(b"10 path=a\n10 path=b\n8 size=\n8 uid=7\n7 uid=\n").unwrap();
        assert_eq!(header.path.as_deref(), Some(&b"b"[..]));
        assert_eq!((header.size, header.uid), (None, None));
    }

    #[test]
    fn records_that_are_cut_or_wrong_are_refused() {
        for text in [
            &b"10 path=a"[..],
            b"11 path=a\n",
            b"8 path=a\n",
            b"path=a\n",
            b"4 =\n",
            b"5 =a\n",
            b"5 ab\n",
            b"-10 path=a\n",
            b"99999999999999999999 path=a\n",
            b"11 path=a\0\n",
            b"9 a\0b=cd\n",
            b"10 path=a\n\0\0\0",
            b"3 a=b\n",
        ] {
            assert!(PaxHeader::parse(text).is_err(), "{}", text.escape_ascii());
        }
        // A value may have NULs, "=" and line feeds; the length may have a sign and zeros, as for Go.
        let header = PaxHeader::parse(b"22 SCHILY.xattr.a=\0=\n\n+011 uid=5\n").unwrap();
        assert_eq!(header.schily, BTreeMap::from([(b"a".to_vec(), b"\0=\n".to_vec())]));
        assert_eq!(header.uid.as_deref(), Some(&b"5"[..]));
    }

    #[test]
    fn attributes_of_schily_win_and_empty_ones_stay() {
        let text = b"24 SCHILY.xattr.user.a=\n30 LIBARCHIVE.xattr.user.a=QQ\n30 LIBARCHIVE.xattr.user.b=QQ\n";
        let mut header = PaxHeader::parse(text).unwrap();
        let xattrs = header.take_xattrs(100).unwrap();
        assert_eq!(xattrs, [(b"user.a".to_vec(), Vec::new()), (b"user.b".to_vec(), b"A".to_vec())]);
        let mut nameless = PaxHeader::parse(b"18 SCHILY.xattr.=\n").unwrap();
        assert!(nameless.take_xattrs(100).is_err());
    }

    #[test]
    fn extents_in_records_of_their_own_must_pair() {
        let (offset, len) = (b"21 GNU.sparse.offset=0\n", b"23 GNU.sparse.numbytes=5\n");
        let text = |records: &[&[u8]]| {
            let records = records.iter().map(|record| {
                let body = &record[record.iter().position(|byte| *byte == b' ').unwrap()..];
                [format!("{}", body.len() + 2).as_bytes(), body].concat()
            });
            records.collect::<Vec<_>>().concat()
        };
        let map = |records: &[&[u8]]| PaxHeader::parse(&text(records)).map(|header| header.sparse.map);
        assert_eq!(map(&[offset, len, offset, len]).unwrap().unwrap(), b"0,5,0,5");
        assert!(map(&[len]).is_err());
        assert!(map(&[offset, offset]).is_err());
    }
}
