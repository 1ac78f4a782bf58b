//! The tokens of a file, reduced to its modules and to the paths that its code names.
//!
//! Tokens and not a syntax tree: a tree ends at each macro call, and this code names paths inside `assert!`, `select!`
//! and `macro_rules!` as anywhere else. Comments and strings are no tokens of code, so that nothing in them counts.
//! Items of `#[cfg(test)]` are left out.

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

/// Words before the name of an item that they define.
const DEFINING: [&str; 8] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static"];
/// First words of items that end with a semicolon, whatever braces they have before it.
const ENDED_BY_SEMICOLON: [&str; 5] = ["use", "const", "static", "type", "let"];
/// First words of items that end with a block or, where they have none, with a semicolon.
const ENDED_BY_BLOCK: [&str; 10] =
    ["fn", "mod", "struct", "enum", "union", "trait", "impl", "unsafe", "async", "extern"];

/// A path as the code has it, `crate::peers::Core`.
pub(super) struct Written {
    pub(super) line: usize,
    pub(super) segments: Vec<String>,
}

/// One name of a `use` declaration, or its `*`.
pub(super) struct Import {
    pub(super) path: Written,
    /// The name that the module has for it; `None` for `*`.
    pub(super) name: Option<String>,
}

/// A module that another one declares.
pub(super) struct Child {
    pub(super) name: String,
    /// The contents between the braces; `None` if a file has them.
    pub(super) inline: Option<Contents>,
}

/// The declarations and paths of one module.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) imports: Vec<Import>,
    /// Paths of two segments and more outside of `use`.
    pub(super) paths: Vec<Written>,
    /// Words that stand alone, each with its first line: names that `use ...::*` may have brought.
    pub(super) words: BTreeMap<String, usize>,
    pub(super) definitions: BTreeSet<String>,
    pub(super) children: Vec<Child>,
}

impl Contents {
    /// The contents of a file, or the reason why it is not Rust.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let tokens: TokenStream = text.parse().map_err(|error| format!("{error}"))?;
        Ok(Self::of(tokens))
    }

    fn of(tokens: TokenStream) -> Self {
        let mut contents = Self::default();
        contents.read(tokens);
        contents
    }

    fn read(&mut self, tokens: TokenStream) {
        let tokens = without_tests(&tokens.into_iter().collect::<Vec<_>>());
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at = match token {
                TokenTree::Ident(_) => self.read_word(&tokens, at),
                TokenTree::Group(group) => {
                    self.read(group.stream());
                    at + 1
                }
                _ => at + 1,
            };
        }
    }

    /// Enters the declaration or path that begins at the word at `at`. Returns the index behind it.
    fn read_word(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let word = word_at(tokens, at).unwrap_or_default();
        let next = word_at(tokens, at + 1);
        // `use<'a>` in a type captures lifetimes, and imports nothing.
        if word == "use" && !is_punct(tokens, at + 1, '<') {
            let end = position(tokens, at, ';');
            self.read_imports(&tokens[at + 1..end], &[]);
            return end + 1;
        }
        if let ("mod", Some(name)) = (word.as_str(), &next) {
            let inline = match tokens.get(at + 2) {
                Some(TokenTree::Group(block)) => Some(Self::of(block.stream())),
                _ => None,
            };
            self.children.push(Child { name: name.clone(), inline });
            return at + 3;
        }
        if word == "macro_rules" {
            self.definitions.extend(word_at(tokens, at + 2));
        } else if DEFINING.contains(&word.as_str()) {
            self.definitions.extend(next);
        }
        self.read_path(tokens, at, word)
    }

    /// Enters the path that begins with `first` at `at`. Returns the index behind it.
    fn read_path(&mut self, tokens: &[TokenTree], at: usize, first: String) -> usize {
        let line = tokens[at].span().start().line;
        let mut segments = vec![first];
        let mut end = at + 1;
        while is_colons(tokens, end)
            && let Some(segment) = word_at(tokens, end + 2)
        {
            segments.push(segment);
            end += 3;
        }
        // What follows `>::` belongs to that type, what follows a first `::` to another crate, and a dot to a value.
        let is_continued = at >= 2 && is_colons(tokens, at - 2) || at >= 1 && is_punct(tokens, at - 1, '.');
        match segments.len() {
            _ if is_continued => {}
            1 => _ = self.words.entry(segments.remove(0)).or_insert(line),
            _ => self.paths.push(Written { line, segments }),
        }
        end
    }

    /// Enters the names that a `use` declaration, or the braces of one, brings from below `prefix`.
    fn read_imports(&mut self, tokens: &[TokenTree], prefix: &[String]) {
        for part in tokens.split(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',')) {
            let is_of_another_crate = prefix.is_empty() && is_colons(part, 0);
            if !part.is_empty() && !is_of_another_crate {
                self.read_import(part, prefix.to_vec());
            }
        }
    }

    fn read_import(&mut self, part: &[TokenTree], mut segments: Vec<String>) {
        let mut alias = None;
        let mut is_glob = false;
        for (at, token) in part.iter().enumerate() {
            match token {
                TokenTree::Group(group) => {
                    let inner: Vec<_> = group.stream().into_iter().collect();
                    return self.read_imports(&inner, &segments);
                }
                TokenTree::Ident(ident) if ident == "as" => {
                    alias = word_at(part, at + 1);
                    break;
                }
                TokenTree::Ident(ident) => segments.push(ident.to_string()),
                TokenTree::Punct(punct) => is_glob |= punct.as_char() == '*',
                TokenTree::Literal(_) => {}
            }
        }
        if segments.len() > 1 && segments.last().is_some_and(|last| last == "self") {
            segments.pop();
        }
        let name = if is_glob { None } else { alias.or_else(|| segments.last().cloned()) };
        let line = part[0].span().start().line;
        self.imports.push(Import { path: Written { line, segments }, name });
    }
}

