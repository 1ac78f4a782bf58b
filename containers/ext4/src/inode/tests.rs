use super::*;
use crate::support::{Image, OpenImage, skip_without};
use headstart_block::ErrorKind;
use proptest::prelude::*;

fn with_time(seconds: i64, nanoseconds: u32) -> Inode {
    let mut inode = Inode::new(FileKind::Regular, 32);
    inode.set_times(InodeTime::new(seconds, nanoseconds).unwrap());
    inode
}

/// The lines of `stat` of debugfs, for the fields of an inode.
fn check_stat(inode: &Inode, text: &str) {
    let field = |name: &str| {
        assert!(text.contains(name), "{name}: {text}");
        let rest = text.split(name).nth(1).unwrap();
        rest.split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(u32::from(inode.mode & 0o7777), u32::from_str_radix(&field("Mode:"), 8).unwrap());
    assert_eq!(inode.flags, u32::from_str_radix(field("Flags: ").trim_start_matches("0x"), 16).unwrap());
    assert_eq!(inode.generation.to_string(), field("Generation:"));
    assert_eq!([inode.uid, inode.gid].map(|id| id.to_string()), [field("User:"), field("Group:")]);
    assert_eq!(inode.size.to_string(), field("Size:"));
    assert_eq!(inode.links.to_string(), field("Links:"));
    assert_eq!(inode.blocks.to_string(), field("Blockcount:"));
    assert_eq!(inode.file_acl.to_string(), field("File ACL:"));
    for (name, time) in [
        ("ctime: ", inode.ctime),
        ("atime: ", inode.atime),
        ("mtime: ", inode.mtime),
        ("crtime: ", inode.crtime),
    ] {
        // The lower and the upper word, in hexadecimal.
        let line = text.lines().map(str::trim_start).find_map(|line| line.strip_prefix(name)).unwrap();
        let mut words = line
            .split([':', ' '])
            .map(|word| u32::from_str_radix(word.trim_start_matches("0x"), 16).unwrap());
        let (low, more) = (words.next().unwrap(), words.next().unwrap());
        assert_eq!(time.seconds, i64::from(low.cast_signed()) + (i64::from(more & 3) << 32), "{line}");
        assert_eq!(time.nanoseconds, more >> 2, "{line}");
    }
    match FileKind::of_mode(inode.mode) {
        Some(FileKind::CharDevice | FileKind::BlockDevice) => {
            let (major, minor) = inode.device();
            assert!(text.contains(&format!("Device major/minor number: {major:02}:{minor:02} (")), "{text}");
        }
        Some(FileKind::Symlink) if !inode.has_blocks() => {
            let target = inode.fast_symlink().unwrap().unwrap();
            assert!(text.contains(&format!("Fast link dest: \"{}\"", target.escape_ascii())), "{text}");
        }
        _ => {}
    }
}

const COMMANDS: [&str; 24] = [
    "mkdir d",
    "write 3 d/a",
    "ln d/a d/b",
    "sif d/a links_count 2",
    "sif d/a uid 70000",
    "sif d/a gid 2000000000",
    "sif d/a generation 77",
    "sif d/a mtime 0x12345678",
    "sif d/a mtime_extra 0xee6b27fd",
    "sif d/a atime 0x80000000",
    "sif d/a ctime 0xffffffff",
    "sif d/a ctime_extra 3",
    "symlink s target/of/fifty-nine/bytes/that/still/fits/in/the/inode/123",
    "symlink t target/of/sixty/bytes/and/more/that/does/not/fit/in/the/inode/12345",
    "mknod c c 5 1",
    "mknod v b 255 254",
    "mknod p p",
    "mknod w c 1 3",
    "sif w block[0] 0",
    "sif w block[1] 0x1122c134",
    "sif w mode 0020644",
    "ea_set d/a user.some value",
    "ea_set d user.some value",
    "write 3000 e",
];

#[test]
fn inodes_of_debugfs_are_decoded_and_come_back() {
    let Some(programs) = skip_without("inodes_of_debugfs", &["mke2fs", "debugfs"]) else { return };
    for features in ["^metadata_csum,^has_journal", "^metadata_csum,has_journal,^huge_file,^extra_isize"] {
        let image = Image::make(&programs[0], "32M", &["-O", features], &COMMANDS);
        let open = OpenImage::open(image.bytes());
        let used = open.used();
        assert!(used.len() >= 11);
        for number in used {
            let inode = open.inode(number);
            check_stat(&inode, &image.shows(&format!("stat <{number}>"), &programs[1]));
            if u16_at(open.inode_bytes(number), 128) != 0 {
                assert!(inode.encode() == *open.inode_bytes(number), "{number}");
            }
            assert_eq!(Inode::decode(&inode.encode()).unwrap().encode(), inode.encode());
        }
        // The new form of device numbers.
        let wide = open.used().into_iter().map(|number| open.inode(number).device()).max().unwrap();
        assert_eq!(wide, (0x2c1, 0x1_1234));
    }
}

#[test]
fn seconds_are_stored_in_four_epochs() {
    // The table of the kernel's documentation: upper bits, lower word, time.
    let table = [
        (0, 0x8000_0000, -0x8000_0000),
        (0, 0xffff_ffff, -1),
        (0, 0, 0),
        (0, 0x7fff_ffff, 0x7fff_ffff),
        (1, 0x8000_0000, 0x8000_0000),
        (1, 0xffff_ffff, 0xffff_ffff),
        (1, 0, 0x1_0000_0000),
        (1, 0x7fff_ffff, 0x1_7fff_ffff),
        (2, 0x8000_0000, 0x1_8000_0000),
        (3, 0x8000_0000, 0x2_8000_0000),
        (3, 0, 0x3_0000_0000),
        (3, 0x7fff_ffff, 0x3_7fff_ffff),
    ];
    for (epoch, low, seconds) in table {
        let raw = with_time(seconds, 999_999_999).encode();
        for (at, more) in [(8, 140), (12, 132), (16, 136), (144, 148)] {
            assert_eq!((u32_at(&raw, at), u32_at(&raw, more)), (low, 999_999_999 << 2 | epoch), "{seconds}");
        }
        assert_eq!(Inode::decode(&raw).unwrap().mtime.seconds(), seconds);
    }
    for (seconds, nanoseconds) in
        [(-0x8000_0001, 0), (0x3_8000_0000, 0), (0, 1_000_000_000), (i64::MIN, 0), (i64::MAX, 0)]
    {
        assert_eq!(InodeTime::new(seconds, nanoseconds), None);
    }
    let mut raw = with_time(0, 0).encode();
    put_u32(&mut raw, 132, u32::MAX);
    assert_eq!(Inode::decode(&raw).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn kinds_have_the_numbers_of_the_kernel() {
    let kinds = [
        (0o100_644, 1, FileKind::Regular),
        (0o040_755, 2, FileKind::Directory),
        (0o020_600, 3, FileKind::CharDevice),
        (0o060_600, 4, FileKind::BlockDevice),
        (0o010_600, 5, FileKind::Fifo),
        (0o140_777, 6, FileKind::Socket),
        (0o120_777, 7, FileKind::Symlink),
    ];
    for (mode, number, kind) in kinds {
        assert_eq!(FileKind::of_mode(mode), Some(kind));
        assert_eq!((kind.mode_bits(), kind.entry_type()), (mode & 0o170_000, number));
    }
    assert_eq!((FileKind::of_mode(0o777), FileKind::of_mode(0o170_000)), (None, None));
    assert_eq!(Inode::decode(&[0; 256]).unwrap().kind().unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn targets_up_to_59_bytes_are_in_the_inode() {
    let mut inode = Inode::new(FileKind::Symlink, 32);
    for len in [1, 59] {
        assert!(inode.set_fast_symlink(&b"x".repeat(len)));
        assert_eq!(
            Inode::decode(&inode.encode()).unwrap().fast_symlink().unwrap().unwrap(),
            b"x".repeat(len)
        );
    }
    assert!(!inode.set_fast_symlink(&[b'x'; 60]));
    for size in [58, 60, u64::from(u32::MAX)] {
        inode.size = size;
        assert_eq!(inode.fast_symlink().unwrap_err().kind(), ErrorKind::Corrupt, "{size}");
    }
    inode.blocks = 8;
    assert_eq!(inode.fast_symlink().unwrap(), None);
    // The block is that of attributes.
    inode.file_acl = 1;
    assert!(!inode.has_blocks());
}

#[test]
fn blocks_in_units_of_blocks_are_counted_in_sectors() {
    let mut raw = Inode::new(FileKind::Regular, 32).encode();
    put_u32(&mut raw, 28, 0x2000_0001);
    put_u32(&mut raw, 32, USES_EXTENTS | COUNTS_BLOCKS);
    let inode = Inode::decode(&raw).unwrap();
    assert_eq!((inode.blocks, inode.flags), (0x1_0000_0008, USES_EXTENTS));
    let raw = inode.encode();
    assert_eq!((u32_at(&raw, 28), u16_at(&raw, 116), u32_at(&raw, 32)), (8, 1, USES_EXTENTS));
    let mut hostile = raw;
    put_u16(&mut hostile, 116, u16::MAX);
    assert_eq!(Inode::decode(&hostile).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn inodes_that_mean_something_else_are_refused() {
    let good = Inode::new(FileKind::Regular, 32).encode();
    for (flag, text) in REFUSED {
        let mut raw = good;
        put_u32(&mut raw, 32, flag);
        let error = Inode::decode(&raw).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(text), "{error}");
    }
    for (extra, kind) in [(132, ErrorKind::Corrupt), (30, ErrorKind::Corrupt), (20, ErrorKind::Unsupported)] {
        let mut raw = good;
        put_u16(&mut raw, 128, extra);
        assert_eq!(Inode::decode(&raw).unwrap_err().kind(), kind);
    }
}

#[test]
fn an_old_inode_gets_room_for_all_fields() {
    let mut raw = Inode::new(FileKind::Regular, 0).encode();
    raw[128..].fill(0x55);
    put_u16(&mut raw, 128, 0);
    let inode = Inode::decode(&raw).unwrap();
    assert_eq!((inode.attribute_space(), inode.crtime), (96, InodeTime::default()));
    assert_eq!(inode.in_inode, [0; 96]);
    let again = inode.encode();
    assert_eq!((u16_at(&again, 128), &again[130..]), (32, &[0; 126][..]));
    assert_eq!(Inode::new(FileKind::Fifo, 64).attribute_space(), 64);
}

#[test]
fn devices_have_two_forms() {
    let mut inode = Inode::new(FileKind::CharDevice, 32);
    for (major, minor, words) in [
        (5, 1, [0x0501, 0]),
        (255, 255, [0xffff, 0]),
        (0, 256, [0, 0x0010_0000]),
        (256, 3, [0, 0x0001_0003]),
        (4095, 1_048_575, [0, 0xffff_ffff]),
    ] {
        inode.set_device(major, minor).unwrap();
        assert_eq!([0, 4].map(|at| u32_at(&inode.block, at)), words);
        assert_eq!(inode.device(), (major, minor));
    }
    for (major, minor) in [(4096, 0), (0, 1 << 20)] {
        assert_eq!(inode.set_device(major, minor).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    inode.mode = FileKind::Regular.mode_bits();
    assert_eq!(inode.device(), (0, 0));
}

proptest! {
    #[test]
    fn every_inode_comes_back(
        (mode, uid, gid, links) in any::<(u16, u32, u32, u16)>(),
        (size, blocks, acl, generation) in any::<(u64, u64, u64, u32)>(),
        times in proptest::array::uniform4((InodeTime::MIN_SECONDS..=InodeTime::MAX_SECONDS, 0_u32..1_000_000_000)),
        places in proptest::collection::vec(any::<u8>(), PLACES),
    ) {
        let mut inode = Inode::new(FileKind::Regular, 32);
        inode.mode = mode;
        inode.size = if FileKind::of_mode(mode) == Some(FileKind::Regular) { size } else { size >> 32 };
        (inode.uid, inode.gid, inode.links) = (uid, gid, u32::from(links));
        (inode.blocks, inode.file_acl, inode.generation) = (blocks >> 20, acl >> 16, generation);
        [inode.atime, inode.ctime, inode.mtime, inode.crtime] = times.map(|(s, n)| InodeTime::new(s, n).unwrap());
        inode.block.copy_from_slice(&places);
        let mut again = Inode::decode(&inode.encode()).unwrap();
        prop_assert_eq!(again.encode(), inode.encode());
        again.raw = inode.raw.clone();
        prop_assert_eq!(again, inode);
    }

    #[test]
    fn hostile_inodes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 256), extra in 6_u16..33) {
        let mut raw: [u8; 256] = *bytes.first_chunk().unwrap();
        put_u16(&mut raw, 128, extra * 4);
        // Few random inodes have none of the flags that are refused, no absurd count and possible times.
        raw[33] &= !0x08;
        raw[34] &= !0x20;
        raw[35] &= !0x10;
        raw[117] = 0;
        for at in [135, 139, 143, 151] {
            raw[at] &= 0x7f;
        }
        if let Ok(inode) = Inode::decode(&raw) {
            let _ = (inode.kind(), inode.has_blocks(), inode.device(), inode.fast_symlink());
            prop_assert_eq!(Inode::decode(&inode.encode()).unwrap().encode(), inode.encode());
            if raw[34] & 0x04 == 0 {
                prop_assert_eq!(inode.encode(), raw);
            }
        }
    }
}
