//! Extended attributes, byte by byte. They follow the inode:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | a filter of names: 0, as it is without the feature |
//! | 4 | 1 | number of shared attributes: 0 |
//! | 12 | | the attributes, each from a multiple of 4 on |
//!
//! An attribute has the length of its name without the prefix, the number of the prefix, the length of the value in 2
//! bytes, the rest of the name and the value.

use crate::superblock::u16_at;
use headstart_block::{Error, Result, exact};
use std::collections::BTreeMap;

/// Extended attributes by their full names.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Bytes before the first attribute.
const HEADER: usize = 12;
/// Bytes before the name of an attribute.
const ENTRY: usize = 4;
/// Bytes of all attributes that an inode can count.
const MAX_BYTES: usize = HEADER + 4 * (u16::MAX as usize - 1);

/// The prefixes of names, with their numbers. The names of access control lists have no rest.
const PREFIXES: [(u8, &[u8]); 5] = [
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (1, b"user."),
    (4, b"trusted."),
    (6, b"security."),
];

/// Encodes attributes; nothing if there are none.
///
/// # Errors
/// [`headstart_block::ErrorKind::Unsupported`] if EROFS cannot store one of them, or so many.
pub(crate) fn encode(xattrs: &Xattrs) -> Result<Vec<u8>> {
    if xattrs.is_empty() {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; HEADER];
    for (name, value) in xattrs {
        let shown = name.escape_ascii();
        let is_list = |number: u8| number == 2 || number == 3;
        let found = PREFIXES.iter().find_map(|(number, prefix)| {
            let rest = name.strip_prefix(*prefix)?;
            (rest.is_empty() || !is_list(*number)).then_some((*number, rest))
        });
        let Some((number, rest)) = found else {
            return Err(Error::unsupported(format!(
                "has the extended attribute `{shown}`, for which EROFS has no number"
            )));
        };
        let (Ok(name_len), Ok(value_len)) = (u8::try_from(rest.len()), u16::try_from(value.len())) else {
            return Err(Error::unsupported(format!(
                "has the extended attribute `{shown}` with a value of {} bytes, more than EROFS stores",
                value.len()
            )));
        };
        bytes.extend([name_len, number]);
        bytes.extend(value_len.to_le_bytes());
        bytes.extend(rest);
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        if bytes.len() > MAX_BYTES {
            let cause = format!("has more than {MAX_BYTES} bytes of extended attributes");
            return Err(Error::unsupported(cause));
        }
    }
    Ok(bytes)
}

/// Decodes the attributes behind an inode.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if they are damaged.
pub(crate) fn decode(bytes: &[u8]) -> Result<Xattrs> {
    let damaged = || Error::corrupt("the extended attributes of an inode are damaged");
    let mut xattrs = Xattrs::new();
    if bytes.is_empty() {
        return Ok(xattrs);
    }
    let (header, mut rest) = bytes.split_at_checked(HEADER).ok_or_else(damaged)?;
    if header[4] != 0 {
        return Err(Error::unsupported("an inode shares extended attributes with others"));
    }
    while !rest.is_empty() {
        let (entry, behind) = rest.split_at_checked(ENTRY).ok_or_else(damaged)?;
        let (name_len, value_len) = (usize::from(entry[0]), usize::from(u16_at(entry, 2)));
        let (_, prefix) = PREFIXES.iter().find(|(number, _)| *number == entry[1]).ok_or_else(damaged)?;
        let (name, behind) = behind.split_at_checked(name_len).ok_or_else(damaged)?;
        let value = behind.get(..value_len).ok_or_else(damaged)?;
        xattrs.insert([prefix, name].concat(), value.to_vec());
        let len = (ENTRY + name_len + value_len).next_multiple_of(4);
        rest = rest.get(len..).ok_or_else(damaged)?;
    }
    Ok(xattrs)
}

/// Bytes of attributes, from their count in the inode.
pub(crate) fn length(count: u16) -> usize {
    if count == 0 { 0 } else { HEADER + 4 * (usize::from(count) - 1) }
}

/// The count of attributes in the inode, from their bytes.
pub(crate) fn count(bytes: &[u8]) -> u16 {
    match bytes.len().checked_sub(HEADER) {
        Some(len) => exact((len / 4 + 1) as u64, "there are at most `MAX_BYTES` of them"),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;
    use proptest::prelude::*;

    fn name() -> impl Strategy<Value = Vec<u8>> {
        let rest = prop::collection::vec(1..=255_u8, 0..256);
        let prefix = prop::sample::select(vec!["user.", "trusted.", "security."]);
        let named = (prefix, rest).prop_map(|(prefix, rest)| {
            let mut name = [prefix.as_bytes(), &rest].concat();
            name.truncate(255);
            name
        });
        prop_oneof![
            named,
            Just(b"system.posix_acl_access".to_vec()),
            Just(b"system.posix_acl_default".to_vec())
        ]
    }

    proptest! {
        #[test]
        fn attributes_are_read_as_they_were_written(
            xattrs in prop::collection::btree_map(name(), prop::collection::vec(any::<u8>(), 0..300), 0..6),
        ) {
            let bytes = encode(&xattrs).unwrap();
            prop_assert_eq!(length(count(&bytes)), bytes.len());
            prop_assert_eq!(decode(&bytes).unwrap(), xattrs);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn attributes_that_cannot_be_stored_are_named() {
        let error =
            |name: &str, len| encode(&Xattrs::from([(name.as_bytes().to_vec(), vec![0; len])])).unwrap_err();
        for (name, len) in [("system.other", 1), ("system.posix_acl_access.x", 1), ("user.large", 65_536)] {
            let error = error(name, len);
            assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(name), "{error}");
        }
        let many = (0..5).map(|number| (format!("user.{number}").into_bytes(), vec![0; 65_000])).collect();
        assert_eq!(encode(&many).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
