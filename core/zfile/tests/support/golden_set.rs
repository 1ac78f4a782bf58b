//! The golden set: blobs that the reference's tools made, their recipes and their expected bytes.
//!
//! The set is stored beside the repository and is not part of it; where it is absent, tests say so and pass.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

pub struct GoldenSet {
    dir: PathBuf,
    json: Value,
}

impl GoldenSet {
    /// Opens the set, or says loudly that there is none.
    pub fn open() -> Option<Self> {
        let dir = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/formats/golden"));
        let Ok(json) = fs::read(dir.join("golden.json")) else {
            let _ = writeln!(std::io::stderr(), "SKIPPED: no golden set at {}", dir.display());
            return None;
        };
        Some(Self { dir, json: serde_json::from_slice(&json).unwrap() })
    }

    pub fn cases(&self, kind: &str) -> Vec<&Value> {
        self.json["cases"].as_array().unwrap().iter().filter(|case| case["kind"] == kind).collect()
    }

    pub fn case(&self, name: &str) -> &Value {
        self.json["cases"].as_array().unwrap().iter().find(|case| case["name"] == name).unwrap()
    }

    /// The ZFile of a case: its file, without the tar wrapper where it has one.
    pub fn zfile(&self, case: &Value) -> Vec<u8> {
        let file = self.file(case["file"].as_str().unwrap());
        assert_eq!(sha256(&file), case["raw_sha256"]);
        match &case["tar"] {
            Value::Null => file,
            tar => {
                let (base, size) = (number(&tar["base"]), number(&tar["size"]));
                file[base..base + size].to_vec()
            }
        }
    }

    /// A file of the set, unchanged.
    pub fn file(&self, name: &str) -> Vec<u8> {
        fs::read(self.dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

pub fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}
