//! The licences of our dependencies: all of them must be usable in an Apache-2.0 program. And their source: one
//! registry, with a checksum for each in `Cargo.lock`.

use crate::assert_none;
use crate::tree::{metadata, packages, root};
use std::collections::BTreeSet;
use std::fs;

/// Licences that go with Apache-2.0 and ask for no more than attribution.
const ALLOWED: [&str; 14] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "NCSA",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "Zlib",
];

#[test]
fn every_dependency_may_be_used() {
    let metadata = metadata();
    let offences: Vec<_> = packages(&metadata, false)
        .map(|package| (&package["name"], package["license"].as_str().unwrap_or_default()))
        .filter(|(_, licence)| !is_allowed(licence))
        .map(|(name, licence)| format!("{name}: {licence:?}"))
        .collect();
    assert_none("find another library, or widen ALLOWED with a reason", &offences);
}

#[test]
fn every_dependency_comes_from_one_registry() {
    let metadata = metadata();
    let sources: BTreeSet<_> =
        packages(&metadata, false).filter_map(|package| package["source"].as_str()).collect();
    let others: Vec<_> = sources.iter().filter(|source| !source.starts_with("registry+")).collect();
    assert!(
        others.is_empty() && sources.len() == 1,
        "depend on published crates of one registry: {sources:?}"
    );
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let unchecked: Vec<_> = lock
        .split("[[package]]")
        .filter(|package| package.contains("source = ") && !package.contains("checksum = "))
        .map(|package| package.lines().nth(1).unwrap_or_default().to_owned())
        .collect();
    assert_none("these have no checksum in Cargo.lock", &unchecked);
}

/// `cargo deny` is told the same as this test.
#[test]
fn licences_are_the_same_for_cargo_deny() {
    let text = fs::read_to_string(root().join("deny.toml")).unwrap();
    let list = text.split("\nallow = [").nth(1).and_then(|list| list.split(']').next()).unwrap();
    let allowed: Vec<_> =
        list.split('"').skip(1).step_by(2).filter(|name| !name.contains(" WITH ")).collect();
    assert_eq!(allowed, ALLOWED);
}

/// `true` if an SPDX expression (with the old `/` for OR) can be met by [`ALLOWED`] alone.
///
/// AND binds tighter than OR; one level of parentheses is replaced by its worth until none is left.
fn is_allowed(expression: &str) -> bool {
    let mut expression = expression.replace('/', " OR ");
    while let Some(close) = expression.find(')') {
        let Some(open) = expression[..close].rfind('(') else { return false };
        let worth = if is_allowed_flat(&expression[open + 1..close]) { ALLOWED[0] } else { "unmet" };
        expression.replace_range(open..=close, worth);
    }
    is_allowed_flat(&expression)
}

fn is_allowed_flat(expression: &str) -> bool {
    // An exception only ever adds permissions to the licence before it.
    let licence = |term: &str| ALLOWED.contains(&term.split(" WITH ").next().unwrap_or_default().trim());
    expression.split(" OR ").any(|choice| choice.split(" AND ").all(licence))
}

#[test]
fn expressions_are_read_as_spdx_means_them() {
    for good in ["MIT", "MIT/Apache-2.0", "Apache-2.0 OR GPL-2.0-only", "(MIT OR Apache-2.0) AND Unicode-3.0"]
    {
        assert!(is_allowed(good), "{good}");
    }
    assert!(is_allowed("Apache-2.0 WITH LLVM-exception OR GPL-3.0"));
    for bad in ["", "GPL-3.0", "MIT AND GPL-2.0-only", "(MIT OR Apache-2.0) AND GPL-2.0-only", "MIT)"] {
        assert!(!is_allowed(bad), "{bad}");
    }
}
