//! Replays the corpus of every fuzz target on any compiler, and one-byte changes of it.
//!
//! Goal: what the fuzzer found once stays found, and no byte of a header, an index or a trailer can make
//! a parser panic, hang or take memory out of proportion. Method: each input of the corpus as it is, then
//! with each of its bytes (of a long one, those near its ends, where the formats keep their structure, and
//! every hundredth between) changed in turn; every eighth of these bytes, and all of them in `make soak`.
//! Memory is counted by an allocator of this program's own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a corpus that cannot be read is a failure")]

#[path = "support/counted.rs"]
mod counted;
#[path = "../examples/make_corpus/main.rs"]
#[expect(dead_code, reason = "the program's own beginning")]
mod make_corpus;

use headstart_fuzz::{TARGETS, Target};
use headstart_testkit::soak;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Memory that a target may take at once: a fixed part for its buffers and the codecs' own, and a
/// multiple of the input. The largest honest multiple is an index of one-byte entries: each entry of
/// some stored bytes takes words in memory, while a merge holds its input and its output.
const FIXED_ALLOWANCE: usize = 4 << 20;
const ALLOWANCE_PER_BYTE: usize = 64;

/// Bytes at each end of a long input that are all changed.
const EDGE: usize = 4608;
/// Largest golden blob that is changed here, in bytes.
const GOLDEN_MAX: u64 = 16 << 10;
/// Between the edges of a long input, one byte in so many is changed.
const STRIDE: usize = 97;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", directory.display());
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Runs a target and checks the memory it took; whether the input was valid.
#[track_caller]
fn replay((name, run): Target, input: &[u8], what: &dyn Fn() -> String) -> bool {
    let (valid, peak) = counted::peak_of(|| run(input).is_ok());
    let allowed = FIXED_ALLOWANCE + ALLOWANCE_PER_BYTE * input.len();
    assert!(peak <= allowed, "{name}, {}: {peak} bytes of memory for {} of input", what(), input.len());
    valid
}

/// The places to change in an input of `len` bytes. Inputs of other lengths begin at other places.
fn places(len: usize) -> impl Iterator<Item = usize> {
    let step = if soak::is_on() { 1 } else { 8 };
    let all = (0..len).filter(move |&at| at < EDGE || at >= len.saturating_sub(EDGE) || at % STRIDE == 0);
    all.skip(len % step).step_by(step)
}

fn replay_changed(target: Target, input: &[u8], name: &dyn Fn() -> String) {
    let mut changed = input.to_vec();
    for at in places(input.len()) {
        // All bits, the lowest and the highest: the first makes numbers huge, the others off by a little.
        for mask in [0xff, 1, 0x80] {
            changed[at] ^= mask;
            replay(target, &changed, &|| format!("{} with byte {at} ^ {mask:#x}", name()));
            changed[at] ^= mask;
        }
    }
    for len in places(input.len()) {
        replay(target, &input[..len], &|| format!("{} cut to {len} bytes", name()));
    }
}

#[test]
fn the_corpus_is_what_make_corpus_makes() {
    let made = tempfile::tempdir().unwrap();
    make_corpus::make(made.path()).unwrap();
    for target in fs::read_dir(made.path()).unwrap().map(|entry| entry.unwrap()) {
        let name = target.file_name().into_string().unwrap();
        let committed: BTreeMap<_, _> = corpus(&name).into_iter().collect();
        for input in fs::read_dir(target.path()).unwrap().map(|entry| entry.unwrap()) {
            let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(&name);
            let bytes = fs::read(input.path()).unwrap();
            let is_same = committed.get(&place.join(input.file_name())) == Some(&bytes);
            let remedy = "keep the old one under the version of its form, and run `make_corpus`";
            // A cache's file names the inode of another one.
            assert!(
                is_same || name == "cache_sidecar",
                "{} is made differently: {remedy}",
                input.path().display()
            );
        }
    }
}

#[test]
fn the_corpus_replays() {
    for &target in TARGETS {
        for (path, input) in corpus(target.0) {
            let valid = replay(target, &input, &|| path.display().to_string());
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(valid || !name.starts_with("valid-"), "{} is refused: {:?}", name, (target.1)(&input));
        }
    }
}

#[test]
fn changed_bytes_of_the_corpus_replay() {
    for &target in TARGETS {
        for (path, input) in corpus(target.0) {
            replay_changed(target, &input, &|| path.display().to_string());
        }
    }
}

/// Blobs of the reference implementation, where they lie beside the repository. Only the small ones: the
/// crates' own tests damage the large ones, and know what must come out.
#[test]
fn changed_bytes_of_small_golden_blobs_replay() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/formats/golden");
    if !golden.exists() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: there are no golden blobs at {}", golden.display());
        return;
    }
    for &target in TARGETS {
        let (directory, extension) = match target.0 {
            "zfile" => ("zfile", "zfile"),
            "lsmt_layer" => ("lsmt", "lsmt"),
            _ => continue,
        };
        for path in fs::read_dir(golden.join(directory)).unwrap().map(|entry| entry.unwrap().path()) {
            let small = path.metadata().unwrap().len() <= GOLDEN_MAX;
            if small && path.extension().is_some_and(|found| found == extension) {
                let input = fs::read(&path).unwrap();
                assert!(replay(target, &input, &|| path.display().to_string()), "{}", path.display());
                replay_changed(target, &input, &|| path.display().to_string());
            }
        }
    }
}

#[test]
fn the_allocator_counts() {
    let (_, peak) = counted::peak_of(|| std::hint::black_box(vec![0u8; 3 << 20]).len());
    assert!((3 << 20..4 << 20).contains(&peak), "{peak}");
}
