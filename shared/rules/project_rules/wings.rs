//! The wings of the workspace: the folders of its crates, and which wing may use which.
//!
//! `headstart-fuzz`, `headstart-reference` and `headstart-tests` look at all crates, and no crate uses them. They stand
//! outside of the table.

use crate::assert_none;
use crate::tree::{metadata, packages, root};
use serde_json::Value;
use std::collections::BTreeSet;

/// A wing: a folder at the root of the repository, with one folder below it for each of its crates.
pub(crate) struct Wing {
    /// The folder's name.
    pub(crate) folder: &'static str,
    /// The wings, or single crates as `wing/crate`, that its crates may use beside each other.
    uses: &'static [&'static str],
}

/// The wings. No wing lists `lab`, so no product links it; fleet and harvest do not list each other.
pub(crate) const WINGS: [Wing; 9] = [
    Wing { folder: "core", uses: &["shared"] },
    Wing { folder: "learn", uses: &["core", "shared"] },
    Wing { folder: "disk", uses: &["core", "learn", "shared"] },
    Wing { folder: "containers", uses: &["core", "learn", "disk", "shared"] },
    Wing { folder: "fleet", uses: &["core", "learn", "disk", "shared"] },
    Wing { folder: "harvest", uses: &["core", "disk/export", "shared"] },
    Wing { folder: "cli", uses: &["core", "learn", "disk", "containers", "fleet", "harvest", "shared"] },
    Wing { folder: "shared", uses: &["core"] },
    Wing {
        folder: "lab",
        uses: &["core", "learn", "disk", "fleet", "harvest", "cli/command-line", "shared"],
    },
];

/// The most lines of a wing's README: one page.
const PAGE_LINES: usize = 70;

/// The most lines of the repository's README.
const FRONT_PAGE_LINES: usize = 100;

/// The crates that look at all others and that no crate uses.
const OBSERVERS: [&str; 3] = ["shared/fuzz", "shared/reference", "shared/rules"];

/// The folder of the package whose manifest or root is `path`, from the root of the repository: `wing/crate`.
fn folder_of<'a>(metadata: &Value, path: &'a str) -> &'a str {
    let root = metadata["workspace_root"].as_str().expect("cargo metadata names the root");
    let folder = path.strip_suffix("Cargo.toml").unwrap_or(path);
    folder.strip_prefix(root).expect("a package of the workspace is below its root").trim_matches('/')
}

/// The wing that a package's folder is in, where it is directly below one.
fn wing_of(folder: &str) -> Option<&'static Wing> {
    let (wing, name) = folder.split_once('/')?;
    WINGS.iter().find(|known| known.folder == wing && !name.contains('/'))
}

/// `true` if the table allows the crate at `user` to use the crate at `used`.
fn may_use(user: &str, used: &str) -> bool {
    let (Some(from), Some(to)) = (wing_of(user), wing_of(used)) else { return false };
    let is_listed = from.folder == to.folder || from.uses.contains(&to.folder) || from.uses.contains(&used);
    !OBSERVERS.contains(&used) && (is_listed || OBSERVERS.contains(&user))
}

/// Every use of one crate of the workspace by another in what is built of it, tests and examples left out.
fn uses(metadata: &Value) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for package in packages(metadata, true) {
        let manifest = package["manifest_path"].as_str().expect("a package has a manifest");
        let dependencies = package["dependencies"].as_array().expect("cargo metadata lists dependencies");
        let linked = dependencies.iter().filter(|dependency| dependency["kind"] != "dev");
        for path in linked.filter_map(|dependency| dependency["path"].as_str()) {
            found.insert((folder_of(metadata, manifest).to_owned(), folder_of(metadata, path).to_owned()));
        }
    }
    assert!(found.len() > 50, "cargo metadata names the paths of our own dependencies: {found:?}");
    found
}

#[test]
fn every_crate_is_in_a_wing_and_every_wing_has_a_crate() {
    let metadata = metadata();
    let manifests = packages(&metadata, true).filter_map(|package| package["manifest_path"].as_str());
    let folders: Vec<_> = manifests.map(|manifest| folder_of(&metadata, manifest)).collect();
    let homeless = folders.iter().filter(|folder| wing_of(folder).is_none());
    assert_none(
        "put it into a folder of a wing",
        &homeless.map(|&folder| folder.to_owned()).collect::<Vec<_>>(),
    );
    let taken: BTreeSet<_> =
        folders.iter().filter_map(|folder| wing_of(folder)).map(|wing| wing.folder).collect();
    let empty = WINGS.iter().map(|wing| wing.folder).filter(|folder| !taken.contains(folder));
    assert_none("take it out of WINGS", &empty.map(str::to_owned).collect::<Vec<_>>());
}

