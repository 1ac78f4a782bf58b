//! Rust files as sources of documentation: their paths, and the comments at their head and at their items.

use crate::Result;
use std::fs;
use std::path::{Path, PathBuf};
use syn::{Attribute, Expr, ExprLit, Lit, Meta};

/// Returns the documentation at the head of a Rust file (`//!` lines), without the comment marks; empty if
/// there is none.
#[must_use]
pub fn head(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let lines: Vec<_> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    lines.join("\n")
}

/// Returns the documentation of an item (`///` lines), which is among its `attributes`, as one line without links (as
/// by `unlinked`); empty if there is none.
#[must_use]
pub fn comment(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    unlinked(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns `text` with intra-doc links replaced by plain code: `` [`X`] `` and `` [`X`](y) `` become
/// `` `X` ``.
#[must_use]
pub fn unlinked(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        let Some((name, after)) = link.split_once("`]") else { break };
        plain.push_str(before);
        plain.push('`');
        plain.push_str(name);
        plain.push('`');
        let place = after.strip_prefix('(').and_then(|place| place.split_once(')'));
        rest = place.map_or(after, |(_, rest)| rest);
    }
    plain + rest
}

/// Returns the paths of the Rust files below `folder` that are built into the product, sorted. Files and directories
/// that are named `tests`, `benches`, `examples`, `target` or `testing` (before any ending) are left out.
///
/// # Errors
///
/// A directory cannot be read.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))? {
            let path = entry?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if matches!(stem, "tests" | "benches" | "examples" | "target" | "testing") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a file of the repository; an error names it.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()).into())
}

/// Reads a file of Rust; an error names it.
pub(crate) fn parsed(path: &Path) -> Result<syn::File> {
    syn::parse_file(&read(path)?).map_err(|e| format!("{}: {e}", path.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_with_the_first_other_line() {
        assert_eq!(head("//! A.\n//!\n//!  b\n\n//! c\n"), "A.\n\n b");
    }

    #[test]
    fn links_to_items_become_code() {
        assert_eq!(unlinked("see [`A::b`] and [`c`](d::c), [e](f)"), "see `A::b` and `c`, [e](f)");
    }

    #[test]
    fn a_comment_is_one_line() {
        let item: syn::ItemStruct = syn::parse_str("/// One\n/// two.\nstruct A;").unwrap();
        assert_eq!(comment(&item.attrs), "One two.");
    }
}
