use super::*;
use crate::features::{EXTENT, FILETYPE, SPARSE_SUPER, UNINIT_BG};
use crate::support::{Image, skip_without};
use headstart_block::ErrorKind;
use proptest::prelude::*;

/// Options of mke2fs for file systems that are supported.
const SUPPORTED: [&[&str]; 6] = [
    &["-O", "^metadata_csum,^has_journal"],
    &["-O", "^metadata_csum,has_journal,uninit_bg,64bit,flex_bg", "-G", "4"],
    &["-O", "^metadata_csum,^has_journal,uninit_bg,^64bit"],
    &["-O", "^metadata_csum,^has_journal,sparse_super2,^resize_inode", "-E", "num_backup_sb=2"],
    &["-O", "^metadata_csum,^has_journal,^sparse_super,^resize_inode,^flex_bg,^uninit_bg", "-i", "65536"],
    &[
        "-O",
        "^metadata_csum,^has_journal",
        "-L",
        "name",
        "-m",
        "3",
        "-E",
        "hash_seed=01234567-89ab-cdef-0123-456789abcdef",
    ],
];

fn raw_of(bytes: &[u8]) -> &[u8; SUPERBLOCK_SIZE] {
    bytes[1024..].first_chunk().unwrap()
}

/// The bytes of the superblock of a new file system.
fn new(blocks: u64) -> [u8; SUPERBLOCK_SIZE] {
    let features = [FILETYPE, EXTENT, BITS_64, UNINIT_BG, SPARSE_SUPER];
    let superblock = Superblock {
        blocks_count: blocks,
        inodes_count: exact(blocks.div_ceil(32768) * 8192, "small"),
        inodes_per_group: 8192,
        features: features.into_iter().fold(Features::default(), Features::with),
        uuid: *b"0123456789abcdef",
        hash_seed: [1, 2, 3, 4],
        default_hash: 1,
        descriptor_size: 64,
        ..Superblock::blank()
    };
    superblock.encode()
}

/// The value of a line of `dumpe2fs -h`.
fn shown<'a>(output: &'a str, name: &str) -> &'a str {
    let found = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    assert!(found.is_some(), "{name}: {output}");
    found.unwrap().trim()
}

#[test]
fn superblocks_of_mke2fs_are_decoded_and_come_back() {
    let Some(programs) = skip_without("superblocks_of_mke2fs", &["mke2fs", "dumpe2fs"]) else { return };
    for options in SUPPORTED {
        let image = Image::make(&programs[0], "300M", options, &[]);
        let bytes = image.bytes();
        let superblock = Superblock::decode(raw_of(&bytes)).unwrap();
        assert!(superblock.encode() == *raw_of(&bytes), "{options:?}");
        let output =
            std::process::Command::new(&programs[1]).arg("-h").arg(image.path()).env("LC_ALL", "C").output();
        let output = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
        for (name, number) in [
            ("Inode count", u64::from(superblock.inodes_count)),
            ("Block count", superblock.blocks_count),
            ("Reserved block count", superblock.reserved_blocks),
            ("Free blocks", superblock.free_blocks),
            ("Free inodes", u64::from(superblock.free_inodes)),
            ("Inodes per group", u64::from(superblock.inodes_per_group)),
            ("First inode", u64::from(superblock.first_inode)),
            ("Inode size", u64::from(superblock.inode_size)),
            ("Desired extra isize", u64::from(superblock.want_extra_isize)),
        ] {
            assert_eq!(shown(&output, name), number.to_string(), "{name}, {options:?}");
        }
        let seed = superblock.hash_seed.map(u32::to_le_bytes).concat();
        let uuids = [shown(&output, "Filesystem UUID"), shown(&output, "Directory Hash Seed")]
            .map(|text| text.replace('-', ""));
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(uuids, [hex(&superblock.uuid), hex(&seed)]);
        assert_eq!((superblock.default_hash, superblock.unsigned_hash), (1, false));
        assert!(superblock.created > SuperblockTime::new(1 << 30).unwrap());
    }
}

