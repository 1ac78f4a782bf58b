//! The fields of entries in each format.

use super::support::*;
use crate::{TarEntry, TarKind, TarTime};

#[test]
fn version_7_ends_before_prefix_and_device() {
    let block = header(b"a", 0, 3).set(257, b"unused").set(329, b"garbage!garbage!").set(345, b"prefix");
    let mut expected = expected(b"a", TarKind::Regular);
    (expected.size, expected.stored_size) = (3, 3);
    assert_eq!(only(&[block.with(b"abc")]), expected);
}

#[test]
fn a_trailing_slash_makes_a_directory_of_typeflag_nul_only() {
    let directory = expected(b"a/", TarKind::Directory);
    // Content is not skipped, since directories have none.
    assert_eq!(only(&[header(b"a/", 0, 700).block()]), directory);
    assert_eq!(only(&[header(b"a/", b'0', 0).block()]).kind, TarKind::Regular);
    assert_eq!(only(&[pax(&[("path", b"b/")]), header(b"a", 0, 0).block()]).kind, TarKind::Directory);
}

#[test]
fn a_prefix_stands_in_front_of_the_name() {
    let (name, prefix) = ([b'n'; 100], [b'p'; 155]);
    let path = |header: MadeHeader| only(&[header.set(345, &prefix).block()]).path;
    let joined = |prefix: &[u8]| [prefix, b"/", &name].concat();
    assert_eq!(path(header(&name, b'0', 0).ustar()), joined(&prefix));
    let star = header(&name, b'0', 0).ustar().set(345, &prefix).set(476, b"00000000001\x0000000000002\0");
    assert_eq!(only(&[star.set(508, b"tar\0").block()]).path, joined(&prefix[..131]));
    // The times in its place are no numbers: a header of early Go.
    assert_eq!(path(header(&name, b'0', 0).gnu()), joined(&prefix));
    let times = header(&name, b'0', 0).gnu().set(345, b"00000000001\x0000000000002\0");
    assert_eq!(only(&[times.block()]).path, name);
}

#[test]
fn both_sums_are_right_and_others_are_not() {
    let named = || header(b"\xff\xfe\x80", b'0', 0).ustar();
    assert_eq!(only(&[named().block()]).path, b"\xff\xfe\x80");
    assert_eq!(only(&[named().block_with_signed_sum()]).path, b"\xff\xfe\x80");
    let mut wrong = named().block();
    wrong[0] ^= 1;
    let text = refusal(&[header(b"first", b'0', 0).block(), wrong]);
    assert!(text.contains("offset 512") && text.contains("checksum") && text.contains("first"), "{text}");
}

