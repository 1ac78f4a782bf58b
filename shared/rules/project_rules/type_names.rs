//! No type name is defined publicly in two crates.
//!
//! A reader who meets a name in a signature, in an error or in the search of the documentation knows then which type it
//! is. A type that needs a common word has what it is of before it: `StoreSettings`, `FetchState`.
//!
//! A definition is a line of a crate's `src` that opens with `pub struct`, `pub enum`, `pub union`, `pub trait` or
//! `pub type`: rustfmt puts each on a line of its own. Whether the crate's root exports it does not matter, because a
//! reader of the code meets it too. Tests are left out: folders and modules named `tests`, modules behind
//! `#[cfg(test)]`, in the same file or in files of their own.

use crate::assert_none;
use crate::tree::{Source, sources};
use std::collections::{BTreeMap, BTreeSet};

/// Names that several crates may define, with the reasons.
const ALLOWED: &[(&str, &str)] = &[(
    "Result",
    "the alias of a crate's own error, as in std::io: code names the crate with it or imports one",
)];

/// Words that begin a definition of a type, after `pub`.
const DEFINING: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// The folder of the crate whose `src` a file is in; `None` for other files.
fn crate_of(path: &str) -> Option<&str> {
    path.split_once("/src/").map(|(folder, _)| folder)
}

/// `true` for a file that is a test by its name.
pub(crate) fn is_test(path: &str) -> bool {
    path.strip_suffix(".rs").is_some_and(|path| path.split('/').any(|part| part == "tests"))
}

/// The type that a line defines publicly.
fn defined(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let (word, rest) = rest.strip_prefix("unsafe ").unwrap_or(rest).split_once(' ')?;
    let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    (DEFINING.contains(&word) && !name.is_empty()).then_some(name)
}

/// The module that a line declares, and `true` if a file has its contents.
fn declared(line: &str) -> Option<(&str, bool)> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
    let rest = line.strip_prefix("mod ")?;
    rest.strip_suffix(';').map(|name| (name, true)).or(rest.strip_suffix(" {").map(|name| (name, false)))
}

/// The public types of one file, and the modules in files of their own that only tests have.
fn read(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut types, mut test_modules) = (Vec::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start() != "#[cfg(test)]" {
            types.extend(defined(line));
            continue;
        }
        let Some(item) = lines.by_ref().find(|line| !line.trim_start().starts_with("#[")) else { break };
        match declared(item) {
            Some((name, true)) => test_modules.push(name),
            // Its end is the brace under its first letter.
            Some((_, false)) => {
                let indent = item.len() - item.trim_start().len();
                let is_end = |line: &str| line.trim_start() == "}" && line.len() == indent + 1;
                let _ = lines.by_ref().find(|line| is_end(line));
            }
            None => {}
        }
    }
    (types, test_modules)
}

/// The path of a module in a file of its own, without its ending; its children's begin with it and a slash.
fn path_of_child(parent: &str, name: &str) -> String {
    let parent = parent.strip_suffix(".rs").unwrap_or(parent);
    let is_root = parent.ends_with("/src/lib") || parent.ends_with("/src/main");
    let folder = if is_root { parent.rsplit_once('/').map_or(parent, |(folder, _)| folder) } else { parent };
    format!("{folder}/{name}")
}

/// `true` if `path`, without its ending, is the module `module` or below it.
fn is_in(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// For each public type name, the folders of the crates that define it.
fn definitions(sources: &[Source]) -> BTreeMap<&str, BTreeSet<&str>> {
    let (mut types, mut tests) = (Vec::new(), BTreeSet::new());
    for source in sources.iter().filter(|source| source.is_rust() && !is_test(&source.path)) {
        if let Some(folder) = crate_of(&source.path) {
            let (of_file, test_modules) = read(&source.text);
            types.extend(of_file.into_iter().map(|name| (name, folder, source.path.as_str())));
            tests.extend(test_modules.into_iter().map(|name| path_of_child(&source.path, name)));
        }
    }
    let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (name, folder, path) in types {
        let path = path.strip_suffix(".rs").unwrap_or(path);
        if !tests.iter().any(|test| is_in(path, test)) {
            found.entry(name).or_default().insert(folder);
        }
    }
    found
}

#[test]
fn no_type_name_is_defined_publicly_in_two_crates() {
    let sources = sources();
    let mut found = definitions(&sources);
    found.retain(|name, folders| folders.len() > 1 && !ALLOWED.iter().any(|(allowed, _)| allowed == name));
    let found: Vec<_> = found.iter().map(|(name, folders)| format!("{name}: {folders:?}")).collect();
    assert_none("put what it is of before it, or use the one that is there", &found);
}

#[test]
fn definitions_are_told_from_other_lines_and_tests_are_left_out() {
    let text = "pub struct A<T>(T);\npub(crate) struct No;\n    pub unsafe trait B {}\n\
                /// pub struct No;\npub type C = u8;\n\
                #[cfg(test)]\nmod inline {\n    pub struct No {\n    }\n}\npub enum D {}\n\
                #[cfg(test)]\npub(crate) mod testing;\n#[cfg(test)]\npub const NO: u8 = 0;\npub fn e() {}\n";
    assert_eq!(read(text), (vec!["A", "B", "C", "D"], vec!["testing"]));

    let file = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
    let sources = [
        file("a/b/src/lib.rs", "pub struct One;\n#[cfg(test)]\nmod kit;\nmod tests;\n"),
        file("a/b/src/kit.rs", "pub struct Two;\n"),
        file("a/b/src/kit/more.rs", "pub struct Three;\n"),
        file("a/b/src/tests.rs", "pub struct Four;\n"),
        file("a/b/tests/whole.rs", "pub struct Five;\n"),
        file("a/c/src/x.rs", "pub enum One {}\n"),
    ];
    assert_eq!(definitions(&sources), BTreeMap::from([("One", BTreeSet::from(["a/b", "a/c"]))]));
}
