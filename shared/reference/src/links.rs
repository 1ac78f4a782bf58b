//! Dead links in Markdown: to files that are not there, and to headings that a file does not have.
//!
//! The checks of the project's rules (`shared/rules`) use this file too, for the documents in the repository.

use std::collections::{BTreeMap, BTreeSet};

/// A link in a Markdown document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentLink<'a> {
    /// The number of the line with the link, from 1.
    pub line: usize,
    /// The target as it is written in the document: `../x.md#part`.
    pub target: &'a str,
}

/// Returns the links and images of a Markdown document, `[text](target)`, outside of fenced blocks and inline
/// code.
#[must_use]
pub fn links(text: &str) -> Vec<DocumentLink<'_>> {
    let mut found = Vec::new();
    for (number, line) in outside_of_blocks(text) {
        let mut rest = line;
        while let Some((before, after)) = rest.split_once("](") {
            // An odd number of backticks before it: it is in code.
            let start = line.len() - rest.len() + before.len();
            let is_code = line[..start].matches('`').count() % 2 == 1;
            let target = after.split([')', ' ']).next().unwrap_or_default();
            if !is_code && !target.is_empty() {
                found.push(DocumentLink { line: number, target });
            }
            rest = after;
        }
    }
    found
}

/// The lines of a document with their numbers, from 1, without those of fenced blocks.
fn outside_of_blocks(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_block = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        (!in_block && !is_fence).then_some((index + 1, line))
    })
}

/// Returns the anchors of the headings of a Markdown document, as links name them: lower-case letters,
/// digits, `-` and `_`. A repeated heading gets a number at its end.
#[must_use]
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let is_heading = |line: &&str| line.starts_with('#') && line.trim_start_matches('#').starts_with(' ');
    for line in outside_of_blocks(text).map(|(_, line)| line).filter(is_heading) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let spaced = title.chars().filter_map(|character| match character {
            ' ' => Some('-'),
            '-' | '_' => Some(character),
            _ => character.is_alphanumeric().then_some(character),
        });
        let name: String = spaced.collect();
        let time = times.entry(name.clone()).and_modify(|times| *times += 1).or_default();
        found.insert(if *time == 0 { name } else { format!("{name}-{time}") });
    }
    found
}

/// `true` if the target is a URL (`http:`, `https:` or `mailto:`), and not a file of the repository. [`dead`] does
/// not check such links.
#[must_use]
pub fn is_elsewhere(target: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
}

/// Returns the path of the file that the relative link `target` in the document at `path` names. The returned path and
/// `path` are relative to the root of the repository. The caller must have cut `#part` off the end of `target`;
/// otherwise it becomes a part of the path. The file need not exist. `None` if the link leads out of the repository.
#[must_use]
pub fn resolved(path: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Returns a message for each dead link of the document `text`, whose path is `path`: the file or the heading
/// that the link names does not exist. URLs and targets for which `is_skipped` is `true` are not checked.
/// `read` returns the text of the file at a path: `None` if there is no such file, an empty text if the file
/// is not text.
pub fn dead(
    path: &str,
    text: &str,
    is_skipped: impl Fn(&str) -> bool,
    read: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut offences = Vec::new();
    let is_checked = |link: &DocumentLink<'_>| !is_elsewhere(link.target) && !is_skipped(link.target);
    for DocumentLink { line, target } in links(text).into_iter().filter(is_checked) {
        let (file, part) = target.split_once('#').map_or((target, None), |(file, part)| (file, Some(part)));
        let document = if file.is_empty() {
            Some(text.to_owned())
        } else {
            resolved(path, file).and_then(|to| read(&to))
        };
        match (document, part) {
            (None, _) => offences.push(format!("{path}:{line}: {target} is not there")),
            (Some(document), Some(part)) if !anchors(&document).contains(part) => {
                offences.push(format!("{path}:{line}: {target} names no heading"));
            }
            _ => {}
        }
    }
    offences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_code_and_blocks_do_not_count() {
        let text = "[a](b.md) `[c](d)` ![e](f.svg \"t\")\n```\n[g](h)\n```\n[i](#j)\n";
        let targets: Vec<_> = links(text).into_iter().map(|link| (link.line, link.target)).collect();
        assert_eq!(targets, [(1, "b.md"), (1, "f.svg"), (5, "#j")]);
    }

    #[test]
    fn headings_are_named_as_links_name_them() {
        let text = "# A `b`: C!\n## A_b-c\n```\n# no\n```\n## A_b-c\n#no\n";
        let expected = ["a-b-c", "a_b-c", "a_b-c-1"].map(str::to_owned);
        assert_eq!(anchors(text), expected.into_iter().collect());
    }

    #[test]
    fn dead_links_are_named_with_their_place() {
        let read = |path: &str| (path == "x/there.md").then(|| "# One\n".to_owned());
        let text = "[a](there.md) [b](there.md#one) [c](../x/there.md#two)\n\
                    [d](gone.md) [e](#f) [g](https://h) [i](../../j)";
        let expected = [
            "x/me.md:1: ../x/there.md#two names no heading",
            "x/me.md:2: gone.md is not there",
            "x/me.md:2: #f names no heading",
            "x/me.md:2: ../../j is not there",
        ];
        assert_eq!(dead("x/me.md", text, |_| false, read), expected);
        let is_skipped = |target: &str| target.contains("there.md");
        assert_eq!(dead("x/me.md", text, is_skipped, read), expected[1..]);
    }
}