#[test]
fn numbers_in_base_256_are_read() {
    let block = header(b"a", b'0', 0).gnu().set(108, b"\x80\0\0\0\x7f\xff\xff\xff");
    let block = block
        .set(116, b"\x80\0\0\0\xff\xff\xff\xff")
        .set(136, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe");
    let entry = only(&[block.block()]);
    assert_eq!((entry.uid, entry.gid, entry.mtime.seconds), (0x7fff_ffff, 0xffff_ffff, -2));
}

#[test]
fn every_typeflag_has_its_kind() {
    let device = |typeflag| header(b"a", typeflag, 0).ustar().set(329, b"0000010\x000000003\0").block();
    for (typeflag, kind) in [
        (0, TarKind::Regular),
        (b'0', TarKind::Regular),
        (b'1', TarKind::HardLink),
        (b'2', TarKind::Symlink),
        (b'3', TarKind::CharDevice),
        (b'4', TarKind::BlockDevice),
        (b'5', TarKind::Directory),
        (b'6', TarKind::Fifo),
        (b'7', TarKind::Regular),
    ] {
        let is_device = matches!(kind, TarKind::CharDevice | TarKind::BlockDevice);
        let device_of_entry = if is_device { (8, 3) } else { (0, 0) };
        let wanted = TarEntry { device: device_of_entry, ..expected(b"a", kind) };
        assert_eq!(only(&[device(typeflag)]), wanted);
    }
    for typeflag in (1..=255_u8).filter(|flag| !b"01234567xgLKS".contains(flag)) {
        let text = refusal(&[header(b"dir/f\n", typeflag, 0).ustar().block()]);
        let flag = [typeflag];
        let wanted = format!("tar entry \"dir/f\\n\": has the typeflag '{}'", flag.escape_ascii());
        assert!(text.starts_with(&wanted), "{text}");
    }
}

#[test]
fn the_mode_is_permissions_and_three_bits_more() {
    let entry = only(&[header(b"a", b'0', 0).set(100, b"0107755\0").block()]);
    assert_eq!(entry.mode, 0o7755);
    assert_eq!(
        only(&[header(b"a", b'0', 0).set(100, b"\xff\xff\xff\xff\xff\xff\xff\xff").block()]).mode,
        0o7777
    );
}

#[test]
fn pax_records_replace_fields() {
    let extended = pax(&[
        ("path", "ä/b".as_bytes()),
        ("linkpath", b"target"),
        ("uid", b"4294967295"),
        ("gid", b"70000"),
        ("mtime", b"-1.25"),
        ("atime", b"5"),
        ("comment", b"\0any=thing\n"),
        ("SCHILY.xattr.user.z", b"\0\xff"),
        ("SCHILY.xattr.user.a", b"1"),
        ("SCHILY.xattr.user.a", b""),
        ("LIBARCHIVE.xattr.user.%c3", b"AAE"),
    ]);
    let wanted = TarEntry {
        link_target: b"target".to_vec(),
        uid: u32::MAX,
        gid: 70_000,
        mtime: TarTime { seconds: -2, nanoseconds: 750_000_000 },
        xattrs: vec![
            (b"user.a".to_vec(), vec![]),
            (b"user.z".to_vec(), b"\0\xff".to_vec()),
            (b"user.\xc3".to_vec(), vec![0, 1]),
        ],
        header_offset: 1024,
        content_offset: 1536,
        ..expected("ä/b".as_bytes(), TarKind::Symlink)
    };
    assert_eq!(only(&[extended, header(b"short", b'2', 0).ustar().link(b"t").block()]), wanted);
}

#[test]
fn a_pax_size_is_the_size_of_the_content() {
    let parts = [
        pax(&[("size", b"513")]),
        header(b"a", b'0', 0).ustar().with(&[7; 513]),
        header(b"b", b'0', 0).block(),
    ];
    let entries = list(&archive(&parts)).unwrap();
    assert_eq!((entries[0].0.size, &entries[0].1), (513, &vec![7; 513]));
    assert_eq!(entries[1].0.path, b"b");
}

#[test]
fn empty_pax_values_change_nothing() {
    let keys = ["path", "linkpath", "size", "uid", "gid", "mtime", "atime"];
    let entry = only(&[pax(&keys.map(|key| (key, &b""[..]))), header(b"a", b'2', 0).link(b"t").block()]);
    assert_eq!(
        (entry.path, entry.link_target, entry.uid, entry.mtime.seconds),
        (b"a".to_vec(), b"t".to_vec(), 5, 7)
    );
}

#[test]
fn names_have_an_order_of_precedence() {
    let plain = || header(b"plain", b'0', 0).ustar().block();
    let path = |parts: &[Vec<u8>]| only(parts).path;
    let (pax_path, long_path) = (pax(&[("path", b"pax")]), long(b'L', b"long"));
    assert_eq!(path(&[pax_path.clone(), plain()]), b"pax");
    assert_eq!(path(&[long_path.clone(), pax_path.clone(), plain()]), b"long");
    assert_eq!(path(&[long_path.clone(), long(b'L', b""), plain()]), b"plain");
    assert_eq!(path(&[pax_path, pax(&[("uid", b"1")]), plain()]), b"plain");
    let sparse =
        pax(&[("GNU.sparse.map", b"0,0"), ("GNU.sparse.numblocks", b"1"), ("GNU.sparse.name", b"sparse")]);
    assert_eq!(path(&[long_path, sparse, plain()]), b"sparse");
    let link = only(&[long(b'K', &[b't'; 300]), pax(&[("linkpath", b"p")]), header(b"a", b'1', 0).block()]);
    assert_eq!(link.link_target, [b't'; 300]);
}

#[test]
fn global_headers_have_no_effect_and_cancel_extended_ones() {
    let text = records(&[("path", b"global"), ("uid", b"no number")]);
    let global = header(b"pax_global_header", b'g', text.len()).ustar().with(&text);
    let file = header(b"a", b'0', 0).ustar().block();
    let parts = [pax(&[("path", b"pax")]), long(b'L', b"long"), global, file];
    assert_eq!(only(&parts).path, b"a");
    let broken = header(b"pax_global_header", b'g', 4).ustar().with(b"none");
    assert!(refusal(&[broken]).contains("pax_global_header"));
}

#[test]
fn kinds_without_content_have_none_whatever_their_size() {
    for typeflag in *b"23456" {
        let parts = [header(b"a", typeflag, 1000).ustar().block(), header(b"b", b'0', 0).block()];
        let entries = list(&archive(&parts)).unwrap();
        assert_eq!((entries.len(), entries[0].0.size, entries[0].0.stored_size), (2, 0, 0));
    }
}

#[test]
fn content_of_a_hard_link_is_skipped_if_it_is_there() {
    let link = || header(b"a", b'1', 1000).ustar().link(b"t");
    let last = || header(b"b", b'0', 1).with(b"x");
    for parts in [[link().block(), last()], [link().with(&[7; 1000]), last()]] {
        let entries = list(&archive(&parts)).unwrap();
        let found: Vec<_> = entries.iter().map(|(entry, content)| (entry.size, content.len())).collect();
        assert_eq!(found, [(0, 0), (1, 1)]);
    }
    let at_end = list(&archive(&[link().with(&[7; 1000])])).unwrap();
    assert_eq!(at_end.len(), 1);
    assert!(list(&link().with(&[7; 1000])[..1024]).unwrap_err().to_string().contains("ends inside"));
}

#[test]
fn numbers_that_are_none_or_too_large_are_refused() {
    let file = || header(b"name", b'0', 0).ustar();
    for (parts, cause) in [
        (vec![file().set(108, b"000008\0").block()], "uid"),
        (vec![file().set(329, b"garbage!").block()], "major number"),
        (vec![file().set(108, b"\x80\0\0\x01\0\0\0\0").block()], "uid 4294967296"),
        (vec![file().set(116, b"\xff\xff\xff\xff\xff\xff\xff\xff").block()], "gid -1"),
        (vec![pax(&[("uid", b"4294967296")]), file().block()], "uid 4294967296"),
        (vec![pax(&[("gid", b"-1")]), file().block()], "gid -1"),
        (vec![pax(&[("uid", b"0x1")]), file().block()], "uid"),
        (vec![pax(&[("mtime", b"1e5")]), file().block()], "mtime"),
        (vec![pax(&[("atime", b"now")]), file().block()], "atime"),
        (vec![pax(&[("size", b"-1")]), file().block()], "size of -1"),
        (vec![file().set(124, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff").block()], "size of -1"),
        (vec![pax(&[("LIBARCHIVE.xattr.a", b"?")]), file().block()], "base 64"),
    ] {
        let text = refusal(&parts);
        assert!(text.starts_with("tar entry \"name\": ") && text.contains(cause), "{cause}: {text}");
    }
    let device = header(b"name", b'3', 0).ustar().set(337, b"\x80\0\0\x01\0\0\0\0").block();
    assert!(refusal(&[device]).contains("minor number 4294967296"));
}
