//! A crate has few programs of tests: each is linked by itself, with everything that the crate uses.

use crate::assert_none;
use crate::tree::{Source, metadata, packages, root, sources};
use serde_json::Value;

/// The programs of the command line's tests each take minutes; a change is tested with one of them.
const HAVE_SEVERAL: [&str; 1] = ["headstart"];

/// The targets of a package, each with its kind.
fn targets(package: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let targets = package["targets"].as_array().unwrap().iter();
    targets.map(|target| (target["kind"][0].as_str().unwrap_or_default(), target))
}

#[test]
fn the_integration_tests_of_a_crate_are_one_program() {
    let metadata = metadata();
    let mut offences = Vec::new();
    for package in packages(&metadata, true) {
        let name = package["name"].as_str().unwrap();
        let count = targets(package).filter(|(kind, _)| *kind == "test").count();
        if count > 1 && !HAVE_SEVERAL.contains(&name) {
            offences.push(format!("{name}: {count}"));
        }
    }
    assert_none("make the files in tests/ modules of one tests/x/main.rs", &offences);
}

fn has_tests(source: &Source) -> bool {
    ["#[test]", "#[tokio::test"].iter().any(|attribute| source.text.contains(attribute))
}

/// Cargo links a program of unit tests for each library and binary, even one of no tests, unless `test = false`.
#[test]
fn libraries_and_binaries_have_programs_of_unit_tests_if_they_have_any() {
    let metadata = metadata();
    let root = root().canonicalize().unwrap();
    let sources = sources();
    let mut offences = Vec::new();
    for package in packages(&metadata, true) {
        for (kind, target) in targets(package).filter(|(kind, _)| ["lib", "bin"].contains(kind)) {
            let path = target["src_path"].as_str().unwrap();
            let path = path.strip_prefix(root.to_str().unwrap()).unwrap().trim_start_matches('/');
            // The modules of a binary are in its library; those of a library are all files beside its root.
            let of_library = path.strip_suffix("lib.rs").filter(|_| kind == "lib");
            let mut files = sources.iter().filter(|source| {
                source.is_rust() && of_library.map_or(source.path == path, |dir| source.path.starts_with(dir))
            });
            let (tested, has_tests) = (target["test"] == true, files.any(has_tests));
            if tested != has_tests {
                offences.push(format!("{path}: test = {has_tests}"));
            }
        }
    }
    assert_none("say so in its Cargo.toml, under [lib] or [[bin]]", &offences);
}
