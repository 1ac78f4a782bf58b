//! A crate has few programs of tests: each is linked by itself, with everything that the crate uses.

use crate::assert_none;
use crate::tree::{Source, metadata, packages, root, sources};
use serde_json::Value;
use std::path::Path;

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

/// Lines that are a test's attribute: in a string or a comment, other text is on the line.
fn has_tests(source: &Source) -> bool {
    let is_attribute = |line: &str| line == "#[test]" || line.starts_with("#[tokio::test");
    source.lines().any(|(_, line)| is_attribute(line.trim()))
}

/// Cargo links a program of unit tests for each library and binary, even one of no tests, unless `test = false`.
#[test]
fn libraries_and_binaries_have_programs_of_unit_tests_if_they_have_any() {
    let metadata = metadata();
    let root = root().canonicalize().unwrap();
    let sources = sources();
    // `None` for a path outside of the tree.
    let relative = |target: &Value| {
        let path = Path::new(target["src_path"].as_str().unwrap()).strip_prefix(&root).ok()?;
        path.to_str().map(str::to_owned)
    };
    let mut offences = Vec::new();
    for package in packages(&metadata, true) {
        let roots: Vec<_> = targets(package).filter_map(|(_, target)| relative(target)).collect();
        for (kind, target) in targets(package).filter(|(kind, _)| ["lib", "bin"].contains(kind)) {
            let Some(path) = relative(target) else { continue };
            // The modules of a binary are in its library; those of a library are all files beside its root, except the
            // roots of other targets.
            let of_library = path.strip_suffix("lib.rs").filter(|_| kind == "lib");
            let is_in = |source: &&Source| {
                let is_beside = |dir: &str| source.path.starts_with(dir) && !roots.contains(&source.path);
                source.is_rust() && (source.path == path || of_library.is_some_and(is_beside))
            };
            match (target["test"] == true, sources.iter().filter(is_in).any(has_tests)) {
                (true, false) => offences.push(format!("{path} has no tests: add `test = false`")),
                (false, true) => offences.push(format!("{path} has tests: remove `test = false`")),
                _ => {}
            }
        }
    }
    assert_none("change its Cargo.toml, under [lib] or [[bin]]", &offences);
}
