//! No conversion of an integer puts another number in the place of one that does not fit.
//!
//! `try_from(..).unwrap_or(u32::MAX)` reads like care and hides a fault: the wrong number goes on. `headstart_block`'s
//! module `number` has the forms that say what is meant.
//!
//! An offence is a call of `try_from` or `try_into` that one of [`DEFAULTS`] follows, with or without `ok()` between
//! them. Code of `#[cfg(test)]` does not count, nor do folders and modules named `tests`, benchmarks and examples.

use crate::assert_none;
use crate::circles::parse::without_tests;
use crate::tree::sources;
use crate::type_names::is_test;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Methods that replace what does not fit.
const DEFAULTS: [&str; 4] = ["map_or", "unwrap_or", "unwrap_or_default", "unwrap_or_else"];

/// Files that may do so, with the reasons.
const ALLOWED: &[(&str, &str)] = &[
    ("core/block/src/number.rs", "it has the forms for all others"),
    (
        "shared/telemetry/src/histogram.rs",
        "its crate uses no other; 584 years count as the longest time there is",
    ),
];

/// The lines of a file's product code with such a conversion, from 1.
fn conversions(text: &str) -> Result<Vec<usize>, String> {
    let tokens: TokenStream = text.parse().map_err(|error| format!("{error}"))?;
    let mut lines = Vec::new();
    find(tokens, &mut lines);
    Ok(lines)
}

fn find(tokens: TokenStream, lines: &mut Vec<usize>) {
    let tokens = without_tests(&tokens.into_iter().collect::<Vec<_>>());
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => find(group.stream(), lines),
            TokenTree::Ident(word) if is_conversion(&tokens, at) => lines.push(word.span().start().line),
            _ => {}
        }
    }
}

/// `true` if a conversion begins at `at` whose failure another number replaces.
fn is_conversion(tokens: &[TokenTree], at: usize) -> bool {
    let word_at = |at: usize| match tokens.get(at) {
        Some(TokenTree::Ident(word)) => word.to_string(),
        _ => String::new(),
    };
    let is_called = |at: usize| {
        let is_list = |group: &proc_macro2::Group| group.delimiter() == Delimiter::Parenthesis;
        matches!(tokens.get(at + 1), Some(TokenTree::Group(list)) if is_list(list))
    };
    let is_dot = |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(dot)) if dot.as_char() == '.');
    if !["try_from", "try_into"].contains(&word_at(at).as_str()) || !is_called(at) || !is_dot(at + 2) {
        return false;
    }
    // Behind the word, its list and the dot, and behind the same of `ok`.
    let next = if word_at(at + 3) == "ok" && is_dot(at + 5) { at + 6 } else { at + 3 };
    // Bytes become arrays by `try_into`, whose failures have no number.
    let is_array = word_at(at) == "try_into" && word_at(next) == "map_or";
    DEFAULTS.contains(&word_at(next).as_str()) && is_called(next) && !is_array
}

#[test]
fn no_conversion_replaces_a_number_that_does_not_fit() {
    let sources = sources();
    let products = sources
        .iter()
        .filter(|source| source.is_rust() && source.path.contains("/src/") && !is_test(&source.path));
    let (mut offences, mut kept) = (Vec::new(), Vec::new());
    for source in products {
        let lines = conversions(&source.text).unwrap_or_else(|error| panic!("{}: {error}", source.path));
        if ALLOWED.iter().any(|(path, _)| *path == source.path) {
            kept.extend((!lines.is_empty()).then_some(&source.path));
        } else {
            offences.extend(lines.iter().map(|line| format!("{}:{line}", source.path)));
        }
    }
    assert_none("use a form of headstart_block's module `number`, or return an error", &offences);
    let idle = ALLOWED.iter().filter(|(path, _)| !kept.iter().any(|kept| kept == path));
    let idle: Vec<_> = idle.map(|(path, _)| (*path).to_owned()).collect();
    assert_none("these have no such conversion: take them off ALLOWED", &idle);
}

#[test]
fn such_conversions_are_told_from_others() {
    let offending = "fn f() {\n    u32::try_from(a.len()).unwrap_or(u32::MAX);\n\
                     g(u8::try_from(x)\n        .unwrap_or_default());\n\
                     let n: u16 = h![x.try_into().ok().unwrap_or_else(|| 0)];\n\
                     usize::try_from(n).map_or(7, f);\n}\n";
    assert_eq!(conversions(offending).unwrap(), [2, 3, 5, 6]);
    let others = "fn f() {\n    // u8::try_from(x).unwrap_or(0)\n    u32::try_from(n).map_err(bad)?;\n\
                  u8::try_from(n).ok()?.max(3);\n    bytes.try_into().map_or(0, u64::from_le_bytes);\n\
                  Duration::try_from_secs_f64(s).unwrap_or_default();\n    list.first().unwrap_or(&0);\n\
                  assert!(\"u8::try_from(x).unwrap_or(0)\");\n}\n\
                  #[cfg(test)]\nmod tests {\n    fn f() { u8::try_from(x).unwrap_or(0) }\n}\n";
    assert_eq!(conversions(others).unwrap(), [0_usize; 0]);
}
