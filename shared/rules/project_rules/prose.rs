//! The language of comments and documents: what a machine can see of plain English.
//!
//! * A doc comment opens with a noun phrase or with a verb in the third person: never with a question word, never with
//!   a pronoun.
//! * A host, a program or a caller is "it", or is named again. Words for persons are for people. That holds for the
//!   documents, too, except for what stands between their fences.

use crate::assert_none;
use crate::tree::sources;

/// Words that no doc comment opens with.
const OPENERS: [&str; 18] = [
    "what",
    "who",
    "whom",
    "whose",
    "whether",
    "how",
    "where",
    "when",
    "why",
    "whoever",
    "whatever",
    "whichever",
    "it",
    "they",
    "them",
    "he",
    "she",
    "we",
];

/// Words for persons, which comments and documents use of people only.
const PERSONS: [&str; 11] =
    ["he", "him", "his", "himself", "who", "whom", "whoever", "somebody", "someone", "nobody", "everybody"];

/// People: "who" may follow these.
const PEOPLE: [&str; 10] =
    ["anyone", "author", "authors", "operator", "operators", "people", "person", "reader", "user", "users"];

/// The offences of the comments and documents.
#[derive(Default)]
struct Offences {
    openers: Vec<String>,
    persons: Vec<String>,
}

/// The marks of a comment and its text: `///`, `//!` or `//`; `None` for a line of code.
fn comment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let mark = ["///", "//!", "//"].into_iter().find(|mark| line.starts_with(mark))?;
    let text = line.get(mark.len()..)?;
    (!text.starts_with('/')).then_some((mark, text))
}

/// The words of a text in lower case, without what is code: the parts in backticks.
fn words(text: &str) -> impl Iterator<Item = String> {
    let prose = text.split('`').step_by(2);
    let words = prose.flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '\''));
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// The first word of a doc comment, if it is one that none opens with.
fn banned_opener(text: &str) -> Option<String> {
    let text = text.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '`' && c != '[');
    let first = if text.starts_with(['`', '[']) { None } else { words(text).next() };
    first.filter(|word| OPENERS.contains(&word.as_str()))
}

/// The words for persons in a comment, without those for people; `before` is the last word of the line before.
fn persons(before: &mut String, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for word in words(text) {
        if PERSONS.contains(&word.as_str()) && !(word == "who" && PEOPLE.contains(&before.as_str())) {
            found.push(word.clone());
        }
        *before = word;
    }
    found
}

/// The offences in a file of Rust.
fn look(path: &str, lines: &[&str], offences: &mut Offences) {
    let (mut last_mark, mut before) = ("", String::new());
    for (number, line) in (1..).zip(lines) {
        let Some((mark, text)) = comment(line) else {
            (last_mark, before) = ("", String::new());
            continue;
        };
        if mark != last_mark {
            before.clear();
            if let Some(word) = banned_opener(text).filter(|_| mark != "//") {
                offences.openers.push(format!("{path}:{number}: opens with `{word}`"));
            }
        }
        let found = persons(&mut before, text);
        offences.persons.extend(found.iter().map(|word| format!("{path}:{number}: `{word}`")));
        last_mark = mark;
    }
}

/// The words for persons in a document.
fn look_in_document(path: &str, lines: &[&str], offences: &mut Offences) {
    let (mut is_fenced, mut before) = (false, String::new());
    for (number, line) in (1..).zip(lines) {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
            before.clear();
        } else if !is_fenced {
            let found = persons(&mut before, line);
            offences.persons.extend(found.iter().map(|word| format!("{path}:{number}: `{word}`")));
        }
    }
}

#[test]
fn comments_open_with_what_a_thing_is_and_call_no_machine_a_person() {
    let mut offences = Offences::default();
    for source in sources().iter().filter(|source| source.is_rust()) {
        let lines: Vec<_> = source.text.lines().collect();
        look(&source.path, &lines, &mut offences);
    }
    assert_none("open with a noun phrase or a verb", &offences.openers);
    assert_none("a host is \"it\"", &offences.persons);
}

#[test]
fn documents_call_no_machine_a_person() {
    let mut offences = Offences::default();
    for source in sources().iter().filter(|source| source.path.ends_with(".md")) {
        let lines: Vec<_> = source.text.lines().collect();
        look_in_document(&source.path, &lines, &mut offences);
    }
    assert_none("a host is \"it\"", &offences.persons);
}

#[test]
fn a_document_is_read_without_its_code() {
    let text = "A user\nwho asks\n\n```\nsomebody\n```\n`him`, and who waits\n";
    let lines: Vec<_> = text.lines().collect();
    let mut found = Offences::default();
    look_in_document("f", &lines, &mut found);
    assert_eq!(found.persons, ["f:7: `who`"]);
}

#[test]
fn offences_are_told_from_plain_comments() {
    // In halves, so that this file does not offend.
    let text = concat!(
        "//! Where it is.\n//! It is here.\n\n/// The place of what is stored.\nfn a() {}\n",
        "    /// Whe",
        "ther it is.\n    /// `he` is code.\n/// * How it goes.\n/// `what` is code.\nlet h = 1;\n",
        "// Users w",
        "ho ask\n// w",
        "ho waits, and hi",
        "mself\n//// none\n",
    );
    let lines: Vec<_> = text.lines().collect();
    let mut found = Offences::default();
    look("f", &lines, &mut found);
    assert_eq!(found.openers, ["f:1: opens with `where`", "f:6: opens with `whether`"]);
    let expected = [("who", 12), ("himself", 12)].map(|(word, line)| format!("f:{line}: `{word}`"));
    assert_eq!(found.persons, expected);
}
