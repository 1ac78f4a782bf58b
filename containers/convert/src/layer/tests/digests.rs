//! Digests of layers that never change: the same tars give the same blocks and the same blobs for ever.
//!
//! Blocks depend on the writer ([`WRITER_VERSION`]) only, so a change here means that bases which were converted before
//! are not found any more: the version has to go up with it. Blobs depend on the encoder, too, whose version is in the
//! name of the constants: a new encoder gets new ones.

use super::*;
use crate::options::{EROFS_WRITER_VERSION, WRITER_VERSION};
use crate::raw_tar::{PLAIN, RawMeta, RawTar, net_raw};
use headstart_zfile::Codec;

/// The digests of the tars themselves.
const TARS: [&str; 5] = [
    "sha256:34e44a65a9cd563a8b2715c3646e145012a2cf3826bc6e5ebfed106446670601",
    "sha256:84c97d68ba482dcba4f4a18edf471da9cefc7f8b87e3f9b7624ce1bdab092891",
    "sha256:065593624d8ee4d2c2f17b48ac9159d4fc05cbd53b5d9342921b1fee1f54d7fb",
    "sha256:7bbaa0279fd524bde8e0f45fa56334dc73fd39489ba899fb4c14d36b25457e45",
    "sha256:d2f6b44993579af8cd343589075ab05f0e9b3f17bfd5517d10420af77f599113",
];

/// The digests of the disk after each layer, written by version 1.
const DISKS_OF_WRITER_1: [&str; 5] = [
    "sha256:ffa462a69693726207cbe11f0ae9fde7edad25dc96bde34d9fe7947c41e40d49",
    "sha256:403e76f970e391b3839720ebb6e8b03c9d69eacf4dbb893169f387e62f421625",
    "sha256:c8a2c8fe6b2254b58b3f4f2ca8d397db8f2e677d38af6e611b5ed2e7ac1f8a19",
    "sha256:0ae782752754c26d766debc12ed2b28b441edf3efe4db3d6acfd79fb0f63e341",
    "sha256:fe28e9c5bcb95ea3ffb4abc4e99eae886e857c00019cae75529c5032ccf19f3c",
];

/// The digests of the blobs in lz4.
const BLOBS_OF_LZ4_1_10_0: [&str; 5] = [
    "sha256:aaba1d00d1fa88d15ae1f228435390b78c9fdd5c99800fb6d68c24903ce266dc",
    "sha256:5d100f9aee986f3e2f2654f8d52fc73739f288c8616481f446eb48be6cedb279",
    "sha256:536c352ae625ca369dd021d10b4ea5a53c2932a3a1f986286338150ab899c2eb",
    "sha256:da775a5097d5c1bc7c66ce6a2ad54b8219e8081a6f27d267fc7732dc52a9be4d",
    "sha256:04141ed821b13d3f3de3278388629fd6d892dcb7f0b05a1d820135335f23bfa4",
];

/// The digests of the blobs in zstd.
const BLOBS_OF_ZSTD_1_5_7: [&str; 5] = [
    "sha256:503a53114800a323f234d3a2b3b0fb665660e144ffa034a0978fdff0df5cd133",
    "sha256:036eddf1402d5266ab4a139bab9c36d0bebb5403c256af1ce1d485a48a35d949",
    "sha256:d7a95835f56ff361433c46bc4d1c0a1d2655cdfd51eee3513495545527821242",
    "sha256:a94be79c7a7f077afbbc95a442c232dd3012fcf5a781e4b7cb811a428bf1c335",
    "sha256:e69292c17de3bc1d33eed238f61f0fe9a6731816f3d7bbb139f6b5bdbc22d43c",
];

/// The digests of the disk after each layer, written as EROFS by version 1.
const EROFS_DISKS_OF_WRITER_1: [&str; 5] = [
    "sha256:c3bd05e22d99d4fec320a7fd72f34b485bbff8316d0f506d8822e04b23064659",
    "sha256:f088323eb8018336a0abd5aa184dcc934fcfb95dc2540c8f1d52bf0358c243d0",
    "sha256:775e17a7b6be7fc5970bfce11cf7bf654940cd590c255ee8496f82f26bdeb651",
    "sha256:5fbb0def37b30e7b6c8bd649ada270fc59a8543e2f04d0150dc29fb348473981",
    "sha256:52d59172fb3ca7d065607f39d92b38114da3baca7327c4560d02b84e620767f4",
];

