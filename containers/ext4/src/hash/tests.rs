use super::*;
use crate::support::skip_without;
use std::io::Write;
use std::process::Command;

/// The seed 01020304-0506-0708-090a-0b0c0d0e0f10, which programs print as a UUID, as it is in a superblock.
const SEED: [u32; 4] = [0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d];

fn settings(version: u8, unsigned: bool) -> HashSettings {
    HashSettings { version, seed: SEED, unsigned }
}

/// Number of the hash, unsigned or not, name, and both words of its hash.
type Case = (u8, bool, &'static [u8], (u32, u32));

#[test]
fn hashes_are_those_that_e2fsprogs_computes() {
    let long = b"a name that is longer than thirty two bytes so that two rounds run";
    let cases: [Case; 12] = [
        (HALF_MD4, false, b"abc", (0xf54f_014a, 0xd928_c19d)),
        (HALF_MD4, false, b"\xff\xfe\x80name", (0xf755_d07a, 0x22f9_eb2a)),
        (HALF_MD4, false, long, (0x7415_9f24, 0xb7a0_6674)),
        (HALF_MD4, true, b"\xff\xfe\x80name", (0xac5b_b57e, 0x5de3_8b17)),
        (TEA, false, b"abc", (0xe5b2_4162, 0x9ac5_292e)),
        (TEA, false, b"\xff\xfe\x80name", (0xebb0_096a, 0xc16e_84f5)),
        (TEA, false, long, (0x5064_0fb6, 0xec03_6abb)),
        (TEA, true, b"\xff\xfe\x80name", (0xf56b_8eb2, 0x6a80_15b0)),
        (LEGACY, false, b"abc", (0x75af_d992, 0)),
        (LEGACY, false, b"\xff\xfe\x80name", (0xb4b0_4174, 0)),
        (LEGACY, false, long, (0x2375_c332, 0)),
        (LEGACY, true, b"\xff\xfe\x80name", (0xc819_7fb8, 0)),
    ];
    for (version, unsigned, name, hashes) in cases {
        assert_eq!(settings(version, unsigned).hashes(name), hashes, "{version} {}", name.escape_ascii());
    }
}

#[test]
fn a_seed_of_zeros_means_the_initial_state_of_md4() {
    let zeros = HashSettings { seed: [0; 4], ..settings(HALF_MD4, false) };
    assert_eq!(zeros.hashes(b"x"), HashSettings { seed: INITIAL, ..zeros }.hashes(b"x"));
}

#[test]
fn unknown_hashes_are_refused() {
    let known = settings(HALF_MD4, false);
    for version in [LEGACY, HALF_MD4, TEA] {
        assert_eq!(known.with_version(version).unwrap().version, version);
    }
    for version in [3, 6, 255] {
        assert!(known.with_version(version).is_err());
    }
}

/// Names of all lengths, with bytes that debugfs takes in its scripts.
fn names() -> Vec<Vec<u8>> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24).to_le_bytes()[0]
    };
    let mut byte = || loop {
        if let byte @ (b'0'..=b'9' | b'a'..=b'z' | 0x80..) = next() {
            break byte;
        }
    };
    (1..=255).map(|length| (0..length).map(|_| byte()).collect()).collect()
}

#[test]
fn hashes_of_names_of_all_lengths_are_those_that_debugfs_prints() {
    let Some(programs) = skip_without("hashes of names of all lengths", &["debugfs"]) else { return };
    let names = names();
    for version in [LEGACY, HALF_MD4, TEA] {
        for unsigned in [false, true] {
            let number = if unsigned { version + 3 } else { version };
            let mut script = tempfile::NamedTempFile::new().unwrap();
            for name in &names {
                let mut line = Vec::new();
                write!(line, "dx_hash -h {number} -s 01020304-0506-0708-090a-0b0c0d0e0f10 ").unwrap();
                line.extend_from_slice(name);
                line.push(b'\n');
                script.write_all(&line).unwrap();
            }
            let output = Command::new(&programs[0]).arg("-f").arg(script.path()).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let answers: Vec<_> = text.lines().filter_map(|line| line.rsplit_once(" is 0x")).collect();
            assert_eq!(answers.len(), names.len(), "{text}");
            for (name, (_, answer)) in names.iter().zip(answers) {
                let (major, minor) = settings(version, unsigned).hashes(name);
                let theirs = answer.trim_end_matches(')').split_once(" (minor 0x").unwrap();
                let theirs = [theirs.0, theirs.1].map(|digits| u32::from_str_radix(digits, 16).unwrap());
                assert_eq!(theirs, [major, minor], "{version} {unsigned} {}", name.escape_ascii());
            }
        }
    }
}
