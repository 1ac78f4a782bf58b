//! The source of the site: the written pages of `docs/`, documents of other folders, and the generated pages.
//!
//! `docs/SUMMARY.md` is the table of contents. A line `<!-- PREFIX -->` in it is replaced by the generated pages whose
//! paths begin with PREFIX, except those that belong to another such line with a longer prefix. Links of a document are
//! rewritten for its place in the site; links to files that are not in the site, such as source code, become plain
//! text.

use crate::links::{self, is_elsewhere, resolved};
use crate::source::read;
use crate::{Result, SitePage, commands, formats, json, metrics, rest};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The folder of the written pages.
const DOCS: &str = "docs";

/// The table of contents, in the folder of the pages.
const SUMMARY: &str = "SUMMARY.md";

/// Documents outside of `docs/` that are pages of the site, with their paths there.
const DOCUMENTS: [(&str, &str); 13] = [
    ("README.md", "introduction.md"),
    ("ARCHITECTURE.md", "architecture.md"),
    ("CONTRIBUTING.md", "contributing.md"),
    ("SECURITY.md", "security.md"),
    ("CHANGELOG.md", "changelog.md"),
    ("core/README.md", "wings/core.md"),
    ("learn/README.md", "wings/learn.md"),
    ("disk/README.md", "wings/disk.md"),
    ("fleet/README.md", "wings/fleet.md"),
    ("harvest/README.md", "wings/harvest.md"),
    ("cli/README.md", "wings/cli.md"),
    ("shared/README.md", "wings/shared.md"),
    ("lab/README.md", "wings/lab.md"),
];

/// Writes the source of the documentation site, `book.toml` and `src/`, into `directory`. An existing `src/` is removed
/// first, so after an error `src/` is missing or incomplete. `root` is the repository; `recorded` is the output of
/// `scripts/make-fixtures`.
///
/// # Errors
///
/// A file cannot be read or written; a link is dead; a page is not in the table of contents.
pub fn write(root: &Path, recorded: &Path, directory: &Path) -> Result<()> {
    let source = directory.join("src");
    if source.exists() {
        fs::remove_dir_all(&source)?;
    }
    let pages = generated(root, recorded)?;
    let texts = texts(root, &pages)?;
    let offences = offences(&texts);
    if !offences.is_empty() {
        return Err(format!("the documentation has faults:\n  {}", offences.join("\n  ")).into());
    }
    for (path, text) in &texts {
        let to = source.join(path);
        fs::create_dir_all(to.parent().unwrap_or(directory))?;
        fs::write(&to, text).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    fs::copy(root.join(DOCS).join("book.toml"), directory.join("book.toml"))?;
    Ok(())
}

/// The generated pages, in their order.
fn generated(root: &Path, recorded: &Path) -> Result<Vec<SitePage>> {
    let mut pages = commands::pages();
    pages.push(metrics::page(&recorded.join("metrics"))?);
    pages.extend(rest::pages(&recorded.join("json"))?);
    pages.extend(formats::pages(root)?);
    pages.extend(json::pages(root)?);
    Ok(pages)
}

/// All files of the site by their paths: pages and pictures.
fn texts(root: &Path, generated: &[SitePage]) -> Result<BTreeMap<String, String>> {
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    let mut written = Vec::new();
    collect(&root.join(DOCS), DOCS, &mut written)?;
    for (path, place) in DOCUMENTS {
        written.push((path.to_owned(), place.to_owned()));
    }
    for (path, place) in written {
        let text = read(&root.join(&path))?;
        let text = if path.ends_with(".md") { relinked(&text, &path, &place) } else { text };
        texts.insert(place, text);
    }
    for page in generated {
        if texts.insert(page.path.clone(), page.text.clone()).is_some() {
            return Err(format!("{} is written, and generated too", page.path).into());
        }
    }
    let summary = texts.get_mut(SUMMARY).ok_or("docs/SUMMARY.md is not there")?;
    *summary = with_generated(summary, generated);
    Ok(texts)
}

/// Adds the files below `folder` of the repository, whose path is `path`, each with its path in the site.
fn collect(folder: &Path, path: &str, found: &mut Vec<(String, String)>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        let entry = entry?;
        let path = format!("{path}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            collect(&entry.path(), &path, found)?;
        } else if path.ends_with(".md") || path.ends_with(".svg") {
            let place = path[DOCS.len() + 1..].to_owned();
            found.push((path, place));
        }
    }
    Ok(())
}

/// The path in the site of a file of the repository, if it is a page or a picture there: the contents are none.
fn place_of(path: &str) -> Option<String> {
    if path == "docs/SUMMARY.md" {
        return None;
    }
    let document =
        DOCUMENTS.iter().find(|(document, _)| *document == path).map(|(_, place)| (*place).to_owned());
    document.or_else(|| path.strip_prefix(DOCS)?.strip_prefix('/').map(str::to_owned))
}

/// The text of the document at `path` in the repository with links as they are from `place` in the site.
fn relinked(text: &str, path: &str, place: &str) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for link in links::links(text).into_iter().filter(|link| !is_elsewhere(link.target)) {
        let (file, part) = link.target.split_once('#').unwrap_or((link.target, ""));
        if file.is_empty() {
            continue;
        }
        let line = &mut lines[link.line - 1];
        let written = format!("]({})", link.target);
        match resolved(path, file).as_deref().and_then(place_of) {
            Some(to) => {
                let part = if part.is_empty() { String::new() } else { format!("#{part}") };
                *line = line.replace(&written, &format!("]({}{part})", relative(place, &to)));
            }
            None => *line = unlinked(line, &written),
        }
    }
    lines.join("\n") + "\n"
}