/// The digests of the blobs of EROFS in lz4.
const EROFS_BLOBS_OF_LZ4_1_10_0: [&str; 5] = [
    "sha256:05ff5ba1efb7c555ef70b73deefdf27848ae003df17cb50507633d62b8bc19ac",
    "sha256:972cdc6426a93fddba3831cd5938fac0bbbcf7dfb56b49b11b7c62eb99983f65",
    "sha256:dcaca5b54a4df9c03fbd3ecc05ce9ad1fa3cdbc34d4ad8281a2af82a7689281a",
    "sha256:aad3900495c93d7af297def60e9a8f1d6fc90dbf3d81c77b4964b84125bd6b6b",
    "sha256:06890fbaaef8e3897b83c01cc8f2fdfc794c789ade8a7d92344cebcc03ac48c2",
];

/// A base: a directory with an index, links of both kinds, devices, attributes, holes, and a large file.
fn base() -> Vec<u8> {
    let set_id = RawMeta { mode: 0o4755, uid: 0, gid: 0, mtime: 1_600_000_000 };
    let late = RawMeta { mtime: 1 << 32, uid: 3_000_000, ..PLAIN };
    let mut tar =
        RawTar::default().dir("./").dir("usr").dir("usr/many").dir("etc").dir("dev").dir("srv/deep/er");
    for number in 0..700 {
        let name = format!("usr/many/a name that makes entries of directories long {number:05}");
        tar = tar.file(&name, &noise(number, to_usize(number * 7 % 900)));
    }
    let words = |words: &[u16]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    // Version 2; owner rw, the user 1000 r, group r, mask r, others none.
    let acl = [words(&[2, 0]), words(&[1, 6]), words(&[0xffff, 0xffff]), words(&[2, 4, 1000, 0])].concat();
    let acl = [acl, words(&[4, 4, 0xffff, 0xffff, 16, 4, 0xffff, 0xffff, 32, 0, 0xffff, 0xffff])].concat();
    tar.entry(b'0', b"usr/ping", b"", set_id, &noise(1, 30_000))
        .link("usr/ping", "usr/ping-too")
        .symlink("ping", "usr/alias")
        .symlink(&"far/".repeat(24), "usr/long-link")
        .device(b'3', "dev/null", (1, 3))
        .device(b'4', "dev/disk", (259, 70_000))
        .entry(b'6', b"dev/pipe", b"", PLAIN, b"")
        .pax(&[("SCHILY.xattr.security.capability", &net_raw()), ("mtime", b"1700000000.123456789")])
        .file("usr/capable", b"program")
        .pax(&[("SCHILY.xattr.system.posix_acl_access", &acl), ("SCHILY.xattr.user.large", &[b'v'; 3000])])
        .file("etc/with-attributes", b"content")
        .pax(&[
            ("GNU.sparse.size", b"9000000"),
            ("GNU.sparse.numblocks", b"2"),
            ("GNU.sparse.map", b"8192,5000,8999000,1000"),
            ("GNU.sparse.name", b"srv/holes"),
        ])
        .file("srv/stored", &noise(2, 6000))
        .entry(b'0', b"srv/late", b"", late, b"after 2106")
        .file("srv/large", &noise(3, 5_000_000))
        .file("etc/gone", b"gone")
        .file("etc/same", &noise(4, 200_000))
        .done()
}

/// Whiteouts of both kinds, links across layers, and other kinds in the place of old ones.
fn changes() -> Vec<u8> {
    RawTar::default()
        .file("etc/.wh.gone", b"")
        .file("srv/deep/new", b"new")
        .file("srv/deep/.wh..wh..opq", b"")
        .link("usr/ping", "srv/ping-across")
        .file("etc/same", &noise(4, 200_000))
        .file("dev", b"a file in the place of a directory")
        .dir("usr/alias")
        .file("usr/alias/in", b"in a directory in the place of a link")
        .file("srv/large", &noise(5, 1_000_000))
        .done()
}

/// Other modes of the same content.
fn modes() -> Vec<u8> {
    (0..700)
        .fold(RawTar::default(), |tar, number| {
            let name = format!("usr/many/a name that makes entries of directories long {number:05}");
            let meta = RawMeta { mode: 0o600, ..PLAIN };
            tar.entry(b'0', name.as_bytes(), b"", meta, &noise(number, to_usize(number * 7 % 900)))
        })
        .done()
}

/// All the files of a directory removed, one by one.
fn removals() -> Vec<u8> {
    (0..700)
        .step_by(2)
        .fold(RawTar::default(), |tar, number| {
            tar.file(&format!("usr/many/.wh.a name that makes entries of directories long {number:05}"), b"")
        })
        .done()
}

