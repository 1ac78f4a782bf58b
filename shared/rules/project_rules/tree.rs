//! The files of the tree, and what cargo says about its packages.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories whose contents are made, not written.
const MADE: [&str; 4] = ["target", "corpus", "artifacts", "proptest-regressions"];

/// The directory of files that earlier versions wrote, unchanged.
const RECORDED: &str = "tests/fixtures";

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A text file of the project.
pub(crate) struct Source {
    /// Relative to the root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn is_rust(&self) -> bool {
        Path::new(&self.path).extension().is_some_and(|extension| extension == "rs")
    }

    /// File name without directory and extension.
    pub(crate) fn stem(&self) -> &str {
        Path::new(&self.path).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
    }

    /// Its lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// Every text file of the project.
pub(crate) fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().expect("names are UTF-8");
            let path = directory.join(&name);
            let kind = entry.file_type().unwrap();
            let is_ours = !MADE.contains(&name.as_str()) && path != Path::new(RECORDED);
            if kind.is_dir() && is_ours && (name == ".ci" || !name.starts_with('.')) {
                directories.push(path);
            } else if kind.is_file()
                && let Ok(text) = fs::read_to_string(root().join(&path))
            {
                found.push(Source { path: path.to_str().unwrap().to_owned(), text });
            }
        }
    }
    assert!(found.len() > 20, "the tree was not found at {}", root().display());
    found
}

/// The metadata of the workspace, and of everything that it is built from on this platform.
///
/// Offline: the tests run after the build, so everything that the build needed is there.
pub(crate) fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The packages in `metadata` that are ours, or those that are not.
pub(crate) fn packages(metadata: &Value, ours: bool) -> impl Iterator<Item = &Value> {
    let all = metadata["packages"].as_array().expect("cargo metadata lists packages");
    all.iter().filter(move |package| package["source"].is_null() == ours)
}
