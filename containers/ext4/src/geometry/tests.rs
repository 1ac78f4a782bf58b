use super::*;
use crate::support::{Image, OpenImage, groups_shown, skip_without};
use std::process::Command;

/// The numbers in a text.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn places_are_those_that_dumpe2fs_prints() {
    let Some(programs) = skip_without("places_are_those_that_dumpe2fs_prints", &["mke2fs", "dumpe2fs"])
    else {
        return;
    };
    let all: [(&str, &[&str]); 5] = [
        ("6400M", &["-O", "^metadata_csum,^has_journal,64bit"]),
        ("1300M", &["-O", "^metadata_csum,^has_journal,^sparse_super,^resize_inode,^64bit"]),
        ("1300M", &["-O", "^metadata_csum,^has_journal,^flex_bg"]),
        ("900M", &["-O", "^metadata_csum,^has_journal,sparse_super2,^resize_inode", "-E", "num_backup_sb=2"]),
        ("100M", &["-O", "^metadata_csum,^has_journal,sparse_super2", "-E", "num_backup_sb=0"]),
    ];
    for (size, options) in all {
        let image = Image::make(&programs[0], size, options, &[]);
        // Only the beginning: the rest of the image has no descriptors.
        let head = image.head(4 << 20);
        let open = OpenImage::open(head);
        let output = Command::new(&programs[1]).arg(image.path()).env("LC_ALL", "C").output().unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut seen = 0;
        for (group, text) in (0_u32..).zip(groups_shown(&output)) {
            let blocks = numbers(
                text.lines().next().unwrap().split_once("(Blocks ").unwrap().1.split(')').next().unwrap(),
            );
            let first = open.geometry.first_block(group);
            assert_eq!(blocks, [first, first + u64::from(open.geometry.blocks_in_group(group)) - 1]);
            assert_eq!(
                text.contains("superblock at"),
                open.geometry.has_superblock(group),
                "{group}: {text}"
            );
            let line =
                |name: &str| text.lines().find_map(|line| line.trim_start().strip_prefix(name)).map(numbers);
            let table = line("Inode table at").unwrap();
            assert_eq!(table[1] - table[0] + 1, u64::from(open.geometry.inode_table_blocks()));
            if open.geometry.has_superblock(group) {
                let mut reserved =
                    text.split("Reserved GDT blocks at").nth(1).map(numbers).unwrap_or_default();
                reserved.truncate(2);
                let mut last = text.split("Group descriptors at").nth(1).map(numbers).unwrap_or_default();
                last.truncate(2);
                let end = reserved.last().or(last.last()).unwrap() + 1;
                assert_eq!(end - first, open.geometry.descriptor_blocks_at(group), "{group}: {text}");
            }
            seen += 1;
        }
        assert_eq!(seen, open.geometry.groups());
    }
}

#[test]
fn inodes_are_in_their_groups() {
    let Some(programs) = skip_without("inodes_are_in_their_groups", &["mke2fs"]) else { return };
    let image = Image::make(&programs[0], "300M", &["-O", "^metadata_csum,^has_journal", "-N", "3072"], &[]);
    let geometry = OpenImage::open(image.head(1 << 20)).geometry;
    assert_eq!((geometry.groups(), geometry.inodes_per_group()), (3, 1024));
    assert_eq!(geometry.group_of_inode(1).unwrap(), (0, 0));
    assert_eq!(geometry.group_of_inode(1025).unwrap(), (1, 0));
    assert_eq!(geometry.group_of_inode(3072).unwrap(), (2, 1023));
    for none in [0, 3073, u32::MAX] {
        assert!(geometry.group_of_inode(none).is_err());
    }
    assert_eq!(geometry.blocks_in_group(3), 0);
}

#[test]
fn powers_are_told_from_other_numbers() {
    let backups: Vec<_> =
        (0..400).filter(|&group| [3, 5, 7].iter().any(|&base| is_power(group, base))).collect();
    assert_eq!(backups, [3, 5, 7, 9, 25, 27, 49, 81, 125, 243, 343]);
    assert!(is_power(3_486_784_401, 3) && !is_power(u32::MAX, 7));
}
