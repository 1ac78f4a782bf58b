//! Crates that need no unsafe code promise so to the compiler.

use crate::assert_none;
use crate::tree::{metadata, packages, root};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates that need unsafe code, each for a reason.
const NEED_IT: [(&str, &str); 7] = [
    ("headstart-agentd", "a process's descriptor is watched"),
    ("headstart-cache", "sidecars are mapped and shared by processes"),
    ("headstart-export", "kernel interfaces without safe wrappers"),
    ("headstart-lsmt", "SIMD in the index"),
    ("headstart-sigbus", "a handler of signals, for mapped files that others shorten"),
    ("headstart-snapshotter", "quotas of projects, which no safe crate has"),
    ("headstart-zfile", "SIMD and foreign compressors"),
];

const PROMISE: &str = "#![forbid(unsafe_code)]";

#[test]
fn a_crate_that_needs_no_unsafe_code_forbids_it() {
    let metadata = metadata();
    let mut offences = Vec::new();
    for package in packages(&metadata, true) {
        let name = package["name"].as_str().unwrap();
        let is_needed = NEED_IT.iter().any(|(known, _)| *known == name);
        let targets = package["targets"].as_array().unwrap().iter();
        let products = targets.filter(|target| {
            let kind = target["kind"][0].as_str().unwrap_or_default();
            // What a fuzz target's macro makes is not for the crate to promise.
            kind == "lib" || kind == "bin" && name != "headstart-fuzz"
        });
        for target in products {
            let path = PathBuf::from(target["src_path"].as_str().unwrap());
            let text = fs::read_to_string(&path).unwrap();
            let promises = text.lines().any(|line| line == PROMISE);
            let shown =
                path.strip_prefix(root().canonicalize().unwrap()).unwrap_or(&path).display().to_string();
            match (is_needed, promises) {
                (false, false) => offences.push(format!("{shown}: {PROMISE}")),
                (true, true) => offences.push(format!("{shown}: take {name} out of NEED_IT")),
                _ => {}
            }
        }
    }
    assert_none("add it behind the crate's documentation", &offences);
}

/// A reason that has gone is not kept.
#[test]
fn crates_that_need_unsafe_code_have_some() {
    let metadata = metadata();
    let source_of =
        |package: &Value| Path::new(package["manifest_path"].as_str().unwrap()).with_file_name("src");
    let has_some = |dir: &Path| {
        let mut dirs = vec![dir.to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else if fs::read_to_string(&path).is_ok_and(|text| text.contains("unsafe ")) {
                    return true;
                }
            }
        }
        false
    };
    let idle: Vec<_> = NEED_IT
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| {
            !packages(&metadata, true)
                .any(|package| package["name"] == *name && has_some(&source_of(package)))
        })
        .map(str::to_owned)
        .collect();
    assert_none("forbid it, and take them out of NEED_IT", &idle);
}
