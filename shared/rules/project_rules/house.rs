//! The house: which crate may use which, and whether what is said of it is true.

use crate::assert_none;
use crate::tree::{metadata, packages, root, sources};
use crate::wings::WINGS;
use serde_json::Value;

/// The rows of the house, from the bottom: a crate uses crates of lower rows only.
///
/// The rows of the design, parts to come included, so that a new crate finds its place here.
const ROWS: &[&[&str]] = &[
    &["headstart-block", "headstart-sigbus", "headstart-telemetry"],
    &[
        "headstart-daemon",
        "headstart-file-blocks",
        "headstart-flash",
        "headstart-forecast",
        "headstart-hash-tree",
        "headstart-lsmt",
        "headstart-plot",
        "headstart-store",
        "headstart-tar",
        // For tests only, of every crate.
        "headstart-testkit",
        "headstart-trace",
        "headstart-turbo",
        "headstart-zfile",
    ],
    &[
        "headstart-broker",
        "headstart-container-source",
        "headstart-erofs",
        "headstart-ext4",
        "headstart-image",
        "headstart-plan",
    ],
    &["headstart-convert", "headstart-predictors", "headstart-pull", "headstart-swarm", "headstart-train"],
    &["headstart-cache", "headstart-preload"],
    &["headstart-disk", "headstart-export", "headstart-replay", "headstart-snapshotter"],
    &[
        "headstart-diskd",
        "headstart-doctor",
        "headstart-harvestd",
        "headstart-image-trees",
        "headstart-peer-net",
        "headstart-sim",
    ],
    &["headstart-command-line", "headstart-range-proxy"],
    &["headstart-agentd", "headstart-control"],
    &["headstart", "headstart-lab"],
];

/// The crates beside the house: they look at all of it, and nothing uses them.
const OBSERVERS: [&str; 3] = ["headstart-fuzz", "headstart-reference", "headstart-tests"];

/// The folders beside the wings whose files the documents name by their paths.
const OTHER_FOLDERS: [&str; 4] = ["benches", "deploy", "scripts", "tests"];

fn name_of(package: &Value) -> &str {
    package["name"].as_str().expect("a package has a name")
}

/// The number of the row that a crate stands in, from 0 at the bottom.
fn row_of(name: &str) -> Option<usize> {
    let of_observers = OBSERVERS.contains(&name).then_some(ROWS.len());
    ROWS.iter().position(|row| row.contains(&name)).or(of_observers)
}

#[test]
fn every_crate_has_its_row() {
    let metadata = metadata();
    let homeless = packages(&metadata, true).map(name_of).filter(|name| row_of(name).is_none());
    assert_none("give it a row in ROWS", &homeless.map(str::to_owned).collect::<Vec<_>>());
}

#[test]
fn a_crate_uses_crates_of_lower_rows_only() {
    let metadata = metadata();
    let mut offences = Vec::new();
    for package in packages(&metadata, true) {
        let row = row_of(name_of(package));
        for dependency in package["dependencies"].as_array().expect("cargo metadata lists dependencies") {
            let Some(other) = row_of(name_of(dependency)) else { continue };
            // Tests may look sideways, to check one crate against its neighbour, but not up.
            let in_tests_only = dependency["kind"] == "dev";
            if row.is_some_and(|row| other > row || (other == row && !in_tests_only)) {
                offences.push(format!("{} uses {}", name_of(package), name_of(dependency)));
            }
        }
    }
    assert_none("move the shared part down a row", &offences);
}

#[test]
fn every_rust_file_says_first_what_it_is() {
    let silent = sources().into_iter().filter(|source| {
        // A test file beside its module is that module's.
        source.is_rust() && source.stem() != "tests" && !source.text.starts_with("//! ")
    });
    assert_none("open with //! and one line", &silent.map(|source| source.path).collect::<Vec<_>>());
}

#[test]
fn the_root_of_a_module_is_beside_its_folder() {
    let inside = sources().into_iter().filter(|source| source.is_rust() && source.stem() == "mod");
    let offences: Vec<_> = inside.map(|source| source.path).collect();
    assert_none(
        "rename x/mod.rs to x.rs; what several test programs share is tests/support/x.rs, with a #[path]",
        &offences,
    );
}

#[test]
fn every_crate_is_drawn_in_the_architecture() {
    let drawing = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let metadata = metadata();
    let missing =
        packages(&metadata, true).map(name_of).filter(|name| !drawing.contains(&format!("`{name}`")));
    assert_none("draw it in ARCHITECTURE.md", &missing.map(str::to_owned).collect::<Vec<_>>());
}

/// Documentation that names a file in backticks, `core/...` and the like, must name one that is there.
#[test]
fn files_that_the_documents_name_exist() {
    let folders: Vec<_> = WINGS.iter().map(|wing| wing.folder).chain(OTHER_FOLDERS).collect();
    let is_a_path = |word: &str| word.split_once('/').is_some_and(|(folder, _)| folders.contains(&folder));
    let mut offences = Vec::new();
    for document in sources().iter().filter(|source| source.path.ends_with(".md")) {
        for (number, line) in document.lines() {
            let named = line.split('`').skip(1).step_by(2);
            let paths = named.filter(|word| {
                is_a_path(word) && !word.contains(['*', ' ', '<']) && !word.chars().any(char::is_uppercase)
            });
            for path in paths.filter(|path| !root().join(path).exists()) {
                offences.push(format!("{}:{number}: {path}", document.path));
            }
        }
    }
    assert_none("these files are not there", &offences);
}