fn tars() -> Vec<Vec<u8>> {
    vec![base(), changes(), modes(), removals(), RawTar::default().file("app/config.json", b"{}").done()]
}

/// The digests of blobs and of disks, each parent read again from a disk in memory if `is_remote`.
fn converted(
    options: &ConvertOptions,
    compress: &dyn Fn(&[u8]) -> Vec<u8>,
    is_remote: bool,
) -> (Vec<String>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let staging = staging_in(dir.path());
    let (mut blobs, mut disks, mut layers) = (Vec::new(), Vec::new(), Vec::new());
    let (mut chain, mut parent): (_, Option<ParentDisk>) = (None, None);
    for tar in tars() {
        let own = chain_id(chain.as_ref(), &Digest::of(&tar));
        let place = LayerPlace { chain: own, parent_chain: chain, parent: parent.take() };
        let layer = convert_layer(input(&compress(&tar), &tar), &place, &staging, options, &Silent).unwrap();
        layers.push(open(&staging, &layer.layer));
        let stack = Stack::new(layers.clone()).unwrap();
        let mut bytes = vec![0; to_usize(SIZE)];
        let disk = ParentDisk::of(stack);
        disk.disk().read_at(&mut bytes, 0).unwrap();
        blobs.push(layer.layer.blob.digest.to_string());
        disks.push(Digest::of(&bytes).to_string());
        parent = Some(if is_remote { (Arc::new(bytes) as Arc<dyn ReadAt>).into() } else { disk });
        chain = Some(own);
    }
    (blobs, disks)
}

#[test]
fn the_tars_of_this_test_are_what_they_were() {
    let digests: Vec<_> = tars().iter().map(|tar| Digest::of(tar).to_string()).collect();
    assert_eq!(digests, TARS);
}

#[test]
fn blocks_and_blobs_have_the_digests_that_they_always_had() {
    assert_eq!(WRITER_VERSION, 1, "the constants are those of version 1");
    let cases =
        [(1, "plain", false), (2, "gzip", true), (8, "zstd", false), (2, "zstd", true), (8, "gzip", false)];
    for (threads, name, is_remote) in cases {
        let compress = |tar: &[u8]| match name {
            "gzip" => gzip(tar, 6),
            "zstd" => zstd(tar, 3),
            _ => tar.to_vec(),
        };
        let of = |codec| {
            let packing = Packing::ZFile(ZFileOptions { codec, ..ZFileOptions::default() });
            converted(&ConvertOptions { packing, ..options(threads) }, &compress, is_remote)
        };
        let ((lz4, disks), (zstd, disks_of_zstd)) = (of(Codec::Lz4), of(Codec::Zstd));
        let case = format!("{threads} threads, {name}, remote: {is_remote}");
        assert_eq!(disks, DISKS_OF_WRITER_1, "{case}: other blocks: WRITER_VERSION has to go up");
        assert_eq!(disks_of_zstd, disks, "{case}");
        let expected = (BLOBS_OF_LZ4_1_10_0.map(str::to_owned), BLOBS_OF_ZSTD_1_5_7.map(str::to_owned));
        assert_eq!(
            (&lz4[..], &zstd[..]),
            (&expected.0[..], &expected.1[..]),
            "{case}: an encoder has changed"
        );
    }
}

#[test]
fn blocks_and_blobs_of_erofs_have_the_digests_that_they_always_had() {
    assert_eq!(EROFS_WRITER_VERSION, 1, "the constants are those of version 1");
    for (threads, is_remote) in [(1, false), (2, true), (8, false)] {
        let options = options_of(FileSystemKind::Erofs, threads);
        let (blobs, disks) = converted(&options, &|tar| gzip(tar, 6), is_remote);
        let case = format!("{threads} threads, remote: {is_remote}");
        assert_eq!(disks, EROFS_DISKS_OF_WRITER_1, "{case}: other blocks: EROFS_WRITER_VERSION has to go up");
        assert_eq!(blobs, EROFS_BLOBS_OF_LZ4_1_10_0, "{case}: the encoder has changed");
    }
}

#[test]
fn the_disks_of_the_digests_are_clean() {
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let Some(program) = checker(kind, "the check of the disk with known digests") else { return };
        let (_, disk) = convert_all(&staging_in(dir.path()), &tars(), &options_of(kind, 1));
        let path = dir.path().join("disk");
        store_disk(&disk, &path);
        check(&program, &path);
    }
}
