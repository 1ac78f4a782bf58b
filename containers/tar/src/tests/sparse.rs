//! Sparse files in all forms.

use super::support::*;
use crate::TarKind;
use headstart_block::ByteRange;

/// Extents, sizes and content of the only entry.
type Found = (Vec<(u64, u64)>, u64, Vec<u8>);

fn found(parts: &[Vec<u8>]) -> Found {
    let mut parts = parts.to_vec();
    parts.push(header(b"after", b'0', 0).block());
    let mut entries = list(&archive(&parts)).unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries.pop().unwrap().0.path, b"after");
    let (entry, content) = entries.remove(0);
    assert_eq!((entry.path.as_slice(), entry.kind), (&b"file"[..], TarKind::Regular));
    let extents = entry.sparse.unwrap().into_iter().map(|extent: ByteRange| (extent.offset(), extent.len()));
    (extents.collect(), entry.size, content)
}

/// Extents of a table, each field in octal.
fn table(extents: &[(u64, u64)]) -> Vec<u8> {
    let fields = extents.iter().map(|(offset, len)| format!("{offset:011o}\0{len:011o}\0"));
    fields.collect::<String>().into_bytes()
}

fn old(size: u64, stored: usize, extents: &[(u64, u64)], has_more: bool) -> MadeHeader {
    let made = header(b"file", b'S', stored).gnu().set(386, &table(extents));
    made.set(482, &[u8::from(has_more)]).set(483, format!("{size:011o}\0").as_bytes())
}

#[test]
fn old_sparse_files_have_blocks_of_extents() {
    let some = [(0, 1), (512, 2)];
    assert_eq!(found(&[old(4000, 3, &some, false).with(b"abc")]), (some.to_vec(), 4000, b"abc".to_vec()));
    let many: Vec<_> = (0..50).map(|n| (n * 1000, 20)).collect();
    let more = |extents: &[(u64, u64)], has_more| {
        let mut block = padded(&table(extents));
        block[504] = u8::from(has_more);
        block
    };
    let content = vec![9; 1000];
    let parts = [
        old(100_000, 1000, &many[..4], true).block(),
        more(&many[4..25], true),
        more(&many[25..46], true),
        more(&many[46..], false),
        padded(&content),
    ];
    assert_eq!(found(&parts), (many, 100_000, content));
    // A trailing hole is an empty extent at the end of the file.
    assert_eq!(found(&[old(4000, 0, &[(4000, 0)], false).block()]), (vec![], 4000, vec![]));
}

#[test]
fn old_sparse_files_need_a_gnu_header() {
    let text = refusal(&[header(b"file", b'S', 0).ustar().block()]);
    assert!(text.contains("without a GNU header"), "{text}");
}

#[test]
fn sparse_files_of_versions_0_have_their_map_in_records() {
    let file = || header(b"file", b'0', 5).ustar().with(b"hello");
    let version_0 = pax(&[
        ("GNU.sparse.size", b"9000"),
        ("GNU.sparse.numblocks", b"2"),
        ("GNU.sparse.offset", b"10"),
        ("GNU.sparse.numbytes", b"2"),
        ("GNU.sparse.offset", b"100"),
        ("GNU.sparse.numbytes", b"3"),
    ]);
    let version_1 = pax(&[
        ("GNU.sparse.name", b"file"),
        ("GNU.sparse.size", b"9000"),
        ("GNU.sparse.numblocks", b"2"),
        ("GNU.sparse.map", b"10,2,100,3"),
    ]);
    let wanted = (vec![(10, 2), (100, 3)], 9000, b"hello".to_vec());
    assert_eq!(found(&[version_0, file()]), wanted);
    assert_eq!(found(&[version_1, file()]), wanted);
}

/// A sparse file of version 1.0 with this map in front of its content.
fn version_1_0(map: &str, content: &[u8]) -> Vec<Vec<u8>> {
    let stored = [padded(map.as_bytes()), content.to_vec()].concat();
    let extended = pax(&[
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"file"),
        ("GNU.sparse.realsize", b"9000"),
    ]);
    vec![extended, header(b"GNUSparseFile.1/file", b'0', stored.len()).ustar().with(&stored)]
}

#[test]
fn sparse_files_of_version_1_0_have_their_map_in_the_content() {
    let wanted = (vec![(10, 2), (100, 3)], 9000, b"hello".to_vec());
    assert_eq!(found(&version_1_0("3\n10\n2\n100\n3\n9000\n0\n", b"hello")), wanted);
    let many: Vec<_> = (0..400).map(|n| (n * 10, 1)).collect();
    let lines = many.iter().map(|(offset, len)| format!("{offset}\n{len}\n")).collect::<String>();
    let content = vec![3; 400];
    assert_eq!(found(&version_1_0(&format!("400\n{lines}"), &content)), (many, 9000, content));
}

#[test]
fn maps_that_do_not_fit_are_refused() {
    for (map, cause) in [
        ("1\n0\n4\n", "5 bytes of content for 4 bytes"),
        ("1\n0\n6\n", "5 bytes of content for 6 bytes"),
        ("1\n8999\n5\n", "extent 1"),
        ("2\n0\n3\n2\n2\n", "extent 2"),
        ("2\n10\n3\n0\n2\n", "extent 2"),
        ("1\n-1\n5\n", "extent 1"),
        ("1\n0\nfive\n", "extent 1"),
        ("1\n9223372036854775807\n5\n", "extent 1"),
        ("-1\n0\n5\n", "damaged"),
        ("one\n0\n5\n", "damaged"),
        ("300\n0\n5\n", "does not end inside"),
        ("9223372036854775807\n0\n5\n", "`sparse_extents`"),
    ] {
        let text = refusal(&version_1_0(map, b"hello"));
        assert!(text.contains(cause) && text.contains("\"file\""), "{map:?}: {text}");
    }
    let miscounted = pax(&[("GNU.sparse.numblocks", b"2"), ("GNU.sparse.map", b"0,5")]);
    let text = refusal(&[miscounted, header(b"file", b'0', 5).with(b"hello")]);
    assert!(text.contains("another length"), "{text}");
}

#[test]
fn sparse_files_of_other_versions_and_kinds_are_refused() {
    let unknown = pax(&[("GNU.sparse.major", b"2"), ("GNU.sparse.minor", b"0")]);
    assert!(refusal(&[unknown, header(b"file", b'0', 0).block()]).contains("version \"2.0\""));
    let map = pax(&[("GNU.sparse.numblocks", b"0"), ("GNU.sparse.map", b"0,0")]);
    assert!(refusal(&[map, header(b"file", b'5', 0).block()]).contains("of another kind"));
}
