//! Limits: at each nothing is refused, one above it is.

use super::support::*;
use crate::TarLimits;

/// Checks that the archive is read at the limit, and refused one below, by a message that names limit and entry.
#[track_caller]
fn limited(parts: &[Vec<u8>], at_limit: TarLimits, one_less: TarLimits, name: &str) {
    let archive = archive(parts);
    list_within(&archive, at_limit).unwrap();
    let text = list_within(&archive, one_less).unwrap_err().to_string();
    let named = text.contains("tar entry \"") || name == "trailing_bytes";
    assert!(named && text.contains("over the limit of") && text.contains(&format!("`{name}`")), "{text}");
}

macro_rules! limited {
    ($name:ident, $limit:expr, $parts:expr) => {
        limited(
            $parts,
            TarLimits { $name: $limit, ..TarLimits::default() },
            TarLimits { $name: $limit - 1, ..TarLimits::default() },
            stringify!($name),
        )
    };
}

#[test]
fn paths_and_targets_have_a_limit() {
    let file = header(b"a", b'0', 0).block();
    limited!(path_bytes, 4095, &[long(b'L', &[b'p'; 4095]), file.clone()]);
    limited!(path_bytes, 4095, &[pax(&[("path", &[b'p'; 4095])]), file]);
    limited!(path_bytes, 200, &[long(b'K', &[b'p'; 200]), header(b"a", b'2', 0).block()]);
}

#[test]
fn extended_headers_have_a_limit() {
    let file = header(b"a", b'0', 0).block();
    limited!(extended_bytes, 41, &[long(b'L', &[b'p'; 40]), file.clone()]);
    let text = records(&[("comment", &[b'c'; 1000])]);
    limited!(extended_bytes, text.len() as u64, &[pax(&[("comment", &[b'c'; 1000])]), file.clone()]);
    let global = header(b"g", b'g', text.len()).with(&text);
    limited!(extended_bytes, text.len() as u64, &[global, file]);
}

#[test]
fn a_claimed_size_takes_no_memory() {
    let claim = header(b"a", b'x', 1 << 30).block();
    let limits = TarLimits { extended_bytes: 1 << 40, ..TarLimits::default() };
    let text = list_within(&claim, limits).unwrap_err().to_string();
    assert!(text.contains("ends inside"), "{text}");
}

#[test]
fn extended_attributes_have_a_limit() {
    let given = pax(&[("SCHILY.xattr.user.a", b"12345"), ("SCHILY.xattr.user.b", b"")]);
    limited!(xattr_bytes, 17, &[given, header(b"a", b'0', 0).block()]);
}

#[test]
fn maps_of_sparse_files_have_a_limit() {
    let given: [(&str, &[u8]); 2] = [("GNU.sparse.numblocks", b"3"), ("GNU.sparse.map", b"0,0,0,0,0,0")];
    limited!(sparse_extents, 3, &[pax(&given), header(b"a", b'0', 0).block()]);
    let made = header(b"a", b'S', 0).gnu().set(482, b"\x01").set(483, b"00000000000\0").block();
    let mut full = vec![0; 512];
    full[504] = 1;
    limited!(extended_bytes, 1024, &[made, full, vec![0; 512], header(b"b", b'0', 0).block()]);
    let version =
        pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"0")]);
    let map = format!("200\n{}", "0\n0\n".repeat(200));
    limited!(extended_bytes, 1024, &[version, header(b"a", b'0', 1024).with(map.as_bytes())]);
}

#[test]
fn entries_and_their_sizes_have_limits() {
    let files = [header(b"a", b'0', 3).with(b"abc"), header(b"b", b'0', 4).with(b"abcd")];
    limited!(entries, 2, &files);
    limited!(file_bytes, 4, &files);
    limited!(total_bytes, 7, &files);
}

#[test]
fn the_rest_behind_the_archive_has_a_limit() {
    // `archive` adds the second end, which is behind the first.
    limited!(trailing_bytes, 1024, &[header(b"a", b'0', 0).block(), vec![0; 1024]]);
}