#[test]
fn every_wing_has_a_page_that_names_its_crates() {
    let metadata = metadata();
    let mut offences = Vec::new();
    for wing in &WINGS {
        let page = std::fs::read_to_string(root().join(wing.folder).join("README.md")).unwrap_or_default();
        if page.lines().count() > PAGE_LINES {
            offences.push(format!("{}/README.md has more than {PAGE_LINES} lines", wing.folder));
        }
        for package in packages(&metadata, true) {
            let (name, manifest) = (package["name"].as_str(), package["manifest_path"].as_str());
            let (name, manifest) = (name.unwrap_or_default(), manifest.unwrap_or_default());
            let is_of_the_wing =
                wing_of(folder_of(&metadata, manifest)).is_some_and(|of| of.folder == wing.folder);
            if is_of_the_wing && !page.contains(&format!("| `{name}` |")) {
                offences.push(format!("{}/README.md has no row for `{name}`", wing.folder));
            }
        }
    }
    assert_none("a wing has a README of one page", &offences);
}

/// The crates that README.md lists for a wing: the last cell of the row that begins with the link to the wing's page.
fn listed<'a>(page: &'a str, wing: &str) -> BTreeSet<&'a str> {
    let start = format!("| [{wing}]({wing}/README.md) |");
    let row = page.lines().find(|line| line.starts_with(&start)).unwrap_or_default();
    let cell = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
    cell.split(',').map(str::trim).filter(|name| !name.is_empty()).collect()
}

#[test]
fn the_front_page_lists_the_crates_of_each_wing() {
    let metadata = metadata();
    let page = std::fs::read_to_string(root().join("README.md")).unwrap();
    let manifests = packages(&metadata, true).filter_map(|package| package["manifest_path"].as_str());
    let folders: Vec<_> = manifests.map(|manifest| folder_of(&metadata, manifest)).collect();
    let mut offences = Vec::new();
    for wing in &WINGS {
        let in_wing = folders.iter().filter_map(|folder| folder.split_once('/'));
        let there: BTreeSet<_> = in_wing.filter(|(of, _)| *of == wing.folder).map(|(_, name)| name).collect();
        let named = listed(&page, wing.folder);
        if named != there {
            offences.push(format!("{}: README.md lists {named:?}, there are {there:?}", wing.folder));
        }
    }
    assert_none("list in README.md the crates that are there", &offences);
}

#[test]
fn the_front_page_is_read_at_one_go() {
    let page = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(page.lines().count() <= FRONT_PAGE_LINES, "README.md has more than {FRONT_PAGE_LINES} lines");
}

#[test]
fn a_row_of_the_front_page_is_read() {
    let page = "| wing | crates |\n| [core](core/README.md) | formats, and more | block, hash-tree |\n";
    assert_eq!(listed(page, "core"), BTreeSet::from(["block", "hash-tree"]));
    assert_eq!(listed(page, "disk"), BTreeSet::new());
}

#[test]
fn a_crate_uses_only_the_wings_that_its_own_may_use() {
    let uses = uses(&metadata());
    let forbidden = uses.iter().filter(|(user, used)| !may_use(user, used));
    let offences: Vec<_> = forbidden.map(|(user, used)| format!("{user} uses {used}")).collect();
    assert_none("move the shared part to a wing that both may use", &offences);
}

#[test]
fn a_wing_uses_what_the_table_lists_and_nothing_else() {
    for (user, used) in [
        ("core/image", "core/lsmt"),
        ("disk/preload", "learn/plan"),
        ("harvest/harvestd", "disk/export"),
        ("lab/sim", "lab/plot"),
        ("shared/fuzz", "fleet/agentd"),
        ("lab/sim", "disk/replay"),
        ("lab/sim", "cli/command-line"),
    ] {
        assert!(may_use(user, used), "{user} may use {used}");
    }
    for (user, used) in [
        ("core/image", "disk/cache"),
        ("core/image", "containers/tar"),
        ("harvest/harvestd", "disk/disk"),
        ("harvest/harvestd", "fleet/swarm"),
        ("fleet/agentd", "harvest/harvestd"),
        ("cli/headstart", "lab/sim"),
        ("lab/sim", "cli/headstart"),
        ("disk/disk", "shared/fuzz"),
        ("shared/testkit", "fleet/agentd"),
        ("disk/disk/part", "core/block"),
        ("elsewhere/disk", "core/block"),
    ] {
        assert!(!may_use(user, used), "{user} may not use {used}");
    }
}
