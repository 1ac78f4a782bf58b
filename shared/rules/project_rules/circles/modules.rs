//! The modules of a crate, and the imports between them.

use super::parse::{Contents, Written};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The number of re-exports of re-exports that are followed: more is a name that leads to itself.
const MAX_HOPS: usize = 32;
/// The index of the crate's root in [`Modules`].
const ROOT: usize = 0;

/// A module, by its index in [`Modules`].
pub(super) type Id = usize;

struct Module {
    name: String,
    /// The module that declares it; the root is its own.
    parent: Id,
    file: PathBuf,
    contents: Contents,
    children: BTreeMap<String, Id>,
}

/// The modules of a crate; the root is the first.
pub(super) struct Modules(Vec<Module>);

/// The use of an item of one module by another.
#[derive(Clone)]
pub(super) struct Use {
    pub(super) from: Id,
    /// The module that defines the item, whatever modules re-export it.
    pub(super) to: Id,
    pub(super) file: PathBuf,
    pub(super) line: usize,
    pub(super) path: String,
}

/// The meaning of a name.
enum Meaning {
    Module(Id),
    /// An item of this module.
    ItemOf(Id),
}

impl Modules {
    /// The modules of the crate whose root is the file `root`, read by `read`.
    pub(super) fn of(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Self {
        let mut modules = Self(Vec::new());
        let contents = parsed(root, &read(root).expect("the root of a crate can be read"));
        let directory = root.parent().unwrap_or(Path::new(""));
        modules.add(ROOT, "crate".to_owned(), contents, (root, directory), read);
        modules
    }

    /// Adds a module and all below it. Files of its children are in `directory`.
    fn add(
        &mut self,
        parent: Id,
        name: String,
        mut contents: Contents,
        (file, directory): (&Path, &Path),
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Id {
        let id = self.0.len();
        let declared = std::mem::take(&mut contents.children);
        self.0.push(Module { name, parent, file: file.to_owned(), contents, children: BTreeMap::new() });
        for child in declared {
            let below = directory.join(&child.name);
            let (file, contents) = match child.inline {
                Some(contents) => (file.to_owned(), contents),
                None => {
                    let places = [below.with_extension("rs"), below.join("mod.rs")];
                    let found = places.into_iter().find_map(|place| read(&place).map(|text| (place, text)));
                    let (place, text) =
                        found.unwrap_or_else(|| panic!("{}: mod {} has no file", file.display(), child.name));
                    let contents = parsed(&place, &text);
                    (place, contents)
                }
            };
            let added = self.add(id, child.name.clone(), contents, (&file, &below), read);
            self.0[id].children.insert(child.name, added);
        }
        id
    }

    /// The path of a module from the crate's root, `peers::core`; nothing for the root.
    pub(super) fn path_of(&self, id: Id) -> String {
        let line = self.line_of(id);
        line.iter().skip(1).map(|&id| self.0[id].name.as_str()).collect::<Vec<_>>().join("::")
    }

    pub(super) fn name_of(&self, id: Id) -> &str {
        &self.0[id].name
    }

    /// A module's ancestors from the root on, and itself.
    pub(super) fn line_of(&self, id: Id) -> Vec<Id> {
        let mut line = vec![id];
        let mut at = id;
        while at != ROOT {
            at = self.0[at].parent;
            line.push(at);
        }
        line.reverse();
        line
    }

    /// Every use of one module's items, or of the module itself, by another module of the crate.
    pub(super) fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for (from, module) in self.0.iter().enumerate() {
            let contents = &module.contents;
            let imports = contents.imports.iter().map(|import| &import.path);
            let named = imports.chain(&contents.paths);
            let mut found: Vec<_> = named
                .filter_map(|path| {
                    Some((self.resolve(from, &path.segments, 0)?, path.line, path.segments.join("::")))
                })
                .collect();
            // Only a `*` brings names that no declaration of this module has.
            if contents.imports.iter().any(|import| import.name.is_none()) {
                let words = contents.words.iter();
                found
                    .extend(words.filter_map(|(word, &line)| {
                        Some((self.look_up(from, word, 0)?, line, word.clone()))
                    }));
            }
            uses.extend(found.into_iter().map(|(meaning, line, path)| {
                let (Meaning::Module(to) | Meaning::ItemOf(to)) = meaning;
                Use { from, to, file: module.file.clone(), line, path }
            }));
        }
        uses.retain(|found| found.from != found.to);
        uses
    }

    /// The meaning of a path in the module `from`; `None` if it is in another crate.
    fn resolve(&self, from: Id, path: &[String], hops: usize) -> Option<Meaning> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => ROOT,
            "self" => from,
            "super" => self.0[from].parent,
            name => match self.look_up(from, name, hops)? {
                Meaning::Module(id) => id,
                item @ Meaning::ItemOf(_) => return Some(item),
            },
        };
        while let Some((segment, further)) = rest.split_first() {
            if segment == "super" {
                at = self.0[at].parent;
            } else {
                match self.look_up(at, segment, hops) {
                    Some(Meaning::Module(id)) => at = id,
                    Some(item) => return Some(item),
                    // A macro made it, or the module re-exports it from another crate.
                    None => return Some(Meaning::ItemOf(at)),
                }
            }
            rest = further;
        }
        Some(Meaning::Module(at))
    }

    /// The meaning of `name` in the module `id`: its child, an import, or a definition.
    fn look_up(&self, id: Id, name: &str, hops: usize) -> Option<Meaning> {
        if hops > MAX_HOPS {
            return None;
        }
        let module = &self.0[id];
        if let Some(&child) = module.children.get(name) {
            return Some(Meaning::Module(child));
        }
        let imports = &module.contents.imports;
        // `use name;` makes a macro of this module visible: it leads to itself.
        let names_itself = |path: &Written| path.segments.len() == 1 && path.segments[0] == name;
        let named =
            imports.iter().find(|import| import.name.as_deref() == Some(name) && !names_itself(&import.path));
        if let Some(import) = named {
            return self.resolve(id, &import.path.segments, hops + 1);
        }
        if module.contents.definitions.contains(name) {
            return Some(Meaning::ItemOf(id));
        }
        let globs = imports.iter().filter(|import| import.name.is_none());
        globs.filter(|import| !names_itself(&import.path)).find_map(|import| {
            match self.resolve(id, &import.path.segments, hops + 1)? {
                Meaning::Module(other) if other != id => self.look_up(other, name, hops + 1),
                // The variants of an enumeration, which are of its module.
                _ => None,
            }
        })
    }
}

fn parsed(file: &Path, text: &str) -> Contents {
    Contents::parse(text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}
