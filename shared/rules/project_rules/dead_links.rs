//! The links of documents lead to files and headings that are there.

use crate::assert_none;
use crate::tree::{root, sources};

#[path = "../../reference/src/links.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the generator of the site uses all of it, from outside of its crate"
)]
mod links;

/// The folder of the generated pages of the site. The tests of `headstart-reference` check links to them.
const GENERATED: &str = "docs/reference/";

/// The folder of templates, whose text is a page of another folder.
const TEMPLATES: &str = "benches/";

#[test]
fn links_of_documents_lead_somewhere() {
    let read = |path: &str| {
        let file = root().join(path);
        // A directory and a picture have no text, and no heading.
        file.exists().then(|| std::fs::read_to_string(file).unwrap_or_default())
    };
    let mut offences = Vec::new();
    for document in sources().iter().filter(|source| source.path.ends_with(".md")) {
        if document.path.starts_with(TEMPLATES) {
            continue;
        }
        let is_generated = |target: &str| {
            links::resolved(&document.path, target).is_some_and(|path| path.starts_with(GENERATED))
        };
        offences.extend(links::dead(&document.path, &document.text, is_generated, read));
    }
    assert_none("mend the link, or take it out", &offences);
}