/// The tokens without those that only a test build has.
pub(crate) fn without_tests(tokens: &[TokenTree]) -> Vec<TokenTree> {
    let mut kept = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let is_inner = is_punct(tokens, at + 1, '!');
        if is_punct(tokens, at, '#')
            && let Some(TokenTree::Group(attribute)) = tokens.get(at + 1 + usize::from(is_inner))
            && is_for_tests(attribute)
        {
            if is_inner {
                return Vec::new();
            }
            at = end_of_item(tokens, at + 2);
        } else {
            kept.push(token.clone());
            at += 1;
        }
    }
    kept
}

/// `true` for `cfg(test)`, and for `cfg(all(test, ...))`.
fn is_for_tests(attribute: &Group) -> bool {
    let tokens: Vec<_> = attribute.stream().into_iter().collect();
    let [TokenTree::Ident(name), TokenTree::Group(condition)] = tokens.as_slice() else { return false };
    let condition: Vec<_> = condition.stream().into_iter().collect();
    let needs_test = match condition.as_slice() {
        [TokenTree::Ident(only)] => only == "test",
        [TokenTree::Ident(all), TokenTree::Group(terms)] if all == "all" => {
            let terms: Vec<_> = terms.stream().into_iter().collect();
            terms
                .split(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ','))
                .any(|term| matches!(term, [TokenTree::Ident(term)] if term == "test"))
        }
        _ => false,
    };
    name == "cfg" && needs_test
}

/// The index behind the item, field or arm that begins at `at`, further attributes included.
fn end_of_item(tokens: &[TokenTree], mut at: usize) -> usize {
    while is_punct(tokens, at, '#') {
        at += 2;
    }
    if word_at(tokens, at).is_some_and(|word| word == "pub") {
        let is_restricted = matches!(tokens.get(at + 1), Some(TokenTree::Group(_)));
        at += 1 + usize::from(is_restricted);
    }
    let word = word_at(tokens, at).unwrap_or_default();
    let next = word_at(tokens, at + 1).unwrap_or_default();
    let is_const_function = word == "const" && ENDED_BY_BLOCK.contains(&next.as_str());
    let is_macro_call = is_punct(tokens, at + 1, '!');
    if ENDED_BY_SEMICOLON.contains(&word.as_str()) && !is_const_function {
        return position(tokens, at, ';') + 1;
    }
    let is_item = ENDED_BY_BLOCK.contains(&word.as_str()) || is_const_function || is_macro_call;
    let mut depth = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            TokenTree::Group(group)
                if group.delimiter() == Delimiter::Brace && (is_item || word.is_empty()) =>
            {
                break;
            }
            TokenTree::Punct(punct) => match punct.as_char() {
                ';' => break,
                ',' if !is_item && depth == 0 => break,
                '<' => depth += 1,
                // Arrows have such a sign, too.
                '>' if !(is_punct(tokens, at - 2, '-') || is_punct(tokens, at - 2, '=')) => depth -= 1,
                _ => {}
            },
            _ => {}
        }
    }
    at
}

fn word_at(tokens: &[TokenTree], at: usize) -> Option<String> {
    match tokens.get(at)? {
        TokenTree::Ident(ident) => Some(ident.to_string()),
        _ => None,
    }
}

fn is_punct(tokens: &[TokenTree], at: usize, sign: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

/// `true` where `::` is at `at`.
fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    let joins = |punct: &proc_macro2::Punct| punct.as_char() == ':' && punct.spacing() == Spacing::Joint;
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if joins(punct)) && is_punct(tokens, at + 1, ':')
}

/// The index of the next `sign` at or after `at`, or the number of tokens.
fn position(tokens: &[TokenTree], at: usize, sign: char) -> usize {
    (at..tokens.len()).find(|&index| is_punct(tokens, index, sign)).unwrap_or(tokens.len())
}
