use super::*;
use crate::features::{BITS_64, Features};
use crate::support::{Image, OpenImage, groups_shown, skip_without};
use headstart_block::ErrorKind;
use proptest::prelude::*;
use std::process::Command;

/// The number before a word.
fn before(text: &str, word: &str) -> u32 {
    assert!(text.contains(word), "{word}: {text}");
    let (head, _) = text.split_once(word).unwrap();
    head.rsplit([' ', '\n']).find(|word| !word.is_empty()).unwrap().parse().unwrap()
}

/// The number after a word.
fn after(text: &str, word: &str) -> u64 {
    assert!(text.contains(word), "{word}: {text}");
    let rest = text.split(word).nth(1).unwrap().trim_start();
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

fn check_group(descriptor: &GroupDescriptor, text: &str, has_checksums: bool) {
    assert_eq!(descriptor.block_bitmap, after(text, "Block bitmap at "));
    assert_eq!(descriptor.inode_bitmap, after(text, "Inode bitmap at "));
    assert_eq!(descriptor.inode_table, after(text, "Inode table at "));
    assert_eq!(descriptor.free_blocks, before(text, " free blocks"));
    assert_eq!(descriptor.free_inodes, before(text, " free inodes"));
    assert_eq!(descriptor.used_directories, before(text, " directories"));
    if has_checksums {
        let unused = if text.contains(" unused inodes") { before(text, " unused inodes") } else { 0 };
        assert_eq!(descriptor.unused_inodes, unused, "{text}");
        for (flag, name) in
            [(INODE_UNINIT, "INODE_UNINIT"), (BLOCK_UNINIT, "BLOCK_UNINIT"), (INODE_ZEROED, "ITABLE_ZEROED")]
        {
            assert_eq!(descriptor.flags & flag != 0, text.contains(name), "{text}");
        }
    }
}

#[test]
fn descriptors_of_mke2fs_are_decoded_and_come_back() {
    let Some(programs) = skip_without("descriptors_of_mke2fs", &["mke2fs", "dumpe2fs"]) else { return };
    for features in ["uninit_bg,64bit", "uninit_bg,^64bit", "^uninit_bg,64bit", "^uninit_bg,^64bit,^flex_bg"]
    {
        let features = format!("^metadata_csum,^has_journal,{features}");
        let options = ["-O", &features, "-E", "lazy_itable_init=1"];
        let image = Image::make(&programs[0], "1300M", &options, &["mkdir a", "write 3 b", "write 9 c"]);
        let open = OpenImage::open(image.head(4 << 20));
        let output = Command::new(&programs[1]).arg(image.path()).env("LC_ALL", "C").output().unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let has_checksums = open.superblock.features.has(UNINIT_BG);
        for (group, text) in (0..).zip(groups_shown(&output)) {
            let descriptor = &open.groups[group as usize];
            check_group(descriptor, text, has_checksums);
            let bytes = &open.bytes[open.descriptor_place(group)];
            let mut again = bytes.to_vec();
            descriptor.encode_into(&mut again, group, open.checksum(), &open.geometry).unwrap();
            assert!(again == bytes);
            if has_checksums {
                let mut anew = vec![0; bytes.len()];
                descriptor.encode_into(&mut anew, group, open.checksum(), &open.geometry).unwrap();
                assert!(anew == bytes);
                again[12] ^= 1;
                let error =
                    GroupDescriptor::decode(&again, group, open.checksum(), &open.geometry).unwrap_err();
                assert_eq!(
                    error.to_string(),
                    format!("the descriptor of group {group} has a wrong checksum")
                );
                assert!(GroupDescriptor::decode(bytes, group + 1, open.checksum(), &open.geometry).is_err());
            }
        }
        assert_eq!(open.groups.len(), 11);
    }
}

#[test]
fn e2fsck_takes_descriptors_that_were_changed() {
    let Some(programs) = skip_without("e2fsck_takes_descriptors", &["mke2fs", "e2fsck"]) else { return };
    for features in ["uninit_bg,64bit", "uninit_bg,^64bit"] {
        let options = ["-O", &format!("^metadata_csum,^has_journal,{features}"), "-E", "lazy_itable_init=1"];
        let image = Image::make(&programs[0], "300M", &options, &[]);
        let mut open = OpenImage::open(image.bytes());
        for group in 0..open.geometry.groups() {
            let place = open.descriptor_place(group);
            // All inodes may have been used, and are free again.
            let mut changed = open.groups[group as usize];
            changed.unused_inodes = if group == 0 { 0 } else { changed.unused_inodes };
            let checksum = open.checksum();
            changed.encode_into(&mut open.bytes[place], group, checksum, &open.geometry).unwrap();
        }
        let bytes = open.bytes.clone();
        image.check(&programs[1], &bytes);
    }
}

#[test]
fn impossible_descriptors_are_refused() {
    let Some(programs) = skip_without("impossible_descriptors_are_refused", &["mke2fs"]) else { return };
    let image = Image::make(&programs[0], "200M", &["-O", "^metadata_csum,^has_journal"], &[]);
    let open = OpenImage::open(image.head(1 << 20));
    let good = open.groups[1];
    let bad = [
        GroupDescriptor { block_bitmap: 0, ..good },
        GroupDescriptor { inode_bitmap: 51_200, ..good },
        GroupDescriptor { inode_table: u64::MAX, ..good },
        GroupDescriptor { inode_table: 51_199, ..good },
        GroupDescriptor { free_blocks: 18_433, ..good },
        GroupDescriptor { free_inodes: open.geometry.inodes_per_group() + 1, ..good },
        GroupDescriptor { used_directories: u32::MAX, ..good },
        GroupDescriptor { unused_inodes: u32::MAX, ..good },
    ];
    for bad in bad {
        assert_eq!(bad.check(1, &open.geometry).unwrap_err().kind(), ErrorKind::Corrupt, "{bad:?}");
    }
    let too_many = GroupDescriptor { free_blocks: 70_000, ..good };
    assert!(too_many.encode_into(&mut [0; 32], 1, open.checksum(), &open.geometry).is_err());
}

proptest! {
    #[test]
    fn every_descriptor_comes_back(
        places in proptest::array::uniform3(4097_u64..(1 << 33) - 512),
        counts in (0_u32..=32768, 0_u32..=8192, 0_u32..=8192, 0_u32..=8192),
        flags: u16,
        group in 0_u32..1 << 17,
        before in proptest::collection::vec(any::<u8>(), 64),
    ) {
        let groups = 1 << 18;
        let superblock = Superblock {
            blocks_count: 32768 * u64::from(groups),
            inodes_per_group: 8192,
            inodes_count: 8192 * groups,
            features: Features::default().with(UNINIT_BG).with(BITS_64),
            uuid: [7; 16],
            descriptor_size: 64,
            ..Superblock::blank()
        };
        let (geometry, checksum) = (Geometry::new(&superblock), DescriptorChecksum::new(&superblock));
        // The descriptors of all groups take 4096 blocks.
        let descriptor = GroupDescriptor {
            block_bitmap: places[0],
            inode_bitmap: places[1],
            inode_table: places[2],
            free_blocks: counts.0,
            free_inodes: counts.1,
            used_directories: counts.2,
            unused_inodes: counts.3,
            flags,
        };
        let mut bytes = before.clone();
        descriptor.encode_into(&mut bytes, group, checksum, &geometry).unwrap();
        prop_assert_eq!(GroupDescriptor::decode(&bytes, group, checksum, &geometry).unwrap(), descriptor);
        prop_assert_eq!(&bytes[20..28], &before[20..28]);
        prop_assert_eq!(&bytes[52..], &before[52..]);
    }
}
