//! No circle of imports between the modules of a crate.
//!
//! Modules in a circle can be understood, tested and moved only together: they are one module in several files.
//!
//! An import is any path that code names: in `use` and `pub use`, in an expression or a type, in a macro. It leads to
//! the module that *defines* the item: a parent that re-exports its child's item does not hide the child. Code of
//! `#[cfg(test)]` does not count.
//!
//! Modules are compared with their *siblings*: an import from `a::x` by `b::y` is an arrow from `b` to `a`, among the
//! children of the module that has both. A module that uses its child, or a child that uses an item of its parent or
//! another ancestor, makes no arrow: a child is part of its parent, and both know each other by design. So the modules
//! directly below the root are checked, then the children of each of them, at every depth.
//!
//! A macro of `macro_rules!` that reaches later modules without a path, by its place in the text, is not seen.

mod components;
mod examples;
mod modules;
pub(crate) mod parse;

use crate::assert_none;
use crate::tree::{metadata, packages, root};
use components::circles;
use modules::{Id, Modules, Use};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Modules of one parent that import each other in a circle.
struct Circle {
    /// The path of the parent; nothing for the root.
    below: String,
    modules: BTreeSet<String>,
    /// For each two of the modules of which one imports the other: their names, and one import.
    arrows: Vec<(String, String, Use)>,
}

impl Circle {
    /// The circle as a failure names it: its modules, and one import for each arrow.
    fn describe(&self, package: &str) -> String {
        let names: Vec<_> = self.modules.iter().map(String::as_str).collect();
        let root = root().canonicalize().unwrap();
        let below = if self.below.is_empty() { String::new() } else { format!(", {}", self.below) };
        let mut text = format!("{package}{below}: {}", names.join(", "));
        for (from, to, import) in &self.arrows {
            let file = import.file.strip_prefix(&root).unwrap_or(&import.file).display();
            let _ = write!(text, "\n      {from} -> {to}: {file}:{}: {}", import.line, import.path);
        }
        text
    }
}

/// All circles of a crate.
fn circles_of(modules: &Modules) -> Vec<Circle> {
    // The arrows between the children of each module, each with the first import that makes it.
    let mut levels: BTreeMap<Id, BTreeMap<(Id, Id), Use>> = BTreeMap::new();
    for import in modules.uses() {
        let (from, to) = (modules.line_of(import.from), modules.line_of(import.to));
        let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        if let (Some(&from), Some(&to)) = (from.get(shared), to.get(shared)) {
            let parent = modules.line_of(from)[shared - 1];
            levels.entry(parent).or_default().entry((from, to)).or_insert(import);
        }
    }
    let mut found = Vec::new();
    for (parent, arrows) in levels {
        for circle in circles(&arrows.keys().copied().collect()) {
            let name = |id: Id| modules.name_of(id).to_owned();
            let within = arrows.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
            found.push(Circle {
                below: modules.path_of(parent),
                modules: circle.iter().map(|&id| name(id)).collect(),
                arrows: within.map(|(&(from, to), import)| (name(from), name(to), import.clone())).collect(),
            });
        }
    }
    found
}

/// The name of each crate of the workspace with the circles of its library and programs.
fn circles_of_the_workspace() -> Vec<(String, Circle)> {
    let metadata = metadata();
    let mut found = Vec::new();
    for package in packages(&metadata, true) {
        let name = package["name"].as_str().unwrap();
        for target in package["targets"].as_array().unwrap() {
            let kind = target["kind"][0].as_str().unwrap_or_default();
            if ["lib", "bin", "proc-macro"].contains(&kind) {
                let path = Path::new(target["src_path"].as_str().unwrap());
                let modules = Modules::of(path, &|path| fs::read_to_string(path).ok());
                found.extend(circles_of(&modules).into_iter().map(|circle| (name.to_owned(), circle)));
            }
        }
    }
    found
}

#[test]
fn modules_of_a_crate_do_not_import_each_other_in_circles() {
    let found: Vec<_> =
        circles_of_the_workspace().iter().map(|(package, circle)| circle.describe(package)).collect();
    assert_none("move what both sides use down into a module that imports neither", &found);
}
