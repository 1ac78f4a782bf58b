//! The names of code in documents are in the code.
//!
//! A name is what reads as a Rust path with a type in it: `EngineAction::Promote`. Each of its parts has to be a word
//! of some Rust file. The changelog is left out: it tells of names that are gone.

use crate::assert_none;
use crate::tree::sources;
use std::collections::HashSet;

/// The words of a text that may be identifiers.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// The paths with a type in them: parts joined by `::`, of which the first begins with a capital letter.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let candidates = line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    candidates.filter(|path| path.contains("::") && path.starts_with(|c: char| c.is_ascii_uppercase()))
}

#[test]
fn names_of_code_in_documents_are_in_the_code() {
    let sources = sources();
    let known: HashSet<&str> =
        sources.iter().filter(|source| source.is_rust()).flat_map(|source| words(&source.text)).collect();
    let documents =
        sources.iter().filter(|source| source.path.ends_with(".md") && source.path != "CHANGELOG.md");
    let mut offences = Vec::new();
    for document in documents {
        for (number, line) in document.lines() {
            let unknown = |path: &&str| words(path).any(|word| !known.contains(word));
            offences.extend(
                paths(line).filter(unknown).map(|path| format!("{}:{number}: {path}", document.path)),
            );
        }
    }
    assert_none("no Rust file has this name: say what it is called now", &offences);
}

#[test]
fn a_path_with_a_type_is_a_name_and_a_path_of_modules_is_none() {
    let line =
        "gets a priority (`EngineAction::Promote`), see `std::io::Error` and [a](b.md): `Disk::read_at`";
    assert_eq!(paths(line).collect::<Vec<_>>(), ["EngineAction::Promote", "Disk::read_at"]);
}
