//! Access control lists of POSIX, in the form of programs and in that of the file system.
//!
//! Both begin with a version in 4 bytes: 2 for programs, 1 in the file system. An entry has a tag (2 bytes),
//! permissions (2 bytes) and an id (4 bytes); in the file system, only entries for a named user or group have the id.
//! All numbers are little-endian. The entries are in the order of their tags.

use crate::little_endian::{put_u16, put_u32, u16_at, u32_at};
use headstart_block::{Error, Result};

/// Version of the programs' form.
const OF_PROGRAMS: u32 = 2;
/// Version of the file system's form.
const OF_FILE_SYSTEM: u32 = 1;
/// Bytes of the version.
const HEADER: usize = 4;
/// Bytes of an entry without id, and with it.
const SHORT: usize = 4;
const LONG: usize = 8;
/// The id of entries that need none, in the programs' form.
const NO_ID: u32 = u32::MAX;

/// Tags of entries, in their order: owner, named user, owner's group, named group, mask, others.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNERS_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
/// All tags.
const TAGS: [u16; 6] = [OWNER, USER, OWNERS_GROUP, GROUP, MASK, OTHERS];

/// Converts a list of the file system to the form of programs.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if it is damaged.
pub(super) fn to_programs(stored: &[u8]) -> Result<Vec<u8>> {
    let damaged = || Error::corrupt("an access control list is damaged");
    if stored.len() < HEADER || u32_at(stored, 0) != OF_FILE_SYSTEM {
        return Err(damaged());
    }
    let mut list = OF_PROGRAMS.to_le_bytes().to_vec();
    let mut rest = &stored[HEADER..];
    while !rest.is_empty() {
        let tag = rest.first_chunk().map(|tag| u16::from_le_bytes(*tag)).filter(|tag| TAGS.contains(tag));
        let len = if has_id(tag.ok_or_else(damaged)?) { LONG } else { SHORT };
        let (entry, others) = rest.split_at_checked(len).ok_or_else(damaged)?;
        list.extend_from_slice(&entry[..SHORT]);
        let id = if len == LONG { u32_at(entry, SHORT) } else { NO_ID };
        list.extend_from_slice(&id.to_le_bytes());
        rest = others;
    }
    Ok(list)
}

/// Converts a list of programs to the form of the file system; `None` for a list without entries, which is the same
/// as no list.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if it is none that a kernel takes.
pub(super) fn from_programs(list: &[u8]) -> Result<Option<Vec<u8>>> {
    let invalid = |what: &str| Error::invalid(format!("is no access control list: {what}"));
    if list.len() < HEADER || u32_at(list, 0) != OF_PROGRAMS || !(list.len() - HEADER).is_multiple_of(LONG) {
        return Err(invalid("it has another version or length"));
    }
    let entries: Vec<_> = list[HEADER..]
        .chunks_exact(LONG)
        .map(|entry| (u16_at(entry, 0), u16_at(entry, 2), u32_at(entry, 4)))
        .collect();
    if entries.is_empty() {
        return Ok(None);
    }
    if entries.iter().any(|&(tag, permissions, _)| !TAGS.contains(&tag) || permissions > 7) {
        return Err(invalid("it has a tag or permissions that are not known"));
    }
    let count = |tag: u16| entries.iter().filter(|entry| entry.0 == tag).count();
    let needs_mask = entries.iter().any(|entry| has_id(entry.0));
    let is_complete = [OWNER, OWNERS_GROUP, OTHERS].iter().all(|&tag| count(tag) == 1)
        && count(MASK) <= 1
        && (count(MASK) == 1 || !needs_mask);
    if !is_complete || !entries.is_sorted_by_key(|entry| entry.0) {
        return Err(invalid("its entries are incomplete or out of order"));
    }
    let mut stored = OF_FILE_SYSTEM.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        let mut entry = [0; LONG];
        put_u16(&mut entry, 0, tag);
        put_u16(&mut entry, 2, permissions);
        put_u32(&mut entry, SHORT, id);
        stored.extend_from_slice(if has_id(tag) { &entry } else { &entry[..SHORT] });
    }
    Ok(Some(stored))
}

/// `true` for entries of a named user or group.
fn has_id(tag: u16) -> bool {
    tag == USER || tag == GROUP
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;
    use proptest::prelude::*;

    fn list(version: u32, entries: &[(u16, u16, Option<u32>)]) -> Vec<u8> {
        let mut bytes = version.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend(id.map(u32::to_le_bytes).into_iter().flatten());
        }
        bytes
    }

    #[test]
    fn ids_that_are_not_needed_are_left_out() {
        let no = Some(NO_ID);
        let programs =
            [(1, 6, no), (2, 7, Some(1000)), (4, 4, no), (8, 0, Some(7)), (0x10, 7, no), (0x20, 4, no)];
        let stored = [
            (1, 6, None),
            (2, 7, Some(1000)),
            (4, 4, None),
            (8, 0, Some(7)),
            (0x10, 7, None),
            (0x20, 4, None),
        ];
        // The same bytes as Linux 6.18 stores for such a list.
        let (programs, stored) = (list(2, &programs), list(1, &stored));
        assert_eq!(from_programs(&programs).unwrap().unwrap(), stored);
        assert_eq!(to_programs(&stored).unwrap(), programs);
        assert_eq!(stored.len(), 4 + 4 * 4 + 2 * 8);
    }

    #[test]
    fn lists_that_a_kernel_refuses_are_refused() {
        let no = Some(NO_ID);
        assert_eq!(from_programs(&list(2, &[])).unwrap(), None);
        let good = [(1, 6, no), (4, 4, no), (0x20, 4, no)];
        from_programs(&list(2, &good)).unwrap();
        let bad: [&[_]; 7] = [
            &[(1, 6, no), (4, 4, no)],
            &[(4, 6, no), (1, 4, no), (0x20, 4, no)],
            &[(1, 6, no), (2, 7, Some(1)), (4, 4, no), (0x20, 4, no)],
            &[(1, 8, no), (4, 4, no), (0x20, 4, no)],
            &[(1, 6, no), (3, 4, no), (4, 4, no), (0x20, 4, no)],
            &[(1, 6, no), (1, 6, no), (4, 4, no), (0x20, 4, no)],
            &[(1, 6, no), (4, 4, no), (0x10, 4, no), (0x10, 4, no), (0x20, 4, no)],
        ];
        for bad in bad {
            assert_eq!(from_programs(&list(2, bad)).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
        for bad in [&list(1, &good)[..], &list(2, &good)[..11], b"", b"\x02\0\0"] {
            assert_eq!(from_programs(bad).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }

    proptest! {
        #[test]
        fn hostile_lists_do_no_harm(mut bytes in proptest::collection::vec(0_u8..40, 0..60)) {
            let _ = (to_programs(&bytes), from_programs(&bytes));
            if bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&[1, 0, 0, 0]);
                if let Ok(list) = to_programs(&bytes)
                    && let Ok(Some(again)) = from_programs(&list)
                {
                    prop_assert_eq!(again, bytes);
                }
            }
        }
    }
}
