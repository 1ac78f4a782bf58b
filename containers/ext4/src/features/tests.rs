use super::*;
use crate::support::{Image, skip_without};
use headstart_block::ErrorKind;
use std::process::Command;

/// The feature of one word with a bit.
type WithBit = fn(u32) -> Feature;

/// The features that a file system must have.
const LEAST: Features = Features { compat: 0, incompat: 0x42, ro_compat: 0 };

#[test]
fn features_that_are_known_are_accepted() {
    LEAST.check_supported().unwrap();
    let all = NAMES
        .iter()
        .filter(|(_, _, supported)| *supported)
        .fold(LEAST, |all, (feature, _, _)| all.with(*feature));
    all.check_supported().unwrap();
    assert!(all.has(UNINIT_BG) && !all.has(Feature::RoCompat(0x400)) && !LEAST.has(UNINIT_BG));
}

#[test]
fn refused_features_are_named() {
    let refused =
        LEAST.with(Feature::RoCompat(0x400)).with(Feature::Compat(0x8000_0000)).with(Feature::Incompat(0x4));
    let error = refused.check_supported().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(
        error.to_string(),
        "its file system has features that cannot be changed: FEATURE_C31, needs_recovery, metadata_csum; \
         make it without: mke2fs -O ^FEATURE_C31,^needs_recovery,^metadata_csum"
    );
    let error = Features::default().check_supported().unwrap_err();
    assert!(error.to_string().contains("lacks features that changes need: filetype, extent"), "{error}");
}

#[test]
fn names_are_those_that_dumpe2fs_prints() {
    let Some(mke2fs) = skip_without("names_are_those_that_dumpe2fs_prints", &["mke2fs", "dumpe2fs"]) else {
        return;
    };
    let image = Image::make(&mke2fs[0], "1M", &["-O", "none"], &[]);
    let mut bytes = image.bytes();
    let words: [(usize, WithBit); 3] =
        [(0x45c, Feature::Compat), (0x460, Feature::Incompat), (0x464, Feature::RoCompat)];
    for (at, feature) in words {
        for bit in (0..u32::BITS).map(|bit| 1 << bit) {
            bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(bit));
            std::fs::write(image.path(), &bytes).unwrap();
            let shown = Command::new(&mke2fs[1])
                .args(["-h", "-f"])
                .arg(image.path())
                .env("LC_ALL", "C")
                .output()
                .unwrap();
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            // With `64bit`, a superblock without the descriptors' size is not opened.
            let line = shown.lines().find_map(|line| line.strip_prefix("Filesystem features:"));
            match line {
                Some(line) => assert_eq!(line.trim(), feature(bit).name()),
                None => assert_eq!(feature(bit), BITS_64),
            }
        }
        bytes[at..at + 4].fill(0);
    }
}