/// `line` with `[text](target)` as plain text.
fn unlinked(line: &str, written: &str) -> String {
    let Some(end) = line.find(written) else { return line.to_owned() };
    let Some(start) = line[..end].rfind('[') else { return line.to_owned() };
    format!("{}{}{}", &line[..start], &line[start + 1..end], &line[end + written.len()..])
}

/// The link from the page `from` to the page `to`, both by their paths in the site.
fn relative(from: &str, to: &str) -> String {
    let from: Vec<_> = from.split('/').collect();
    let to: Vec<_> = to.split('/').collect();
    let folders = from.len() - 1;
    let same = (0..folders.min(to.len() - 1)).take_while(|&at| from[at] == to[at]).count();
    "../".repeat(folders - same) + &to[same..].join("/")
}

/// The table of contents with the generated pages in place of `<!-- PREFIX -->`.
fn with_generated(summary: &str, generated: &[SitePage]) -> String {
    let prefix_in = |line: &str| -> Option<String> {
        Some(line.trim().strip_prefix("<!-- ")?.strip_suffix(" -->")?.to_owned())
    };
    let prefixes: Vec<_> = summary.lines().filter_map(prefix_in).collect();
    let is_of = |page: &SitePage, prefix: &str| {
        let longest =
            prefixes.iter().filter(|prefix| page.path.starts_with(*prefix)).max_by_key(|it| it.len());
        longest.is_some_and(|longest| longest == prefix)
    };
    let mut lines = Vec::new();
    for line in summary.lines() {
        let Some(prefix) = prefix_in(line) else {
            lines.push(line.to_owned());
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let pages = generated.iter().filter(|page| is_of(page, &prefix));
        lines.extend(pages.map(|page| format!("{indent}- [{}]({})", page.title, page.path)));
    }
    lines.join("\n") + "\n"
}

/// The faults of a site: dead links, pages that are not in the table of contents, pages that are there twice.
fn offences(texts: &BTreeMap<String, String>) -> Vec<String> {
    let mut offences = Vec::new();
    let read = |path: &str| texts.get(path).cloned();
    for (path, text) in texts.iter().filter(|(path, _)| path.ends_with(".md")) {
        offences.extend(links::dead(path, text, |_| false, read));
    }
    let mut listed = BTreeSet::new();
    for link in texts.get(SUMMARY).map(|text| links::links(text)).unwrap_or_default() {
        if !listed.insert(link.target) {
            offences.push(format!("{SUMMARY}:{}: {} is there already", link.line, link.target));
        }
    }
    let is_page = |path: &&String| path.ends_with(".md") && *path != SUMMARY;
    let lacking = texts.keys().filter(is_page).filter(|path| !listed.contains(path.as_str()));
    offences.extend(lacking.map(|path| format!("{path} is not in docs/{SUMMARY}")));
    offences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_from_page_to_page_of_the_site() {
        let text = "[a](../docs/x.md#y) [b](../ARCHITECTURE.md) [c](src/lib.rs) [d](#e) [f](https://g)\n";
        let expected = "[a](../x.md#y) [b](../architecture.md) c [d](#e) [f](https://g)\n";
        assert_eq!(relinked(text, "core/README.md", "wings/core.md"), expected);
        let text = "[a](../reference/metrics.md) [b](../../SECURITY.md)\n";
        let expected = "[a](../reference/metrics.md) [b](../security.md)\n";
        assert_eq!(relinked(text, "docs/how-to/x.md", "how-to/x.md"), expected);
    }

    #[test]
    fn generated_pages_take_their_place_in_the_contents() {
        let pages = [SitePage::new("reference/a/x.md", "X", ""), SitePage::new("reference/b/y.md", "Y", "")];
        let summary = with_generated("- [R](r.md)\n  <!-- reference/a/ -->\n- [S](s.md)\n", &pages);
        assert_eq!(summary, "- [R](r.md)\n  - [X](reference/a/x.md)\n- [S](s.md)\n");
    }

    #[test]
    fn a_generated_page_is_listed_under_its_longest_prefix_only() {
        let pages = [SitePage::new("a-x.md", "X", ""), SitePage::new("a-b-y.md", "Y", "")];
        assert_eq!(
            with_generated("<!-- a- -->\n<!-- a-b- -->\n", &pages),
            "- [X](a-x.md)\n- [Y](a-b-y.md)\n"
        );
    }

    #[test]
    fn a_page_that_is_not_in_the_contents_is_a_fault() {
        let texts = [
            (SUMMARY, "[A](a.md)\n[A](a.md)\n"),
            ("a.md", "# A\n[b](c.md)\n"),
            ("b.md", "# B\n"),
            ("d.svg", ""),
        ];
        let texts = texts.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let expected = [
            "a.md:2: c.md is not there",
            "SUMMARY.md:2: a.md is there already",
            "b.md is not in docs/SUMMARY.md",
        ];
        assert_eq!(offences(&texts), expected);
    }
}
