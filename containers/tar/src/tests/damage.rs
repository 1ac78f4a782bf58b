//! Damaged archives: errors and other entries, but no panic, and no reader that does not end.

use super::support::*;
use crate::{TarEntry, TarLimits, TarReader};
use proptest::prelude::*;

/// A small archive with every part that the reader knows.
fn small() -> Vec<u8> {
    let sparse =
        pax(&[("GNU.sparse.numblocks", b"1"), ("GNU.sparse.map", b"7,3"), ("GNU.sparse.size", b"20")]);
    let version =
        pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"30")]);
    let map = padded(b"1\n5\n2\n");
    let old = header(b"old", b'S', 3).gnu().set(386, b"00000000004\x0000000000003\0").set(482, b"\x01");
    archive(&[
        header(b"v7/", 0, 0).block(),
        pax(&[("path", b"pax"), ("mtime", b"5.5"), ("SCHILY.xattr.user.a", b"1")]),
        header(b"a", b'0', 3).ustar().with(b"abc"),
        long(b'L', &[b'l'; 120]),
        long(b'K', b"target"),
        header(b"b", b'1', 600).gnu().with(&[7; 600]),
        header(b"g", b'g', 12).ustar().with(b"12 comment=\n"),
        sparse,
        header(b"c", b'0', 3).ustar().with(b"abc"),
        version,
        header(b"d", b'0', 514).ustar().with(&[map, b"xy".to_vec()].concat()),
        old.set(483, b"00000000020\0").block(),
        vec![0; 512],
        padded(b"old"),
        header(b"tty", b'3', 0).ustar().block(),
    ])
}

/// The entries in front of the first error, and `true` if there is no error. Parts of contents are read.
fn entries(archive: &[u8]) -> (Vec<TarEntry>, bool) {
    let mut reader = TarReader::new(archive, TarLimits::default());
    let mut entries = Vec::new();
    loop {
        match reader.next_entry() {
            Ok(Some(entry)) => entries.push(entry),
            Ok(None) => return (entries, true),
            Err(_) => return (entries, false),
        }
        if reader.read_content(&mut [0; 2]).is_err() {
            return (entries, false);
        }
    }
}

#[test]
fn the_small_archive_is_whole() {
    let (all, is_whole) = entries(&small());
    assert!(is_whole);
    assert_eq!(all.len(), 7);
}

#[test]
fn the_start_of_an_archive_has_the_first_entries() {
    let archive = small();
    let (all, _) = entries(&archive);
    for len in 0..archive.len() {
        let (found, _) = entries(&archive[..len]);
        assert!(found.len() <= all.len() && found == all[..found.len()], "cut to {len} bytes");
    }
}

#[test]
fn no_changed_byte_makes_a_panic() {
    let mut archive = small();
    for at in 0..archive.len() {
        for mask in [0xff, 1, 0x80, b'0'] {
            archive[at] ^= mask;
            entries(&archive);
            // The same with a right checksum, wherever the block is a header: behind the checksum all is parsed.
            let block = at / 512 * 512;
            let saved = archive[block..block + 512].to_vec();
            archive[block..block + 512].copy_from_slice(&summed_again(&saved));
            entries(&archive);
            archive[block..block + 512].copy_from_slice(&saved);
            archive[at] ^= mask;
        }
    }
}

proptest! {
    #[test]
    fn archives_of_random_blocks_are_read_to_an_end(
        blocks in prop::collection::vec((0..15_usize, any::<u8>(), 0..512_usize), 0..12)
    ) {
        let whole = small();
        let mut archive = Vec::new();
        for (number, byte, at) in blocks {
            let mut block = whole[number * 512..][..512].to_vec();
            block[at] = byte;
            archive.extend(if number % 5 == 0 { block } else { summed_again(&block) });
        }
        entries(&archive);
    }
}