#[test]
fn other_file_systems_are_refused_by_name() {
    let Some(programs) = skip_without("other_file_systems_are_refused_by_name", &["mke2fs"]) else { return };
    let refused: [(&[&str], &str); 8] = [
        (&["-b", "1024", "-O", "^metadata_csum"], "its blocks have 1024 bytes, and only 4096 are supported"),
        (&["-I", "128", "-O", "^metadata_csum"], "its inodes have 128 bytes, and only 256 are supported"),
        (&["-I", "512", "-O", "^metadata_csum"], "its inodes have 512 bytes, and only 256 are supported"),
        (&["-O", "metadata_csum"], "cannot be changed: metadata_csum"),
        (&["-O", "^metadata_csum,^resize_inode,meta_bg"], "cannot be changed: meta_bg"),
        (&["-O", "^metadata_csum,bigalloc"], "cannot be changed: bigalloc"),
        (&["-O", "^metadata_csum,^extent,^64bit"], "lacks features that changes need: extent"),
        (
            &["-g", "8192", "-O", "^metadata_csum"],
            "its groups have 8192 blocks, and only 32768 are supported",
        ),
    ];
    for (options, text) in refused {
        let image = Image::make(&programs[0], "64M", options, &[]);
        let error = Superblock::decode(raw_of(&image.bytes())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(text), "{error}, not {text}");
    }
}

#[test]
fn file_systems_that_need_repair_are_refused() {
    let good = new(100_000);
    Superblock::decode(&good).unwrap();
    let changes: [(usize, &[u8], ErrorKind, &str); 9] = [
        (58, &[3], ErrorKind::Unsupported, "has errors; repair it with e2fsck -f"),
        (58, &[0], ErrorKind::Unsupported, "was not unmounted; repair it"),
        (232, &[12], ErrorKind::Unsupported, "was not unmounted; repair it"),
        (72, &[1], ErrorKind::Unsupported, "was made for GNU Hurd"),
        (56, &[0], ErrorKind::Corrupt, "has no ext4 file system"),
        (0, &[1], ErrorKind::Corrupt, "inodes, not 8192 in each group"),
        (40, &[8], ErrorKind::Corrupt, "has 8200 inodes in a group"),
        (340, &[1], ErrorKind::Corrupt, "has more blocks free or reserved"),
        (339, &[1], ErrorKind::Unsupported, "more than 512 TiB"),
    ];
    for (at, bytes, kind, text) in changes {
        let mut raw = good;
        raw[at..at + bytes.len()].copy_from_slice(bytes);
        let error = Superblock::decode(&raw).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(text), "{error}, not {text}");
    }
}

#[test]
fn times_have_forty_bits() {
    let mut superblock = Superblock::decode(&new(100_000)).unwrap();
    let time = SuperblockTime::new((1 << 40) - 2).unwrap();
    superblock.written = time;
    let raw = superblock.encode();
    assert_eq!((raw[48], raw[51], raw[628]), (0xfe, 0xff, 0xff));
    assert_eq!(Superblock::decode(&raw).unwrap().written, time);
    assert_eq!(SuperblockTime::new(1 << 40), None);
}

#[test]
fn new_superblocks_are_supported() {
    for blocks in [256, 32768, 32769, 1 << 24, 1 << 32] {
        let decoded = Superblock::decode(&new(blocks)).unwrap();
        assert_eq!(
            (decoded.blocks_count, decoded.hash_seed, decoded.unsigned_hash),
            (blocks, [1, 2, 3, 4], false)
        );
        assert!(decoded.encode() == new(blocks));
    }
    assert!(Superblock::decode(&new(0)).is_err());
}

#[test]
fn the_kind_of_bytes_in_hashes_is_a_flag() {
    let mut superblock = Superblock::decode(&new(100_000)).unwrap();
    assert!(!superblock.hash_settings().unsigned);
    superblock.unsigned_hash = true;
    let mut raw = superblock.encode();
    assert_eq!(raw[352], 2);
    assert!(Superblock::decode(&raw).unwrap().hash_settings().unsigned);
    raw[352] = 3;
    assert_eq!(Superblock::decode(&raw).unwrap_err().kind(), ErrorKind::Corrupt);
}

proptest! {
    #[test]
    fn hostile_superblocks_are_refused_or_come_back(
        changes in proptest::collection::vec((0..SUPERBLOCK_SIZE, any::<u8>()), 0..4),
        low in proptest::collection::vec((0_usize..130, any::<u8>()), 0..2),
    ) {
        let mut raw = new(100_000);
        for (at, byte) in changes.into_iter().chain(low) {
            raw[at] = byte;
        }
        if let Ok(superblock) = Superblock::decode(&raw) {
            prop_assert!(superblock.encode() == raw);
            let _ = crate::geometry::Geometry::new(&superblock);
        }
    }
}
