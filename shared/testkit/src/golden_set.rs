//! The golden set: blobs that the tools of the reference implementation (`OverlayBD`) made, with their recipes and
//! their expected bytes.
//!
//! The set is stored beside the repository and is not part of it; if it is absent, tests print that and pass.

use crate::process::skipped;
use crate::scene::sha256;
use flate2::read::GzDecoder;
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::PathBuf;

/// The set as stored on this machine.
#[derive(Debug)]
pub struct GoldenSet {
    dir: PathBuf,
    json: Value,
}

impl GoldenSet {
    /// Opens the set. If there is none, prints that a test is skipped, and returns `None`.
    #[must_use]
    pub fn open() -> Option<Self> {
        let dir = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/formats/golden"));
        let Ok(json) = fs::read(dir.join("golden.json")) else {
            skipped(&format!("no golden set at {}", dir.display()));
            return None;
        };
        Some(Self { dir, json: serde_json::from_slice(&json).unwrap() })
    }

    /// The descriptions of all cases whose `kind` in the set's `golden.json` is `kind`, such as `lsmt` or `zfile`;
    /// empty if there is none.
    pub fn cases(&self, kind: &str) -> Vec<&Value> {
        self.json["cases"].as_array().unwrap().iter().filter(|case| case["kind"] == kind).collect()
    }

    /// The description of the case of that name, which there must be.
    #[track_caller]
    pub fn case(&self, name: &str) -> &Value {
        self.json["cases"].as_array().unwrap().iter().find(|case| case["name"] == name).unwrap()
    }

    /// The path of a file of the set.
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// The bytes of a file of the set, without the gzip in which some are stored.
    #[track_caller]
    pub fn bytes(&self, file: &str) -> Vec<u8> {
        let stored = fs::read(self.path(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        if !file.ends_with(".gz") {
            return stored;
        }
        let mut raw = Vec::new();
        GzDecoder::new(stored.as_slice()).read_to_end(&mut raw).unwrap();
        raw
    }

    /// The bytes of a file of the set, uncompressed. `entry` is the part of a case's description that is about the
    /// file: an object with `file` (its path) and `raw_sha256`. Panics if the bytes do not have that hash.
    #[track_caller]
    pub fn raw(&self, entry: &Value) -> Vec<u8> {
        let raw = self.bytes(entry["file"].as_str().unwrap());
        assert_eq!(sha256(&raw), entry["raw_sha256"], "{}", entry["file"]);
        raw
    }
}

/// The bytes of hexadecimal digits, of which there must be an even number.
#[track_caller]
pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
